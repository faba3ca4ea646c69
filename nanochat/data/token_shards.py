"""Shards of ids made beforehand: one safetensors file for each shard of text, and for one tokenizer.

Tensors: `ids` (uint16 or uint32), `offsets` of documents in them, and `groups`, the first document of each row group;
the last two have one element more than there are documents and row groups. Metadata: what the ids were made of.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from nanochat.paths import whole_file

AGAIN = "make it with `python -m scripts.prepare --tokenize --data=…`"


def token_path(folder: Path, shard: Path, content_hash: str) -> Path:
    """Where the ids of a shard of text are kept, by its name and its hash."""
    return Path(folder) / f"{shard.stem}-{content_hash[:12]}.safetensors"


def write_token_shard(path: Path, groups: Iterable[tuple[np.ndarray, np.ndarray]], about: dict[str, str]) -> None:
    """Write the row groups `(ids, offsets)` of one shard, whole or not at all; the shard is held in memory."""
    groups = list(groups)
    documents = np.cumsum([0] + [len(offsets) - 1 for _, offsets in groups])
    first_ids = np.cumsum([0] + [len(ids) for ids, _ in groups])
    offsets = [offsets[:-1].astype(np.int64) + first for (_, offsets), first in zip(groups, first_ids, strict=False)]
    tensors = {
        "ids": np.concatenate([ids for ids, _ in groups]),
        "offsets": np.concatenate([*offsets, first_ids[-1:]]),
        "groups": documents,
    }
    with whole_file(path) as part:
        save_file(tensors, part, metadata=about)


def token_shard_is(path: Path, about: dict[str, str]) -> bool:
    """Whether there is a whole shard made of just that."""
    try:
        with safe_open(path, framework="numpy") as shard:
            return shard.metadata() == about
    except (OSError, SafetensorError):
        return False


def read_token_group(path: Path, group: int, about: dict[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """One row group, read without the rest of the file; ValueError where the shard was made of something else."""
    try:
        with safe_open(path, framework="numpy") as shard:
            if changed := [name for name in about if (shard.metadata() or {}).get(name) != about[name]]:
                raise ValueError(f"{path} was made with another {' and '.join(changed)}; {AGAIN}")
            first, last = shard.get_slice("groups")[group : group + 2].tolist()
            offsets = shard.get_slice("offsets")[first : last + 1]
            return shard.get_slice("ids")[offsets[0] : offsets[-1]], offsets - offsets[0]
    except FileNotFoundError:
        raise ValueError(f"there is no {path}; {AGAIN}") from None
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} is damaged ({error}); {AGAIN}") from None
