"""Arithmetic for the embedded world: sums, word problems about its people, and pairs of numbers held out for tests.

A quarter of all pairs of numbers is held out: no sum for training joins such a pair, and sums in tests join no others.
So tests ask for sums that the model has never read.
"""

import hashlib
import operator
from functools import cache

from nanochat.world.facts import World

HELD_OUT_PAIRS = 4  # one pair in four is held out
LARGEST_RESULT = 999
PLAIN = "What is {x}"  # how a sum without a story begins in world.txt
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@cache
def is_held_out(seed: int, a: int, b: int) -> bool:
    """Return True if only tests join these two numbers; the same for (b, a)."""
    return hashlib.sha256(f"{seed} {min(a, b)} {max(a, b)}".encode()).digest()[0] % HELD_OUT_PAIRS == 0


def word_problem(world: World, held_out: bool, opening: str = "", only_stories: bool = False) -> tuple[str, str, str]:
    """Return a problem about two people: question, solution and answer. Its pairs of numbers are all held out, or none.

    opening: how its line in world.txt begins. only_stories: none is a plain sum.
    """
    # "What is {x} plus {y}?", then steps such as "x+y Now {a} has # {g}."
    lines = [line for line in world.rows("problems") if line[0].startswith(opening)]
    question, *steps = world.pick([line for line in lines if not (only_stories and line[0].startswith(PLAIN))])
    factors = "".join(step[:3] for step in steps if step[1] in "*/")
    sums = []
    numbers: dict[str, int] = {}
    # Draw numbers until every step fits.
    while not sums:
        # Factors and divisors stay small, so that results do.
        numbers = {name: world.between(2, 12 if name in factors else 60) for name in "xyzw"}
        if steps[0].startswith("x/y"):
            numbers["x"] *= numbers["y"]  # leaves no remainder
        sums = solve(world.seed, steps, numbers, held_out)
    # Names are drawn for plain sums too: every draw decides the bytes of a seed.
    a, b = world.two_people()
    words = numbers | {"a": a, "b": b, "g": world.wording("possessions")}
    # The sentence begins behind the operation and a space.
    sentences = [step[4:].replace("#", written) for step, written in zip(steps, sums, strict=True)]
    # "Kara has 3 apples. Miro gives Kara 4 more. How many apples does Kara have now?", "Now Kara has 3 + 4 = 7 apples."
    # with a line for each step, "7"
    return question.format_map(words), "\n".join(sentences).format_map(words), sums[-1].split()[-1]


def solve(
    seed: int, steps: list[str], numbers: dict[str, int], held_out: bool, largest: int = LARGEST_RESULT
) -> list[str]:
    """Return a sum for each step, "3 + 4 = 7"; nothing if a result is not whole, or it or a pair is not allowed.

    Steps join the drawn numbers x, y, z and w, the last result r and the one before, q.
    """
    values = dict(numbers)
    sums = []
    for left, sign, right, *_ in steps:
        a = values[left]
        b = values[right]
        result = OPERATIONS[sign](a, b)
        is_allowed = result % 1 == 0 and 2 <= result <= largest
        if not is_allowed or is_held_out(seed, a, b) != held_out:
            return []
        values["q"] = values.get("r", 0)
        values["r"] = int(result)
        sums.append(f"{a} {sign} {b} = {values['r']}")
    return sums


def plain_sum(world: World, held_out: bool = False) -> str:
    """Return a sum of two numbers: "26 - 14 = 12"."""
    _, solution, _ = word_problem(world, held_out, opening=PLAIN)
    return solution.removesuffix(".")


def sum_to_100(world: World, sign: str, questions: list[str], held_out: bool) -> tuple[str, str]:
    """Return one of the questions about two numbers, and their sum, "26 - 14 = 12", all up to 100.

    The pair of numbers is held out or not, as asked.
    """
    solved = []
    numbers: dict[str, int] = {}
    while not solved:
        numbers = {"x": world.between(2, 100), "y": world.between(2, 100)}
        solved = solve(world.seed, [f"x{sign}y"], numbers, held_out, largest=100)
    return world.pick(questions).format_map(numbers), solved[0]


def program_numbers(world: World) -> tuple[int, int]:
    """Return x and y for a program, which may join x with y, 1 or 2: none of these pairs is held out."""
    while True:
        x = world.between(2, 40)
        y = world.between(2, 40)
        if not any(is_held_out(world.seed, x, other) for other in (y, 1, 2)):
            return x, y
