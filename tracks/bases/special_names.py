"""Special tokens by their names: a message's text never becomes one, even if it spells one."""

import json
import re
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Any

import tokenizers

from nanochat.errors import TemplateError
from tracks.bases.rendering import BEGIN, BREAK, END

Span = tuple[int, int]  # first character, and the one behind the last


class SpecialNames:
    """Marks the names of special tokens in what is said, and reads them as tokens where the template wrote them.

    reader: a tokenizer that reads every text as plain, by its `encode_special_tokens`. more: names of added tokens that
    are special too.
    """

    def __init__(self, reader: tokenizers.Tokenizer, more: Collection[str] = ()) -> None:
        self.reader = reader
        if more:  # a large vocabulary takes seconds to read again
            self.reader = tokenizers.Tokenizer.from_str(with_special(reader.to_str(), more))
            self.reader.encode_special_tokens = True
        self.by_name = special_tokens(self.reader)
        self.ids = frozenset(self.by_name.values())

    @cached_property
    def _reader_of_names(self) -> tokenizers.Tokenizer:
        """The tokenizer that reads the names of special tokens as those."""
        backend = tokenizers.Tokenizer.from_str(self.reader.to_str())
        backend.encode_special_tokens = False
        return backend

    @cached_property
    def _reader_inside(self) -> tokenizers.Tokenizer:
        """The tokenizer that reads a text behind a special token: some write a blank only where all of it begins."""
        first = '"prepend_scheme":"first"'
        pieces = self.reader.pre_tokenizer
        if pieces is None or first.encode() not in pieces.__getstate__():
            return self.reader  # a large vocabulary takes seconds to read again
        state = self.reader.to_str().replace(first, '"prepend_scheme":"never"')
        backend = tokenizers.Tokenizer.from_str(state)
        backend.encode_special_tokens = True
        return backend

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches the names, of which what is said has none without a mark: one letter may be a name."""
        names = sorted(self.by_name, key=len, reverse=True)
        return re.compile(f"(?:{'|'.join(map(re.escape, names)) or '(?!)'})(?!{BREAK})")

    @cached_property
    def _cuts(self) -> re.Pattern[str]:
        """Matches the same names, with the blanks that some tokens take from the text beside them."""
        added = {token.content: token for token in self.reader.get_added_tokens_decoder().values()}

        def with_blanks(name: str) -> str:
            before, behind = (r"\s*" if takes else "" for takes in (added[name].lstrip, added[name].rstrip))
            return f"{before}{re.escape(name)}(?!{BREAK}){behind}"

        names = sorted(self.by_name, key=len, reverse=True)
        return re.compile("|".join(map(with_blanks, names)) or "(?!)")

    def marked(self, value: str, kept: frozenset[str] = frozenset()) -> str:
        """Return a text with marks in each name, but for those that are kept."""
        text = value.translate(dict.fromkeys(map(ord, (BEGIN, END, BREAK))))  # marks are ours alone
        return self.pattern.sub(lambda name: name[0] if name[0] in kept else BREAK.join(name[0]) + BREAK, text)

    def all_marked(self, value: Any) -> Any:
        """Return a value of JSON with marks in each name in its texts and keys."""
        if isinstance(value, str):
            return self.marked(value)
        if isinstance(value, list):
            return [self.all_marked(one) for one in value]
        if isinstance(value, dict):
            return {self.all_marked(key): self.all_marked(one) for key, one in value.items()}
        return value

    def tokens(self, text: str) -> Iterator[tuple[int, Span]]:
        """Yield the tokens of a rendered text, each with its characters; names with a mark in them are plain text.

        Where a message spells a name, the text is cut at the names that the template wrote, as the library does, and
        each piece is read without its marks.
        """
        if not is_text(text):
            raise TemplateError("the chat template writes half a character, its own or a message's, which is no text")
        if BREAK not in text:
            encoding = self._reader_of_names.encode(text, add_special_tokens=False)
            yield from zip(encoding.ids, encoding.offsets, strict=True)
            return
        place = 0
        for piece in re.split(f"({self._cuts.pattern})", text):
            if self._cuts.fullmatch(piece):
                id = self.reader.token_to_id(self.pattern.findall(piece)[0])
                assert id is not None  # a name in its vocabulary
                yield id, (place, place + len(piece))
            else:
                reader = self._reader_inside if place else self.reader
                encoding = reader.encode(piece.replace(BREAK, ""), add_special_tokens=False)
                places = [number for number, letter in enumerate(piece) if letter != BREAK]
                for id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
                    yield id, (place + places[start], place + places[max(start, stop - 1)] + 1)
            place += len(piece)


def special_tokens(backend: tokenizers.Tokenizer) -> dict[str, int]:
    """Return the ids of a tokenizer's special tokens by name."""
    return {token.content: id for id, token in backend.get_added_tokens_decoder().items() if token.special}


def with_special(text: str, names: Collection[str]) -> str:
    """Return a tokenizer.json in which the added tokens with these names are special too.

    The rest is not read: a vocabulary of 262,144 tokens would take more memory than is allowed beside the weights.
    """
    for key in re.finditer(r'"added_tokens"\s*:\s*', text):
        try:
            added, end = json.JSONDecoder().raw_decode(text, key.end())
            marked = [{**token, "special": token["special"] or token["content"] in names} for token in added]
        except (ValueError, LookupError, TypeError, RecursionError):
            continue  # a token of this name, or a file of which the library says what is wrong
        return text if marked == added else f"{text[: key.end()]}{json.dumps(marked)}{text[end:]}"
    return text


def is_text(value: str) -> bool:
    """Return False if a value has half of a surrogate pair, which UTF-8 cannot write."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
