"""Groups of ranks, one group after the other: each reads the newest checkpoint there is, and saves the next ones.

Arguments: the folder, and for each group "RANKS: STEP -> STEP STEP", the step to find and those to save.
"""

import os
import re
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from checkpoints import check, save

from nanochat.checkpoint import Saver, load, newest


def rank_of(folder: Path, rank: int, ranks: int, pipe: tuple[int, int], step: int, steps: list[int]) -> None:
    # Rank 0 serves the store, not the parent: a process that forks must have no other thread.
    port = 0 if rank == 0 else int(os.read(pipe[0], 5))
    options = {"wait_for_workers": False, "timeout": timedelta(seconds=60)}
    store = dist.TCPStore("localhost", port, is_master=rank == 0, **options)
    if rank == 0:
        os.write(pipe[1], b"%5d" % store.port * (ranks - 1))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    chosen: list[Any] = [newest(folder).step if rank == 0 else None]
    dist.broadcast_object_list(chosen)
    assert chosen == [step], chosen
    check(load(folder, step, hashes=False))
    with Saver(folder, rank, ranks, keep_last=2, store=dist.distributed_c10d._get_default_store()) as saver:
        for number in steps:
            save(saver, number)
            dist.barrier()  # training's collectives go on meanwhile
    dist.barrier()  # the store goes with rank 0 (torchrun's outlives all ranks)


def main(folder: Path, groups: list[str]) -> None:
    torch.set_num_threads(1)
    for group in groups:
        ranks, step, *steps = map(int, re.findall(r"\d+", group))
        pipe, children = os.pipe(), []
        for rank in range(ranks):
            children.append(os.fork())
            if not children[-1]:
                try:
                    rank_of(folder, rank, ranks, pipe, step, steps)
                    dist.destroy_process_group()
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * ranks
        print(ranks)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
