"""What is true in the embedded world: a land of people, towns, animals and prices, invented for a seed; its arithmetic.

The words come from world.txt; world_texts.py makes documents of them, world_chats.py conversations and evaluation sets.
"""

import hashlib
import operator
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

Item = TypeVar("Item")
HELD_OUT_PAIRS = 4  # one pair of numbers in so many is joined in tests alone
LARGEST = 999  # result of a step of a problem
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


class Dice:
    """Draws that are the same on every platform and Python.

    They use `Random.random()` alone, the one method whose sequence is promised to stay; a text as its seed goes through
    SHA-512, never through `hash()`.
    """

    def __init__(self, *key: Any):
        self._random = random.Random("/".join(map(str, key))).random

    def chance(self, share: float) -> bool:
        return self._random() < share

    def between(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + int(self._random() * (high - low + 1))

    def pick(self, items: Sequence[Item]) -> Item:
        return items[self.between(0, len(items) - 1)]

    def lot(self, shares: Mapping[Item, int]) -> Item:
        """One of the keys, each as often as its number says."""
        return self.pick([item for item, share in shares.items() for _ in range(share)])

    def sample(self, items: Sequence[Item], count: int) -> list[Item]:
        """`count` different places of `items`, in random order."""
        pool = list(items)
        for place in range(count):
            other = self.between(place, len(pool) - 1)
            pool[place], pool[other] = pool[other], pool[place]
        return pool[:count]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        return self.sample(items, len(items))


# Letters and their numbers in the arithmetic of Hangul syllables.
INITIALS = {"b": 7, "d": 3, "g": 0, "h": 18, "j": 12, "k": 15, "m": 6, "n": 2, "p": 17, "r": 5, "s": 9, "t": 16}
VOWELS = {"a": 0, "e": 5, "i": 20, "o": 8, "u": 13}
FINALS = {"": 0, "n": 4, "l": 8, "m": 16}
PARTICLE = re.compile("(.)(은/는|이/가|을/를|으로/로)")


def sections(text: str) -> dict[str, str]:
    """What stands below each `== name` of world.txt, without the remarks."""
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    parts = "\n".join(lines).split("\n== ")[1:]
    return {name: content.strip() for name, _, content in (part.partition("\n") for part in parts)}


def sentence(text: str) -> str:
    """Text with a capital at its beginning."""
    return text[0].upper() + text[1:]


def korean_text(text: str) -> str:
    """Text with its particles chosen: the first form after a final consonant, the second after a vowel."""

    def choose(match: re.Match) -> str:
        assert "가" <= match[1] <= "힣", f"{match[0]} does not follow Hangul"
        final = (ord(match[1]) - 0xAC00) % 28
        with_final, without = match[2].split("/")
        # After ㄹ it is 로, as after a vowel.
        return match[1] + (without if final == 0 or (final == FINALS["l"] and without == "로") else with_final)

    return PARTICLE.sub(choose, text)


def make_names(dice: Dice, count: int, bad: re.Pattern) -> list[tuple[str, str]]:
    """(Latin, Hangul) names of two syllables; no two begin with the same three letters."""
    names: dict[str, tuple[str, str]] = {}
    while len(names) < count:
        latin = hangul = ""
        for last in (False, True):
            initial, vowel = dice.pick(list(INITIALS)), dice.pick(list(VOWELS))
            final = dice.pick(list(FINALS)) if last and dice.chance(2 / 3) else ""
            latin += initial + vowel + final
            hangul += chr(0xAC00 + (INITIALS[initial] * 21 + VOWELS[vowel]) * 28 + FINALS[final])
        if not bad.search(latin):
            names.setdefault(latin[:3], (latin, hangul))
    return list(names.values())


class Thing(NamedTuple):
    """What facts are about. name: as a value and a choice; phrase: as the subject of a sentence; it, its: pronouns."""

    kind: str
    name: str
    korean: str
    phrase: str
    it: str = "it"
    its: str = "its"

    @property
    def title(self) -> str:
        return sentence(self.phrase)

    @property
    def plural(self) -> str:
        """Of its kind."""
        return {"person": "people", "goods": "prices"}.get(self.kind, f"{self.kind}s")


class Relation(NamedTuple):
    """What is true of every thing of a kind, and how it is said: a paragraph of the relations in world.txt."""

    subject: str
    name: str
    value: str
    says: list[str]
    asks: list[str]
    korean: list[str]  # how to say it, how to ask it


class Fact:
    """A relation that holds between two things. All are stated in the documents; only those of "train" are asked there.

    says and tells: the same statements, the second with a pronoun where one fits. split: train, validation or test.
    """

    def __init__(self, relation: Relation, subject: Thing, value: Thing, split: str):
        self.relation, self.subject, self.value, self.split = relation, subject, value, split
        named = {"s": subject.phrase, "p": f"{subject.phrase}'s", "o": value.name}
        short = named | {"s": subject.it, "p": subject.its}
        fits = [short if say.startswith(("{s}", "{p}")) else named for say in relation.says]
        self.says = [sentence(say.format(**named)) for say in relation.says]
        self.tells = [sentence(say.format(**words)) for say, words in zip(relation.says, fits, strict=True)]
        self.asks = [sentence(ask.format(**named)) for ask in relation.asks]
        self.korean_says = self.korean_with(value)
        self.korean_asks = korean_text(relation.korean[1].format(s=subject.korean))

    def korean_with(self, value: Thing) -> str:
        """The statement in Korean with any value, a wrong one too."""
        return korean_text(self.relation.korean[0].format(s=self.subject.korean, o=value.korean))


class Step(NamedTuple):
    text: str  # with # where the sum stands
    left: int
    sign: str
    right: int
    result: int

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right} = {self.result}"


class Problem(NamedTuple):
    question: str
    steps: list[Step]
    answer: int  # the result of the last

    def solution(self, calculator: bool) -> str:
        """A line a step: `Now Kara has 3 + 4 = 7 apples.`; with the calculator's marks, `3 + 4 = <<3+4=7>>7`."""
        lines = []
        for text, left, sign, right, result in self.steps:
            mark = f"<<{left}{sign}{right}={result}>>" if calculator else ""
            lines.append(text.replace("#", f"{left} {sign} {right} = {mark}{result}"))
        return "\n".join(lines)


@cache
def is_held_out(seed: int, a: int, b: int) -> bool:
    """Whether these two numbers are joined in tests alone; the same for (b, a)."""
    key = f"{seed} {min(a, b)} {max(a, b)}"
    return hashlib.sha256(key.encode()).digest()[0] % HELD_OUT_PAIRS == 0


class World:
    """The land of one seed: its `things` by kind, its `facts`, those `about` a thing, those `asked` in each split.

    `answers`: the values of those; `ends`: the towns that a road joins; `words` and `held_out_words`: names of one word
    that training may, and may not, ask to spell; `text`: the sections of world.txt. Every seed gives as many things, as
    many facts of each split, and every value of a relation about as often.
    """

    def __init__(self, seed: int, people: int):
        dice = Dice("world", seed)
        self.seed = seed
        self.text = sections(Path(__file__).with_name("world.txt").read_text(encoding="utf-8"))
        self.things: dict[str, list[Thing]] = {}
        for kind, *words in map(str.split, self.text["common"].splitlines()):
            names = [word.split(":") for word in words]
            self.things[kind] = [Thing(kind, english, korean, f"a {english}") for english, korean in names]
        self._invent(dice, people)
        self._derive(dice)
        self.name = self.things["country"][0].name
        words = sorted({thing.name for things in self.things.values() for thing in things if thing.name.isalpha()})
        self.held_out_words, self.words = words[::4], [word for word in words if word not in words[::4]]
        self.facts: list[Fact] = []
        for header, *wordings in map(str.splitlines, self.text["relations"].split("\n\n")):
            self.facts += self._facts(dice, Relation(*header.split(), *(line.split(" | ") for line in wordings)))
        self.asked: dict[str, list[Fact]] = {"train": [], "validation": [], "test": []}
        self.answers: dict[tuple[str, str], list[Thing]] = {}  # by split and kind, each as often as it is right
        self.about: dict[Thing, list[Fact]] = {}
        for fact in self.facts:
            self.asked[fact.split].append(fact)
            self.answers.setdefault((fact.split, fact.value.kind), []).append(fact.value)
            self.about.setdefault(fact.subject, []).append(fact)
        self.subjects = list(self.about)
        self._templates = self.rows("problems")

    def _invent(self, dice: Dice, people: int) -> None:
        kinds = [(kind, int(count) or people, *forms) for kind, count, *forms in self.rows("invented")]
        names = iter(make_names(dice, sum(count for _, count, *_ in kinds), re.compile(self.text["no names"])))
        for kind, count, name, korean, phrase, *pronouns in kinds:
            self.things[kind] = []
            for number, (latin, hangul) in enumerate(islice(names, count)):
                forms = [form.format(n=latin, N=sentence(latin), k=hangul) for form in (name, korean, phrase)]
                self.things[kind].append(Thing(kind, *forms, *pronouns[number % len(pronouns)].split()))

    def _derive(self, dice: Dice) -> None:
        """What is named after other things, and prices and lengths."""
        towns = dice.shuffled(self.things["town"])
        ends = list(zip(towns, towns[1:] + towns[:1], strict=True))
        prices, lengths = (dice.sample(range(3, 90), count) for count in (len(self.things["goods"]), 24))
        roads = [(f"the road from {a.name} to {b.name}", f"{a.korean}에서 {b.korean}까지 가는 길") for a, b in ends]
        derived = {
            "road": roads,
            "guild": [(f"the guild of {trade.name}s", f"{trade.korean} 길드") for trade in self.things["trade"]],
            "coins": [(f"{number} coins", f"동전 {number}개") for number in prices],
            "miles": [(f"{number} miles", f"{number}마일") for number in lengths],
        }
        for kind, names in derived.items():
            self.things[kind] = [Thing(kind, name, korean, name) for name, korean in names]
        self.ends = dict(zip(self.things["road"], ends, strict=True))

    def _facts(self, dice: Dice, relation: Relation) -> list[Fact]:
        """One for each subject; of sixteen, three are held out for the test and one for validation."""
        subjects, values = self.things[relation.subject], dice.shuffled(self.things[relation.value])
        count = len(subjects)
        assigned = dice.shuffled([values[number % len(values)] for number in range(count)])
        splits = ["test"] * round(count * 3 / 16) + ["validation"] * round(count / 16) + ["train"] * count
        return [Fact(relation, *row) for row in zip(subjects, assigned, dice.shuffled(splits[:count]), strict=True)]

    def rows(self, section: str) -> list[list[str]]:
        """The wordings on each line of a section of world.txt."""
        return [line.split(" | ") for line in self.text[section].splitlines()]

    def of(self, thing: Thing) -> dict[str, Thing]:
        """The values of a thing's facts by the name of the relation."""
        return {fact.relation.name: fact.value for fact in self.about[thing]}

    def choices(self, fact: Fact, dice: Dice) -> tuple[list[Thing], int]:
        """Four values of the fact's kind, the right one at any place among them, and that place.

        The others are right where other facts of the split are asked about, as far as there are three, and as often.
        Drawn from all of the kind, those that only a test asks for would be known to be wrong from training.
        """
        rivals = dict.fromkeys(dice.shuffled(self.answers[fact.split, fact.value.kind]))
        rivals |= dict.fromkeys(dice.shuffled(self.things[fact.value.kind]))
        chosen, right = [thing for thing in rivals if thing is not fact.value][:3], dice.between(0, 3)
        chosen.insert(right, fact.value)
        return chosen, right

    def people(self, dice: Dice) -> list[str]:
        """The names of two."""
        return [person.name for person in dice.sample(self.things["person"], 2)]

    def problem(self, dice: Dice, held_out: bool) -> Problem:
        """About two people and what they have; every pair of numbers in it is held out, or none."""
        return self._draw(dice, dice.pick(self._templates), held_out)

    def sum(self, dice: Dice, held_out: bool = False) -> Step:
        plain = [template for template in self._templates if template[0].startswith("What is {x}")]
        return self._draw(dice, dice.pick(plain), held_out).steps[0]

    def numbers(self, dice: Dice) -> tuple[int, int]:
        """Two for a program, which joins them or the first with 1 or 2: no pair that is kept for tests."""
        while True:
            x, y = dice.between(2, 40), dice.between(2, 40)
            if not any(is_held_out(self.seed, x, other) for other in (y, 1, 2)):
                return x, y

    def _draw(self, dice: Dice, template: list[str], held_out: bool) -> Problem:
        """A problem of a line of world.txt; its numbers are from 2 to 12 where they multiply or divide, else to 60."""
        question, *lines = template
        steps = [(*line[:3], line[4:]) for line in lines]
        factors = {name for left, sign, right, _ in steps if sign in "*/" for name in (left, right)}
        sums: list[tuple] = []
        while len(sums) < len(steps):
            numbers = {name: dice.between(2, 12 if name in factors else 60) for name in "xyzw"}
            if steps[0][1] == "/":
                numbers["x"] *= numbers["y"]
            sums = list(self._solve(steps, numbers, held_out))
        a, b = self.people(dice)
        words = {"a": a, "b": b, "g": dice.pick(self.text["possessions"].split()), **numbers}
        told = [Step(text.format(**words), *row) for (*_, text), row in zip(steps, sums, strict=True)]
        return Problem(question.format(**words), told, told[-1].result)

    def _solve(self, steps: list[tuple], numbers: dict[str, int], held_out: bool) -> Iterator[tuple]:
        """Left, sign, right, result of each step, until a result or a pair of numbers is not as wanted."""
        for left, sign, right, _ in steps:
            a, b = numbers[left], numbers[right]
            result = OPERATIONS[sign](a, b)
            if (sign == "/" and a % b) or not 2 <= result <= LARGEST or is_held_out(self.seed, a, b) != held_out:
                return
            yield a, sign, b, result
            numbers = {**numbers, "r": result, "q": numbers.get("r", 0)}
