"""Engines: chains of tiny steps on this machine, on a Ray cluster of two nodes, and with a fake sbatch."""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import get_args

import pytest
from test_speedrun import until

from nanochat.jobs import runner
from nanochat.jobs.runner import Job, Step
from nanochat.paths import read_json, write_text
from tracks.lab import engines
from tracks.lab.engines import ENGINES, EngineName
from tracks.lab.tests.made_labs import write_sbatch

# A stage in one file: waits for others if asked, fails if asked, and leaves an outcome.
STAGE = """
import os, sys, time
from pathlib import Path
from nanochat.outcome import Outcome
from nanochat.paths import base_dir
name, *flags = sys.argv[1:]
home = base_dir() / "tiny" / name
home.mkdir(parents=True, exist_ok=True)
with open(home / "began", "a") as file:
    file.write(os.environ.get("OMP_NUM_THREADS", "") + ":" + os.environ.get("CUDA_VISIBLE_DEVICES", "") + "\\n")
end = time.monotonic() + 120
while "--wait" in flags and not (base_dir() / "go").exists() and time.monotonic() < end:
    time.sleep(0.05)
if "--fail" in flags:
    sys.exit("error: it was asked to fail")
moment = "2026-11-20T12:00:00+00:00"
Outcome(stage="tiny", tag=name, started=moment, timestamp=moment, command="", config={}, card=[], versions={},
    environment={}).write()
"""


@pytest.fixture
def job(base, tmp_path, monkeypatch) -> Callable[..., tuple[Job, list[list[Step]]]]:
    """A function that makes a saved job with chains; flags of each step by name."""
    write_text(tmp_path / "stages/tiny_stage.py", STAGE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/stages:{runner.ROOT}", prepend=os.pathsep)

    def make(*chains: dict[str, str]) -> tuple[Job, list[list[Step]]]:
        made = [
            [Step(name, ["tiny_stage", name, *flags.split()], f"tiny/{name}") for name, flags in chain.items()]
            for chain in chains
        ]
        own = Job("lab", "t", [step for chain in made for step in chain])
        own.save()
        return own, made

    return make


def began(job: Job, name: str) -> list[str]:
    """Return a line for each start of a step: its threads and its GPUs."""
    return (job.folder.parents[1] / "tiny" / name / "began").read_text().splitlines()


def test_a_chain_that_fails_ends_and_the_others_go_on(job) -> None:
    own, chains = job({"a": "", "b": ""}, {"c": "--fail", "d": ""}, {"e": ""})
    assert ENGINES["local"](own, chains, 1, 0) == 1
    assert sorted(path.name for path in (own.folder.parents[1] / "tiny").iterdir()) == ["a", "b", "c", "e"]
    # Finished steps are skipped, and the failed one is tried again.
    assert ENGINES["local"](own, chains, 1, 0) == 1
    assert [len(began(own, name)) for name in "abce"] == [1, 1, 2, 1]


def test_chains_side_by_side_share_cores_and_gpus(job, monkeypatch) -> None:
    """The first step waits until the other chain has ended. No GPU is needed: its number is a word for the steps."""
    own, chains = job({"a": "--wait"}, {"b": "", "c": ""})
    base = own.folder.parents[1]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(engines, "gpu_names", lambda: ["3", "5", "6", "7"])
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    with pytest.raises(ValueError, match="--jobs=3 with --gpus=2 needs 6 GPUs, there are 4 here"):
        ENGINES["local"](own, chains, 3, 2)

    def open_gate() -> None:
        until((base / "tiny/c/outcome.json").exists, "the end of the other chain")
        (base / "go").touch()

    with ThreadPoolExecutor() as pool:
        opened = pool.submit(open_gate)
        assert ENGINES["local"](own, chains, 2, 2) == 0
        opened.result()
    shares = [began(own, name) for name in "abc"]
    assert sorted(shares[:2]) == [["4:3,5"], ["4:6,7"]]
    assert shares[1] == shares[2]


def test_slurm_runs_an_array(job, tmp_path, monkeypatch) -> None:
    own, chains = job({"a": "", "b": ""}, {"c": "--fail"}, {"e": ""})
    fake = tmp_path / "bin/sbatch"
    write_sbatch(fake.parent)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=os.pathsep)
    assert ENGINES["slurm"](own, chains, 2, 4) == 1
    script = (own.folder / "array.sh").read_text()
    assert "--array=0-2%2" in script
    assert "#SBATCH --requeue" in script
    assert "--gpus-per-node=4" in script
    assert read_json(own.record(chains[0][1]))["finished"]
    assert ENGINES["slurm"](own, chains, 2, 4) == 1
    changed = [[replace(step, command=[*step.command, "--more"]) for step in chain] for chain in chains]
    fake.write_text("#!/usr/bin/env bash\nexit 1\n")  # nothing has run: results of other commands do not count
    assert ENGINES["slurm"](replace(own, steps=[step for chain in changed for step in chain]), changed, 2, 4) == 3
    assert [len(began(own, name)) for name in "abce"] == [1, 1, 2, 1]


def test_ray_goes_on_without_a_killed_node(job, monkeypatch) -> None:
    """A cluster of two nodes; that of a waiting step is killed, and the step begins again on the other."""
    pytest.importorskip("ray", reason="Ray is an extra: pip install ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        # No room for chains beside the cluster's own processes.
        cluster.add_node(num_cpus=0)
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        own, chains = job({"a": "--wait"}, {"b": "--wait"}, {"c": ""})
        base = own.folder.parents[1]

        def kill_a_node() -> None:
            until(lambda: all((base / "tiny" / name / "began").exists() for name in "ab"), "the first steps")
            cluster.remove_node(nodes[0], allow_graceful=False)
            # One step has ended with its node; the other needs the room on the second node until the gate is open.
            locks = [str(own.folder / f"{name}.lock") for name in "ab"]
            until(lambda: any(subprocess.call(["flock", "-n", lock, "true"]) == 0 for lock in locks), "an end")
            (base / "go").touch()

        with ThreadPoolExecutor() as pool:
            killed = pool.submit(kill_a_node)
            assert ENGINES["ray"](own, chains, 3, 0) == 0
            killed.result()
        assert all(read_json(own.record(chain[0]))["finished"] for chain in chains)
        assert sorted(len(began(own, name)) for name in "ab") == [1, 2]
    finally:
        cluster.shutdown()


def test_slurm_and_ray_are_needed(job, tmp_path, monkeypatch) -> None:
    own, chains = job({"a": ""})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="needs the command sbatch"):
        ENGINES["slurm"](own, chains, 1, 0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match="needs Ray: pip install"):
        ENGINES["ray"](own, chains, 1, 0)


def test_the_type_of_engines_names_the_keys() -> None:
    assert get_args(EngineName) == tuple(ENGINES)
