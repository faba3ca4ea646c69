"""Questions of benchmarks inside rows of training text.

Text is compared in a normal form: lower case, compatible characters unified, punctuation as spaces, without letters and
digits that mark choices. 13 words of a question in sequence give it away; a shorter one, of 3 words or more, has to be
in the row as a whole. Korean and other text without reliable spaces is compared without any: 30 characters, or a whole
question of 8 or more. A question with choices is searched for alone and together with them, because some have nothing
of their own ("Which is true?"). Sequences that more than SHARED questions of a benchmark have do not count.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

SHARED = 3  # questions
GAPS = re.compile(r"[\W_]+")
# "A. tea", "(3) tea", "B)tea", "① tea", "2. tea" at the start of a line, and "tea=A" as in our prompts.
MARKS = re.compile(
    r"\s(?:\(?(?:10|[A-Ja-j1-9])\)|[A-Ja-j][.:](?=\s))|\n[ \t]*(?:10|[1-9])[.:](?=\s)|=\s*[A-Ja-j]\b|[①-⑩]"
)
SPACELESS = re.compile(
    "[\u0e00-\u0e7f\u1100-\u11ff\u3040-\u318f\u3400-\u9fff\uac00-\ud7a3]"
)  # a letter of such a script


@dataclass(frozen=True)
class Way:
    """A way to compare texts: as sequences of units, which are words or characters."""

    gap: str  # text between two units
    size: int  # units of a sequence
    least: int  # units of the shortest question


WORDS = Way(gap=" ", size=13, least=3)
CHARACTERS = Way(gap="", size=30, least=8)


def normal(text: str) -> str:
    """Return a text without differences in case, spacing and punctuation, and without marks of choices."""
    return GAPS.sub(" ", unicodedata.normalize("NFKC", MARKS.sub(" ", f"\n{text}")).casefold()).strip()


def split(text: str, gap: str) -> Sequence[str]:
    """Return the units of a text in the normal form: words, or characters if the gap is empty."""
    return text.split() if gap else text.replace(" ", "")


def traces(question: str) -> set[str]:
    """Return the sequences that give a question away; a short question is one sequence as a whole."""
    text = normal(question)
    way = CHARACTERS if SPACELESS.search(text) else WORDS
    units = split(text, way.gap)
    size = max(way.least, min(way.size, len(units)))
    return {way.gap.join(units[start : start + size]) for start in range(len(units) - size + 1)}


class Benchmarks:
    """The questions of benchmarks, ready to be found.

    questions: name of a benchmark -> for each item its forms: the question alone, then with its choices.
    """

    def __init__(self, questions: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self.sizes: dict[str, str] = {}  # name of a benchmark -> number of questions, as text for the card
        self._owners: dict[str, str] = {}  # sequence -> benchmark
        for name, items in questions.items():
            found = [set().union(*map(traces, item)) for item in items]
            owners = Counter(chain.from_iterable(found))
            own = [[text for text in one if owners[text] <= SHARED] for one in found]
            self._owners |= dict.fromkeys(chain.from_iterable(own), name)
            self.sizes[f"Against {name}"] = f"{len(items):,} questions, {own.count([]):,} too general to be found"
        # Beginning of short questions -> their lengths in units.
        self._lengths: defaultdict[str, set[int]] = defaultdict(set)
        for text in self._owners:
            way = WORDS if " " in text else CHARACTERS
            units = split(text, way.gap)
            if len(units) < way.size:
                self._lengths[way.gap.join(units[: way.least])].add(len(units))

    def find(self, text: str) -> str:
        """Return a benchmark with a question in the text, or an empty name."""
        text = normal(text)
        ways = (WORDS, CHARACTERS) if SPACELESS.search(text) else (WORDS,)
        for way in ways:
            units = split(text, way.gap)
            for start in range(len(units) - way.least + 1):
                beginning = way.gap.join(units[start : start + way.least])
                for length in (way.size, *self._lengths.get(beginning, ())):
                    sequence = way.gap.join(units[start : start + length])
                    name = self._owners.get(sequence)
                    if name:
                        return name
        return ""
