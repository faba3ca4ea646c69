"""Generation: many requests at once through fixed slots, each row as if it were alone, with the calculator's turns.

A step of the decoder gives each row a token; a row that has ended makes room for the next one at once. What the tokens
mean is followed here, on a GPU one step late, so that no step waits for it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from nanochat.calculator import Refused, calculate
from nanochat.decoder import Decoder
from nanochat.fused import Fused
from nanochat.gpt import GPT


@dataclass(frozen=True)
class Request:
    """tokens: the prompt. temperature 0: greedy. top_k 0, top_p 1: off. stop: ids that end a row and are left out,
    None: those that end a turn. n: samples, of which each draws from a generator of its own, from seed and number."""

    tokens: Sequence[int]
    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: frozenset[int] | None = None
    n: int = 1


class Event(NamedTuple):
    """A token of a sample, or its end: then token is None and reason stop or length. sampled: not forced by a tool.

    logprob: where asked for, the model's own log-probability of what it chose, the end too; 0 for what was forced.
    """

    request: int
    sample: int
    token: int | None
    sampled: bool = True
    reason: str = ""
    logprob: float = 0.0


@dataclass
class Completion:
    """mask: 1 where the model chose the token, 0 where the calculator's answer was put in.

    logprobs: as events have them, where asked for; one more than tokens if the model chose to stop.
    """

    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    reason: str = ""
    logprobs: list[float] = field(default_factory=list)


@dataclass(eq=False)
class Job:
    """Requests handed in together. events: what has come of them, to be taken out; open: samples without an end yet."""

    logprobs: bool
    open: int = 0
    events: deque[Event] = field(default_factory=deque)


@dataclass
class _Row:
    """A sample under way. most: tokens it may have, prompt included. forced: how many of those put in are to come."""

    job: Job
    request: Request
    where: tuple[int, int]
    stop: frozenset[int]
    most: int
    length: int
    slot: int = -1
    forced: int = 0
    expression: list[int] | None = None


ENDS = ("<|assistant_end|>", "<|bos|>")  # of a turn
SLOTS = {"cuda": 256, "cpu": 64}  # how many rows a kind of device runs at once


class Engine:
    """Its weights are a copy in the model's compute_dtype, laid out for generation, as of its making or `refresh`.

    slots: how many rows run at once; 0: as many as pay on the device. Jobs, and streams, may come and go while others
    run, in one thread.
    """

    def __init__(self, model: GPT, tokenizer: Any, slots: int = 0):
        self.decoder, self.config = Decoder(Fused(model)), model.config
        self.refresh = self.decoder.model.refresh  # in place: takes the weights that the model has now
        self.slots = slots or SLOTS.get(self.decoder.device.type, SLOTS["cpu"])
        self.tokenizer, self.special = tokenizer, tokenizer.special_tokens
        self.ends = frozenset(self.special[name] for name in ENDS)
        self.rows: list[_Row] = []  # in the order of their slots
        self.waiting: deque[_Row] = deque()
        self.longest = 0  # tokens that a row may have
        self.before: tuple | None = None  # the step whose tokens are not looked at yet

    def generate(self, requests: Sequence[Request], logprobs: bool = False) -> list[list[Completion]]:
        """The n completions of each request."""
        found = [[Completion() for _ in range(request.n)] for request in requests]
        for number, sample, token, sampled, reason, logprob in self.stream(requests, logprobs):
            completion = found[number][sample]
            if logprobs and reason != "length":
                completion.logprobs.append(logprob)
            if token is None:
                completion.reason = reason
            else:
                completion.tokens.append(token)
                completion.mask.append(int(sampled))
        return found

    def stream(self, requests: Sequence[Request], logprobs: bool = False) -> Iterator[Event]:
        """Events of all samples as they come, those of each in order; who leaves it, cancels them."""
        job = self.submit(requests, logprobs)
        try:
            while job.open:
                self.step()
                while job.events:
                    yield job.events.popleft()
        finally:
            self.cancel(job)

    def submit(self, requests: Sequence[Request], logprobs: bool = False) -> Job:
        """Requests for the coming steps, behind those that wait."""
        job = Job(logprobs)
        rows = [row for number, request in enumerate(requests) for row in self._rows(job, number, request)]
        rows.sort(key=lambda row: -row.length)  # what memory lacks shows at once
        job.open = len(rows)
        self.waiting.extend(rows)
        self.longest = max([self.longest, *(row.most for row in rows)])
        return job

    @torch.inference_mode()
    def cancel(self, job: Job, *where: tuple[int, int]) -> None:
        """Its samples, or those of these (request, sample), end where they are, and leave their slots to others."""

        def leaves(row: _Row) -> bool:
            return row.job is job and (not where or row.where in where)

        kept = deque(row for row in self.waiting if not leaves(row))
        job.open -= len(self.waiting) - len(kept)
        self.waiting = kept
        for row in [row for row in self.rows if leaves(row)]:
            self._leave(row)
            job.open -= 1

    @torch.inference_mode()
    def step(self) -> None:
        """A token for each row, and rows for free slots; jobs get their events, on CUDA those of the step before."""
        if self.waiting and len(self.rows) < self.slots:
            wanted = min(self.slots, len(self.rows) + len(self.waiting))
            free = self.decoder.make_room(wanted, self.longest, len(self.rows)) - len(self.rows)
            if free:
                self._admit([self.waiting.popleft() for _ in range(free)])
        step = (list(self.rows), *self._run()) if self.rows else None
        step, self.before = (self.before, step) if self.decoder.on_cuda else (step, None)
        if step is not None:
            self._follow(*step)

    def _rows(self, job: Job, number: int, request: Request) -> list[_Row]:
        context, length, words = self.config.max_seq_len, len(request.tokens), self.config.vocab_size
        stop = self.ends if request.stop is None else request.stop
        rules = [
            (length > 0, "has no tokens: begin it with <|bos|>"),
            (
                length < context,
                f"has {length:,} tokens, a prompt must be shorter than the context, {context:,}: cut it",
            ),
            (all(0 <= token < words for token in request.tokens), "has ids beyond the vocabulary"),
            (all(0 <= token < words for token in stop), "stops at ids beyond the vocabulary"),
            (request.max_new_tokens > 0 and request.n > 0, "asks for no tokens: max_new_tokens and n start at 1"),
            (request.temperature >= 0 and request.top_k >= 0 and request.seed >= 0, "has a negative setting"),
            (0 < request.top_p <= 1, f"has top_p {request.top_p}: it is above 0 and at most 1"),
        ]
        for kept, sentence in rules:
            if not kept:
                raise ValueError(f"request {number} {sentence}")
        most = min(length + request.max_new_tokens, context)
        return [_Row(job, request, (number, sample), stop, most, length) for sample in range(request.n)]

    def _admit(self, came: list[_Row]) -> None:
        """Into free slots. All samples of a prompt share one run of it: of the first, or of one that is still there."""
        holders = {id(row.request): row.slot for row in self.rows}
        prompts, copies = {}, {}
        for row in came:
            row.slot = len(self.rows)
            self.rows.append(row)
            if (key := id(row.request)) in holders:
                copies.setdefault((holders[key], row.length - 1), []).append(row.slot)
            else:
                holders[key] = row.slot
                prompts[row.slot] = row.request.tokens
        self.decoder.prefill(prompts)
        for (source, length), targets in copies.items():
            self.decoder.cache.copy(source, targets, length)
        self.decoder.seat([row.slot for row in came], [self._seat(row) for row in came])

    def _seat(self, row: _Row) -> dict[str, Any]:
        request = row.request
        return {
            "token": request.tokens[-1],
            "previous": request.tokens[-2:][0],
            "position": row.length - 1,
            "last": row.most - 1,
            "temperature": request.temperature,
            "top_k": request.top_k or self.config.vocab_size,
            "top_p": request.top_p,
            "halting": row.stop | {self.special["<|python_end|>"]},
            "uniform": np.random.default_rng([request.seed, row.where[1]]).random(row.most - row.length),
        }

    def _run(self) -> tuple[Any, Any]:
        drawn = [row.request for row in self.rows if row.request.temperature]
        words = self.config.vocab_size
        ranks = max((request.top_k or words for request in drawn if request.top_k or request.top_p < 1), default=0)
        ranks = min(1 << (ranks - 1).bit_length(), words) if ranks else 0  # a graph serves more than one of them
        longest = max(row.length for row in self.rows)
        logprobs = any(row.job.logprobs for row in self.rows)
        return self.decoder.step(len(self.rows), longest, bool(drawn), ranks, logprobs)

    def _follow(self, rows: list[_Row], given: list[torch.Tensor], done: Any) -> None:
        """What a step's tokens, and their log-probabilities if there are any, mean for its rows."""
        if done is not None:
            done.synchronize()
        for row, token, *logprob in zip(rows, *(column.tolist() for column in given), strict=False):  # a graph has more
            if token < 0 or row.slot < 0:  # it stood still, or has left since
                continue
            logprob = logprob * row.job.logprobs  # others may have asked for them
            sampled = row.forced == 0
            row.forced -= not sampled
            stops = sampled and token in row.stop
            row.length += not stops
            if not stops:
                row.job.events.append(Event(*row.where, token, sampled, "", *logprob * sampled))
            answer = self._answer(row, token) if sampled else None
            if stops or row.length == row.most:
                self._leave(row)
                row.job.open -= 1
                row.job.events.append(Event(*row.where, None, True, *(["stop", *logprob] if stops else ["length"])))
            elif answer is not None:
                row.forced = len(answer := answer[: row.most - row.length])
                self.decoder.resume(row.slot, row.length, answer)

    def _leave(self, row: _Row) -> None:
        """The last row takes its slot, so that a step takes the first slots, no more than there are rows."""
        moved = self.rows.pop()
        if moved is not row:
            self.decoder.move(moved.slot, row.slot, moved.length)
            moved.slot = row.slot
            self.rows[row.slot] = moved
        row.slot = -1

    def _answer(self, row: _Row, token: int) -> list[int] | None:
        """After a token at which the row stands still: the calculator's answer, or nothing, and the row goes on."""
        if token != self.special["<|python_end|>"]:
            if token == self.special["<|python_start|>"]:
                row.expression = []
            elif row.expression is not None:
                row.expression.append(token)
            return None
        expression, row.expression = row.expression, None
        try:
            answer = calculate(self.tokenizer.decode(expression or []))
        except Refused:
            return []
        return [self.special["<|output_start|>"], *self.tokenizer.encode(answer), self.special["<|output_end|>"]]
