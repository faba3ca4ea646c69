"""Cores, quotas, and what is said about other work: on folders as the kernel shows them, and on real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanochat import cores
from nanochat.cores import Load, OtherWork, most_threads, usable_cores

ENDLESS = "while True: pass"
LONGEST = 60.0  # seconds for what takes one


@pytest.fixture
def group(tmp_path, monkeypatch) -> Path:
    """Stands for /sys/fs/cgroup on a machine with eight cores."""
    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    monkeypatch.setattr(cores, "own_cores", lambda: set(range(8)))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "count"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("6400000 100000", 8)],
)
def test_a_container_gets_its_quota(group, text, count) -> None:
    (group / "cpu.max").write_text(text + "\n")
    assert usable_cores() == count


@pytest.mark.parametrize(("quota", "count"), [("-1", 8), ("300000", 3)])
def test_the_older_groups_have_two_files(group, quota, count) -> None:
    (group / "cpu").mkdir()
    (group / "cpu/cpu.cfs_quota_us").write_text(quota + "\n")
    (group / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores() == count


def test_without_groups_all_cores_of_the_affinity_count(group) -> None:
    assert usable_cores() == 8


# ---- other work ----


class Machine:
    """A machine with two cores, as /proc shows it. Process 100 is ours, 1 its parent; a tick is 1/100 s."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.busy = self.idle = 0
        self.processes: dict[int, list[int]] = {}  # number -> parent, ticks, ticks of children
        self.names: dict[int, str] = {}
        self.start(1, 0, "init")
        self.start(100, 1, "ours")

    def start(self, number: int, parent: int, name: str) -> None:
        self.processes[number] = [parent, 0, 0]
        self.names[number] = name

    def end(self, number: int) -> None:
        parent, ticks, of_children = self.processes.pop(number)
        if parent in self.processes:
            self.processes[parent][2] += ticks + of_children

    def pass_time(self, seconds: int, **use: int) -> None:
        """Let seconds pass in which processes use cores, as percent of one: p100=200; other guests' are stolen=…"""
        for name, percent in use.items():
            if name != "stolen":
                self.processes[int(name.removeprefix("p"))][1] += seconds * percent
        self.busy += seconds * sum(use.values())
        self.idle += seconds * (200 - sum(use.values()))
        half = [self.busy // 2, self.busy - self.busy // 2]
        idle = [self.idle // 2, self.idle - self.idle // 2]
        lines = [f"cpu{core} {half[core]} 0 0 {idle[core]} 0 0 0 0 0 0" for core in range(2)]
        (self.folder / "stat").write_text(
            "\n".join(["cpu 9 9 9 9 9 9 9 9 9 9", *lines, "cpu2 77 0 0 0 0 0 0 0 0 0", "intr 5"])
        )
        for folder in self.folder.glob("[0-9]*"):
            if int(folder.name) not in self.processes:
                (folder / "stat").unlink(missing_ok=True)
        for number, (parent, ticks, of_children) in self.processes.items():
            folder = self.folder / f"{number}"
            folder.mkdir(exist_ok=True)
            head = f"{number} ({self.names[number]}) R {parent} " + "0 " * 9
            (folder / "stat").write_text(f"{head}{ticks - ticks // 3} {ticks // 3} {of_children} 0 20 0 1 0 99 0\n")


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Machine:
    monkeypatch.setattr(cores, "PROC", tmp_path)
    monkeypatch.setattr(cores, "own_cores", lambda: {0, 1})
    monkeypatch.setattr(os, "getpid", lambda: 100)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    made = Machine(tmp_path)
    made.pass_time(1)
    return made


def test_other_work_is_named_once(machine) -> None:
    machine.start(7, 1, "a (strange) name")
    others = OtherWork()
    notes = []
    for _ in range(4):
        machine.pass_time(5, p100=95, p7=100)
        notes.append(others.note())
    told = (
        "the machine is busy: other work uses 1.0 of its 2 cores, a (strange) name (process 7) 1.0 of them; this run is"
        " slower for it"
    )
    # The first look sees that the machine is full, the second one who fills it.
    assert notes == ["", told, "", ""]
    machine.pass_time(5, p100=150)
    assert others.note() == ""
    machine.pass_time(5, p100=95, p7=100)
    assert others.note() == ""
    machine.pass_time(5, p100=95, p7=100)
    assert others.note() == told


def test_our_own_processes_are_no_other_work(machine) -> None:
    machine.start(101, 100, "a worker")
    machine.start(102, 101, "its child")
    others = OtherWork()
    machine.pass_time(5, p100=40, p101=80, p102=80)
    assert others.note() == ""
    machine.pass_time(5, p100=40, p101=80, p102=80)
    machine.end(102)
    machine.pass_time(1, p100=200)
    assert others.note() == ""
    machine.pass_time(5, p100=200)
    assert others.note() == ""


def test_other_ranks_are_no_other_work(machine, monkeypatch) -> None:
    machine.start(101, 1, "rank 1")
    found = {}
    for ranks in ("2", "1"):
        monkeypatch.setenv("WORLD_SIZE", ranks)
        others = OtherWork()
        machine.pass_time(5, p100=100, p101=100)
        others.note()
        machine.pass_time(5, p100=100, p101=100)
        found[ranks] = others.note()
    assert found["2"] == ""
    assert "rank 1 (process 101) 1.0 of them" in found["1"]


def test_other_guests_of_the_host_have_no_name(machine) -> None:
    others = OtherWork()
    for _ in range(2):
        machine.pass_time(5, p100=120, stolen=80)
        note = others.note()
    assert note == "the machine is busy: other work uses 0.8 of its 2 cores; this run is slower for it"


@pytest.mark.parametrize(
    ("variables", "is_told"),
    [
        ({"OMP_NUM_THREADS": "1"}, False),  # two runs, one thread each
        ({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}, True),
        ({"OMP_NUM_THREADS": "2"}, True),
        ({}, True),
    ],
)
def test_runs_that_share_the_cores_say_nothing(machine, monkeypatch, variables, is_told) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    machine.start(7, 1, "the other run")
    others = OtherWork()
    for _ in range(2):
        machine.pass_time(5, p100=100, p7=100)
        note = others.note()
    assert bool(note) == is_told


def test_idle_cores_are_enough(machine) -> None:
    machine.start(7, 1, "another")
    others = OtherWork()
    for _ in range(3):
        machine.pass_time(5, p100=50, p7=100)
        assert others.note() == ""


def test_the_load_is_what_others_take(machine, monkeypatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    clock = iter([10.0, 15.0, 25.0])  # seconds of processor time that this process has had
    monkeypatch.setattr("time.process_time", lambda: next(clock))
    machine.start(7, 1, "another")
    load = Load()
    machine.pass_time(5, p100=100, p7=60)
    assert load.others() == pytest.approx(0.6)
    machine.pass_time(5, p100=200)
    assert load.others() == 0


def test_without_proc_nothing_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cores, "PROC", tmp_path / "absent")
    assert OtherWork().note() == ""
    assert Load().others() == 0


@pytest.fixture
def neighbours() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Fill all cores, and one more, with processes of others: they are not children of the process that looks."""
    count = len(cores.own_cores()) + 1
    running = [subprocess.Popen([sys.executable, "-c", ENDLESS], start_new_session=True) for _ in range(count)]
    yield running
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_real_process_is_noticed(neighbours) -> None:
    program = (
        "import time\n"
        "from nanochat.cores import OtherWork\n"
        "others = OtherWork()\n"
        f"end = time.monotonic() + {LONGEST}\n"
        "note = ''\n"
        "while not note and time.monotonic() < end:\n"
        "    until = time.monotonic() + 0.3\n"
        "    while time.monotonic() < until: pass\n"
        "    note = others.note()\n"
        "print(note)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=2 * LONGEST,
    )
    assert done.stdout.startswith("the machine is busy: other work uses ")
    assert "(process " in done.stdout


def test_a_contained_program_may_have_the_threads_that_its_libraries_start(monkeypatch) -> None:
    for cpus, most in ((2, 64), (8, 64), (128, 544)):
        monkeypatch.setattr(os, "cpu_count", lambda cpus=cpus: cpus)
        assert most_threads(64) == most
