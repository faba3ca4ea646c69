"""The chat template of a public model: conversations to tokens, as `transformers` writes them, and what is learned.

rendering.py writes the text, special_names.py reads it as tokens, answers.py finds what the assistant wrote, calls.py
how tools are called.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import tokenizers

from nanochat.errors import TemplateError, UserError
from nanochat.protocols import CallForm, Conversation, Message
from tracks.bases.answers import Answers, Rendered
from tracks.bases.calls import calls_of, check_calls, find_call_form, takes_text_arguments
from tracks.bases.rendering import BEGIN, Renderer
from tracks.bases.special_names import SpecialNames

PROBE = "probe_of_a_message"  # no template has this word of its own


class JinjaTemplate:
    """A `nanochat.tokenizer.ChatTemplate`.

    turn_ends: tokens that end a turn. day: what a template that asks for the date is told. listed: names of further
    special tokens. A message writes no special token, and no added one that the template writes around messages,
    whatever tokenizer.json says of it.
    """

    def __init__(
        self,
        source: str,
        variables: Mapping[str, str],
        backend: tokenizers.Tokenizer,
        turn_ends: Sequence[int],
        day: str,
        listed: Collection[str] = (),
    ) -> None:
        self.renderer = Renderer(source, variables, day)
        added = backend.get_added_tokens_decoder()
        ordinary = {token.content for token in added.values() if not token.special}
        ends = {token.content for id, token in added.items() if id in turn_ends}
        self.special = SpecialNames(backend, ordinary & {*ends, *listed, *_around_messages(self.renderer, ordinary)})
        self.answers = Answers(self.renderer, self.special, frozenset(turn_ends))

    @property
    def special_tokens(self) -> dict[str, int]:
        """Ids by name."""
        return self.special.by_name

    @cached_property
    def call_form(self) -> CallForm | None:
        """How calls of tools are written, found by rendering one; None if no JSON with its name and arguments is."""
        return find_call_form(self.renderer, self.special)

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """Return the ids up to the place where the assistant begins to write."""
        messages, _, text = self._written(conversation, prompt=True)
        check_calls(messages, text)
        return [id for id, _ in self.special.tokens(text)]

    def ids_of(self, messages: list[Message]) -> list[int]:
        """Return the ids of messages."""
        return [id for id, _ in self.special.tokens(self.renderer.text(self._prepared(messages)))]

    def render(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        """Return (ids, mask) for a conversation; the mask is 1 on tokens that the assistant writes, else 0."""
        messages, tools, text = self._written(conversation)
        rendered = Rendered(messages, tools, text, list(self.special.tokens(text)))
        return [id for id, _ in rendered.tokens], self.answers.mask(rendered)

    def _written(self, conversation: Conversation, prompt: bool = False) -> tuple[list[dict[str, Any]], Any, str]:
        """Return the messages and tools of a conversation for the template, and the text that it writes for them.

        What a developer says is the system's, where the template refuses the role or would leave the message out: most
        know no such role.
        """
        tools = self._tools(conversation)
        messages = self._prepared(conversation["messages"], tools)
        if not any(message["role"] == "developer" for message in messages):
            return messages, tools, self.renderer.text(messages, tools, prompt)
        said = [number for number, one in enumerate(messages) if one["role"] == "developer" and one.get("content")]
        with suppress(TemplateError):
            text = self.renderer.text(messages, tools, prompt)
            if self._writes(said, messages, tools, text, prompt):
                return messages, tools, text
        messages = [{**one, "role": "system"} if one["role"] == "developer" else one for one in messages]
        text = self.renderer.text(messages, tools, prompt)
        if not self._writes(said, messages, tools, text, prompt):
            raise TemplateError("the chat template does not write the message of the role developer")
        return messages, tools, text

    def _writes(self, numbers: list[int], messages: list[dict[str, Any]], tools: Any, text: str, prompt: bool) -> bool:
        """Return True if all these messages are in the text: with another content it would not be the same."""
        for number in numbers:
            other = [*messages]
            other[number] = {**messages[number], "content": f"{messages[number]['content']}{BEGIN}"}
            if self.renderer.text(other, tools, prompt) == text:
                return False
        return True

    def _prepared(self, messages: Sequence[Message], tools: Any = None) -> list[dict[str, Any]]:
        """Return messages for the template: contents are text, with marks in each name of a special token.

        The assistant's keep the names that the template looks for there: it would not find a thought's end.

        What is null is left out, as `transformers` does, and an empty list of calls: templates ask `'tool_calls' in
        message`, and programs that write tables as JSON give each row every key.
        """
        found = []
        for message in messages:
            said = {key: value for key, value in message.items() if value is not None}
            if self.renderer.asks_for_none and "content" in message:
                said["content"] = message["content"]
            said.pop("tool_calls", None)
            changed: dict[str, Any] = {**said, **self._calls_of(message, tools)}
            if message.get("content") is not None:
                changed["content"] = _spoken(message)
            try:
                marked = self.special.all_marked(changed)
            except RecursionError:
                raise TemplateError("a message is nested too deep for a chat template") from None
            if message["role"] == "assistant" and marked.get("content") is not None:
                marked["content"] = self.special.marked(changed["content"], self._sought)
            found.append(marked)
        return found

    def _calls_of(self, message: Message, tools: Any) -> dict[str, Any]:
        """Return the calls of tools in a message, if it has any, in the form that the template takes."""
        if not message.get("tool_calls"):
            return {}
        return calls_of(message, self._takes_text_arguments[tools is not None])

    @cached_property
    def _takes_text_arguments(self) -> Mapping[bool, bool]:
        return takes_text_arguments(self.renderer)

    @cached_property
    def _sought(self) -> frozenset[str]:
        """Names of special tokens that the template looks for in contents, but for ends of turns."""
        found = {name for text in self.renderer.sought() for name in self.special.pattern.findall(text)}
        return frozenset(name for name in found if self.special.by_name[name] not in self.answers.turn_ends)

    def _tools(self, conversation: Conversation) -> list[Any] | None:
        """Return the tools that a conversation offers to the assistant."""
        tools: Any = conversation.get("tools")
        if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
            raise UserError("the tools of a conversation are a list of objects, as in JSON")
        return self.special.all_marked(tools)


def _around_messages(renderer: Renderer, names: Collection[str]) -> set[str]:
    """Return those of some names, in brackets, that a template writes around messages: they open and end turns.

    What it writes within an answer's turn, as the opening of a thought, is not among them: it may be said.
    """
    names = [name for name in names if name[0] in "<[" and name[-1] in ">]"]
    if not names:
        return set()
    found = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
    system, question, answer = ({"role": role, "content": PROBE} for role in ("system", "user", "assistant"))
    asked = [question, answer]
    written = []
    for messages in ([question], [system, question], asked):
        try:
            written.append(renderer.text(messages))
        except TemplateError:  # of a template without system messages, for example
            written.append("")
    plain, with_system, answered = written
    turn, _, behind = answered.removeprefix(plain).rpartition(PROBE)
    opening = found.match(turn.lstrip())
    return {*found.findall(plain + with_system + behind), *([opening[0]] if opening else [])}


def _spoken(message: Message) -> str:
    """Return the text of a message, without calls of our calculator: a public model has no tokens for those."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content if part["type"] == "text")
