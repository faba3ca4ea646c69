"""Threads of products wait asleep while the machine is busy: real processes, real pools of OpenMP threads."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the pools are those of GCC's OpenMP")

LONGEST = 60.0  # seconds for what takes one

BEGINNING = f"""
import os, subprocess, sys, threading, time
import torch
from nanochat import waiting

def threads() -> int:
    return len(os.listdir("/proc/self/task"))

def until(count: int) -> bool:
    end = time.monotonic() + {LONGEST}
    while time.monotonic() < end and threads() != count:
        time.sleep(0.05)
    return threads() == count

def settled() -> int:
    # Threads of an earlier pool take a while to end, on a busy machine above all.
    count, since = threads(), time.monotonic()
    while time.monotonic() < since + 1:
        time.sleep(0.05)
        if threads() != count:
            count, since = threads(), time.monotonic()
    return count

cores = len(os.sched_getaffinity(0))
waiting.SECONDS = 0.1
"""

COME_AND_GO = """
class Load:
    taken = 0.0

    def others(self) -> float:
        return self.taken

waiting.Load = Load
left, right = torch.randn(2, 512, 512)
for case in sys.argv[1:]:
    count, cores, taken, added = map(float, case.split())
    waiting.own_cores = lambda: range(int(cores))
    torch.set_num_threads(int(count))
    product = left @ right
    before = settled()
    found = []
    with waiting.sharing_cores():
        quiet = before + 1  # who watches
        found.append(until(quiet))
        for _ in range(2):
            Load.taken = taken
            found.append(until(quiet + int(added)))
            found.append(torch.equal(left @ right, product))
            Load.taken = 0.1
            found.append(until(quiet))
    found.append(until(before))
    print("|".join(map(str, found)))
"""

REAL = """
torch.set_num_threads(max(cores, 2))
torch.ones(1 << 20).exp_()
before = settled()
others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
try:
    with waiting.sharing_cores():
        print(until(before + 1 + torch.get_num_threads()))
finally:
    for other in others:
        other.kill()
        other.wait()
"""

CHOSEN = """
for count in (1, 2):
    torch.set_num_threads(count)
    for name in sys.argv[1:] if count == 2 else [""]:
        if name:
            os.environ[name] = "PASSIVE" if name == "OMP_WAIT_POLICY" else "1000"
        before = settled()
        with waiting.sharing_cores():
            print(threads() == before)
        os.environ.pop(name, None)
"""

# The block ends while the pools compute, and the process with it.
ENDED_EARLY = """
waiting.Load.others = lambda self: float(cores)
waiting.SECONDS, waiting.PARALLEL = 0.01, 1 << 26
torch.set_num_threads(max(cores, 2))
with waiting.sharing_cores():
    end = time.monotonic() + 60
    while time.monotonic() < end and threading.active_count() < 3:
        time.sleep(0.001)
print(threading.active_count())
"""

# Threads, cores, what others take, and the threads that this adds.
CASES = [
    "2 2 1.0 2",  # one that holds a pool, and one more in the pool
    "2 4 2.5 6",  # three pools: 2 + 1 + 1 threads are no more than 4
    "4 4 0.5 4",
    "4 4 0.2 0",
    "2 4 2.0 0",  # the others leave two cores
]


def run(program: str, *words: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    command = [sys.executable, "-c", BEGINNING + program, *words]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=9 * LONGEST, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_pools_come_and_go_and_results_stay() -> None:
    assert run(COME_AND_GO, *CASES) == ["|".join(["True"] * 8)] * len(CASES)


def test_real_processes_make_a_machine_busy() -> None:
    assert run(REAL) == ["True"]


def test_a_process_may_end_while_pools_compute() -> None:
    assert run(ENDED_EARLY) == ["1"]


def test_nobody_watches_where_nothing_is_to_choose() -> None:
    assert run(CHOSEN, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT") == ["True"] * 3
