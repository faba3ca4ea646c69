"""Generation: many requests at once in fixed slots, with the same result for a row as alone, and calculator calls.

A `Request` has n `Sample`s. `Engine.step` is schedule → run → follow: free slots get waiting samples, the decoder gives
each row a token, and tokens become `Event`s; a `Completion` collects those of one sample. A sample that ends makes room
for the next one at once. On a GPU the host follows tokens one step late, so no step waits for the host.
"""

import traceback
from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nanochat.calculator import REFUSALS, calculate
from nanochat.decoder import LIKELY, Decoder, RowState, StepKind
from nanochat.errors import UserError
from nanochat.fused import copy_weights, meet_sizes, pack
from nanochat.gpt import GPT
from nanochat.log import print_line
from nanochat.models import as_written
from nanochat.tokenizer import Tokenizer

SCORED_AT_ONCE = 256  # positions whose logits `Engine.score` computes together

Likely = dict[int, float]  # log-probabilities of a token and likely others, by id, the likeliest first
Score = list[Likely]  # for each token of a row but the first


@dataclass(frozen=True)
class Request:
    """A prompt and the settings for n continuations."""

    tokens: Sequence[int]
    max_new_tokens: int
    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    seed: int = 0  # each sample has a separate random generator, from the seed and the sample's number
    stop: frozenset[int] | None = None  # ids that end a sample and are left out; None: ends of a turn
    n: int = 1
    logprobs: bool = False  # events have the model's log-probabilities
    likely: int = 0  # likeliest tokens at each chosen one, up to LIKELY; needs logprobs

    @property
    def is_greedy(self) -> bool:
        """True if the likeliest token is meant: with smaller settings than these, fp32 would overflow or vanish."""
        return min(self.temperature, self.top_p) < 1e-6


@dataclass(eq=False)
class Sample:
    """One of a request's n continuations. From `Engine.submit` on, only the thread that calls the engine reads it."""

    request: Request
    prompt_number: int  # of the request among those submitted together
    number: int  # of this sample in the request
    # Set by Engine.submit:
    events: "deque[Event]" = field(init=False)  # gets the sample's events; their owner removes them
    stop: frozenset[int] = field(init=False)
    most: int = field(init=False)  # limit on tokens, prompt included
    length: int = field(init=False)  # tokens so far, prompt included
    slot: int = field(default=-1, init=False)  # -1: it waits, or has ended
    forced: int = field(default=0, init=False)  # tokens left from the calculator's answer
    expression: list[int] | None = field(default=None, init=False)  # tokens since <|python_start|>


@dataclass(frozen=True, slots=True)
class Event:
    """A token in a sample, or the sample's end: then token is None, and reason is stop, length or error."""

    sample: Sample
    token: int | None
    sampled: bool = True  # chosen by the model, not put in by the calculator
    reason: str = ""
    # The model's log-probability for the choice, ends included; 0 for tokens put in, and if the request does not ask.
    logprob: float = 0.0
    likely: Likely | None = None  # of tokens that the model chose, if the request asks
    end: int | None = None  # the token that the model stopped with


@dataclass
class Completion:
    """All events of one sample, collected."""

    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)  # 1: chosen by the model, 0: put in by the calculator
    reason: str = ""
    # One per token, and one more if the model chose to stop; 0 if the request does not ask.
    logprobs: list[float] = field(default_factory=list)
    end: int | None = None  # the token that the model stopped with

    def append(self, event: Event) -> None:
        if event.reason not in ("length", "error"):  # a cut sample has no chosen end
            self.logprobs.append(event.logprob)
        if event.token is None:
            self.reason = event.reason
            self.end = event.end
        else:
            self.tokens.append(event.token)
            self.mask.append(int(event.sampled))


def samples_of(requests: Sequence[Request]) -> list[Sample]:
    """Return the n samples of each request, in order."""
    return [Sample(request, number, i) for number, request in enumerate(requests) for i in range(request.n)]


class Engine:
    """Generates with a packed copy of the model's weights; `update_weights` copies the present weights.

    slots: rows at once; 0: as many as pay on the device. Samples may come and go while others run, in one thread.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, slots: int = 0) -> None:
        self.model = model
        self.packed = pack(model)
        self.decoder = Decoder(self.packed)
        self.config = model.config
        self.device = model.device
        self.slots = slots or (256 if self.decoder.on_cuda else 64)
        self.tokenizer = tokenizer
        self.special = tokenizer.special_tokens
        # The tokens of the calculator; None: the model was trained elsewhere, and calls none.
        self.call_start = self.special.get("<|python_start|>")
        self.call_end = self.special.get("<|python_end|>")
        self.ends = frozenset(tokenizer.turn_ends)
        self.rows: list[Sample] = []  # in the order of their slots
        self.waiting: deque[Sample] = deque()
        self.longest = 0  # most tokens that any sample so far may have
        self.unread: _Step | None = None  # on CUDA: the last step, with tokens not yet followed

    def update_weights(self) -> None:
        """Copy the model's present weights. All ranks of a sharded model call this together."""
        copy_weights(self.packed, self.model)

    @torch.inference_mode()
    def reserve(self) -> None:
        """Allocate the cache for whole contexts in all slots; where memory is short, there are fewer slots from now on.

        A server calls this while nothing runs: neither the cache nor what products keep grows afterwards.
        """
        self.longest = self.config.max_seq_len
        self.slots = self.decoder.make_room(self.slots, self.longest)
        meet_sizes(self.packed)

    @torch.inference_mode()
    def score(self, tokens: Sequence[int], top: int) -> Score:
        """Return log-probabilities from a plain forward pass: of each token but the first, and the `top` likeliest."""
        found = []
        ids = torch.tensor(tokens, device=self.device)
        # Hidden states (positions, width); position i predicts token i + 1.
        with as_written(self.model):  # rows have any length
            hidden = self.model.hidden(ids[None, :-1])[0]
        # Logits for a whole context may take gigabytes.
        for some, targets in zip(hidden.split(SCORED_AT_ONCE), ids[1:].split(SCORED_AT_ONCE), strict=True):
            logprobs = self.model.logits(some).log_softmax(-1)
            # The likeliest tokens come first; the row's own may be one of them, or one more.
            tokens_shown = torch.cat([logprobs.topk(top).indices, targets[:, None]], dim=1)
            rows = zip(tokens_shown.tolist(), logprobs.gather(1, tokens_shown).tolist(), strict=True)
            found += [dict(zip(*row, strict=True)) for row in rows]
        return found

    # ---- loops over steps ----

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """Return the n completions of each request."""
        completions: list[list[Completion]] = [[] for _ in requests]
        for number, found in self.finished(requests):
            completions[number] = found
        return completions

    def finished(self, requests: Sequence[Request]) -> Iterator[tuple[int, list[Completion]]]:
        """Yield each request's number and n completions when the last of them has ended."""
        completions = [[Completion() for _ in range(request.n)] for request in requests]
        # Samples end in any order; each event names its sample.
        for event in self.stream(requests):
            sample = event.sample
            of_request = completions[sample.prompt_number]
            of_request[sample.number].append(event)
            if event.token is None and all(completion.reason for completion in of_request):
                yield sample.prompt_number, of_request

    def stream(self, requests: Sequence[Request]) -> Generator[Event, None, None]:
        """Yield all samples' events as they come, in order within a sample; closing the iterator cancels them."""
        events: deque[Event] = deque()
        samples = samples_of(requests)
        self.submit(samples, events)
        left = len(samples)
        try:
            while left:  # steps serve other samples too
                self.step()
                while events:
                    event = events.popleft()
                    if event.token is None:
                        left -= 1
                    yield event
        finally:
            self.cancel(samples)

    # ---- samples come, run and go ----

    def submit(self, samples: Sequence[Sample], events: deque[Event]) -> None:
        """Queue samples to run in the steps that follow, which append to `events`; UserError for an invalid prompt."""
        context = self.config.max_seq_len
        for sample in samples:
            request = sample.request
            length = len(request.tokens)
            if not 0 < length < context:
                raise UserError(
                    f"prompt {sample.prompt_number} has {length} tokens, the context holds 1 to {context - 1}"
                )
            if not 0 <= request.likely <= LIKELY:
                raise UserError(f"likely={request.likely} is not from 0 to {LIKELY}")
            sample.events = events
            sample.stop = self.ends if request.stop is None else request.stop
            sample.most = min(length + request.max_new_tokens, context)
            sample.length = length
            self.longest = max(self.longest, sample.most)
        # The longest first: a lack of memory shows at once.
        self.waiting.extend(sorted(samples, key=lambda sample: -sample.length))

    @torch.inference_mode()
    def cancel(self, samples: Collection[Sample]) -> None:
        """End samples without an event, and free their slots; those that have ended are ignored."""
        ending = set(samples)
        for sample in [sample for sample in (*self.waiting, *self.rows) if sample in ending]:
            if sample.slot >= 0:
                self._release(sample)
            else:
                self.waiting.remove(sample)

    @property
    def is_idle(self) -> bool:
        """True if no sample waits or runs."""
        return not (self.waiting or self.rows)

    @torch.inference_mode()
    def step(self) -> None:
        """Give each running sample a token and its queue the new event, on CUDA the event from the step before."""
        self._schedule()
        step = self._run() if self.rows else None
        if self.decoder.on_cuda:
            # This step runs on while the host follows the last one.
            step, self.unread = self.unread, step
        if step is not None:
            self._follow(step)

    # ---- schedule ----

    def _schedule(self) -> None:
        """Move waiting samples into free slots."""
        if not self.waiting:
            return
        if not self.rows:  # the decoder's memory can change
            self.decoder.make_room(min(self.slots, len(self.waiting)), self.longest)
        running = len(self.rows)
        room = min(self.slots, self.decoder.cache.slots)
        # A prompt runs once: later samples copy the slot from a sample already there.
        holders = {id(sample.request): sample.slot for sample in self.rows}
        prompts = {}
        copies = []  # (slot with the prompt, sample that gets a copy)
        # A sample too long for the slots waits until no row runs.
        while self.waiting and len(self.rows) < room and self.waiting[0].most <= self.decoder.length:
            sample = self.waiting.popleft()
            sample.slot = len(self.rows)
            self.rows.append(sample)
            holder = holders.setdefault(id(sample.request), sample.slot)
            if holder == sample.slot:
                prompts[holder] = sample.request.tokens
            else:
                copies.append((holder, sample))
        self.decoder.prefill(prompts)
        for holder, sample in copies:
            # The last prompt token is not stored: the first step feeds it.
            self.decoder.cache.copy(holder, sample.slot, sample.length - 1)
        if self.rows[running:]:
            self.decoder.seat(running, [self._start(sample) for sample in self.rows[running:]])

    def _start(self, sample: Sample) -> RowState:
        """Return the row for `Decoder.seat`."""
        request = sample.request
        halting = np.zeros(self.config.vocab_size, dtype=bool)
        halting[list(sample.stop if self.call_end is None else {*sample.stop, self.call_end})] = True
        # All random numbers in advance: a sample does not depend on the rows beside it.
        uniform = np.zeros(self.decoder.length)
        generator = np.random.default_rng([request.seed, sample.number])
        uniform[sample.length : sample.most] = generator.random(sample.most - sample.length)
        return {
            "token": request.tokens[-1],
            "previous": request.tokens[-2:][0],  # any id for a prompt with one token
            "position": sample.length - 1,
            "last": sample.most - 1,
            "temperature": 0.0 if request.is_greedy else request.temperature,
            "top_k": request.top_k or self.config.vocab_size,
            "top_p": request.top_p,
            "halting": halting,
            "uniform": uniform,
        }

    # ---- run ----

    def _run(self) -> "_Step":
        vocab_size = self.config.vocab_size
        # Only the parts that some row needs run in this step.
        sampled = [sample.request for sample in self.rows if not sample.request.is_greedy]
        # top-p alone may need any number of ranks.
        filtered = (request.top_k or vocab_size for request in sampled if request.top_k or request.top_p < 1)
        ranks = max(filtered, default=0)
        if ranks:
            ranks = min(1 << (ranks - 1).bit_length(), vocab_size)  # a power of two: fewer graphs
        logprobs = any(sample.request.logprobs for sample in self.rows)
        likely = any(sample.request.likely for sample in self.rows)
        longest = max(sample.length for sample in self.rows)
        kind = StepKind(bool(sampled), ranks, logprobs, likely)
        columns, event = self.decoder.step(len(self.rows), longest, kind)
        return _Step(list(self.rows), columns, event)

    # ---- follow ----

    def _follow(self, step: "_Step") -> None:
        """Turn a step's tokens into events."""
        if step.event is not None:  # the copy to the host may still run
            step.event.synchronize()
        tokens, *rest = (column.tolist() for column in step.columns)
        # A graph may have more rows than there are samples.
        for row, sample in enumerate(step.samples):
            token = tokens[row]
            # Rows that stand still get -1; others may have left since the step began.
            if token >= 0 and sample.slot >= 0:
                logprob, *likely = [column[row] for column in rest] if sample.request.logprobs else [0.0]
                try:
                    self._follow_token(sample, token, logprob, likely)
                except Exception:  # whatever one row's text does must not end the others
                    print_line(f"engine: a sample ends with an error\n{traceback.format_exc()}")
                    self._end(sample, "error")

    def _follow_token(self, sample: Sample, token: int, logprob: float, likely: list[Any]) -> None:
        """Turn a sample's token into events. likely: [ids, log-probabilities] of the likeliest tokens, or nothing."""
        sampled = sample.forced == 0
        if not sampled:
            sample.forced -= 1
            logprob = 0.0
        elif token in sample.stop:
            self._end(sample, "stop", logprob, token)
            return
        sample.length += 1
        found = None
        count = sample.request.likely
        if likely and sampled and count:
            ids, logprobs = likely
            found = dict(zip(ids[:count], logprobs[:count], strict=True)) | {token: logprob}
        sample.events.append(Event(sample, token, sampled, logprob=logprob, likely=found))
        answer = self._answer(sample, token) if sampled else None
        room = sample.most - sample.length
        if room == 0:
            self._end(sample, "length")
        elif answer is not None:
            sample.forced = min(len(answer), room)
            self.decoder.resume(sample.slot, sample.length, answer[:room])

    def _answer(self, sample: Sample, token: int) -> list[int] | None:
        """Return the calculator's answer, perhaps empty, if the token ends an expression (the row waits); else None."""
        if token == self.call_start:
            sample.expression = []
            return None
        if token != self.call_end:
            if sample.expression is not None:
                sample.expression.append(token)
            return None
        expression = sample.expression or []
        sample.expression = None
        try:
            answer = calculate(self.tokenizer.decode(expression))
        except REFUSALS:
            return []  # no answer: the model continues
        return [self.special["<|output_start|>"], *self.tokenizer.encode(answer), self.special["<|output_end|>"]]

    def _end(self, sample: Sample, reason: str, logprob: float = 0.0, token: int | None = None) -> None:
        self._release(sample)
        sample.events.append(Event(sample, None, reason=reason, logprob=logprob, end=token))

    def _release(self, sample: Sample) -> None:
        """Free a slot and move the last sample there, because a step runs the first slots."""
        moved = self.rows.pop()
        if moved is not sample:
            self.decoder.move(moved.slot, sample.slot, moved.length)
            moved.slot = sample.slot
            self.rows[moved.slot] = moved
        sample.slot = -1


@dataclass(frozen=True)
class _Step:
    """Tokens from a step, on the way to the host."""

    samples: list[Sample]  # those in the first slots when the step began
    columns: list[torch.Tensor]  # (rows,) each: tokens, and log-probabilities if a request asks for them
    event: torch.cuda.Event | None  # on CUDA: afterwards the columns are on the host
