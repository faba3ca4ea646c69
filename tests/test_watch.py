"""A rank that dies, stops or does not start: the others name it, and end within a minute."""

import os
import signal
import socket
from functools import partial

import pytest
from base_runs import Base

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
