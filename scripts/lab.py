"""Compare mixes of chat data over bases and seeds: a matrix with errors, a recommendation, held-out scores at the end.

python -m scripts.lab --spec=mix.toml --plan
python -m scripts.lab --spec=mix.toml --jobs=2
python -m scripts.lab --spec=mix.toml --final
"""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

from nanochat.config import Count, option, options, run
from nanochat.jobs.runner import Job
from nanochat.lab.engines import ENGINES, Chain
from nanochat.lab.sweep import (
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
from nanochat.paths import base_dir, stage_dir
from tasks import JUDGED, TASKS, find_task
from tasks.chats import JsonLines, chat_files
from tasks.mixing import parse_mixture

Files = Mapping[str, Sequence[str]]  # mix -> files of conversations


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
    files, found = open_mixes(spec)
    found += mistakes(spec)
    for name in [*spec.dev, *spec.stable, *spec.held_out]:
        found += task_mistake(name)
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
    look = len(looks(spec))  # an edited ledger is found before anything runs
    if config.kind == "rates":
        spec = search_rates(spec, files, config)
    else:
        check_disk(spec)
        start(spec, run_chains(spec, spec.runs, files), config)
    if config.final:
        look = evaluate_held_out(spec, config)
    write_report(spec, outcome, look)
    prune(spec, config.keep)


# ---- checks ----


def open_mixes(spec: Spec) -> tuple[Files, list[str]]:
    """Return the files of conversations in each mix, and mistakes in the words of the mixes."""
    files, found = {}, []
    for mix in spec.mixes:
        words = spec.words_of(mix)
        try:
            if spec.stage == "chat_rl":
                find_task(words, TASKS)
                continue
            members = chain(*parse_mixture(words, TASKS))
            # The hub's files have no absolute paths.
            places = [Path(member.data.path) for member in members if member.data.task is JsonLines]
            files[mix] = [str(file) for place in places if place.is_absolute() for file in chat_files(place)]
        except ValueError as error:
            found.append(f"the mix {mix}: {error}")
    return files, found


def task_mistake(name: str) -> list[str]:
    """Return the mistake in a benchmark's name, if any; the benchmark is not opened."""
    try:
        find_task(name, JUDGED)
    except ValueError as error:
        return [str(error)]
    return []


def questions(spec: Spec, name: str) -> int:
    """Return the number of questions of a benchmark in the lab."""
    return int(min(len(TASKS[name]()), spec.sampling.get("max_problems", sys.maxsize)))


# ---- runs ----


def start(spec: Spec, chains: Sequence[Chain], config: Config) -> None:
    """Run chains of steps with the engine; a run that fails is a hole in the report."""
    resume = shlex.join(["python", "-m", "scripts.lab", *sys.argv[1:]])
    job = Job("lab", spec.name, [step for chain in chains for step in chain], resume=resume)
    job.save()
    failed = ENGINES[config.engine](job, chains, config.jobs, config.gpus)
    if failed:
        print0(f"lab: {failed} of {len(chains)} failed, and are left out")


def search_rates(spec: Spec, files: Files, config: Config) -> Spec:
    """Train the rounds of the search for the best rate on each base and mix; return the lab with all its rates."""
    from nanochat.lab.results import losses, read_results

    spec = spec.model_copy(update={"rates": []})
    while True:
        spec, runs = add_round(spec, losses(read_results(spec)))
        if not runs:
            return spec
        check_disk(spec)
        start(spec, run_chains(spec, runs, files), config)


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
    chains = held_out_chains(spec, runs)
    for [step] in chains:
        if not step.outcome.exists() and not any((base_dir() / step.parent).glob("step_*")):
            raise ValueError(f"{step.parent} has no checkpoint any more: delete it with scripts.runs to train it again")
    look = add_look(spec, path, runs)
    start(spec, chains, config)
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
