"""Chat templates of public models: Jinja over messages, as `transformers` renders them, in a sandbox.

A template sees the messages, the tools, and a few functions; it reaches no attribute that Python keeps to itself, no
file and no module. Text in a message never becomes a special token, even if it spells one.

Which tokens a model learns is found by rendering. A template that marks them itself, with `{% generation %}`, is taken
at its word. Otherwise an answer is what follows its prompt, up to the end of the turn. Where a template writes an old
answer in another way than it asks for one, the answer is found by marks around its content.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import tokenizers

from nanochat.errors import TemplateError, UserError
from nanochat.protocols import CallForm, Conversation, Message

if TYPE_CHECKING:
    from jinja2.parser import Parser

# Marks around what is learned, and one behind each letter of a special token's name in a text: no text has them.
BEGIN, END, BREAK = "\U000f51a1", "\U000f51a2", "\U000f51a3"
RENDERED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "marks"})  # variables of a rendering
PROBE = "probe_of_calls"  # name of a tool, and of its argument, in a rendering
Span = tuple[int, int]  # first character, and the one behind the last


class Rendered(NamedTuple):
    """A conversation, and what the template writes for it."""

    messages: Sequence[dict[str, Any]]
    tools: Any
    text: str
    tokens: Sequence[tuple[int, Span]]  # each with its characters


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
    """Write JSON as it is: the filter of Jinja escapes for HTML. Marks stay what they are."""
    written = json.dumps(value, ensure_ascii=False, indent=indent, **options)
    others = rf"[^\x00-\x7f{BEGIN}{END}{BREAK}]+"
    return re.sub(others, lambda found: json.dumps(found[0])[1:-1], written) if ensure_ascii else written


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

    turn_ends: tokens that end a turn. day: what a template that asks for the date is told, like 2026-11-27; always the
    same, so that training can be repeated on another day. listed: names of further special tokens. A message writes no
    special token, and no added one that the template writes around messages, whatever tokenizer.json says of it.
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
        self.source = source
        self.variables = dict(variables)
        self.turn_ends = frozenset(turn_ends)
        environment = _environment(datetime.fromisoformat(day or "2026-01-01"))
        try:
            self.template = environment.from_string(source)
            self.tree = environment.parse(source)
        # Nested too deep, or a constant too large, is an error of Python.
        except Exception as error:
            raise UserError(f"its chat template cannot be read: {_line(error)}") from None
        self.marks_itself = self.tree.find(jinja2.nodes.ExtensionAttribute) is not None  # `Generation` makes them
        added = backend.get_added_tokens_decoder()
        ordinary = {token.content for token in added.values() if not token.special}
        ends = {token.content for id, token in added.items() if id in self.turn_ends}
        ordinary &= {*ends, *listed, *self._around_messages(ordinary)}
        self.reader = backend  # reads every text as plain
        if ordinary:  # a large vocabulary takes seconds to read again
            self.reader = tokenizers.Tokenizer.from_str(with_special(backend.to_str(), ordinary))
            self.reader.encode_special_tokens = True
        self.special_tokens = special_tokens(self.reader)
        self.special = set(self.special_tokens.values())

    def _around_messages(self, names: Collection[str]) -> set[str]:
        """Return those of some names, in brackets, that the template writes around messages: they open and end turns.

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
                written.append(self.text(messages))
            except TemplateError:  # of a template without system messages, for example
                written.append("")
        plain, with_system, answered = written
        turn, _, behind = answered.removeprefix(plain).rpartition(PROBE)
        opening = found.match(turn.lstrip())
        return {*found.findall(plain + with_system + behind), *([opening[0]] if opening else [])}

    @cached_property
    def reader_of_names(self) -> tokenizers.Tokenizer:
        """The tokenizer that reads the names of special tokens as those."""
        backend = tokenizers.Tokenizer.from_str(self.reader.to_str())
        backend.encode_special_tokens = False
        return backend

    @cached_property
    def reader_inside(self) -> tokenizers.Tokenizer:
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
    def names(self) -> re.Pattern[str]:
        """Matches the names of special tokens, of which a text has none without a mark: one letter may be a name."""
        added = self.reader.get_added_tokens_decoder().values()
        names = sorted((token.content for token in added if token.special), key=len, reverse=True)
        return re.compile(f"(?:{'|'.join(map(re.escape, names)) or '(?!)'})(?!{BREAK})")

    @cached_property
    def cuts(self) -> re.Pattern[str]:
        """Matches the same names, with the blanks that some tokens take from the text beside them."""
        added = {token.content: token for token in self.reader.get_added_tokens_decoder().values()}

        def with_blanks(name: str) -> str:
            before, behind = (r"\s*" if takes else "" for takes in (added[name].lstrip, added[name].rstrip))
            return f"{before}{re.escape(name)}(?!{BREAK}){behind}"

        names = sorted((name for name, token in added.items() if token.special), key=len, reverse=True)
        return re.compile("|".join(map(with_blanks, names)) or "(?!)")

    @cached_property
    def sought(self) -> frozenset[str]:
        """Names of special tokens that the template looks for, as in `'</think>' in content`, but for ends of turns."""
        values = [
            compared.expr
            for compared in self.tree.find_all(jinja2.nodes.Compare)
            if compared.ops[0].op in ("in", "notin")
        ]
        for call in self.tree.find_all(jinja2.nodes.Call):
            if isinstance(call.node, jinja2.nodes.Getattr):  # content.split('</think>')
                values += call.args
        texts = [one.value for one in values if isinstance(one, jinja2.nodes.Const) and isinstance(one.value, str)]
        found = {name for text in texts for name in self.names.findall(text)}
        return frozenset(name for name in found if self.reader.token_to_id(name) not in self.turn_ends)

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
            raise TemplateError(f"the chat template refuses the conversation: {_line(error)}") from None
        # Whatever a template computes may fail: an index, a sum of a text and a number, a text too long for memory.
        except Exception as error:
            raise TemplateError(f"the chat template fails for the conversation: {_line(error)}") from None

    @cached_property
    def call_form(self) -> CallForm | None:
        """How calls of tools are written, found by rendering one; None if no JSON with its name and arguments is."""
        call = {"id": "call00000", "type": "function", "function": {"name": PROBE, "arguments": {PROBE: 1}}}
        parameters = {"type": "object", "properties": {}}
        tools = [{"type": "function", "function": {"name": PROBE, "description": PROBE, "parameters": parameters}}]
        question = {"role": "user", "content": "Hi"}
        try:
            told, untold = (self.text([question], offered, prompt=True) for offered in (tools, None))
            written = self.text([question, {"role": "assistant", "content": "", "tool_calls": [call]}], tools)
        except TemplateError:
            return None
        found = [] if told == untold else list(_probes(written))
        if not found:
            return None
        (start, end), name, arguments = found[-1]  # behind an example, if the template shows one
        # A list of calls has brackets, and special tokens are not shown: the mark is the word beside those.
        before = self.names.sub("\n", written.removeprefix(told)[: start - len(written)]).rstrip(" \n[")
        after = self.names.sub("\n", written[end:]).lstrip(" \n]")
        mark = re.split(r"\s", before)[-1]
        if not written.startswith(told) and not mark.startswith(("<", "[")):
            return None
        try:
            self.text([question, {"role": "assistant", "content": "", "tool_calls": [call, call]}], tools)
            several = True
        except TemplateError:
            several = False
        return CallForm(mark, re.split(r"\s", after)[0], name, arguments, several)

    @cached_property
    def asks_for_none(self) -> bool:
        """Whether the template asks if a message's content is none, as some do before they write calls."""
        asked = [test.node for test in self.tree.find_all(jinja2.nodes.Test) if test.name == "none"]
        keys = {node.attr for node in asked if isinstance(node, jinja2.nodes.Getattr)}
        items = [node.arg for node in asked if isinstance(node, jinja2.nodes.Getitem)]
        keys |= {item.value for item in items if isinstance(item, jinja2.nodes.Const)}
        return "content" in keys

    @cached_property
    def takes_text_arguments(self) -> Mapping[bool, bool]:
        """Whether arguments of calls have to be a text, as an API gives them; by whether tools are offered.

        Most templates take objects. Those that add arguments to a text fail, or write the object as Python does.
        """
        tool = {"type": "function", "function": {"name": "tool", "description": "", "parameters": {}}}

        def writes(arguments: Any, tools: Any) -> bool:
            call = {"id": "call00000", "type": "function", "function": {"name": PROBE, "arguments": arguments}}
            for content in ("", None):  # some write calls only beside no content
                answer = {"role": "assistant", "content": content, "tool_calls": [call]}
                try:
                    text = self.text([{"role": "user", "content": "Hi"}, answer], tools)
                except TemplateError:
                    continue
                if PROBE in text and (isinstance(arguments, str) or str(arguments) not in text):
                    return True
            return False

        return {
            tools is not None: not writes({PROBE: 1}, tools) and writes(json.dumps({PROBE: 1}), tools)
            for tools in (None, [tool])
        }

    # ---- to tokens ----

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """Return the ids up to the place where the assistant begins to write."""
        messages, _, text = self._written(conversation, prompt=True)
        _check_calls(messages, text)
        return [id for id, _ in self._tokens(text)]

    def whole(self, messages: list[Message]) -> list[int]:
        """Return the ids of messages."""
        return [id for id, _ in self._tokens(self.text(self._prepared(messages)))]

    def render(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        """Return (ids, mask) for a conversation; the mask is 1 on tokens that the assistant writes, else 0."""
        messages, tools, text = self._written(conversation)
        tokens = list(self._tokens(text))
        mask = [0] * len(tokens)
        if self.marks_itself:
            spans = _spans(text, self.text(messages, tools, marks=True))
            if spans is None:
                raise TemplateError("the chat template writes another text where it marks what the assistant writes")
            for start, stop in spans:
                for place, (_, span) in enumerate(tokens):
                    if span[1] > start and span[0] < stop:
                        mask[place] = 1
            if spans:  # else it has not marked this conversation, as one of two templates that were joined may not
                _check_calls(messages, "".join(text[start:stop] for start, stop in spans))
                return [id for id, _ in tokens], mask
        whole = Rendered(messages, tools, text, tokens)
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                span = self._span_of(whole, number)
                if span is None:
                    raise TemplateError("it cannot be found in the chat template which tokens the assistant writes")
                _check_calls([message], text[slice(*span)])
                self._learn(mask, tokens, text, span)
        return [id for id, _ in tokens], mask

    def _written(self, conversation: Conversation, prompt: bool = False) -> tuple[list[dict[str, Any]], Any, str]:
        """Return the messages and tools of a conversation for the template, and the text that it writes for them.

        What a developer says is the system's, where the template refuses the role or would leave the message out: most
        know no such role.
        """
        tools = self._tools(conversation)
        messages = self._prepared(conversation["messages"], tools)
        if not any(message["role"] == "developer" for message in messages):
            return messages, tools, self.text(messages, tools, prompt)
        said = [number for number, one in enumerate(messages) if one["role"] == "developer" and one.get("content")]
        with suppress(TemplateError):
            text = self.text(messages, tools, prompt)
            if self._writes(said, messages, tools, text, prompt):
                return messages, tools, text
        messages = [{**one, "role": "system"} if one["role"] == "developer" else one for one in messages]
        text = self.text(messages, tools, prompt)
        if not self._writes(said, messages, tools, text, prompt):
            raise TemplateError("the chat template does not write the message of the role developer")
        return messages, tools, text

    def _writes(self, numbers: list[int], messages: list[dict[str, Any]], tools: Any, text: str, prompt: bool) -> bool:
        """Return True if all these messages are in the text: with another content it would not be the same."""
        for number in numbers:
            other = [*messages]
            other[number] = {**messages[number], "content": f"{messages[number]['content']}{BEGIN}"}
            if self.text(other, tools, prompt) == text:
                return False
        return True

    def _span_of(self, whole: Rendered, number: int) -> Span | None:
        """Return where a message of the assistant stands in the text; None if it cannot be found.

        Calls are written beside the content: where marks around it would not tell, the turn does.
        """
        span = self._behind_prompt(whole, number)
        if span is None and whole.messages[number].get("tool_calls"):
            span = self._to_turn_end(whole, number)
            return span or self._around_call(whole, number)
        return span or self._around(whole, number)

    def _behind_prompt(self, whole: Rendered, number: int) -> Span | None:
        """Return where a message stands, from the end of its prompt on; None if the text does not go on like that."""
        try:
            prompt = self.text(whole.messages[:number], whole.tools, prompt=True)
            until = self.text(whole.messages[: number + 1], whole.tools)
        except TemplateError:  # a template may ask for an end by the assistant, or the user
            return None
        if whole.text.startswith(until) and until.startswith(prompt):
            return len(prompt), len(until)
        return None

    def _to_turn_end(self, whole: Rendered, number: int) -> Span | None:
        """Return where a message stands, from the end of its prompt to the next end of a turn, if there is one."""
        prompt = self.text(whole.messages[:number], whole.tools, prompt=True)
        stop = self._next_turn_end(whole.tokens, len(prompt))
        return (len(prompt), stop) if stop and whole.text.startswith(prompt) else None

    def _around_call(self, whole: Rendered, number: int) -> Span | None:
        """Return where a message with calls stands whose prompt the text has in another form, as without old thoughts.

        The name of its first call is found by marks; the message begins behind the last opening of a turn before it.
        """
        first, *others = whole.messages[number]["tool_calls"]
        function = first.get("function", first)
        if not isinstance(function, dict):
            return None
        marked_function = {**function, "name": f"{BEGIN}{function.get('name')}{END}"}
        marked_call = {**first, "function": marked_function} if "function" in first else marked_function
        marked = list(whole.messages)
        marked[number] = {**whole.messages[number], "tool_calls": [marked_call, *others]}
        try:
            found = _spans(whole.text, self.text(marked, whole.tools))
            before, prompt = (self.text(whole.messages[:number], whole.tools, prompt=asked) for asked in (False, True))
        except TemplateError:  # a template may look at names
            return None
        opening = prompt.removeprefix(before)
        if not found or not 0 < len(opening) < len(prompt):
            return None
        start = whole.text.rfind(opening, 0, found[0][0]) + len(opening)
        stop = self._next_turn_end(whole.tokens, found[0][1])
        is_own = start >= len(opening) and self._next_turn_end(whole.tokens, start) == stop  # no turn ends between
        return (start, stop) if is_own and stop else None

    def _next_turn_end(self, tokens: Sequence[tuple[int, Span]], place: int) -> int | None:
        """Return the character behind the first end of a turn from a place on."""
        return next((span[1] for id, span in tokens if id in self.turn_ends and span[0] >= place), None)

    def _around(self, whole: Rendered, number: int) -> Span | None:
        """Return where a message's content stands, or what the template leaves of it; None if it changes all of it."""
        content = whole.messages[number]["content"]
        for start, stop in (_whole(content), _words(content), *_answers(content, self.source)):
            marked = list(whole.messages)
            inner = content[:start] + BEGIN + content[start:stop] + END + content[stop:]
            marked[number] = {**whole.messages[number], "content": inner}
            try:
                found = _spans(whole.text, self.text(marked, whole.tools))
            except TemplateError:  # a template may look at contents
                continue
            if found:
                return found[0]
        return None

    def _learn(self, mask: list[int], tokens: Sequence[tuple[int, Span]], text: str, span: Span) -> None:
        """Set the mask for the tokens of a span, up to the end of the turn; that may stand behind it, after blanks."""
        behind: list[int] = []
        for place, (id, (start, stop)) in enumerate(tokens):
            if stop <= span[0] or (start < span[0] and id in self.special):  # that may have taken blanks from the span
                continue
            if id in self.turn_ends and start >= span[0]:
                for one in (*behind, place):
                    mask[one] = 1
                return
            if start < span[1]:
                mask[place] = 1
            elif text[start:stop].isspace():
                behind.append(place)
            else:
                return

    def _prepared(self, messages: Sequence[Message], tools: Any = None) -> list[dict[str, Any]]:
        """Return messages for the template: contents are text, with marks in each name of a special token.

        The assistant's keep the names that the template looks for there: it would not find a thought's end.

        What is null is left out, as `transformers` does, and an empty list of calls: templates ask `'tool_calls' in
        message`, and programs that write tables as JSON give each row every key.
        """
        found = []
        for message in messages:
            said = {key: value for key, value in message.items() if value is not None}
            if self.asks_for_none and "content" in message:
                said["content"] = message["content"]
            said.pop("tool_calls", None)
            changed: dict[str, Any] = {**said, **self._calls_of(message, tools)}
            if message.get("content") is not None:
                changed["content"] = _spoken(message)
            try:
                marked = self._without_names(changed)
            except RecursionError:
                raise TemplateError("a message is nested too deep for a chat template") from None
            if message["role"] == "assistant" and marked.get("content") is not None:
                marked["content"] = self._marked_names(changed["content"], self.sought)
            found.append(marked)
        return found

    def _calls_of(self, message: Message, tools: Any) -> dict[str, Any]:
        """Return the calls of tools in a message, if it has any, in the form that the template takes."""
        if not message.get("tool_calls"):
            return {}
        return _calls(message, self.takes_text_arguments[tools is not None])

    def _marked_names(self, value: str, kept: frozenset[str] = frozenset()) -> str:
        """Return a text with marks in each name of a special token, but for those that are kept."""
        text = value.translate(dict.fromkeys(map(ord, (BEGIN, END, BREAK))))  # marks are ours alone
        return self.names.sub(lambda name: name[0] if name[0] in kept else BREAK.join(name[0]) + BREAK, text)

    def _without_names(self, value: Any) -> Any:
        """Return a value of JSON with marks in each name of a special token, so that none is read as one."""
        if isinstance(value, str):
            return self._marked_names(value)
        if isinstance(value, list):
            return [self._without_names(one) for one in value]
        if isinstance(value, dict):
            return {self._without_names(key): self._without_names(one) for key, one in value.items()}
        return value

    def _tools(self, conversation: Conversation) -> list[Any] | None:
        """Return the tools that a conversation offers to the assistant."""
        tools: Any = conversation.get("tools")
        if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
            raise UserError("the tools of a conversation are a list of objects, as in JSON")
        return self._without_names(tools)

    def _tokens(self, text: str) -> Iterator[tuple[int, Span]]:
        """Yield the tokens of a rendered text, each with its characters; names with a mark in them are plain text."""
        if not is_text(text):
            raise TemplateError("the chat template writes half a character, its own or a message's, which is no text")
        if BREAK not in text:
            encoding = self.reader_of_names.encode(text, add_special_tokens=False)
            yield from zip(encoding.ids, encoding.offsets, strict=True)
            return
        place = 0
        for piece in re.split(f"({self.cuts.pattern})", text):
            if self.cuts.fullmatch(piece):
                id = self.reader.token_to_id(self.names.findall(piece)[0])
                assert id is not None  # a name in its vocabulary
                yield id, (place, place + len(piece))
            else:
                reader = self.reader_inside if place else self.reader
                encoding = reader.encode(piece.replace(BREAK, ""), add_special_tokens=False)
                places = [number for number, letter in enumerate(piece) if letter != BREAK]
                for id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
                    yield id, (place + places[start], place + places[max(start, stop - 1)] + 1)
            place += len(piece)


def is_text(value: str) -> bool:
    """Return False if a value has half of a surrogate pair, which UTF-8 cannot write."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


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


def _spoken(message: Message) -> str:
    """Return the text of a message, without calls of our calculator: a public model has no tokens for those."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content if part["type"] == "text")


def _calls(message: Message, as_text: bool) -> dict[str, Any]:
    """Return the calls of tools in a message; arguments in a text, as APIs have them, become the object that it is.

    as_text: the template adds them to a text, so they become one.
    """
    calls = [dict(call) for call in message.get("tool_calls") or []]
    for call in calls:
        function = call.get("function", call)
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(arguments, str):
            try:
                found = json.loads(arguments or "{}")
                json.dumps(found, ensure_ascii=False).encode()  # half a character is an error
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                raise TemplateError(f"the arguments of a call are no JSON object: {arguments[:80]}")
            arguments = (arguments or "{}") if as_text else found
        elif isinstance(arguments, dict) and as_text:
            arguments = _to_json(arguments)
        else:
            continue
        changed = {**function, "arguments": arguments}
        call.update({"function": changed} if "function" in call else changed)
    return {"tool_calls": calls} if calls else {}


def _probes(text: str) -> Iterator[tuple[Span, str, str]]:
    """Yield where the call of the probe stands as JSON in a text, and the keys of its name and its arguments."""
    for place in re.finditer(r"\{", text):
        try:
            value, end = json.JSONDecoder().raw_decode(text, place.start())
        except ValueError:
            continue
        keys = {json.dumps(content): key for key, content in value.items()}
        name, arguments = keys.get(json.dumps(PROBE)), keys.get(json.dumps({PROBE: 1}))
        if name and arguments:
            yield (place.start(), end), name, arguments


def _check_calls(messages: Sequence[dict[str, Any]], written: str) -> None:
    """Raise a TemplateError if the names of called tools are not in what a template has written for these messages."""
    for message in messages:
        for call in (message.get("tool_calls") or []) if message["role"] == "assistant" else []:
            function = call.get("function", call)
            name = function.get("name") if isinstance(function, dict) else None
            if not isinstance(name, str) or name not in written:
                raise TemplateError(f"the chat template does not write the call of {name}")


def _line(error: Exception) -> str:
    """Return an error's first line, or its type."""
    return str(error).partition("\n")[0] or type(error).__name__


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


def _answers(content: str, template: str) -> Iterator[Span]:
    """What stands behind a closing tag, in which a thought may end; first behind those that the template names."""
    tags = re.finditer(r"</\w+>", content)
    for tag in sorted(tags, key=lambda tag: tag[0] not in template):
        start, stop = _words(content[tag.end() :])
        yield start + tag.end(), stop + tag.end()
