"""What the loader reads, for its tests: shards of text, and token shards whose ids tell the documents apart."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nanochat.data.corpus import Corpus, Source
from nanochat.data.documents import Bad
from nanochat.data.shards import Shard, open_shards
from nanochat.data.token_shards import token_path, write_token_shard
from nanochat.tokenizer import Tokenizer


def corpus_of(paths: Sequence[Path]) -> Corpus:
    """The last shard is for validation, where there are several."""
    shards = open_shards(list(paths), "text", Bad(skip=False))
    return Corpus(((Source("letters", shards[:-1] or shards, shards[-1:]), 1.0),))


def text_corpus(folder: Path, shards: Sequence[Sequence[str | None]], group: int) -> Corpus:
    """A shard of each list of documents, `group` to a row group."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:02d}.parquet" for number in range(len(shards))]
    for path, texts in zip(paths, shards, strict=True):
        pq.write_table(pa.table({"text": list(texts)}), path, row_group_size=group, compression="zstd")
    return corpus_of(paths)


def damaged(corpus: Corpus, number: int) -> Corpus:
    """The same, opened after a part in the middle of one training shard was overwritten."""
    source, share = corpus.parts[0]
    path = source.train[number].path
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 3)
    path.write_bytes(content)
    train = open_shards([shard.path for shard in source.train], "text", corpus.bad)
    return replace(corpus, parts=((replace(source, train=train), share),))


def tolerant(corpus: Corpus) -> Corpus:
    """The same, with what is damaged left out."""
    return replace(corpus, bad=Bad(skip=True, tell=True))


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
    about = {"tokenizer": tokenizer.content_hash, "shard": shard.hash, "column": shard.column}
    write_token_shard(token_path(folder, shard.path, shard.hash), groups, about)
    return shard
