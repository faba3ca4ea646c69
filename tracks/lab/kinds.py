"""What `tracks.lab.run` does: checks a spec, and runs the kinds of labs.

- run_lab(config): everything, in order.
- compare_mixes, measure_noise, search_rates: the kinds, by the flag --kind. search_plan: that of the last, in words.
- check_disk, flag_mistakes: what is found before anything runs.
"""

import importlib
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, product
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from nanochat.config import parse
from nanochat.data.corpus import open_corpus
from nanochat.data.hub import HubError
from nanochat.errors import UserError
from nanochat.evals.core_tasks import open_core
from nanochat.jobs.runner import Job
from nanochat.log import duration, print0, table_of
from nanochat.outcome import Outcome
from nanochat.paths import base_dir, newest_manifest, saved_steps, tokenizer_file
from tasks import JUDGED, TASKS, find_task, open_tasks
from tasks.mixing import Member, local_files, parse_mixture
from tracks.lab import sweep
from tracks.lab.engines import ENGINES, Chains, gpu_names
from tracks.lab.findings import (
    Results,
    last_figure,
    read_results,
    recommended,
    runs_to_confirm,
    undecided_runs,
    write_noise,
    write_recommendation,
    write_report,
)
from tracks.lab.prune import prune
from tracks.lab.rates import rounds, runs_ahead

if TYPE_CHECKING:
    from tracks.lab.run import Config


def run_lab(config: "Config") -> None:
    """Check the spec and all that it names, and run the lab or print its plan."""
    if not config.spec:
        raise UserError("name the file that describes the lab: --spec=FILE")
    path = Path(config.spec).expanduser().resolve()
    usual = path.stem if config.kind == "mixes" else f"{path.stem}-{config.kind}"
    spec = sweep.with_bases(sweep.read_spec(path, config.tag or usual), config.bases)
    files, found = open_mixes(spec)
    wrong = sweep.mistakes(spec)
    if not wrong:  # else the scripts could not be asked
        wrong = flag_mistakes(spec)
    found += wrong
    found += task_mistakes(spec)
    found += refused_flags(config, spec)
    if found:
        raise UserError("\n  ".join([f"{config.spec}:", *found]))
    # Tasks without files, and a text, are found before anything runs. Tasks that are held out are not opened.
    if spec.text:
        open_corpus(spec.text)
    questions = count_questions(spec)
    gpus = min(len(gpu_names()), 1) if config.gpus < 0 else config.gpus
    devices = {"CUDA_VISIBLE_DEVICES": ",".join(gpu_names()[:gpus])} if config.engine == "local" else {}
    spec = spec.model_copy(update={"files": files, "gpus": gpus, "devices": devices})
    if config.plan and config.kind == "rates":
        print0(*search_plan(spec, config, lambda runs: sweep.planned_training(spec, runs)), sep="\n")
        return
    if config.plan:
        print0(*sweep.expectations(spec, questions, lambda runs: sweep.planned_training(spec, runs)), sep="\n")
        return
    kinds = {"mixes": compare_mixes, "rates": search_rates, "variance": measure_noise}
    kinds[config.kind](spec, Outcome.begin("lab", spec.name, config), config)


def task_mistakes(spec: sweep.Spec) -> list[str]:
    """Return sentences about benchmarks that are none, or none for the models of this stage."""
    if spec.is_pretraining:
        if not spec.core_tasks or not tokenizer_file(spec.bases[0]).exists():  # another sentence says so
            return []
        _, tasks = open_core(spec.bases[0])
        known = ", ".join([sweep.BPB, *(task.label for task in tasks)])
        labels = {task.label for task in tasks}
        unknown = [name for name in spec.core_tasks if name not in labels]
        return [f"{name} is no benchmark of base models, which do not chat: use {known}" for name in unknown]
    found = []
    labels: list[str] = []
    obstacle = ""
    if is_core_known := bool(saved_steps(base_dir() / spec.parent_of(spec.bases[0]))):  # else another sentence says so
        try:
            labels = core_labels(spec)
        except HubError as error:
            obstacle = f"; CORE's tasks cannot be read: {error}"
    for name in spec.tasks:
        if name == sweep.BPB or name in labels or (name in spec.core_tasks and not is_core_known):
            continue
        try:
            if find_task(name, JUDGED) != name:  # it is not opened
                found.append(f"{name}: benchmarks are written as in docs/tasks.md")
        except UserError as error:
            also = f", or {sweep.BPB}, or a task of CORE: {', '.join(labels)}" if labels else obstacle
            found.append(f"{error}{also}")
    return found


def core_labels(spec: sweep.Spec) -> list[str]:
    """Return the tasks of CORE, if benchmarks of a lab of chats may be some; they are read only then."""
    if not spec.core_tasks:
        return []
    folder = base_dir() / spec.parent_of(spec.bases[0])
    return [task.label for task in open_core(newest_manifest(folder)["tokenizer"]["tag"])[1]]


def refused_flags(config: "Config", spec: sweep.Spec) -> list[str]:
    """Return sentences about flags that do not fit each other or the lab."""
    found = []
    if config.kind == "variance" and config.plan:
        found.append("--plan belongs to --kind=mixes and rates, which train")
    if config.kind != "mixes" and config.final:
        found.append("--final belongs to --kind=mixes")
    texts = [spec.flags, *(spec.mixes.values() if spec.is_pretraining else ())]
    silent = any(sweep.flags_in(text).get("--eval-every") == "-1" for text in texts)
    if config.kind == "rates" and silent:
        found.append(f"--kind=rates needs the {sweep.STAGES[spec.stage].measure}: set --eval-every=0 in flags")
    if config.kind == "variance" and spec.is_pretraining:
        found.append("--kind=variance is for sampled answers, and base models are scored without sampling")
    elif config.kind == "variance" and not any(map(sweep.is_chat_task, spec.open_tasks)):
        found.append("--kind=variance is for benchmarks that are conversations: likelihoods are always the same")
    elif config.kind == "variance" and spec.repeats == 1:
        found.append("--kind=variance needs repeats = 2 or more")
    if config.engine != "local" and config.gpus < 0:
        found.append("--engine=ray and slurm need --gpus, as a number for each run")
    if config.final and not spec.held_out:
        found.append("--final needs benchmarks that are held_out")
    return found


def open_mixes(spec: sweep.Spec) -> tuple[dict[str, list[str]], list[str]]:
    """Return the files of conversations in each mix, and mistakes in the words of the mixes."""
    if spec.is_pretraining:  # its mixes are flags
        return {}, []
    files = {}
    found = []
    minimal = []
    for least in spec.minimal:
        try:
            least_share(least)
            minimal.append(least)
        except UserError as error:
            found.append(f"{error}")
    for mix, words in spec.mixes.items():
        try:
            if spec.stage == "chat_rl":
                find_task(words, JUDGED)
                continue
            if spec.stage == "chat_dpo":
                files[mix] = spec.words_of(mix).split(",")
                found += [f"the mix {mix}: there is no file {name}" for name in files[mix] if not Path(name).is_file()]
                continue
            members = parse_mixture(words, TASKS)
            found += [f"the mix {mix} has less than minimal = {least}" for least in minimal if not has(members, least)]
            files[mix] = local_files(members)
        except UserError as error:
            found.append(f"the mix {mix}: {error}")
    return files, found


def least_share(least: str) -> tuple[str, float]:
    """Return the task in lower case and the share of TASK%SHARE, in percent; 0 without one."""
    name, mark, share = least.lower().partition("%")
    with suppress(ValueError):
        if not mark or 0 <= float(share) <= 100:
            return name, float(share or 0)
    raise UserError(f"minimal = {least}: write the share in percent, from 0 to 100, like ARC-Easy%5")


def has(members: Sequence[Member], least: str) -> bool:
    """Return True if a mix has a task; with TASK%SHARE, if it has at least this share, in percent."""
    name, share = least_share(least)
    names = [{source.lower().partition("~")[0] for source in member.sources} for member in members]
    shares = [member.share for member, own in zip(members, names, strict=True) if name in own]
    return bool(shares) and sum(shares) >= share


def count_questions(spec: sweep.Spec) -> dict[str, int]:
    """Return the number of questions that a model is asked, by development benchmark."""
    if spec.is_pretraining:
        names = [name for name in spec.core_tasks if name in spec.dev]
        chosen = open_core(spec.bases[0], names)[1] if names else []
        return {task.label: len(task.items(int(spec.sampling.get("max_problems", 0)))) for task in chosen}
    base = newest_manifest(base_dir() / spec.parent_of(spec.bases[0]))
    tokenizer = base["tokenizer"]["tag"]  # names the world of the world's tasks
    most = int(spec.sampling.get("max_problems") or sys.maxsize)
    chats = list(filter(sweep.is_chat_task, spec.open_tasks))
    found = dict(open_tasks("|".join(chats), unsafe_exec=True, tokenizer=tokenizer)) if chats else {}
    core = [name for name in spec.core_tasks if name in spec.dev]
    counts = {task.label: len(task.items(0)) for task in (open_core(tokenizer, core)[1] if core else [])}
    counts |= {name: len(task) for name, task in found.items()}
    return {name: min(counts[name], most) for name in spec.dev if name != sweep.BPB}


def flag_mistakes(spec: sweep.Spec) -> list[str]:
    """Return the first mistake in flags, sampling and methods, as the scripts themselves would say it.

    Each mix of base models has flags of its own.
    """
    try:
        first = {run.mix: run for run in reversed(spec.runs)} if spec.is_pretraining else {"": spec.runs[0]}
        runs = [*first.values(), *spec.merged_runs]
        for step in chain.from_iterable(sweep.run_steps(spec, run) for run in runs):
            script, *flags = step.command
            parse(importlib.import_module(script).Config, flags)
    except UserError as error:
        return [f"flags, sampling or methods: {error}"]
    return []


def waiting_runs(spec: sweep.Spec, runs: Sequence[sweep.Run]) -> list[sweep.Run]:
    """Return the runs that are not trained: of a lab that resumes, the first ones have no checkpoint to come."""
    return [run for run in runs if not sweep.has_result(spec, sweep.run_steps(spec, run)[0])]


def check_disk(spec: sweep.Spec, runs: Sequence[sweep.Run]) -> None:
    """Raise an OSError if the checkpoints of those runs that are not trained have no room on the disk."""
    from nanochat.checkpoint import check_free_space

    check_free_space(base_dir(), sweep.disk_needed(spec, runs))


def start(spec: sweep.Spec, chains: Chains, config: "Config") -> None:
    """Run chains of steps; a run that fails is a hole in the report."""
    resume = shlex.join(["python", "-m", "tracks.lab.run", *sys.argv[1:]])
    job = Job("lab", spec.name, list(chain.from_iterable(chains)), resume=resume)
    failed = ENGINES[config.engine](job, chains, config.jobs, spec.gpus)
    if failed:
        print0(f"lab: {failed} of {len(chains)} failed, and are left out")


# ---- kinds of labs ----


def compare_mixes(spec: sweep.Spec, outcome: Outcome, config: "Config") -> None:
    """Train and evaluate all runs, and report what the mixes change."""
    look = len(sweep.looks(spec))  # an edited ledger is found before anything runs
    runs = [*spec.runs, *spec.more_runs, *spec.confirming_runs, *spec.merged_runs]
    # Checkpoints that nothing will be read from again go as soon as they are evaluated, and need no room together.
    prunes = config.keep == "none" and not spec.merges and not config.final
    check_disk(spec, waiting_runs(spec, runs)[: config.jobs] if prunes else runs)

    start(spec, [*sweep.base_chains(spec), *sweep.chains_of(spec, spec.runs, prunes)], config)
    if spec.merges:
        start(spec, sweep.merge_chains(spec), config)
    results = read_results(spec, spec.runs)
    if more := undecided_runs(spec, results):
        print0(f"lab: {len(more)} runs with more seeds, for mixes that are not distinguishable from the reference")
        start(spec, sweep.chains_of(spec, more, prunes), config)
        # The runs of an arm follow each other.
        arms = [(run.base, run.mix, run.rate) for run in spec.runs]
        runs = sorted([*spec.runs, *more], key=lambda run: arms.index((run.base, run.mix, run.rate)))
        results = read_results(spec, runs)
    if again := runs_to_confirm(spec, results):
        print0(f"lab: {len(again)} runs with seeds of their own, to confirm the mixes that are to be kept")
        start(spec, sweep.chains_of(spec, again, prunes), config)
        results += read_results(spec, again)
    merged = read_results(spec, spec.merged_runs)
    if config.final:
        look = evaluate_held_out(spec, results, config)
    write_report(spec, outcome, results, merged, look)
    everything = [*results, *merged]
    kept = {"all": everything, "best": recommended(spec, results), "none": []}[config.keep]
    for result in everything:
        if result not in kept and result.has_scores:
            prune(f"{spec.stage}/{spec.tag_of(result.run)}")
    if not any(result.has_scores for result in results):
        raise ChildProcessError("all runs have failed: the table of alarms has the reasons")


def measure_noise(spec: sweep.Spec, outcome: Outcome, config: "Config") -> None:
    """Evaluate the bases again and again, and report the noise of each benchmark."""
    start(spec, [[sweep.base_step(spec, *words)] for words in product(spec.bases, [0, *spec.slots])], config)
    write_noise(spec, outcome)


def search_plan(
    spec: sweep.Spec, config: "Config", planned: Callable[[Sequence[sweep.Run]], float | None]
) -> list[str]:
    """Return the plan of a search in words. planned: the seconds that runs train, as `sweep.planned_training`."""
    usual, most = runs_ahead(len(spec.seeds))
    one_of_each = [sweep.Run(base, mix, 1.0, spec.seeds[0]) for base, mix in product(spec.bases, spec.mixes)]
    count = len(one_of_each)
    seconds = planned(one_of_each)
    left = "the time of training is not known"
    if seconds is not None:
        left = (
            f"about {duration(usual * seconds)} of training, one run after the other, as --dry-run estimates; at most"
            f" {duration(most * seconds)}"
        )
    sizes = sorted((sweep.disk_of(spec, run) for run in one_of_each), reverse=True)
    room = {
        "all": most * sum(sizes),
        # The best rate of each is left, in all seeds, and one search is at work.
        "best": len(spec.seeds) * sum(sizes[1:]) + most * sizes[0],
        "none": config.jobs * sizes[0],
    }
    return [
        f"{count} {'search' if count == 1 else 'searches'}, of a base and a mix each: about {usual * count} runs, and"
        f" at most {most * count}, where the best rate is far from the stage's own",
        left,
        f"at most {room[config.keep] / 1e9:.1f} GB of checkpoints at a time, with --keep={config.keep}",
        "runs that are finished are counted, and will not be repeated",
    ]


def search_rates(spec: sweep.Spec, outcome: Outcome, config: "Config") -> None:
    """Search for the best rate of each mix on each base, and report it. Runs that are finished are not repeated."""
    trained = sweep.STAGES[spec.stage]
    sign = -1 if trained.higher_is_better else 1  # the search looks for the lowest
    prunes = config.keep == "none"  # each run as soon as it has ended: its log has all that is compared
    outcome.metrics = {"Question": spec.question}
    rows = []
    for base, mix in product(spec.bases, spec.mixes):
        losses = {}
        searched: dict[str, float] = {}  # STAGE/TAG of each run that has ended -> its rate
        for ahead in rounds(losses, len(spec.seeds), trained.measure):
            print0(f"lab: {mix} on {base}: {ahead.sentence}")
            if not ahead.seeds:  # the last round: the result
                outcome.metrics[f"{mix} on {base}"] = ahead.sentence
                for rate, by_seed in sorted(losses.items()):
                    is_best = "yes" if rate in ahead.rates else ""
                    has_error = len(by_seed) > 1 and all(map(isfinite, by_seed))  # not after a seed that has diverged
                    error = stdev(by_seed) / len(by_seed) ** 0.5 if has_error else None
                    rows.append([base, mix, rate, len(by_seed), sign * fmean(by_seed), error, is_best])
                if config.keep == "best":
                    for name, rate in searched.items():
                        if rate not in ahead.rates:
                            prune(name)
                break
            seeds = spec.seeds[: ahead.seeds]
            part = spec.model_copy(
                update={
                    "bases": [base],
                    "replicas": {},  # a rate is that of the base's first training
                    "mixes": {mix: spec.mixes[mix]},
                    "rates": ahead.rates,
                    "seeds": seeds,
                }
            )
            check_disk(part, waiting_runs(part, part.runs)[: config.jobs] if prunes else part.runs)
            ends = [[sweep.prune_step(part, run)] if prunes else [] for run in part.runs]
            chains = [[*sweep.run_steps(part, run)[:1], *end] for run, end in zip(part.runs, ends, strict=True)]
            start(part, chains, config)
            for rate in ahead.rates:
                losses[rate] = [sign * last_figure(part, run) for run in part.runs if run.rate == rate]
            # Those that have diverged have no result, and stay as they are: the next start tries them again.
            done = [run for run in part.runs if part.outcome_of(run).exists()]
            searched |= {f"{part.stage}/{part.tag_of(run)}": run.rate for run in done}
    title = f"Rates, as factors of the stage's own, by the last {trained.measure}"
    column = "Score" if trained.higher_is_better else "Loss"
    note = f"± is the standard error over seeds; a single seed has none. {trained.caution}".rstrip()
    outcome.tables = [table_of(title, f"Base | Mix | Rate:g | Seeds | {column}:.4f | ±:.4f | Best", rows, note)]
    outcome.finish()


def evaluate_held_out(spec: sweep.Spec, results: Results, config: "Config") -> int:
    """Evaluate the recommended runs on the held-out benchmarks; return the number of looks at these, with this one."""
    # Written and hashed before a held-out task is opened.
    path = write_recommendation(spec, results)
    runs = [result.run for result in recommended(spec, results)]
    if not runs:
        raise UserError("no run of the reference has a result: the report of the lab without --final names the reasons")
    chains = [sweep.run_steps(spec, run, is_held_out=True)[1:] for run in runs]
    for step in chain.from_iterable(chains):
        if not step.outcome.exists() and not any((base_dir() / step.parent).glob("step_*")):
            raise UserError(f"{step.parent} has no checkpoint any more: delete its folder to train it again")
    look = sweep.add_look(spec, path, runs)
    start(spec, chains, config)
    return look
