"""What may interrupt a training step: signals, which wait for its end, and the garbage collector."""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from nanochat.log import CLEAR, is_main_rank, is_terminal

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ECHO_SECONDS = 3.0  # torchrun hands a terminal's Ctrl-C on to ranks that have had it already

_heard: list[list[str]] = []  # by the `signals` that is open, if one is: a process has one set of handlers


@contextmanager
def signals() -> Iterator[list[str]]:
    """The names of the signals that asked this process to stop; the second one ends it at once.

    Inside another it is the same: which one heard the first signal does not matter to the second. A thread hears them:
    Python's own handlers wait while the main thread waits, for a device or for another rank.
    """
    if _heard:
        yield _heard[0]
        return
    asked: list[str] = []
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)

    def listen() -> None:
        first = 0.0
        while heard := os.read(ear, 1):
            if heard[0] not in STOPPING:
                continue
            if asked and time.monotonic() - first > ECHO_SECONDS:
                os._exit(128 + heard[0])
            if not asked:
                first = time.monotonic()
                asked.append(signal.Signals(heard[0]).name)
                if is_main_rank():  # not by print, whose lock this thread must not hold when the process ends
                    said = f"{asked[0]}: stopping at the end of this step, once more ends at once\n"
                    with suppress(OSError):
                        os.write(1, (CLEAR * is_terminal(sys.stdout) + said).encode())
        os.close(ear)

    threading.Thread(target=listen, name="nanochat-signals", daemon=True).start()
    old_mouth = signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in STOPPING}
    _heard.append(asked)
    try:
        yield asked
    finally:
        _heard.clear()
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_mouth)
        os.close(mouth)


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
