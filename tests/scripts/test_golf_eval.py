"""A file is scored by a process that has it and the text alone; entries are compared."""

import json
import shutil
import tempfile
from dataclasses import replace

import pytest
from base_runs import Base

from nanochat.evals import sandbox
from nanochat.paths import read_json
from scripts import golf_eval, golf_pack


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    base = Base(tmp_path_factory.mktemp("golf"))
    base.run("entry", "--model=golf")
    return base


@pytest.fixture(autouse=True)
def here(base, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base.folder))


needs_sandbox = pytest.mark.skipif(bool(sandbox.missing()), reason=f"no sandbox here: {sandbox.missing()}")


def scored(base, tag):
    return read_json(base.folder / f"golf_eval/{tag}/outcome.json")


@needs_sandbox
def test_a_file_is_scored_alone(base, capsys, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    for link, target in {"temporary": tmp_path / "real", "repository": golf_eval.ROOT}.items():
        (tmp_path / link).symlink_to(target)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(golf_eval, "ROOT", tmp_path / "repository")
    golf_pack.main(golf_pack.Config(tag="entry", plan="embed=int8-row,blocks=int8-row", eval_bytes=3000))
    shutil.move(base.of("entry"), base.folder / "elsewhere")  # the checkpoint is not there when the file is scored
    config = golf_eval.Config(tag="entry", eval_bytes=3000, stride="16")
    golf_eval.main(config)
    outcome = scored(base, "entry")
    metrics, groups = outcome["metrics"], dict(outcome["tables"][0]["rows"])
    assert metrics["Bytes"] == sum(groups.values()) - groups["tokenizer (not counted)"]
    assert (metrics["Scoring device"], metrics["Sandbox"]) == ("cpu", "yes")
    assert abs(metrics["Quantization gap"]["value"]) < 0.01
    assert metrics["bpb"]["value"] < metrics["bpb, rows that do not overlap"]["value"]
    assert metrics["bpb, banded (another score)"]["value"] > 0
    printed = capsys.readouterr().out
    assert "Cost of each stride, from measured speed; it fits if twice that is within 60 seconds" in printed
    assert "final_mixed_quant_roundtrip val_loss:" in printed
    for flags, sentence in (
        ({"budget": 60_000}, "over the budget of 60,000; the largest: code"),
        ({"scoring_seconds": 0.001}, "scoring took longer than"),
        ({"stride": "33"}, "--stride=33 would leave out text"),
    ):
        with pytest.raises(ValueError, match=sentence):
            golf_eval.main(replace(config, **flags))
    shutil.move(base.folder / "elsewhere", base.of("entry"))


@needs_sandbox
def test_entries_are_compared_with_the_best_baseline(base, capsys):
    golf_pack.main(golf_pack.Config(tag="entry", eval_bytes=3000))
    golf_eval.main(golf_eval.Config(tag="entry", eval_bytes=3000, stride="32", banded=False, count_tokenizer=True))
    outcome = scored(base, "entry")
    assert outcome["metrics"]["Bytes"] == sum(size for _, size in outcome["tables"][0]["rows"])
    for entry, worse in {"golf": 0.0, "naive-narrow": 0.3, "naive-middle": 0.2, "naive-wide": 0.4}.items():
        for seed in (1, 2):
            tag = f"series-{entry}-{seed}"
            for stage in ("golf_pack", "golf_eval", "base_train"):
                shutil.copytree(base.folder / stage / "entry", base.folder / stage / tag)
            path = base.folder / "golf_eval" / tag / "outcome.json"
            outcome = read_json(path)
            outcome["metrics"]["bpb"]["value"] += worse + 0.01 * seed
            path.write_text(json.dumps(outcome), encoding="utf-8")
    capsys.readouterr()
    series = golf_eval.Config(tag="series", entries="golf", seeds=2)
    best = replace(series, best=True)
    golf_eval.main(best)
    assert capsys.readouterr().out == "naive-middle\n"
    golf_eval.main(series)
    outcome = scored(base, "series")
    metrics = outcome["metrics"]
    assert metrics["Baseline"] == "naive-middle"
    assert metrics["Baseline minus entry"]["value"] == pytest.approx(0.2)
    assert 0 < metrics["p"]["value"] < 0.01
    assert len(outcome["curves"]) == 2  # bytes by group, validation over the clock
    path = base.folder / "golf_eval/series-golf-2/outcome.json"
    outcome = read_json(path)
    for name, sentence in {"Stride": "the scores of series differ in Stride", "Artifact": "that is not scored"}.items():
        other = outcome | {"metrics": outcome["metrics"] | {name: "other"}}
        path.write_text(json.dumps(other), encoding="utf-8")
        with pytest.raises(ValueError, match=sentence):
            golf_eval.main(series)
    record = base.folder / "golf_pack/series-golf-2/outcome.json"
    other_scale = record.read_text(encoding="utf-8").replace('"Scale": "embedded"', '"Scale": "cpu"')
    record.write_text(other_scale, encoding="utf-8")
    path.write_text(json.dumps(outcome), encoding="utf-8")
    with pytest.raises(ValueError, match=r"the scores of series differ in Scale \(cpu, embedded\): score its runs"):
        golf_eval.main(series)
    path.unlink()
    golf_eval.main(best)


def speed(factor):
    """A pass of 0.5 seconds over 100 rows of 32 tokens, on a machine slower by a factor."""
    return {"rows": 100, "tokens": 3200, "seconds of the model": 0.5 * factor, "seconds": 0.6 * factor, "stride": 32}


def test_the_first_run_of_a_series_chooses_a_stride_that_fits_and_the_others_take_it():
    config = golf_eval.Config(scoring_seconds=5)
    for factor, least, stride in ((1, 8, 8), (1, 16, 16), (2, 8, 16), (4, 8, 32), (100, 8, 32)):
        assert golf_eval.choose_stride(config, speed(factor), least) == stride
    assert golf_eval.choose_stride(replace(config, stride="16"), speed(100), 8) == 16
    assert golf_eval.choose_stride(replace(config, stride="0"), speed(1), 8) == 32
    with pytest.raises(ValueError, match="--stride=long has to be auto or a number of tokens"):
        golf_eval.choose_stride(replace(config, stride="long"), speed(1), 8)


def test_on_a_gpu_the_scoring_process_gets_the_device_and_no_sandbox():
    words = golf_eval.scoring_words("/folder", golf_eval.Config(rows=4, scoring_seconds=9.5), "cuda", 64, "--banded")
    assert words[:3] == ["golf", "/folder/artifact", "/folder/text"]
    assert words[3:] == ["--stride=64", "--rows=4", "--seconds=9.5", "--device=cuda", "--banded"]
    assert golf_eval.find_sandbox("cuda", unsafe=False) == "no, on a GPU"


def test_an_entry_without_a_file_is_refused():
    with pytest.raises(ValueError, match="there is no finished artifact at"):
        golf_eval.main(golf_eval.Config(tag="nobody"))
    with pytest.raises(ValueError, match="nothing-golf-1 is not scored"):
        golf_eval.main(golf_eval.Config(tag="nothing", entries="golf"))
