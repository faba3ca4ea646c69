"""Compare mixes of chat data over bases and seeds: a matrix with errors, a recommendation, held-out scores at the end.

python -m scripts.lab --spec=mix.toml --plan
python -m scripts.lab --spec=mix.toml --jobs=2
python -m scripts.lab --spec=mix.toml --final
python -m scripts.lab --spec=mix.toml --kind=rates
python -m scripts.lab --spec=mix.toml --kind=variance
"""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Literal

from nanochat.config import Count, option, options, run
from nanochat.jobs.runner import Chain, Job, run_chains
from nanochat.lab import sweep
from nanochat.log import print0
from nanochat.outcome import Outcome
from nanochat.paths import base_dir
from tasks import JUDGED, TASKS, find_task
from tasks.chats import JsonLines, chat_files
from tasks.mixing import parse_mixture

Files = Mapping[str, Sequence[str]]  # mix -> files of conversations that it reads


@options("lab")
class Config:
    """Run a lab: the same stage on several bases with several mixes, rates and seeds, and what they show."""

    spec: str = option("", "TOML file that describes the lab; docs/lab.md has its keys")
    kind: Literal["mixes", "rates", "variance"] = option(
        "mixes", "compare mixes, search for the best rate of each mix, or measure the noise of evaluations"
    )
    tag: str = option("", "name of the lab, and of its folder (default: that of the file, with the kind)")
    plan: bool = option(False, "print the plan, and the smallest difference each benchmark can show, and stop")
    jobs: Count = option(1, "runs at the same time", least=1)
    keep: Literal["all", "best", "none"] = option("all", "checkpoints to keep of finished runs (best: the recommended)")
    final: bool = option(False, "evaluate the recommended mixes on the held-out benchmarks")


def main(config: Config) -> None:
    if not config.spec:
        raise ValueError("name the file that describes the lab: --spec=FILE")
    path = Path(config.spec).expanduser().resolve()
    kind = "" if config.kind == "mixes" else f"-{config.kind}"
    spec = sweep.read_spec(path, config.tag or path.stem + kind)
    files, found = open_mixes(spec)
    found += sweep.mistakes(spec)
    for name in [*spec.dev, *spec.stable, *spec.held_out]:
        try:
            find_task(name, JUDGED)  # which is not opened
        except ValueError as error:
            found.append(str(error))
    if config.kind != "mixes" and (config.plan or config.final):
        found.append("--plan and --final belong to --kind=mixes")
    if config.kind == "rates" and spec.stage == "chat_rl":
        found.append("--kind=rates looks for the lowest validation loss, which chat_rl has not")
    if config.kind == "variance" and spec.repeats == len(spec.slots) == 1:
        found.append("--kind=variance needs repeats (with a temperature) or several slots")
    if config.final and not spec.held_out:
        found.append("--final needs benchmarks that are held_out")
    if found:
        raise ValueError("\n  ".join([f"{config.spec}:", *found]))
    if config.plan:
        most = spec.sampling.get("max_problems", sys.maxsize)
        questions = {name: int(min(len(TASKS[name]()), most)) for name in spec.dev}
        print0(*sweep.plan_lines(spec, questions), sep="\n")
        return
    kinds = {"mixes": compare_mixes, "rates": search_rates, "variance": measure_noise}
    kinds[config.kind](spec, Outcome.begin("lab", spec.name, config), files, config)


def open_mixes(spec: sweep.Spec) -> tuple[Files, list[str]]:
    """Return the files of conversations in each mix, and mistakes in the words of the mixes."""
    files, found = {}, []
    for mix in spec.mixes:
        words = spec.words_of(mix)
        try:
            if spec.stage == "chat_rl":
                find_task(words, TASKS)
                continue
            sets = chain.from_iterable(member.sources.values() for member in parse_mixture(words, TASKS))
            # The hub's files have no absolute paths.
            places = [Path(data.path) for data in sets if data.task is JsonLines]
            files[mix] = [str(file) for place in places if place.is_absolute() for file in chat_files(place)]
        except ValueError as error:
            found.append(f"the mix {mix}: {error}")
    return files, found


def start(spec: sweep.Spec, chains: Sequence[Chain], config: Config) -> None:
    """Run chains of steps; a run that fails is a hole in the report."""
    resume = shlex.join(["python", "-m", "scripts.lab", *sys.argv[1:]])
    job = Job("lab", spec.name, [step for chain in chains for step in chain], resume=resume)
    failed = run_chains(job, chains, config.jobs)
    if failed:
        print0(f"lab: {failed} of {len(chains)} failed, and are left out")


# ---- kinds of labs. Slow imports stay out of --help. ----


def compare_mixes(spec: sweep.Spec, outcome: Outcome, files: Files, config: Config) -> None:
    """Train and evaluate all runs, and report what the mixes change."""
    from nanochat.lab.findings import write_report

    look = len(sweep.looks(spec))  # an edited ledger is found before anything runs
    sweep.check_disk(spec)
    start(spec, sweep.run_chains(spec, files), config)
    if config.final:
        look = evaluate_held_out(spec, config)
    write_report(spec, outcome, look)
    prune(spec, config.keep)


def measure_noise(spec: sweep.Spec, outcome: Outcome, files: Files, config: Config) -> None:
    """Evaluate the bases again and again, and report the noise of each benchmark."""
    from nanochat.lab.findings import write_noise

    start(spec, sweep.noise_chains(spec), config)
    write_noise(spec, outcome)


def search_rates(spec: sweep.Spec, outcome: Outcome, files: Files, config: Config) -> None:
    """Search for the best rate of each mix on each base. Runs that are finished are not repeated."""
    from nanochat.lab.findings import final_loss, write_rates
    from nanochat.lab.rates import next_round

    sweep.check_disk(spec)
    ends = {}
    for base, mix in product(spec.bases, spec.mixes):
        losses = {}
        while (ahead := next_round(losses, len(spec.seeds))).seeds:
            print0(f"lab: {mix} on {base}: {ahead.sentence}")
            own = {"bases": [base], "mixes": {mix: spec.mixes[mix]}, "rates": ahead.rates}
            part = spec.model_copy(update=own | {"seeds": spec.seeds[: ahead.seeds]})
            start(part, sweep.training_chains(part, files), config)
            for rate in ahead.rates:
                runs = [run for run in part.runs if run.arm.rate == rate]
                losses[rate] = [final_loss(part, run) for run in runs]
        print0(f"lab: {mix} on {base}: {ahead.sentence}")
        ends[base, mix] = losses, ahead
    write_rates(spec, outcome, ends)


def evaluate_held_out(spec: sweep.Spec, config: Config) -> int:
    """Evaluate the recommended runs on the held-out benchmarks; return the number of looks at these, with this one."""
    from nanochat.lab.findings import read_results, recommended, write_recommendation

    # Written and hashed before a held-out task is opened.
    results = read_results(spec)
    path = write_recommendation(spec, results)
    arms = recommended(spec)
    runs = [result.run for result in results if result.run.arm in arms and not result.broken]
    if not runs:
        raise ValueError("no run of the reference has a result: the alarms in the report name the reasons")
    chains = sweep.held_out_chains(spec, runs)
    for [step] in chains:
        if not step.outcome.exists() and not any((base_dir() / step.parent).glob("step_*")):
            raise ValueError(f"{step.parent} has no checkpoint any more: delete its folder to train it again")
    look = sweep.add_look(spec, path, runs)
    start(spec, chains, config)
    return look


def prune(spec: sweep.Spec, keep: str) -> None:
    """Delete checkpoints of finished runs that are not kept."""
    from nanochat.lab.findings import read_results, recommended

    if keep == "all":
        return
    kept = recommended(spec) if keep == "best" else []
    for result in read_results(spec):
        if not result.failure and result.run.arm not in kept:
            folder = spec.outcome_of(result.run).parent
            for checkpoint in folder.glob("step_*"):
                shutil.rmtree(checkpoint)
            print0(f"lab: the checkpoints in {folder} are deleted")


if __name__ == "__main__":
    run(main, Config)
