"""Work done once a node: real ranks under torchrun, and two nodes on one store."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bad_hub import BadHub

from nanochat.data.hub import once_a_node

ROOT = Path(__file__).parents[2]
# One download that takes a while, then two that cannot be had.
FETCH = """
import os, sys, time
import torch, torch.distributed as dist
from nanochat import runtime
from nanochat.data import hub
hub.FIRST_WAIT, runtime.WAIT_NOTICE_SECONDS = 0.05, 0.5
rank = os.environ["RANK"]
[found] = hub.fetch([hub.HubFile("a.bin", "some/set")])
dist.init_process_group("gloo")
size = torch.tensor([found.path.stat().st_size])
dist.all_reduce(size)
print(f"rank {rank} has {found.origin}, together {size.item()}", flush=True)
start = time.monotonic()
try:
    hub.fetch([hub.HubFile(path, "some/set") for path in ("gone.bin", "a.bin", "lost.bin")])
except ValueError as error:
    print(f"rank {rank} failed after {time.monotonic() - start:.1f} s: {error}", flush=True)
    time.sleep(1)  # torchrun ends the others with the first: let each have its say
    raise SystemExit(2)
"""


@pytest.fixture
def hub():
    with BadHub({"a.bin": b"a" * 1000}) as running:
        yield running
        running.shutdown()


def environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    ours = ("NANOCHAT_", "HF_", "RANK", "WORLD_SIZE", "TORCHELASTIC", "MASTER_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return env | {"PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "cache"), "NO_PROXY": "127.0.0.1"} | variables


def test_one_rank_fetches_for_all_and_fails_for_all(tmp_path, hub):
    hub.faults["GET", "a.bin"] += ["drip"]
    script = tmp_path / "fetch.py"
    script.write_text(FETCH)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", script]
    env = environment(tmp_path, HF_ENDPOINT=hub.address, OMP_NUM_THREADS="1")
    start = time.monotonic()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert "rank 0 has hub, together 2000" in done.stdout, done.stdout + done.stderr
    assert "rank 1 has hub, together 2000" in done.stdout
    assert "rank 1 waits for 1 files" in done.stdout
    assert "rank 0 waits" not in done.stdout
    assert hub.count("GET") == 1

    assert done.returncode != 0
    for rank in (0, 1):
        said = done.stdout.partition(f"rank {rank} failed after ")[2]
        assert float(said.split()[0]) < 15, done.stdout + done.stderr
        assert "2 of 3 files are not available:\n" in said
        for name in ("gone.bin", "lost.bin"):
            assert f"datasets/some/set/{name}: HTTP 404: it does not exist" in said
    assert time.monotonic() - start < 60


NODE = """
import sys
from nanochat.data.hub import once_a_node
print(once_a_node("the work", lambda: {"made": sys.argv[1]}))
def work():
    if sys.argv[1] == "two":
        raise ValueError("its disk is full")
try:
    once_a_node("more work", work)
except ValueError as error:
    print(f"ValueError: {error}")
"""


def test_every_node_works_and_one_fails_for_all(tmp_path):
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True)
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    agent |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "GROUP_WORLD_SIZE": "2"}
    processes = []
    for node, name in enumerate(["one", "two"]):
        ranks = {"WORLD_SIZE": "2", "RANK": str(node), "GROUP_RANK": str(node), "LOCAL_RANK": "0"}
        command = [sys.executable, "-c", NODE, name]
        env = environment(tmp_path, **agent, **ranks)
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    failure = "ValueError: its disk is full"
    assert said == [["{'made': 'one'}", failure], ["{'made': 'two'}", failure]]


def test_alone_the_work_is_just_done(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    assert once_a_node("the work", lambda: [1]) == [1]
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert json.dumps(once_a_node("the work", lambda: {"a": None})) == '{"a": null}'
