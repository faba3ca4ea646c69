"""The series of golf: an entry and baselines, a second seed, the ablation, and mistakes in flags."""

import re
import shlex
import shutil

import pytest
import torch
from outcomes import leave

from bench.evidence import CARDS, PLANNED, Card
from nanochat.config import parse
from nanochat.paths import read_json, write_json
from tracks.golf import claims, run
from tracks.golf.entries import BASELINES, tricks_of
from tracks.golf.run import Config, steps
from tracks.golf.series import best_baseline, own_checks_table

GOLF = ["--scale=embedded", "--data=letters", "--tag=links", "--out=golf.md", "--vocab-size=300", "--unsafe-exec"]
FLAGS = "--num-iterations=4 --depth=1 --width=32 --head-dim=16 --max-seq-len=64 --total-batch-size=256 --no-compile"
FLAGS = [*FLAGS.split(), "--dtype=fp32", "--eval-bytes=3000", "--eval-every=0"]
STEPS = ("train", "pack", "score")  # of one run
FEW_TRICKS = "--model=golf,tie_embeddings=false,smear=false,induction=false,mlp=relu2,backout=false"


def finished(output: str) -> list[str]:
    return re.findall("^== (.*): already finished$", output, re.MULTILINE)


def began(output: str) -> list[str]:
    return re.findall(r"^== (\S+): python ", output, re.MULTILINE)


@pytest.mark.slow
def test_golf_repeats_the_best_baseline_ablates_and_resumes(series, base, tmp_path) -> None:
    flags = [*GOLF, *FLAGS, FEW_TRICKS, "--seeds=2", "--ablate", "--ablation-seeds=1"]
    ended = series("tracks.golf.run", *flags)
    scored = {path.parent.name for path in base.glob("golf_eval/*/outcome.json")}
    first = {f"links-{entry}-1" for entry in ("golf", *BASELINES)}
    again = {f"links-{entry}-2" for entry in BASELINES}
    assert first <= scored
    assert len(scored & again) == 1  # the best baseline alone has a second seed
    given = dict(flag.partition("=")[::2] for flag in [*FLAGS, FEW_TRICKS])
    tricks = tricks_of(given)
    assert "narrow MLP" in tricks
    for trick in tricks:
        assert f"links-golf-without-{trick.replace(' ', '-')}-1" in scored
    entries, without, *_ = read_json(base / "golf_eval/links/outcome.json")["tables"]
    by_name = {row[0]: row for row in (*entries["rows"], *without["rows"][1:])}
    assert (by_name["golf"][-1], by_name["golf-without-narrow-MLP"][-1]) == (2, 1)
    assert by_name["golf-without-narrow-MLP"][4] is not None  # p, by the two seeds of the entry
    text = (tmp_path / "golf.md").read_text(encoding="utf-8")
    assert "Entries, against the best baseline" in text
    assert "golf-without-narrow-MLP" in text
    repeated = series("tracks.golf.run", *flags)
    assert began(repeated.stdout) == ["comparison", "report"]
    assert finished(repeated.stdout) == began(ended.stdout)[:-2]


def test_a_dry_run_plans_with_the_vocabulary_of_the_series(series, base) -> None:
    said = series("tracks.golf.run", *GOLF, *FLAGS, "--dry-run").stdout
    assert f"Number of parameters, embed: {320 * 32:,}\n" in said  # 300 tokens, in whole tiles
    assert not (base / "tok_train").exists()


def test_a_series_resumes_repeats_what_changed_and_ends_with_a_comparison(series, base, tmp_path) -> None:
    flags = [*GOLF, *FLAGS, FEW_TRICKS, "--seeds=1"]
    series("tracks.golf.run", *flags)
    assert "Entries, against the best baseline" in (tmp_path / "golf.md").read_text(encoding="utf-8")
    # A score that is gone is made again, and no other.
    shutil.rmtree(base / "golf_eval/links-naive-wide-1")
    again = series("tracks.golf.run", *flags)
    assert began(again.stdout) == ["naive-wide-1-score", "comparison", "report"]
    # With another plan for the packing, models stay and files are packed again.
    record = base / "golf/links/golf-1-pack.json"
    saved = read_json(record)
    write_json(record, saved | {"command": [*saved["command"][:-1], "--plan=int8-row+clip-20"]})
    packed = series("tracks.golf.run", *flags)
    assert "== golf-1-pack: repeated, --plan=int8-row+clip-20 is now --plan=" in packed.stdout
    assert began(packed.stdout) == ["golf-1-pack", "comparison", "report"]  # the file is the same, and so is its score
    refused = series("tracks.golf.run", *flags, "--vocab-size=310", code=2)
    assert refused.stderr == "error: the vocabulary of --tag=links has --vocab-size=300, not 310: use another --tag\n"
    # The ablation adds the entry without each of its tricks; what was trained before stays.
    ablated = series("tracks.golf.run", *flags, "--ablate")
    new = [f"golf-without-{trick}-1-{step}" for trick in ("narrow-MLP", "late-QAT") for step in STEPS]
    assert began(ablated.stdout) == [*new, "comparison", "report"]
    text = (tmp_path / "golf.md").read_text(encoding="utf-8")
    assert "golf-without-narrow-MLP" in text
    assert "golf-without-late-QAT" in text


@pytest.mark.parametrize(("ablation", "ablated"), [(0, [1, 2, 3]), (1, [1]), (2, [1, 2])])
def test_the_ablation_has_seeds_of_its_own(base, ablation: int, ablated: list[int]) -> None:
    """The entry, the best baseline and the comparison keep all seeds."""
    for name, bpb in (("golf", 0.4), *((name, 0.5) for name in BASELINES)):
        metrics = {"bpb": {"value": bpb, "format": ".4f"}, "Stride": 64}
        checks = own_checks_table({"places": 1, "sum": 0.0, "causal": 0.0, "again": 0.0, "bytes": 1})
        leave(base, "golf_eval", f"links-{name}-1", metrics=metrics, tables=[checks])
    flags = shlex.join([*FLAGS, FEW_TRICKS])
    config = Config(tag="links", scale="embedded", vocab_size=300, flags=flags, ablate=True, ablation_seeds=ablation)
    *made, compared, _ = steps(config)
    scored = [step.output.removeprefix("golf_eval/links-") for step in made if step.name.endswith("-score")]
    best = best_baseline("links")
    assert {f"golf-{seed}" for seed in (1, 2, 3)} | {f"{best}-{seed}" for seed in (1, 2, 3)} <= set(scored)
    assert [f"golf-without-narrow-MLP-{seed}" for seed in ablated] == [name for name in scored if "narrow-MLP" in name]
    assert "--seeds=3" in compared.command
    assert f"--ablation-seeds={len(ablated)}" in compared.command  # the folder may have more, of earlier flags


@pytest.mark.parametrize("card", [card for card in [*CARDS, *PLANNED] if card.tracks == ["golf"]])
def test_the_tag_of_a_card_is_that_of_its_series(card: Card) -> None:
    [command] = card.commands
    words = shlex.split(command)
    module = {"tracks.golf.run": run, "tracks.golf.claims": claims}[words[2]]
    assert card.tag == module.settle(parse(module.Config, words[3:])).tag


# flag, beginning of the sentence. Where there is a GPU, --scale=1gpu would train.
MISTAKES = [
    ("--seeds=none", "--seeds: none is not a whole number"),
    ("--ablation-seeds=4", "--ablation-seeds=4 is more than --seeds=3"),
    ("--seed=7", "--seed differs between runs: use --seeds"),
    ("--seeds=0", "--seeds has to be 1 or more"),
    ("--without=smear", "--without is not a flag of a series: use --ablate, which leaves out each trick in turn"),
    ("--width=33", "--width=33 is not a multiple of --head-dim=32"),
    ("--entry=seed", "--entry: seed is not known, choose from golf"),
]
if not torch.cuda.is_available():
    MISTAKES.append(("--scale=1gpu", "--scale=1gpu needs a GPU: use --scale=embedded"))


@pytest.mark.parametrize(("flag", "sentence"), MISTAKES)
def test_a_mistake_in_a_flag_is_found_first(series, base, flag, sentence) -> None:
    refused = series("tracks.golf.run", "--scale=embedded", "--tag=mistaken", "--data=letters", flag, code=2)
    assert refused.stderr.startswith(f"error: {sentence}")
    assert not (base / "tok_train").exists()
