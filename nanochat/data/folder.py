"""A folder of your own text, converted once to shuffled parquet shards that every later run finds by its content.

Held in memory at once: the documents of one shard.
"""

import contextlib
import fcntl
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nanochat.data.documents import DOCUMENT_CHARS, MAX_LINE, PACKED, Bad, by_size, documents
from nanochat.log import Progress, print0
from nanochat.paths import base_dir, publish_folder, read_sha256, write_json

SHARD_BYTES = 128 << 20  # of text, about; how many shards follows from the size of the files
MAX_SHARDS = 256  # all are open while documents are dealt out
DEALT_CHARS = 1 << 24  # at once
ROW_GROUP = 1024  # documents
LEAST_ROW_GROUPS = 64  # where documents are few, row groups are smaller: each lane of the loader wants its own
VALIDATION_BELOW = 2**64 // 100  # documents with a smaller hash are held out, one in a hundred


def convert(name: str, root: Path, files: list[Path], skip_bad: bool = False, seed: int = 0) -> Path:
    """The folder with train-*.parquet and val.parquet made of `files` below `root`, now or earlier.

    Documents are dealt out to the shards and shuffled by `seed`; blank ones are left out. Those whose hash is small are
    for validation: it depends on the text alone, so no document moves into training when files are added.
    """
    content = _content(root, files, seed)
    home = base_dir() / "corpora" / f"{re.sub('[^A-Za-z0-9_.-]', '_', name)}-{content[:16]}"
    with _locked(home):
        if not (home / "manifest.json").exists():
            part = home.with_name(f"{home.name}.tmp")
            shutil.rmtree(part, ignore_errors=True)  # of a process that died: the lock is ours
            part.mkdir()
            try:
                made = _write_shards(name, files, part, Bad(skip_bad), seed)
                write_json(part / "manifest.json", {"name": name, "seed": seed, "content": content, **made})
                publish_folder(part, home)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    made = json.loads((home / "manifest.json").read_text(encoding="utf-8"))
    what = f"{made['train']:,} documents to train on, {made['val']:,} to validate, {made['blank']:,} blank left out"
    if made["bad"]:
        Bad(skip_bad)(made["first_bad"][0])
        what += f", {made['bad']:,} bad left out (the first: {made['first_bad'][0]})"
    print0(f"data: {name}: {what}")
    return home


def _content(root: Path, files: list[Path], seed: int) -> str:
    """A hash of all that decides what is made: names and content of the files, the seed, the constants."""
    constants = (DOCUMENT_CHARS, MAX_LINE, SHARD_BYTES, MAX_SHARDS, ROW_GROUP, LEAST_ROW_GROUPS, VALIDATION_BELOW)
    progress, done, total = Progress("data: hash", "bytes"), 0, sum(file.stat().st_size for file in files)
    lines = [repr((seed, constants))]
    for file in files:
        lines.append(f"{read_sha256(file)} {file.relative_to(root).as_posix()}")
        done += file.stat().st_size
        progress.update(done, total)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One process at a time; a lock goes with the process that holds it."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{home}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print0(f"data: waiting for another process that makes {home.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_shards(name: str, files: list[Path], out: Path, bad: Bad, seed: int) -> dict:
    """Write train-*.parquet and val.parquet; the counts that the manifest holds."""
    # Packed text is a few times longer than its file; a wrong guess makes shards of another size, nothing else.
    size = sum(file.stat().st_size * (4 if file.suffix in (*PACKED, ".parquet") else 1) for file in files)
    dealt = [out / f"dealt-{i}" for i in range(min(MAX_SHARDS, size // SHARD_BYTES + 1))]
    generator = np.random.RandomState(seed)  # its stream is frozen over all versions of numpy
    smallest, count, blank = _deal(_all_documents(name, files, bad), dealt, generator)
    # Of few documents none may have a small hash: then the one with the smallest is held out.
    cutoff = pa.scalar(max(VALIDATION_BELOW, smallest), pa.uint64())
    row_group = max(1, min(ROW_GROUP, count // LEAST_ROW_GROUPS))
    how = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True}
    rows = {"train": 0, "val": 0}
    with pq.ParquetWriter(out / "val.parquet", pa.schema([("text", pa.large_string())]), **how) as validation:
        for i, path in enumerate(dealt):
            table = pa.ipc.open_file(str(path)).read_all()
            path.unlink()
            table = table.take(generator.permutation(len(table)))
            held_out = pc.less_equal(table["key"], cutoff)
            train, val = (table.filter(mask).select(["text"]) for mask in (pc.invert(held_out), held_out))
            if len(val):
                validation.write_table(val, row_group)
            if len(train):
                pq.write_table(train, out / f"train-{i:05d}.parquet", row_group, **how)
            rows = {"train": rows["train"] + len(train), "val": rows["val"] + len(val)}
    if not rows["train"]:
        raise ValueError(f"--data: {name} needs two different documents, one to train on and one to validate")
    return {**rows, "blank": blank, "bad": bad.count, "first_bad": bad.first}


def _all_documents(name: str, files: list[Path], bad: Bad) -> Iterator[str]:
    progress, done = Progress(f"data: convert {name}", "documents"), 0
    for number, file in enumerate(files, 1):
        for done, text in enumerate(documents(file, bad), done + 1):  # noqa: B020 - documents are numbered on
            progress.update(done, note=f"file {number:,} of {len(files):,}")
            yield text


def _deal(texts: Iterable[str], paths: list[Path], generator: np.random.RandomState) -> tuple[int, int, int]:
    """Deal documents out to temporary files at random, each with the hash of its text.

    (smallest hash, documents dealt, blank ones left out)
    """
    schema = pa.schema([("text", pa.large_string()), ("key", pa.uint64())])
    smallest, count, blank = 2**64 - 1, 0, 0
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(pa.ipc.new_file(str(path), schema)) for path in paths]
        for batch in by_size(texts, DEALT_CHARS):
            full = [text for text in batch if text.strip()]
            hashes = [hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest() for text in full]
            keys = [int.from_bytes(digest, "little") for digest in hashes]
            smallest, count, blank = min([smallest, *keys]), count + len(full), blank + len(batch) - len(full)
            table = pa.table({"text": full, "key": keys}, schema)
            places = generator.randint(len(paths), size=len(full))
            for place, writer in enumerate(writers):
                writer.write(table.filter(pa.array(places == place)))
    return smallest, count, blank
