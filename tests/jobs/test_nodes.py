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
import time
from pathlib import Path

import pytest
import yaml
from base_runs import STEPS, Base, files_of
from conftest import ROOT, copy_runs

from nanochat.checkpoint import steps

# In the place of scripts.plan: a check of nothing, and a short base training. test_plan.py has the plan of nodes.
PLAN = """
import os, sys
from nanochat.jobs.plan import STEPS
from nanochat.jobs.runner import TORCHRUN, Job, Step
launch = TORCHRUN[:2]
checks = Step("preflight", ["nanochat_preflight"], launch=[*launch, "--max-restarts=0"])
train = Step("base_train", ["scripts.base_train", *open("flags").read().split("\\n")], "base_train/nodes", launch=launch)
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
nodes = [subprocess.Popen(sys.argv[start:], env=os.environ | {"SLURM_NODEID": str(node)}) for node in range(2)]
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


def free_port():
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """With a run of four ranks that nothing disturbs, `straight`, and the folder of the checkout that nodes share."""
    base = Base(tmp_path_factory.mktemp("base"))
    base.run("straight", ranks=4)
    home = base.folder / "a checkout"
    for folder in ("nanochat", "scripts", "tasks"):
        shutil.copytree(ROOT / folder, home / folder, ignore=shutil.ignore_patterns("__pycache__"))
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

    def __init__(self, base: Base, *words: str, **variables: str):
        self.base, self.home = base, base.folder / "a checkout"
        (self.home / "flags").write_text("\n".join(base.flags("nodes", "--sample-every=-1")))
        ours = {"NANOCHAT_BASE_DIR": str(base.folder), "OMP_NUM_THREADS": "1", "PET_NPROC_PER_NODE": "2"}
        ours |= {"PATH": f"{self.home}/bin:{os.environ['PATH']}", "PYTHONPATH": str(self.home)}
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("NANOCHAT_", "PYTHON"))}
        base.jobs += 1
        self.file = base.folder / f"script-{base.jobs}.out"
        with open(self.file, "w") as out:
            about = {"cwd": self.home, "stdout": out, "stderr": subprocess.STDOUT, "start_new_session": True}
            self.process = subprocess.Popen(words, env=clean | ours | variables, **about)

    def rank(self, number: int):
        """Return the process of a rank that trains, of whichever node."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environ, command = ((folder / name).read_bytes() for name in ("environ", "cmdline"))
                marks = (f"NANOCHAT_BASE_DIR={self.base.folder}\0", f"\0RANK={number}\0")
                if b"base_train" in command and all(mark.encode() in environ for mark in marks):
                    return int(folder.name)
        return None

    def ends(self, code: int = 0, timeout: float = 200):
        """Return the output, once it has ended with this code; whatever happens, it does not outlive the test."""
        try:
            assert self.process.wait(timeout) == code, self.file.read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.file.read_text()


def two_nodes(base: Base, script: str, **variables: str):
    """Start a script on two nodes, which differ in NODE."""
    return [Script(base, "bash", "-c", script, NODE=f"{node}", **variables) for node in range(2)]


def sky(base: Base):
    section = yaml.safe_load((ROOT / "runs/sky.yaml").read_text())["run"].replace("29500", f"{free_port()}")
    variables = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "localhost\n127.0.0.2", "FLAGS": "--tag=nodes"}
    return two_nodes(base, f"export SKYPILOT_NODE_RANK=$NODE\n{section}", **variables)


def slurm(base: Base):
    variables = {
        "SLURM_SUBMIT_DIR": str(base.folder / "a checkout"),
        "SLURM_JOB_NODELIST": "two",
        "SLURM_JOB_NUM_NODES": "2",
    }
    return Script(base, "bash", "runs/slurm.sh", "--tag=nodes", SLURM_JOB_ID=f"{free_port() - 20000}", **variables)


def kill_a_rank(script: Script, chance: random.Random, step: int):
    """Kill a rank at a random moment after a step."""
    script.base.wait_for("nodes", step)
    time.sleep(chance.uniform(0, 0.3))
    os.kill(script.rank(chance.randrange(4)), signal.SIGKILL)


def test_slurm_saves_and_requeues_and_sky_ends_the_run_though_a_rank_is_killed(base, seed):
    job = slurm(base)
    base.wait_for("nodes", 4)
    job.process.send_signal(signal.SIGUSR1)
    said = job.ends()
    assert [f"checked by rank {rank}" in said for rank in range(4)] == [True] * 4
    stopped = int(re.search(r"stopped by a signal after step (\d+)", said)[1])
    assert steps(base.of("nodes"))[-1] == stopped < STEPS
    assert (job.home / "requeued").read_text().strip().isdigit()

    head, other = sky(base)
    kill_a_rank(head, random.Random(seed), stopped + 2)
    said = head.ends() + other.ends()
    assert said.count("ranks: 4, precision: fp32") >= 2  # torchrun has started all of them again
    assert files_of(base.of("nodes")) == files_of(base.of("straight"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_ten_random_moments_it_ends_with_the_same_weights(base, seed):
    chance = random.Random(seed)
    shutil.rmtree(base.of("nodes"), ignore_errors=True)
    for number in range(5):
        nodes = sky(base)
        for step in (3 * number + 1, 3 * number + 3):
            kill_a_rank(nodes[0], chance, step)
        base.wait_for("nodes", 3 * number + 4)
        for node in nodes:  # a power cut
            for pid in (*descendants(node.process.pid), node.process.pid):
                os.kill(pid, signal.SIGKILL)
