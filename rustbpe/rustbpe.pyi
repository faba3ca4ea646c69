"""Byte-level BPE: train, encode, decode. The algorithms live in Rust.

Arrow arrays are read where they lie. So is a str, but of one that is not ASCII CPython makes and keeps a copy in UTF-8.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

DEFAULT_PATTERN: str
"""The split pattern of nanochat: GPT-4's, with digits in groups of at most two."""

def amx_is_broken() -> bool:
    """Whether the processor announces AMX but no tile sizes, as some virtual machines do: its instructions do not work.

    Not about text: it is here because Python cannot read such properties.
    """

def train(
    source: Iterable[str] | Iterable[Any],
    vocab_size: int,
    *,
    pattern: str = DEFAULT_PATTERN,
    max_chars: int | None = None,
    doc_cap: int | None = None,
    threads: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> np.ndarray:
    """Merges learned from `source`, as a (n, 2) uint32 array: row i merges its two ids into id 256 + i.

    source: an iterable of str, or of Arrow string arrays (anything with `__arrow_c_array__`), or one such array.
    vocab_size: 256 bytes + merges; special tokens are not counted here. Fewer merges come back when no pair is left.
    max_chars, doc_cap: characters to read in all, and of each document (None: no limit).
    threads: 0 takes every core. The result does not depend on it.
    progress: called as (phase, done, total) ten times a second, between batches of text or arrays, and at the end of a
    phase; phases: "count" (characters), "merge".
    """

class Tokenizer:
    """Encoder and decoder for one vocabulary: 256 bytes, then merges, then special tokens."""

    def __init__(
        self,
        merges: np.ndarray | Sequence[tuple[int, int]],
        special_tokens: Sequence[str] = (),
        pattern: str = DEFAULT_PATTERN,
    ) -> None: ...
    @staticmethod
    def from_ranks(
        tokens: Sequence[bytes], special_tokens: dict[str, int] | None = None, pattern: str = DEFAULT_PATTERN
    ) -> Tokenizer:
        """A tiktoken vocabulary: `tokens[rank]` are the bytes of that rank, in the order they were learned."""

    def encode(self, text: str) -> np.ndarray:
        """Ids of one text, uint16 where the vocabulary fits, else uint32. Text never becomes a special token."""

    def encode_batch(
        self, texts: Sequence[str], prepend: int | None = None, threads: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """(ids, offsets): text i is ids[offsets[i]:offsets[i + 1]]; uint64 offsets, one more than there are texts."""

    def encode_arrow(self, array: Any, prepend: int | None = None, threads: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The same for an Arrow string array, read without copying."""

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of ids; invalid UTF-8 becomes U+FFFD."""

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes: ...
    def token_bytes(self, id: int) -> bytes:
        """Raw bytes of one token (for a special token, its name in UTF-8)."""

    def token_lengths(self) -> np.ndarray:
        """Bytes of every token, uint32 by id; 0 for special tokens, which stand for no text."""

    @property
    def vocab_size(self) -> int:
        """Bytes, merges and special tokens together."""

    @property
    def pattern(self) -> str: ...
    @property
    def merges(self) -> np.ndarray:
        """(n, 2) uint32, as given; ValueError for a vocabulary given by ranks."""

    @property
    def special_tokens(self) -> dict[str, int]: ...
