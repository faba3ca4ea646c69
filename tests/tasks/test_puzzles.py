"""Puzzles: solvable, the same in every process, and without a board in both splits."""

import re
from collections import Counter

import pytest
from chat_files import contents

from tasks import TASKS
from tasks.mixing import mix
from tasks.puzzles import MAZE, NAMES, NEW_HOPS, SETS, TRAINED_HOPS, solutions


@pytest.mark.parametrize("name", SETS)
def test_problems_follow_from_the_seed_and_splits_share_no_board(name):
    train, test = TASKS[name]("train"), TASKS[name]("test")
    assert (len(train), len(test)) == (20_000, 1_000)
    assert not {board for board, _ in train.rows} & {board for board, _ in test.rows}
    assert TASKS[name]("test").hashes() == test.hashes() != train.hashes()
    for conversation in (test[number] for number in range(100)):
        _, answer = contents(conversation)
        assert test.evaluate(conversation, answer)
        assert not test.evaluate(conversation, "")
    assert len(mix(TASKS, f"{name}@50", "train", seed=1)) == 50


def test_hops_of_the_test_are_never_trained():
    found = {}
    for split in ("train", "test"):
        task = TASKS["Hops"](split)
        numbers = Counter()
        for conversation in (task[number] for number in range(500)):
            question, answer = contents(conversation)
            pointers = dict(re.findall(r"(\w)(\w)\b", question))
            assert sorted(pointers) == sorted(NAMES)
            start, hops = re.search(r" (\w)(>+)$", question).groups()
            place = start
            for _ in hops:
                place = pointers[place]
            assert place == answer != start
            numbers[len(hops)] += 1
        found[split] = set(numbers)
    assert found == {"train": set(TRAINED_HOPS), "test": set(NEW_HOPS)}


def test_a_sudoku_has_one_solution_and_mazes_differ():
    for conversation in (TASKS["Sudoku-4"]("test")[number] for number in range(200)):
        shown = re.sub(r"\s", "", contents(conversation)[0])
        [board] = solutions(shown)
        assert re.fullmatch(shown, board)
    assert len({board for board, _ in TASKS["Maze"]("train").rows}) > 19_000


def test_every_valid_board_counts():
    """A board with two solutions: both are right; a wrong digit, a changed given one and a short board are not."""
    task = TASKS["Sudoku-4"]()
    assert len({board for split in ("train", "test") for board, _ in TASKS["Sudoku-4"](split).rows}) == 288
    problem = {"messages": [{"content": "1 . 3 .\n3 . 1 .\n. 1 . 3\n. 3 . 1"}]}
    assert task.evaluate(problem, "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1")
    assert task.evaluate(problem, "1432\n3214\n4123\n2341")
    for wrong in ("1234341221434322", "2134341221434321", "123434122143432", "1234123434123412"):
        assert not task.evaluate(problem, wrong)


def test_any_way_through_a_maze_counts():
    task = TASKS["Maze"]()
    problem = {
        "messages": [{"content": "".join(line.ljust(11, "#") + "\n" for line in ("", "#S..", "#...", "#..E", ""))}]
    }
    for right in ("R R D D", "D D R R", "R L R R D D"):
        assert task.evaluate(problem, right)
    for wrong in ("U", "R R D", "R R D D D", "X", "R R D D R"):
        assert not task.evaluate(problem, wrong)
    question, _ = contents(task[0])
    assert list(map(len, question.split("\n"))) == list(map(len, MAZE.split("\n"))) == [11] * 11
