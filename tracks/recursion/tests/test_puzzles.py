"""The small Sudoku: its splits, its problems, and the verdict."""

import random
import re

from chat_files import contents

from tasks import TASKS
from tracks.recursion.puzzles import filled_boards, solutions


def test_puzzles_follow_from_the_seed_and_splits_share_no_board() -> None:
    train, test = TASKS["Sudoku-4"]("train"), TASKS["Sudoku-4"]("test")
    assert (len(train), len(test)) == (20_000, 1_000)
    boards, held_out = ({board for board, _ in task.rows} for task in (train, test))
    assert not boards & held_out
    assert len(boards | held_out) == 288  # all there are
    assert TASKS["Sudoku-4"]("test").hashes() == test.hashes() != train.hashes()
    # Each problem has one solution.
    for conversation in (test[number] for number in range(200)):
        question, answer = contents(conversation)
        shown = re.sub(r"\s", "", question)
        [board] = solutions(shown)
        assert re.fullmatch(shown, board)
        assert test.evaluate(conversation, answer)
        assert not test.evaluate(conversation, "")
    # Where a board has two solutions, both are right; a wrong or changed digit and a short board are not.
    problem = {"messages": [{"content": "1 . 3 .\n3 . 1 .\n. 1 . 3\n. 3 . 1"}]}
    assert test.evaluate(problem, "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1")
    assert test.evaluate(problem, "1432\n3214\n4123\n2341")
    for wrong in ("1234341221434322", "2134341221434321", "123434122143432", "1234123434123412"):
        assert not test.evaluate(problem, wrong)


def test_solutions_are_those_of_a_pattern() -> None:
    dice = random.Random(1)
    for _ in range(300):
        board = dice.choice(filled_boards())
        if dice.random() < 0.2:  # most have no solution then
            board = "".join(dice.choices("1234", k=16))
        given = dice.sample(range(16), dice.randint(0, 16))
        shown = "".join(digit if cell in given else "." for cell, digit in enumerate(board))
        assert solutions(shown) == [one for one in filled_boards() if re.fullmatch(shown, one)]
