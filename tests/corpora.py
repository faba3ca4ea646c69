"""What the loader reads, for its tests: shards of text, and token shards whose ids tell the documents apart."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nanochat.token_shards import token_path, write_token_shard
from nanochat.tokenizer import Tokenizer


@dataclass(frozen=True)
class Shard:
    path: Path
    row_groups: int
    rows: int
    hash: str

    def check(self) -> None: ...


@dataclass(frozen=True)
class Source:
    name: str
    train: tuple[Shard, ...]
    val: tuple[Shard, ...]
    column: str = "text"


@dataclass(frozen=True)
class Corpus:
    parts: tuple[tuple[Source, float], ...]
    skip_bad: bool = False

    def bad(self, what: str) -> None:
        if not self.skip_bad:
            raise ValueError(what)


def write_shard(path: Path, texts: Sequence[str], group: int) -> Shard:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": list(texts)}), path, row_group_size=group, compression="zstd")
    return shard_of(path)


def shard_of(path: Path) -> Shard:
    footer = pq.read_metadata(path)
    return Shard(path, footer.num_row_groups, footer.num_rows, hashlib.sha256(path.read_bytes()).hexdigest())


def text_corpus(folder: Path, shards: Sequence[Sequence[str]], group: int) -> Corpus:
    """The last shard is for validation, where there are several."""
    made = [write_shard(folder / f"{number:02d}.parquet", texts, group) for number, texts in enumerate(shards)]
    return Corpus(((Source("letters", tuple(made[:-1] or made), tuple(made[-1:])), 1.0),))


def damaged(corpus: Corpus, number: int) -> Corpus:
    """The same, opened after a part in the middle of one training shard was overwritten."""
    source, weight = corpus.parts[0]
    path = source.train[number].path
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 3)
    path.write_bytes(content)
    train = tuple(shard_of(shard.path) for shard in source.train)
    return Corpus(((replace(source, train=train), weight),))


def counted_shard(
    folder: Path, name: str, lengths: Sequence[int], group: int, first: int, tokenizer: Tokenizer
) -> Shard:
    """A token shard of which document i is the id first + i, lengths[i] times. There is no text of it."""
    bos = tokenizer.special_tokens["<|bos|>"]
    shard = Shard(
        Path(f"{name}.parquet"), -(-len(lengths) // group), len(lengths), hashlib.sha256(name.encode()).hexdigest()
    )
    groups = []
    for start in range(0, len(lengths), group):
        documents = [[bos] + [first + i] * lengths[i] for i in range(start, min(start + group, len(lengths)))]
        offsets = np.cumsum([0] + [len(document) for document in documents])
        groups.append((np.concatenate(documents).astype(np.uint16), offsets))
    about = {"tokenizer": tokenizer.content_hash, "shard": shard.hash, "column": "text"}
    write_token_shard(token_path(folder, shard.path, shard.hash), groups, about)
    return shard
