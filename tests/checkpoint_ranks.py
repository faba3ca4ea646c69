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


def rank_of(folder: Path, rank: int, ranks: int, port: int, step: int, steps: list[int]) -> None:
    store = dist.TCPStore("localhost", port, is_master=False, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    chosen: list[Any] = [newest(folder).step if rank == 0 else None]
    dist.broadcast_object_list(chosen)
    assert chosen == [step], chosen
    check(load(folder, step, hashes=False))
    with Saver(folder, rank, ranks, keep_last=2, store=dist.distributed_c10d._get_default_store()) as saver:
        for number in steps:
            save(saver, number)
            dist.barrier()  # training's collectives go on meanwhile
    assert saver.saved == steps[-1]


def main(folder: Path, groups: list[str]) -> None:
    torch.set_num_threads(1)
    for group in groups:
        ranks, step, *steps = map(int, re.findall(r"\d+", group))
        server = dist.TCPStore("localhost", 0, is_master=True)
        children = []
        for rank in range(ranks):
            children.append(os.fork())
            if not children[-1]:
                try:
                    rank_of(folder, rank, ranks, server.port, step, steps)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * ranks
        print(ranks)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
