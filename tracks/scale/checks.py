"""Checks before a job: ranks that are alike, one base directory, and the speed of disk, network and ranks.

Ranks exchange facts through a store before the first collective, which would hang where nodes differ. preflight.md
explains the output.
"""

import json
import math
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from timeit import timeit
from typing import Any, NamedTuple, Protocol

from nanochat.environment import environment, git, node_count, output_of, versions
from nanochat.errors import UserError
from nanochat.log import Record, print0, table_of, terminal_table
from nanochat.paths import base_dir, text_sha256, write_bytes, write_json
from nanochat.statistics import NOT_KNOWN

FILE_MB = 32  # of the file that tries the disk
# NCCL's words in its log. A list of adapters would not prove that they are used.
LINKS = r"(?<=via )\w+/[A-Za-z]+|GDRDMA|NVL(?=\[)"

# Columns of RankRow and NetworkRow.
RANKS = "Rank | Free GB:,.1f | Write MB/s:,.0f | Read MB/s:,.0f | Clock s:+.3f | Product s:.4f | NCCL"
NETWORK = "Ranks | MB:.2f | All-reduce GB/s:.2f | Reduce-scatter GB/s:.2f | Hardware GB/s:.0f"
SLOW = "warning: {place} is slow: {product:.4f} s for a matrix product, the median is {median:.4f} s"
CLOCK = "warning: the clock of {place} differs by {skew:+.3f} s from that of rank 0"
SOCKETS = "warning: NCCL uses sockets between nodes: {all_reduce:.2f} GB/s; adapters: {hardware} GB/s"


class RankRow(NamedTuple):
    """What was found on a rank."""

    place: str
    free: float  # GB on the disk of the base directory
    write: float  # MB/s
    read: float  # MB/s
    skew: float  # seconds that the clock is ahead of rank 0's
    product: float = math.nan  # seconds of a matrix product
    links: str = NOT_KNOWN  # NCCL's connections


class NetworkRow(NamedTuple):
    """The bus bandwidth of a group of ranks, as nccl-tests defines it: GB/s through each link of a ring."""

    ranks: int
    megabytes: float
    all_reduce: float
    reduce_scatter: float
    hardware: float | str  # as the hardware says


class Exchange(Protocol):
    """Sends a value to the other ranks, and returns every rank's."""

    def __call__(self, name: str, value: Any = None) -> list[Any]:
        """Return the values of all ranks, in order. name: equal on all ranks, and used once. value: JSON."""
        ...


@contextmanager
def meeting() -> Iterator[None]:
    """Make a sentence of torch's errors about a port that is in use or a rank that is silent."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(f"the ranks do not meet: {error}") from None


def join() -> Exchange:
    """Return a function that sends a value to the other ranks, and returns every rank's."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # else torch prints the stack of a failed connection
    import torch.distributed as dist
    from torch.distributed.elastic.utils.store import synchronize

    url = "env://" if "RANK" in os.environ else "tcp://localhost:0?rank=0&world_size=1"
    # Rank 0 waits for this time, and the others try to connect for twice this time.
    store, rank, ranks = next(dist.rendezvous(url, timeout=timedelta(seconds=14)))

    def exchange(name: str, value: Any = None) -> list[Any]:
        # Rank 0, which may hold the store, is the last to return.
        return list(map(json.loads, synchronize(store, json.dumps(value).encode(), rank, ranks, name, 20)))

    return exchange


def check(exchange: Exchange, files: list[str]) -> tuple[Record, RankRow]:
    """Return the facts of all ranks, and this rank's row without its speed; ends all ranks where a job cannot run.

    files: in the base directory, or with their folders.
    """
    base_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base_dir(), prefix="preflight-") as folder:
        write = timeit(lambda: write_bytes(Path(folder, "data"), bytes(FILE_MB * 1_000_000)), number=1)
        folders = exchange("folder", folder)
        rank = folders.index(folder)
        place = f"rank {rank} on {platform.node()}"
        # Of another node: this one may have its own file in memory.
        data = base_dir() / Path(folders[rank - len(folders) // node_count()]).name / "data"
        facts = {
            **versions(),
            **environment()["Software"],
            # Number, name, memory, driver.
            "GPUs": output_of(
                "sh", "-c", "nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader | uniq -c"
            ),
            "commit": git("describe", "--always", "--dirty"),
            "changes": text_sha256(git("diff", "HEAD"))[:12],
            "missing files": [str(path) for path in (data, *map(base_dir().joinpath, files)) if not path.exists()],
        }
        ranks = exchange("facts", [place, facts])
        wanted = ranks[0][1] | {"missing files": []}
        for other, others in ranks:
            for name, value in others.items():
                if value != wanted[name]:
                    print0(
                        f"error: {other} has {name} {value}, not {wanted[name]}:",
                        "nodes need the same checkout and software, all files, and one NANOCHAT_BASE_DIR",
                        file=sys.stderr,
                    )
                    exchange("end")  # not before rank 0 has printed: torchrun ends all ranks with the first one
                    raise SystemExit(2)
        read = timeit(data.read_bytes, number=1)
        exchange("read")
    # All come to the clock within a few round trips.
    skew = time.time() - exchange("clock", time.time())[0]
    row = RankRow(
        place=place,
        free=shutil.disk_usage(base_dir()).free / 1e9,
        write=FILE_MB / write,
        read=FILE_MB / read,
        skew=skew,
    )
    return wanted, row


def measure() -> tuple[float, str, list[NetworkRow]]:
    """Return seconds of a matrix product, NCCL's connections, and the rows of the network's table."""
    import torch
    import torch.distributed as dist
    from torch.utils.benchmark import Timer

    from nanochat.runtime import setup

    rows = []
    with tempfile.NamedTemporaryFile("r") as log:
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,GRAPH,NET,P2P,SHM", NCCL_DEBUG_FILE=log.name)
        with setup() as runtime, runtime.device:
            square = torch.ones(2048, 2048)
            product = Timer("square @ square", globals=locals()).blocked_autorange(min_run_time=1).median
            ports = output_of("sh", "-c", "cat /sys/class/infiniband/*/ports/*/rate")  # lines like 400 Gb/sec (4X NDR)
            adapters = sum(map(float, re.findall(r"(\d+) Gb", ports))) / 8
            # On one node both are the same, and NVLink counts.
            hardware = {runtime.world_size: adapters, runtime.world_size // node_count(): runtime.accelerator.nvlink}
            hardware.pop(1, None)
            for ranks in sorted(hardware):
                group = dist.new_subgroups(ranks)[0]
                for power in (16, 20, 24):
                    part = torch.zeros(2**power // ranks)
                    whole = part.repeat(ranks)
                    reduce = Timer("dist.all_reduce(whole, group=group)", globals=locals()).timeit(5).mean
                    scatter = (
                        Timer("dist.reduce_scatter_tensor(part, whole, group=group)", globals=locals()).timeit(5).mean
                    )
                    once = part.nbytes / 1e9 * (ranks - 1)  # through each link of a ring; an all-reduce does it twice
                    row = NetworkRow(
                        ranks=ranks,
                        megabytes=whole.nbytes / 1e6,
                        all_reduce=2 * once / reduce,
                        reduce_scatter=once / scatter,
                        hardware=hardware[ranks] or NOT_KNOWN,
                    )
                    rows.append(row)
        links = ", ".join(sorted(set(re.findall(LINKS, log.read()))))
        return product, links or NOT_KNOWN, rows


def report(facts: Record, ranks: list[RankRow], network: list[NetworkRow]) -> None:
    """Print the report with warnings, and write it to preflight.json in the base directory."""
    median = statistics.median_low(row.product for row in ranks)
    warnings = [SLOW.format(**row._asdict(), median=median) for row in ranks if row.product > 1.15 * median]
    # Beyond a second, the times of files and logs mislead.
    warnings += [CLOCK.format(**row._asdict()) for row in ranks if abs(row.skew) > 1]
    links = min(row.links for row in ranks)  # GDRDMA and NET come before P2P
    if "Socket" in links:
        between = network[-1]
        warning = SOCKETS.format(**between._asdict())
        if len(network) > 3:  # several ranks in a node, in the first rows
            warning += f"; {1 - between.all_reduce / network[2].all_reduce:.0%} less than in a node"
        warnings.append(warning)
    tables = [
        table_of("Facts", "All ranks | have", list(facts.items())),
        table_of("Ranks", RANKS, ranks),
        table_of("Network", NETWORK, network),
    ]
    print0(*map(terminal_table, tables), *warnings, sep="\n\n")
    # metrics.scale_metrics reads some of it.
    record = {
        "places": [row.place for row in ranks],
        "interconnect": links,
        "all_reduce_gb_s": network[-1].all_reduce if network else None,
        "tables": tables,
        "warnings": warnings,
    }
    write_json(base_dir() / "preflight.json", record)
