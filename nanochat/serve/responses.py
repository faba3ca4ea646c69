"""Responses in OpenAI's form: text up to a stop and log-probabilities, from the engine's events to JSON and chunks."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from nanochat.chat import Piece, Reply, parts
from nanochat.engine import ENDS, Event
from nanochat.serve.requests import ApiError, ApiRequest, ServedModel
from nanochat.serve.worker import Generation, Sample, Score
from nanochat.tokenizer import Tokenizer

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


class ChoiceToken(NamedTuple):
    """A token in a choice. start: number of characters before. sampled: False for the calculator's answer."""

    token: int
    start: int
    sampled: bool


class Choice:
    """A sample in OpenAI's form. index: number for the client. finish_reason: empty until the end."""

    def __init__(self, index: int, request: ApiRequest, prompt: int, tokenizer: Tokenizer):
        self.index = index
        self.request = request
        self.prompt = request.prompts[prompt].tokens
        self.finish_reason = ""
        self.tokens: list[ChoiceToken] = []  # with the end token, if log-probabilities are shown
        self.completion_tokens = 0
        self.is_started = False  # the first chunk of a stream is sent
        self.is_sent = False  # the last chunk too
        self._bytes = tokenizer.core.token_bytes  # of special tokens: the name
        self._ends = [tokenizer.special_tokens[name] for name in ENDS]
        self._reply = Reply(tokenizer)
        self._stops = StopFinder(request.fields.stop)
        self._received = 0  # characters from the engine
        self._shown = 0  # characters for the client, without stops
        self._pieces: list[Piece] = []  # shown, but not sent
        if request.prompt_texts:
            self._pieces.append(Piece("text", request.prompt_texts[prompt]))

    # ---- from the engine ----

    def add(self, event: Event) -> None:
        """Take the engine's next event; events after the end are dropped."""
        if self.finish_reason:
            return
        if event.token is not None:
            self.tokens.append(ChoiceToken(event.token, self._received, event.sampled))
            # An end token has a log-probability, but no text.
            if not (event.sampled and event.token in self._ends):
                self.completion_tokens += 1
                self._add_pieces(self._reply.add(event.token))
                return
        self._add_pieces(self._reply.close())  # bytes without a character
        self._show("text", self._stops.close())  # no stop
        self.finish_reason = self.finish_reason or event.reason or "stop"

    def _add_pieces(self, pieces: list[Piece]) -> None:
        for kind, text in pieces:
            self._received += len(text)
            # In a completion the calculator's turns are text like any other.
            if kind != "text" and self.request.is_chat:
                self._show("text", self._stops.close())  # a stop lies within one part
                self._show(kind, text, even_empty=True)
                continue
            # Without text a call ends, and another may begin at once.
            self._show("text", self._stops.add(text), even_empty=self.request.is_chat and not text)
            if self._stops.found:
                self.finish_reason = "stop"
                return

    def _show(self, kind: str, text: str, even_empty: bool = False) -> None:
        self._shown += len(text)
        if text or even_empty:
            self._pieces.append(Piece(kind, text))

    # ---- to the client ----

    def row(self) -> list[int]:
        """Return all tokens, with the prompt before them."""
        return [*self.prompt, *(token.token for token in self.tokens)]

    def to_json(self, score: Score | None) -> Json:
        """Return the whole choice. score: log-probabilities of `row`, if the client asks for them."""
        content = self._take_content(ends=False)
        if self.request.is_chat:
            content = {"message": {"role": "assistant", "refusal": None, **content}}
        return self._delta(content, self.finish_reason, None if score is None else self._logprobs(score))

    def new_deltas(self) -> list[Json]:
        """Return the news for a stream: first the role, then text, at the end the reason."""
        is_chat = self.request.is_chat
        deltas = []
        if is_chat and not self.is_started:
            deltas.append(self._delta({"delta": {"role": "assistant", "content": ""}}))
        self.is_started = True
        if self._pieces:
            content = self._take_content(ends=True)
            deltas.append(self._delta({"delta": content} if is_chat else content))
        # The reason has a chunk of its own.
        if self.finish_reason and not self.is_sent:
            content = {"delta": {}} if is_chat else {"text": ""}
            deltas.append(self._delta(content, self.finish_reason))
            self.is_sent = True
        return deltas

    def _delta(self, content: Json, reason: str | None = None, logprobs: Json | None = None) -> Json:
        return {"index": self.index, **content, "logprobs": logprobs, "finish_reason": reason}

    def _take_content(self, ends: bool) -> Json:
        """Return what is shown and not sent: text, and the parts if the calculator was used. ends: as in `parts`."""
        pieces, self._pieces = self._pieces, []
        text = "".join(piece.text for piece in pieces if piece.kind == "text")
        if not self.request.is_chat:
            return {"text": text}
        content = {"content": text}
        # A text piece without text ends a call.
        if any(piece.kind != "text" or not piece.text for piece in pieces):
            content["parts"] = parts(pieces, ends=ends)
        return content

    def _logprobs(self, score: Score) -> Json:
        """Return the log-probabilities of shown tokens, with `echo` also the prompt's."""
        shown = []
        if self.request.prompt_texts:
            # The first token has no log-probability.
            prompt = list(zip(self.prompt, [None, *score], strict=False))
            shown += prompt[self.request.added_tokens :]
        for token, alternatives in zip(self.tokens, score[len(self.prompt) - 1 :], strict=True):
            is_cut = self._stops.found and token.start >= self._shown
            if token.sampled and not is_cut:  # the calculator's tokens were not the model's choice
                shown.append((token.token, alternatives))
        if self.request.is_chat:
            return {"content": [self._chat_logprob(*scored) for scored in shown], "refusal": None}
        tops = []
        for _, alternatives in shown:
            tops.append(alternatives and {self._spell(other): logprob for other, logprob in alternatives.items()})
        return {
            "tokens": [self._spell(token) for token, _ in shown],
            "token_logprobs": [alternatives and alternatives[token] for token, alternatives in shown],
            "top_logprobs": tops,
        }

    def _chat_logprob(self, token: int, alternatives: dict[int, float]) -> Json:
        spelled = [
            {"token": self._spell(other), "bytes": list(self._bytes(other)), "logprob": alternatives[other]}
            for other in (token, *alternatives)
        ]
        # The likeliest tokens come first; the token itself may be one more.
        return {**spelled[0], "top_logprobs": spelled[1:][: self.request.alternatives]}

    def _spell(self, token: int) -> str:
        return self._bytes(token).decode(errors="backslashreplace")  # pieces of a character stay apart


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
        scores: list[Score | None] = [None] * len(self.choices)
        if self.request.alternatives is not None:
            rows = [choice.row() for choice in self.choices.values()]
            scores = await self.generation.score(rows, self.request.alternatives)
        return await asyncio.to_thread(self._to_json, scores)  # many log-probabilities take a while

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield server-sent events as text arrives."""
        while not all(choice.is_sent for choice in self.choices.values()):
            chunks = self.new_chunks()
            if chunks:
                yield b"".join(map(sse, chunks))
                continue
            try:
                self.add(await self.generation.next_events())
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
        choices = self.choices.values()
        return [self._body([delta], is_chunk=True) for choice in choices for delta in choice.new_deltas()]

    def _to_json(self, scores: list[Score | None]) -> bytes:
        choices = [choice.to_json(score) for choice, score in zip(self.choices.values(), scores, strict=True)]
        return json.dumps({**self._body(choices, is_chunk=False), "usage": self._usage()}).encode()

    def _body(self, choices: list[Json], is_chunk: bool) -> Json:
        kind = "text_completion"
        if self.request.is_chat:
            kind = "chat.completion.chunk" if is_chunk else "chat.completion"
        # All chunks of a stream have the same id.
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _usage(self) -> dict[str, int]:
        prompt = sum(len(request.tokens) for request in self.request.prompts)
        completion = sum(choice.completion_tokens for choice in self.choices.values())
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def sse(body: Json) -> bytes:
    """Return a server-sent event."""
    return f"data: {json.dumps(body)}\n\n".encode()  # ASCII: no character looks like a line's end
