"""Questions of benchmarks inside rows of training text.

Text is compared in a normal form: lower case, compatible characters unified, punctuation as spaces. 13 words of a
question in sequence give it away; a shorter one, of 3 words or more, has to be in the row as a whole. Korean and other
text without reliable spaces is compared without any: 30 characters, or a whole question of 8 or more. Sequences that
more than SHARED questions of a benchmark have do not count. A question with nothing of its own ("Which is true?") is
searched for together with its choices.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

SHARED = 3  # questions
GAPS = re.compile(r"[\W_]+")
SPACELESS = re.compile(
    "[\u0e00-\u0e7f\u1100-\u11ff\u3040-\u318f\u3400-\u9fff\uac00-\ud7a3]"
)  # a letter of such a script
# Text between two units, units of a sequence, and units of the shortest question.
WORDS, CHARACTERS = (" ", 13, 3), ("", 30, 8)


def normal(text: str) -> str:
    """Return a text without differences in case, spacing and punctuation."""
    return GAPS.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()


def sequences(text: str, gap: str, size: int) -> Iterator[str]:
    """Yield all sequences of `size` units in a text in the normal form."""
    units = text.split() if gap else text.replace(" ", "")
    for start in range(len(units) - size + 1):
        yield gap.join(units[start : start + size])


def traces(question: str) -> dict[str, str]:
    """Return the sequences that give a question away -> the text that has to be there with the sequence."""
    text = normal(question)
    gap, size, least = WORDS
    if SPACELESS.search(text):
        gap, size, least = CHARACTERS
    found = {}
    for sequence in sequences(text, gap, size):
        found[sequence] = sequence
    if not found:
        # The beginning of a short question leads to all of it.
        for beginning in islice(sequences(text, gap, least), 1):
            found[beginning] = gap.join(text.split())
    return found


class Benchmarks:
    """The questions of benchmarks, ready to be found.

    questions: name of a benchmark -> for each item its forms: the question alone, then with its choices.
    """

    def __init__(self, questions: Mapping[str, Sequence[Sequence[str]]]):
        self.sizes: dict[str, str] = {}  # for the card
        self._sequences: dict[str, str] = {}  # sequence -> benchmark
        self._short: dict[str, dict[str, str]] = {}  # beginning -> question -> benchmark
        for name, items in questions.items():
            left = self._add(name, items, 0)
            left = self._add(name, left, -1)
            self.sizes[f"Against {name}"] = f"{len(items):,} questions, {len(left):,} too general to be found"

    def _add(self, name: str, items: Sequence[Sequence[str]], form: int) -> list[Sequence[str]]:
        """Add a form of each item; return the items without a sequence of their own in it."""
        found = [traces(item[form]) for item in items]
        owners = Counter()
        for one in found:
            owners.update(one.values())
        left = []
        for item, one in zip(items, found, strict=True):
            own = {key: text for key, text in one.items() if owners[text] <= SHARED}
            for key, text in own.items():
                if key == text:
                    self._sequences.setdefault(key, name)
                else:
                    self._short.setdefault(key, {}).setdefault(text, name)
            if not own:
                left.append(item)
        return left

    def find(self, text: str) -> str:
        """Return a benchmark with a question in the text, or an empty name."""
        text = normal(text)
        ways = [WORDS]
        if SPACELESS.search(text):
            ways.append(CHARACTERS)
        for gap, size, least in ways:
            whole = text.replace(" ", "")
            if gap:
                whole = f" {text} "  # questions begin and end with a word
            for units in (size, least):  # a question may be as short as a beginning
                for sequence in sequences(text, gap, units):
                    if sequence in self._sequences:
                        return self._sequences[sequence]
                    for question, name in self._short.get(sequence, {}).items():
                        if gap + question + gap in whole:
                            return name
        return ""
