"""The tokenizer of a public model: its own `tokenizer.json`, run by the `tokenizers` package, behind our interface.

The file that a checkpoint's manifest names has the text of `tokenizer.json` as it came, the chat template, and which
tokens begin a document and end a turn. As with our own tokenizers text never becomes a special token: only a chat
template writes those.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tokenizers

import rustbpe
from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.protocols import Message
from nanochat.tokenizer import Tokenizer
from tracks.bases.special_names import is_text, special_tokens
from tracks.bases.template import JinjaTemplate

if TYPE_CHECKING:
    import numpy as np

FORMAT = "nanochat-public-tokenizer-1"
SPACE = "▁"  # how vocabularies of SentencePiece write a space


@dataclass(frozen=True)
class Definition:
    """Everything that decides the ids of texts and conversations."""

    tokenizer: str  # the text of a tokenizer.json
    template: str = ""  # Jinja, over messages; empty: the model knows no conversations
    bos: int = 0  # stands between documents
    prefix: Sequence[int] = ()  # what each text begins with
    ends: Sequence[int] = ()  # end an answer; the one that the template writes comes first
    variables: dict[str, str] = field(default_factory=dict)  # for the template: bos_token and others
    day: str = ""  # when the model was brought in: the date that a template is told, if it asks for one
    # Special tokens that `tokenizer` has as ordinary ones: a plain text may have them, and no message.
    listed: Sequence[str] = ()


class PublicCore:
    """The library's tokenizer as a `nanochat.tokenizer.Core`."""

    def __init__(self, text: str) -> None:
        try:
            self.backend = tokenizers.Tokenizer.from_str(text)
        # The library raises Exception itself for a file that it cannot read.
        except Exception as error:
            raise UserError(f"its tokenizer.json cannot be read: {error}") from None
        self.backend.no_padding()
        self.backend.no_truncation()
        self.backend.encode_special_tokens = True  # as plain text
        self.special_tokens = special_tokens(self.backend)
        self.vocab_size = self.backend.get_vocab_size()
        self._added = set(self.backend.get_added_tokens_decoder())
        self._decoders = list(_types(self.backend.decoder))
        if not {"ByteLevel", "ByteFallback", "Metaspace"} & set(self._decoders):
            raise UserError(
                f"its tokenizer.json has a decoder that is not known: {', '.join(self._decoders) or 'none'};"
                " vocabularies of bytes, and of SentencePiece with its bytes, are"
            )

    def encode(self, text: str) -> "np.ndarray":
        import numpy as np

        return np.array(self.backend.encode(_valid(text), add_special_tokens=False).ids, dtype=np.uint32)

    def encode_batch(
        self, texts: Sequence[str], prepend: int | None = None, threads: int = 0
    ) -> "tuple[np.ndarray, np.ndarray]":
        import numpy as np

        first = [] if prepend is None else [prepend]
        encoded = self.backend.encode_batch_fast([_valid(text) for text in texts], add_special_tokens=False)
        rows = [[*first, *one.ids] for one in encoded]
        offsets = np.zeros(len(rows) + 1, dtype=np.uint64)
        offsets[1:] = np.cumsum([len(row) for row in rows], dtype=np.uint64)
        ids = np.fromiter((id for row in rows for id in row), dtype=np.uint32, count=int(offsets[-1]))
        return ids, offsets

    def encode_arrow(self, array: Any, prepend: int | None = None, threads: int = 0) -> "tuple[np.ndarray, np.ndarray]":
        return self.encode_batch(array.to_pylist(), prepend, threads)

    def decode(self, ids: "Sequence[int] | np.ndarray") -> str:
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: "Sequence[int] | np.ndarray") -> bytes:
        return b"".join(self.token_bytes(int(id)) for id in ids)

    def token_bytes(self, id: int) -> bytes:
        return self._bytes[id] if 0 <= id < len(self._bytes) else b""  # an embedding may have more rows than tokens

    def token_lengths(self) -> "np.ndarray":
        import numpy as np

        special = set(self.special_tokens.values())
        return np.array([0 if id in special else len(bytes) for id, bytes in enumerate(self._bytes)], dtype=np.uint32)

    @cached_property
    def _bytes(self) -> list[bytes]:
        """The bytes of every token, by id; of a special token its name."""
        tokens = self.backend.get_vocab()
        rows = [b""] * (max(tokens.values()) + 1)
        of_bytes = "ByteLevel" in self._decoders
        for token, id in tokens.items():
            if not of_bytes and token not in self.special_tokens:
                rows[id] = _from_pieces(token)
            else:  # a vocabulary of bytes has no letters for what was added
                rows[id] = token.encode() if id in self._added else _from_letters(token)
        return rows


def _types(decoder: Any) -> Iterable[str]:
    """Yield the types of a decoder and its parts."""
    import json

    state = json.loads(decoder.__getstate__()) if decoder is not None else {}
    for part in state.get("decoders", [state]):
        yield part.get("type", "")


def _valid(text: str) -> str:
    """Return text that UTF-8 can write: halves of a surrogate pair become U+FFFD."""
    return text if is_text(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# The letter of each byte in vocabularies of bytes: printable ones are themselves, others follow from U+0100 on.
PRINTABLE = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
HIDDEN = [byte for byte in range(256) if byte not in PRINTABLE]
LETTERS = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(HIDDEN)}


def _from_letters(token: str) -> bytes:
    # A few vocabularies hold tokens that were never written in letters.
    return bytes(LETTERS[letter] for letter in token) if LETTERS.keys() >= set(token) else token.encode()


def _from_pieces(token: str) -> bytes:
    byte = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token)
    if byte:
        return bytes.fromhex(byte[1])
    return token.replace(SPACE, " ").encode()


LETTER_QUESTIONS: list[Message] = [{"role": "user", "content": text} for text in ("Which letter?", "A or B, say?")]


def _first_difference(rows: Sequence[Sequence[int]]) -> int:
    """Return the first place at which rows are not all the same; the shortest row's end, if there is none before."""
    places = (place for place, ids in enumerate(zip(*rows, strict=False)) if len(set(ids)) > 1)
    return next(places, min(map(len, rows)))


class PublicTokenizer(Tokenizer):
    """A tokenizer that came with a model."""

    format = FORMAT

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.core = core = PublicCore(definition.tokenizer)
        self.vocab_size = core.vocab_size
        self.special_tokens = core.special_tokens
        self.bos = definition.bos
        self.prefix = tuple(definition.prefix)
        self.turn_ends = tuple(definition.ends)
        self.turn_end = self.turn_ends[0]
        self.text_ends = self.turn_ends
        self._letters: dict[tuple[str, ...], list[int]] = {}
        self._opening: tuple[int, list[int]] | None = None
        if definition.template:
            self.template = JinjaTemplate(
                definition.template,
                definition.variables,
                core.backend,
                self.turn_ends,
                definition.day,
                definition.listed,
            )
            self.special_tokens = self.template.special_tokens  # an answer shows none of them

    def letter_prompt(self, prompt: list[int]) -> list[int]:
        """Return a prompt with what the template writes before an answer, as an empty thought.

        An opening of a thought that the prompt has and a plain answer has not is left out.
        """
        if self.template is None:
            return prompt
        if self._opening is None:
            # A template that writes a last question in another way than an answered one has no such opening.
            first, second = map(self._opening_for, LETTER_QUESTIONS)
            self._opening = first if first == second else (0, [])
        dropped, opening = self._opening
        return [*prompt[: len(prompt) - dropped], *opening]

    def _opening_for(self, question: Message) -> tuple[int, list[int]]:
        """Return how many tokens a prompt has beyond what an answered question has, and the others before a letter."""
        assert self.template is not None
        asked = self.template.render_prompt({"messages": [question]})
        rows = self._letter_rows(("A", "B"), question)
        same = _first_difference([asked, rows[0]])
        return len(asked) - same, rows[0][same : _first_difference(rows)]

    def letter_tokens(self, letters: Sequence[str]) -> list[int]:
        """Return the token of each letter where an answer begins: a vocabulary may have several for one letter."""
        key = tuple(letters)
        if key not in self._letters:
            self._letters[key] = self._find_letters(key)
        return self._letters[key]

    def _find_letters(self, letters: Sequence[str]) -> list[int]:
        if self.template is None:
            return super().letter_tokens(letters)
        rows = self._letter_rows(letters, LETTER_QUESTIONS[0])
        place = _first_difference(rows)
        return [row[place] for row in rows]

    def _letter_rows(self, letters: Sequence[str], question: Message) -> list[list[int]]:
        """Return a conversation's ids for each letter as the answer."""
        assert isinstance(self.template, JinjaTemplate)
        return [self.template.ids_of([question, {"role": "assistant", "content": letter}]) for letter in letters]

    @property
    def bpe(self) -> rustbpe.Tokenizer:
        raise UserError("the tokenizer came with a public model, and has not the merges of one that was trained here")

    def _definition(self) -> Record:
        record = asdict(self.definition)
        if not record["listed"]:
            del record["listed"]  # as in files that were written before
        return record


def from_record(record: Record) -> PublicTokenizer:
    """Return the tokenizer of a file that `Tokenizer.save` wrote."""
    names = (name for name in Definition.__dataclass_fields__ if name != "listed" or name in record)
    return PublicTokenizer(Definition(**{name: record[name] for name in names}))


TOKENIZERS = {FORMAT: from_record}
