"""Join the ranks of a run, and watch them: when one dies, the others name it and end, instead of waiting for it."""

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from nanochat.errors import UserError
from nanochat.log import print_line

BEAT_SECONDS = 2.0
SILENT_BEATS = 20  # a rank that misses so many is lost: it failed or was stopped, or its machine is gone


@contextmanager
def process_group(device: torch.device, rank: int, world_size: int) -> Iterator[dist.Store]:
    """Join the ranks until the block ends; yields the store. Ends the process if another rank is lost."""
    limit = timedelta(minutes=30)  # of a collective: one rank may evaluate or compile for long
    # A client tries to connect for twice the time given here.
    patience = timedelta(seconds=BEAT_SECONDS * SILENT_BEATS / 2)
    try:
        # world_size=1: the store does not wait for the other ranks here. The thread names those that do not start.
        store, _, _ = next(dist.rendezvous("env://?world_size=1", timeout=patience))
    except RuntimeError:
        raise UserError("rank 0 has not started, or its port is in use or cannot be reached") from None
    store.set_timeout(limit)
    ended = threading.Event()
    # In a thread, so that a rank may evaluate or compile for as long as it needs.
    thread = threading.Thread(target=_watch_ranks, args=(store, rank, world_size, ended), daemon=True)
    thread.start()
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=dist.PrefixStore("process group", store),
            rank=rank,
            world_size=world_size,
            timeout=limit,
            device_id=device if device.type == "cuda" else None,
        )
        yield store
        dist.barrier()  # rank 0 may hold the store, and takes it away
    except RuntimeError as error:
        # The message names a peer, but that one may only have stopped to wait too. The thread finds the lost rank.
        if re.search("gloo|NCCL", str(error)):
            thread.join(BEAT_SECONDS * (SILENT_BEATS + 5))
        raise
    finally:
        ended.set()
        if dist.is_initialized():
            dist.destroy_process_group()


def _watch_ranks(store: dist.Store, rank: int, world_size: int, ended: threading.Event) -> None:
    """Show the other ranks that this one is alive, until `ended`; end this process if another rank is lost."""
    keys = [f"beat {other}" for other in range(world_size)]
    missed = {}  # beat -> checks that have found it
    sentence = "the store of the ranks does not answer: rank 0, its machine or its torchrun has failed"
    with suppress(RuntimeError):
        # Its own connection: no collective waits for this thread, and it waits for none.
        own = store.clone()
        own.set_timeout(timedelta(seconds=10))
        for other, key in enumerate(keys):
            own.compare_set(key, "", f"rank {other} has not started")  # does nothing once that rank has written
        while not ended.wait(BEAT_SECONDS):
            own.set(keys[rank], f"rank {rank} on {os.uname().nodename} has not answered since {time.ctime()}")
            # Checks are counted, not seconds: after a stop of all ranks at once, as by Ctrl-Z, nobody is lost.
            missed = {beat: missed.get(beat, 0) + 1 for beat in own.multi_get(keys)}
            lost = max(missed, key=missed.__getitem__)
            if missed[lost] > SILENT_BEATS:
                sentence = lost.decode()
                break
    # The last barrier may be over on rank 0 alone, which then takes the store away.
    if not ended.wait(BEAT_SECONDS):
        print_line(f"error: {sentence}", file=sys.stderr)
        os._exit(1)  # the main thread may wait in a collective for ever
