"""The series of Sudokus ends with a table of its arms and a report card."""

from pathlib import Path

import pytest
from outcomes import leave

from nanochat.errors import UserError
from nanochat.paths import write_json, write_text
from tracks.recursion.sudoku import Config, comparison, training_time

SOLVED = {"R": (0.9, 0.8, 1.0), "P": (0.4, 0.3, 0.5), "W": (0.6, 0.7, 0.5)}


def leave_runs(base: Path, arm: str, seed: int, exact: float, depth: int = 1, steps: int = 800) -> None:
    """Leave what a finished run of an arm leaves, as far as the table reads it."""
    tag = f"puzzles-{arm}-{seed}"
    leave(base, "base_train", tag, config={"depth": depth, "width": 64})
    leave(base, "chat_sft", tag, metrics={"Number of iterations": steps})
    leave(base, "chat_eval_sft", tag, metrics={"Sudoku-4": exact})
    write_json(base / f"chat_sft/{tag}/step_000800/manifest.json", {"loop": {"seconds": 100.0 * seed}})


def test_the_table_has_the_seeds_that_were_asked_for_and_their_differences(base) -> None:
    for arm, scores in SOLVED.items():
        for seed, exact in enumerate(scores, 1):
            leave_runs(base, arm, seed, exact, steps=2000 + seed if arm == "W" else 800)
    # Of an earlier series with the same tag: a fourth seed, and runs of an arm with another name.
    leave_runs(base, "R", 4, 0.0)
    leave_runs(base, "R-wide", 1, 0.0)
    write_text(base / "chat_sft/puzzles-R-0/outcome.json", "")
    rows = comparison(Config())["rows"]
    recursion, plain, clock = rows
    assert [recursion[0], recursion[1], recursion[3], recursion[4]] == ["R", pytest.approx(0.9), None, None]
    assert plain[3:7] == [pytest.approx(0.5), pytest.approx(0, abs=1e-12), 800, 200]
    # R minus W by seed: 0.3, 0.1, 0.5.
    assert clock[3:5] == [pytest.approx(0.3), pytest.approx(4.302653 * 0.2 / 3**0.5)]
    assert recursion[-1] == "0.9 0.8 1.0"
    assert training_time(Config()) == 3 * (100 + 200 + 300)
    assert comparison(Config(seeds=1))["rows"][1][3:5] == [pytest.approx(0.5), None]
    leave_runs(base, "P", 2, 0.3, depth=2, steps=400)
    with pytest.raises(UserError, match="the run puzzles-P-2 has --depth=2, not 1, --steps=400, not 800, and cannot"):
        comparison(Config())


@pytest.mark.slow
def test_recursion_on_puzzles_ends_with_a_table_and_a_card(series, tmp_path) -> None:
    flags = ["--data=letters", "--steps=3", "--width=32", "--depth=1", "--seeds=1", "--out=card/puzzles.md"]
    done = series("tracks.recursion.sudoku", *flags)
    table = done.stdout[done.stdout.index("Sudoku-4: 200 held-out problems") :].splitlines()
    assert [line.split()[1] for line in table[1:6]] == ["Arm", "---", "R", "P", "W"]
    card = (tmp_path / "card/puzzles.md").read_text(encoding="utf-8")
    assert "## Recursion" in card
    assert "Sudoku-4: 200 held-out problems" in card
    assert "- Training on the Sudoku, all arms: " in card


def test_a_dry_run_prints_the_plans_and_trains_nothing(series, base) -> None:
    done = series("tracks.recursion.sudoku", "--data=letters", "--dry-run")
    assert "recursion aggressive: each block runs" in done.stdout
    assert done.stdout.count(f"Number of parameters, embed: {320 * 64:,}\n") == 2  # 300 tokens, in whole tiles
    assert not (base / "tok_train").exists()


def test_a_mistake_is_found_before_anything_is_trained(series, base) -> None:
    refused = series("tracks.recursion.sudoku", "--data=letters", "--width=33", code=2)
    assert refused.stderr.startswith("error: --width=33 is not a multiple of --head-dim=32")
    assert not (base / "tok_train").exists()
