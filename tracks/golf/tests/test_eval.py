"""A file is scored by a process that has it and the text alone; entries are compared."""

import json
import shutil
import subprocess
import tempfile
from dataclasses import replace
from unittest.mock import patch

import pytest
from base_runs import Base
from contain import NEEDS_SANDBOX

from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.paths import read_json
from tracks.golf import eval as golf_eval
from tracks.golf import pack as golf_pack
from tracks.golf.entries import SCALES


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Base:
    base = Base(tmp_path_factory.mktemp("golf"))
    base.run("entry", "--model=golf")
    return base


@pytest.fixture(autouse=True)
def here(base, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base.folder))


EMBEDDED = SCALES["embedded"]


def scored(base: Base, tag: str) -> Record:
    return read_json(base.folder / f"golf_eval/{tag}/outcome.json")


@NEEDS_SANDBOX
def test_a_file_is_scored_alone(base, capsys, tmp_path, monkeypatch) -> None:
    (tmp_path / "real").mkdir()
    for link, target in {"temporary": tmp_path / "real", "repository": golf_eval.ROOT}.items():
        (tmp_path / link).symlink_to(target)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(golf_eval, "ROOT", tmp_path / "repository")
    golf_pack.main(golf_pack.Config(tag="entry", plan="embed=int8-row,blocks=int8-row", eval_bytes=3000))
    shutil.move(base.of("entry"), base.folder / "elsewhere")  # the checkpoint is not there when the file is scored
    config = golf_eval.Config(tag="entry", stride=16)
    golf_eval.main(config)
    outcome = scored(base, "entry")
    metrics, groups = outcome["metrics"], dict(outcome["tables"][0]["rows"])
    assert metrics["Bytes"] == sum(groups.values()) - groups["tokenizer (not counted)"]
    assert (metrics["Scoring device"], metrics["Sandbox"]) == ("cpu", "yes")
    assert abs(metrics["Quantization gap"]["value"]) < 0.01
    assert metrics["bpb"]["value"] < metrics["bpb, rows that do not overlap"]["value"]
    printed = capsys.readouterr().out
    assert "Cost of each stride, from measured speed; it fits if twice that is within 60 seconds" in printed
    assert "final_mixed_quant_roundtrip val_loss:" in printed
    for limit, sentence in (
        ({"bytes": 60_000}, "over the budget of 60,000; the largest: code"),
        ({"scoring": 0.001}, "scoring took longer than"),
    ):
        monkeypatch.setitem(SCALES, "embedded", replace(EMBEDDED, **limit))
        with pytest.raises(ValueError, match=sentence):
            golf_eval.main(config)
    shutil.move(base.folder / "elsewhere", base.of("entry"))


@NEEDS_SANDBOX
def test_a_scorer_that_opens_a_file_that_is_not_counted_has_no_score(base, tmp_path, monkeypatch) -> None:
    for name in ("nanochat", "tracks/golf"):
        shutil.copytree(golf_eval.ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    shutil.copy(golf_eval.ROOT / "tracks/__init__.py", tmp_path / "tracks")
    (tmp_path / "tracks/golf/table.bin").write_bytes(b"what comes next")
    golf_pack.main(golf_pack.Config(tag="entry", plan="embed=int8-row,blocks=int8-row", eval_bytes=3000))
    monkeypatch.setattr(golf_eval, "ROOT", tmp_path)
    golf_eval.main(golf_eval.Config(tag="entry", stride=16))  # its code alone
    with (tmp_path / "tracks/golf/score.py").open("a", encoding="utf-8") as file:
        file.write("\nTABLE = Path(__file__).with_name('table.bin').read_bytes()\n")
    with pytest.raises(UserError, match=r"No such file or directory: '.*/tracks/golf/table\.bin'"):
        golf_eval.main(golf_eval.Config(tag="entry", stride=16))


@NEEDS_SANDBOX
def test_entries_are_compared_with_the_best_baseline(base) -> None:
    golf_pack.main(golf_pack.Config(tag="entry", eval_bytes=3000))
    golf_eval.main(golf_eval.Config(tag="entry", stride=32, count_tokenizer=True))
    outcome = scored(base, "entry")
    assert outcome["metrics"]["Bytes"] == sum(size for _, size in outcome["tables"][0]["rows"])
    for entry, worse in {"golf": 0.0, "naive-narrow": 0.3, "naive-middle": 0.2, "naive-wide": 0.4}.items():
        for seed in (1, 2):
            tag = f"series-{entry}-{seed}"
            for stage in ("golf_eval", "base_train"):
                shutil.copytree(base.folder / stage / "entry", base.folder / stage / tag)
            path = base.folder / "golf_eval" / tag / "outcome.json"
            outcome = read_json(path)
            outcome["tag"] = tag
            outcome["metrics"]["bpb"]["value"] += worse + 0.01 * seed
            path.write_text(json.dumps(outcome), encoding="utf-8")
    series = golf_eval.Config(tag="series", entries="golf", seeds=2)
    golf_eval.main(series)
    outcome = scored(base, "series")
    metrics = outcome["metrics"]
    assert metrics["Baseline"] == "naive-middle"
    assert metrics["Baseline minus entry"]["value"] == pytest.approx(0.2)
    assert 0 < metrics["p"]["value"] < 0.01
    assert [curve["title"] for curve in outcome["curves"]] == ["Validation over the clock, first seed"]
    [checks] = [table for table in outcome["tables"] if table["title"].startswith("Checks")]
    counted = [["golf", 2], ["naive-narrow", 1], ["naive-middle", 2], ["naive-wide", 1]]
    assert [row[:2] for row in checks["rows"]] == counted
    assert all(row[3] < 1e-3 and row[4] < 1e-4 and row[5] < 1e-4 for row in checks["rows"])
    path = base.folder / "golf_eval/series-golf-2/outcome.json"
    outcome = read_json(path)
    outcome["metrics"]["Stride"] = 16
    path.write_text(json.dumps(outcome), encoding="utf-8")
    with pytest.raises(ValueError, match=r"the runs differ in Stride \(16, 32\)"):
        golf_eval.main(series)
    path.unlink()
    golf_eval.main(series)
    # An earlier ablation with two seeds has left one with other flags; it and a former best baseline are not read.
    for seed in (1, 2):
        for stage in ("golf_eval", "base_train"):
            folder = base.folder / stage
            shutil.copytree(folder / "series-golf-1", folder / f"series-golf-without-smear-{seed}")
    path = base.folder / "base_train/series-golf-without-smear-2/outcome.json"
    outcome = read_json(path)
    outcome["config"]["depth"] += 1
    path.write_text(json.dumps(outcome), encoding="utf-8")
    golf_eval.main(replace(series, entries="golf,golf-without-smear", ablation_seeds=1))
    baselines, ablation, *_ = scored(base, "series")["tables"]
    seeds = {row[0]: row[-1] for row in (*baselines["rows"], *ablation["rows"])}
    assert seeds == {"golf": 1, "golf-without-smear": 1, "naive-narrow": 1, "naive-middle": 2, "naive-wide": 1}
    with pytest.raises(ValueError, match=r"series-golf-without-smear-2 was made with other flags than .*--depth"):
        golf_eval.main(replace(series, entries="golf,golf-without-smear"))


def speed(factor: float) -> Record:
    """A pass of 0.5 seconds over rows of 32 tokens, on a machine slower by a factor."""
    return {"seconds of the model": 0.5 * factor, "seconds": 0.6 * factor, "stride": 32}


def test_the_first_run_of_a_series_chooses_a_stride_that_fits_and_the_others_take_it() -> None:
    scale = replace(EMBEDDED, scoring=5)
    for factor, least, stride in ((1, 8, 8), (1, 16, 16), (2, 8, 16), (4, 8, 32), (100, 8, 32)):
        assert golf_eval.choose_stride(-1, speed(factor), replace(scale, stride=least)) == stride
    assert golf_eval.choose_stride(16, speed(100), scale) == 16
    assert golf_eval.choose_stride(0, speed(1), scale) == 32


def test_on_a_gpu_the_scoring_process_gets_the_device_and_no_sandbox() -> None:
    done = subprocess.CompletedProcess([], 0, 'a warning\n{"bpb": 1}\n', "")
    with patch.object(subprocess, "run", return_value=done) as run:
        assert golf_eval.run_scorer("/folder", SCALES["1gpu"], False, 8, 64) == {"bpb": 1}
    [[_, _, program]] = run.call_args.args
    assert "score_files('/folder', 64, 8, 600, 'cuda')" in program
    assert golf_eval.find_sandbox("cuda", unsafe=False) == "no, on a GPU"


def test_an_entry_without_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no finished artifact at"):
        golf_eval.main(golf_eval.Config(tag="nobody"))
    with pytest.raises(ValueError, match="has not finished for nothing-golf-1"):
        golf_eval.main(golf_eval.Config(tag="nothing", entries="golf"))
