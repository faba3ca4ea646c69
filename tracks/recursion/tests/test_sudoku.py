"""The series of Sudokus ends with a table of its arms and a report card."""

import pytest


@pytest.mark.slow
def test_recursion_on_puzzles_ends_with_a_table_and_a_card(series, tmp_path) -> None:
    flags = ["--data=letters", "--steps=3", "--width=32", "--depth=1", "--seeds=1", "--out=card/puzzles.md"]
    done = series("tracks.recursion.sudoku", *flags)
    table = done.stdout[done.stdout.index("Sudoku-4: 200 held-out problems") :].splitlines()
    assert [line.split()[1] for line in table[1:6]] == ["Arm", "---", "R", "P", "W"]
    card = (tmp_path / "card/puzzles.md").read_text(encoding="utf-8")
    assert "## Recursion" in card
    assert "Sudoku-4: 200 held-out problems" in card


def test_a_dry_run_prints_the_plans_and_trains_nothing(series, base) -> None:
    done = series("tracks.recursion.sudoku", "--data=letters", "--dry-run")
    assert "recursion aggressive: each block runs" in done.stdout
    assert not (base / "tok_train").exists()


def test_a_mistake_is_found_before_anything_is_trained(series, base) -> None:
    refused = series("tracks.recursion.sudoku", "--data=letters", "--width=33", code=2)
    assert refused.stderr.startswith("error: --width=33 is not a multiple of --head-dim=32")
    assert not (base / "tok_train").exists()
