"""Sums and word problems: they add up, and their pairs of numbers are all held out for tests or all not."""

import re

import pytest

from nanochat.world.facts import World
from nanochat.world.sums import is_held_out, program_numbers, word_problem

WORLD = World(1, people=16)


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("template", WORLD.text["problems"].splitlines())
def test_problems_add_up(template, held_out) -> None:
    opening = template.partition(" |")[0]
    for _ in range(10):
        question, solution, answer = word_problem(WORLD, held_out, opening)
        assert not re.search(r"[{}#]", question + solution)
        sums = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", solution)
        assert len(sums) == template.count(" | ")
        for left, sign, right, result in sums:
            assert eval(left + sign + right) == int(result) >= 2
            assert is_held_out(WORLD.seed, int(left), int(right)) == held_out
        assert sums[-1][-1] == answer


def test_a_program_joins_no_numbers_held_out_for_tests() -> None:
    for _ in range(300):
        x, y = program_numbers(WORLD)
        for other in (y, 1, 2):
            assert not is_held_out(WORLD.seed, x, other)
