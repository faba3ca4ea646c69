"""Text to ids and back, over `rustbpe`: a byte-level BPE vocabulary and the nine special tokens of a conversation.

The artifact is one JSON file: readable, checked by a hash when loaded, and enough to build the same tokenizer with
`tiktoken`. Special tokens are never produced from text: `encode` treats "<|bos|>" as seven ordinary characters.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rustbpe
from nanochat.paths import write_text

SPECIAL_TOKENS = (
    "<|bos|>",  # begins every document
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|python_start|>",  # the assistant calls the calculator
    "<|python_end|>",
    "<|output_start|>",  # what the calculator answers
    "<|output_end|>",
)
FORMAT = "nanochat-tokenizer-1"


class ArtifactError(ValueError):
    """A tokenizer file that cannot be used: missing, damaged, or of another format."""


class Tokenizer:
    """256 bytes, then merges, then special tokens; ids in that order.

    core: the `rustbpe.Tokenizer` that does the work.
    training: how it was trained, kept for the record.
    """

    def __init__(self, core: rustbpe.Tokenizer, training: dict[str, Any] | None = None):
        self.core = core
        self.training = training or {}
        self.vocab_size: int = core.vocab_size
        self.special_tokens: dict[str, int] = core.special_tokens

    @classmethod
    def train(
        cls,
        source: Iterable[Any],
        vocab_size: int,
        *,
        max_chars: int | None = None,
        doc_cap: int | None = None,
        threads: int = 0,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> "Tokenizer":
        """A tokenizer of `vocab_size` ids, special tokens counted in, or fewer if the text has no more pairs to merge.

        source: str or Arrow string arrays; max_chars, doc_cap: characters to read in all and of each document.
        """
        least = 256 + len(SPECIAL_TOKENS)
        if vocab_size < least:
            raise ValueError(f"vocab_size is {vocab_size}: it must be at least {least}, bytes and special tokens")
        merges = rustbpe.train(
            source,
            vocab_size - len(SPECIAL_TOKENS),
            max_chars=max_chars,
            doc_cap=doc_cap,
            threads=threads,
            progress=progress,
        )
        return cls(rustbpe.Tokenizer(merges, SPECIAL_TOKENS))

    def encode(self, text: str) -> list[int]:
        return self.core.encode(text).tolist()

    def encode_arrow(self, array: Any, prepend: int | None = None, threads: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """(ids, offsets) of an Arrow string array: text i is ids[offsets[i]:offsets[i + 1]], after the id `prepend`."""
        return self.core.encode_arrow(array, prepend, threads)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD, special tokens their names."""
        return self.core.decode(ids)

    def token_lengths(self) -> np.ndarray:
        """Bytes of text each id stands for, uint32; 0 for special tokens."""
        return self.core.token_lengths()

    @property
    def content_hash(self) -> str:
        """SHA-256 of what decides how text becomes ids: two tokenizers with the same hash agree on every text."""
        return _digest(self._definition())

    def _definition(self) -> dict[str, Any]:
        return {
            "pattern": self.core.pattern,
            "merges": self.core.merges.tolist(),
            "special_tokens": self.special_tokens,
        }

    def save(self, path: Path, training: dict[str, Any] | None = None) -> str:
        """Write the artifact, whole or not at all, with the settings it was trained with; returns the content hash."""
        self.training = training or self.training
        record = {
            "format": FORMAT,
            "content_hash": self.content_hash,
            "training": self.training,
            **self._definition(),
            "token_bytes": self.token_lengths().tolist(),
        }
        # A line per field: small enough to look at with `head`.
        fields = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in record.items()]
        text = "{\n" + ",\n".join([*fields, f'"file_hash": "{_digest(record)}"']) + "\n}\n"
        write_text(Path(path), text)
        return record["content_hash"]

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """The tokenizer in a file written by `save`; ArtifactError when there is none, or it was changed or cut."""
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ArtifactError(f"no tokenizer is at {path}; train one with `python -m scripts.tok_train`") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ArtifactError(f"{path} is damaged ({error}); train it again or restore it from a copy") from None
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ArtifactError(
                f"{path} is not a tokenizer file of the format {FORMAT}; train one with scripts.tok_train"
            )
        expected = record.pop("file_hash", None)
        if _digest(record) != expected:
            raise ArtifactError(
                f"{path} is damaged (its hash does not match); train it again or restore it from a copy"
            )
        try:
            specials = record["special_tokens"]
            names = sorted(specials, key=specials.get)
            tokenizer = cls(rustbpe.Tokenizer(record["merges"], names, record["pattern"]), record["training"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(f"{path} was not written by this program ({error}); train one with it") from None
        if tokenizer.content_hash != record["content_hash"]:
            raise ArtifactError(f"{path} was not written by this program (its ids differ); train one with it")
        return tokenizer

    def to_tiktoken(self) -> Any:
        """The same tokenizer as a `tiktoken.Encoding`."""
        import tiktoken

        size = self.vocab_size - len(self.special_tokens)
        return tiktoken.Encoding(
            name=f"nanochat-{self.content_hash[:12]}",
            pat_str=self.core.pattern,
            mergeable_ranks={self.core.token_bytes(rank): rank for rank in range(size)},
            special_tokens=self.special_tokens,
        )


def _digest(record: dict[str, Any]) -> str:
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
