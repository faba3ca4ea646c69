"""Engines at work: a thread owns each engine, takes requests from the event loop and returns events once a step."""

import asyncio
import os
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from queue import SimpleQueue

import torch

from nanochat.engine import Engine, Event, Job, Request
from nanochat.gpt import GPT
from nanochat.log import print_line
from nanochat.serve.requests import ApiError, ApiRequest

SCORED_AT_ONCE = 256  # positions whose logits are computed together
RETRY = {"retry-after": "1"}

Sample = tuple[int, int]  # the prompt's number in the request, the sample's number
Score = list[dict[int, float]]  # for each token but the first: log-probabilities of this token and likely others


@torch.inference_mode()
def score(model: GPT, tokens: Sequence[int], top: int) -> Score:
    """Return log-probabilities of a row's tokens and the `top` likeliest, by a plain forward pass."""
    found: Score = []
    ids = torch.tensor(tokens, device=model.device)
    # Hidden states (positions, width); position i predicts token i + 1.
    hidden = model.hidden(ids[None, :-1])[0]
    # Logits for a whole context may take gigabytes.
    for some, targets in zip(hidden.split(SCORED_AT_ONCE), ids[1:].split(SCORED_AT_ONCE), strict=True):
        logprobs = model.logits(some).log_softmax(-1)
        best = logprobs.topk(top)
        columns = (targets[:, None], logprobs.gather(1, targets[:, None]), best.indices, best.values)
        for [token], [logprob], indices, values in zip(*(column.tolist() for column in columns), strict=True):
            alternatives = dict(zip(indices, values, strict=True))
            alternatives.setdefault(token, logprob)
            found.append(alternatives)
    return found


def engine_failed() -> ApiError:
    return ApiError(503, "the engine failed and is replaced, try again", code="engine_failed", headers=RETRY)


class Generation:
    """The samples of one client's request. Methods run in the event loop, where the engine's thread sends news.

    open: samples without an end.
    """

    def __init__(self, worker: "Worker", requests: Sequence[Request]):
        self.worker = worker
        self.open = {(number, sample) for number, request in enumerate(requests) for sample in range(request.n)}
        self.news: asyncio.Queue[list[Event] | None] = asyncio.Queue()  # None: the engine failed
        self.job: Job | None = None  # set and used by the engine's thread only
        worker.load += len(self.open)

    async def next_events(self) -> list[Event]:
        """Return everything new, at least one event; raise an ApiError if the engine failed."""
        found = [await self.news.get()]
        # Several steps may have passed: take all events, for fewer and larger chunks.
        while not self.news.empty():
            found.append(self.news.get_nowait())
        if None in found:
            raise engine_failed()
        return list(chain.from_iterable(found))

    async def score(self, rows: Sequence[Sequence[int]], top: int) -> list[Score]:
        """Return the log-probabilities of rows. A client that leaves cancels what is not scored yet."""
        waiting = [(Future(), row, top) for row in rows]
        self.worker.order(lambda: self.worker.scoring.extend(waiting))
        return await asyncio.gather(*(asyncio.wrap_future(future) for future, _, _ in waiting))

    def deliver(self, events: list[Event] | None) -> None:
        """Take events from the thread, which may have sent some before it saw a cancellation: a choice drops these."""
        self._end({(event.request, event.sample) for event in events or () if event.token is None})
        self.news.put_nowait(events)

    def cancel(self, samples: set[Sample]) -> None:
        """End samples before their end; ended samples are ignored."""
        ending = self._end(samples)
        if ending:
            # Calls keep their order: the job is submitted before.
            self.worker.order(lambda: self.worker.engine.cancel(self.job, *ending))

    def close(self) -> None:
        """Leave the worker: the response was sent, or the client has left."""
        self.cancel(self.open)

    def _end(self, samples: set[Sample]) -> set[Sample]:
        """Count samples as ended; return those that were open."""
        ending = self.open & samples
        self.open = self.open - ending
        self.worker.load -= len(ending)
        return ending


class Worker(threading.Thread):
    """A thread with an engine. load: number of samples without an end.

    An engine that fails is replaced, and its clients get an error. If no new one can be made, the process ends.
    """

    def __init__(self, engine: Engine, model: GPT):
        super().__init__(name="nanochat-engine", daemon=True)
        self.engine = engine
        self.model = model  # for scores: the engine has packed weights
        self.load = 0
        self.is_ready = True  # False: a failed engine is being replaced
        # (future of the score, row, as many likely tokens); used by the thread only.
        self.scoring = deque()
        self._active = []  # generations with open samples, used by the thread only
        # Calls for the thread before the next step; None ends it.
        self._actions = SimpleQueue()
        self.order = self._actions.put

    # ---- in the event loop ----

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.start()

    def submit(self, requests: Sequence[Request]) -> Generation:
        generation = Generation(self, requests)
        self.order(lambda: self._start(generation, requests))
        return generation

    def stop(self) -> None:
        """Wait for the end of the step, and of the thread."""
        self.order(None)
        self.join()

    # ---- in the engine's thread ----

    def run(self) -> None:
        try:
            if self.model.device.type == "cuda":
                torch.cuda.set_device(self.model.device)
            while not self._serve():
                self._replace()
        except Exception:  # there is no new engine: clients must not wait for ever
            print_line(f"engine: {traceback.format_exc()}")
            os._exit(1)

    def _serve(self) -> bool:
        """Serve until the thread shall end (True) or the engine fails (False)."""
        engine = self.engine
        with torch.inference_mode():
            # Give the cache the final size; with too little memory there are fewer slots.
            engine.longest = engine.config.max_seq_len
            engine.slots = engine.decoder.make_room(engine.slots, engine.longest)
        self.is_ready = True
        try:
            while self._prepare():
                self._step()
        except Exception:
            print_line(f"engine: {traceback.format_exc()}")
            return False
        return True

    def _replace(self) -> None:
        """Give every client of the failed engine an error, and make a new engine."""
        self.is_ready = False
        failed, self._active = self._active, []
        for future, _, _ in self.scoring:
            if future.running() or future.set_running_or_notify_cancel():
                future.set_exception(engine_failed())
        self.scoring.clear()
        self.loop.call_soon_threadsafe(_deliver, [(generation, None) for generation in failed])
        errors = self.engine.errors
        del self.engine.decoder  # frees the cache before there is another one
        self.engine = Engine(self.model, self.engine.tokenizer, self.engine.slots)
        self.engine.errors = errors

    def _prepare(self) -> bool:
        """Run waiting calls; sleep while there is nothing to do. Return False to end the thread."""
        while not self._actions.empty() or not (self._active or self.scoring):
            action = self._actions.get()
            if action is None:
                return False
            action()
        # Score one row that a client still waits for: more would delay the next step.
        while self.scoring:
            future, row, top = self.scoring.popleft()
            if future.set_running_or_notify_cancel():
                self.scoring.appendleft((future, row, top))  # where `_replace` finds it
                future.set_result(score(self.model, row, top))
                self.scoring.popleft()
                break
        return True

    def _start(self, generation: Generation, requests: Sequence[Request]) -> None:
        self._active.append(generation)  # first: where `_replace` finds it
        generation.job = self.engine.submit(requests)

    def _step(self) -> None:
        """Make one step of the engine and send the events."""
        if any(generation.job.open for generation in self._active):
            self.engine.step()
        # On a GPU the events belong to the step before.
        news = []
        for generation in self._active:
            if generation.job.events:
                news.append((generation, list(generation.job.events)))
                generation.job.events.clear()
        self._active = [generation for generation in self._active if generation.job.open]
        if news:
            # In one call, since each call wakes the event loop.
            self.loop.call_soon_threadsafe(_deliver, news)


def _deliver(news: list[tuple[Generation, list[Event] | None]]) -> None:
    for generation, events in news:
        generation.deliver(events)


@dataclass
class Pool:
    """All workers. queue: limit for samples without a slot."""

    workers: Sequence[Worker]
    queue: int

    def submit(self, request: ApiRequest) -> Generation:
        """Hand a request to the worker with the lowest load; an ApiError if there is no room."""
        # A request is accepted whole: with slots or places in the queue for all samples.
        places = sum(worker.engine.slots for worker in self.workers) + self.queue
        if request.samples > places:
            raise ApiError(400, f"the request asks for {request.samples:,} samples, there is room for {places:,}", "n")
        if sum(worker.load for worker in self.workers) + request.samples > places:
            raise ApiError(429, "the server is busy, try again", code="queue_full", headers=RETRY)
        return min(self.workers, key=lambda worker: worker.load).submit(request.prompts)
