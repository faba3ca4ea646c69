"""What may interrupt a training step: signals, which wait for its end, and the garbage collector."""

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from nanochat.log import is_main_rank

ECHO_SECONDS = 3.0  # torchrun hands a terminal's Ctrl-C on to ranks that have had it already


@contextmanager
def signals() -> Iterator[list[str]]:
    """The names of the signals that asked this process to stop; the second one ends it at once."""
    asked: list[str] = []
    first = 0.0

    def note(number: int, frame: Any) -> None:
        nonlocal first
        if asked and time.monotonic() - first > ECHO_SECONDS:
            os._exit(128 + number)
        if not asked:
            first = time.monotonic()
            asked.append(signal.Signals(number).name)
            if is_main_rank():  # not by print: the signal may have come in the midst of one, which allows no other
                with suppress(OSError):
                    os.write(1, f"{asked[0]}: stopping at the end of this step, once more ends at once\n".encode())

    before = {name: signal.signal(name, note) for name in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        yield asked
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextmanager
def without_garbage_collection() -> Iterator[Callable[[], None]]:
    """Switched off but when the given function is called: it would stall a step for up to half a second."""

    def collect() -> None:
        gc.collect()
        gc.freeze()  # what is alive now lives for the whole run: never scan it again
        gc.disable()

    try:
        yield collect
    finally:
        gc.enable()
        gc.unfreeze()
