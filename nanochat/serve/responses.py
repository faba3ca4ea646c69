"""Responses in OpenAI's form: text up to a stop and log-probabilities, from the engine's events to JSON and chunks."""

import asyncio
import codecs
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import anyio

from nanochat.chat import Piece, Reply, parts
from nanochat.engine import Event
from nanochat.serve.requests import ApiError, ApiRequest, ServedModel
from nanochat.serve.worker import Generation, Sample, Score
from nanochat.tokenizer import Tokenizer

KEEP_ALIVE = 15.0  # seconds without text before a comment keeps the connection open

Json = dict[str, Any]


class StopFinder:
    """Finds the first stop in a text that comes in pieces."""

    def __init__(self, stops: Sequence[str]):
        self.stops = stops
        self.held = ""  # perhaps a stop begins here
        self.found = False

    def add(self, text: str) -> str:
        """Return text to show now: no stop begins there."""
        text = self.held + text
        self.held = ""
        begins = {}
        for stop in self.stops:
            begin = text.find(stop)
            if begin >= 0:
                begins[stop] = begin
        if begins:
            self.found = True
            # The stop with the first end counts, then the longest stop.
            first = min(begins, key=lambda stop: (begins[stop] + len(stop), begins[stop]))
            return text[: begins[first]]
        # The next text may complete a stop: hold back the longest possible start.
        longest = max(map(len, self.stops), default=0)
        for begin in range(max(0, len(text) - longest + 1), len(text)):
            if any(stop.startswith(text[begin:]) for stop in self.stops):
                self.held = text[begin:]
                return text[:begin]
        return text

    def close(self) -> str:
        """Return the text that was held back."""
        text = self.held
        self.held = ""
        return text


class ChoiceToken(NamedTuple):
    """A token in a choice. start: number of characters before. sampled: False for the calculator's answer."""

    token: int
    logprob: float
    start: int
    sampled: bool


class Spelling:
    """Tokens as text. Special tokens have their names."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.names = {token: name for name, token in tokenizer.special_tokens.items()}

    def bytes(self, token: int) -> bytes:
        name = self.names.get(token)
        return self.tokenizer.core.token_bytes(token) if name is None else name.encode()

    def text(self, token: int) -> str:
        """Return the text of a token; pieces of a character are spelled as bytes, in OpenAI's form."""
        content = self.bytes(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def starts(self, tokens: Sequence[int]) -> list[int]:
        """Return the number of characters before each token."""
        # A character may be spread over several tokens.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        starts = [0]
        for token in tokens:
            starts.append(starts[-1] + len(decoder.decode(self.bytes(token))))
        return starts[:-1]

    def chat_logprob(self, token: int, logprob: float) -> Json:
        return {"token": self.text(token), "bytes": list(self.bytes(token)), "logprob": logprob}


class Choice:
    """A sample in OpenAI's form. index: number for the client. finish_reason: empty until the end."""

    def __init__(self, index: int, request: ApiRequest, prompt: int, tokenizer: Tokenizer):
        self.index = index
        self.request = request
        self.prompt = request.prompts[prompt].tokens
        self.echo = request.prompt_texts[prompt] if request.echo else ""
        self.finish_reason = "" if request.generates else "length"
        self.tokens: list[ChoiceToken] = []  # with the end token, if log-probabilities are shown
        self.completion_tokens = 0
        self._spelling = Spelling(tokenizer)
        self._reply = Reply(tokenizer)
        self._stops = StopFinder(request.fields.stop)
        self._received = 0  # characters from the engine
        self._shown = 0  # characters for the client, without stops
        self._pieces: list[Piece] = []  # shown, but not sent
        self._tokens_sent = 0
        self._deltas_sent = 0
        self.is_sent = False  # the last chunk of a stream

    # ---- from the engine ----

    def add(self, event: Event) -> None:
        """Take the engine's next event; events after the end are dropped."""
        if self.finish_reason:
            return
        if event.token is not None:
            self.tokens.append(ChoiceToken(event.token, event.logprob, self._received, event.sampled))
        # An end token has a log-probability, but no text.
        if event.token is not None and not (event.sampled and event.token in self.request.end_tokens):
            self.completion_tokens += 1
            self._add_pieces(self._reply.add(event.token))
            return
        self._add_pieces(self._reply.close())  # bytes without a character
        if not self._stops.found:  # text held back was no stop
            self._show("text", self._stops.close())
        self.finish_reason = self.finish_reason or event.reason or "stop"

    def _add_pieces(self, pieces: list[Piece]) -> None:
        for kind, text in pieces:
            self._received += len(text)
            # In a completion the calculator's turns are text like any other.
            if kind != "text" and self.request.is_chat:
                self._show("text", self._stops.close())  # a stop lies within one part
                self._show(kind, text, even_empty=True)
                continue
            if self.request.is_chat and not text:
                self._show("text", "", even_empty=True)  # a call ends, and another may begin at once
            self._show("text", self._stops.add(text))
            if self._stops.found:
                self.finish_reason = "stop"
                return

    def _show(self, kind: str, text: str, even_empty: bool = False) -> None:
        self._shown += len(text)
        if text or even_empty:
            self._pieces.append(Piece(kind, text))

    # ---- to the client ----

    def row(self) -> tuple[int, ...]:
        """Return all tokens, with the prompt before them."""
        return (*self.prompt, *(token.token for token in self.tokens))

    def to_json(self, score: Score | None) -> Json:
        """Return the whole choice. score: log-probabilities of `row`, None: the engine's own are used."""
        pieces = self._take_pieces()
        text = self.echo + "".join(piece.text for piece in pieces if piece.kind == "text")
        content = {"text": text}
        if self.request.is_chat:
            message = {"role": "assistant", "content": text, "refusal": None}
            if any(piece.kind != "text" for piece in pieces):
                message["parts"] = parts(pieces)
            content = {"message": message}
        return self._delta(content, self._logprobs(score), self.finish_reason)

    def new_deltas(self) -> list[Json]:
        """Return the news for a stream: first the role or the echo, then text, at the end the reason."""
        if self.is_sent:
            return []
        is_chat = self.request.is_chat
        deltas = []
        if not self._deltas_sent and is_chat:
            deltas.append(self._delta({"delta": {"role": "assistant", "content": ""}}))
        elif not self._deltas_sent and self.echo:
            deltas.append(self._delta({"text": self.echo}))
        pieces = self._take_pieces()
        logprobs = self._logprobs(None)
        # Tokens may have no text, such as a character's first byte.
        if pieces or (logprobs and any(logprobs.values())):
            text = "".join(piece.text for piece in pieces if piece.kind == "text")
            content = {"text": text}
            if is_chat:
                content = {"delta": {"content": text}}
                if any(piece.kind != "text" or not piece.text for piece in pieces):
                    content["delta"]["parts"] = parts(pieces, ends=True)
            deltas.append(self._delta(content, logprobs))
        # The reason has a chunk of its own.
        if self.finish_reason:
            content = {"delta": {}} if is_chat else {"text": ""}
            deltas.append(self._delta(content, reason=self.finish_reason))
            self.is_sent = True
        self._deltas_sent += len(deltas)
        return deltas

    def _delta(self, content: Json, logprobs: Json | None = None, reason: str | None = None) -> Json:
        return {"index": self.index, **content, "logprobs": logprobs, "finish_reason": reason}

    def _take_pieces(self) -> list[Piece]:
        pieces = self._pieces
        self._pieces = []
        return pieces

    def _logprobs(self, score: Score | None) -> Json | None:
        """Return log-probabilities of new tokens, with `echo` and a score also the prompt's."""
        if self.request.top_logprobs < 0:
            return None
        tokens, starts, logprobs = [], [], []  # parallel
        if score is not None and self.request.echo:
            tokens = list(self.prompt[self.request.added_tokens :])
            starts = self._spelling.starts(tokens)
            logprobs = [None, *score][self.request.added_tokens : len(self.prompt)]  # the first token has none
        while self._tokens_sent < len(self.tokens):
            token = self.tokens[self._tokens_sent]
            is_cut = self._stops.found or not self.finish_reason  # by a stop, or perhaps by one
            if is_cut and token.start >= self._shown:
                break
            if token.sampled:  # the calculator's tokens were not the model's choice
                own = {token.token: token.logprob}
                tokens.append(token.token)
                starts.append(len(self.echo) + token.start)
                logprobs.append(own if score is None else score[len(self.prompt) + self._tokens_sent - 1])
            self._tokens_sent += 1
        if self.request.is_chat:
            return self._chat_logprobs(tokens, logprobs)
        return self._completion_logprobs(tokens, starts, logprobs)

    def _chat_logprobs(self, tokens: list[int], logprobs: list[dict[int, float]]) -> Json:
        content = []
        for token, alternatives in zip(tokens, logprobs, strict=True):
            # The likeliest tokens come first; the token itself may be one more.
            top = list(alternatives.items())[: self.request.top_logprobs]
            top_logprobs = [self._spelling.chat_logprob(other, logprob) for other, logprob in top]
            own = self._spelling.chat_logprob(token, alternatives[token])
            content.append({**own, "top_logprobs": top_logprobs})
        return {"content": content, "refusal": None}

    def _completion_logprobs(
        self, tokens: list[int], starts: list[int], logprobs: list[dict[int, float] | None]
    ) -> Json:
        own, tops = [], []
        for token, alternatives in zip(tokens, logprobs, strict=True):
            own.append(alternatives and alternatives[token])
            tops.append(alternatives and {self._spelling.text(other): one for other, one in alternatives.items()})
        texts = [self._spelling.text(token) for token in tokens]
        return {"tokens": texts, "token_logprobs": own, "top_logprobs": tops, "text_offset": starts}


class ApiResponse:
    """The response to one request: JSON (`whole`) or server-sent events (`stream`)."""

    def __init__(self, request: ApiRequest, served: ServedModel, generation: Generation):
        self.request = request
        self.generation = generation
        self.model = served.name
        self.id = ("chatcmpl-" if request.is_chat else "cmpl-") + secrets.token_hex(12)
        self.created = int(time.time())
        self.choices: dict[Sample, Choice] = {}
        for prompt, engine_request in enumerate(request.prompts):
            for sample in range(engine_request.n):
                self.choices[prompt, sample] = Choice(len(self.choices), request, prompt, served.tokenizer)

    async def whole(self) -> bytes:
        """Return the JSON of all choices, once they have ended."""
        while not all(choice.finish_reason for choice in self.choices.values()):
            self.add(await self.generation.next_events())
        scores: dict[tuple, Score] = {}
        if self.request.needs_scores:
            rows = list(dict.fromkeys(choice.row() for choice in self.choices.values()))  # without generation all alike
            found = await self.generation.score(rows, self.request.top_logprobs)
            scores = dict(zip(rows, found, strict=True))
        return await asyncio.to_thread(self._to_json, scores)  # many log-probabilities take a while

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield server-sent events as text arrives. An error within the stream is an event too."""
        try:
            while True:
                chunks = self.new_chunks()
                if chunks:
                    yield b"".join(map(sse, chunks))
                if all(choice.is_sent for choice in self.choices.values()):
                    break
                events = []  # if the time is over
                with anyio.move_on_after(KEEP_ALIVE):
                    events = await self.generation.next_events()
                if not events:
                    yield b": keep-alive\n\n"
                self.add(events)
        except ApiError as error:  # too late for a status
            yield sse(error.body)
            return
        if self.request.fields.stream_options.include_usage:
            yield sse({**self._body([], is_chunk=True), "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def add(self, events: list[Event]) -> None:
        for event in events:
            sample = event.request, event.sample
            choice = self.choices[sample]
            choice.add(event)
            if choice.finish_reason:
                self.generation.cancel({sample})  # a stop ends a choice before the engine does

    def new_chunks(self) -> list[Json]:
        """Return chunks with all news, in the order of choices."""
        deltas = [delta for choice in self.choices.values() for delta in choice.new_deltas()]
        return [self._body([delta], is_chunk=True) for delta in deltas]

    def _to_json(self, scores: dict[tuple, Score]) -> bytes:
        choices = [choice.to_json(scores.get(choice.row())) for choice in self.choices.values()]
        return json.dumps({**self._body(choices, is_chunk=False), "usage": self._usage()}).encode()

    def _body(self, choices: list[Json], is_chunk: bool) -> Json:
        kind = "text_completion"
        if self.request.is_chat:
            kind = "chat.completion.chunk" if is_chunk else "chat.completion"
        # All chunks of a stream have the same id.
        body = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
        if is_chunk and self.request.fields.stream_options.include_usage:
            body["usage"] = None  # the last chunk has the numbers
        return body

    def _usage(self) -> dict[str, int]:
        prompt = sum(len(request.tokens) for request in self.request.prompts)
        completion = sum(choice.completion_tokens for choice in self.choices.values())
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def sse(body: Json) -> bytes:
    """Return a server-sent event."""
    return f"data: {json.dumps(body)}\n\n".encode()  # ASCII: no character looks like a line's end
