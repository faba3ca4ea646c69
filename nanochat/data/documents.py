"""The documents in a file: .parquet and .jsonl with a column or key of text, .txt and .md cut at line ends.

Each may be compressed, .gz or .zst. Files are read piece by piece, in bounded memory, and what is wrong with them is
told with its line or row.
"""

import codecs
import contextlib
import io
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nanochat.log import say

DOCUMENT_CHARS = 8192  # a text file is cut at line ends into documents of at least this size
MAX_LINE = 64 << 20  # bytes; a longer line is an error, or memory would have no bound
KINDS = (".parquet", ".jsonl", ".txt", ".md")
PACKED = (".gz", ".zst")


class Damaged(ValueError):
    """What cannot be read as text, and why."""


@dataclass
class Bad:
    """What is wrong with a text, file by file and row by row: an error, or where it may be skipped a count.

    tell: a line about each that is skipped, once (in the next epoch it is no news), from the rank that has met it.
    """

    skip: bool
    tell: bool = False
    count: int = 0
    first: list[str] = field(default_factory=list)
    told: set[str] = field(default_factory=set)

    def __call__(self, what: str) -> None:
        if not self.skip:
            raise ValueError(f"{what}; mend it, or go on without it by --skip-bad")
        if self.tell:
            if what in self.told:
                return
            self.told.add(what)
            say(f"data: left out: {what}")
        self.count += 1
        if len(self.first) < 20:
            self.first.append(what)

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """What follows, up to what cannot be read."""
        try:
            yield
        except Damaged as fault:
            self(str(fault))


def text_files(folder: Path, kinds: tuple[str, ...] = KINDS) -> list[Path]:
    """The files of some kinds below a folder, in an order that does not depend on the machine."""
    found = [file for file in folder.rglob("*") if _suffix(file) in kinds and file.is_file()]
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix())


def documents(file: Path, bad: Bad, column: str = "text") -> Iterator[str]:
    """The documents of one file; what cannot be read is told to `bad` with its line or row, and left out."""
    return READERS[_suffix(file)](file, bad, column)


def by_size(texts: Iterable[str], chars: int) -> Iterator[list[str]]:
    """Texts that follow each other, as many together as have `chars` characters."""
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= chars:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@contextlib.contextmanager
def open_parquet(file: Path, column: str) -> Iterator[pq.ParquetFile]:
    """A parquet file with a column of text, unpacked where it is packed: its table of contents is at its end."""
    with contextlib.ExitStack() as stack:
        source: Any = file
        try:
            if file.suffix.lower() in PACKED:
                source = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(stack.enter_context(_open(file)), source)
            shard = stack.enter_context(pq.ParquetFile(source, page_checksum_verification=True))
        except (pa.ArrowException, OSError) as error:
            raise Damaged(f"{file} is no whole parquet file ({error}), fetch or write it again") from error
        kinds = dict(zip(shard.schema_arrow.names, shard.schema_arrow.types, strict=True))
        if column not in kinds:
            raise Damaged(f"{file} has no column `{column}`, only {', '.join(kinds)}: rename the one with the text")
        if kinds[column] not in (pa.string(), pa.large_string()):
            raise Damaged(f"{file} has a column `{column}` of type {kinds[column]}, it has to be string")
        yield shard


def _suffix(file: Path) -> str:
    name = file.name.lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    return Path(name).suffix


def _open(file: Path) -> io.BufferedReader:
    return io.BufferedReader(pa.input_stream(str(file), compression="detect"), 1 << 20)


def _lines(file: Path, bad: Bad) -> Iterator[tuple[int, str]]:
    """(number, line with its end); a damaged file yields those before the damage."""
    number = 0
    try:
        with _open(file) as stream:
            while line := stream.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    bad(f"{file}:{number}: a line of more than {MAX_LINE >> 20} MB")
                    while line and not line.endswith(b"\n"):
                        line = stream.readline(MAX_LINE)
                    continue
                try:
                    text = line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").decode("utf-8")
                except UnicodeDecodeError as error:
                    bad(f"{file}:{number}: not UTF-8 (byte {error.start + 1} of the line)")
                    continue
                yield number, text
    except (pa.ArrowException, OSError) as error:
        bad(f"{file} is damaged after line {number} ({error})")


def _text_documents(file: Path, bad: Bad, column: str) -> Iterator[str]:
    yield from map("".join, by_size((line for _, line in _lines(file, bad)), DOCUMENT_CHARS))


def _jsonl_documents(file: Path, bad: Bad, column: str) -> Iterator[str]:
    for number, line in _lines(file, bad):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            bad(f"{file}:{number}: not JSON ({error})")
            continue
        text = row.get(column) if isinstance(row, dict) else None
        if not isinstance(text, str):
            bad(f'{file}:{number}: not an object with a text, like {{"{column}": "…"}}')
        elif re.search("[\ud800-\udfff]", text):
            bad(f"{file}:{number}: half of a surrogate pair, which is no character")
        else:
            yield text


def _parquet_documents(file: Path, bad: Bad, column: str) -> Iterator[str]:
    with bad.caught(), open_parquet(file, column) as shard:
        row = 0
        for group in range(shard.num_row_groups):
            end = row + shard.metadata.row_group(group).num_rows
            try:
                for batch in shard.iter_batches(1024, [group], [column]):
                    for row, value in enumerate(batch.column(0), row + 1):  # noqa: B020 - rows are numbered on
                        try:
                            text = value.as_py()
                        except UnicodeDecodeError:
                            text = None
                        if text is None:
                            bad(f"{file}: row {row} is null or not UTF-8")
                        else:
                            yield text
            except (pa.ArrowException, OSError) as error:
                bad(f"{file} is damaged between rows {row + 1} and {end} ({error})")
            row = end


READERS: dict[str, Callable[[Path, Bad, str], Iterator[str]]] = {
    ".parquet": _parquet_documents,
    ".jsonl": _jsonl_documents,
    ".txt": _text_documents,
    ".md": _text_documents,
    ".py": _text_documents,
}
