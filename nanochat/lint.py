"""What is wrong with a text, before a run finds out: blank and over-long documents, bad rows, each with its place."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanochat.documents import Bad, by_size, documents
from nanochat.log import Progress

OVER_LONG = 1_000_000  # characters, a book: more is often a file that was to be cut into documents
BATCH_CHARS = 1_000_000  # that are counted in tokens together
CHARS_PER_TOKEN = 4.2  # of English text, where no tokenizer has been trained
SHOWN = 20


@dataclass
class Findings:
    """What is in a text. shown: the first problems, with file and line, row or document."""

    documents: int = 0
    characters: int = 0
    tokens: float = 0.0
    blank: int = 0
    over_long: int = 0
    bad: int = 0
    shown: list[str] = field(default_factory=list)

    @property
    def problems(self) -> int:
        return self.blank + self.over_long + self.bad


def estimate_tokens(texts: list[str]) -> float:
    return sum(map(len, texts)) / CHARS_PER_TOKEN


def lint(
    name: str, files: Sequence[Path], column: str, count_tokens: Callable[[list[str]], float] = estimate_tokens
) -> Findings:
    """Read every document of some files."""
    found, bad, progress = Findings(), Bad(skip=True), Progress(f"check {name}", "documents")

    def counted() -> Iterator[str]:
        for file in files:
            for number, text in enumerate(documents(file, bad, column), 1):
                blank, over_long = not text.strip(), len(text) > OVER_LONG
                found.documents += 1
                found.characters += len(text)
                found.blank += blank
                found.over_long += over_long
                if (blank or over_long) and len(found.shown) < SHOWN:
                    what = "is blank" if blank else f"has {len(text):,} characters"
                    found.shown.append(f"{file}: document {number:,} {what}")
                progress.update(found.documents)
                yield text

    found.tokens = sum(map(count_tokens, by_size(counted(), BATCH_CHARS)))
    found.bad, found.shown = bad.count, bad.first + found.shown
    return found
