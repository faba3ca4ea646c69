"""Compare mixes of chat data over bases and seeds: a matrix with errors, a recommendation, held-out scores at the end.

python -m scripts.lab --spec=mix.toml --plan
python -m scripts.lab --spec=mix.toml --jobs=2
python -m scripts.lab --spec=mix.toml --final
"""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from nanochat.config import Count, option, options, run
from nanochat.jobs.runner import Job
from nanochat.lab.engines import ENGINES, Chain
from nanochat.lab.sweep import (
    Run,
    Spec,
    add_look,
    add_round,
    check_disk,
    held_out_chains,
    looks,
    mistakes,
    plan_lines,
    read_spec,
    run_chains,
)
from nanochat.log import print0
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir
from tasks import TASKS, pick
from tasks.chats import JsonLines, chat_files
from tasks.mixing import parse_mixture


@options("lab")
class Config:
    """Run a lab: the same stage on several bases with several mixes, rates and seeds, and what they show."""

    spec: str = option("", "TOML file that describes the lab; docs/lab.md has its keys")
    tag: str = option("", "name of the lab, and of its folder (default: that of the file)")
    kind: Literal["mix", "rates"] = option("mix", "mix: all runs of the spec; rates: search for the best learning rate")
    plan: bool = option(False, "print the plan, and the smallest difference each benchmark can show, and stop")
    jobs: Count = option(1, "runs at the same time", least=1)
    gpus: Count = option(0, "GPUs for each run, where ray or slurm places it (0: none, or this machine's)")
    engine: Literal[tuple(ENGINES)] = option("local", "where runs are trained")
    keep: Literal["all", "best", "none"] = option("all", "checkpoints to keep of finished runs (best: the recommended)")
    final: bool = option(False, "evaluate the recommended mixes on the held-out benchmarks")


def main(config: Config) -> None:
    if not config.spec:
        raise ValueError("name the file that describes the lab: --spec=FILE")
    spec = read_spec(Path(config.spec).expanduser().resolve(), config.tag)
    found = mistakes(spec) + task_mistakes(spec)
    if config.final and not spec.held_out:
        found.append("--final needs benchmarks that are held_out")
    if found:
        raise ValueError("\n  ".join([f"{config.spec}:", *found]))
    if config.plan:
        print0(*plan_lines(spec, {name: questions(spec, name) for name in spec.dev}), sep="\n")
        return
    # Slow imports stay out of --help.
    from nanochat.lab.findings import write_report

    outcome = Outcome.begin("lab", spec.name, config)
    look = looks(spec)  # an edited ledger is found before anything runs
    if config.kind == "rates":
        spec = search_rates(spec, config)
    else:
        train(spec, spec.runs, config)
    if config.final:
        look = evaluate_held_out(spec, config)
    write_report(spec, outcome, look)
    prune(spec, config.keep)


# ---- checks ----


def task_mistakes(spec: Spec) -> list[str]:
    """Return the mistakes in names of tasks, mixes and files. Held-out tasks are looked up by name, and not opened."""
    found = []
    for words in spec.mixes if spec.stage != "chat_rl" else ():
        try:
            for member in [one for some in parse_mixture(spec.words_of(words), TASKS) for one in some]:
                if member.data.task is JsonLines:
                    chat_files(Path(member.data.path))
        except ValueError as error:
            found.append(f"the mix {words}: {error}")
    for name in [*spec.dev, *spec.stable, *spec.held_out]:
        try:
            pick(name, TASKS)
        except ValueError as error:
            found.append(str(error))
    return found


def questions(spec: Spec, name: str) -> int:
    """Return the number of questions of a benchmark in the lab."""
    return min(len(TASKS[name]()), spec.sampling.max_problems or sys.maxsize)


# ---- runs ----


def train(spec: Spec, runs: Sequence[Run], config: Config) -> None:
    """Train and evaluate runs; a run that fails is a hole in the report."""
    check_disk(spec)
    failed = start(spec, run_chains(spec, runs), config)
    if failed:
        print0(f"lab: {failed} failed, and are left out")


def start(spec: Spec, chains: Sequence[Chain], config: Config) -> int:
    """Run chains of steps with the engine; return the number of those that failed."""
    resume = shlex.join(["python", "-m", "scripts.lab", *sys.argv[1:]])
    job = Job("lab", spec.name, [step for chain in chains for step in chain], resume=resume)
    job.save()
    return ENGINES[config.engine](job, chains, config.jobs, config.gpus)


def search_rates(spec: Spec, config: Config) -> Spec:
    """Train the rounds of the search for the best rate on each base and mix; return the lab with all its rates."""
    from nanochat.lab.results import losses, read_results

    spec = spec.model_copy(update={"rates": []})
    while True:
        spec, runs = add_round(spec, losses(read_results(spec)))
        if not runs:
            return spec
        train(spec, runs, config)


def evaluate_held_out(spec: Spec, config: Config) -> int:
    """Evaluate the recommended runs on the held-out benchmarks; return the number of looks at these, with this one."""
    from nanochat.lab.findings import write_recommendation
    from nanochat.lab.results import read_results, recommended

    # Written and hashed before a held-out task is opened.
    results = read_results(spec)
    path = write_recommendation(spec, results)
    arms = recommended(spec)
    runs = [result.run for result in results if result.run.arm in arms and not result.broken]
    if not runs:
        raise ValueError("no run of the reference has a result: the alarms in the report name the reasons")
    look = add_look(spec, path, runs)
    start(spec, held_out_chains(spec, runs), config)
    return look


def prune(spec: Spec, keep: str) -> None:
    """Delete checkpoints of finished runs that are not kept."""
    from nanochat.lab.results import read_results, recommended

    if keep == "all":
        return
    kept = recommended(spec) if keep == "best" else []
    for result in read_results(spec):
        if not result.failure and result.run.arm not in kept:
            folder = stage_dir(spec.stage, spec.tag_of(result.run))
            for checkpoint in folder.glob("step_*"):
                shutil.rmtree(checkpoint)
            print0(f"lab: the checkpoints in {folder} are deleted")


if __name__ == "__main__":
    run(main, Config)
