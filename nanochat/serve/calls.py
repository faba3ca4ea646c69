"""Calls of tools in what a public model writes: from its text to OpenAI's `tool_calls`.

A call is JSON with the name of a tool and its arguments, and stands where the model's template writes calls
(`protocols.CallForm`): between two marks, or where the answer begins. Several calls follow each other, or form a list.
"""

import json
import secrets
import string
from collections.abc import Collection
from typing import Any, NoReturn

from nanochat.log import Record
from nanochat.protocols import CallForm

LETTERS = string.ascii_letters + string.digits
ID_LENGTH = 9  # templates of Mistral's models refuse another


def _no_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


JSON = json.JSONDecoder(parse_constant=_no_json)


class CallFinder:
    """Finds the calls in an answer that comes in pieces.

    tools: names of those that may be called. several: an answer may have more than one call.
    """

    def __init__(self, form: CallForm, tools: Collection[str], several: bool = True) -> None:
        self.form = form
        self.tools = tools
        self.several = several and form.several
        self.shown = False  # a text before the calls
        self.held = ""  # perhaps a call begins here, or has begun

    def feed(self, text: str) -> str:
        """Return text to show now: no call begins there."""
        self.held += text
        begin = self._begin()
        shown, self.held = self.held[:begin], self.held[begin:]
        self.shown = self.shown or bool(shown.strip())
        return shown

    def _begin(self) -> int:
        """Return where the first call may begin in the text that is held."""
        before = self.form.before
        if not before:  # nothing stands ahead of a call
            rest = self.held.lstrip()
            return len(self.held) if self.shown or (rest and rest[0] not in "{[") else 0
        if before in self.held:
            return self.held.index(before)
        # The next text may complete the mark.
        starts = (place for place in range(len(self.held)) if before.startswith(self.held[place:]))
        return next(starts, len(self.held))

    def close(self) -> tuple[str, list[Record]]:
        """Return the text that is left, and the calls; without a call that can be read, all of it is text."""
        left, self.held = self.held, ""
        text = ""
        found: list[Record] = []
        while left:
            calls, rest = self._calls(left)
            found += calls
            # A thought may have spelled the mark, and text may stand between calls: the next mark counts.
            place = rest.find(self.form.before, 0 if calls else 1) if self.form.before else -1
            end = len(rest) if place == -1 else place
            text, left = text + rest[:end], rest[end:]
        return text, found if self.several else found[:1]

    def _calls(self, text: str) -> tuple[list[Record], str]:
        """Return the calls with which a text begins, and the text behind them."""
        found: list[Record] = []
        rest = text
        while (body := rest.lstrip()).startswith(self.form.before):
            body = body.removeprefix(self.form.before).lstrip()
            try:
                value, end = JSON.raw_decode(body)
                values = value if isinstance(value, list) else [value]
                calls = [call for call in map(self._call, values) if call]
            except (ValueError, RecursionError):
                break
            if not calls or len(calls) < len(values):
                break
            found += calls
            # The token that ends a turn may stand for the mark.
            rest = body[end:].lstrip().removeprefix(self.form.after).lstrip(" \n;")
        return found, rest

    def _call(self, value: Any) -> Record | None:
        """Return a call in OpenAI's form; None for what is none of a tool that was offered."""
        if not isinstance(value, dict):
            return None
        name = value.get(self.form.name)
        arguments = value.get(self.form.arguments) or {}
        if not isinstance(name, str) or name not in self.tools or not isinstance(arguments, dict):
            return None
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        written.encode()  # half a character is an error
        number = "".join(secrets.choice(LETTERS) for _ in range(ID_LENGTH))
        return {"id": number, "type": "function", "function": {"name": name, "arguments": written}}
