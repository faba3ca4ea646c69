"""Several nodes: two of them on this machine, with two gloo ranks each, under torchrun, a Slurm and a SkyPilot of a few lines."""

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
from base_runs import STEPS, Base, files_of
from conftest import ROOT, copy_runs
from test_speedrun import until

from nanochat.paths import read_json

# In the place of scripts.plan: a check of nothing, and a short base training. tests/jobs/test_plan.py has the plan of nodes.
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
time.sleep(3 * any(node.returncode for node in nodes))
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
    copy_runs(home, {".venv/bin/python": python, "bin/srun": f"#!{sys.executable}\n{SRUN}", "bin/scontrol": f"#!/bin/sh\n{SCONTROL}"})
    return base


class Nodes:
    """Processes in a session of their own, in the checkout of a base folder; what they print is in `name.out`."""

    def __init__(self, base: Base, *words: str, name: str, tag: str = "nodes", **variables: str):
        home = base.folder / "a checkout"
        (home / "flags").write_text("\n".join(base.flags("nodes", "--sample-every=-1")))
        ours = {"NANOCHAT_BASE_DIR": str(base.folder), "OMP_NUM_THREADS": "1", "PET_NPROC_PER_NODE": "2"}
        ours |= {"PATH": f"{home}/bin:{os.environ['PATH']}", "PYTHONPATH": str(home), "PYTHONDONTWRITEBYTECODE": ""}
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("NANOCHAT_", "PYTEST_"))}
        self.out_file = base.folder / f"{name}.out"
        with open(self.out_file, "w") as out:
            about = {"cwd": home, "stdout": out, "stderr": subprocess.STDOUT, "start_new_session": True}
            self.process = subprocess.Popen(words, env=clean | ours | variables, **about)

    def out(self):
        return self.out_file.read_text()

    def ranks(self):
        """Return rank -> process of the training that runs."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environ = (folder / "environ").read_bytes()
                command = (folder / "cmdline").read_bytes()
                if str(self.out_file.parent).encode() in environ and b"scripts.base_train" in command:
                    rank = re.search(rb"\0RANK=(\d+)\0", b"\0" + environ)
                    if rank:
                        found[int(rank[1])] = int(folder.name)
        return found

    def ends(self, code: int = 0, timeout: float = 150):
        try:
            assert self.process.wait(timeout) == code, self.out()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.out()


def slurm(base: Base, name: str, number: int = 1):
    variables = {"SLURM_SUBMIT_DIR": str(base.folder / "a checkout"), "SLURM_JOB_NODELIST": "two", "SLURM_JOB_ID": str(number)}
    return Nodes(base, "bash", "runs/slurm.sh", "--tag=nodes", name=name, SLURM_JOB_NUM_NODES="2", **variables)


def test_slurm_stops_and_requeues_and_sky_goes_on_though_a_rank_is_killed(base, seed):
    job = slurm(base, "slurm", free_port() - 20000)
    base.wait_for("nodes", 4)
    job.process.send_signal(signal.SIGUSR1)
    said = job.ends()
    print(said)
    assert (base.folder / "a checkout/requeued").exists()
