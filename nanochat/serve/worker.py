"""Engines at work: a thread owns each engine, gets samples from the event loop and returns events once a step."""

import asyncio
import os
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec

import torch

from nanochat.engine import Engine, Event, Sample, Score
from nanochat.log import print_line

Given = ParamSpec("Given")  # arguments of a call for the thread


class Worker:
    """An engine, and the thread that owns it. An engine that fails ends the process with status 1."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.thread = ThreadPoolExecutor(1, "nanochat-engine")  # runs calls in order
        # For the event loop: each sample without an end, and where its events go.
        self._queues: dict[Sample, asyncio.Queue[Event]] = {}
        # For the thread: events of the present step, and whether a call of `_step` waits.
        self._events: deque[Event] = deque()
        self._is_stepping = False

    # ---- in the event loop ----

    def begin(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._call(self._prepare)

    @property
    def slots(self) -> int:
        """The number of samples that run at once."""
        return self.engine.slots

    @property
    def load(self) -> int:
        """The number of samples without an end."""
        return len(self._queues)

    def submit(self, samples: Sequence[Sample]) -> asyncio.Queue[Event]:
        """Let samples run; return the queue of their events, which is in order within a sample."""
        queue: asyncio.Queue[Event] = asyncio.Queue()
        self._queues |= dict.fromkeys(samples, queue)
        self._call(self._start, samples)
        return queue

    def cancel(self, samples: Collection[Sample]) -> None:
        """End samples without an event; those that have ended are ignored."""
        ending = self._queues.keys() & samples
        for sample in ending:
            del self._queues[sample]
        if ending:
            # Calls keep their order: the samples are submitted before.
            self._call(self.engine.cancel, ending)

    async def score(self, tokens: Sequence[int], top: int) -> Score:
        """Return `Engine.score` for a row, computed between two steps."""
        return await asyncio.wrap_future(self.thread.submit(self.engine.score, tokens, top))

    def stop(self) -> None:
        """Wait for the end of the step, and of the thread."""
        self.thread.shutdown(cancel_futures=True)

    def _deliver(self, events: Sequence[Event]) -> None:
        """Put events from the thread into their queues."""
        for event in events:
            # Some may have come before the thread saw that the sample was cancelled.
            if event.sample in self._queues:
                self._queues[event.sample].put_nowait(event)
                if event.token is None:
                    del self._queues[event.sample]

    def _call(self, function: Callable[Given, None], *arguments: Given.args, **named: Given.kwargs) -> None:
        """Queue a call for the thread, behind the calls that wait; the thread queues its next step in this way too."""

        def run() -> None:
            try:
                function(*arguments, **named)
            except Exception:  # the engine's state is unknown, and clients must not wait for ever
                print_line(f"engine: {traceback.format_exc()}")
                os._exit(1)

        with suppress(RuntimeError):  # of a queue that `stop` has closed
            self.thread.submit(run)

    # ---- in the engine's thread ----

    def _prepare(self) -> None:
        if self.engine.device.type == "cuda":
            torch.cuda.set_device(self.engine.device)  # each thread has its own
        self.engine.reserve()

    def _start(self, samples: Sequence[Sample]) -> None:
        self.engine.submit(samples, self._events)
        if not self._is_stepping:
            self._is_stepping = True
            self._call(self._step)

    def _step(self) -> None:
        """Make one step of the engine and send the events."""
        self.engine.step()
        # On a GPU the events belong to the step before.
        if self._events:
            # In one call, since each call wakes the event loop.
            self.loop.call_soon_threadsafe(self._deliver, list(self._events))
            self._events.clear()
        self._is_stepping = not self.engine.is_idle
        if self._is_stepping:
            self._call(self._step)
