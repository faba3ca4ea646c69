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

KEEP_ALIVE = 15.0  # seconds of silence in a stream before a comment shows that it is alive

Json = dict[str, Any]


class StopFinder:
    """Text up to the first stop in it, independent of how the text is cut into pieces."""

    def __init__(self, stops: Sequence[str]):
        self.stops = stops
        self.held = ""  # text at the end that may be the beginning of a stop
        self.found = False

    def add(self, text: str) -> str:
        """Return the text that can be shown now: no stop begins in it."""
        text = self.held + text
        self.held = ""
        begins = {}
        for stop in self.stops:
            begin = text.find(stop)
            if begin >= 0:
                begins[stop] = begin
        if begins:
            self.found = True
            # The stop that ends first counts; of several with one end, the longest.
            first = min(begins, key=lambda stop: (begins[stop] + len(stop), begins[stop]))
            return text[: begins[first]]
        longest = max(map(len, self.stops), default=0)
        for begin in range(max(0, len(text) - longest + 1), len(text)):
            if any(stop.startswith(text[begin:]) for stop in self.stops):
                self.held = text[begin:]
                return text[:begin]
        return text

    def close(self) -> str:
        """Return the text that was held back and is not a stop."""
        text = self.held
        self.held = ""
        return text


class ChoiceToken(NamedTuple):
    """A token of a choice. start: characters before it. sampled: False for the calculator's answer."""

    token: int
    logprob: float
    start: int
    sampled: bool


class ShownToken(NamedTuple):
    """A token as clients see it. start: characters before it. logprobs: its own and alternatives; None: the first."""

    token: int
    start: int
    logprobs: dict[int, float] | None


class Choice:
    """A sample as OpenAI's interface has it. index: its number for the client. finish_reason: empty until it ends."""

    def __init__(self, index: int, request: ApiRequest, tokenizer: Tokenizer):
        self.index = index
        self.request = request
        self.finish_reason = "" if request.generates else "length"
        self.tokens: list[ChoiceToken] = []  # the token that ended the choice too, if its log-probability is shown
        self.completion_tokens = 0
        self.started = False  # the first chunk of a stream was made
        self.finished = False  # the last chunk of a stream was made
        self._reply = Reply(tokenizer)
        self._stops = StopFinder(request.stops)
        self._pieces: list[Piece] = []  # to be shown
        self._received = 0  # characters from the engine
        self._shown = 0  # characters in pieces, these and earlier ones
        self._tokens_taken = 0

    def add(self, event: Event) -> None:
        """Take the next event of the engine; events after the end are dropped."""
        if self.finish_reason:
            return
        if event.token is not None:
            self.tokens.append(ChoiceToken(event.token, event.logprob, self._received, event.sampled))
        if event.token is not None and not (event.sampled and event.token in self.request.end_tokens):
            self.completion_tokens += 1
            self._add_pieces(self._reply.add(event.token))
            return
        self._add_pieces(self._reply.close())
        if not self._stops.found:
            self._show("text", self._stops.close())
        self.finish_reason = self.finish_reason or event.reason or "stop"

    def take_pieces(self) -> list[Piece]:
        """Return the pieces that can be shown since the last call."""
        pieces = self._pieces
        self._pieces = []
        return pieces

    def take_tokens(self) -> list[tuple[int, ChoiceToken]]:
        """Return the sampled tokens that are shown since the last call, each with its index in `tokens`."""
        first = self._tokens_taken
        while self._tokens_taken < len(self.tokens) and self._is_shown(self.tokens[self._tokens_taken]):
            self._tokens_taken += 1
        taken = enumerate(self.tokens[first : self._tokens_taken], first)
        return [(at, token) for at, token in taken if token.sampled]

    def _is_shown(self, token: ChoiceToken) -> bool:
        """Return False for a token that a stop has cut off, or may still cut off."""
        return token.start < self._shown or (bool(self.finish_reason) and not self._stops.found)

    def _add_pieces(self, pieces: list[Piece]) -> None:
        for kind, text in pieces:
            is_call = kind != "text" and self.request.is_chat
            if is_call:
                self._show("text", self._stops.close())  # a stop lies within one part
            self._received += len(text)
            if is_call:
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


class ApiResponse:
    """The response to one request: `whole` is its JSON, `stream` its server-sent events."""

    def __init__(self, request: ApiRequest, served: ServedModel, generation: Generation):
        self.request = request
        self.generation = generation
        self.model = served.name
        self.tokenizer = served.tokenizer
        self.special_names = {token: name for name, token in served.tokenizer.special_tokens.items()}
        self.id = ("chatcmpl-" if request.is_chat else "cmpl-") + secrets.token_hex(12)
        self.created = int(time.time())
        self.choices: dict[Sample, Choice] = {}
        for number, prompt in enumerate(request.prompts):
            for sample in range(prompt.n):
                index = number * prompt.n + sample
                self.choices[number, sample] = Choice(index, request, served.tokenizer)

    async def whole(self) -> bytes:
        """Return the JSON of all choices, once they have ended."""
        while not all(choice.finish_reason for choice in self.choices.values()):
            self.add(await self.generation.next_events())
        scores = {}
        if self.request.needs_scores:
            rows = {sample: self.row(sample) for sample in self.choices}
            different = list(dict.fromkeys(rows.values()))  # without generated tokens all samples are alike
            found = await self.generation.score(different, self.request.top_logprobs)
            by_row = dict(zip(different, found, strict=True))
            scores = {sample: by_row[row] for sample, row in rows.items()}
        return await asyncio.to_thread(self.to_json, scores)  # log-probabilities of many tokens are long

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield server-sent events as text arrives. An error within the stream is an event too."""
        try:
            while True:
                chunks = self.new_chunks()
                if chunks:
                    yield b"".join(_sse(chunk) for chunk in chunks)
                if all(choice.finished for choice in self.choices.values()):
                    break
                events = []
                with anyio.move_on_after(KEEP_ALIVE):
                    events = await self.generation.next_events()
                if not events:
                    yield b": keep-alive\n\n"
                self.add(events)
        except ApiError as error:
            yield _sse(error.body)
            return
        if self.request.include_usage:
            yield _sse({**self._body(True, []), "usage": self.usage()})
        yield b"data: [DONE]\n\n"

    def add(self, events: list[Event]) -> None:
        for event in events:
            sample = event.request, event.sample
            choice = self.choices[sample]
            choice.add(event)
            if choice.finish_reason:
                self.generation.cancel({sample})  # a stop ends a choice before the engine does

    def row(self, sample: Sample) -> tuple[int, ...]:
        """Return all tokens of a choice, with the prompt before them."""
        prompt = self.request.prompts[sample[0]].tokens
        return (*prompt, *(token.token for token in self.choices[sample].tokens))

    def usage(self) -> dict[str, int]:
        prompt = sum(len(request.tokens) for request in self.request.prompts)
        completion = sum(choice.completion_tokens for choice in self.choices.values())
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def to_json(self, scores: dict[Sample, Score]) -> bytes:
        """Return the whole response. scores: of all choices, or of none if the engine's log-probabilities do."""
        choices = []
        for sample, choice in self.choices.items():
            pieces = choice.take_pieces()
            text = _text(pieces, of_calls=not self.request.is_chat)
            if self.request.is_chat:
                message = {"role": "assistant", "content": text, "refusal": None}
                if any(piece.kind != "text" for piece in pieces):
                    message["parts"] = parts(pieces)
                content = {"message": message}
            else:
                content = {"text": self._echo(sample) + text}
            logprobs = self._logprobs(sample, scores.get(sample))
            reason = choice.finish_reason
            choices.append({"index": choice.index, **content, "logprobs": logprobs, "finish_reason": reason})
        return json.dumps({**self._body(False, choices), "usage": self.usage()}).encode()

    def new_chunks(self) -> list[Json]:
        """Return chunks with everything new, in the order of choices."""
        chunks = []
        for sample, choice in self.choices.items():
            for delta in self._deltas(sample, choice):
                chunks.append(self._body(True, [{"index": choice.index, **delta}]))
        return chunks

    def _deltas(self, sample: Sample, choice: Choice) -> list[Json]:
        """Return the changes of one choice: first its role or echo, then text, at the end the reason."""
        if choice.finished:
            return []
        is_chat = self.request.is_chat
        deltas = []
        if not choice.started and is_chat:
            deltas.append(_delta({"delta": {"role": "assistant", "content": ""}}))
        elif not choice.started and self.request.echo:
            deltas.append(_delta({"text": self._echo(sample)}))
        choice.started = True
        pieces = choice.take_pieces()
        logprobs = self._logprobs(sample)
        if pieces or (logprobs and any(logprobs.values())):
            content = {"text": _text(pieces, of_calls=True)}
            if is_chat:
                delta = {"content": _text(pieces, of_calls=False)}
                if any(piece.kind != "text" or not piece.text for piece in pieces):
                    delta["parts"] = parts(pieces, ends=True)
                content = {"delta": delta}
            deltas.append(_delta(content, logprobs))
        if choice.finish_reason:
            deltas.append(_delta({"delta": {}} if is_chat else {"text": ""}, reason=choice.finish_reason))
            choice.finished = True
        return deltas

    def _body(self, is_chunk: bool, choices: list[Json]) -> Json:
        kind = "text_completion"
        if self.request.is_chat:
            kind = "chat.completion.chunk" if is_chunk else "chat.completion"
        body = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
        if is_chunk and self.request.include_usage:
            body["usage"] = None
        return body

    def _echo(self, sample: Sample) -> str:
        return self.request.prompt_texts[sample[0]] if self.request.echo else ""

    # ---- log-probabilities ----

    def _logprobs(self, sample: Sample, score: Score | None = None) -> Json | None:
        """Return the new tokens, with `echo` also the prompt, and log-probabilities. score None: the engine's own."""
        if self.request.top_logprobs < 0:
            return None
        prompt = self.request.prompts[sample[0]].tokens
        before = len(self._echo(sample))
        tokens = []
        if score is not None and self.request.echo:
            sent = prompt[self.request.added_tokens :]
            logprobs = [None, *score][self.request.added_tokens : len(prompt)]  # the first token has none
            for token, start, logprob in zip(sent, self._starts(sent), logprobs, strict=True):
                tokens.append(ShownToken(token, start, logprob))
        for at, token in self.choices[sample].take_tokens():
            logprobs = {token.token: token.logprob}
            if score is not None:
                logprobs = score[len(prompt) + at - 1]
            tokens.append(ShownToken(token.token, before + token.start, logprobs))
        return self._chat_logprobs(tokens) if self.request.is_chat else self._completion_logprobs(tokens)

    def _starts(self, tokens: Sequence[int]) -> list[int]:
        """Return the number of characters before each token."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        starts = []
        total = 0
        for token in tokens:
            starts.append(total)
            total += len(decoder.decode(self._bytes(token)))
        return starts

    def _chat_logprobs(self, tokens: list[ShownToken]) -> Json:
        content = []
        for token, _, logprobs in tokens:
            alternatives = []
            for other in list(logprobs)[: self.request.top_logprobs]:
                alternatives.append({**self._spelling(other), "logprob": logprobs[other]})
            content.append({**self._spelling(token), "logprob": logprobs[token], "top_logprobs": alternatives})
        return {"content": content, "refusal": None}

    def _completion_logprobs(self, tokens: list[ShownToken]) -> Json:
        alternatives = []
        for _, _, logprobs in tokens:
            alternatives.append(logprobs and {self._spell(token): one for token, one in logprobs.items()})
        return {
            "tokens": [self._spell(token) for token, _, _ in tokens],
            "token_logprobs": [logprobs and logprobs[token] for token, _, logprobs in tokens],
            "top_logprobs": alternatives,
            "text_offset": [start for _, start, _ in tokens],
        }

    def _bytes(self, token: int) -> bytes:
        name = self.special_names.get(token)
        return self.tokenizer.core.token_bytes(token) if name is None else name.encode()

    def _spell(self, token: int) -> str:
        """Return a token's text; bytes that are not text alone are spelled out, as OpenAI does."""
        content = self._bytes(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def _spelling(self, token: int) -> Json:
        return {"token": self._spell(token), "bytes": list(self._bytes(token))}


def _delta(content: Json, logprobs: Json | None = None, reason: str | None = None) -> Json:
    return {**content, "logprobs": logprobs, "finish_reason": reason}


def _sse(body: Json) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()  # ASCII: no client sees the end of a line in a character


def _text(pieces: list[Piece], of_calls: bool) -> str:
    """Return the text of pieces. of_calls: with the text of the calculator's calls and answers."""
    return "".join(piece.text for piece in pieces if of_calls or piece.kind == "text")
