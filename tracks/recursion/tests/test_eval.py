"""The arms of a comparison, trained for a few steps, as tracks.recursion.eval reads them; and what it refuses."""

import shutil

import numpy as np
import pytest
from base_runs import STEPS, Base

from nanochat.log import MetricLog
from nanochat.paths import read_json
from nanochat.runtime import Runtime, setup
from tracks.recursion import eval as recursion_eval
from tracks.recursion.eval import Config
from tracks.recursion.study import APPLICATIONS, FREE, FREE_IN_ARM, SECONDS, ArmRun, read_arms, read_shapes, refit_exits

DEPTH = {
    "R": ["--recursion=aggressive"],
    "D": ["--recursion=aggressive", "--residual-power=0.5"],
    "P": [],
    "F": ["--depth=13"],
    "L": ["--model=reference,sweeps=12"],
}
SHAPES_OF_F = {"deep": ["--depth=13"], "wide": ["--depth=1", "--width=192", "--num-iterations=1"]}
SHAPE = ["--depth=1", "--width=64", "--save-every=-1", "--lanes=8", "--grad-clip=1"]  # R clips, so all do


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Base:
    base = Base(tmp_path_factory.mktemp("base"), files=300)  # several are for validation
    for arm, flags in DEPTH.items():
        script = "tracks.recursion.train" if arm in "RD" else "base_train"
        base.run(f"small-{arm}-1", *SHAPE, *flags, "--seed=1", script=script)
    for shape, flags in SHAPES_OF_F.items():
        base.run(f"small-F-{shape}-0", *SHAPE, *flags, "--seed=0")
    manifest = read_json(base.of("small-R-1") / f"step_{STEPS:06d}/manifest.json")
    seconds = manifest["loop"]["seconds"]
    base.run("small-W-1", *SHAPE, "--num-iterations=-1", f"--target-seconds={seconds}", "--seed=1")
    return base


@pytest.fixture(autouse=True)
def here(base, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base.folder))
    monkeypatch.setattr("tracks.recursion.study.TOLERANCE", 0.5)  # a loaded machine, and a few steps
    monkeypatch.setattr("tracks.recursion.study.REFIT_STEPS", 10)


def test_one_seed_gives_figures_and_no_verdict(base, capsys) -> None:
    recursion_eval.main(Config(tag="small", dtype="fp32", shapes="deep,wide"))
    said = capsys.readouterr().out
    assert "Verdict: no verdict: one seed\n" in said
    outcome = read_json(base.folder / "recursion_eval/small/outcome.json")
    exits, arms, shapes, depths = outcome["tables"]
    assert [row[0] for row in exits["rows"]] == [0, 1, 2, 3]
    recursion = base.outcome("small-R-1")["metrics"]
    assert exits["rows"][-1][1] == recursion["Final validation bpb"]["value"]
    rows = {row[0]: dict(zip((name for name, _ in arms["columns"]), row, strict=True)) for row in arms["rows"]}
    assert list(rows) == ["R", "D", "P", "F", "W", "L"]
    for arm, row in rows.items():
        measured = base.outcome(f"small-{arm}-1")["metrics"]
        assert row["Bits per byte"] == measured["Final validation bpb"]["value"]
        difference = row["Bits per byte"] - rows["R"]["Bits per byte"]
        assert row["Minus R"] == (None if arm == "R" else pytest.approx(difference))
    assert rows["F"]["FLOPs per token"] == pytest.approx(rows["R"]["FLOPs per token"], rel=0.1)
    assert rows["P"]["Parameters"] == rows["R"]["Parameters"] == rows["L"]["Parameters"] < rows["F"]["Parameters"]
    assert [[row[0], row[1], row[2], row[6]] for row in shapes["rows"]] == [
        ["deep", 13, 64, "yes"],
        ["wide", 1, 192, "no"],
    ]
    assert shapes["title"] == "Shapes of F, chosen on validation text with seed 0"
    assert shapes["note"] == "The arms are compared on the same validation text, so the choice favours F."
    assert [row[0] for row in depths["rows"]] == [*range(1, 17)]
    metrics = outcome["metrics"]
    chosen = int(metrics["Exits chosen on validation text"])
    assert chosen == 1 + min(range(16), key=lambda i: depths["rows"][i][2])
    assert metrics["Test bpb that the choice saves"]["value"] == pytest.approx(
        metrics["Test bpb, exits as trained"]["value"] - metrics["Test bpb, chosen exits"]["value"]
    )
    assert (metrics["Preset"], metrics["supervision_base"], metrics["loops"]) == ("aggressive", 5.0, 2)
    norms = [*base.series("small-R-1", "train/grad_norm").values()]
    assert metrics["Gradient norm of R"] == f"{np.median(norms):.2f} in the median, {max(norms):.2f} at most"
    assert metrics["Applications of a layer per token"] == 4 * (2 + 1)
    assert len(metrics["Batches of R, D, P, F and L"]) == 12
    steps = int(metrics["Steps of a refit"])
    assert steps >= 30  # a round or more at each rate
    assert steps % 10 == 0
    pictures = {curve["title"]: curve["series"] for curve in outcome["curves"]}
    assert list(pictures["Exits of R, first seed"]) == [f"exit {number}" for number in range(4)]
    for title in ("Arms over the step, first seed", "Arms over the seconds, first seed"):
        assert list(pictures[title]) == list(rows)
        assert all(len(xs) == len(ys) > 1 for xs, ys in pictures[title].values())
    # The heads went on learning, both from the same text.
    kinds = ("", ", first exit refitted", ", first and last exit refitted")
    own, refitted, both = (metrics[f"Refinement{kind}"]["value"] for kind in kinds)
    assert refitted < min(own, both)


def refusal(tag: str = "small") -> str:
    with pytest.raises(ValueError) as refused:
        recursion_eval.main(Config(tag=tag, dtype="fp32"))
    return str(refused.value)


def test_arms_that_cannot_be_compared_are_refused(base) -> None:
    assert (
        refusal("other") == "the run other-R-1 has not finished: train it first, as python -m tracks.recursion.run does"
    )
    for arm in DEPTH.keys() | {"W"}:
        for copy in (f"changed-{arm}-1", f"small-{arm}-2"):
            base.copy(f"small-{arm}-1", copy)
    recursion = ArmRun.read("small-R-1")
    for flags, said in (
        (["--seed=2"], "new has seed = 2, and small-R-1 1: train one of them again"),
        (["--seed=1", "--num-iterations=8"], "new has rows = "),
    ):
        base.run("new", *SHAPE, *flags, "--resume=never")
        shutil.rmtree(base.of("changed-P-1"))
        base.copy("new", "changed-P-1")
        assert said in refusal("changed")
    ArmRun.read("new").require_equal(recursion, {"rows", *FREE_IN_ARM})  # as many as the seconds allow
    told = ArmRun.read("small-W-1")
    told.manifest["config"]["num_shards"] = 3  # of a text in shards, as R's manifest has it
    told.require_equal(recursion, FREE["W"])
    changed = base.folder / "changed"
    changed.mkdir()
    for path in base.text.iterdir():
        (changed / path.name).write_text(path.read_text(encoding="utf-8").replace("fox", "dog"), encoding="utf-8")
    recursion.manifest["config"]["data"] = str(changed)
    with (
        setup("cpu", "fp32") as runtime,
        MetricLog(base.folder / "log") as log,
        pytest.raises(ValueError, match="the text has changed since small-R-1 was trained: put it back"),
    ):
        refit_exits(recursion, runtime, log)
    # A shape of F that was not chosen.
    base.copy("small-F-wide-0", "other-F-deep-0")
    with pytest.raises(ValueError, match=r"small-F-1 has \w+ = \d+, and small-F-wide-0 "):
        read_shapes("other", [read_arms("small", 1)], "deep")
    # Runs of an older plan, which nothing was chosen by.
    assert read_shapes("other", [read_arms("small", 1)], "") == {}
    with pytest.raises(ValueError, match="the run small-F-medium-0 has not finished"):
        read_shapes("small", [read_arms("small", 1)], "deep,medium")
    with pytest.raises(ValueError, match="--shapes=broad has to be names of shapes: deep, medium, wide"):
        read_shapes("small", [read_arms("small", 1)], "broad")
    # D has the settings of R, but for the scale of its updates.
    with pytest.raises(ValueError, match=r"small-D-1 has residual_power = 0\.5, and small-R-1 0\.0"):
        ArmRun.read("small-D-1").require_equal(recursion, set())
    # One seed under two names.
    with pytest.raises(ValueError, match="small-R-1 was not trained with --seed=2: train it again"):
        recursion_eval.main(Config(tag="small", dtype="fp32", seeds=2))


def test_a_stopped_comparison_goes_on_with_the_next_seed(base, monkeypatch, capsys) -> None:
    """It stops in the refits of the second seed. A run, or a setting, that has changed since is refitted."""
    arms = read_arms("small", 1)
    monkeypatch.setattr("tracks.recursion.study.read_seeds", lambda tag, count: [arms] * count)
    monkeypatch.setattr("tracks.recursion.study.depth_of", lambda run, runtime: None)
    refitted: list[str] = []
    limit = 1

    def refit(run: ArmRun, runtime: Runtime, log: MetricLog) -> tuple[float, float, int]:
        if len(refitted) == limit:
            raise KeyboardInterrupt
        refitted.append(log.path.stem)
        return 2.0 + len(refitted) / 100, 1.9, 150

    monkeypatch.setattr("tracks.recursion.study.refit_exits", refit)
    config = Config(tag="stopped", dtype="fp32", seeds=2)
    result = base.folder / "recursion_eval/stopped/outcome.json"
    with pytest.raises(KeyboardInterrupt):
        recursion_eval.main(config)
    assert not result.exists()
    limit = 99
    recursion_eval.main(config)
    assert refitted == ["refit-1", "refit-2"]
    said = capsys.readouterr().out
    assert "seed 1 of 2\nrefit: small-R-1 was refitted before, 150 steps of each head\nseed 2 of 2\n" in said
    assert read_json(result)["metrics"]["Steps of a refit"] == "150, 150"
    first = read_json(result)["metrics"]["Refinement, first and last exit refitted"]
    # All are here, whatever becomes of the comparison's folder when another seed is compared.
    shutil.rmtree(result.parent)
    recursion_eval.main(config)
    assert len(refitted) == 2
    assert read_json(result)["metrics"]["Refinement, first and last exit refitted"] == first
    monkeypatch.setattr("tracks.recursion.study.REFIT_STEPS", 20)
    capsys.readouterr()
    recursion_eval.main(config)
    assert len(refitted) == 4
    assert "refit-1.json is not of this comparison, it differs in steps of a round\n" in capsys.readouterr().out
    arms["R"].manifest["loop"]["seconds"] += 1  # trained again
    recursion_eval.main(config)
    assert len(refitted) == 6
    recursion_eval.main(config)
    assert len(refitted) == 6


def test_an_arm_l_with_more_applications_is_refused(base, monkeypatch) -> None:
    """R with a curriculum trains fewer exits in the mean than the model has."""
    read = ArmRun.read

    def read_changed(tag: str) -> ArmRun:
        run = read(tag)
        if tag in ("small-R-1", "small-D-1"):
            run.outcome.metrics[APPLICATIONS] = 9
        return run

    assert {arm: run.outcome.figure(APPLICATIONS) for arm, run in read_arms("small", 1).items()} == {
        "R": 12,
        "D": 12,
        "P": 1,
        "F": 1,
        "W": 1,
        "L": 12,
    }
    monkeypatch.setattr(ArmRun, "read", read_changed)
    with pytest.raises(ValueError, match="Applications of a layer per token: arm L has 12, and R 9: train one of"):
        read_arms("small", 1)


def test_an_arm_of_equal_seconds_may_pass_them_by_its_last_step(base, monkeypatch) -> None:
    monkeypatch.setattr("tracks.recursion.study.TOLERANCE", 0.02)
    read = ArmRun.read
    seconds, last = read("small-R-1").outcome.figure(SECONDS), read("small-W-1").last_step_seconds

    def arms_with(value: float) -> dict[str, ArmRun]:
        def read_changed(tag: str) -> ArmRun:
            run = read(tag)
            if tag == "small-W-1":
                run.outcome.metrics[SECONDS] = value
            return run

        monkeypatch.setattr(ArmRun, "read", read_changed)
        return read_arms("small", 1)

    for value in (seconds, seconds + last):
        assert arms_with(value)["W"].outcome.figure(SECONDS) == value
    for value in (0.97 * seconds, 1.03 * seconds + last):
        with pytest.raises(ValueError, match="Seconds of training: arm W has "):
            arms_with(value)
