"""Generation: many requests at once in fixed slots, with the same result for a row as alone, and calculator calls.

`Engine.step` is schedule → run → follow: free slots take waiting sequences, the decoder gives each row a token, and
tokens become events. A sequence that ends makes room for the next one at once. On a GPU the host follows tokens one
step late, so no step waits for the host.
"""

import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch

from nanochat.calculator import REFUSALS, calculate
from nanochat.decoder import Decoder, StepKind
from nanochat.fused import pack, refresh
from nanochat.gpt import GPT
from nanochat.log import print_line
from nanochat.tokenizer import Tokenizer

ENDS = ("<|assistant_end|>", "<|bos|>")  # the tokens that end a turn


@dataclass(frozen=True)
class Request:
    """A prompt and the settings for n continuations."""

    tokens: Sequence[int]
    max_new_tokens: int
    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    seed: int = 0  # each sample has a separate random generator, from the seed and the sample number
    stop: frozenset[int] | None = None  # ids that end a sample and are left out; None: ends of a turn
    n: int = 1
    logprobs: bool = False  # events have the model's log-probabilities

    def __post_init__(self) -> None:
        # Below, fp32 would overflow or vanish; the likeliest token is meant.
        if min(self.temperature, self.top_p) < 1e-6:
            object.__setattr__(self, "temperature", 0.0)  # the dataclass is frozen


class Event(NamedTuple):
    """A token in a sample, or the sample's end: then token is None, and reason is stop, length or error."""

    request: int
    sample: int
    token: int | None
    sampled: bool = True  # chosen by the model, not put in by the calculator
    reason: str = ""
    # The model's log-probability for the choice, ends included; 0 for tokens put in, and if the request does not ask.
    logprob: float = 0.0


@dataclass
class Completion:
    """All events from one sample, collected."""

    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)  # 1: chosen by the model, 0: put in by the calculator
    reason: str = ""
    # One per token, and one more if the model chose to stop; 0 if the request does not ask.
    logprobs: list[float] = field(default_factory=list)

    def add(self, event: Event) -> None:
        if event.reason not in ("length", "error"):  # a cut sample has no chosen end
            self.logprobs.append(event.logprob)
        if event.token is None:
            self.reason = event.reason
        else:
            self.tokens.append(event.token)
            self.mask.append(int(event.sampled))


@dataclass(eq=False)
class Job:
    """Requests submitted together. The owner takes the events out."""

    open: int = 0  # samples still waiting or running
    events: deque[Event] = field(default_factory=deque)


@dataclass(eq=False)
class _Sequence:
    """A sample that waits, or runs in a slot."""

    job: Job
    request: Request
    number: int  # index of the request in the job
    sample: int
    stop: frozenset[int]
    most: int  # limit on tokens, prompt included
    length: int  # tokens so far, prompt included
    slot: int = -1  # -1: none
    forced: int = 0  # tokens left from the calculator's answer
    expression: list[int] | None = None  # tokens since <|python_start|>

    def add(self, token: int | None, **facts: Any) -> None:
        """Give the job an event; facts: the further fields."""
        self.job.events.append(Event(self.number, self.sample, token, **facts))


class Engine:
    """Runs jobs on a packed copy of the model's weights; `refresh` copies the present weights.

    slots: rows at once; 0: as many as pay on the device. Jobs may come and go while others run, in one thread.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, slots: int = 0) -> None:
        packed = pack(model)
        self.decoder = Decoder(packed)
        self.config = model.config
        self.refresh = partial(refresh, packed, model)
        self.slots = slots or (256 if self.decoder.on_cuda else 64)
        self.tokenizer = tokenizer
        self.special = tokenizer.special_tokens
        self.ends = frozenset(self.special[name] for name in ENDS)
        self.rows: list[_Sequence] = []  # in the order of their slots
        self.waiting: deque[_Sequence] = deque()
        self.longest = 0  # most tokens that any sequence so far may have
        self.unread = None  # on CUDA: the last step, with tokens not yet followed

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """Return the n completions of each request."""
        return [completions for _, completions in sorted(self.finished(requests))]

    def finished(self, requests: Sequence[Request]) -> Iterator[tuple[int, list[Completion]]]:
        """Yield each request's number and n completions when the last of them has ended."""
        completions = [[Completion() for _ in range(request.n)] for request in requests]
        # Samples end in any order; each event names the request and the sample.
        for event in self.stream(requests):
            samples = completions[event.request]
            samples[event.sample].add(event)
            if event.token is None and all(sample.reason for sample in samples):
                yield event.request, samples

    def stream(self, requests: Sequence[Request]) -> Iterator[Event]:
        """Yield all samples' events as they come, in order within a sample; closing the iterator cancels them."""
        job = self.submit(requests)
        try:
            while job.open:  # steps serve other jobs too
                self.step()
                while job.events:
                    yield job.events.popleft()
        finally:
            self.cancel(job)

    def submit(self, requests: Sequence[Request]) -> Job:
        """Queue requests; ValueError for an invalid one. The samples run in the steps that follow."""
        job = Job()
        sequences = []
        context = self.config.max_seq_len
        for number, request in enumerate(requests):
            length = len(request.tokens)
            if not 0 < length < context:
                raise ValueError(f"prompt {number} has {length} tokens, the context holds 1 to {context - 1}")
            stop = self.ends if request.stop is None else request.stop
            most = min(length + request.max_new_tokens, context)
            self.longest = max(self.longest, most)
            sequences += [_Sequence(job, request, number, i, stop, most, length) for i in range(request.n)]
        # The longest first: a lack of memory shows at once.
        sequences.sort(key=lambda sequence: -sequence.length)
        job.open = len(sequences)
        self.waiting.extend(sequences)
        return job

    @torch.inference_mode()
    def cancel(self, job: Job, *samples: tuple[int, int]) -> None:
        """End a job's samples, or only these (request, sample) pairs, and free the slots."""
        leaving = [sequence for sequence in (*self.waiting, *self.rows) if sequence.job is job]
        if samples:
            leaving = [sequence for sequence in leaving if (sequence.number, sequence.sample) in samples]
        job.open -= len(leaving)
        for sequence in leaving:
            if sequence.slot >= 0:
                self._release(sequence)
            else:
                self.waiting.remove(sequence)

    @torch.inference_mode()
    def step(self) -> None:
        """Give each running sequence a token and each job the new events, on CUDA the events from the step before."""
        self._schedule()
        step = self._run() if self.rows else None
        if self.decoder.on_cuda:
            # This step runs on while the host follows the last one.
            step, self.unread = self.unread, step
        if step is not None:
            self._follow(step)

    # ---- schedule ----

    def _schedule(self) -> None:
        """Move waiting sequences into free slots."""
        if not self.waiting:
            return
        if not self.rows:  # the decoder's memory can change
            self.decoder.make_room(min(self.slots, len(self.waiting)), self.longest)
        running = len(self.rows)
        room = min(self.slots, self.decoder.cache.slots)
        # A prompt runs once: later samples copy the slot from a sample already there.
        holders = {id(sequence.request): sequence.slot for sequence in self.rows}
        prompts = {}
        copies = []  # (slot with the prompt, sequence that takes a copy)
        # A sequence too long for the slots waits until no row runs.
        while self.waiting and len(self.rows) < room and self.waiting[0].most <= self.decoder.length:
            sequence = self.waiting.popleft()
            sequence.slot = len(self.rows)
            self.rows.append(sequence)
            holder = holders.setdefault(id(sequence.request), sequence.slot)
            if holder == sequence.slot:
                prompts[holder] = sequence.request.tokens
            else:
                copies.append((holder, sequence))
        self.decoder.prefill(prompts)
        for holder, sequence in copies:
            # The last prompt token is not stored: the first step feeds it.
            self.decoder.cache.copy(holder, sequence.slot, sequence.length - 1)
        if self.rows[running:]:
            self.decoder.seat(running, [self._start(sequence) for sequence in self.rows[running:]])

    def _start(self, sequence: _Sequence) -> dict[str, Any]:
        """Return the row for `Decoder.seat`."""
        request = sequence.request
        halting = np.zeros(self.config.vocab_size, dtype=bool)
        halting[[*sequence.stop, self.special["<|python_end|>"]]] = True
        # All random numbers in advance: a sample does not depend on the rows beside it.
        uniform = np.zeros(self.decoder.length)
        generator = np.random.default_rng([request.seed, sequence.sample])
        uniform[sequence.length : sequence.most] = generator.random(sequence.most - sequence.length)
        return {
            "token": request.tokens[-1],
            "previous": request.tokens[-2:][0],  # any id for a prompt with one token
            "position": sequence.length - 1,
            "last": sequence.most - 1,
            "temperature": request.temperature,
            "top_k": request.top_k or self.config.vocab_size,
            "top_p": request.top_p,
            "halting": halting,
            "uniform": uniform,
        }

    # ---- run ----

    def _run(self) -> "_Step":
        words = self.config.vocab_size
        # Only the parts that some row needs run in this step.
        sampled = [sequence.request for sequence in self.rows if sequence.request.temperature]
        # top-p alone may need any number of ranks.
        filtered = (request.top_k or words for request in sampled if request.top_k or request.top_p < 1)
        ranks = max(filtered, default=0)
        if ranks:
            ranks = min(1 << (ranks - 1).bit_length(), words)  # a power of two: fewer graphs
        logprobs = any(sequence.request.logprobs for sequence in self.rows)
        longest = max(sequence.length for sequence in self.rows)
        columns, event = self.decoder.step(len(self.rows), longest, StepKind(bool(sampled), ranks, logprobs))
        return _Step(list(self.rows), columns, event)

    # ---- follow ----

    def _follow(self, step: "_Step") -> None:
        """Turn a step's tokens into events."""
        if step.event is not None:  # the copy to the host may still run
            step.event.synchronize()
        tokens, *rest = (column.tolist() for column in step.columns)
        logprobs = rest[0] if rest else repeat(0.0)
        # Not strict: a graph may have more rows than there are sequences.
        for sequence, token, logprob in zip(step.sequences, tokens, logprobs, strict=False):
            # Rows that stand still get -1; others may have left since the step began.
            if token >= 0 and sequence.slot >= 0:
                try:
                    self._follow_token(sequence, token, logprob if sequence.request.logprobs else 0.0)
                except Exception:  # whatever one row's text does must not end the others
                    print_line(f"engine: a sample ends with an error\n{traceback.format_exc()}")
                    self._end(sequence, "error")

    def _follow_token(self, sequence: _Sequence, token: int, logprob: float) -> None:
        sampled = sequence.forced == 0
        if not sampled:
            sequence.forced -= 1
            logprob = 0.0
        elif token in sequence.stop:
            self._end(sequence, "stop", logprob)
            return
        sequence.length += 1
        sequence.add(token, sampled=sampled, logprob=logprob)
        answer = self._answer(sequence, token) if sampled else None
        room = sequence.most - sequence.length
        if room == 0:
            self._end(sequence, "length")
        elif answer is not None:
            sequence.forced = min(len(answer), room)
            self.decoder.resume(sequence.slot, sequence.length, answer[:room])

    def _answer(self, sequence: _Sequence, token: int) -> list[int] | None:
        """Return the calculator's answer, perhaps empty, if the token ends an expression (the row waits); else None."""
        if token == self.special["<|python_start|>"]:
            sequence.expression = []
            return None
        if token != self.special["<|python_end|>"]:
            if sequence.expression is not None:
                sequence.expression.append(token)
            return None
        expression = sequence.expression or []
        sequence.expression = None
        try:
            answer = calculate(self.tokenizer.decode(expression))
        except REFUSALS:
            return []  # no answer: the model continues
        return [self.special["<|output_start|>"], *self.tokenizer.encode(answer), self.special["<|output_end|>"]]

    def _end(self, sequence: _Sequence, reason: str, logprob: float = 0.0) -> None:
        self._release(sequence)
        sequence.job.open -= 1
        sequence.add(None, reason=reason, logprob=logprob)

    def _release(self, sequence: _Sequence) -> None:
        """Free a slot and move the last sequence there, because a step runs the first slots."""
        moved = self.rows.pop()
        if moved is not sequence:
            self.decoder.move(moved.slot, sequence.slot, moved.length)
            moved.slot = sequence.slot
            self.rows[moved.slot] = moved
        sequence.slot = -1


class _Step(NamedTuple):
    """Tokens from a step, on the way to the host."""

    sequences: list[_Sequence]
    columns: list[torch.Tensor]  # tokens, and log-probabilities if a request asks for them
    event: torch.cuda.Event | None  # on CUDA: afterwards the columns are on the host
