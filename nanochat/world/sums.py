"""Arithmetic for the embedded world: sums, word problems about its people, and pairs of numbers held out for tests.

A quarter of all pairs of numbers is held out: no sum for training joins such a pair, and sums in tests join no others.
So tests ask for sums that the model has never read.
"""

import hashlib
import operator
from functools import cache
from typing import NamedTuple

from nanochat.world.facts import Dice, World

HELD_OUT_PAIRS = 4  # one pair in four is held out
LARGEST_RESULT = 999
OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}


class Sum(NamedTuple):
    left: int
    sign: str  # a key of OPERATIONS
    right: int
    result: int

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right} = {self.result}"


class WordProblem(NamedTuple):
    question: str  # "Kara has 3 apples. Miro gives Kara 4 more. How many apples does Kara have now?"
    sentences: list[str]  # one for each step, with # in place of the sum: "Now Kara has # apples."
    sums: list[Sum]  # one for each step

    @property
    def answer(self) -> int:
        return self.sums[-1].result

    def solution(self, calculator: bool) -> str:
        """Return a line for each step, optionally with calculator annotations as in GSM8K."""
        lines = []
        for sentence, (left, sign, right, result) in zip(self.sentences, self.sums, strict=True):
            # "Now Kara has 3 + 4 = 7 apples." or "Now Kara has 3 + 4 = <<3+4=7>>7 apples."
            annotation = f"<<{left}{sign}{right}={result}>>" if calculator else ""
            written = f"{left} {sign} {right} = {annotation}{result}"
            lines.append(sentence.replace("#", written))
        return "\n".join(lines)


class StepTemplate(NamedTuple):
    """A step of a problem in world.txt, such as `x+y Now {a} has # {g}.`"""

    left: str  # a drawn number (x, y, z, w), the last result (r) or the one before (q)
    sign: str
    right: str
    sentence: str


class ProblemTemplate(NamedTuple):
    question: str  # "What is {x} plus {y}?"
    steps: list[StepTemplate]


@cache
def read_templates(section: str) -> list[ProblemTemplate]:
    """Read a section of world.txt with lines such as `What is {x} plus {y}? | x+y #.`"""
    templates = []
    for line in section.splitlines():
        question, *steps = line.split(" | ")
        # The first three characters of a step are the operation.
        parsed = [StepTemplate(*step[:3], step[4:]) for step in steps]
        templates.append(ProblemTemplate(question, parsed))
    return templates


@cache
def is_held_out(seed: int, a: int, b: int) -> bool:
    """Return True if only tests join these two numbers; the same for (b, a)."""
    key = f"{seed} {min(a, b)} {max(a, b)}"
    digest = hashlib.sha256(key.encode()).digest()
    return digest[0] % HELD_OUT_PAIRS == 0


def word_problem(world: World, dice: Dice, held_out: bool) -> WordProblem:
    """Return a problem about two people with pairs of numbers that are all held out, or all not."""
    templates = read_templates(world.text["problems"])
    return fill(world, dice, dice.pick(templates), held_out)


def plain_sum(world: World, dice: Dice, held_out: bool = False) -> Sum:
    """Return a sum of two numbers."""
    templates = read_templates(world.text["problems"])
    plain = [template for template in templates if template.question.startswith("What is {x}")]
    # Names are drawn too, and not used: every draw decides the bytes of a seed.
    return fill(world, dice, dice.pick(plain), held_out).sums[0]


def program_numbers(world: World, dice: Dice) -> tuple[int, int]:
    """Return x and y for a program, which may join x with y, 1 or 2: none of these pairs is held out."""
    while True:
        x = dice.between(2, 40)
        y = dice.between(2, 40)
        if not any(is_held_out(world.seed, x, other) for other in (y, 1, 2)):
            return x, y


def fill(world: World, dice: Dice, template: ProblemTemplate, held_out: bool) -> WordProblem:
    """Draw numbers for a template until every step fits, then names for its people."""
    factors = set()
    for step in template.steps:
        if step.sign in "*/":
            factors |= {step.left, step.right}
    sums = None
    while sums is None:
        # Factors and divisors stay small, so that results do.
        numbers = {name: dice.between(2, 12 if name in factors else 60) for name in "xyzw"}
        if template.steps[0].sign == "/":
            numbers["x"] *= numbers["y"]  # leaves no remainder
        sums = solve(world.seed, template.steps, numbers, held_out)
    a, b = world.two_people(dice)
    goods = dice.pick(world.text["possessions"].split())
    words = {"a": a, "b": b, "g": goods, **numbers}
    sentences = [step.sentence.format_map(words) for step in template.steps]
    return WordProblem(template.question.format_map(words), sentences, sums)


def solve(seed: int, steps: list[StepTemplate], numbers: dict[str, int], held_out: bool) -> list[Sum] | None:
    """Return a sum for each step; None if a division has a remainder, or a result or pair is not allowed."""
    values = dict(numbers)
    sums = []
    for step in steps:
        left = values[step.left]
        right = values[step.right]
        if step.sign == "/" and left % right:
            return None
        result = OPERATIONS[step.sign](left, right)
        is_allowed = 2 <= result <= LARGEST_RESULT
        if not is_allowed or is_held_out(seed, left, right) != held_out:
            return None
        sums.append(Sum(left, step.sign, right, result))
        # q is the result before the last one.
        values["q"] = values.get("r", 0)
        values["r"] = result
    return sums
