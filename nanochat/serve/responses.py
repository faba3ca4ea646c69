"""Responses in OpenAI's form: text up to a stop and log-probabilities, from the engine's events to JSON and chunks."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from nanochat.chat import Piece, Reply, parts
from nanochat.engine import Event, Sample, Score, samples_of
from nanochat.log import Record
from nanochat.serve.calls import CallFinder
from nanochat.serve.requests import ApiError, ApiRequest, ServedModel
from nanochat.serve.worker import Worker, engine_failed
from nanochat.tokenizer import Tokenizer


class StopFinder:
    """Finds the first stop in a text that comes in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.held = ""  # perhaps a stop begins here
        self.found = False

    def feed(self, text: str) -> str:
        """Return text to show now: no stop begins there."""
        text = self.held + text
        self.held = ""
        # (end, begin) of each stop in the text
        places = [(text.index(stop) + len(stop), text.index(stop)) for stop in self.stops if stop in text]
        if places:
            self.found = True
            # The stop with the first end counts, then the longest stop.
            return text[: min(places)[1]]
        # The next text may complete a stop: hold back the longest possible start.
        for begin in range(len(text)):
            if any(stop.startswith(text[begin:]) for stop in self.stops):
                self.held = text[begin:]
                return text[:begin]
        return text

    def close(self) -> str:
        """Return the text that was held back."""
        text, self.held = self.held, ""
        return text


class Choice:
    """A sample in OpenAI's form. index: number for the client. finish_reason: empty until the end."""

    def __init__(self, index: int, sample: Sample, request: ApiRequest, tokenizer: Tokenizer) -> None:
        self.index = index
        self.request = request
        self.prompt = sample.request.tokens
        self.added_tokens = request.added_tokens[sample.prompt_number] if request.echo else 0
        self.finish_reason = ""
        # (token, True if the model chose it); with the end token, if log-probabilities are shown.
        self.tokens: list[tuple[int, bool]] = []
        self.completion_tokens = 0
        self.score: Score | None = None  # log-probabilities of `row`, if the client of a completion asks for them
        self._logprobs: list[Record] | None = None  # not sent, if the client of a chat asks for them
        if request.is_chat and request.likely is not None:
            self._logprobs = []
        self._bytes = tokenizer.core.token_bytes  # of special tokens: the name
        self._special = set(tokenizer.special_tokens.values())
        self._ends = tokenizer.turn_ends
        self._reply = Reply(tokenizer)
        self._stops = StopFinder(request.fields.stop)
        form = tokenizer.template.call_form if request.tools and tokenizer.template else None
        self._finder = CallFinder(form, request.tools, request.parallel_calls) if form else None
        self._calls: list[Record] = []  # of tools; known at the end, and not sent
        self._pieces: list[Piece] = []  # shown, but not sent
        if request.echo:
            self._show(tokenizer.decode(self.prompt[self.added_tokens :]))

    # ---- from the engine ----

    def append(self, event: Event) -> None:
        """Continue with the engine's next event; events after the end are dropped."""
        if self.finish_reason:
            return
        if event.token is not None:
            self.tokens.append((event.token, event.sampled))
            # An end token has a log-probability, but no text.
            if event.token not in self._ends:
                self.completion_tokens += 1
                pieces = self._reply.feed(event.token)
                self._add_logprob(event)
                self._add_pieces(pieces)
                return
        self._add_pieces(self._reply.close())  # bytes without a character
        if not self.finish_reason:
            self._show(self._stops.close())  # no stop
            self._finish(event.reason or "stop")

    def _add_logprob(self, event: Event) -> None:
        """Keep the log-probability of a token of the answer's text, for a chat: calls of the calculator have none."""
        token = event.token
        if self._logprobs is None or token is None or token in self._special or self._reply.kind != "text":
            return
        likely = event.likely or {}
        # The chosen token is the last one if it is not among the likeliest.
        shown = list(likely.items())[: self.request.likely]
        entry = self._logprob(token, event.logprob)
        self._logprobs.append(entry | {"top_logprobs": [self._logprob(*one) for one in shown]})

    def _logprob(self, token: int, logprob: float) -> Record:
        spelled = None if token in self._special else list(self._bytes(token))
        return {"token": self._spell(token), "logprob": logprob, "bytes": spelled}

    def _add_pieces(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            # In a completion the calculator's turns are text like any other.
            if not self.request.is_chat or (piece.kind == "text" and piece.text):
                self._show(self._stops.feed(piece.text))
            else:
                self._show(self._stops.close())  # a stop lies within one part
                self._pieces.append(piece)  # also without text: it begins a part
            if self._stops.found:
                self._finish("stop")
                return

    def _show(self, text: str) -> None:
        if self._finder:
            text = self._finder.feed(text)
        if text:
            self._pieces.append(Piece("text", text))

    def _finish(self, reason: str) -> None:
        """End the choice: what was held back is text, or calls of tools; an answer that was cut, or failed, says so."""
        self.finish_reason = reason
        if self._finder:
            text, self._calls = self._finder.close()
            if text:
                self._pieces.append(Piece("text", text))
            if self._calls and reason == "stop":
                self.finish_reason = "tool_calls"

    # ---- to the client ----

    def row(self) -> list[int]:
        """Return all tokens, with the prompt before them."""
        return [*self.prompt, *(token for token, _ in self.tokens)]

    def whole(self) -> Record:
        """Return the choice of a whole response."""
        content = self._take_content()
        if self._calls:
            content = {**content, "content": content["content"] or None, "tool_calls": self._calls}
        logprobs = self._take_logprobs() if self.score is None else self._scored(self.score)
        if self.request.is_chat:
            content = {"message": {"role": "assistant", "refusal": None, **content}}
        return {"index": self.index, **content, "logprobs": logprobs, "finish_reason": self.finish_reason}

    def delta(self, content: Record, reason: str | None = None) -> Record:
        """Return the choice of a chunk in a stream."""
        content = {"delta": content} if self.request.is_chat else {"text": "", **content}
        return {"index": self.index, **content, "logprobs": self._take_logprobs(), "finish_reason": reason}

    def new_deltas(self) -> Iterator[Record]:
        """Yield new deltas for a stream: text, then a final chunk with the finish reason."""
        # Bytes of a character, and text that may become a stop, have log-probabilities before they are shown.
        if self._pieces or self._logprobs:
            yield self.delta(self._take_content())
        if self._calls:
            yield self.delta({"tool_calls": [{"index": index, **call} for index, call in enumerate(self._calls)]})
        if self.finish_reason:
            yield self.delta({}, self.finish_reason)

    def _take_content(self) -> Record:
        """Return the text that is shown and not sent, and the parts if the calculator was used."""
        pieces, self._pieces = self._pieces, []
        text = "".join(piece.text for piece in pieces if piece.kind == "text")
        if not self.request.is_chat:
            return {"text": text}
        content: Record = {"content": text}
        # A text piece without text ends a call.
        if any(piece.kind != "text" or not piece.text for piece in pieces):
            content["parts"] = parts(pieces, ends=self.request.fields.stream)
        return content

    def _take_logprobs(self) -> Record | None:
        """Return the log-probabilities of a chat's tokens that are not sent; None if there are none."""
        if not self._logprobs:
            return None
        taken, self._logprobs = self._logprobs, []
        return {"content": taken, "refusal": None}

    def _scored(self, score: Score) -> Record:
        """Return the log-probabilities of a completion's tokens, those of a stop too; with `echo` also the prompt's."""
        # The first token has no log-probability.
        scored = list(zip(self.row(), [None, *score], strict=True))
        shown = scored[self.added_tokens : len(self.prompt)] if self.request.echo else []
        for (_, sampled), one in zip(self.tokens, scored[len(self.prompt) :], strict=True):
            if sampled:  # the calculator's tokens were not the model's choice
                shown.append(one)
        return {
            "tokens": [self._spell(token) for token, _ in shown],
            "token_logprobs": [likely and likely[token] for token, likely in shown],
            "top_logprobs": [
                likely and {self._spell(other): logprob for other, logprob in likely.items()} for _, likely in shown
            ],
        }

    def _spell(self, token: int) -> str:
        return self._bytes(token).decode(errors="backslashreplace")  # pieces of a character stay apart


def server_sent(record: Record) -> bytes:
    """Return a server-sent event."""
    return b"data: %s\n\n" % json.dumps(record).encode()  # ASCII: no line ends within


class ApiResponse(StreamingResponse):
    """The response to one request: JSON (`whole`) or server-sent events (`stream`). Stops if the client leaves.

    It owns the samples of the request, which the worker runs from now on, and a choice for each of them.
    """

    def __init__(self, request: ApiRequest, served: ServedModel, worker: Worker) -> None:
        super().__init__(self.stream(), headers={"x-accel-buffering": "no"}, media_type="text/event-stream")
        self.request = request
        self.worker = worker
        if request.is_chat:
            prefix = "chatcmpl-"
            kind = "chat.completion.chunk" if request.fields.stream else "chat.completion"
        else:
            prefix = "cmpl-"
            kind = "text_completion"
        # All chunks of a stream have the same id.
        self.head = {
            "id": prefix + secrets.token_hex(12),
            "object": kind,
            "created": int(time.time()),
            "model": served.name,
        }
        self.choices = {
            sample: Choice(index, sample, request, served.tokenizer)
            for index, sample in enumerate(samples_of(request.prompts))
        }
        self.events = worker.submit(list(self.choices))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)  # cancelled by Starlette if the client leaves
        finally:
            self.worker.cancel(self.choices)  # frees the slots, also after an error

    async def stream_response(self, send: Send) -> None:
        if self.request.fields.stream:
            await super().stream_response(send)
            return
        # The status waits for the end: an error may still come.
        whole = Response(await self.whole(), media_type="application/json")
        await whole({"type": "http"}, None, send)  # ty: ignore[invalid-argument-type]  # a whole response reads nothing

    async def whole(self) -> bytes:
        """Return the JSON of all choices, once they have ended."""
        choices = self.choices.values()
        while not all(choice.finish_reason for choice in choices):
            self.dispatch(await self._new_events())
        if self.request.likely is not None and not self.request.is_chat:
            for choice in choices:
                choice.score = await self.worker.score(choice.row(), self.request.likely)
        # In a thread: many log-probabilities take a while.
        whole = (choice.whole() for choice in choices)
        return await asyncio.to_thread(self._to_json, whole, usage=self._usage())

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield server-sent events as text arrives."""
        unfinished = list(self.choices.values())
        if self.request.is_chat:
            for choice in unfinished:
                yield self._event([choice.delta({"role": "assistant", "content": ""})])
        while unfinished:
            try:
                self.dispatch(await self._new_events())
            except ApiError as error:  # too late for a status
                yield server_sent(error.body)
                return
            for choice in unfinished:
                for delta in choice.new_deltas():
                    yield self._event([delta])
            unfinished = [choice for choice in unfinished if not choice.finish_reason]
        if self.request.fields.stream_options.get("include_usage"):
            yield self._event([], usage=self._usage())
        yield b"data: [DONE]\n\n"

    async def _new_events(self) -> list[Event]:
        """Return everything new, at least one event; an ApiError if the engine has failed."""
        found = []
        event = await self.events.get()
        # Several steps may have passed: all their events at once make fewer and larger chunks.
        while event is not None and not self.events.empty():
            found.append(event)
            event = self.events.get_nowait()
        if event is None:
            raise engine_failed()
        return [*found, event]

    def dispatch(self, events: list[Event]) -> None:
        """Give events to their choices."""
        for event in events:
            choice = self.choices[event.sample]
            choice.append(event)
            if choice.finish_reason:
                self.worker.cancel([event.sample])  # a stop ends a choice before the engine does

    def _event(self, choices: list[Record], **more: Record) -> bytes:
        return server_sent({**self.head, "choices": choices, **more})

    def _to_json(self, choices: Iterable[Record], **more: Record) -> bytes:
        return json.dumps({**self.head, "choices": list(choices), **more}).encode()

    def _usage(self) -> dict[str, int]:
        prompt = sum(len(request.tokens) for request in self.request.prompts)
        completion = sum(choice.completion_tokens for choice in self.choices.values())
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
