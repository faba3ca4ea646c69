"""Ladders on disk: curve.log in both directions, the record of the report card, and what does not compare."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from outcomes import leave

from nanochat.config import parse
from nanochat.errors import UserError
from nanochat.ladder import (
    Ladder,
    Terms,
    compare_ladders,
    find_ladder,
    format_line,
    ladder_of,
    ladder_of_record,
    leave_ladder,
    multiplier_cells,
    parse_line,
)
from nanochat.multiplier import Multiplier
from nanochat.paths import read_json, stage_dir, write_json, write_text
from nanochat.report.__main__ import read_record, write_card
from nanochat.report.compare import compare
from nanochat.scaling import scaled_size
from scripts.ladder import Config

FLOPS = {1: 1e12, 2: 8e12, 4: 5e13}

# As the public nanochat writes it: a record has more columns than are read, and remarks may stand between records.
PUBLIC = """\
experiment mine: 2 models
model model_tag=d12 depth=12 base.model_dim=768 base.num_params=286261730 base.eflops=1.523 base.val_bpb=0.8213 \
base.gpu='NVIDIA H100 80GB HBM3'
model model_tag=d16 depth=16 base.eflops=4.871 base.val_bpb=0.7654 chat.chatcore=0.21
don't parse this
"""


def scores(tag: str, seed: int) -> dict[int, float]:
    """Bits per byte at each depth: a power law, with a little noise that every run has for itself."""
    factor = 0.98 if tag == "better" else 1.0
    return {
        depth: factor * 3 * (flops / 1e12) ** -0.08 * (1 + 1e-4 * ((7 * seed + 3 * depth + len(tag)) % 5))
        for depth, flops in FLOPS.items()
    }


def leave_runs(
    base: Path, tag: str, seeds: Sequence[int] = (1, 2), depths: Sequence[int] = (1, 2, 4), text: str = "v", **changes
) -> list[str]:
    """Leave the tokenizer and the runs of a ladder, as training would; returns the tags of the runs."""
    leave(base, "tok_train", tag, artifacts={"tokenizer.json": changes.get("tokenizer", "abc")})
    tags = []
    for seed in seeds:
        for depth in depths:
            tags.append(f"{tag}-s{seed}-d{depth}")
            bpb = {"value": scores(tag, seed)[depth], "stderr": 0.01, "format": ".4f"}
            metrics = {
                "Number of parameters": 100 * depth,
                "Number of parameters, matrices": 50 * depth,
                "Number of parameters, head": 20 * depth,
                "Total batch size": 256,
                "Tokens seen": 512 * depth,
                "Total training flops": {"value": FLOPS[depth], "format": ".4e"},
                "Peak memory usage": "n/a",
                "Minimum validation bpb": bpb,
                "Final validation bpb": bpb,
                "Data": "letters",
                "Validation text": text,
            }
            config = {"depth": depth, "seed": seed, "target_flops": -1.0, "lanes": 64, "max_seq_len": 64}
            config |= {"eval_bytes": 3000, "device_type": "auto"} | changes.get("config", {})
            leave(base, "base_train", tags[-1], config=config, metrics=metrics | changes.get("metrics", {}))
    return tags


def finished(base: Path, tag: str, **changes) -> Ladder:
    """A ladder whose runs have been left."""
    return ladder_of_runs(tag, leave_runs(base, tag, **changes))


def ladder_of_runs(tag: str, runs: Sequence[str], show: bool = False) -> Ladder:
    return leave_ladder(parse(Config, [f"--tag={tag}"]), tag, runs, show=show, scaled_size=scaled_size)


def test_a_ladder_is_written_and_read_again(base) -> None:
    made = finished(base, "mine")
    assert [(rung.depth, rung.flops, len(rung.bpb), rung.seeds) for rung in made.rungs] == [
        (depth, pytest.approx(flops), 2, (1, 2)) for depth, flops in FLOPS.items()
    ]
    assert made.terms == Terms("abc", "v, 3,000 bytes", "letters, 64 lanes, rows of 64 tokens")
    for name in ("mine", str(base / "ladder/mine"), str(base / "ladder/mine/curve.log")):
        found = find_ladder(name)
        assert (found.name, found.terms) == ("mine", made.terms)
        for one, other in zip(found.rungs, made.rungs, strict=True):
            assert (one.depth, one.bpb, one.seeds) == (other.depth, other.bpb, other.seeds)
            assert one.flops == pytest.approx(other.flops, rel=1e-12)
    # Twice the same, and what has been there before is replaced.
    text = (base / "ladder/mine/curve.log").read_text(encoding="utf-8")
    assert text.count("\n") == 6
    finished(base, "mine")
    assert (base / "ladder/mine/curve.log").read_text(encoding="utf-8") == text


def test_the_default_of_validation_text_differs_between_devices(base) -> None:
    assert (
        finished(base, "gpu", config={"eval_bytes": -1}).terms.validation == "v, as many bytes as by default on a GPU"
    )
    cpu = finished(base, "cpu", config={"eval_bytes": -1, "device_type": "cpu"}).terms.validation
    assert cpu == "v, as many bytes as by default on a CPU"


def test_the_columns_are_those_of_the_public_curve(base) -> None:
    finished(base, "mine", seeds=[3], config={"target_flops": 1e12})
    line = (base / "ladder/mine/curve.log").read_text(encoding="utf-8").splitlines()[0]
    assert parse_line(line) == {
        "model_tag": "mine-s3-d1",
        "depth": "1",
        "base.num_params": "100",
        "base.num_scaling_params": "70",
        "base.num_iterations": "2",
        "base.total_batch_size": "256",
        "base.tokens_trained": "512",
        "base.eflops": "1e-06",
        "base.param_data_ratio": "7.31",
        "base.target_flops": "1000000000000.0",
        "base.val_bpb": str(scores("mine", 3)[1]),
        "base.min_val_bpb": str(scores("mine", 3)[1]),
        "base.seed": "3",
        "base.val_bpb_stderr": "0.01",
        "ladder.tokenizer": "abc",
        "ladder.validation": "v, 3,000 bytes",
        "ladder.order": "letters, 64 lanes, rows of 64 tokens",
    }


def test_a_public_curve_is_read(tmp_path, base) -> None:
    write_text(tmp_path / "theirs/curve.log", PUBLIC)
    found = find_ladder(str(tmp_path / "theirs/curve.log"))
    assert found.name == "theirs"
    assert [(rung.depth, rung.flops, rung.bpb, rung.seeds) for rung in found.rungs] == [
        (12, pytest.approx(1.523e18), (0.8213,), (None,)),
        (16, pytest.approx(4.871e18), (0.7654,), (None,)),
    ]
    assert not any(vars(found.terms).values())
    write_text(tmp_path / "other/curve.log", PUBLIC.replace("0.7654", "0.7554"))
    result = compare_ladders(found, find_ladder(str(tmp_path / "other")))
    slope = math.log(4.871 / 1.523) / math.log(0.8213 / 0.7654)
    assert [one.value for one in result.found] == pytest.approx([1, (0.7654 / 0.7554) ** slope])
    assert [multiplier_cells(one) for one in result.found] == [
        ["1.000", "-"],
        [f"{(0.7654 / 0.7554) ** slope:.3f}?", "-"],
    ]
    assert "Each depth of both ladders has one run: there is no interval." in result.notes
    assert result.words.startswith("Without an interval nothing tells a difference from chance")


def test_a_run_that_is_in_the_file_twice_counts_once(base: Path, tmp_path: Path) -> None:
    """Else it would be two seeds without any spread, and intervals would be too narrow."""
    made = finished(base, "mine")
    text = (base / "ladder/mine/curve.log").read_text(encoding="utf-8")
    write_text(tmp_path / "mine/curve.log", text + text)
    assert find_ladder(str(tmp_path / "mine")) == find_ladder("mine")
    write_text(tmp_path / "theirs/curve.log", PUBLIC + PUBLIC.replace("chat.chatcore=0.21", "chat.chatcore=0.24"))
    assert [len(rung.bpb) for rung in find_ladder(str(tmp_path / "theirs")).rungs] == [1, 1]
    # Without tags nobody can tell two runs that are alike from one.
    write_text(tmp_path / "bare/curve.log", 2 * re.sub(r"model_tag=\S+ ", "", PUBLIC))
    assert [len(rung.bpb) for rung in find_ladder(str(tmp_path / "bare")).rungs] == [2, 2]
    line = format_line(
        {"model_tag": "mine-s1-d1", "depth": 1, "base.eflops": 1e-6, "base.val_bpb": 2.5, "base.seed": 1}
    )
    write_text(tmp_path / "mixed/curve.log", f"{text}{line}\n")
    with pytest.raises(UserError, match=r"curve.log:7: another line about mine-s1-d1 has other figures: leave one of"):
        find_ladder(str(tmp_path / "mixed"))
    assert [len(rung.bpb) for rung in made.rungs] == [2, 2, 2]


def test_runs_in_another_order_of_the_text_are_no_pairs(base: Path) -> None:
    """Nor are those of another program, which does not say."""
    runs = [*leave_runs(base, "mine"), *leave_runs(base, "mine", (3,), config={"lanes": 8})]
    assert ladder_of_runs("mine", runs).terms == Terms("abc", "v, 3,000 bytes", "")
    assert find_ladder("mine").terms.order == ""
    curve = base / "ladder/mine/curve.log"
    curve.write_text(curve.read_text(encoding="utf-8") + PUBLIC.splitlines()[1] + "\n", encoding="utf-8")
    assert find_ladder(str(curve)).terms == Terms()


def test_a_tied_embedding_is_the_head_of_a_size(base: Path) -> None:
    metrics = {"Number of parameters, head": 0, "Number of parameters, embed": 30}
    finished(base, "tied", depths=(1, 2), metrics=metrics)
    [table, _] = read_json(base / "ladder/tied/outcome.json")["tables"]
    assert [row[:4] for row in table["rows"]][::2] == [["tied-s1-d1", 1, 1, 80], ["tied-s1-d2", 2, 1, 130]]
    line = parse_line((base / "ladder/tied/curve.log").read_text(encoding="utf-8").splitlines()[0])
    assert line is not None
    assert (line["base.num_scaling_params"], line["base.param_data_ratio"]) == ("80", "6.4")


def test_a_line_survives_quotes_and_blanks() -> None:
    values = {"model_tag": "it's a tag", "depth": 2, "none": None, "base.eflops": 1.25e-7}
    assert parse_line(format_line(values)) == {"model_tag": "it's a tag", "depth": "2", "base.eflops": "1.25e-07"}
    for prose in ("", "model", "model of depth=2", "summary depth=2", "model it's=2"):
        assert parse_line(prose) is None


def test_the_card_has_the_runs_the_curve_and_a_picture(base) -> None:
    finished(base, "mine")
    record = read_json(base / "ladder/mine/outcome.json")
    assert [table["title"] for table in record["tables"]] == ["Runs", "The curve"]
    assert [row[:3] for row in record["tables"][0]["rows"]] == [
        [f"mine-s{seed}-d{depth}", depth, seed] for depth in FLOPS for seed in (1, 2)
    ]
    assert record["curves"][0]["series"]["mine"][0] == pytest.approx([12, 12.903, 13.699], abs=1e-3)
    assert 0 < record["metrics"]["Relative spread over seeds"]["value"] < 0.1  # percent
    assert record["metrics"]["Tokenizer"] == "abc"
    again = ladder_of_record(record, "mine")
    assert again.terms == find_ladder("mine").terms
    assert [rung.bpb for rung in again.rungs] == [rung.bpb for rung in find_ladder("mine").rungs]


def test_runs_of_several_commits_are_told(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step is trained again when its flags change, and not when the code does."""
    tags = leave_runs(base, "mine")
    commits = [f"abc{number} (clean)" for number in (1, 1, 1, 1, 1, 2)]
    for tag, commit in zip(tags, commits, strict=True):
        path = base / f"base_train/{tag}/outcome.json"
        record = read_json(path)
        record["environment"]["Git Information"]["Commit"] = commit
        write_json(path, record)
    for count, code in ((5, "abc1 (clean)"), (6, "abc1 (clean), abc2 (clean)")):
        ladder_of_runs("mine", tags[:count], show=True)
        assert read_json(base / "ladder/mine/outcome.json")["metrics"]["Code"] == code
        assert ("code that differs needs a --tag of its own" in capsys.readouterr().out) == (count == 6)


def test_two_ladders_are_compared_and_the_report_does_it_too(base) -> None:
    one, other = finished(base, "mine"), finished(base, "better")
    result = compare_ladders(one, other)
    assert result.spread.is_paired
    [note] = result.notes
    assert re.fullmatch(
        r"Runs are paired by seed; .*, 3 degrees of freedom \(by depth it is 0\.\d\d to 0\.\d\d %\)\.", note
    )
    assert [got.verdict for got in result.found] == ["cheaper"] * 3
    assert [got.value for got in result.found] == pytest.approx([0.98 ** (-1 / 0.08)] * 3, rel=0.02)
    assert result.words == (
        "better is cheaper than mine: holds at every depth, 1, 2, 4; extrapolated: ? is the figure at depth 4."
    )
    kept = result.record()
    assert json.loads(json.dumps(kept)) == kept
    assert [row["extrapolated"] for row in kept["multipliers"]] == [False, False, True]
    for tag in ("mine", "better"):
        write_card(base, base.parent / f"{tag}.md", tag)
    cards = [read_record(base.parent / f"{tag}.json") for tag in ("mine", "better")]
    text = compare(cards, ["mine.json", "better.json"])
    table = text[text.index("Compute multiplier of B over A") :]
    values = [line.split("|")[5].strip() for line in table.splitlines() if re.match(r"\| [124] ", line)]
    assert values == [multiplier_cells(got)[0] for got in result.found]
    assert "B is cheaper than A: holds at every depth, 1, 2, 4" in table


def test_unlike_tokenizers_and_seeds_compare_and_it_is_said(base) -> None:
    mine = finished(base, "mine")
    other = compare_ladders(mine, finished(base, "better", tokenizer="xyz"))
    assert not other.spread.is_paired
    assert other.notes[-1].startswith("The tokenizers differ: bits per byte compare all the same")
    single = compare_ladders(mine, finished(base, "better", seeds=[1]))
    assert single.notes[0] == "Each depth of better has one run: the spread over seeds is that of the other ladder."
    assert (single.spread.freedom, single.spread.is_paired) == (3, False)
    assert all(got.low is not None for got in single.found)


def test_a_miniseries_is_a_ladder_of_one_seed(base) -> None:
    mine = finished(base, "mine", seeds=[1])
    record = read_json(base / "ladder/mine/outcome.json")
    table = record["tables"][0]
    places = [number for number, (name, _) in enumerate(table["columns"]) if name != "Seed"]
    table["columns"] = [table["columns"][place] for place in places]
    table["rows"] = [[row[place] for place in places] for row in table["rows"]]
    leave(base, "scaling", "mini", tables=[table], config={"kind": "miniseries"})
    found = find_ladder("mini")
    assert [(rung.depth, rung.bpb, rung.seeds) for rung in found.rungs] == [
        (rung.depth, rung.bpb, (None,)) for rung in mine.rungs
    ]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda base: find_ladder("nowhere"), r"there is no ladder nowhere in .*; there are: mine"),
        (lambda base: find_ladder("no/where"), "there is no ladder at no/where: name a curve.log, its folder, or"),
        (lambda base: find_ladder(str(base)), "there is no ladder at .*base: name a curve.log"),
        (lambda base: find_ladder("../x"), "there is no ladder at ../x: "),
        (
            lambda base: compare_ladders(find_ladder("mine"), finished(base, "b", depths=[4])),
            "b has one depth alone, 4: a curve takes two or more",
        ),
        (
            lambda base: compare_ladders(
                finished(base, "c", depths=[1, 2]), ladder_of("d", [(3, 1, 1, 1), (6, 1, 2, 1)])
            ),
            "c and d have no depth in common: 1, 2 against 3, 6",
        ),
        (
            lambda base: compare_ladders(find_ladder("mine"), finished(base, "e", text="another")),
            "bits per byte of mine and e are of different validation text, so they do not compare: v, .* against an",
        ),
        (
            lambda base: ladder_of_runs("d", [*leave_runs(base, "d"), *leave_runs(base, "d", (3,), text="another")]),
            "d: its runs were measured on v, 3,000 bytes and on another, 3,000 bytes, so there is no common curve",
        ),
        (
            lambda base: finished(base, "f", metrics={"Final validation bpb": "n/a"}),
            "f-s1-d1 has no bits per byte on validation text: train it without --eval-every=-1",
        ),
        (
            lambda base: finished(base, "g", metrics={"Total training flops": {"value": 1e12}}),
            "g: depths 1 and 2 have the same FLOPs, so no curve over them",
        ),
        (
            lambda base: finished(base, "h", metrics={"Final validation bpb": {"value": math.nan, "stderr": 0.0}}),
            r"h: depth 1 has nan bits per byte after 1e\+12 FLOPs, so no curve",
        ),
    ],
)
def test_what_is_no_ladder_is_refused_in_a_sentence(base, make, sentence) -> None:
    finished(base, "mine")
    with pytest.raises(UserError, match=f"^{sentence}"):
        make(base)
    for tag in "dfgh":
        assert not stage_dir("ladder", tag).exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nothing here\n", "curve.log has no line about a run: `model model_tag=d12 depth=12 base.eflops="),
        ("model depth=2 base.eflops=1\n", "curve.log:1: a line about a run has no base.val_bpb"),
        ("\nmodel depth=two base.eflops=1 base.val_bpb=1\n", "curve.log:2: invalid literal for int"),
        (
            "model depth=2 base.eflops=0.0 base.val_bpb=0.9\n",
            "depth 2 has 0.9 bits per byte after 0 FLOPs, so no curve",
        ),
    ],
)
def test_a_damaged_curve_is_refused_in_a_sentence(tmp_path, text, sentence) -> None:
    write_text(tmp_path / "curve.log", text)
    with pytest.raises(UserError, match=sentence):
        find_ladder(str(tmp_path / "curve.log"))


def test_ends_beyond_the_baseline_have_a_question_mark() -> None:
    got = Multiplier(2, 1.1, 0.9, 1.3, False, True, (0.95, 1.2))
    assert multiplier_cells(got) == ["1.100", "0.900? to 1.300?"]
    assert multiplier_cells(got._replace(low=0.0, high=math.inf)) == ["1.100", "? to ?"]
    assert multiplier_cells(got._replace(value=None, low=None, high=None)) == ["?", "-"]
