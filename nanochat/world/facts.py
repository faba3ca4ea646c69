"""Facts of the embedded world: a land of people, towns, animals and prices, invented from a seed.

The words stand in world.txt: kinds of things, relations between two kinds, and wordings for each relation. `World`
draws names for the things and gives each subject of a relation a value. A `Fact` is such a pair with all statements and
questions about it.
"""

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")


class Dice:
    """Random draws that are the same on every platform and Python version.

    All draws use `Random.random()`, the only method with a sequence that Python promises to keep. A text seed goes
    through SHA-512 inside `random.Random`, never through `hash()`.
    """

    def __init__(self, *key: str | int):
        self._random = random.Random("/".join(map(str, key))).random

    def chance(self, share: float) -> bool:
        """Return True with probability `share`."""
        return self._random() < share

    def between(self, low: int, high: int) -> int:
        """Return an integer from low to high, both included."""
        return low + int(self._random() * (high - low + 1))

    def pick(self, items: Sequence[Item]) -> Item:
        """Return an item, each with the same probability."""
        return items[self.between(0, len(items) - 1)]

    def weighted(self, shares: Mapping[Item, int]) -> Item:
        """Return a key with a probability in proportion to its value, an integer."""
        pool = []
        for item, share in shares.items():
            pool += [item] * share
        return self.pick(pool)

    def sample(self, items: Sequence[Item], count: int) -> list[Item]:
        """Return `count` items from different positions in random order (a partial Fisher-Yates shuffle)."""
        pool = list(items)
        for place in range(count):
            # Swap an item that is still free into this place.
            other = self.between(place, len(pool) - 1)
            pool[place], pool[other] = pool[other], pool[place]
        return pool[:count]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        return self.sample(items, len(items))


# ---- words ----

# A Hangul syllable is U+AC00 + (initial * 21 + vowel) * 28 + final. Latin letter -> number in this formula.
INITIALS = {
    "b": 7,
    "d": 3,
    "g": 0,
    "h": 18,
    "j": 12,
    "k": 15,
    "m": 6,
    "n": 2,
    "p": 17,
    "r": 5,
    "s": 9,
    "t": 16,
}
VOWELS = {"a": 0, "e": 5, "i": 20, "o": 8, "u": 13}
FINALS = {"": 0, "n": 4, "l": 8, "m": 16}
FIRST_SYLLABLE = 0xAC00
# A syllable, then both forms of a particle: after a consonant and after a vowel.
PARTICLE = re.compile("(.)(은/는|이/가|을/를|으로/로)")


def read_sections(text: str) -> dict[str, str]:
    """Return the text below each `== name` in world.txt, without comment lines."""
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    sections = {}
    # The first part is empty: the text begins with a section.
    for part in "\n".join(lines).split("\n== ")[1:]:
        name, _, content = part.partition("\n")
        sections[name] = content.strip()
    return sections


def capitalized(text: str) -> str:
    """Return the text with an upper-case first letter; `str.capitalize` would change the other letters too."""
    return text[0].upper() + text[1:]


def korean_text(text: str) -> str:
    """Return the text with every particle chosen: `물이/가` becomes `물이`, `다리이/가` becomes `다리가`."""

    def choose(match: re.Match) -> str:
        syllable = match[1]
        assert "가" <= syllable <= "힣", f"{match[0]} does not follow Hangul"
        final = (ord(syllable) - FIRST_SYLLABLE) % 28  # 0: the syllable ends in a vowel
        after_consonant, after_vowel = match[2].split("/")
        if final == 0:
            return syllable + after_vowel
        # 로 is also the form after ㄹ: "물로", not "물으로".
        if final == FINALS["l"] and after_vowel == "로":
            return syllable + after_vowel
        return syllable + after_consonant

    return PARTICLE.sub(choose, text)


def make_names(dice: Dice, count: int, forbidden: re.Pattern) -> list[tuple[str, str]]:
    """Return `count` names with two syllables as (Latin, Hangul); no two begin with the same three letters."""
    names: dict[str, tuple[str, str]] = {}
    while len(names) < count:
        latin = ""
        hangul = ""
        for is_last in (False, True):
            initial = dice.pick(list(INITIALS))
            vowel = dice.pick(list(VOWELS))
            final = ""
            # Half the names end in a consonant: one entry in four is the empty ending.
            if is_last and dice.chance(2 / 3):
                final = dice.pick(list(FINALS))
            latin += initial + vowel + final
            number = INITIALS[initial] * 21 + VOWELS[vowel]
            hangul += chr(FIRST_SYLLABLE + number * 28 + FINALS[final])
        # Rude and existing words are drawn again.
        if not forbidden.search(latin):
            names.setdefault(latin[:3], (latin, hangul))
    return list(names.values())


# ---- things and facts ----


class Thing(NamedTuple):
    """A subject or value in facts, such as a person, a town or a colour."""

    kind: str  # "river"
    name: str  # as a value and as a choice: "Siman"
    korean: str  # "시만강"
    phrase: str  # as the subject of a sentence: "the river Siman"
    pronoun: str = "it"
    possessive: str = "its"

    @property
    def title(self) -> str:
        return capitalized(self.phrase)

    @property
    def plural(self) -> str:
        """The kind in the plural; MMLU rows have it as their subject."""
        irregular = {"person": "people", "goods": "prices"}
        return irregular.get(self.kind, f"{self.kind}s")


class Relation(NamedTuple):
    """A paragraph in the section `relations` of world.txt: each thing of a kind has a value of another kind."""

    subject: str  # "river"
    name: str  # "spring"
    value: str  # "mountain"
    statements: list[str]  # "{s} rises on {o}."
    questions: list[str]  # "Where does {s} begin?"
    korean_statement: str  # "{s}은/는 {o}에서 시작한다."
    korean_question: str


class Fact:
    """A subject and its value in all wordings.

    statements: "The river Siman rises on Mount Kurim.". pronoun_statements: the same in the same order, with a pronoun
    if the subject comes first, "It rises on Mount Kurim.". split: "train", "validation" or "test".
    """

    def __init__(self, relation: Relation, subject: Thing, value: Thing, split: str):
        self.relation = relation
        self.subject = subject
        self.value = value
        self.split = split
        # {s}: the subject, {p}: the possessive, {o}: the value.
        words = {"s": subject.phrase, "p": f"{subject.phrase}'s", "o": value.name}
        pronouns = {"s": subject.pronoun, "p": subject.possessive, "o": value.name}
        self.statements = []
        self.pronoun_statements = []
        for template in relation.statements:
            statement = template.format_map(words)
            self.statements.append(capitalized(statement))
            # "The coat of she is grey" would be wrong: in other positions the name stays.
            if template.startswith(("{s}", "{p}")):
                statement = template.format_map(pronouns)
            self.pronoun_statements.append(capitalized(statement))
        self.questions = [capitalized(template.format_map(words)) for template in relation.questions]
        self.korean_statement = self.korean_with(value)
        self.korean_question = korean_text(relation.korean_question.format(s=subject.korean))

    def korean_with(self, value: Thing) -> str:
        """Return the Korean statement with any value, possibly a wrong one."""
        return korean_text(self.relation.korean_statement.format(s=self.subject.korean, o=value.korean))


class World:
    """The land of one seed.

    words, held_out_words: names that training may, and may not, ask to spell. All seeds give equally many things and
    facts for each split, and the values in a relation are right about equally often.
    """

    def __init__(self, seed: int, people: int):
        dice = Dice("world", seed)
        self.seed = seed
        words = Path(__file__).with_name("world.txt").read_text(encoding="utf-8")
        self.text = read_sections(words)
        self.things: dict[str, list[Thing]] = {}  # by kind
        self.road_ends: dict[Thing, tuple[Thing, Thing]] = {}  # the towns that a road joins
        # This order decides the content: all draw from the same dice.
        self._add_common_things()
        self._add_invented_things(dice, people)
        self._add_derived_things(dice)
        self.name = self.things["country"][0].name
        names = set()
        for things in self.things.values():
            names |= {thing.name for thing in things if thing.name.isalpha()}
        # Tests spell every fourth name; "Mount Kurim" is no word.
        self.held_out_words = sorted(names)[::4]
        self.words = sorted(names.difference(self.held_out_words))
        self.facts: list[Fact] = []
        # As many as subjects in all relations: a few hundred.
        for relation in self._relations():
            self.facts += self._assign(dice, relation)
        self.asked: dict[str, list[Fact]] = {"train": [], "validation": [], "test": []}  # by split
        self.about: dict[Thing, list[Fact]] = {}  # by subject
        # Right answers by (split, kind), each as often as it is right.
        self._answers: dict[tuple[str, str], list[Thing]] = {}
        for fact in self.facts:
            self.asked[fact.split].append(fact)
            self.about.setdefault(fact.subject, []).append(fact)
            self._answers.setdefault((fact.split, fact.value.kind), []).append(fact.value)
        self.subjects = list(self.about)

    def rows(self, section: str) -> list[list[str]]:
        """Return the lines of a section in world.txt, each split into wordings."""
        return [line.split(" | ") for line in self.text[section].splitlines()]

    def _add_common_things(self) -> None:
        """Add kinds that are the same in every world, from lines such as `trade baker:제빵사 smith:대장장이`."""
        for line in self.text["common"].splitlines():
            kind, *words = line.split()
            self.things[kind] = []
            for word in words:
                english, korean = word.split(":")
                self.things[kind].append(Thing(kind, english, korean, phrase=f"a {english}"))

    def _add_invented_things(self, dice: Dice, people: int) -> None:
        """Add kinds with drawn names, from lines such as `river | 8 | {N} | {k}강 | the river {N} | it its`."""
        rows = self.rows("invented")
        # A count of 0 in world.txt stands for the number of people.
        counts = {kind: int(count) or people for kind, count, *_ in rows}
        names = iter(make_names(dice, sum(counts.values()), re.compile(self.text["no names"])))
        for kind, _, *templates, pronouns in rows:
            self.things[kind] = []
            for number in range(counts[kind]):
                latin, hangul = next(names)
                words = {"n": latin, "N": capitalized(latin), "k": hangul}
                name, korean, phrase = (template.format_map(words) for template in templates)
                # People are "she" and "he" in turn.
                forms = pronouns.split(", ")
                pronoun, possessive = forms[number % len(forms)].split()
                thing = Thing(kind, name, korean, phrase, pronoun, possessive)
                self.things[kind].append(thing)

    def _add_derived_things(self, dice: Dice) -> None:
        """Add roads and guilds, which are named after other things, then prices and lengths."""

        def add(kind: str, name: str, korean: str) -> Thing:
            thing = Thing(kind, name, korean, phrase=name)
            self.things.setdefault(kind, []).append(thing)
            return thing

        towns = dice.shuffled(self.things["town"])
        prices = dice.sample(range(3, 90), len(self.things["goods"]))
        lengths = dice.sample(range(3, 90), 24)
        # The roads form a ring through all towns.
        next_towns = towns[1:] + towns[:1]
        for start, end in zip(towns, next_towns, strict=True):
            name = f"the road from {start.name} to {end.name}"
            road = add("road", name, f"{start.korean}에서 {end.korean}까지 가는 길")
            self.road_ends[road] = (start, end)
        for trade in self.things["trade"]:
            # "the guild of bakers"
            add("guild", f"the guild of {trade.name}s", f"{trade.korean} 길드")
        for price in prices:
            add("coins", f"{price} coins", f"동전 {price}개")
        for length in lengths:
            add("miles", f"{length} miles", f"{length}마일")

    def _relations(self) -> list[Relation]:
        """Read the relations in world.txt, paragraphs of four lines with wordings separated by ` | `."""
        relations = []
        for paragraph in self.text["relations"].split("\n\n"):
            header, *lines = paragraph.splitlines()
            # "river spring mountain"
            subject, name, value = header.split()
            statements, questions, korean = (line.split(" | ") for line in lines)
            relations.append(Relation(subject, name, value, statements, questions, *korean))
        return relations

    def _assign(self, dice: Dice, relation: Relation) -> list[Fact]:
        """Give each subject a value and a split: out of sixteen facts, three for the test and one for validation."""
        subjects = self.things[relation.subject]
        values = dice.shuffled(self.things[relation.value])
        count = len(subjects)
        # Every value occurs about equally often, so that no value is a good guess.
        assigned = [values[number % len(values)] for number in range(count)]
        assigned = dice.shuffled(assigned)
        # The same numbers for every seed, at random places.
        tests = round(count * 3 / 16)
        validations = round(count / 16)
        splits = ["test"] * tests + ["validation"] * validations
        splits += ["train"] * (count - len(splits))
        splits = dice.shuffled(splits)
        facts = []
        for subject, value, split in zip(subjects, assigned, splits, strict=True):
            facts.append(Fact(relation, subject, value, split))
        return facts

    def values_of(self, thing: Thing) -> dict[str, Thing]:
        """Return a thing's values by relation: {"home": Badaton, "pet": genu, …}."""
        return {fact.relation.name: fact.value for fact in self.about[thing]}

    def two_people(self, dice: Dice) -> list[str]:
        """Return two different names."""
        return [person.name for person in dice.sample(self.things["person"], 2)]

    def choices(self, fact: Fact, dice: Dice) -> tuple[list[Thing], int]:
        """Return four values, one right and three wrong, and the position of the right one.

        Wrong choices come first from right answers to other facts in the same split, as often as they are right there.
        If all values were equally likely, training would show values that only tests ask for always as wrong.
        """
        kind = fact.value.kind
        rivals = dice.shuffled(self._answers[fact.split, kind])
        # Then all of this kind, in case the split has too few different ones.
        rivals += dice.shuffled(self.things[kind])
        others = [thing for thing in dict.fromkeys(rivals) if thing is not fact.value]
        choices = others[:3]
        right = dice.between(0, 3)
        choices.insert(right, fact.value)
        return choices, right
