"""Corpora for tests of the loader: shards of text, and text that a stub tokenizer turns into recognizable documents."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nanochat import paths
from nanochat.data.corpus import Corpus, Source, open_shards

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "scripts/samples").glob("*.txt"))]


def write_letters(folder: Path, lines: int, files: int = 40):
    """Write a folder of a little text of several kinds."""
    folder.mkdir(parents=True)
    for number in range(files):
        text = [
            f"Letter {number}: the quick brown fox — 빠른 갈색 여우 — {line**3} {line:x} {'ab' * (line % 9)}\n"
            for line in range(lines)
        ]
        (folder / f"{number:02d}.txt").write_text("".join(text), encoding="utf-8")
    return folder


def write_shard(path: Path, texts: Sequence, kind: pa.DataType | None = None, **options):
    """Write a parquet file with a column of text and one that is not text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": range(len(texts)), "text": pa.array(texts, kind or pa.string())})
    pq.write_table(table, path, **options)
    return path


def write_jsonl(path: Path, texts: Sequence):
    paths.write_jsonl(path, ({"id": 1, "text": text} for text in texts))
    return path


def corpus_of(files: Sequence[Path]):
    """A corpus of shards; if there are several, the last one is for validation."""
    shards = open_shards(list(files))
    return Corpus((Source("letters", 1.0, {"train": shards[:-1] or shards, "val": shards[-1:]}),))


def text_corpus(folder: Path, shards: Sequence[Sequence[str | None]], group: int):
    """A shard for each list of documents, `group` documents in a row group."""
    files = [folder / f"{number:02d}.parquet" for number in range(len(shards))]
    for path, texts in zip(files, shards, strict=True):
        write_shard(path, texts, row_group_size=group, compression="zstd")
    return corpus_of(files)


class CountedTokenizer:
    """Stub tokenizer: the text "7 3" becomes three ids 7."""

    content_hash = "counted"
    bos = 0

    @property
    def core(self):
        return self

    def encode_arrow(self, texts: pa.Array, prepend: int, threads: int):
        documents = []
        for text in texts.to_pylist():
            number, length = map(int, text.split())
            documents.append([prepend] + [number] * length)
        offsets = np.cumsum([0] + [len(document) for document in documents])
        return np.concatenate(documents).astype(np.uint16), offsets


def counted_corpus(folder: Path, *parts: tuple[Sequence[int], int, float]):
    """Sources of (lengths, documents in a row group, share); over all of them document i has the id 1000 + i."""
    sources = []
    first = 1000
    for number, (lengths, group, share) in enumerate(parts):
        texts = [f"{first + i} {length}" for i, length in enumerate(lengths)]
        path = write_shard(folder / f"part{number}.parquet", texts, row_group_size=group)
        sources.append(Source(f"part{number}", share, {"train": open_shards([path]), "val": ()}))
        first += len(lengths)
    return Corpus(tuple(sources))
