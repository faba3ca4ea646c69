"""The series of recursion: a verdict over seeds, a second run, and mistakes in flags."""

import re

import pytest
from outcomes import leave
from small_runs import SMALL

from nanochat.config import parse
from nanochat.errors import UserError
from nanochat.jobs.runner import difference, input_hashes
from nanochat.paths import read_json, write_json
from scripts.base_train import Config as Plain
from tracks.recursion import sudoku
from tracks.recursion.run import MODULES, Config, arm_flags, common_flags, steps
from tracks.recursion.settings import with_preset
from tracks.recursion.shapes import Shape
from tracks.recursion.train import Config as Recursive


@pytest.mark.slow
def test_recursion_is_compared_with_its_compute(series, tmp_path) -> None:
    flags = ["--data=letters", "--steps=20", "--depth=1", "--width=32", "--seeds=2", *SMALL, "--eval-every=5"]
    flags += ["--max-seq-len=64", "--out=card/recursion.md", "--save-every=10"]
    one = series("tracks.recursion.run", *flags)
    assert "\nVerdict: " in one.stdout
    card = (tmp_path / "card/recursion.md").read_text(encoding="utf-8")
    assert "## Recursion" in card
    again = series("tracks.recursion.run", *flags)
    # Two shapes of F, twelve runs, their tokenizer, and the comparison.
    assert again.stdout.count("already finished") == 16


def test_arms_follow_from_plans(series, base) -> None:
    flags = ["--data=letters", "--vocab-size=300", "--steps=2", "--depth=1", "--width=32", *SMALL, "--max-seq-len=64"]
    done = series("tracks.recursion.run", *flags)
    # There is no choice of a shape, and runs of an older plan do not matter.
    assert re.search(r"tracks.recursion.eval --tag=recursion --seeds=1\b(?! --shapes)", done.stdout)
    # The layers of F cost what R costs; L applies its layer as often as R.
    assert "--depth=14 --num-iterations=2 --seed=1 --tag=recursion-F-1" in done.stdout
    assert "--model=reference,sweeps=12" in done.stdout
    assert re.search(r"--recursion=aggressive --residual-power=0.5 --seed=1 --tag=recursion-D-1", done.stdout)
    # The arm of equal seconds reads as many shards as R, which a text of one's folder does not have.
    assert re.search(r"--target-seconds=[\d.]+ --num-shards=0 --seed=1 --tag=recursion-W-1", done.stdout)


def test_a_mix_of_several_data_sets_on_the_hub_is_refused() -> None:
    """R has a number of shards for each, and the flag by which W is told has one."""
    with pytest.raises(UserError, match="names several data sets on the hub"):
        next(steps(Config(), "climbmix:0.9,fineweb-edu:0.1"))
    assert next(steps(Config(), "climbmix:0.9,letters:0.1")).name == "tok_train"


def test_a_comparison_is_repeated_if_a_run_was_trained_again(base, monkeypatch) -> None:
    """It is a step with a result: its refits take as long as runs. With one shape of F, from a made plan."""
    model = {"heads": 2, "supervision": 4, "passes": 1, "loops": 2}
    monkeypatch.setattr("tracks.recursion.run.planned", lambda *_: {"model": model, "flops_per_token": 1e6})
    monkeypatch.setattr("tracks.recursion.run.plain_shapes", lambda *_: {"deep": Shape(14, 32)})
    tags = [f"recursion-{arm}-{seed}" for seed in (1, 2) for arm in "RDPFLW"]
    for tag in tags:
        leave(base, "base_train", tag)
        write_json(base / f"base_train/{tag}/step_000002/manifest.json", {"loop": {"seconds": 9.0}, "num_shards": 0})
    flags = "--matrix-lr=0.01 --dtype fp32 --device_type=cpu"
    *_, comparison, _ = steps(Config(seeds=2, depth=1, width=32, flags=flags), "letters")
    # Refits train heads: in the precision and on the device of the series.
    assert comparison.command[-2:] == ["--dtype=fp32", "--device-type=cpu"]
    assert comparison.output == "recursion_eval/recursion"
    before = input_hashes(comparison)
    assert sorted(before) == sorted(str(base / f"base_train/{tag}/outcome.json") for tag in tags)
    record = {"command": comparison.command, "inputs": before}
    assert difference(record, comparison, input_hashes(comparison)) == ""
    again = leave(base, "base_train", "recursion-P-2", seconds=17.0)
    assert difference(record, comparison, input_hashes(comparison)) == f"{again} changed"


@pytest.mark.parametrize(
    ("flags", "sweeps"),
    [("", 12), ("--supervision=3 --passes=2 --loops=1", 12), ("--curriculum=2,3,4", 9), ("--curriculum=4", 12)],
)
def test_l_runs_its_layers_as_often_as_r_trains_them(flags: str, sweeps: int) -> None:
    arms = arm_flags(Config(flags=flags), Shape(14, 32))
    assert arms["L"][-1] == f"--model=reference,sweeps={sweeps}"
    assert all(flag in arms["R"] for flag in flags.split())


def test_all_arms_clip_and_warm_up_alike() -> None:
    """A preset of recursion has a clip, and base training has none: R is not to have it alone."""
    config = Config()
    arms = {arm: [*common_flags(config), *flags] for arm, flags in arm_flags(config, Shape(14, 32)).items()}
    settings = {
        arm: with_preset(parse(Recursive, words)) if arm in MODULES else parse(Plain, words)
        for arm, words in arms.items()
    }
    assert {(one.grad_clip, one.warmup_steps) for one in settings.values()} == {(1, 20)}
    of_sudoku = [
        with_preset(parse(Recursive, sudoku.base_flags(sudoku.Config(), "R"))),
        parse(Plain, sudoku.base_flags(sudoku.Config(), "P")),
    ]
    assert [one.grad_clip for one in of_sudoku] == [1, 1]


@pytest.mark.slow
def test_the_best_of_three_shapes_is_compared(series, base, tmp_path) -> None:
    flags = ["--data=letters", "--vocab-size=300", "--steps=2", "--depth=2", "--width=32", *SMALL, "--max-seq-len=64"]
    flags += ["--head-dim=16"]
    plan = series("tracks.recursion.run", *flags, "--dry-run").stdout
    assert plan.count(f"Number of parameters, embed: {320 * 32:,}\n") == 2  # of 300 tokens: no tokenizer is there
    assert "The refits of R's first and last exit, for each seed, come on top" in plan
    assert re.search(r"\| F, deep +\| 1 +\|", plan)
    assert re.search(r"\| F, medium +\| 1 +\|", plan)
    assert re.search(r"\| all +\| 9 +\|", plan)
    assert re.search(r"\| refits of R +\| 1 +\| +[\d,]+ +\|", plan)
    assert "assumed are 1,000 steps of each head" in plan
    rows = re.findall(r"\| (all|refits of R|all and refits) +\| .* ([\d.]+) +\|", plan)
    hours = {row: float(found) for row, found in rows}
    assert hours["all and refits"] == pytest.approx(hours["all"] + hours["refits of R"], abs=0.011)
    assert not (base / "tok_train").exists()
    series("tracks.recursion.run", *flags)
    outcome = read_json(base / "recursion_eval/recursion/outcome.json")
    shapes = next(table for table in outcome["tables"] if table["title"].startswith("Shapes of F"))
    assert [row[0] for row in shapes["rows"]] == ["deep", "medium", "wide"]
    best = min(shapes["rows"], key=lambda row: row[3])
    assert best[6] == "yes"
    config = read_json(base / "base_train/recursion-F-1/outcome.json")["config"]
    assert [config["depth"], config["width"]] == best[1:3]


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--seeds=abc", "--seeds: abc is not a whole number"),
        ("--seed=7", "--seed differs between runs: use --seeds"),
        ("--model=golf", "--model differs between runs: use --preset, --depth and --width"),
        ("--residual-power=1", "--residual-power differs between runs: use the arm D"),
        (
            "--carry",
            "--carry reads less text in as many steps, and the arms are compared on the same text: leave it out",
        ),
        ("--supervision=1", "one exit has no refinement, which the comparison is about: use --supervision=2 or more"),
        ("--eval-every=-1", "--eval-every=-1 makes no validation, and the arms are compared by the last one: leave it"),
        ("--curriculum=1,2", "--curriculum=1,2 runs each layer 4.5 times for a token in the mean, and the arm L runs"),
        ("--loops=x", "--loops: x is not a whole number"),
        ("--width=33", "--width=33 is not a multiple of --head-dim=32"),
    ],
)
def test_a_mistake_is_found_before_anything_is_trained(series, base, flag, sentence) -> None:
    refused = series("tracks.recursion.run", "--data=letters", flag, code=2)
    assert refused.stderr.startswith(f"error: {sentence}")
    assert not (base / "tok_train").exists()
