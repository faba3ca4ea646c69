"""Calls of tools in what a public model writes: from its text to OpenAI's `tool_calls`.

A call is JSON with the name of a tool and its arguments, and stands where the model's template writes calls
(`protocols.CallForm`): between two marks, or where the answer begins. Several calls follow each other, or form a list.
"""

import json
import secrets
from collections.abc import Collection
from typing import Any

from nanochat.log import Record
from nanochat.protocols import CallForm

JSON = json.JSONDecoder()


class CallFinder:
    """Finds the calls in an answer that comes in pieces. tools: names of those that may be called."""

    def __init__(self, form: CallForm, tools: Collection[str]) -> None:
        self.form = form
        self.tools = tools
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
        if not before:  # calls are all that an answer has
            rest = self.held.lstrip()
            return len(self.held) if self.shown or (rest and rest[0] not in "{[") else 0
        if before in self.held:
            return self.held.index(before)
        # The next text may complete the mark.
        starts = (place for place in range(len(self.held)) if before.startswith(self.held[place:]))
        return next(starts, len(self.held))

    def close(self) -> tuple[str, list[Record]]:
        """Return the rest of the text, and the calls; without a call that can be read, all of it is text."""
        held, self.held = self.held, ""
        calls = self._calls(held)
        return ("", calls) if calls else (held, [])

    def _calls(self, text: str) -> list[Record]:
        """Return the calls that make up a text; none if anything else is in it."""
        found: list[Record] = []
        rest = text.strip()
        while rest:
            if not rest.startswith(self.form.before):
                return []
            try:
                value, end = JSON.raw_decode(rest.removeprefix(self.form.before).lstrip())
            except (ValueError, RecursionError):
                return []
            rest = rest.removeprefix(self.form.before).lstrip()[end:].lstrip()
            # The token that ends a turn may stand for the mark.
            rest = rest.removeprefix(self.form.after).lstrip(" \n;")
            calls = [self._call(one) for one in (value if isinstance(value, list) else [value])]
            if not calls or None in calls:
                return []
            found += [call for call in calls if call]
        return found

    def _call(self, value: Any) -> Record | None:
        """Return a call in OpenAI's form; None for what is none of a tool that was offered."""
        if not isinstance(value, dict):
            return None
        name = value.get(self.form.name)
        arguments = value.get(self.form.arguments, {})
        if not isinstance(name, str) or name not in self.tools or not isinstance(arguments, dict):
            return None
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
