"""Checks before a job on several ranks: equal nodes, a shared folder, and the speed of disk, network and ranks.

Ranks first exchange facts through a store, without a collective: it would hang where nodes differ. docs/preflight.md
explains the output.
"""

import json
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanochat.log import Record, parse_rows, print0, table_of, terminal_table
from nanochat.outcome import ROOT, git, hardware, output_of, torch_build, versions
from nanochat.paths import base_dir, text_sha256, write_bytes, write_json

if TYPE_CHECKING:
    from nanochat.runtime import Runtime
    from nanochat.settings import DeviceSettings

Share = Callable[[Any], list]  # takes a rank's value, returns every rank's in rank order

VARIABLES = ("NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_NET_GDR_LEVEL", "NCCL_SOCKET_IFNAME")
PORTS = Path("/sys/class/infiniband")  # Linux only
FILE_BYTES = 33_554_432  # of the file that tries the disk
READ_SECONDS = 10.0  # network file systems show new files late
REPEATS = 5  # of a measurement
SIZES = {"cpu": [2**16, 2**20, 2**24], "cuda": [2**20, 2**24, 2**29]}  # bytes of a collective
# GB/s in one direction, half of the figures in NVIDIA's data sheets: NVLink, and PCIe 5.0 for the last.
LINKS = {"A100": 300, "A100-40GB": 300, "H100": 450, "H200": 450, "B200": 900, "H100-PCIe": 64}
# Words for a connection, and NCCL's lines about it. A list of adapters does not prove that they are used.
CONNECTIONS = parse_rows(
    r"""
    NVLink          [+] NVL\[
    P2P             via P2P/
    shared memory   via SHM/
    InfiniBand      via NET/IB
    EFA             via NET/(AWS )?Libfabric
    GPUDirect RDMA  via NET/.*/GDRDMA
    sockets         via NET/Socket
    """
)


# ---- the ranks, before any collective ----


@contextmanager
def meet(seconds: float):
    """Yield a function that shares values between the ranks of this job. seconds: to wait for another rank."""
    import torch.distributed as dist

    if "RANK" not in os.environ:
        yield lambda value: [value]
        return
    turns = count()

    def share(value: Any):
        turn = next(turns)
        store.set(f"{turn}/{rank}", json.dumps(value))
        return [json.loads(store.get(f"{turn}/{other}")) for other in range(ranks)]

    try:
        store, rank, ranks = next(dist.rendezvous("env://", timeout=timedelta(seconds=seconds)))
        yield share
    except dist.DistError as error:
        reason = str(error).partition("\n")[0]
        if "EADDRINUSE" in reason:
            raise ValueError(f"port {os.environ['MASTER_PORT']} is in use: set MASTER_PORT to another one") from None
        # The last key that the store waited for ends with the rank.
        late = re.sub("wait timeout.*/", "rank ", reason)
        raise TimeoutError(f"no answer from another rank within {seconds:.0f} s: {late}") from None


def refuse(share: Share, reasons: Sequence[str]):
    """End all ranks with code 2 if any rank has a reason; the first one is printed."""
    for reason in sum(share(reasons), []):
        print0(f"error: node {reason}", file=sys.stderr)
        share("")  # torchrun ends all ranks with the first one, so the sentence comes before
        raise SystemExit(2)


def check_nodes(share: Share, files: Sequence[str]):
    """Return the common facts, and a record of each rank; all ranks end with code 2 if the nodes cannot run a job."""
    name = f"{os.environ.get('GROUP_RANK', 0)} ({platform.node()})"
    facts = node_facts()
    names, others = zip(*share((name, facts)), strict=True)
    first = others[0]
    unlike = [fact for fact in facts if facts[fact] != first.get(fact)]
    refuse(share, [f"{name} has {fact} {facts[fact]}, node {names[0]} has {first.get(fact)}" for fact in unlike])
    refuse(share, [f"{name} lacks {file}: copy it there" for file in files if not (base_dir() / file).exists()])
    # The next node's rank in the same place.
    other = (int(os.environ.get("RANK", 0)) + len(names) // len(set(names))) % len(names)
    speeds = disk_speeds(share, f"{other}")
    unread = f"{name} finds no file of node {names[other]} in NANOCHAT_BASE_DIR={base_dir()}: share a folder"
    refuse(share, [] if speeds else [unread])
    free = shutil.disk_usage(base_dir()).free / 1e9
    return facts, share({"node": name, **speeds, "free GB": free, "clock skew s": clock_skew(share)})


def node_facts():
    """Return the facts in which all nodes have to agree."""
    import torch

    code = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("[nst]*/**/*.py"))]
    return versions() | {
        "Python": platform.python_version(),
        "CUDA": torch_build()["cuda"],
        "NCCL": torch.cuda.is_available() and torch.cuda.nccl.version(),
        "driver": output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")[:12],
        "GPUs": hardware()["GPUs"],
        "commit": git("rev-parse", "--short", "HEAD"),
        "source": text_sha256("".join(code))[:12],
    }


def disk_speeds(share: Share, other: str):
    """Return MB/s of writing a file to the base folder, and of reading rank `other`'s; empty where that is not found."""
    # A new name: a network file system may remember for a while that a file did not exist.
    folder = base_dir() / f"preflight-{share(uuid.uuid4().hex)[0]}"
    start = time.perf_counter()
    write_bytes(folder / os.environ.get("RANK", "0"), bytes(FILE_BYTES))
    written = time.perf_counter() - start
    share("")
    start = time.perf_counter()
    while not (found := (folder / other).exists()) and time.perf_counter() < start + READ_SECONDS:
        time.sleep(0.01)
    megabytes = len((folder / other).read_bytes()) / 1e6 if found else 0.0
    read = time.perf_counter() - start
    share("")
    shutil.rmtree(folder, ignore_errors=True)  # other ranks remove it too
    return {"write MB/s": megabytes / written, "read MB/s": megabytes / read} if found else {}


def clock_skew(share: Share):
    """Return the seconds by which this clock is ahead of rank 0's, from the fastest of some round trips."""
    found = []
    for _ in range(REPEATS):
        start = time.time()
        share("")
        theirs = share(time.time())[0]
        end = time.time()
        # Rank 0 answered after all had asked: half way, give or take half of the round trip.
        found.append((end - start, (start + end) / 2 - theirs))
    return min(found)[1]


# ---- speed of ranks and network ----


def measure(config: "DeviceSettings", facts: Record, ranks: Sequence[Record]):
    """Measure ranks and network, print the report, and write preflight.json into the base folder."""
    from nanochat.runtime import setup

    settings = facts | {name: os.environ.get(name, "unset") for name in VARIABLES}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,GRAPH,NET", NCCL_DEBUG_FILE=str(log))
        with setup(config.device_type, config.dtype) as runtime:
            nodes = len({rank["node"] for rank in ranks})
            rows = bus_speeds(runtime, nodes) if len(ranks) > 1 else []
            words = connections(log.read_text()) if log.exists() else [f"gloo over {output_of('hostname', '-i')}"]
            found = sorted(set(sum(runtime.all_gather(words), [])))
            report(runtime, ...)


def seconds_of(work: Callable[[], Any]):
    """Return the mean seconds of a call, until the GPU has finished."""
    from torch.utils.benchmark import Timer

    return Timer("work()", globals={"work": work}).timeit(REPEATS).mean


def bus_speeds(runtime: "Runtime", nodes: int):
    """Return a row for each group of ranks and size: GB/s of all-reduce and reduce-scatter, as nccl-tests defines it."""
    import torch
    import torch.distributed as dist

    mesh = dist.init_device_mesh(runtime.device.type, (nodes, runtime.world_size // nodes))
    groups = {"between nodes": mesh.get_group(0), "in a node": mesh.get_group(1), "all ranks": dist.group.WORLD}
    rows = []
    for name, group in groups.items():
        for size in SIZES[runtime.device.type] if group.size() > 1 else []:
            part = torch.zeros(size // 4 // group.size(), device=runtime.device)
            whole = part.repeat(group.size())
            reduce = seconds_of(partial(dist.all_reduce, whole, group=group))
            scatter = seconds_of(partial(dist.reduce_scatter_tensor, part, whole, group=group))
            once = part.nbytes / 1e9 * (group.size() - 1)  # through each link of a ring; an all-reduce does it twice
            rows.append([name, group.size(), whole.nbytes / 1e6, 2 * once / reduce, once / scatter])
    return rows


def slow_rank(seconds: Sequence[float]):
    """Return the slowest rank if it is slower than the median by 20 %; else None."""
    slowest = max(seconds)
    return seconds.index(slowest) if slowest > 1.2 * statistics.median_low(seconds) else None


def connections(log: str):
    """Return the words for the connections in NCCL's log."""
    return [word for word, pattern in CONNECTIONS if re.search(pattern, log)]


def port_speed(folder: Path = PORTS):
    """Return GB/s of this node's active InfiniBand and RoCE ports together."""
    active = [path for path in folder.glob("*/ports/*/state") if "ACTIVE" in path.read_text()]
    return sum(float(path.with_name("rate").read_text().split()[0]) / 8 for path in active)  # 400 Gb/sec (4X NDR)
