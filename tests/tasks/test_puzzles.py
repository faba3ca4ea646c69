"""The small Sudoku: one solution each, the same problems each time, and without a board in both splits."""

import re

from chat_files import contents

from tasks import TASKS
from tasks.puzzles import solutions


def test_problems_follow_from_the_seed_and_splits_share_no_board():
    train, test = TASKS["Sudoku-4"]("train"), TASKS["Sudoku-4"]("test")
    assert (len(train), len(test)) == (20_000, 1_000)
    boards, held_out = ({board for board, _ in task.rows} for task in (train, test))
    assert not boards & held_out
    assert len(boards | held_out) == 288  # all there are
    assert TASKS["Sudoku-4"]("test").hashes() == test.hashes() != train.hashes()


def test_a_problem_has_one_solution_and_every_valid_board_counts():
    """Where a board has two solutions, both are right; a wrong or changed digit and a short board are not."""
    task = TASKS["Sudoku-4"]("test")
    for conversation in (task[number] for number in range(200)):
        question, answer = contents(conversation)
        shown = re.sub(r"\s", "", question)
        [board] = solutions(shown)
        assert re.fullmatch(shown, board)
        assert task.evaluate(conversation, answer)
        assert not task.evaluate(conversation, "")
    task = TASKS["Sudoku-4"]()
    problem = {"messages": [{"content": "1 . 3 .\n3 . 1 .\n. 1 . 3\n. 3 . 1"}]}
    assert task.evaluate(problem, "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1")
    assert task.evaluate(problem, "1432\n3214\n4123\n2341")
    for wrong in ("1234341221434322", "2134341221434321", "123434122143432", "1234123434123412"):
        assert not task.evaluate(problem, wrong)
