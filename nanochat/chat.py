"""Conversations to token ids with a loss mask, and the tokens of a reply back to text.

A conversation is `{"messages": [{"role", "content"}, …]}`: an optional system message, then user and assistant messages
in turn. Content is a string or a list of parts `{"type", "text"}`; the part types are the keys of PARTS, and only the
assistant may have parts other than text. An assistant message with `tool_calls` is followed by messages of the role
`tool`, and the next of the assistant; the chat templates of public models write those. A user and an assistant message
become

    <|bos|> <|user_start|> question <|user_end|> <|assistant_start|> answer <|assistant_end|>

and a calculator call inside the answer is `<|python_start|> 12*34 <|python_end|> <|output_start|> 408 <|output_end|>`.
An answer with `"weight": 0`, as OpenAI's files have it, or `"train": false`, as those of axolotl, is not learned.
"""

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, cycle, groupby
from typing import Any

from nanochat.errors import TemplateError, UserError
from nanochat.log import Record
from nanochat.protocols import Conversation, Message, Part
from nanochat.settings import CHAT_TEMPERATURE
from nanochat.tokenizer import Tokenizer

ROLES = ("user", "assistant")
ROLES_OF_TEMPLATES = ("system", "developer", "user", "assistant", "tool")
# Which may follow a message, unless it calls tools.
NEXT_ROLES = {
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user",),
    "tool": ("tool", "assistant"),
}

MARKS = ("weight", "train")  # of a message: 0 or false is not to be learned


@dataclass(frozen=True)
class PartType:
    """How a part of a message is written as tokens."""

    marker: str  # name in the special tokens around the part; empty: none
    is_learned: bool  # the model learns to write the part


PARTS = {
    "text": PartType("", is_learned=True),
    "python": PartType("python", is_learned=True),
    "python_output": PartType("output", is_learned=False),  # the calculator writes it
}


def check_conversation(conversation: Any, any_order: bool = False) -> Conversation:
    """Return a conversation that a file or a client has; a UserError names the first malformed message, from 1.

    any_order: who may follow whom is left to the chat template of a public model, which may refuse an order.
    """
    messages = conversation.get("messages") if isinstance(conversation, dict) else None
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise UserError("a conversation has a list `messages` with at least one message")
    due: tuple[str, ...] = ("system", "user")
    for number, message in enumerate(messages, 1):
        role = message.get("role")
        if any_order:
            if role not in ROLES_OF_TEMPLATES:
                raise UserError(f"message {number}: its role is {role!r}, and none of {', '.join(ROLES_OF_TEMPLATES)}")
        elif role not in due:
            raise UserError(f"message {number}: its role is {role!r} where {due[-1]!r} is due")
        # Only the assistant calls tools, and may say nothing beside.
        kinds = tuple(PARTS) if role == "assistant" else ("text",)  # a type may be a list, which no table can look up
        calls = message.get("tool_calls")
        if calls and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise UserError(f"message {number}: its tool_calls are no list of objects")
        calls = calls if role == "assistant" else None
        due = ("tool",) if calls else NEXT_ROLES.get(role, ())
        _check_marks(number, message)
        parts = _parts_of(message)
        if not (isinstance(parts, list) and (parts or calls)) or not all(
            isinstance(part, dict) and part.get("type") in kinds and isinstance(part.get("text"), str) for part in parts
        ):
            raise UserError(
                f"message {number}: its content is neither a string nor a list of parts with a `text`"
                f" and a `type` in {', '.join(kinds)}"
            )
    if messages[-1]["role"] == "system" and not any_order:
        raise UserError("the system message needs a user message after it")
    return conversation


def _check_marks(number: int, message: Any) -> None:
    """Raise a UserError if a message is marked to be learned, or not, in a way that is not obeyed."""
    for name in MARKS:
        mark = message.get(name)
        if mark not in (None, 0, 1):
            raise UserError(
                f"message {number}: its {name} is {mark!r}; an answer is learned, 1 or true, or not, 0 or false"
            )
    if message.get("train") and message["role"] != "assistant":
        raise UserError(f"message {number}: it has train: true, and only what the assistant says can be learned")


def is_learned(message: Message) -> bool:
    """Return False for a message that its file marks as not to be learned."""
    return all(message.get(name) in (None, 1) for name in MARKS)


def has_tool_turns(conversation: Conversation) -> bool:
    """Return True if tools are called in a conversation, or answer."""
    return any(message.get("tool_calls") or message["role"] == "tool" for message in conversation["messages"])


def render_conversation(conversation: Conversation, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return (ids, mask) for a conversation; the mask is 1 on tokens the assistant writes and is to learn, else 0."""
    check_conversation(conversation, any_order=tokenizer.template is not None)
    if tokenizer.template:
        ids, mask = tokenizer.template.render(conversation)
        return ids, _without_unlearned(mask, conversation["messages"])
    special = tokenizer.special_tokens
    if "<|user_start|>" not in special:
        raise UserError("the model came without a chat template: bring it in again with --template=chatml, or a file")
    if has_tool_turns(conversation):
        raise TemplateError("the conversation has turns of tools, which only chat templates of public models write")
    ids: list[int] = []
    mask: list[int] = []

    def add(tokens: list[int], learned: bool) -> None:
        ids.extend(tokens)
        mask.extend([int(learned)] * len(tokens))

    add([tokenizer.bos], learned=False)
    messages = conversation["messages"]
    if _has_system(messages):
        # Its text goes before the first user text.
        system, user, *rest = messages
        joined: Message = {"role": "user", "content": f"{text_of(system)}\n\n{text_of(user)}"}
        messages = [joined, *rest]
    for message in messages:
        role = message["role"]
        learns = role == "assistant" and is_learned(message)
        add([special[f"<|{role}_start|>"]], learned=False)
        for part in _parts_of(message):
            # Each part is tokenized alone: no token spans two parts.
            kind = PARTS[part["type"]]
            tokens = tokenizer.encode(part["text"])
            if kind.marker:
                tokens = [special[f"<|{kind.marker}_start|>"], *tokens, special[f"<|{kind.marker}_end|>"]]
            add(tokens, learns and kind.is_learned)
        # The model has to learn to end an answer.
        add([special[f"<|{role}_end|>"]], learns)
    return ids, mask


def _without_unlearned(mask: list[int], messages: Sequence[Message]) -> list[int]:
    """Return the mask of a chat template without the answers that are not to be learned.

    A template writes the name of a role before each answer: the answers are the runs of ones, in order.
    """
    answers = [is_learned(message) for message in messages if message["role"] == "assistant"]
    if all(answers):
        return mask
    runs = [list(run) for _, run in groupby(mask)]
    if sum(run[0] for run in runs) != len(answers):
        raise TemplateError(
            "it cannot be found in the chat template which answers are those that are not to be learned"
        )
    learned = iter(answers)
    return [bit for run in runs for bit in ([int(next(learned))] * len(run) if run[0] else run)]


def render_prompt(conversation: Conversation, tokenizer: Tokenizer) -> list[int]:
    """Return the ids up to `<|assistant_start|>`, included; a final assistant message is left out."""
    check_conversation(conversation, any_order=tokenizer.template is not None)
    messages = conversation["messages"]
    # Evaluations pass the reference answer along.
    if messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if tokenizer.template:
        return tokenizer.template.render_prompt({**conversation, "messages": messages})
    ids, _ = render_conversation({"messages": messages}, tokenizer)
    return [*ids, tokenizer.special_tokens["<|assistant_start|>"]]


def render_text(conversation: Conversation, tokenizer: Tokenizer) -> list[int]:
    """Return the ids for a base model, which knows no conversations: it continues the last message."""
    check_conversation(conversation, any_order=tokenizer.template is not None)
    return tokenizer.begin(text_of(conversation["messages"][-1]))


def fitted_prompt(
    conversation: Conversation, tokenizer: Tokenizer, context: int, answer: int
) -> tuple[list[int], bool]:
    """Return (prompt ids, True if they were shortened) with room for `answer` tokens in `context`.

    The prompt may always take half the context. The oldest messages are dropped first, each question with all up to
    the next; the system message stays. If the last question alone is too long, the beginning is cut off.
    """
    room = max(context - answer, context // 2)
    ids = whole = render_prompt(conversation, tokenizer)
    messages = list(conversation["messages"])
    if messages[-1]["role"] == "assistant":
        del messages[-1]
    first = int(_has_system(messages))  # the oldest message that may go, a user message
    while len(ids) > room:
        questions = [number for number, message in enumerate(messages) if message["role"] == "user"]
        if len(questions) <= 1:
            break
        del messages[first : questions[1]]
        ids = render_prompt({**conversation, "messages": messages}, tokenizer)
    if len(ids) > room and tokenizer.template:
        ids = _with_end_of_question({**conversation, "messages": messages}, tokenizer, room)
    elif len(ids) > room:
        # Keep bos and user_start, and the end of the question.
        ids = ids[:2] + ids[len(ids) - room + 2 :]
    return ids, len(ids) < len(whole)


def _with_end_of_question(conversation: Conversation, tokenizer: Tokenizer, room: int) -> list[int]:
    """Return the prompt with as much of the last question's end as fits; a template may write anything around it."""
    *before, question = conversation["messages"]
    words = tokenizer.encode(text_of(question))
    ids = render_prompt(conversation, tokenizer)
    while len(ids) > room and words:
        words = words[len(ids) - room :]
        shorter: Message = {**question, "content": tokenizer.decode(words)}
        ids = render_prompt({**conversation, "messages": [*before, shorter]}, tokenizer)
    return ids[max(0, len(ids) - room) :]  # what the template writes before it may be too long alone


def _has_system(messages: list[Message]) -> bool:
    return messages[0].get("role") in ("system", "developer")


def _parts_of(message: Message) -> list[Part]:
    content: Any = message.get("content")
    if content is None:  # beside calls of tools
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def as_messages(value: Any, role: str) -> list[Any]:
    """Return a text in a file as one message of a role, and a list of messages as it is."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        raise UserError(f"what the {role} says is neither a text nor a list of messages: {value!r}"[:200])
    return value


def tools_of(row: Mapping[str, Any]) -> list[Record] | None:
    """Return the tools in a row of a file, if any: a list, or its JSON, as tables store lists of unlike objects."""
    tools = row.get("tools")
    if isinstance(tools, str):
        with suppress(ValueError):  # no JSON is no list either
            tools = json.loads(tools) if tools.strip() else None
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise UserError("the tools of a conversation are a list of objects, or that as JSON in a text")
    return _without_nulls(tools) or None


def refuse_template_values(row: Mapping[str, Any]) -> None:
    """Raise a UserError for values that a row of a file has for its chat template, as trl reads them."""
    if _without_nulls(row.get("chat_template_kwargs")):
        raise UserError(
            "its chat_template_kwargs are not read: a chat template has the same values for all conversations, those of"
            " tracks.bases.bring --template-values"
        )


def without_null_arguments(said: Sequence[Any]) -> list[Any]:
    """Return messages of a file whose calls of tools have no key that is null."""
    return [
        {**message, "tool_calls": _without_nulls(message["tool_calls"])}
        if isinstance(message, dict) and message.get("tool_calls")
        else message
        for message in said
    ]


def _without_nulls(value: Any) -> Any:
    """Return a value of JSON without keys that are null: a table gives each row every key of all rows."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def text_of(message: Message) -> str:
    """Return the text of a message, that of its parts joined."""
    return "".join(part["text"] for part in _parts_of(message))


def messages(texts: Sequence[str | list[Part]]) -> list[Message]:
    """Return contents of the user and the assistant in turn as messages."""
    return [{"role": role, "content": content} for role, content in zip(cycle(ROLES), texts)]


# ---- a reply back to text ----


@dataclass(frozen=True)
class Piece:
    """Text streamed from a part; kind: a key in PARTS, text: empty at the start of a part."""

    kind: str
    text: str


class Reply:
    """Parser for a reply, from tokens to pieces of text, token by token.

    Joined by `parts`, the pieces equal each part decoded at once. Bytes from an incomplete character are held back.
    Special tokens open and close parts and are not shown.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes = tokenizer.core.token_bytes
        self.kind = "text"  # of the part that the next token belongs to
        # Characters may be split over tokens.
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        special = tokenizer.special_tokens
        # Special token -> kind of part it begins; empty for tokens without meaning inside a reply.
        self._begins = dict.fromkeys(special.values(), "")
        for name, kind in PARTS.items():
            if kind.marker and f"<|{kind.marker}_start|>" in special:  # other models call no calculator
                self._begins[special[f"<|{kind.marker}_start|>"]] = name
                self._begins[special[f"<|{kind.marker}_end|>"]] = "text"

    def feed(self, token: int) -> list[Piece]:
        """Return the pieces completed by this token, maybe none."""
        kind = self._begins.get(token)
        # An ordinary token.
        if kind is None:
            return self._pieces(self._utf8.decode(self._bytes(token)))
        if not kind:
            return []
        # A special token ends the part before.
        held_back = self.close()
        self.kind = kind
        return [*held_back, Piece(kind, "")]

    def close(self) -> list[Piece]:
        """Return text held back, with U+FFFD for bytes that form no character."""
        return self._pieces(self._utf8.decode(b"", final=True))

    def _pieces(self, text: str) -> list[Piece]:
        return [Piece(self.kind, text)] if text else []


def parts(pieces: Iterable[Piece], ends: bool = False) -> list[Part]:
    """Return the pieces as message content: neighbours with the same kind become one part.

    ends: keep empty text after a call, for a message still being streamed: another call may follow.
    """
    found: list[Part] = []
    # An empty piece marks the start of a part, so calls without text stay visible.
    for kind, run in groupby(pieces, lambda piece: piece.kind):
        text = "".join(piece.text for piece in run)
        if ends or text or kind != "text":
            found.append({"type": kind, "text": text})
    return found


def reply_parts(tokens: Iterable[int], tokenizer: Tokenizer) -> list[Part]:
    """Return a sampled reply as message content."""
    reply = Reply(tokenizer)
    return parts(chain(*map(reply.feed, tokens), reply.close()))


# What one may say to a model whose manifest has no suggestions.
QUESTIONS = ["Who are you?", "What is 12 + 34?", "Why is the sky blue?"]
BEGINNINGS = ["The capital of France is", "The opposite of hot is", "Once upon a time"]


def suggestions(manifest: Record, is_base: bool) -> list[str]:
    """Return what to suggest to a person who talks to a model, the best first.

    A model of an embedded world has questions about it in the manifest, and for a base model, which continues a text,
    beginnings.
    """
    own = manifest.get("suggestions", {})
    return own.get("beginnings", BEGINNINGS) if is_base else own.get("questions", QUESTIONS)


def chat_temperature(manifest: Record) -> float:
    """Return the sampling temperature for chats with a model."""
    # An imported model has no settings of ours, and one of an earlier version lacks these.
    return (manifest["config"] or {}).get("chat_temperature", CHAT_TEMPERATURE)


def chat_top_k(manifest: Record) -> int | None:
    """Return from how many of the likeliest tokens a public model is made to be sampled; None: it does not say."""
    value = _generation(manifest).get("top_k")
    return value if type(value) is int and value >= 0 else None


def chat_top_p(manifest: Record) -> float | None:
    """Return the share of the probability from which a public model is made to be sampled; None: it does not say."""
    value = _generation(manifest).get("top_p")
    return float(value) if isinstance(value, int | float) and 0 < value <= 1 else None


def _generation(manifest: Record) -> Record:
    """Return the generation_config.json that a public model, or the one before it, came with."""
    return manifest.get("public", {}).get("generation", {})
