"""How the threads of a product wait for each other on a CPU: awake on a quiet machine, asleep on a busy one.

OpenMP lets a thread that waits spin for milliseconds. That is quickest while each thread has a core to itself. Where
another process takes one of two cores, both threads share the other one, and each wait lasts until the kernel changes
turns: a step takes ten times as long (dev/MEASURED.md, "A busy machine"). To spin always briefly would cost a fifth of
the speed of small models on a quiet machine, and fewer threads would add in another order, so that a run's numbers
depended on what else the machine did.

GCC's OpenMP, which PyTorch uses on Linux, spins briefly while a process has more OpenMP threads than there are cores
(its manual, GOMP_SPINCOUNT). So while the machine is busy, other threads keep pools that do nothing.
"""

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from nanochat.cores import LITTLE, Load, own_cores

SECONDS = 0.5  # between two looks at the machine
PARALLEL = 1 << 20  # elements; an operation on so many uses all threads


@contextmanager
def sharing_cores() -> Iterator[None]:
    """Let threads wait asleep, until the block ends, whenever other work leaves fewer cores than there are threads.

    What the environment says about waiting stays.
    """
    is_chosen = not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}.isdisjoint(os.environ)
    if is_chosen or sys.platform != "linux" or torch.get_num_threads() == 1:
        yield
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(ended,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(ended: threading.Event) -> None:
    """Add the pools when the machine gets busy, and end them when it is quiet again.

    All have ended when this returns: a thread that computes while Python ends would abort the process.
    """
    load = Load()
    threads = torch.get_num_threads()
    spare = max(len(own_cores()) - threads, 0)
    pools = spare // (threads - 1) + 1  # each adds all its threads but the one that computes
    free = threading.Event()  # ends the pools' threads
    holders: list[threading.Thread] = []
    is_busy = False
    while not ended.wait(SECONDS):
        was_busy, is_busy = is_busy, load.others() > spare + LITTLE
        if is_busy and not was_busy:
            free = threading.Event()
            holders = [threading.Thread(target=_hold_pool, args=(free,), daemon=True) for _ in range(pools)]
            for holder in holders:
                holder.start()
        elif was_busy and not is_busy:
            _end_pools(free, holders)
    _end_pools(free, holders)


def _end_pools(free: threading.Event, holders: Sequence[threading.Thread]) -> None:
    free.set()
    for holder in holders:
        holder.join()


def _hold_pool(free: threading.Event) -> None:
    """Keep a pool of OpenMP threads, which each thread that computes has of its own."""
    torch.ones(PARALLEL, device="cpu").exp_()
    free.wait()
