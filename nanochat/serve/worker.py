"""Engines at work: a thread owns each of them, requests come from asyncio, and what they give goes back once a step."""

import asyncio
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nanochat.engine import Engine, Event, Job, Request
from nanochat.log import say
from nanochat.serve.gate import Fault

SCORED_AT_ONCE = 256  # positions whose logits are made together: those of a whole context may take gigabytes
FAILED = 503, "the engine has failed, the server has to be started anew"
STOPPING = 5.0  # seconds that a thread has for its last step


@dataclass(eq=False)
class Ticket:
    """Requests that an engine works on, as asyncio knows them.

    open: samples (request, sample) without an end yet. events: what has come of them, to be taken out; news is set when
    something came, a fault too.
    """

    open: set[tuple[int, int]]
    events: deque[Event] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    fault: Fault | None = None
    job: Job | None = None  # the thread's own

    def take(self) -> list[Event]:
        self.news.clear()
        if self.fault is not None:
            raise self.fault
        taken = list(self.events)
        self.events.clear()
        return taken


@torch.inference_mode()
def score(model: Any, tokens: Sequence[int], top: int) -> tuple[list[float], list[list[tuple[int, float]]]]:
    """Of each token but the first: the model's log-probability of it, and the likeliest `top` in its place.

    By a plain forward of the model, without a cache.
    """
    if len(tokens) < 2:
        return [], []
    ids = torch.tensor(tokens, device=model.rope_cos.device)
    hidden, chosen, likeliest = model.hidden(ids[None, :-1])[0], [], []
    for some, right in zip(hidden.split(SCORED_AT_ONCE), ids[1:].split(SCORED_AT_ONCE), strict=True):
        logprobs = model.logits(some).log_softmax(-1)
        chosen += logprobs.gather(1, right[:, None])[:, 0].tolist()
        best = logprobs.topk(min(top, logprobs.shape[-1]))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        likeliest += [list(zip(*pair, strict=True)) for pair in pairs]
    return chosen, likeliest


class Worker(threading.Thread):
    """All of it but `run` and what that calls belongs to asyncio's thread. load: samples it has to do with.

    failure: why there will be no more steps.
    """

    def __init__(self, engine: Engine, model: Any):
        super().__init__(name="nanochat-engine", daemon=True)
        self.engine, self.model = engine, model
        self.load, self.failure = 0, ""
        self.tickets: set[Ticket] = set()
        self._scores: set[asyncio.Future] = set()
        self._acts: list[Callable[[], Any]] = []  # what the thread is to do before its next step
        self._due: deque[tuple] = deque()  # rows to be scored: who waits for it, the tokens, how many of the likeliest
        self._awake, self._stopped, self._active = threading.Condition(), False, []

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.start()

    def submit(self, requests: Sequence[Request], logprobs: bool) -> Ticket:
        ticket = Ticket({(number, sample) for number, request in enumerate(requests) for sample in range(request.n)})
        if ticket.open:
            self.load += len(ticket.open)
            self.tickets.add(ticket)
            self._ask(lambda: self._submit(ticket, requests, logprobs))
        return ticket

    def cancel(self, ticket: Ticket, *where: tuple[int, int]) -> None:
        """Its samples, or those of these (request, sample), are not wanted any more."""
        gone = ticket.open & set(where or ticket.open)
        if gone:
            self._end(ticket, gone)
            self._ask(lambda: ticket.job and self.engine.cancel(ticket.job, *gone))

    async def score(self, rows: Sequence[Sequence[int]], top: int) -> list[tuple]:
        """What the function of that name gives of each, one row between two steps."""
        if self.failure:
            raise Fault(*FAILED, code="engine_failed")
        found = [self.loop.create_future() for _ in rows]
        self._scores.update(found)
        self.load += len(rows)
        try:
            self._ask(lambda: self._due.extend((one, row, top) for one, row in zip(found, rows, strict=True)))
            return await asyncio.gather(*found)
        finally:
            self.load -= len(rows)
            for one in found:
                one.cancel()  # nobody waits for those that are still due
            self._scores.difference_update(found)

    def refuse(self, fault: Fault, *tickets: Ticket) -> None:
        """Tell these, or all who wait, that nothing comes any more."""
        for ticket in tickets or list(self.tickets):
            ticket.fault = fault
            ticket.news.set()
            self.cancel(ticket)
        for score in self._scores if not tickets else ():
            _fail(score, fault)

    def stop(self) -> None:
        with self._awake:
            self._stopped = True
            self._awake.notify()
        self.join(STOPPING)

    def _ask(self, act: Callable[[], Any]) -> None:
        with self._awake:
            self._acts.append(act)
            self._awake.notify()

    def _end(self, ticket: Ticket, gone: set[tuple[int, int]]) -> None:
        ticket.open -= gone
        self.load -= len(gone)
        if not ticket.open:
            self.tickets.discard(ticket)

    def _deliver(self, news: list[tuple[Ticket, list[Event]]]) -> None:
        for ticket, events in news:
            wanted = [event for event in events if (event.request, event.sample) in ticket.open]
            self._end(ticket, {(event.request, event.sample) for event in wanted if event.token is None})
            ticket.events.extend(wanted)
            ticket.news.set()

    def _broke(self, failure: str) -> None:
        self.failure = failure
        self.refuse(Fault(*FAILED, code="engine_failed"))

    # ---- in the thread ----

    def run(self) -> None:
        engine = self.engine
        try:
            if engine.decoder.on_cuda:
                torch.cuda.set_device(engine.decoder.device)
            with torch.inference_mode():  # the cache has its size from the beginning on
                engine.longest = engine.config.max_seq_len
                engine.slots = engine.decoder.make_room(engine.slots, engine.longest)  # fewer, where memory is short
            while self._act():
                if any(ticket.job.open for ticket in self._active):
                    engine.step()
                news = [(ticket, list(ticket.job.events)) for ticket in self._active if ticket.job.events]
                for ticket, _ in news:
                    ticket.job.events.clear()
                self._active = [ticket for ticket in self._active if ticket.job.open]
                if news:
                    self._tell(self._deliver, news)
        except Exception as error:  # whatever it is: nobody must wait for a thread that is gone
            say(f"engine: {traceback.format_exc()}")
            self._tell(self._broke, f"{type(error).__name__}: {error}")

    def _act(self) -> bool:
        """Do what was asked for; sleeps while there is nothing to do. False: the end."""
        with self._awake:
            self._awake.wait_for(lambda: self._acts or self._active or self._due or self._stopped)
            acts, self._acts = self._acts, []
        for act in acts:
            act()
        self._score()
        return not self._stopped

    def _score(self) -> None:
        """One row of those that somebody waits for."""
        while self._due:
            found, row, top = self._due.popleft()
            if not found.done():
                try:
                    self._tell(_settle, found, score(self.model, row, top))
                except torch.OutOfMemoryError:
                    fault = Fault(503, "there is too little memory to score so long a text", code="out_of_memory")
                    self._tell(_fail, found, fault)
                return

    def _submit(self, ticket: Ticket, requests: Sequence[Request], logprobs: bool) -> None:
        try:
            ticket.job = self.engine.submit(requests, logprobs)
            self._active.append(ticket)
        except ValueError as error:
            self._tell(self.refuse, Fault(400, str(error)), ticket)

    def _tell(self, act: Callable, *values: Any) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(act, *values)


def _fail(future: asyncio.Future, fault: Fault) -> None:
    if not future.done():
        future.set_exception(fault)


def _settle(future: asyncio.Future, value: Any) -> None:
    if not future.done():
        future.set_result(value)


class Pool:
    """Workers behind one door. queue: how many samples may wait for a slot. closing: why nobody is let in any more."""

    def __init__(self, workers: Sequence[Worker], queue: int):
        self.workers, self.queue, self.closing = workers, queue, ""

    @property
    def failures(self) -> list[str]:
        return [worker.failure for worker in self.workers if worker.failure]

    @property
    def running(self) -> int:
        return sum(len(worker.engine.rows) for worker in self.workers)

    @property
    def waiting(self) -> int:
        """Those whom a thread has not looked at yet among them."""
        return sum(len(worker.engine.waiting) + len(worker._acts) for worker in self.workers)

    def enter(self, samples: int) -> Worker:
        """The worker with the least to do, for a request of so many samples; a Fault where it has to come later."""
        if self.closing:
            raise Fault(503, f"the server is {self.closing}", code="unavailable", retry_after="5")
        alive = [worker for worker in self.workers if not worker.failure]
        if not alive:
            raise Fault(503, "the engine has failed, the server has to be started anew", code="engine_failed")
        places = sum(worker.engine.slots for worker in alive) + self.queue
        if samples > places:
            raise Fault(400, f"the request asks for {samples:,} answers, the server has room for {places:,}", "n")
        if sum(worker.load for worker in alive) + samples > places:
            raise Fault(429, "the server is busy, try again", code="queue_full", retry_after="1")
        return min(alive, key=lambda worker: worker.load)
