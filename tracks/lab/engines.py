"""Engines: run the chains of a lab's job, on this machine or on others. An engine is one function in ENGINES.

A chain is a list of steps that follow one another; a chain that fails ends, and the others continue. An engine gets the
job, its chains, the number of chains at the same time, and the GPUs for each; it returns the number of chains that
failed. Other machines see the checkout and the base folder under the same paths, in a shared folder.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from nanochat.environment import ROOT
from nanochat.errors import UserError
from nanochat.jobs.runner import Chain, Job, Step, difference, run_chains, saved_record
from nanochat.paths import base_dir, hold_folder, write_text

Chains = Sequence[Chain]

RETRIES = 3  # of a chain whose machine is lost


def local(job: Job, chains: Chains, jobs: int, gpus: int) -> int:
    """Run chains on this machine, each on GPUs and CPU cores of its own."""
    devices = gpu_names()
    if jobs * gpus > len(devices):
        raise UserError(f"--jobs={jobs} with --gpus={gpus} needs {jobs * gpus} GPUs, there are {len(devices)} here")
    # No GPU: the CPU alone.
    own = [",".join(devices[number * gpus : (number + 1) * gpus]) for number in range(jobs)]
    return run_chains(job, chains, [{"CUDA_VISIBLE_DEVICES": names} for names in own])


def on_ray(job: Job, chains: Chains, jobs: int, gpus: int) -> int:
    """Run chains on the Ray cluster that RAY_ADDRESS names, or the one of this machine."""
    try:
        import ray
    except ImportError:
        raise UserError("--engine=ray needs Ray: pip install ray, or uv sync --extra=ray") from None

    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {name: value for name, value in os.environ.items() if name.startswith("NANOCHAT_")}
    variables |= {"PYTHONPATH": path, "NANOCHAT_BASE_DIR": str(base_dir().resolve())}
    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), runtime_env={"env_vars": variables}, log_to_driver=False)
    # A chain whose machine is lost begins again on another one: finished steps are skipped, training resumes.
    place = ray.remote(num_gpus=gpus, max_retries=RETRIES)(_run_words)

    def run_chain(chain: Chain) -> int:
        try:
            return ray.get(place.remote(chain_words(job, chain)))
        except ray.exceptions.RayError as error:
            print(f"{job.kind}: {chain[0].name} is lost: {str(error).strip().splitlines()[0]}", file=sys.stderr)
            return 1

    try:
        with hold_folder(job.folder), ThreadPoolExecutor(jobs) as pool:
            job.save()
            return sum(map(bool, pool.map(run_chain, chains)))
    finally:
        ray.shutdown()


def on_slurm(job: Job, chains: Chains, jobs: int, gpus: int) -> int:
    """Run chains as one Slurm job array, and wait for its end. Further flags of sbatch: SBATCH_PARTITION and so on."""
    path = job.folder / "array.sh"
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={job.kind}-{job.tag} --array=0-{len(chains) - 1}%{jobs}",
        # A task that lost its machine, or made room for others, begins again and resumes.
        f"#SBATCH --requeue --open-mode=append --output={job.folder.resolve()}/array-%a.log",
        *([f"#SBATCH --gpus-per-node={gpus}"] if gpus else []),
        f"export NANOCHAT_BASE_DIR={shlex.quote(str(base_dir().resolve()))}",
        f"cd {shlex.quote(str(ROOT))}",
        "case $SLURM_ARRAY_TASK_ID in",
        *(f"{number}) exec {shlex.join(chain_words(job, chain))} ;;" for number, chain in enumerate(chains)),
        "esac",
    ]
    with hold_folder(job.folder):
        job.save()
        write_text(path, "\n".join([*lines, ""]))
        try:
            subprocess.run(["sbatch", "--wait", str(path)], check=False)  # its status is that of the worst task
        except FileNotFoundError:
            raise UserError("--engine=slurm needs the command sbatch, which is not on this machine") from None
    return sum(not all(_is_finished(job, step) for step in chain) for chain in chains)


EngineName = Literal["local", "ray", "slurm"]  # the keys
ENGINES: dict[str, Callable[[Job, Sequence[Chain], int, int], int]] = {"local": local, "ray": on_ray, "slurm": on_slurm}


def gpu_names() -> list[str]:
    """Return the visible GPUs of this machine, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    names = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    return names.split(",") if names and torch.cuda.is_available() else []


def _is_finished(job: Job, step: Step) -> bool:
    """Return True if a step has finished with this command, not with an earlier one."""
    record = saved_record(job.record(step))
    return bool(record.get("finished")) and not difference(record, step, {})


def chain_words(job: Job, chain: Chain) -> list[str]:
    """Return the command line that runs a chain on any machine, with a lock of its own."""
    runner = [sys.executable, "-m", "nanochat.jobs.runner", f"--job={job.folder.resolve()}", "--lock=9"]
    steps = " && ".join(shlex.join([*runner, f"--step={step.name}"]) for step in chain)
    lock = job.folder.resolve() / f"{chain[0].name}.lock"
    # The first attempt may still be saving: the second one waits for the lock.
    return ["bash", "-c", f"exec 9>>{shlex.quote(str(lock))}; flock 9 && {steps}"]


def _run_words(words: list[str]) -> int:
    """Run a command that ends with this process, and return its exit status."""
    return subprocess.run(["setpriv", "--pdeathsig=KILL", *words], cwd=ROOT).returncode
