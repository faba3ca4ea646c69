"""Several nodes: two on this machine, of two gloo ranks each, under torchrun and a few lines in the place of Slurm."""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from base_runs import Base, files_of
from conftest import ROOT, copy_runs
from copies import BEING_COMPILED
from test_speedrun import until

from nanochat.paths import saved_steps

STEPS = 60  # after a few of them the run must still have a second's work to do
LONG = f"--num-iterations={STEPS}"
# In the place of scripts.plan: a check of nothing, and a short base training. test_plan.py has the plan of nodes.
PLAN = """
import os
from dataclasses import replace
from nanochat.jobs.plan import STEPS
from nanochat.jobs.runner import TORCHRUN, Job, Step
launch = TORCHRUN[:2]
checks = Step("preflight", ["nanochat_preflight"], launch=[*launch, "--max-restarts=0"])
train = Step("base_train", ["scripts.base_train", *open("flags").read().split("\\n")], "base_train/nodes")
train = replace(train, launch=launch)
others = [Step(name, [], skip="this is a test") for name in STEPS if name != "base_train"]
job = Job("speedrun", "nodes", [checks, train, *others], resume="bash speedrun.sh")
job.save()
os.write(4, str(job.folder).encode())
"""
PREFLIGHT = "import os\nprint('checked by rank', os.environ['RANK'])\n"
# Starts a task for each node, passes SIGUSR1 on to all their processes, and ends with the first that fails.
SRUN = """
import os, signal, subprocess, sys, time
start = next(number for number, word in enumerate(sys.argv) if number and not word.startswith("--"))
count = int(os.environ["SLURM_JOB_NUM_NODES"])
nodes = [subprocess.Popen(sys.argv[start:], env=os.environ | {"SLURM_NODEID": str(node)}) for node in range(count)]
def descend(pid):
    yield pid
    for child in open(f"/proc/{pid}/task/{pid}/children").read().split():
        yield from descend(int(child))
signal.signal(signal.SIGUSR1, lambda *_: [os.kill(pid, 10) for node in nodes for pid in list(descend(node.pid))])
while any(node.poll() is None for node in nodes) and not any(node.poll() for node in nodes):
    time.sleep(0.05)
time.sleep(2 * any(node.returncode for node in nodes))
for node in nodes:
    node.kill()
sys.exit(max(abs(node.wait()) * (node.returncode > 0) for node in nodes))
"""
SCONTROL = 'if [ "$1" = requeue ]; then echo "$2" >>requeued; else printf "localhost\\nother\\n"; fi'


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """With a run of four ranks that nothing disturbs, `straight`, and the folder of the checkout that nodes share."""
    base = Base(tmp_path_factory.mktemp("base"))
    base.run("straight", LONG, ranks=4)
    home = base.folder / "a checkout"
    for folder in ("nanochat", "scripts", "tasks", "tracks"):
        shutil.copytree(ROOT / folder, home / folder, ignore=BEING_COMPILED)
    (home / "scripts/plan.py").write_text(PLAN)
    (home / "nanochat_preflight.py").write_text(PREFLIGHT)
    shutil.copy(ROOT / "speedrun.sh", home)
    python = f'#!/bin/sh\nexec "{sys.executable}" "$@"'
    copy_runs(
        home,
        {
            ".venv/bin/python": python,
            "bin/srun": f"#!{sys.executable}\n{SRUN}",
            "bin/scontrol": f"#!/bin/sh\n{SCONTROL}",
        },
    )
    return base


class Script:
    """A script in a session of its own in the checkout of a base folder, as one node or, through a launcher, as two."""

    def __init__(self, base: Base, *words: str, flags: Sequence[str] = (), **variables: str) -> None:
        self.base, self.home = base, base.folder / "a checkout"
        (self.home / "flags").write_text("\n".join(base.flags("nodes", "--sample-every=-1", *flags)))
        ours = {"NANOCHAT_BASE_DIR": str(base.folder), "OMP_NUM_THREADS": "1", "PET_NPROC_PER_NODE": "2"}
        ours |= {"PATH": f"{self.home}/bin:{os.environ['PATH']}", "PYTHONPATH": str(self.home)}
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("NANOCHAT_", "PYTHON"))}
        base.jobs += 1
        self.file = base.folder / f"script-{base.jobs}.out"
        with open(self.file, "w") as out:
            about = {"cwd": self.home, "stdout": out, "stderr": subprocess.STDOUT, "start_new_session": True}
            self.process = subprocess.Popen(words, env=clean | ours | variables, **about)

    def processes(self, *marks: str) -> Iterator[int]:
        """Yield the processes of the base folder, of all nodes, with these marks in environment and command."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                text = b"\0".join((folder / name).read_bytes() for name in ("environ", "cmdline")).decode()
                if all(mark in text for mark in (f"NANOCHAT_BASE_DIR={self.base.folder}\0", *marks)):
                    yield int(folder.name)

    def ends(self, code: int = 0, timeout: float = 200) -> str:
        """Return the output, once it has ended with this code; whatever happens, it does not outlive the test."""
        try:
            assert self.process.wait(timeout) == code, self.file.read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.file.read_text()


def two_nodes(base: Base, script: str, *flags: str, **variables: str) -> list[Script]:
    """Start a script on two nodes, which differ in NODE."""
    return [Script(base, "bash", "-c", script, flags=flags, NODE=f"{node}", **variables) for node in range(2)]


def sky(base: Base, *flags: str) -> list[Script]:
    section = yaml.safe_load((ROOT / "tracks/scale/sky.yaml").read_text())["run"].replace("29500", f"{free_port()}")
    variables = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "localhost\n127.0.0.2", "FLAGS": "--tag=nodes"}
    return two_nodes(base, f"export SKYPILOT_NODE_RANK=$NODE\n{section}", *flags, **variables)


def slurm(base: Base, *flags: str, nodes: int = 2) -> Script:
    variables = {
        "SLURM_SUBMIT_DIR": str(base.folder / "a checkout"),
        "SLURM_JOB_NODELIST": "two",
        "SLURM_JOB_NUM_NODES": f"{nodes}",
        "SLURM_JOB_ID": f"{free_port() - 20000}",
    }
    return Script(base, "bash", "tracks/scale/slurm.sh", "--tag=nodes", flags=flags, **variables)


def kill_a_rank(script: Script, chance: random.Random, most: int = 1500):
    """Kill a rank once the log of the training has grown by some bytes: a step writes 300."""
    log = script.base.of("nodes") / "metrics.jsonl"
    enough = log.stat().st_size + chance.randrange(200, most) if log.exists() else 200
    until(lambda: log.exists() and log.stat().st_size > enough, "a step")
    pids = script.processes("scripts.base_train", f"\0RANK={chance.randrange(4)}\0")
    os.kill(min(pids), signal.SIGKILL)  # a rank has helpers with the same environment


def test_slurm_saves_and_requeues_and_sky_ends_the_run_though_a_rank_is_killed(base, seed) -> None:
    job = slurm(base, LONG)
    base.wait_for("nodes", 1)  # a machine that is busy hears late of it, and the run has 20 steps
    job.process.send_signal(signal.SIGUSR1)
    said = job.ends()
    assert [f"checked by rank {rank}" in said for rank in range(4)] == [True] * 4
    stopped = int(re.search(r"stopped by a signal after step (\d+)", said)[1])
    assert saved_steps(base.of("nodes"))[-1] == stopped < STEPS
    assert (job.home / "requeued").read_text().strip().isdigit()

    head, other = sky(base, LONG)
    kill_a_rank(head, random.Random(seed))
    said = head.ends() + other.ends()
    assert said.count("ranks: 4, precision: fp32") >= 2  # torchrun has started all of them again
    assert files_of(base.of("nodes"), STEPS) == files_of(base.of("straight"), STEPS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fewer_nodes_go_on_and_one_node_of_slurm_saves_and_requeues(base) -> None:
    longer = ["--num-iterations=300", "--eval-every=-1"]
    for name in ("nodes", "long"):
        shutil.rmtree(base.of(name), ignore_errors=True)
    base.run("long", *longer, ranks=4)
    asked = {"NANOCHAT_NODES": "1:2", "NANOCHAT_HEAD": f"localhost:{free_port()}"}
    head, other = two_nodes(base, NODES, *longer, **asked)
    base.wait_for("nodes", 4)
    for pid in other.processes("\0NODE=1\0"):
        os.kill(pid, signal.SIGKILL)
    until(lambda: "ranks: 2, precision" in head.file.read_text(), "a start of one node")
    head.ends()
    assert base.losses("nodes") == pytest.approx(base.losses("long"), abs=1e-2)

    shutil.rmtree(base.of("nodes"))
    job = slurm(base, *longer, nodes=1)
    base.wait_for("nodes", 4)
    job.process.send_signal(signal.SIGUSR1)
    stopped = int(re.search(r"stopped by a signal after step (\d+)", job.ends())[1])
    assert saved_steps(base.of("nodes"))[-1] == stopped < 300


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_ten_random_moments_it_ends_with_the_same_weights(base, seed) -> None:
    chance, longer = random.Random(seed), "--num-iterations=200"
    for name in ("nodes", "long"):
        shutil.rmtree(base.of(name), ignore_errors=True)
    base.run("long", longer, ranks=4)
    for _ in range(5):
        head, _ = sky(base, longer)
        kill_a_rank(head, chance, 4000)  # torchrun starts all ranks again
        kill_a_rank(head, chance, 4000)
        for pid in head.processes("NANOCHAT_NODES=2"):
            os.kill(pid, signal.SIGKILL)
    for script in sky(base, longer):
        script.ends()
    assert files_of(base.of("nodes"), 200) == files_of(base.of("long"), 200)


NODES = "NANOCHAT_NODE_RANK=$NODE exec bash speedrun.sh --tag=nodes"
REFUSED = """
NANOCHAT_NODES=two | error: NANOCHAT_NODES=two is not a number of nodes (2) or a range (1:2)
NANOCHAT_NODES=3 | error: NANOCHAT_NODES=3: use a power of two, as the rows of a batch are
NANOCHAT_HEAD=node-a | error: several nodes need NANOCHAT_HEAD, the address HOST:PORT of node 0
NANOCHAT_BASE_DIR= | error: several nodes need NANOCHAT_BASE_DIR, a folder that all of them share
NANOCHAT_HEAD=localhost:TAKEN | error: port TAKEN of localhost is in use: use another in NANOCHAT_HEAD
"""


@pytest.mark.parametrize("case", REFUSED.strip().splitlines())
def test_bad_input_is_one_sentence_of_each_node_that_has_it(base, case) -> None:
    with socket.create_server(("localhost", 0)) as server:
        setting, sentence = case.replace("TAKEN", str(server.getsockname()[1])).split(" | ")
        name, value = setting.split("=")
        asked = {"NANOCHAT_NODES": "2", "NANOCHAT_HEAD": f"localhost:{free_port()}", "NANOCHAT_PATIENCE": "3"}
        asked |= {name: value}
        said = [script.ends(2, timeout=30) for script in two_nodes(base, NODES, **asked)]
    own = "" if name == "NANOCHAT_HEAD" and "TAKEN" in case else sentence.replace("error: ", "error: node 1: ") + "\n"
    assert said == [sentence + "\n", own]


def test_a_folder_that_is_not_shared_and_a_head_that_is_silent(base, tmp_path) -> None:
    asked = {"NANOCHAT_NODES": "2", "NANOCHAT_HEAD": f"localhost:{free_port()}", "NANOCHAT_PATIENCE": "3"}
    head, other = two_nodes(base, f"NANOCHAT_BASE_DIR={tmp_path}/$NODE {NODES}", **asked)
    assert "error: 1 of 2 nodes wrote to " in head.ends(2)
    assert "error: node 1: for 8 s the head has not written to " in other.ends(2)
