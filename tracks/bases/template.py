"""Chat templates of public models: Jinja over messages, as `transformers` renders them, in a sandbox.

A template sees the messages, the tools, and a few functions; it reaches no attribute that Python keeps to itself, no
file and no module. Text in a message never becomes a special token, even if it spells one.

Which tokens a model learns is found by rendering. A template that marks them itself, with `{% generation %}`, is taken
at its word. Otherwise a conversation is rendered with marks around what the assistant says, and the end of the turn
behind it is learned too.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import tokenizers

from nanochat.errors import UserError
from nanochat.protocols import Conversation, Message

if TYPE_CHECKING:
    from jinja2.parser import Parser

# Marks around what is learned, and one that parts the name of a special token in a text: no text has them.
BEGIN, END, PART = "\U000f51a1", "\U000f51a2", "\U000f51a3"
Span = tuple[int, int]  # first character, and the one behind the last


class Generation(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}`: what the assistant writes, between marks if `marks` is set."""

    tags = {"generation"}  # noqa: RUF012  # as the base class has it

    def parse(self, parser: "Parser") -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    @jinja2.pass_context
    def _marked(self, context: jinja2.runtime.Context, caller: Callable[[], str]) -> str:
        written = caller()
        return f"{BEGIN}{written}{END}" if context.get("marks") else written


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Write JSON as it is: the filter of Jinja escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _environment(day: datetime) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    more: Any = {"raise_exception": _refuse, "strftime_now": day.strftime}
    environment.globals.update(more)
    return environment


class JinjaTemplate:
    """A `nanochat.tokenizer.ChatTemplate`.

    ends: tokens that end a turn. day: what a template that asks for the date is told, as 2026-11-27; always the same,
    so that training can be repeated on another day.
    """

    def __init__(
        self, source: str, variables: Mapping[str, str], backend: tokenizers.Tokenizer, ends: Sequence[int], day: str
    ) -> None:
        self.source = source
        self.variables = dict(variables)
        self.plain = backend  # reads every text as plain
        self.ends = frozenset(ends)
        try:
            self.template = _environment(datetime.fromisoformat(day)).from_string(source)
        except jinja2.TemplateError as error:
            raise UserError(f"its chat template cannot be read: {error}") from None
        self.marks_itself = re.search(r"\{%-?\s*generation\b", source) is not None

    @cached_property
    def parsing(self) -> tokenizers.Tokenizer:
        """The tokenizer that reads the names of special tokens as those."""
        backend = tokenizers.Tokenizer.from_str(self.plain.to_str())
        backend.encode_special_tokens = False
        return backend

    @cached_property
    def names(self) -> re.Pattern[str]:
        """Matches the names of special tokens."""
        added = self.plain.get_added_tokens_decoder().values()
        names = sorted((token.content for token in added if token.special), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or r"(?!)")

    # ---- to text ----

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        prompt: bool = False,
        marks: bool = False,
    ) -> str:
        """Return messages as the template writes them. prompt: up to where the assistant begins to write."""
        try:
            return self.template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
                marks=marks and self.marks_itself,
                **self.variables,
            )
        except jinja2.TemplateError as error:
            raise UserError(f"the chat template refuses the conversation: {error}") from None
        # Whatever a template computes may fail: an index, a sum of a text and a number.
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise UserError(f"the chat template fails for the conversation: {error!r}") from None

    # ---- to tokens ----

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """Return the ids up to the place where the assistant begins to write."""
        text = self.text(self._parted(conversation["messages"]), _tools(conversation), prompt=True)
        return [id for id, _ in self._tokens(text)]

    def whole(self, messages: list[Message]) -> list[int]:
        """Return the ids of messages."""
        return [id for id, _ in self._tokens(self.text(self._parted(messages)))]

    def render(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        """Return (ids, mask) for a conversation; the mask is 1 on tokens that the assistant writes, else 0."""
        messages = self._parted(conversation["messages"])
        tools = _tools(conversation)
        text = self.text(messages, tools)
        tokens = list(self._tokens(text))
        return [id for id, _ in tokens], self._mask(tokens, self._learned(text, messages, tools))

    def _learned(self, text: str, messages: Sequence[dict[str, Any]], tools: Any) -> list[Span]:
        """Return what the assistant writes in the text that the template makes of messages."""
        if self.marks_itself:
            found = _spans(text, self.text(messages, tools, marks=True))
        else:
            answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
            found = self._spans_of(text, messages, tools, answers, _whole)
            if found is None:  # a template that changes some of them: each alone, in the way that it leaves whole
                found = []
                for number in answers:
                    ways = (self._spans_of(text, messages, tools, [number], part) for part in (_whole, _words, _answer))
                    found += next((spans for spans in ways if spans), [(-1, -1)])
        if found is None or (-1, -1) in found:
            raise UserError("it cannot be found in the chat template which tokens the assistant writes")
        return found

    def _spans_of(
        self,
        text: str,
        messages: Sequence[dict[str, Any]],
        tools: Any,
        numbers: Sequence[int],
        part: Callable[[str], Span],
    ) -> list[Span] | None:
        """Return where a part of some messages' contents stands in the text; None if the template changes it."""
        marked = list(messages)
        for number in numbers:
            content = messages[number]["content"]
            start, stop = part(content)
            content = content[:start] + BEGIN + content[start:stop] + END + content[stop:]
            marked[number] = {**messages[number], "content": content}
        try:
            found = _spans(text, self.text(marked, tools))
        except UserError:  # a template may look at contents
            return None
        return found if found is not None and len(found) == len(numbers) else None

    def _mask(self, tokens: Sequence[tuple[int, Span]], spans: Sequence[Span]) -> list[int]:
        """Return 1 for each token that has a character of a span, and for the end of the turn right behind it."""
        mask = [0] * len(tokens)
        left = iter(spans)
        span = next(left, None)
        for place, (id, (start, stop)) in enumerate(tokens):
            while span is not None and start >= span[1]:
                # The first token behind the span: the end of the turn, unless the span had it already.
                if id in self.ends and not (place and mask[place - 1] and tokens[place - 1][0] in self.ends):
                    mask[place] = 1
                span = next(left, None)
            if span is not None and stop > span[0] and start < span[1]:
                mask[place] = 1
        return mask

    def _parted(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return messages for the template: contents are text, with a mark in each name of a special token."""

        def parted(text: str) -> str:
            text = text.translate(dict.fromkeys(map(ord, (BEGIN, END, PART))))  # marks are ours alone
            return self.names.sub(lambda name: name[0][0] + PART + name[0][1:], text)

        return [{**message, "content": parted(_spoken(message))} for message in messages]

    def _tokens(self, text: str) -> Iterator[tuple[int, Span]]:
        """Yield the tokens of a rendered text, each with its characters; names with a mark in them are plain text."""
        if PART not in text:
            encoding = self.parsing.encode(text, add_special_tokens=False)
            yield from zip(encoding.ids, encoding.offsets, strict=True)
            return
        place = 0
        for piece in re.split(f"({self.names.pattern})", text):
            if self.names.fullmatch(piece):
                id = self.plain.token_to_id(piece)
                assert id is not None  # a name in its vocabulary
                yield id, (place, place + len(piece))
            else:
                encoding = self.plain.encode(piece.replace(PART, ""), add_special_tokens=False)
                places = [number for number, letter in enumerate(piece) if letter != PART]
                for id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
                    yield id, (place + places[start], place + places[max(start, stop - 1)] + 1)
            place += len(piece)


def _spoken(message: Message) -> str:
    """Return the text of a message, without calls of our calculator: a public model has no tokens for those."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content if part["type"] == "text")


def _tools(conversation: Conversation) -> Any:
    return conversation.get("tools")


def _spans(text: str, marked: str) -> list[Span] | None:
    """Return the spans between marks, in the text without them; None if the rest differs, or a mark is missing."""
    pieces = re.split(f"([{BEGIN}{END}])", marked)
    places = list(accumulate(len(piece) for piece in pieces[::2]))[:-1]  # of each mark
    if "".join(pieces[::2]) != text or "".join(pieces[1::2]) != (BEGIN + END) * (len(places) // 2):
        return None
    return list(zip(places[::2], places[1::2], strict=True))


# ---- the part of a content that a template may leave whole ----


def _whole(content: str) -> Span:
    return 0, len(content)


def _words(content: str) -> Span:
    """The content without blanks around it."""
    start = len(content) - len(content.lstrip())
    return start, max(start, len(content.rstrip()))


def _answer(content: str) -> Span:
    """What stands behind thoughts in tags."""
    behind = [match.end() for match in re.finditer(r"</\w+>", content)]
    start, stop = _words(content[behind[-1] :] if behind else content)
    shift = behind[-1] if behind else 0
    return start + shift, stop + shift
