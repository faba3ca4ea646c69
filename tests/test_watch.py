"""A rank that dies, stops or does not start: the others name it, and end within a minute. One that fails says why."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial

import pytest
from base_runs import Base
from conftest import ROOT

from nanochat import watch


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return Base(tmp_path_factory.mktemp("base"))


def free_port():
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


def quick() -> None:
    """As if the clock of the heartbeat were ten times as fast."""
    watch.BEAT_SECONDS = 0.2


def patient() -> None:
    """Silence without a second sign does not count within the time of a test."""
    quick()
    watch.SILENT_BEATS = 10_000


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, 0], ids=["killed", "stopped", "store"])
def test_a_rank_that_dies_or_stops_ends_the_others_which_name_it(base, number) -> None:
    tag = f"lost-{number:d}"
    job = base.start(tag, "--num-iterations=100000", "--eval-every=-1", "--save-every=-1", ranks=4, before=quick)
    base.wait_for(tag, 2)
    if number:
        job.signal(number, rank=1)
        sentence = f"error: rank 1 on {os.uname().nodename} has not answered since "
    else:
        job._store = None  # it closes its socket, like a machine that has failed
        sentence = "error: the store of the ranks does not answer: "
    for rank in (0, 2, 3):
        job.processes[rank].join(60)
        assert job.processes[rank].exitcode == 1
        assert sentence in job.err(rank)
    job.kill()


def without_rank(missing: str) -> None:
    quick()
    if os.environ["RANK"] == missing:
        os._exit(1)
    if missing == "0":  # it would hold the store
        os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": f"{free_port()}"}


@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_that_does_not_start_is_named(base, missing) -> None:
    job = base.start("absent", ranks=2, before=partial(without_rank, f"{missing}"))
    other = job.processes[1 - missing]
    other.join(60)
    assert (other.exitcode, f"error: rank {missing} has not started" in job.err(1 - missing)) == (2 - missing, True)
    job.kill()


# ---- a rank that fails alone ----

# Raised on rank 1 while rank 0 waits in a collective -> (exit code, what all logs say).
FAILURES = {
    "memory": ("torch.OutOfMemoryError('CUDA out of memory with one row')", 1, "CUDA out of memory with one row"),
    "cuda": ("RuntimeError('CUDA error: an illegal memory access')", 1, "CUDA error: an illegal memory access"),
    "file": ("FileNotFoundError(2, 'No such file', '/data/shard')", 1, "/data/shard: No such file"),
    "hub": ("__import__('nanochat.data.hub').data.hub.HubError('the hub is away')", 2, "the hub is away"),
    "assertion": ("AssertionError('five is four')", 1, "AssertionError: five is four"),
    "defect": ("KeyError('n_layer')", 1, "KeyError: 'n_layer'"),
    "flag": ("__import__('nanochat.errors').errors.UserError('write --depth=4')", 2, "write --depth=4"),
    "nccl": ("RuntimeError('NCCL error: unhandled system error')", 1, "NCCL error: unhandled system error"),
    "exit": ("SystemExit(3)", 3, "exit code 3"),
}
# destroy_process_group waits as under NCCL, where other ranks wait in a collective.
PROGRAM = """
import sys, time
import torch
import torch.distributed as dist
from nanochat.config import options, run_script
from nanochat.runtime import setup

dist.destroy_process_group = lambda: time.sleep(600)

@options()
class Config:
    pass

def main(config: Config) -> None:
    with setup("cpu") as runtime:
        runtime.all_gather(0)
        if runtime.rank == 1:
            raise FAILURE
        runtime.all_gather(1)

if __name__ == "__main__":
    run_script(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the state of a process is in /proc")
def test_ranks_that_are_stopped_end_soon_and_one_is_named(base) -> None:
    """Long before silence alone would count; it goes on, so that nobody waits for it, and says why too."""
    tag = "stopped-here"
    job = base.start(tag, "--num-iterations=100000", "--eval-every=-1", "--save-every=-1", ranks=4, before=patient)
    base.wait_for(tag, 2)
    for rank in (1, 2):
        job.signal(signal.SIGSTOP, rank=rank)
    assert job.codes(60) == [1] * 4
    for rank in range(4):
        [line] = [line for line in job.err(rank).splitlines() if "error: " in line]
        assert re.fullmatch(r"error: rank [12] on \S+ has not answered since .*: its process was stopped", line)


def run_program(text: str) -> None:
    quick()
    exec(text, {"__name__": "__main__"})


@pytest.mark.parametrize(("error", "code", "reason"), FAILURES.values(), ids=FAILURES)
def test_the_reason_of_a_rank_that_fails_alone_is_in_all_logs(base, monkeypatch, error, code, reason) -> None:
    monkeypatch.setattr("sys.argv", ["program"])
    job = base.fork(run_program, PROGRAM.replace("FAILURE", error), ranks=3)
    assert job.codes(60) == [code] * 3
    for rank in (0, 2):
        assert re.fullmatch(f"error: rank 1 has failed: (.*: )?{reason}", job.err(rank).splitlines()[-1])
    assert reason in job.err(1) or error.startswith("SystemExit")  # whoever raises that has printed why


def test_the_reason_is_the_last_line_though_a_collective_fails_meanwhile(base, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["program"])
    job = base.fork(leave_slowly, PROGRAM.replace("FAILURE", "KeyError('n_layer')"), ranks=2)
    assert job.codes(60) == [1] * 2
    assert job.err(0).splitlines()[-1] == "error: rank 1 has failed: KeyError: 'n_layer'"


def leave_slowly(text: str) -> None:
    """Run a program whose rank 0 is still there for a while after rank 1 has left."""
    if os.environ["RANK"] == "0":
        leave = watch._leave

        def leave_late(code: int) -> None:
            time.sleep(2)
            leave(code)

        watch._leave = leave_late
    run_program(text)


def test_under_torchrun_all_logs_have_the_reason(tmp_path) -> None:
    """torchrun ends the other ranks as soon as it sees that one has ended."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("FAILURE", FAILURES["memory"][0]), encoding="utf-8")
    command = [
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        "--redirects=3",
        "--log-dir=logs",
        "program.py",
    ]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{ROOT}", "NANOCHAT_BASE_DIR": f"{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode
    assert "CUDA out of memory with one row" in done.stderr[-1200:]  # torchrun's own last lines
    for rank in (0, 1):
        [log] = (tmp_path / "logs").rglob(f"{rank}/stderr.log")
        assert "CUDA out of memory with one row" in log.read_text(encoding="utf-8").splitlines()[-1]
