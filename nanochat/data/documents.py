"""Documents in text files: read, checked, and converted to shuffled parquet shards.

A file is .parquet or .jsonl with the text in the column or key `text`, or .txt or .md, cut at line ends into documents.
Damage is an error with file and line.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, AnyStr, NoReturn

from filelock import FileLock

from nanochat.errors import UserError
from nanochat.log import Progress, print0
from nanochat.paths import base_dir, new_folder, read_jsonl, read_lines, read_sha256, text_sha256

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

TEXT = "text"  # column in parquet, key in JSON
DOCUMENT_CHARS = 8192  # at least, for a document cut from a text file
READ_ROWS = 1024  # of a parquet file, read together


# ---- files ----


def text_files(folder: Path, kinds: Sequence[str] = (".parquet", ".jsonl", ".txt", ".md")) -> list[Path]:
    """Return the files with these suffixes below a folder, in the same order on every machine.

    Links are followed, and each folder is read once. Hidden folders below are left out, and the base folder, where this
    program writes. A folder that cannot be read is an OSError; one that does not exist has no files.
    """
    files: list[Path] = []
    seen = {base_dir().resolve()}
    waiting = [folder] if folder.is_dir() else []
    while waiting:  # links wait, so that a folder is read under its own name if it has one here
        for place, names, found in os.walk(waiting.pop(0), onerror=_raise):
            here = Path(place)
            real = here.resolve()
            if real in seen:
                names.clear()
                continue
            seen.add(real)
            names[:] = sorted(name for name in names if not name.startswith("."))  # those that os.walk enters
            waiting += [here / name for name in names if (here / name).is_symlink()]
            paths = (here / name for name in found)
            files += [file for file in paths if file.suffix.lower() in kinds and file.is_file()]
    return sorted(files, key=lambda file: file.relative_to(folder).as_posix())


def _raise(error: OSError) -> NoReturn:
    raise error


def documents(file: Path) -> Iterator[str]:
    """Return the documents in one file in order; damage is a UserError that names the place."""
    return READERS[file.suffix.lower()](file)


def by_size(texts: Iterable[AnyStr], least: int) -> Iterator[list[AnyStr]]:
    """Yield lists of consecutive texts, at least `least` characters each; the last list may have fewer."""
    batch: list[AnyStr] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= least:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def _read_text(file: Path) -> Iterator[str]:
    # Some editors put a byte order mark at the start.
    return map("".join, by_size(read_lines(file, lambda line: line.decode("utf-8-sig")), DOCUMENT_CHARS))


def _text_of(record: Any) -> str:
    try:
        record[TEXT].encode()  # fails for anything but a string
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UserError(f'not a JSON object like {{"{TEXT}": "…"}}') from None
    return record[TEXT]


def _read_parquet(file: Path) -> Iterator[str]:
    with open_parquet(file) as parquet:
        # A row group may hold more text than fits into memory, or into one array of strings.
        batches = parquet.iter_batches(READ_ROWS, columns=[TEXT])
        for row, value in enumerate((value for batch in batches for value in batch.column(0)), 1):
            try:
                text = value.as_py()
            except UnicodeDecodeError as error:
                raise UserError(f"{file}: row {row}: {error}") from None
            yield text or ""  # a null is a blank document


READERS: dict[str, Callable[[Path], Iterator[str]]] = {
    ".parquet": _read_parquet,
    ".jsonl": lambda file: read_jsonl(file, _text_of),
    ".txt": _read_text,
    ".md": _read_text,
}


@contextlib.contextmanager
def open_parquet(file: Path) -> "Iterator[pq.ParquetFile]":
    """Open a parquet file with a text column; UserError if it is anything else, or if reading it fails."""
    import pyarrow as pa  # slow
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            columns = {column.name: column.type for column in parquet.schema_arrow}
            # The loader hands Arrow buffers to Rust, which reads these two types.
            if columns.get(TEXT) not in (pa.string(), pa.large_string()):
                raise UserError(f"{file} needs a column `{TEXT}` with strings, it has {', '.join(columns)}")
            yield parquet
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} is not a complete parquet file ({error})") from error


def read_row_group(parquet: "pq.ParquetFile", group: int) -> "pa.Array":
    """Return the text column for one row group, maybe with nulls."""
    import pyarrow as pa

    column = parquet.read_row_group(group, columns=[TEXT]).column(0)
    if column.num_chunks == 1:
        return column.chunk(0)
    # More than the 2 GB that an array of type string can hold.
    return pa.concat_arrays(column.cast(pa.large_string()).chunks)


# ---- convert ----

SHARD_BYTES = 128 << 20  # text in a shard, about
MAX_SHARDS = 256  # all are open while documents are dealt out
DEALT_CHARS = 1 << 24  # dealt out together
ROW_GROUP = 1024  # documents
MIN_ROW_GROUPS = 64  # few documents make smaller row groups, because each lane needs some
VALIDATION_BELOW = 2**64 // 100  # documents with a smaller hash are held out, one in a hundred
SEED = 0


def convert_folder(name: str, root: Path, files: Sequence[Path]) -> Path:
    """Convert files below `root` to shuffled shards, once; return the folder with train-*.parquet and val.parquet.

    Later calls find the folder by the content of the files. Blank documents are left out. Documents with a small hash
    are for validation: the hash depends on the text alone, so no document moves into training when files are added.
    Memory holds one shard.
    """
    # Everything that decides the shards; the path of the folder is left out, so that a moved folder is found again. The
    # last entry was a setting of earlier versions: the folders that they made are still found.
    constants = (DOCUMENT_CHARS, SHARD_BYTES, MAX_SHARDS, ROW_GROUP, MIN_ROW_GROUPS, VALIDATION_BELOW, SEED, False)
    lines = [f"{read_sha256(file)} {file.relative_to(root).as_posix()}" for file in files]
    content = text_sha256("\n".join([repr(constants), *lines]))
    # The name is for people, the hash identifies the content.
    home = base_dir() / "corpora" / f"{re.sub('[^A-Za-z0-9_.-]', '_', name)}-{content[:16]}"
    with FileLock(home.with_name(f"{home.name}.lock")):
        if not home.is_dir():
            with new_folder(home) as part:
                _write_shards(name, files, part)
    return home


def _write_shards(name: str, files: Sequence[Path], out: Path) -> None:
    """Write train-*.parquet and val.parquet, and print the counts."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    # Text in parquet is a few times longer than the file. A wrong guess only changes the shard size.
    size = sum(file.stat().st_size * (4 if file.suffix.lower() == ".parquet" else 1) for file in files)
    dealt = [out / f"dealt-{number}" for number in range(min(MAX_SHARDS, size // SHARD_BYTES + 1))]
    random = np.random.RandomState(SEED)  # the old generator, because numpy promises never to change the stream
    smallest, count, blank = _deal_out(files, dealt, random)
    # Among few documents maybe none has a small hash: then hold out the smallest one.
    cutoff = pa.scalar(max(VALIDATION_BELOW, smallest), pa.uint64())
    # Lanes share row groups, so each lane should find some for itself.
    row_group = max(1, min(ROW_GROUP, count // MIN_ROW_GROUPS))
    # Text seldom repeats, so a dictionary would only cost time. Checksums find damage on disk.
    options = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True}
    held_out = 0
    schema = pa.schema([(TEXT, pa.large_string())])
    with pq.ParquetWriter(out / "val.parquet", schema, **options) as validation:
        for number, path in enumerate(dealt):
            table = pa.ipc.open_file(str(path)).read_all()
            path.unlink()
            # Dealing chose the shard at random, this chooses the place within the shard.
            table = table.take(random.permutation(len(table)))
            is_held_out = pc.call_function("less_equal", [table["key"], cutoff])
            train = table.filter(pc.call_function("invert", [is_held_out])).select([TEXT])
            val = table.filter(is_held_out).select([TEXT])
            if len(val):
                validation.write_table(val, row_group)
            if len(train):
                pq.write_table(train, out / f"train-{number:05d}.parquet", row_group, **options)
            held_out += len(val)
    # Equal documents have equal hashes, and all go into validation.
    if held_out == count:
        raise UserError(f"--data: {name} needs two different documents, one for training and one for validation")
    left_out = f", {blank:,} blank ones left out" if blank else ""
    print0(f"data: {name}: {count - held_out:,} documents for training, {held_out:,} for validation{left_out}")


def _deal_out(files: Sequence[Path], paths: list[Path], random: "np.random.RandomState") -> tuple[int, int, int]:
    """Deal documents out at random to temporary files, each with a text hash as key, without blank ones.

    Returns (smallest key, number of documents, number of blank ones).
    """
    import pyarrow as pa

    schema = pa.schema([(TEXT, pa.large_string()), ("key", pa.uint64())])
    smallest = 2**64 - 1
    count = blank = 0
    progress = Progress()
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(pa.ipc.new_file(str(path), schema)) for path in paths]
        for batch in by_size((text for file in files for text in documents(file)), DEALT_CHARS):
            # Blank documents teach nothing.
            full = [text for text in batch if text.strip()]
            keys = [int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") for text in full]
            smallest = min([smallest, *keys])
            count += len(full)
            blank += len(batch) - len(full)
            progress.update(f"data: converted {count:,} documents", 0)  # of an unknown number
            table = pa.table({TEXT: full, "key": keys}, schema)
            # The file for each document.
            places = random.randint(len(paths), size=len(full))
            for place, writer in enumerate(writers):
                writer.write(table.filter(pa.array(places == place)))
    return smallest, count, blank
