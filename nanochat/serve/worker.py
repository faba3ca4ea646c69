"""Engines at work: a thread owns each engine, takes requests from the event loop and returns events once a step."""

import asyncio
import os
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from typing import Any

import torch

from nanochat.engine import Engine, Event, Job, Request
from nanochat.gpt import GPT
from nanochat.log import print_line
from nanochat.models import as_written
from nanochat.serve.requests import ApiRequest, Sample

Score = list[dict[int, float]]  # for each token but the first: log-probabilities of this token and likely others

SCORED_AT_ONCE = 256  # positions whose logits are computed together


@torch.inference_mode()
def score(model: GPT, tokens: Sequence[int], top: int) -> Score:
    """Return log-probabilities from a plain forward pass: of each token but the first, and of the `top` likeliest."""
    found = []
    ids = torch.tensor(tokens, device=model.device)
    # Hidden states (positions, width); position i predicts token i + 1.
    with as_written(model):  # rows have any length
        hidden = model.hidden(ids[None, :-1])[0]
    # Logits for a whole context may take gigabytes.
    for some, targets in zip(hidden.split(SCORED_AT_ONCE), ids[1:].split(SCORED_AT_ONCE), strict=True):
        logprobs = model.logits(some).log_softmax(-1)
        # The likeliest tokens come first; the row's own may be one of them, or one more.
        tokens_shown = torch.cat([logprobs.topk(top).indices, targets[:, None]], dim=1)
        rows = zip(tokens_shown.tolist(), logprobs.gather(1, tokens_shown).tolist(), strict=True)
        found += [dict(zip(*row, strict=True)) for row in rows]
    return found


class Generation:
    """The samples of one client's request. Methods run in the event loop, where the engine's thread sends news.

    open: samples without an end.
    """

    def __init__(self, worker: "Worker", samples: Sequence[Sample]) -> None:
        self.worker = worker
        self.open = set(samples)
        self.news: asyncio.Queue[list[Event]] = asyncio.Queue()  # lists of events
        self.job: Job | None = None  # set and used by the engine's thread only
        worker.load += len(self.open)

    async def next_events(self) -> list[Event]:
        """Return everything new, at least one event."""
        found = [await self.news.get()]
        # Several steps may have passed: take all events, for fewer and larger chunks.
        while not self.news.empty():
            found.append(self.news.get_nowait())
        return list(chain.from_iterable(found))

    async def score(self, row: Sequence[int], top: int) -> Score:
        """Return the log-probabilities of a row, which the thread finds between two steps."""
        return await asyncio.wrap_future(self.worker.thread.submit(score, self.worker.model, row, top))

    def deliver(self, events: list[Event]) -> None:
        """Take events from the thread, which may have sent some before it saw a cancellation: a choice drops these."""
        self._end({(event.request, event.sample) for event in events if event.token is None})
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


class Worker:
    """An engine, and the thread that owns it. load: number of samples without an end.

    An engine that fails ends the process with status 1.
    """

    def __init__(self, engine: Engine, model: GPT) -> None:
        self.engine = engine
        self.model = model  # for scores: the engine has packed weights
        self.load = 0
        self._active: list[Generation] = []  # generations with open samples, used by the thread only
        self.thread = ThreadPoolExecutor(1, "nanochat-engine")  # runs calls in order

    # ---- in the event loop ----

    def begin(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.order(self._make_room)

    def submit(self, request: ApiRequest) -> Generation:
        generation = Generation(self, request.samples)
        self.order(self._start, generation, request.prompts)
        return generation

    def order(self, function: Callable[..., None], *arguments: Any) -> None:
        """Queue a call of the engine for the thread, behind the calls that wait."""

        def run() -> None:
            try:
                function(*arguments)
            except Exception:  # the engine's state is unknown, and clients must not wait for ever
                print_line(f"engine: {traceback.format_exc()}")
                os._exit(1)

        with suppress(RuntimeError):  # of a queue that `stop` has closed
            self.thread.submit(run)

    def stop(self) -> None:
        """Wait for the end of the step, and of the thread."""
        self.thread.shutdown(cancel_futures=True)

    # ---- in the engine's thread ----

    def _make_room(self) -> None:
        """Give the cache the final size; with too little memory there are fewer slots."""
        if self.model.device.type == "cuda":
            torch.cuda.set_device(self.model.device)
        engine = self.engine
        with torch.inference_mode():
            engine.longest = engine.config.max_seq_len
            engine.slots = engine.decoder.make_room(engine.slots, engine.longest)

    def _start(self, generation: Generation, requests: Sequence[Request]) -> None:
        generation.job = self.engine.submit(requests)
        self._active.append(generation)
        if len(self._active) == 1:
            self.order(self._step)

    def _step(self) -> None:
        """Make one step of the engine and send the events."""
        self.engine.step()
        # On a GPU the events belong to the step before.
        news = []
        for generation in self._active:
            if generation.job.events:
                news.append((generation, list(generation.job.events)))
                generation.job.events.clear()
        self._active = [generation for generation in self._active if generation.job.open]

        def deliver() -> None:
            for generation, events in news:
                generation.deliver(events)

        if news:
            # In one call, since each call wakes the event loop.
            self.loop.call_soon_threadsafe(deliver)
        if self._active:
            self.order(self._step)
