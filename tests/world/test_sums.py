"""Sums and word problems: they add up, and their pairs of numbers are all held out for tests or all not."""

import re

import pytest

from nanochat.world.facts import Dice, World
from nanochat.world.sums import fill, is_held_out, program_numbers, read_templates, word_problem

WORLD = World(1, people=16)


@pytest.mark.parametrize("held_out", [False, True])
def test_problems_add_up(held_out):
    dice = Dice("problems")
    for _ in range(800):
        problem = word_problem(WORLD, dice, held_out)
        plain, annotated = problem.solution(calculator=False), problem.solution(calculator=True)
        assert not re.search(r"[{}#]", problem.question + plain)
        sums = re.findall(r"(\d+) ([-+*/]) (\d+) = <<(.*?)=(\d+)>>(\d+)", annotated)
        assert len(sums) == len(problem.sums) in (1, 2, 3)
        for left, sign, right, written, result, shown in sums:
            assert written == left + sign + right
            assert eval(written) == int(result) == int(shown) >= 2
            assert is_held_out(WORLD.seed, int(left), int(right)) == held_out
        assert int(sums[-1][-1]) == problem.answer
        assert all(str(one) in plain for one in problem.sums)


def test_a_quarter_of_all_pairs_is_held_out_in_either_order():
    pairs = [(a, b) for a in range(2, 61) for b in range(2, a + 1)]
    held = [is_held_out(7, a, b) for a, b in pairs]
    assert 0.2 < sum(held) / len(held) < 0.3
    assert held == [is_held_out(7, b, a) for a, b in pairs]
    assert held != [is_held_out(8, a, b) for a, b in pairs]


def test_numbers_are_found_for_every_template():
    for template in read_templates(WORLD.text["problems"]):
        for held_out in (False, True):
            assert fill(WORLD, Dice("templates"), template, held_out).answer >= 2


def test_a_program_joins_no_numbers_held_out_for_tests():
    dice = Dice("numbers")
    pairs = [program_numbers(WORLD, dice) for _ in range(300)]
    assert not any(is_held_out(WORLD.seed, x, other) for x, y in pairs for other in (y, 1, 2))
    assert len(set(pairs)) > 150
