"""What the engine's events become for clients: text up to a stop, kept back while it may still become one, and JSON."""

import codecs
import math
import secrets
import time
from collections.abc import Sequence
from typing import Any

from nanochat.chat import Piece, Reply, parts
from nanochat.engine import Event
from nanochat.serve.requests import Asked, Served


class Stops:
    """Text as it comes, up to the first stop in it; the same however the text is cut into pieces."""

    def __init__(self, stops: Sequence[str]):
        self.stops, self.kept, self.hit = stops, "", False

    def add(self, text: str) -> str:
        """What can be shown by now: no stop ends in it, and none can begin in it that has not ended."""
        text, self.kept = self.kept + text, ""
        ends = [(at + len(stop), at) for stop in self.stops if (at := text.find(stop)) >= 0]
        if ends:
            self.hit = True
            return text[: min(ends)[1]]
        for at in range(max(0, len(text) - max(map(len, self.stops), default=0) + 1), len(text)):
            if any(stop.startswith(text[at:]) for stop in self.stops):
                self.kept = text[at:]
                return text[:at]
        return text

    def close(self) -> str:
        """What was kept back: it has become no stop."""
        text, self.kept = self.kept, ""
        return text


class Choice:
    """One answer as it comes. index: its number for the client. reason: why it ended, once it has."""

    def __init__(self, index: int, asked: Asked, tokenizer: Any):
        self.index, self.chat, self.logprobs = index, asked.chat, asked.top == 0
        self.reply, self.stops = Reply(tokenizer), Stops(asked.stops)
        self.reason, self.tokens, self.ends = "" if asked.writes else "length", [], asked.ends
        self.end: list[int] = []  # the token that ended it, if that is told
        self.places: list[tuple[int, bool]] = []  # of each of these tokens: characters before it, whether it was chosen
        self.begun = self.told = False  # whether a stream has its first chunk, its last one
        self.read = self.shown = 0  # characters that came, and those of them that were shown
        self._pieces: list[Piece] = []
        self._chosen: list[tuple[int, float, int]] = []  # token, its log-probability, characters before it

    def add(self, event: Event) -> None:
        if self.reason:
            return
        if event.sampled and event.token is not None and self.logprobs:
            self._chosen.append((event.token, event.logprob, self.read))
        if event.token is not None:
            self.places.append((self.read, event.sampled))
        if event.sampled and event.token in self.ends:
            self.end = [event.token]
        if event.token is None or self.end:
            self._say(self.reply.close())
            self.reason = self.reason or event.reason or "stop"
            self._show(self.stops.close() if not self.stops.hit else "")
        else:
            self.tokens.append(event.token)
            self._say(self.reply.add(event.token))

    def take(self) -> tuple[list[Piece], list[tuple[int, float, int]]]:
        """What came since the last time and can be shown."""
        pieces, self._pieces = self._pieces, []
        ready = [one for one in self._chosen if one[2] < self.shown or (self.reason and not self.stops.hit)]
        self._chosen = self._chosen[len(ready) :]
        return pieces, ready

    def _say(self, pieces: list[Piece]) -> None:
        for kind, text in pieces:
            if self.chat and kind != "text":
                self._show(self.stops.close())  # a stop lies in one part
                self._pieces.append(Piece(kind, text))
                self.read, self.shown = self.read + len(text), self.shown + len(text)
                continue
            if self.chat and not text:
                self._pieces.append(Piece(kind, text))  # where a call ends, and another may begin at once
            self.read += len(text)
            self._show(self.stops.add(text))
            if self.stops.hit:
                self.reason = "stop"
                return

    def _show(self, text: str) -> None:
        self.shown += len(text)
        if text:
            self._pieces.append(Piece("text", text))


class Answer:
    """All choices of a request, as bodies of the interface. What is told of log-probabilities, `score` may replace."""

    def __init__(self, asked: Asked, served: Served):
        self.asked, self.served, self.tokenizer = asked, served, served.tokenizer
        self.id = ("chatcmpl-" if asked.chat else "cmpl-") + secrets.token_hex(12)
        self.created, self.choices = int(time.time()), {}
        self.names = {number: name for name, number in self.tokenizer.special_tokens.items()}
        for number, request in enumerate(asked.requests):
            for sample in range(request.n):
                index = number * request.n + sample
                self.choices[number, sample] = Choice(index, asked, self.tokenizer)

    def usage(self) -> dict[str, int]:
        prompt = sum(len(request.tokens) for request in self.asked.requests)
        written = sum(len(choice.tokens) for choice in self.choices.values())
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}

    def chunks(self) -> list[dict[str, Any]]:
        """What is new, in the order of choices; the first of each says who speaks, the last why it ended."""
        return [chunk for where, choice in self.choices.items() for chunk in self._news(where, choice)]

    def last_chunk(self) -> dict[str, Any]:
        return {**self._body(True, []), "usage": self.usage()}

    def row(self, where: tuple[int, int]) -> list[int]:
        """All tokens of a choice, those of the prompt first."""
        choice = self.choices[where]
        return [*self.asked.requests[where[0]].tokens, *choice.tokens, *choice.end]

    def whole(self, scores: dict[tuple[int, int], tuple[list, list]]) -> dict[str, Any]:
        """scores: for choices whose log-probabilities are told from a forward of all tokens, what that gave."""
        choices = []
        for where, choice in self.choices.items():
            pieces, chosen = choice.take()
            told = self._scored(where, choice, scores[where]) if where in scores else self._chosen(where, chosen)
            content = self._message(pieces) if self.asked.chat else {"text": self._echo(where) + _joined(pieces)}
            choices.append({"index": choice.index, **content, "logprobs": told, "finish_reason": choice.reason})
        return {**self._body(False, choices), "usage": self.usage()}

    def _body(self, chunk: bool, choices: list[dict]) -> dict[str, Any]:
        kind = "chat.completion" + ".chunk" * chunk if self.asked.chat else "text_completion"
        about = {"id": self.id, "object": kind, "created": self.created, "model": self.served.name}
        return {**about, "choices": choices, **({"usage": None} if chunk and self.asked.usage else {})}

    def _echo(self, where: tuple[int, int]) -> str:
        return self.asked.prompts[where[0]] if self.asked.echo else ""

    def _message(self, pieces: list[Piece]) -> dict[str, Any]:
        message = {"role": "assistant", "content": _said(pieces), "refusal": None}
        return {"message": message | ({"parts": parts(pieces)} if _has_calls(pieces) else {})}

    def _news(self, where: tuple[int, int], choice: Choice) -> list[dict[str, Any]]:
        if choice.told:
            return []
        (pieces, chosen), deltas = choice.take(), []
        if not choice.begun and (self.asked.chat or self._echo(where)):
            first = {"delta": {"role": "assistant", "content": ""}} if self.asked.chat else {"text": self._echo(where)}
            deltas.append({**first, "logprobs": None, "finish_reason": None})
        if pieces or chosen:
            content = {"text": _joined(pieces)}
            if self.asked.chat:
                content = {"delta": {"content": _said(pieces)}}
                at_calls = any(piece.kind != "text" or not piece.text for piece in pieces)
                content["delta"] |= {"parts": parts(pieces, ends=True)} if at_calls else {}
            deltas.append({**content, "logprobs": self._chosen(where, chosen), "finish_reason": None})
        if choice.reason:
            content = {"delta": {}} if self.asked.chat else {"text": ""}
            deltas.append({**content, "logprobs": None, "finish_reason": choice.reason})
        choice.begun, choice.told = True, bool(choice.reason)
        return [self._body(True, [{"index": choice.index, **delta}]) for delta in deltas]

    # ---- log-probabilities ----

    def _chosen(self, where: tuple[int, int], chosen: list[tuple[int, float, int]]) -> dict[str, Any] | None:
        """Of what was chosen, as the engine gives it."""
        if self.asked.top != 0:
            return None
        start = len(self._echo(where))
        return self._told([(token, logprob, [(token, logprob)], start + at) for token, logprob, at in chosen])

    def _scored(self, where: tuple[int, int], choice: Choice, score: tuple[list, list]) -> dict[str, Any]:
        """Of the prompt too, where it is echoed: but not of tokens that the client has not sent."""
        prompt, (chosen, likeliest) = self.asked.requests[where[0]].tokens, score
        tokens, told = self.row(where), []
        first = self.asked.unseen if self.asked.echo else len(prompt)
        echo = len(self._echo(where))
        end = echo + choice.shown if choice.stops.hit else math.inf
        places = [(start, True) for start in self._offsets(prompt, first)]
        places += [(echo + read, sampled) for read, sampled in choice.places]
        rows = zip(tokens, [None, *chosen], [None, *likeliest], places, strict=True)
        for at, (token, logprob, top, (start, sampled)) in enumerate(rows):
            if at >= first and (at < len(prompt) or (sampled and start < end)):
                told.append((token, logprob, top if top is None else dict([*top, (token, logprob)]).items(), start))
        return self._told(told)

    def _offsets(self, prompt: Sequence[int], first: int) -> list[int]:
        """Characters before each token of a prompt, from the `first` on; names of special tokens are text in it."""
        decoder, offsets, total = codecs.getincrementaldecoder("utf-8")("replace"), [], 0
        for at, token in enumerate(prompt):
            offsets.append(total)
            if at >= first and token in self.names:
                total += len(self.names[token])
            elif at >= first:
                total += len(decoder.decode(self.tokenizer.core.token_bytes(token)))
        return offsets

    def _told(self, rows: list[tuple]) -> dict[str, Any]:
        """rows: token, its log-probability, (token, log-probability) of the likeliest, characters before it."""
        if not self.asked.chat:
            likeliest = [top and {self._spelled(token)["token"]: one for token, one in top} for _, _, top, _ in rows]
            return {
                "tokens": [self._spelled(token)["token"] for token, *_ in rows],
                "token_logprobs": [logprob for _, logprob, _, _ in rows],
                "top_logprobs": likeliest,
                "text_offset": [start for *_, start in rows],
            }
        content = []
        for token, logprob, top, _ in rows:
            best = [{**self._spelled(token), "logprob": one} for token, one in list(top)[: self.asked.top]]
            content.append({**self._spelled(token), "logprob": logprob, "top_logprobs": best})
        return {"content": content, "refusal": None}

    def _spelled(self, token: int) -> dict[str, Any]:
        """A token as text, with its bytes spelled out where they are no text of their own, and its bytes."""
        own = self.names[token].encode() if token in self.names else self.tokenizer.core.token_bytes(token)
        try:
            return {"token": own.decode(), "bytes": list(own)}
        except UnicodeDecodeError:
            return {"token": "bytes:" + "".join(f"\\x{byte:02x}" for byte in own), "bytes": list(own)}


def _joined(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _said(pieces: list[Piece]) -> str:
    return _joined([piece for piece in pieces if piece.kind == "text"])


def _has_calls(pieces: list[Piece]) -> bool:
    return any(piece.kind != "text" for piece in pieces)
