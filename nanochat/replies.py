"""What the tokens of an answer mean as text: what is said, what the calculator is asked, and what it answers."""

import codecs
from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

from nanochat.chat import PARTS


class Piece(NamedTuple):
    """Text, as it comes, of a part of that kind, of those in chat.PARTS. It is empty where a part begins."""

    kind: str
    text: str


class Reply:
    """Tokens of one answer to pieces. Joined, they are what decoding each part at once gives.

    A character's bytes are held back until it is whole. Special tokens open and close parts and are not shown.
    """

    def __init__(self, tokenizer: Any):
        self._bytes, special = tokenizer.core.token_bytes, tokenizer.special_tokens
        self._begins: dict[int, str] = dict.fromkeys(special.values(), "")  # the kind of part that a token begins
        for kind, (name, _) in PARTS.items():
            if name:
                self._begins |= {special[f"<|{name}_start|>"]: kind, special[f"<|{name}_end|>"]: "text"}
        self._kind, self._utf8 = "text", codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> list[Piece]:
        """What can be shown once this token is there; perhaps nothing yet."""
        kind = self._begins.get(token)
        if kind is None:
            return self._said(self._utf8.decode(self._bytes(token)))
        if not kind:  # a special token that means nothing within an answer
            return []
        held, self._kind = self.close(), kind
        return [*held, Piece(kind, "")]

    def close(self) -> list[Piece]:
        """What was held back, with U+FFFD for bytes that have become no character."""
        return self._said(self._utf8.decode(b"", final=True))

    def _said(self, text: str) -> list[Piece]:
        return [Piece(self._kind, text)] if text else []


def parts(pieces: Iterable[Piece], ends: bool = False) -> list[dict[str, str]]:
    """A message's content as nanochat.chat takes it: neighbours of a kind are one part.

    ends: of a message that is not whole, with empty text where a call ends, since another may follow at once.
    """
    runs = ((kind, "".join(piece.text for piece in run)) for kind, run in groupby(pieces, lambda piece: piece.kind))
    return [{"type": kind, "text": text} for kind, text in runs if ends or text or kind != "text"]
