"""The series of recursion: a verdict over seeds, a second run, and mistakes in flags."""

import re

import pytest
from small_runs import SMALL

from nanochat.paths import read_json


@pytest.mark.slow
def test_recursion_is_compared_with_its_compute(series, tmp_path) -> None:
    flags = ["--data=letters", "--steps=20", "--depth=1", "--width=32", "--seeds=2", *SMALL, "--eval-every=5"]
    flags += ["--max-seq-len=64", "--out=card/recursion.md", "--save-every=10"]
    one = series("tracks.recursion.run", *flags)
    assert "\nVerdict: " in one.stdout
    card = (tmp_path / "card/recursion.md").read_text(encoding="utf-8")
    assert "## Recursion" in card
    again = series("tracks.recursion.run", *flags)
    assert again.stdout.count("already finished") == 13  # twelve runs and their tokenizer


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


@pytest.mark.slow
def test_the_best_of_three_shapes_is_compared(series, base, tmp_path) -> None:
    flags = ["--data=letters", "--vocab-size=300", "--steps=2", "--depth=2", "--width=32", *SMALL, "--max-seq-len=64"]
    flags += ["--head-dim=16"]
    plan = series("tracks.recursion.run", *flags, "--dry-run").stdout
    assert re.search(r"\| F, deep +\| 1 +\|", plan)
    assert re.search(r"\| F, medium +\| 1 +\|", plan)
    assert re.search(r"\| all +\| 9 +\|", plan)
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
        ("--loops=x", "--loops: x is not a whole number"),
        ("--width=33", "--width=33 is not a multiple of --head-dim=32"),
    ],
)
def test_a_mistake_is_found_before_anything_is_trained(series, base, flag, sentence) -> None:
    refused = series("tracks.recursion.run", "--data=letters", flag, code=2)
    assert refused.stderr.startswith(f"error: {sentence}")
    assert not (base / "tok_train").exists()
