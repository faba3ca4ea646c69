"""The energy meter: a GPU's power and work, read each second while it trains."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from nanochat.log import print0, print_line

SAMPLE_SECONDS = 1.0  # between two samples of power


@contextmanager
def watch_gpu(device: torch.device) -> Iterator[Callable[[], list[float] | None]]:
    """Read a GPU's power and work each second until the block ends; yields a call for its use since the call before.

    Use: joules, seconds computing, seconds; None without a GPU or nvidia-ml-py, or once the driver reports nothing.
    """
    samples = []  # joules, seconds computing, seconds
    ended = threading.Event()

    def watch() -> None:
        before = time.monotonic()
        try:
            while not ended.wait(SAMPLE_SECONDS):
                # Both are means over a second or less: of milliwatts, and of the percent of time with a kernel.
                watts = torch.cuda.power_draw(device) / 1000
                utilization = torch.cuda.utilization(device) / 100
                now = time.monotonic()
                samples.append(((now - before) * watts, (now - before) * utilization, now - before))
                before = now
        except Exception as error:  # nvidia-ml-py need not be there, and has errors of its own
            # A missing package is missing on all ranks; a driver may fail on one.
            say = print0 if isinstance(error, ImportError) else print_line
            say(f"energy: n/a, {error}")

    def take() -> list[float] | None:
        taken = [samples.pop() for _ in range(len(samples))]  # the thread may append meanwhile
        return [sum(figures) for figures in zip((0.0, 0.0, 0.0), *taken, strict=True)] if thread.is_alive() else None

    thread = threading.Thread(target=watch, daemon=True)
    if device.type == "cuda" and not torch.version.hip:  # there PyTorch has 0 for an unknown power
        thread.start()
    try:
        yield take
    finally:
        ended.set()


METERS = {"gpu": watch_gpu}
