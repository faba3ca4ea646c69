"""The cores of this machine: those that this process may use, and the work of others on them."""

import math
import os
import platform
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
CPU_INFO = PROC / "cpuinfo"  # Linux only
CGROUP = Path("/sys/fs/cgroup")

FULL = 0.1  # a machine with less than this part of its cores idle is full
MUCH = 0.5  # cores that others use, from which it is worth a line
LITTLE = 0.25  # with less than this they have gone


def processor() -> str:
    """Return the processor's name, on Linux with what it can: kernels, and their rounding, are chosen by that."""
    if not CPU_INFO.exists():
        return platform.processor()
    text = CPU_INFO.read_text(encoding="utf-8")
    name = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    can = re.search(r"^(?:flags|Features)\s*: (.+)", text, re.MULTILINE)
    return f"{name[1] if name else platform.processor()} {can[1] if can else ''}"


def usable_cores() -> int:
    """Return how many cores this process may use: by its affinity, and by a container's quota."""
    cores, quota = len(own_cores()), _quota()
    return max(min(cores, math.ceil(quota)), 1) if quota else cores


def most_threads(least: int) -> int:
    """Return a bound on the threads of a contained program: numpy and torch start one per core each when they load."""
    return max(least, least // 2 + 4 * (os.cpu_count() or 1))


def own_cores() -> set[int]:
    """Return the numbers of the cores that this process may run on."""
    return os.sched_getaffinity(0) if sys.platform == "linux" else set(range(os.cpu_count() or 1))


def _threads() -> int:
    """Return how many threads this run computes with, those of all ranks on this machine together."""
    cores = len(own_cores())
    each = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(int(each) * ranks, cores) if each.isdigit() else cores


def _quota() -> float:
    """Return how many cores' time this control group gets, 0 without a limit."""
    for name in ("cpu.max", "cpu/cpu.cfs_quota_us"):  # versions 2 and 1; a container sees its own group there
        try:
            words = (CGROUP / name).read_text().split()
            if len(words) == 1:
                words.append((CGROUP / "cpu/cpu.cfs_period_us").read_text())
        except OSError:
            continue
        if words[0] not in ("max", "-1"):
            return int(words[0]) / int(words[1])
    return 0.0


class _Process(NamedTuple):
    """A process as /proc/PID/stat has it."""

    name: str
    parent: int
    ticks: int  # of processor time
    of_children: int  # ticks of children that have ended


class _Sample(NamedTuple):
    """What the cores that this process may use have done since the machine started, in ticks."""

    busy: int  # for any process, and for other guests of the host
    idle: int
    processes: dict[int, _Process]


class Load:
    """Measures what others take of this process's cores."""

    def __init__(self) -> None:
        self._before = _sample(with_processes=False)
        self._own_before = time.process_time()

    def others(self) -> float:
        """Return how many cores' time went to others since the last call, 0 where there is no /proc."""
        now, own = _sample(with_processes=False), time.process_time()
        if self._before is None or now is None:
            return 0.0
        total = now.busy - self._before.busy + now.idle - self._before.idle
        busy, ours = now.busy - self._before.busy, (own - self._own_before) * os.sysconf("SC_CLK_TCK")
        self._before, self._own_before = now, own
        return max(busy - ours, 0) / total * len(own_cores()) if total else 0.0


class OtherWork:
    """Notices that other processes fill the cores that this run computes on.

    Looking through all processes takes milliseconds, so it happens only while the machine is full.
    """

    def __init__(self) -> None:
        self._before = _sample(with_processes=False)
        self._told = False

    def note(self) -> str:
        """Return a sentence if other work has begun to slow this run since the last call, else ""."""
        if self._before is None:
            return ""
        before, now = self._before, _sample(with_processes=bool(self._before.processes))
        if now is None:
            return ""
        self._before = now
        total = now.busy - before.busy + now.idle - before.idle
        if total <= 0:
            return ""
        if (now.idle - before.idle) / total >= FULL:
            self._before = now._replace(processes={})
            self._told = False
            return ""
        if not before.processes:  # the first look at a full machine: who fills it, the next one tells
            self._before = _sample(with_processes=True)
            return ""
        cores = len(own_cores())
        ours = _family(now.processes)
        used = {number: _ticks(before, now, number, number in ours) for number in now.processes}
        others = (now.busy - before.busy - sum(used[number] for number in ours)) / total * cores
        spare = cores - _threads()  # others may have these: runs that share the cores do not slow each other
        if others < spare + LITTLE:
            self._told = False
        if others < spare + MUCH or self._told:
            return ""
        self._told = True
        strangers = [number for number in used if number not in ours]
        most = max(strangers, key=used.__getitem__, default=0)
        share = used.get(most, 0) / total * cores
        who = "" if share < LITTLE else f", {now.processes[most].name} (process {most}) {share:.1f} of them"
        return f"the machine is busy: other work uses {others:.1f} of its {cores} cores{who}; this run is slower for it"


def _sample(with_processes: bool) -> _Sample | None:
    """Return what the cores have done so far; None where there is no /proc."""
    try:
        lines = (PROC / "stat").read_text().splitlines()
    except OSError:
        return None
    names = {f"cpu{core}" for core in own_cores()}
    rows = [map(int, line.split()[1:9]) for line in lines if line.partition(" ")[0] in names]
    if not rows:
        return None
    user, nice, system, idle, waiting, *rest = map(sum, zip(*rows, strict=True))
    processes = {}
    if with_processes:
        for folder in PROC.iterdir():
            if folder.name.isdigit():
                process = _process(folder)
                if process is not None:
                    processes[int(folder.name)] = process
    return _Sample(user + nice + system + sum(rest), idle + waiting, processes)


def _process(folder: Path) -> _Process | None:
    """Return a process; None if it has just ended."""
    try:
        text = (folder / "stat").read_text()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")  # a name may have brackets
    words = rest.split()
    return _Process(name, int(words[1]), int(words[11]) + int(words[12]), int(words[13]) + int(words[14]))


def _ticks(before: _Sample, now: _Sample, number: int, with_children: bool) -> int:
    """Return the processor time of a process between two samples."""
    process, earlier = now.processes[number], before.processes.get(number)
    ticks = process.ticks + with_children * process.of_children
    return ticks - (earlier.ticks + with_children * earlier.of_children if earlier else 0)


def _family(processes: dict[int, _Process]) -> set[int]:
    """Return the processes of this run: this one, what it has started, and the other ranks on this machine."""
    ranks = int(os.environ.get("WORLD_SIZE", "1")) > 1
    root = os.getppid() if ranks else os.getpid()  # torchrun, or Slurm's daemon for a step
    family = {root}
    added = True
    while added:
        found = {number for number, process in processes.items() if process.parent in family} - family
        family |= found
        added = bool(found)
    return family & set(processes)
