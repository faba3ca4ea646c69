"""Text to train on: a folder of your own or a named corpus, as Arrow string arrays, some of it kept for validation.

Not here yet: hub corpora, mixtures, JSON lines, compressed files.
"""

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nanochat.log import print0

DOCUMENT_CHARS = 8192  # a text file is cut at line ends into documents of about this size
BATCH_DOCUMENTS = 1024
VALIDATION_EVERY = 100  # without a shard of its own, validation takes every 100th document


@dataclass(frozen=True)
class Corpus:
    """Files of one kind, parquet shards or text, under a name that may be shown to anyone.

    size: bytes of text, which is at least the number of characters. strict: a text file that is no UTF-8 is an error;
    otherwise it is left out and counted.
    """

    name: str
    files: tuple[Path, ...]
    size: int
    strict: bool = True

    def batches(self, split: str) -> Iterator[pa.Array]:
        """Arrow string arrays of the documents of "train" or "val", in the order of the files."""
        assert split in ("train", "val"), split
        shards = self.files[0].suffix == ".parquet"
        if shards and len(self.files) > 1:
            batches = _parquet_batches(self.files[-1:] if split == "val" else self.files[:-1])
        else:
            batches = _every_nth(_parquet_batches(self.files) if shards else self._text_batches(), split == "val")
        empty = True
        for batch in batches:
            yield batch
            empty = False
        if empty:
            raise ValueError(f"--data: {self.name} has no document for {split}, give it at least two")

    def describe(self) -> dict:
        """What a record says of the data: no path of this machine; a hash of the names and sizes of the files."""
        listing = "\n".join(f"{file.name} {file.stat().st_size}" for file in self.files)
        fingerprint = hashlib.sha256(listing.encode()).hexdigest()
        return {"name": self.name, "files": len(self.files), "bytes": self.size, "fingerprint": fingerprint}

    def _text_batches(self) -> Iterator[pa.Array]:
        waiting: list[str] = []
        left_out = 0
        for file in self.files:
            try:
                waiting += _documents(file.read_bytes().decode("utf-8"))
            except UnicodeDecodeError as error:
                if self.strict:
                    raise ValueError(f"{file} is not UTF-8 (byte {error.start}), convert it or move it away") from None
                left_out += 1
            while len(waiting) >= BATCH_DOCUMENTS:
                yield pa.array(waiting[:BATCH_DOCUMENTS], pa.string())
                waiting = waiting[BATCH_DOCUMENTS:]
        if waiting:
            yield pa.array(waiting, pa.string())
        if left_out:
            print0(f"data: left {left_out} files of {self.name} out, they are not UTF-8")


def open_corpus(data: str) -> Corpus:
    """The corpus that `--data` names: a row of CORPORA, a folder, or `auto`, the first row that this machine has.

    Every parquet file's footer is read here, so that a damaged one ends a run before it begins.
    """
    if data == "auto":
        found = [name for name, (find, _) in CORPORA.items() if find()]
        if not found:
            raise ValueError("--data=auto found no text on this machine, name a folder of .parquet, .txt or .md files")
        missed = [f"{name}: {need}" for name, (_, need) in CORPORA.items() if name not in found]
        print0(f"data: {found[0]} is the first corpus here" + (f" ({'; '.join(missed)})" if missed else ""))
        return open_corpus(found[0])
    if data in CORPORA:
        find, need = CORPORA[data]
        name, files = data, find()
        if not files:
            raise ValueError(f"--data={data} is not on this machine: {need}")
    else:
        name, files = Path(data).expanduser().resolve().name, _files_of_folder(data)
    sizes = [_text_bytes(file) if file.suffix == ".parquet" else file.stat().st_size for file in files]
    return Corpus(name, tuple(files), sum(sizes), strict=data != "python")


def _files_of_folder(data: str) -> list[Path]:
    folder = Path(data).expanduser()
    if not folder.is_dir():
        what = "is a file, name its folder" if folder.is_file() else "is no folder"
        raise ValueError(f"--data={data} {what}; the corpora with a name are auto, {', '.join(CORPORA)}")
    shards, texts = _files_below(folder, ".parquet"), _files_below(folder, ".txt", ".md")
    if not shards and not texts:
        raise ValueError(f"--data={data} holds no .parquet, .txt or .md file")
    if shards and texts:
        print0(f"data: {folder.name} has parquet files, its {len(texts)} .txt and .md files are not read")
    return shards or texts


def _files_below(folder: Path, *suffixes: str) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix in suffixes and file.is_file())


def _mixed_text() -> list[Path]:
    hub = os.environ.get("NANOCHAT_HUB")
    return _files_below(Path(hub).expanduser() / "datasets/local/mixed-text", ".parquet") if hub else []


def _python_sources() -> list[Path]:
    """The Python files of the running installation: real text that every machine has."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    # site-packages may lie below the standard library: a set, so that its files count once.
    return sorted({file for folder in folders for file in _files_below(Path(folder), ".py")})


# Name -> (its files on this machine, what it takes to have them).
CORPORA: dict[str, tuple[Callable[[], list[Path]], str]] = {
    "mixed-text": (_mixed_text, "set NANOCHAT_HUB to a mirror that has datasets/local/mixed-text"),
    "python": (_python_sources, "it needs the source files of the Python installation"),
}


def _documents(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n", start + DOCUMENT_CHARS - 1) + 1 or len(text)
        yield text[start:end]
        start = end


def _every_nth(batches: Iterator[pa.Array], held_out: bool) -> Iterator[pa.Array]:
    """Every VALIDATION_EVERY-th document from the first on, or all the others."""
    seen = 0
    for batch in batches:
        chosen = [i for i in range(len(batch)) if ((seen + i) % VALIDATION_EVERY == 0) == held_out]
        seen += len(batch)
        if chosen:
            yield batch.take(chosen)


def _text_bytes(file: Path) -> int:
    """Bytes of the text column, uncompressed; ValueError where the file or the column is not what it should be."""
    try:
        footer = pq.read_metadata(file)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file} is no whole parquet file ({error}), fetch or write it again") from error
    schema = footer.schema.to_arrow_schema()
    if "text" not in schema.names:
        raise ValueError(f"{file} has no column `text`, only {', '.join(schema.names)}: rename the one with the text")
    kind = schema.field("text").type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ValueError(f"{file} has a column `text` of type {kind}, it has to be string")
    columns = [footer.row_group(g).column(c) for g in range(footer.num_row_groups) for c in range(footer.num_columns)]
    return sum(column.total_uncompressed_size for column in columns if column.path_in_schema == "text")


def _parquet_batches(files: tuple[Path, ...]) -> Iterator[pa.Array]:
    for file in files:
        try:
            with pq.ParquetFile(file) as shard:
                for batch in shard.iter_batches(BATCH_DOCUMENTS, columns=["text"]):
                    texts = batch.column(0)
                    if texts.null_count:
                        raise ValueError(f"{file} has {texts.null_count} nulls among its texts, write it without them")
                    yield texts
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{file} is damaged ({error}), fetch or write it again") from error


def read_row_group(shard: Any, group: int, column: str) -> pa.Array:
    """Stand-in for the one of the hub branch, which replaces this file."""
    try:
        with pq.ParquetFile(shard.path) as file:
            texts = file.read_row_group(group, columns=[column]).column(0).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{shard.path} is damaged in row group {group} ({error})") from error
    if texts.null_count:
        raise ValueError(f"{shard.path} has {texts.null_count} nulls in row group {group}")
    return texts
