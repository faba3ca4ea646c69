"""Questions of benchmarks inside rows of training text.

Text is compared in a normal form: lower case, compatible characters unified, punctuation as spaces, without letters and
digits that mark choices. 13 words of a question in sequence give it away; a shorter one, of 3 words or more, has to be
in the row as a whole. Korean and other text without reliable spaces is compared without any: 30 characters, or a whole
question of 8 or more. Sequences that more than SHARED questions of a benchmark have do not count. A question with
nothing of its own ("Which is true?") is searched for together with its choices.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

SHARED = 3  # questions
GAPS = re.compile(r"[\W_]+")
# "A. tea", "(3) tea", "B)tea", "① tea", "2. tea" at the start of a line, and "tea=A" as in our prompts.
MARKS = re.compile(
    r"\s(?:\(?(?:10|[A-Ja-j1-9])\)|[A-Ja-j][.:](?=\s))|\n[ \t]*(?:10|[1-9])[.:](?=\s)|=\s*[A-Ja-j]\b|[①-⑩]"
)
SPACELESS = re.compile(
    "[\u0e00-\u0e7f\u1100-\u11ff\u3040-\u318f\u3400-\u9fff\uac00-\ud7a3]"
)  # a letter of such a script
# Text between two units, units of a sequence, and units of the shortest question.
WORDS, CHARACTERS = (" ", 13, 3), ("", 30, 8)


def normal(text: str) -> str:
    """Return a text without differences in case, spacing and punctuation, and without marks of choices."""
    return GAPS.sub(" ", unicodedata.normalize("NFKC", MARKS.sub(" ", f"\n{text}")).casefold()).strip()


def sequences(text: str, gap: str, size: int) -> Iterator[str]:
    """Yield all sequences of `size` units in a text in the normal form."""
    units = text.split() if gap else text.replace(" ", "")
    for start in range(len(units) - size + 1):
        yield gap.join(units[start : start + size])


def traces(question: str) -> dict[str, str]:
    """Return the sequences that give a question away -> the text that has to be there with the sequence."""
    text = normal(question)
    gap, size, least = CHARACTERS if SPACELESS.search(text) else WORDS
    found = {sequence: sequence for sequence in sequences(text, gap, size)}
    if not found:
        # The beginning of a short question leads to all of it.
        for beginning in islice(sequences(text, gap, least), 1):
            found[beginning] = gap.join(text.split())
    return found


def all_traces(items: Sequence[Sequence[str]], form: int) -> Iterator[str]:
    """Yield the texts of all traces of a form of some items."""
    for item in items:
        yield from traces(item[form]).values()


class Benchmarks:
    """The questions of benchmarks, ready to be found.

    questions: name of a benchmark -> for each item its forms: the question alone, then with its choices.
    """

    def __init__(self, questions: Mapping[str, Sequence[Sequence[str]]]):
        self.sizes: dict[str, str] = {}  # for the card
        self._sequences: dict[str, str] = {}  # sequence -> benchmark
        self._short: dict[str, dict[str, str]] = {}  # beginning -> question -> benchmark
        for name, items in questions.items():
            left = items
            for form in (0, -1):
                wanted = {*all_traces(left, form)}
                # Counted over all items: a sequence of many questions is no trace of the few that are left.
                owners = Counter(text for text in all_traces(items, form) if text in wanted)
                left = [item for item in left if not self._add(name, traces(item[form]), owners)]
            self.sizes[f"Against {name}"] = f"{len(items):,} questions, {len(left):,} too general to be found"

    def _add(self, name: str, found: Mapping[str, str], owners: Mapping[str, int]) -> bool:
        """Add the traces of a question that few questions have; return False if there are none."""
        own = [(key, text) for key, text in found.items() if owners[text] <= SHARED]
        for key, text in own:
            if key == text:
                self._sequences.setdefault(key, name)
            else:
                self._short.setdefault(key, {}).setdefault(text, name)
        return bool(own)

    def find(self, text: str) -> str:
        """Return a benchmark with a question in the text, or an empty name."""
        text = normal(text)
        ways = (WORDS, CHARACTERS) if SPACELESS.search(text) else (WORDS,)
        for gap, size, least in ways:
            # In text with spaces, questions begin and end with a word.
            whole = f" {text} " if gap else text.replace(" ", "")
            for units in (size, least):  # a question may be as short as a beginning
                for sequence in sequences(text, gap, units):
                    if sequence in self._sequences:
                        return self._sequences[sequence]
                    for question, name in self._short.get(sequence, {}).items():
                        if gap + question + gap in whole:
                            return name
        return ""
