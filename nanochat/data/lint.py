"""What is wrong with a text, before a run finds out: blank and over-long documents, bad rows, each with its place."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from nanochat.data.documents import Bad, by_size, documents
from nanochat.log import Progress
from nanochat.tokenizer import Tokenizer

OVER_LONG = 1_000_000  # characters, a book: more is often a file that was to be cut into documents
BATCH_CHARS = 1_000_000  # that are counted in tokens together
CHARS_PER_TOKEN = 4.2  # of English text, where no tokenizer has been trained
SHOWN = 20
PROBLEMS = ("Blank", "Over-long", "Bad")


def lint(
    name: str, files: Sequence[Path], column: str, tokenizer: Tokenizer | None = None
) -> tuple[dict[str, int], list[str]]:
    """Counts of what is in some files, and the first problems; without a tokenizer, tokens are estimated."""
    bad, progress, shown = Bad(skip=True), Progress(f"check {name}", "documents"), []
    counts = dict.fromkeys(("Documents", "Characters", "Tokens", *PROBLEMS), 0)

    def counted() -> Iterator[str]:
        for file in files:
            for number, text in enumerate(documents(file, bad, column), 1):
                blank, over_long = not text.strip(), len(text) > OVER_LONG
                counts["Documents"] += 1
                counts["Characters"] += len(text)
                counts["Blank"] += blank
                counts["Over-long"] += over_long
                if (blank or over_long) and len(shown) < SHOWN:
                    what = "is blank" if blank else f"has {len(text):,} characters"
                    shown.append(f"{file}: document {number:,} {what}")
                progress.update(counts["Documents"])
                yield text

    for texts in by_size(counted(), BATCH_CHARS):
        if tokenizer:
            counts["Tokens"] += len(tokenizer.encode_arrow(pa.array(texts, pa.large_string()))[0])
    if not tokenizer:
        counts["Tokens"] = round(counts["Characters"] / CHARS_PER_TOKEN)
    counts["Bad"] = bad.count
    return counts, bad.first + shown
