"""Do I still get the published figures? For a fork, or another machine: runs with fixed seeds beside those of a commit.

    python -m bench.golden                              the scale tiny: three runs, a minute
    python -m bench.golden --scale=embedded             the main job of a machine without a GPU, three times
    python -m bench.golden --run=default                a finished run of `bash speedrun.sh`: nothing is trained
    python -m bench.golden --flags="--matrix-lr=0.03"   with flags of scripts.base_train
    python -m bench.golden --scale=embedded --write     measure what is published, bench/golden.json, anew

Ends with 0 if every figure is as published, with 10 if one is not, with 2 for a question that cannot be asked. The last
lines are for programs, `METRIC name=value`, as those of scripts.trial. The same command goes on where it was stopped.
`bench/published.py` has the interval; docs/evaluation.md says what an answer means.
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.common import ROOT
from bench.findings import Findings, JsonFile
from bench.published import (
    CONDITIONS,
    FEWEST,
    Judged,
    Published,
    Run,
    check_run,
    check_seeds,
    equal_runs,
    judge,
    load,
    overall,
    publish,
    read_file,
    read_run,
)
from nanochat.config import Count, check_names, flag_of, option, options, parse, run_script
from nanochat.environment import git, hardware, versions
from nanochat.errors import UserError
from nanochat.jobs.estimate import base_run
from nanochat.jobs.plan import (
    NOTHING,
    STEPS,
    TRAINING,
    PlanSettings,
    choose_setting,
    make_job,
    stage_flags,
)
from nanochat.jobs.runner import Step, saved_record
from nanochat.jobs.scales import CPU_SCALES, read_flags
from nanochat.jobs.series import run_series
from nanochat.log import Record, print0, table_of, terminal_table
from nanochat.paths import base_dir, stage_dir, world_dir, write_json
from scripts.base_train import Config as Training
from scripts.plan import NEEDS, READ
from tasks import TASKS

FILE = ROOT / "bench/golden.json"
RUNS = 3
PUBLISHED_RUNS = 8
CODE = ("nanochat", "scripts", "tasks", "rustbpe/src", "requirements.lock")  # what decides a run
LEFT_OUT = ("tok_eval", "report")  # steps without a figure
# Flags of scripts.base_train that --flags may not have, beside those that make a run what it is.
OWN_FLAGS = ("--seed", "--tag", "-g", "--data", "--tokenizer-tag", "--num-shards", "--resume", "--dry-run", "--on")


@dataclass(frozen=True)
class GoldenScale:
    """The runs of a scale: a plan of the main job, with other flags for some stages."""

    description: str
    plan: Mapping[str, Any]  # of PlanSettings
    changes: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)  # stage -> flags; None: without it
    world: str = ""  # size of the embedded world, if not the usual one


GoldenName = Literal["tiny", "embedded", "cpu", "1gpu", "8xh100"]  # the keys
SCALES = {
    "tiny": GoldenScale(
        "a small base model on a small embedded world, seconds a run",
        {"scale": "embedded", "depth": 2, "until": "base_loss"},
        {
            "tok_train": {"--vocab-size": "512"},
            "base_train": {
                "--width": "64",
                "--max-seq-len": "128",
                "--total-batch-size": "1024",
                "--num-iterations": "60",
                "--warmup-steps": "10",
                "--eval-bytes": "10000",
                "--sample-every": "-1",
                "--save-every": "-1",
                "--no-compile": "",
            },
            "base_loss": {"--eval-bytes": "10000"},
        },
        world="tiny",
    ),
    "embedded": GoldenScale("the main job of a machine without a GPU, minutes a run", {"scale": "embedded"}),
    "cpu": GoldenScale(
        "real text, the run of report/cpu.md, an hour a run",
        {"scale": "cpu", "seconds": 1800.0, "data": "mixed-text"},
        # By the clock a slow machine would learn less. These are the steps that the run of the card took.
        {
            "base_train": {"--target-seconds": None, "--num-iterations": "1770"},
            "mid_train": {"--target-seconds": None, "--num-iterations": "550"},
            "chat_sft": {"--target-seconds": None, "--num-iterations": "543"},
        },
    ),
    "1gpu": GoldenScale("real text on one GPU", {"scale": "1gpu", "data": "climbmix"}),
    "8xh100": GoldenScale("real text on eight H100s", {"scale": "8xh100", "data": "climbmix"}),
}


@options("golden")
class Config:
    """Say whether this code on this machine still gets the published figures of a scale."""

    scale: Literal["auto", GoldenName] = option("auto", "the published runs (auto: tiny, or the scale of --run)")
    seeds: Count = option(0, f"runs, with seeds from 1 on (0: {RUNS}, or {PUBLISHED_RUNS} with --write)", least=1)
    run: str = option("", "tags of runs that have finished, separated by commas: they are judged, nothing is trained")
    flags: str = option("", "flags of scripts.base_train for the new runs, in quotes")
    write: bool = option(False, "measure the published figures of the scale anew")
    golden: str = option("", "file with the published figures (default: bench/golden.json)")
    json: JsonFile = option(
        "", "also write the rows, machine, date and commit as JSON; without a file, print that alone"
    )


def main(config: Config) -> None:
    findings = Findings("golden", config.json)
    path = Path(config.golden).expanduser() if config.golden else FILE
    words = check_question(config)
    if config.write:
        write(config, path, findings)
        return
    tags = list(dict.fromkeys(filter(None, config.run.split(","))))
    name = scale_of(config.scale, tags)
    published = load(path, name)
    tags = tags or train(name, config.seeds or RUNS, words)
    runs = [read_run(tag, published.conditions) for tag in tags]
    check_seeds(runs)
    for run in runs:
        check_run(published, run)
    judged = judge(published.figures, [run.figures for run in runs])
    answer = overall(judged)
    show(name, published, runs, judged, findings)
    notes = notes_of(published, runs)
    print0("", *(f"note: {note}" for note in notes), verdict(judged), *metric_lines(judged, runs), sep="\n")
    about = {"scale": name, "flags": words, "runs": [run.name for run in runs], "published": published.record()}
    findings.write(findings.object() | about | {"notes": notes, "answer": answer})
    if answer != "published":
        raise SystemExit(10)


def check_question(config: Config) -> list[str]:
    """Return the words of --flags, with dashes; a UserError for flags that do not go together."""
    words = []
    for word in shlex.split(config.flags):
        flag, equals, value = word.partition("=")
        if not flag.startswith("--"):
            raise UserError(f"--flags: {word} is no flag, write flags as --name=value")
        flag = flag.replace("_", "-")
        if flag in OWN_FLAGS or flag in map(flag_of, CONDITIONS):
            raise UserError(f"--flags: {flag} makes it another run, which no published figure is of")
        words.append(flag + equals + value)
    parse(Training, words)  # a flag that it does not know
    for other in ("write", "run"):
        if words and getattr(config, other):
            raise UserError(f"--flags is for new runs that are judged: leave out --{other}")
    if config.run and (config.write or config.seeds):
        raise UserError(f"--run trains nothing: leave out --{'write' if config.write else 'seeds'}")
    if config.write and 0 < config.seeds < FEWEST:
        raise UserError(f"--seeds={config.seeds}: published figures have {FEWEST} runs or more")
    return words


def scale_of(asked: str, tags: Sequence[str]) -> str:
    """Return the scale of a question: as asked, that of the finished runs, or the smallest."""
    if asked != "auto" or not tags:
        return asked if asked != "auto" else "tiny"
    plan = saved_record(stage_dir("speedrun", tags[0]) / "plan.json")
    found = plan.get("settings", {}).get("scale")
    if not found:
        raise UserError(
            f"there is no run {tags[0]} of bash speedrun.sh below {base_dir()}: name its scale with --scale"
        )
    check_names("the scale", [found], SCALES)
    return found


# ---- new runs ----


def train(name: str, count: int, words: Sequence[str]) -> list[str]:
    """Train the runs of a scale that have not finished, with seeds from 1 on, and return the tags of all.

    They have a base folder of their own below NANOCHAT_BASE_DIR, for the code as it is now: other code has other runs.
    It is the base folder of this process from here on.
    """
    scale = SCALES[name]
    code = code_hash(words)
    folder = base_dir().resolve() / "golden" / f"{name}-{code}"
    os.environ["NANOCHAT_BASE_DIR"] = str(folder)
    print0(f"golden: {name}: {scale.description}")
    tags = []
    for seed in range(1, count + 1):
        tag = f"seed-{seed}"
        print0(f"golden: run {seed} of {count}, in {folder}")
        run_series("golden", tag, with_world(scale, steps_of(name, tag, seed, words)))
        for checkpoint in folder.glob(f"*/{tag}/step_*"):
            shutil.rmtree(checkpoint)  # the figures stay
        if code_hash(words) != code:
            raise UserError("the code was changed while it ran: run the same command again")
        tags.append(tag)
    return tags


def code_hash(words: Sequence[str]) -> str:
    """Return a hash of what decides the figures of a seed: flags, code, packages and the machine."""
    about = [*words, versions(), hardware(), os.environ.get("NANOCHAT_DTYPE", "")]
    digest = hashlib.sha256(repr(about).encode())
    for top in map(ROOT.joinpath, CODE):
        for path in sorted(top.rglob("*")) if top.is_dir() else filter(Path.is_file, [top]):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def steps_of(name: str, tag: str, seed: int, words: Sequence[str]) -> list[Step]:
    """Return the steps of a run: those of the main job, with the world of seed 1 for every seed."""
    scale = SCALES[name]
    setting = choose_setting(PlanSettings(tag=tag, **scale.plan))
    if setting.name not in CPU_SCALES and not setting.gpus:
        raise UserError(f"--scale={name} is for a machine with GPUs, and this one has none")
    flags = stage_flags(setting)
    for stage, changes in scale.changes.items():
        changed: dict[str, str | None] = {**flags[stage], **changes}
        flags[stage] = {flag: value for flag, value in changed.items() if value is not None}
    for stage in TRAINING:
        flags[stage]["--seed"] = str(seed)
    flags["base_train"] |= read_flags(words)
    base = base_run(flags["base_train"], setting)
    job = make_job(setting, flags, base.tokens, {task: TASKS[task].files() for task in READ}, NEEDS)
    last = STEPS.index(setting.request.until or STEPS[-1])
    left_out = {*LEFT_OUT, *STEPS[last + 1 :]} | {step.name for step in job.steps if step.skip == NOTHING}
    return [step for step in job.steps if step.name not in left_out]


def with_world(scale: GoldenScale, steps: Sequence[Step]) -> Iterator[Step]:
    """Yield the steps, once the world that they read is there."""
    if scale.world:
        from nanochat.world.writer import ensure_world

        ensure_world(world_dir(1), 1, scale.world)
    yield from steps


# ---- publishing ----


def write(config: Config, path: Path, findings: Findings) -> None:
    """Measure the figures of a scale, and write them into the file."""
    name = scale_of(config.scale, [])
    commit = git("log", "-1", "--format=%h", "--", *CODE)  # the last one that changed anything of it
    if not commit:
        raise UserError(f"published figures are of a commit: {ROOT} is no git checkout")
    changes = git("status", "--porcelain", "--", *CODE)
    if changes:
        raise UserError(f"published figures are of a commit: commit {changes.split()[1]} first")
    before = read_file(path)  # now: a file that cannot be read is found before the work
    runs = [read_run(tag) for tag in train(name, config.seeds or PUBLISHED_RUNS, [])]
    published = publish(runs, commit, time.strftime("%Y-%m-%d"))
    record: Record = published.record() | {"machine": {"Processor": platform.machine(), **published.machine}}
    write_json(path, before | {name: record})
    rows = [[f"{one['stage']}: {one['figure']}", one["mean"], one["deviation"]] for one in record["figures"]]
    findings.show(table_of(f"Scale {name}, {len(runs)} seeds", "Figure | Mean:.4f | Deviation:.4f", rows))
    print0(f"golden: {path} is new: look at it, and commit it")
    findings.write(findings.object() | {"scale": name, "published": record})


# ---- words ----


def show(name: str, published: Published, runs: Sequence[Run], judged: Sequence[Judged], findings: Findings) -> None:
    """Print what was compared, and the figures."""
    print0(
        f"\nscale {name}: {len(runs)} runs here, {len(published.seeds)} published ones of commit {published.commit},"
        f" {published.date}, {published.precision}, torch {published.versions.get('torch', 'unknown')}"
    )
    for one in judged:
        findings.add(
            stage=one.key[0],
            figure=one.key[1],
            published=one.published,
            interval=one.half,
            here=one.here,
            difference=one.difference,
            answer=one.answer,
        )
    rows = [
        [": ".join(one.key), f"{one.published:.4f} ± {one.half:.4f}", f"{one.here:.4f}", one.words] for one in judged
    ]
    note = f"± is where the mean of {len(runs)} runs of the published code lies: all figures together, with 95 %."
    print0(terminal_table(table_of("", "Figure | Published | Here | Answer", rows, note)))


def notes_of(published: Published, runs: Sequence[Run]) -> list[str]:
    """Return what a reader should know of a comparison."""
    notes = []
    here = ", ".join(dict.fromkeys(run.precision for run in runs))
    if here != published.precision:
        notes.append(f"these runs are in {here}, the published ones in {published.precision}")
    torch, before = runs[0].versions.get("torch"), published.versions.get("torch")
    if torch != before:
        notes.append(f"these runs have torch {torch}, the published ones {before}")
    equal = equal_runs(published, runs)
    if equal:
        notes.append(
            f"{equal} of {len(runs)} runs have every figure of the published run of their seed, to the last digit"
        )
    return notes


def verdict(judged: Sequence[Judged]) -> str:
    """Return the answer for people."""
    wrong = [f"{': '.join(one.key)} is {one.words}" for one in judged if one.answer in ("worse", "better")]
    if wrong:
        return f"not as published: {'; '.join(wrong)}"
    which = "every figure" if all(one.is_judged for one in judged) else "every figure that can be judged"
    return f"as published: {which} is within its interval"


def metric_lines(judged: Sequence[Judged], runs: Sequence[Run]) -> list[str]:
    """Return the answer for programs, in the grammar of scripts.trial."""
    metrics: dict[str, object] = {}
    for one in judged:
        name = re.sub(r"\W+", "_", "_".join(one.key)).lower()
        metrics |= {
            name: f"{one.here:.6f}",
            f"{name}_published": f"{one.published:.6f}",
            f"{name}_interval": f"{one.half:.6f}",
            f"{name}_answer": one.answer.replace(" ", "_"),
        }
    metrics |= {"runs": len(runs), "answer": overall(judged)}
    return [f"METRIC {name}={value}" for name, value in metrics.items()]


if __name__ == "__main__":
    run_script(main)
