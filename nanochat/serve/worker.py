"""Engines at work: a thread owns each engine, gets samples from the event loop and returns events once a step."""

import asyncio
import gc
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Literal, ParamSpec

import torch

from nanochat.engine import Engine, Event, Sample, Score
from nanochat.log import print_line
from nanochat.serve.requests import ApiError

MAX_FAILURES = 3  # the engine is not replaced after so many failures
FAILURE_SECONDS = 60.0  # within this time

Given = ParamSpec("Given")  # arguments of a call for the thread
Events = asyncio.Queue[Event | None]  # None: the engine has failed, nothing follows


def engine_failed() -> ApiError:
    """Return the error for a request whose engine has failed."""
    sentence = "the engine failed while it worked on this request, send it again"
    return ApiError(503, sentence, code="engine_failed", headers={"retry-after": "1"})


class Worker:
    """An engine, and the thread that owns it.

    If the engine fails, its requests end with an error and a new engine is made, unless it fails too often.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine  # of the thread
        self.slots = engine.slots  # samples that run at once
        self.thread = ThreadPoolExecutor(1, "nanochat-engine")  # runs calls in order
        # For a new engine.
        self._model = engine.model
        self._tokenizer = engine.tokenizer
        self._wanted_slots = engine.slots
        # For the event loop: each sample without an end, and where its events go.
        self._queues: dict[Sample, Events] = {}
        self.state: Literal["ok", "replacing", "failed"] = "ok"
        self.failures: list[float] = []  # when the engine failed, in seconds of the monotonic clock
        # For the thread: events of the present step, and whether a call of `_step` waits.
        self._events: deque[Event] = deque()
        self._is_stepping = False
        self._is_broken = False  # calls are for an engine that has failed: they are skipped

    # ---- in the event loop ----

    async def begin(self) -> None:
        """Prepare the engine; its error at the start is raised here."""
        self.loop = asyncio.get_running_loop()
        self.given_up = asyncio.Event()
        await asyncio.wrap_future(self.thread.submit(self._prepare))

    @property
    def load(self) -> int:
        """The number of samples without an end."""
        return len(self._queues)

    def submit(self, samples: Sequence[Sample]) -> Events:
        """Let samples run; return the queue of their events, which is in order within a sample."""
        queue: Events = asyncio.Queue()
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
            self._call(self._cancel, ending)

    async def score(self, tokens: Sequence[int], top: int) -> Score:
        """Return `Engine.score` for a row, computed between two steps."""
        return await asyncio.wrap_future(self.thread.submit(self._score, tokens, top))

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

    def _fail(self) -> None:
        """End the requests of an engine that has failed, and let the thread replace it."""
        if self.state == "failed":  # while its memory was given back
            return
        for queue in set(self._queues.values()):
            queue.put_nowait(None)
        self._queues.clear()
        self.failures.append(time.monotonic())
        recent = [moment for moment in self.failures if moment > self.failures[-1] - FAILURE_SECONDS]
        # Calls for the old engine are already in the thread's queue, where they are skipped until this one.
        if len(recent) < MAX_FAILURES:
            self.state = "replacing"
            self._submit(self._replace)
        else:
            self.state = "failed"
            self._submit(self._release)
            often = f"{MAX_FAILURES} times within {FAILURE_SECONDS:.0f} seconds"
            print_line(f"engine: failed {often}, it is not replaced any more")
            self.given_up.set()

    def _recover(self) -> None:
        self.state = "ok"

    def _call(self, function: Callable[Given, None], *arguments: Given.args, **named: Given.kwargs) -> None:
        """Queue a call for the thread, behind the calls that wait; the thread queues its next step in this way too."""

        def run() -> None:
            if not self._is_broken:
                function(*arguments, **named)

        self._submit(run)

    def _submit(self, work: Callable[[], None]) -> None:
        """Queue work for the thread. After an error the engine's state is unknown: it has failed."""

        def run() -> None:
            try:
                work()
            except Exception:
                print_line(f"engine: {traceback.format_exc()}")
                self._is_broken = True
                self.loop.call_soon_threadsafe(self._fail)

        with suppress(RuntimeError):  # of a queue that `stop` has closed
            self.thread.submit(run)

    # ---- in the engine's thread ----

    def _prepare(self) -> None:
        if self.engine.device.type == "cuda":
            torch.cuda.set_device(self.engine.device)  # each thread has its own
        self.engine.reserve()
        self.slots = self.engine.slots

    def _replace(self) -> None:
        self._release()
        self.engine = Engine(self._model, self._tokenizer, self._wanted_slots)
        self._prepare()
        self._is_broken = False
        print_line("engine: a new one has taken the place of the one that failed")
        self.loop.call_soon_threadsafe(self._recover)

    def _release(self) -> None:
        """Give the memory of an engine that has failed back, before there is another one."""
        self._events.clear()
        self._is_stepping = False
        with suppress(AttributeError):  # the engine could not be made
            del self.engine
        gc.unfreeze()  # else it would not look at what was here when the server started
        gc.collect()
        gc.freeze()
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _score(self, tokens: Sequence[int], top: int) -> Score:
        if self._is_broken:
            raise engine_failed()
        return self.engine.score(tokens, top)

    def _cancel(self, samples: Collection[Sample]) -> None:
        self.engine.cancel(samples)

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
