"""The arms of a comparison, trained for a few steps, as scripts.recursion_eval reads them; and what it refuses."""

import json
import shutil

import pytest
from base_runs import STEPS, Base

from nanochat.log import MetricLog
from scripts import recursion_eval
from scripts.recursion_eval import Config

DEPTH = {"R": ["--recursion=aggressive"], "P": [], "F": ["--depth=26"], "L": ["--model=reference,sweeps=12"]}
SHAPE = ["--width=64", "--save-every=-1", "--lanes=8"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    base = Base(tmp_path_factory.mktemp("base"))
    for arm, flags in DEPTH.items():
        base.run(f"small-{arm}-1", *SHAPE, *flags, "--seed=1")
    manifest = json.loads((base.of("small-R-1") / f"step_{STEPS:06d}/manifest.json").read_text())
    seconds = manifest["loop"]["seconds"]
    base.run("small-W-1", *SHAPE, "--num-iterations=-1", f"--target-seconds={seconds}", "--seed=1")
    return base


@pytest.fixture(autouse=True)
def here(base, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base.folder))
    monkeypatch.setattr("nanochat.lab.recursion.TOLERANCE", 0.5)  # a loaded machine, and a few steps


def test_one_seed_gives_figures_and_no_verdict(base, capsys):
    recursion_eval.main(Config(tag="small", dtype="fp32"))
    said = capsys.readouterr().out
    assert "Verdict: no verdict: one seed\n" in said
    outcome = json.loads((base.folder / "recursion_eval/small/outcome.json").read_text(encoding="utf-8"))
    exits, arms = outcome["tables"]
    assert [row[0] for row in exits["rows"]] == [0, 1, 2, 3]
    recursion = base.outcome("small-R-1")["metrics"]
    assert exits["rows"][-1][1] == recursion["Final validation bpb"]["value"]
    rows = {row[0]: dict(zip((name for name, _ in arms["columns"]), row, strict=True)) for row in arms["rows"]}
    assert list(rows) == ["R", "P", "F", "W", "L"]
    for arm, row in rows.items():
        measured = base.outcome(f"small-{arm}-1")["metrics"]
        assert row["Bits per byte"] == measured["Final validation bpb"]["value"]
        difference = row["Bits per byte"] - rows["R"]["Bits per byte"]
        assert row["Minus R"] == (None if arm == "R" else pytest.approx(difference))
    assert rows["F"]["FLOPs per token"] == pytest.approx(rows["R"]["FLOPs per token"], rel=0.1)
    assert rows["P"]["Parameters"] == rows["R"]["Parameters"] == rows["L"]["Parameters"] < rows["F"]["Parameters"]
    metrics = outcome["metrics"]
    assert (metrics["Preset"], metrics["supervision_base"], metrics["loops"]) == ("aggressive", 5.0, 2)
    assert metrics["Block applications per token"] == 2 * 12
    assert float(metrics["Refinement, first exit refitted"]) < float(metrics["Refinement"])  # its head went on learning
    assert [curve["title"] for curve in outcome["curves"]] == ["Validation at each exit", "Arms, first seed"]
    assert list(outcome["curves"][1]["series"]) == list(rows)


def refusal(tag="small"):
    with pytest.raises(ValueError) as refused:
        recursion_eval.main(Config(tag=tag, dtype="fp32"))
    return str(refused.value)


def test_arms_that_cannot_be_compared_are_refused(base):
    assert refusal("other") == "the run other-R-1 has not finished: bash runs/recursion.sh trains all arms"
    for arm in DEPTH.keys() | {"W"}:
        base.copy(f"small-{arm}-1", f"changed-{arm}-1")
    for seed, steps, said in ((2, STEPS, "the arms were trained on different batches"), (1, 8, "numbers of steps")):
        base.run("new", *SHAPE, f"--seed={seed}", f"--num-iterations={steps}", "--resume=never")
        shutil.rmtree(base.of("changed-P-1"))
        base.copy("new", "changed-P-1")
        assert said in refusal("changed")


def test_the_criteria_for_a_longer_run(base, capsys):
    with pytest.raises(
        ValueError, match="the run small-P-1 does not meet the criteria: it has no validation"
    ) as refused:
        recursion_eval.main(Config(tag="small-P-1", check=True))
    assert str(refused.value).endswith("Start with --anyway, or mend it")
    with MetricLog(base.of("made")) as log:
        for step in range(1, 11):
            log.write("train", step, **{"train/loss": 3.0 - 0.1 * step, "train/grad_norm": 1.0})
        log.write("validation", 10, **{f"val/bpb at exit {i}": 2.0 - 0.2 * i for i in range(4)})
    recursion_eval.main(Config(tag="made", check=True))
    assert capsys.readouterr().out == "the run made meets all four criteria\n"
