"""What is wrong with a text, before a run finds out: blank and over-long documents, bad rows, each with its place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanochat.documents import Bad, documents
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
    findings, bad, progress = Findings(), Bad(skip=True), Progress(f"check {name}", "documents")
    batch: list[str] = []
    batch_chars = 0
    for file in files:
        for number, text in enumerate(documents(file, bad, column), 1):
            findings.documents += 1
            findings.characters += len(text)
            findings.blank += (blank := not text.strip())
            findings.over_long += (over_long := len(text) > OVER_LONG)
            if (blank or over_long) and len(findings.shown) < SHOWN:
                what = "is blank" if blank else f"has {len(text):,} characters"
                findings.shown.append(f"{file}: document {number:,} {what}")
            batch.append(text)
            batch_chars += len(text)
            if batch_chars >= BATCH_CHARS:
                findings.tokens += count_tokens(batch)
                batch, batch_chars = [], 0
            progress.update(findings.documents)
    findings.tokens += count_tokens(batch)
    findings.bad = bad.count
    findings.shown = bad.first + findings.shown
    return findings
