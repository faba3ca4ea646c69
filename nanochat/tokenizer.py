"""Text to token ids and back: byte pair encoding in Rust (`rustbpe`), and nine special tokens for conversations.

The ids are 256 bytes, then merges, then special tokens. A tokenizer is saved as one JSON file. Text never becomes a
special token: `encode` treats "<|bos|>" as seven ordinary characters.

The tokenizer of a model that was trained elsewhere is a subclass, with a core of its own (registry.TOKENIZERS).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import rustbpe
from nanochat import registry
from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.paths import read_json, text_sha256, write_text
from nanochat.protocols import ChatTemplate, Core

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

SPECIAL_TOKENS = (
    "<|bos|>",  # begins every document
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|python_start|>",  # the assistant calls the calculator
    "<|python_end|>",
    "<|output_start|>",  # the calculator answers
    "<|output_end|>",
)
FORMAT = "nanochat-tokenizer-1"  # changes when older code could no longer read the file; registry.TOKENIZERS has more


class Tokenizer:
    """Text to token ids and back by a core, `rustbpe.Tokenizer`."""

    format: ClassVar[str] = FORMAT  # of the file
    core: Core
    template: ChatTemplate | None = None  # None: ours
    bos: int  # stands before every document
    prefix: tuple[int, ...]  # what a text begins with when it is scored or continued
    turn_end: int  # ends an answer
    turn_ends: tuple[int, ...]  # all tokens that end a turn, that one first
    text_ends: tuple[int, ...]  # tokens that end a text without turns

    def __init__(self, core: rustbpe.Tokenizer) -> None:
        self.core = core
        self.vocab_size: int = core.vocab_size
        self.special_tokens: dict[str, int] = core.special_tokens
        self.bos = self.special_tokens["<|bos|>"]
        self.prefix = (self.bos,)
        self.turn_end = self.special_tokens["<|assistant_end|>"]
        self.turn_ends = (self.turn_end, self.bos)
        self.text_ends = (self.bos,)

    @classmethod
    def train(cls, source: Iterable[str | pa.Array], vocab_size: int, **limits: Any) -> Tokenizer:
        """Return a tokenizer with `vocab_size` ids, or fewer if the text has no more pairs to merge.

        source: strings or Arrow string arrays. limits, for `rustbpe.train`: max_chars and doc_cap, the characters to
        read in total and from each document; threads.
        """
        # Special tokens are not learned, so they take ids after the merges.
        merges = rustbpe.train(source, vocab_size - len(SPECIAL_TOKENS), **limits)
        return cls(rustbpe.Tokenizer(merges, SPECIAL_TOKENS))

    # For short texts; many texts go through the core's encode_arrow, which returns arrays and uses several threads.
    def encode(self, text: str) -> list[int]:
        return self.core.encode(text).tolist()

    def begin(self, text: str) -> list[int]:
        """Return the ids of a text that a model is to continue."""
        ids = self.encode(text)
        return [*self.opening(ids), *ids]

    def opening(self, ids: Sequence[int]) -> list[int]:
        """Return what stands before the ids of such a text."""
        if self.prefix or ids:
            return list(self.prefix)
        return [self.bos]  # a model predicts the first token of a text from something

    def letter_prompt(self, prompt: list[int]) -> list[int]:
        """Return a prompt up to where a letter is chosen: a public model's answer may begin with something else."""
        return prompt

    def letter_tokens(self, letters: Sequence[str]) -> list[int]:
        """Return the token of each letter where the assistant answers with nothing else."""
        return [self.encode(letter)[0] for letter in letters]  # a letter is one byte, so one token

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text; bytes that are not UTF-8 become U+FFFD, special tokens become their names."""
        return self.core.decode(ids)

    def token_lengths(self) -> np.ndarray:
        """Return the number of text bytes for each id, uint32; 0 for special tokens."""
        return self.core.token_lengths()

    @property
    def content_hash(self) -> str:
        """SHA-256 over everything that decides the ids: tokenizers with the same hash agree on every text."""
        # One spelling for equal definitions.
        return text_sha256(json.dumps(self._definition(), sort_keys=True, separators=(",", ":")))

    @property
    def bpe(self) -> rustbpe.Tokenizer:
        """The core with its merges; UserError for the tokenizer of a model that was trained elsewhere."""
        if not isinstance(self.core, rustbpe.Tokenizer):
            raise UserError("the model has a tokenizer that was not trained here, which cannot be written so")
        return self.core

    def _definition(self) -> Record:
        return {
            "pattern": self.bpe.pattern,
            "merges": self.bpe.merges.tolist(),
            "special_tokens": self.special_tokens,
        }

    def save(self, path: Path, training: Record | None = None) -> str:
        """Write the file, whole or not at all; return the content hash. training: settings, for the record."""
        content_hash = self.content_hash
        # token_bytes follows from the merges: other programs need the lengths for bits per byte.
        record = {
            "format": self.format,
            "content_hash": content_hash,
            "training": training or {},
            **self._definition(),
            "token_bytes": self.token_lengths().tolist(),
        }
        write_text(path, json.dumps(record, ensure_ascii=False))
        return content_hash

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Return the tokenizer from a file written by `save`."""
        if not path.is_file():
            raise UserError(f"no tokenizer is at {path}; train one with `python -m scripts.tok_train`")
        try:
            record = read_json(path)
        except ValueError:
            record = {}  # damaged
        # Tokenizers of other programs are JSON files too.
        kind = str(record.get("format")) if isinstance(record, dict) else ""
        if kind != FORMAT and kind not in registry.TOKENIZERS.modules:
            raise UserError(f"{path} is not a tokenizer file with format {FORMAT}; use scripts.tok_train")
        make = cls._of if kind == FORMAT else registry.load(registry.TOKENIZERS, kind)
        try:
            tokenizer = make(record)
            if record.get("content_hash", tokenizer.content_hash) != tokenizer.content_hash:
                raise ValueError("its content_hash is of another content")
        except UserError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            again = "train it again with scripts.tok_train" if kind == FORMAT else "bring the model in again"
            raise UserError(f"{path} is damaged ({error}): {again}") from None
        return tokenizer

    @classmethod
    def _of(cls, record: Record) -> Tokenizer:
        # JSON keeps the order, but the ids decide.
        special = record["special_tokens"]
        return cls(rustbpe.Tokenizer(record["merges"], sorted(special, key=special.get), record["pattern"]))
