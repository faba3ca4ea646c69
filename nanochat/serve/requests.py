"""What clients ask, in the words of OpenAI's interface: JSON, checked field by field, to requests for the engine."""

import json
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nanochat.chat import PARTS, check_conversation, render_prompt
from nanochat.engine import ENDS, Request
from nanochat.serve.gate import Fault

# Field → the values that ask for nothing. Any other value we could not honour, so it is refused.
NOTHING = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}
OF_MESSAGES = {
    "tool_calls": [],
    "function_call": {},
    "audio": {},
    "refusal": "",
}  # of the assistant's, that we have not
TOP_CHAT, TOP_COMPLETION = 20, 5  # likeliest tokens that a client may ask for
STOPS, STOP_CHARACTERS = 4, 256
COMPLETION_TOKENS = 16  # unless asked otherwise


@dataclass(frozen=True)
class Limits:
    """What one request may have. tokens: of an answer, 0: as many as the context holds."""

    body_bytes: int = 1 << 20
    messages: int = 200
    characters: int = 200_000
    tokens: int = 0
    samples: int = 16


@dataclass(frozen=True)
class Served:
    """What requests are checked against. context: tokens of a prompt and its answer."""

    name: str
    tokenizer: Any
    context: int
    limits: Limits
    created: int = 0


@dataclass(frozen=True)
class Asked:
    """A request. requests: one a prompt, none where nothing is to be written. prompts: what they begin with, as text.

    unseen: tokens at the beginning of each prompt that the client has not sent. top: likeliest tokens wanted in each
    place, -1: not even the log-probability of what was chosen. usage: to be told at the end of a stream. ends: tokens
    at which an answer ends here and not in the engine, for they have a log-probability to be told.
    """

    chat: bool
    requests: list[Request]
    prompts: list[str]
    unseen: int
    stops: tuple[str, ...] = ()
    stream: bool = False
    usage: bool = False
    top: int = -1
    echo: bool = False
    writes: bool = True
    ends: frozenset[int] = frozenset()

    @property
    def samples(self) -> int:
        return sum(request.n for request in self.requests)

    @property
    def scored(self) -> bool:
        """Whether log-probabilities are wanted that only a forward of the whole gives."""
        return self.top > 0 or (self.echo and self.top >= 0)


def read_json(body: bytes) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    try:
        found = json.loads(body.decode(), parse_constant=refuse)
    except RecursionError:
        raise Fault(400, "the body is nested too deeply") from None
    except ValueError as error:  # of UTF-8 too
        raise Fault(400, f"the body is no JSON in UTF-8: {error}") from None
    if not isinstance(found, dict):
        raise Fault(400, "the body has to be a JSON object")
    return found


def read_chat(body: dict[str, Any], served: Served) -> Asked:
    context, limits = served.context, served.limits
    messages = _messages(body.get("messages"), limits)
    try:
        check_conversation({"messages": messages})
        if messages[-1]["role"] == "assistant":
            raise ValueError("the last message has to be the user's")
        tokens = render_prompt({"messages": messages}, served.tokenizer)
    except ValueError as error:  # of letters that are none, half a surrogate pair, too
        raise Fault(400, str(error), "messages") from None
    asked = _read(body, "max_completion_tokens", int, None, 1, 10**9)
    most = _read(body, "max_tokens", int, context, 1, 10**9) if asked is None else asked
    top = _read(body, "top_logprobs", int, 0, 0, TOP_CHAT)
    wanted = _read(body, "logprobs", bool, False)
    if top and not wanted:
        raise Fault(400, "top_logprobs needs logprobs: true", "top_logprobs")
    return _asked(body, served, [tokens], [""], most, chat=True, unseen=len(tokens), top=top if wanted else -1)


def read_completion(body: dict[str, Any], served: Served) -> Asked:
    echo = _read(body, "echo", bool, False)
    most = _read(body, "max_tokens", int, COMPLETION_TOKENS, 0, 10**9)
    if not most and not echo:
        raise Fault(400, "max_tokens is 0 and echo is false: there is nothing to answer", "max_tokens")
    if _read(body, "best_of", int, 1, 1, 128) not in (1, body.get("n")):
        raise Fault(400, "best_of other than n is not supported", "best_of")
    top = _read(body, "logprobs", int, -1, 0, TOP_COMPLETION)
    prompt, bos = body.get("prompt", ""), served.tokenizer.special_tokens["<|bos|>"]
    given = prompt if isinstance(prompt, list) and not _is_row(prompt) else [prompt]
    if not given or len(given) > served.limits.samples * 8:
        raise Fault(400, f"prompt has {len(given):,} prompts, from 1 to {served.limits.samples * 8:,} can be", "prompt")
    if not all(isinstance(one, str) for one in given) and not all(_is_row(one) for one in given):
        raise Fault(400, "prompt is a text, a list of texts, a list of token ids, or a list of such lists", "prompt")
    _few_characters(sum(map(len, given)), served.limits, "prompt")
    if isinstance(given[0], str):
        try:
            rows, texts = [[bos, *served.tokenizer.encode(text)] for text in given], given
        except ValueError as error:
            raise Fault(400, str(error), "prompt") from None
        return _asked(body, served, rows, texts, most, chat=False, unseen=1, top=top, echo=echo)
    words = served.tokenizer.vocab_size
    if any(not 0 <= token < words for row in given for token in row):
        raise Fault(400, f"prompt has ids beyond the vocabulary, which is of {words:,}", "prompt")
    texts = [served.tokenizer.decode(row) for row in given]
    return _asked(body, served, given, texts, most, chat=False, unseen=0, top=top, echo=echo)


def _asked(
    body: dict[str, Any], served: Served, rows: list[list[int]], prompts: list[str], most: int, **about
) -> Asked:
    """What both kinds of requests have in common."""
    _refuse_foreign(body)
    if (model := body.get("model")) not in (None, served.name):
        raise Fault(
            404, f"there is no model {str(model)[:100]!r} here, but {served.name!r}", "model", "model_not_found"
        )
    limits, context, field = served.limits, served.context, "messages" if about["chat"] else "prompt"
    for tokens in rows:
        if len(tokens) + (most > 0) > context:
            sentence = f"the prompt has {len(tokens):,} tokens, with an answer it must fit into {context:,}"
            raise Fault(400, sentence, field, "context_length_exceeded")
    if limits.tokens and most > limits.tokens:
        if body.get("max_tokens") is not None or body.get("max_completion_tokens") is not None:
            raise Fault(400, f"the server writes at most {limits.tokens:,} tokens an answer", "max_tokens")
        most = limits.tokens
    options = _read(body, "stream_options", dict, {})
    seed = _read(body, "seed", int, secrets.randbits(32), -(2**63), 2**63 - 1)
    settings = {
        "temperature": _read(body, "temperature", float, 1.0, 0, 2),
        "top_p": _read(body, "top_p", float, 1.0, 0, 1),
        "top_k": _read(body, "top_k", int, 0, 0, served.tokenizer.vocab_size),
        "seed": seed % 2**64,
        "n": _read(body, "n", int, 1, 1, limits.samples),
    }
    ends = frozenset(served.tokenizer.special_tokens[name] for name in ENDS)
    ends = ends if about["top"] >= 0 and not about["chat"] else frozenset()
    if ends:
        settings["stop"] = frozenset()
    if not settings["top_p"]:
        raise Fault(400, "top_p is above 0", "top_p")
    asked = Asked(
        requests=[Request(tokens, max(most, 1), **settings) for tokens in rows],
        prompts=prompts,
        stops=_stops(body.get("stop")),
        stream=_read(body, "stream", bool, False),
        usage=_read(options, "include_usage", bool, False),
        writes=most > 0,
        ends=ends,
        **about,
    )
    if asked.stream and asked.scored:
        raise Fault(400, "log-probabilities of the prompt and of other tokens are not streamed", "stream")
    return asked


def _refuse_foreign(body: dict[str, Any]) -> None:
    for name, nothing in NOTHING.items():
        if (value := body.get(name)) is not None and value not in nothing:
            raise Fault(400, f"{name} is not supported here, leave it out", name, "unsupported_parameter")


def _read(body: dict, name: str, kind: Callable, default: Any, least: float = -math.inf, most: float = math.inf) -> Any:
    """A field, or the default where it is absent or null."""
    if (value := body.get(name)) is None:
        return default
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        names = {int: "a whole number", float: "a number", bool: "true or false", dict: "an object"}
        raise Fault(400, f"{name} has to be {names[kind]}", name)
    if kind in (int, float) and not least <= value <= most:
        raise Fault(400, f"{name} is {str(value)[:40]}, it lies from {least:,} to {most:,}", name)
    return value


def _stops(given: Any) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else given or []
    fits = isinstance(stops, list) and len(stops) <= STOPS and all(isinstance(stop, str) for stop in stops)
    if not fits or not all(0 < len(stop) <= STOP_CHARACTERS for stop in stops):
        raise Fault(400, f"stop is a text or up to {STOPS}, each of 1 to {STOP_CHARACTERS} characters", "stop")
    return tuple(stops)


def _is_row(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _few_characters(count: int, limits: Limits, field: str) -> None:
    if count > limits.characters:
        sentence = f"the request has {count:,} characters, {limits.characters:,} are allowed"
        raise Fault(400, sentence, field, "string_above_max_length")


def _messages(given: Any, limits: Limits) -> list[Any]:
    """As nanochat.chat takes them; what is wrong with their form, that will say."""
    if not isinstance(given, list) or not given:
        raise Fault(400, "messages has to be a list with at least one message", "messages")
    if len(given) > limits.messages:
        sentence = f"the request has {len(given):,} messages, {limits.messages:,} are allowed"
        raise Fault(400, sentence, "messages", "array_above_max_length")
    messages = [
        _message(message, f"messages[{i}]") if isinstance(message, dict) else message for i, message in enumerate(given)
    ]
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    texts = [text for text in [*contents, *(part.get("text") for part in parts)] if isinstance(text, str)]
    _few_characters(sum(map(len, texts)), limits, "messages")
    return messages


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    """With our parts, if it is an answer of ours that comes back."""
    for name, nothing in OF_MESSAGES.items():
        if (value := message.get(name)) is not None and value != nothing:
            raise Fault(400, f"{name} in a message is not supported here", f"{where}.{name}", "unsupported_parameter")
    content, role = message.get("content"), message.get("role")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") not in tuple(PARTS):
            sentence = f"content of type {str(part.get('type'))[:40]!r} is not supported here"
            raise Fault(400, sentence, f"{where}.content", "unsupported_content")
    if role == "assistant" and isinstance(message.get("parts"), list):
        content = message["parts"]
    return {"role": "system" if role == "developer" else role, "content": content}
