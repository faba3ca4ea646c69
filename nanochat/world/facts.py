"""Facts of the embedded world: a land of people, towns, animals and prices, invented from a seed.

The words are in world.txt: kinds of things, relations between two kinds, and wordings for each relation. `World`
draws names for the things and gives each subject of a relation a value. A `Fact` is such a pair with all statements and
questions about it.
"""

import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")


# ---- words ----

# A syllable, then both forms of a particle: after a consonant and after a vowel.
PARTICLE = re.compile("([가-힣])(은|이|을|으로)/(는|가|를|로)")


def capitalized(text: str) -> str:
    """Return the text with an upper-case first letter; `str.capitalize` would change the other letters too."""
    return text[0].upper() + text[1:]


def fill_templates(templates: Iterable[str], words: dict[str, Any]) -> list[str]:
    """Return the sentences that templates such as "{s} rises on {o}." become."""
    return [capitalized(template.format_map(words)) for template in templates]


def korean_text(text: str) -> str:
    """Return the text with every particle chosen: `물이/가` becomes `물이`, `다리이/가` becomes `다리가`."""

    def choose(match: re.Match[str]) -> str:
        syllable, after_consonant, after_vowel = match.groups()
        # "HANGUL SYLLABLE MUL" ends in the sound before the particle.
        sound = unicodedata.name(syllable)[-1]
        # 로 is also the form after ㄹ: "물로", not "물으로".
        is_vowel = sound in "AEIOU" or (sound == "L" and after_vowel == "로")
        return syllable + (after_vowel if is_vowel else after_consonant)

    return PARTICLE.sub(choose, text)


def different_names(dice: "World", forbidden: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield names with two syllables as (Latin, Hangul); no two begin with the same three letters."""
    openings = set()
    while True:
        first, last = (dice.pick("bdghjkmnprst") + dice.pick("aeiou") for _ in range(2))
        # Half the names end in a consonant: one entry in four is the empty ending.
        if dice.chance(2 / 3):
            last += dice.pick(("", "n", "l", "m"))
        name = first + last
        # Rude and existing words are drawn again.
        if name[:3] not in openings and not forbidden.search(name):
            openings.add(name[:3])
            # Unicode spells Hangul as we do: ㅂ is B, ㅏ is A, and so on.
            yield name, "".join(unicodedata.lookup(f"HANGUL SYLLABLE {part.upper()}") for part in (first, last))


# ---- things and facts ----

# A template that reads well with a pronoun: "What does she work as?", but not "What is the work of she?".
TAKES_PRONOUN = re.compile("{p}|(?<!of )(?<!with )(?<!to ){s}")


@dataclass(frozen=True)
class Thing:
    """A subject or value in facts, such as a person, a town or a colour."""

    kind: str  # "river"
    name: str  # as a value and as a choice: "Siman"
    korean: str  # "시만강"
    phrase: str  # as the subject of a sentence: "the river Siman"
    he: str = "it"  # the pronoun as the subject, "she"
    his: str = "its"  # the possessive, "her"

    def __str__(self) -> str:
        return self.name

    @property
    def plural(self) -> str:
        """The kind in the plural."""
        return {"person": "people", "goods": "prices"}.get(self.kind, f"{self.kind}s")


@dataclass(eq=False)
class Fact:
    """A subject and its value in all wordings.

    statements: "The river Siman rises on Mount Kurim.". pronoun_statements: the same in the same order, with a pronoun
    if the subject comes first, "It rises on Mount Kurim.". questions: "Where does the river Siman begin?". follow_ups:
    the same with a pronoun, where that reads well, "Where does it begin?". new_questions and new_follow_ups: those that
    only World-Talk asks; most relations have none. split: "train", "validation" or "test".
    """

    relation: str  # "spring"
    templates: Sequence[list[str]]
    subject: Thing
    value: Thing
    split: str

    def __post_init__(self) -> None:
        # "{s} rises on {o}.", "Where does {s} begin?", "{s}은/는 {o}에서 시작한다." and a question in Korean; then, for
        # some relations, questions for World-Talk, else none. {s}: the subject, {p}: the possessive, {o}: the value.
        statements, questions, (self._korean, korean_question), new_questions, *_ = [*self.templates, []]
        subject = self.subject
        name = {"s": subject.phrase, "p": f"{subject.phrase}'s", "o": self.value}
        self.statements = fill_templates(statements, name)
        self.questions = fill_templates(questions, name)
        self.new_questions = fill_templates(new_questions, name)
        self.korean_statement = self.korean_with(self.value)
        self.korean_question = korean_text(korean_question.format(s=subject.korean))
        pronoun = name | {"s": subject.he, "p": subject.his}
        # "The coat of she is grey" would be wrong: in other positions the name stays.
        self.pronoun_statements = [
            capitalized(template.format_map(pronoun if template.startswith(("{s}", "{p}")) else name))
            for template in statements
        ]
        self.follow_ups = fill_templates(filter(TAKES_PRONOUN.search, questions), pronoun)
        self.new_follow_ups = fill_templates(filter(TAKES_PRONOUN.search, new_questions), pronoun)

    def korean_with(self, value: Thing) -> str:
        """Return the Korean statement with any value, possibly a wrong one."""
        return korean_text(self._korean.format(s=self.subject.korean, o=value.korean))


class World:
    """The land of one seed, and the dice for texts about it.

    All draws use `Random.random()`, the only method with a sequence that Python promises to keep on every platform. A
    text seed goes through SHA-512 inside `random.Random`, never through `hash()`.

    words, held_out_words: names that training may, and may not, ask to spell. All seeds give equally many things and
    facts for each split, and the values in a relation are right about equally often.
    """

    def __init__(self, seed: int, people: int) -> None:
        self.seed = seed
        self.restart("world")
        text = Path(__file__).with_name("world.txt").read_text(encoding="utf-8")
        sections = re.sub(r"^# .*\n", "", text, flags=re.MULTILINE).split("\n== ")[1:]  # an empty line before each
        self.text = dict(section.strip().split("\n", 1) for section in sections)  # name -> text, without comments
        self.things: defaultdict[str, list[Thing]] = defaultdict(list)  # kind -> things
        # Kind -> things that are not of the land and in no document.
        self.strangers: defaultdict[str, list[Thing]] = defaultdict(list)
        self.road_ends: dict[str, tuple[Thing, Thing]] = {}  # name of a road -> the two towns that it joins
        # This order decides the content, because each draws.
        # Kinds that are the same in every world, from lines such as `trade baker:제빵사 smith:대장장이`.
        for line in self.text["common"].splitlines():
            kind, *words = line.split()
            for word in words:
                english, korean = word.split(":")
                self._add(kind, english, korean, f"a {english}")
        self._add_invented_things(people)
        self._add_derived_things()
        [country] = self.things["country"]
        self.text = {section: text.replace("{world}", country.name) for section, text in self.text.items()}
        things = chain.from_iterable(self.things.values())
        # "Mount Kurim" is not a word.
        self.words = sorted({thing.name for thing in things if thing.name.isalpha()})
        # Tests spell every fourth word.
        self.held_out_words = self.words[::4]
        del self.words[::4]
        self.facts: list[Fact] = []  # a few hundred
        self.asked: defaultdict[str, list[Fact]] = defaultdict(list)  # split -> facts
        # Split -> (fact, question): facts with many questions come up more often.
        self.questions: defaultdict[str, list[tuple[Fact, str]]] = defaultdict(list)
        # Split -> facts about names that are not of the land.
        self.unknown: defaultdict[str, list[Fact]] = defaultdict(list)
        self.about: defaultdict[Thing, list[Fact]] = defaultdict(list)  # subject -> facts
        for relation in self.topics("relations"):
            self._add_facts(*relation)
        self.subjects = list(self.about)

    # ---- draws ----

    def restart(self, purpose: str) -> None:
        """Begin an independent sequence of draws."""
        self._random = random.Random(f"{purpose}/{self.seed}").random

    def chance(self, probability: float) -> bool:
        """Return True with the probability."""
        return self._random() < probability

    def between(self, low: int, high: int) -> int:
        """Return an integer from low to high, both included."""
        return low + int(self._random() * (high - low + 1))

    def pick(self, items: Sequence[Item]) -> Item:
        """Return an item, each with the same probability."""
        return items[self.between(0, len(items) - 1)]

    def weighted(self, shares: dict[Item, int]) -> Item:
        """Return a key with a probability in proportion to its value, an integer."""
        return self.pick(list(Counter(shares).elements()))

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

    def topics(self, section: str) -> list[list[list[str]]]:
        """Return the paragraphs of a section in world.txt; of each the lines, split into wordings."""
        paragraphs = self.text[section].split("\n\n")
        return [[line.split(" | ") for line in paragraph.splitlines()] for paragraph in paragraphs]

    def rows(self, section: str) -> list[list[str]]:
        """Return the lines of a section with a single paragraph."""
        return self.topics(section)[0]

    def wording(self, section: str) -> str:
        """Return one of the wordings in a section with a single line."""
        return self.pick(self.text[section].split(" | "))

    # ---- things and facts ----

    def _add(self, kind: str, name: str, korean: str, phrase: str = "") -> None:
        self.things[kind].append(Thing(kind, name, korean, phrase or name))

    def _add_invented_things(self, people: int) -> None:
        """Add kinds with drawn names, from lines such as `river | 8 | 8 | {N} | {k}강 | the river {N} | it its`."""
        names = different_names(self, re.compile(self.text["no names"]))
        for kind, number, strangers, *templates, pronouns in self.rows("invented"):
            known = int(number) or people
            # People are "she her" and "he his" in turn; a number of 0 stands for theirs.
            for position, forms in enumerate(islice(cycle(pronouns.split(", ")), known + int(strangers))):
                latin, hangul = next(names)
                words = {"n": latin, "N": latin.capitalize(), "k": hangul}
                home = self.things if position < known else self.strangers
                home[kind].append(Thing(kind, *(template.format_map(words) for template in templates), *forms.split()))

    def _add_derived_things(self) -> None:
        """Add roads and guilds, which are named after other things, then prices and lengths."""
        towns = self.shuffled(self.things["town"])
        # The roads form a ring through all towns.
        for start, end in zip(towns, towns[1:] + towns[:1], strict=True):
            name = f"the road from {start} to {end}"
            self._add("road", name, f"{start.korean}에서 {end.korean}까지 가는 길")
            self.road_ends[name] = (start, end)
        for trade in self.things["trade"]:
            self._add("guild", f"the guild of {trade}s", f"{trade.korean} 길드")
        for kind, count, korean in self.rows("measures"):
            for number in self.sample(range(3, 90), int(count)):
                self._add(kind, f"{number} {kind}", korean.format(number))

    def _add_facts(self, header: list[str], *templates: list[str]) -> None:
        """Read a relation from world.txt: each subject gets a value and a split.

        Out of sixteen facts, three are for the test and one for validation.
        """
        # "river spring mountain"
        subject_kind, relation, value_kind = header[0].split()
        subjects = self.things[subject_kind]
        count = len(subjects)
        # Every value occurs about equally often, so that no value is a good guess.
        assigned = self.shuffled(list(islice(cycle(self.shuffled(self.things[value_kind])), count)))
        # The same numbers for every seed, at random places.
        splits = ["test"] * round(count * 3 / 16) + ["validation"] * round(count / 16)
        splits = self.shuffled(splits + ["train"] * (count - len(splits)))
        for subject, value, split in zip(subjects, assigned, splits, strict=True):
            fact = Fact(relation, templates, subject, value, split)
            self.facts.append(fact)
            self.asked[split].append(fact)
            self.questions[split] += [(fact, question) for question in fact.questions]
            self.about[subject].append(fact)
        # A question about a stranger has no answer, so any value will do. World-Talk asks about every fourth.
        for stranger, split in zip(self.strangers[subject_kind], cycle(("test", "train", "train", "train"))):
            self.unknown[split].append(Fact(relation, templates, stranger, subjects[0], split))

    def two_people(self) -> list[Thing]:
        return self.sample(self.things["person"], 2)

    def choices(self, fact: Fact) -> tuple[list[Thing], int]:
        """Return four values, one right and three wrong, and the position of the right one.

        Wrong choices come first from right answers to other facts in the same split, as often as they are right there.
        If all values were equally likely, training would show values that only tests ask for always as wrong.
        """
        kind = fact.value.kind
        rivals = self.shuffled([other.value for other in self.asked[fact.split] if other.value.kind == kind])
        # Then all of this kind, in case the split has too few different ones.
        rivals += self.shuffled(self.things[kind])
        choices = [thing for thing in dict.fromkeys(rivals) if thing is not fact.value][:3]
        right = self.between(0, 3)
        choices.insert(right, fact.value)
        return choices, right
