"""The series of Sudokus ends with a table of its arms."""

import pytest


@pytest.mark.slow
def test_recursion_on_puzzles_ends_with_a_table(series) -> None:
    flags = ["--data=letters", "--steps=3", "--width=32", "--depth=1", "--seeds=1"]
    done = series("tracks.recursion.sudoku", *flags)
    table = done.stdout[done.stdout.index("Sudoku-4: 200 held-out problems") :].splitlines()
    assert [line.split()[1] for line in table[1:]] == ["Arm", "---", "R", "P", "W"]


def test_a_mistake_is_found_before_anything_is_trained(series, base) -> None:
    refused = series("tracks.recursion.sudoku", "--data=letters", "--width=33", code=2)
    assert refused.stderr.startswith("error: --width=33 is not a multiple of --head-dim=32")
    assert not (base / "tok_train").exists()
