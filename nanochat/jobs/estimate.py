"""Estimates for the main job: time and dollars for each step, disk, on this machine or on named hardware.

A step's time is, in this order: the measured time in this job; the time given by a flag; the time measured for the
scale; or the tokens in a table times their cost, divided by speed. Each estimate names a basis.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nanochat.cores import usable_cores
from nanochat.environment import ROOT
from nanochat.errors import UserError
from nanochat.hardware import fp8_gain
from nanochat.jobs.plan import TRAINING, Setting, gpus_of, planned_nodes, skipped_lines
from nanochat.jobs.runner import Job, Step, parent_hashes, reason_to_repeat, saved_record
from nanochat.jobs.scales import CPU_SCALES, Flags, flag_words, read_flags, time_factor
from nanochat.log import duration, table_of, terminal_table
from nanochat.paths import base_dir, stage_dir
from nanochat.timing import (
    CORE_TOKENS,
    GSM8K_PROMPTS,
    MID_TOKENS,
    SFT_TOKENS,
    WARM_SECONDS,
    Pace,
    Part,
    Pause,
    parts_of,
    seconds_of,
)

# Imports, loading and the first graphs when a stage that does not train starts; assumed. timing.py has training's.
GPU_START_SECONDS = 30.0
CPU_START_SECONDS = 3.0
DOWNLOAD_SPEED = 5e7  # bytes a second

CHECKPOINTS = len(TRAINING) + 2  # kept at the same time
TEXT_BYTES = 2.5  # compressed, for each token in the hub's text
COMPILED = ("mid_train", "chat_sft")  # stages after base training; reinforcement learning runs uncompiled
TASK_BYTES = 2e9  # of chats and benchmarks: nearly all of it is SmolTalk
FINISHED = "finished"  # basis for a step that will be skipped


@dataclass(frozen=True)
class BaseRun:
    """Figures for base training, before the start."""

    tokens: int  # 0 if a clock ends the run
    checkpoint: int = 0  # bytes on disk: the weights in fp32, and the optimizer's states
    flops: float = 0.0  # per token, forward and backward
    rate: float = 0.0  # FLOP/s of all devices together while training; 0: not known
    basis: str = "not known"  # of the rate
    fp8_gain: float = 1.0  # that the rate has: the stages after it train and score in bf16
    seconds: float = 0.0  # of the whole command, evaluations and saves included; 0: not known
    notes: tuple[str, ...] = ()  # lines about memory, and what the seconds are spent on

    @property
    def rate_after(self) -> float:
        """FLOP/s of all devices in the stages after base training."""
        return self.rate / self.fp8_gain


@dataclass(frozen=True)
class Rollouts:
    """Answers that reinforcement learning samples."""

    steps: int
    answers: int  # in a step
    longest: int  # tokens
    tests: int  # answers to test prompts, every `every` steps
    every: int


@dataclass(frozen=True)
class Work:
    """The work in a step at a scale."""

    tokens: float = 0.0  # in millions
    cost: float = 1.0  # FLOPs of a token relative to training: a third to score it, on a GPU 13 to sample it
    seconds: float = 0.0  # measured for all of the step, or else for work without a model
    scored: float = 0.0  # tokens in millions that the evaluations of a training stage pass forward, all times together
    rollouts: Rollouts | None = None  # in reinforcement learning


# CPU scale, or gpu for the others -> step -> work. Counted for each scale's flags; without a flag that limits a stage,
# all of its public data. The seconds of the embedded scale were measured on two cores.
WORK = {
    "embedded": {
        "preflight": Work(seconds=11),
        "tok_train": Work(seconds=10),
        "tok_eval": Work(seconds=8),
        "base_train": Work(seconds=285),
        "base_loss": Work(tokens=0.1, seconds=16),
        "base_eval": Work(tokens=1.6, seconds=8),
        "mid_train": Work(tokens=0.25, seconds=65),
        "chat_eval_mid": Work(tokens=0.2, seconds=13),
        "chat_sft": Work(tokens=0.16, seconds=56),
        "chat_eval_sft": Work(tokens=0.2, seconds=15),
        "chat_rl": Work(tokens=0.48, seconds=80),
        "chat_eval_rl": Work(tokens=0.2, seconds=13),
        "report": Work(seconds=1),
    },
    "cpu": {
        "preflight": Work(seconds=30),
        "tok_train": Work(seconds=100),
        "tok_eval": Work(seconds=10),
        "base_loss": Work(tokens=0.25, cost=0.33),
        "base_eval": Work(tokens=1.6, cost=0.33),
        # Validation on 0.125 M tokens, before and after; some problems by letter.
        "mid_train": Work(scored=0.3),
        "chat_sft": Work(scored=0.3),
        "chat_eval_mid": Work(tokens=0.34, cost=0.73),
        "chat_eval_sft": Work(tokens=0.34, cost=0.73),
        "chat_rl": Work(tokens=2.6, cost=1.2),
        "chat_eval_rl": Work(tokens=0.34, cost=0.73),
        "report": Work(seconds=10),
    },
    "gpu": {
        "preflight": Work(seconds=30),
        "tok_train": Work(seconds=100),
        "tok_eval": Work(seconds=10),
        "base_loss": Work(tokens=2, cost=0.33),
        "base_eval": Work(tokens=CORE_TOKENS / 1e6, cost=0.33),
        # Validation on 5 M tokens, 4 times in mid-training and 6 in SFT; problems by letter, 0.6 M tokens, 3 times.
        "mid_train": Work(tokens=MID_TOKENS / 1e6, scored=22),
        "chat_eval_mid": Work(tokens=3.4, cost=3.2),
        "chat_sft": Work(tokens=SFT_TOKENS / 1e6, scored=32),
        "chat_eval_sft": Work(tokens=3.4, cost=3.2),
        # One pass over GSM8K: 16 prompts a step, 16 answers to each, of 230 tokens with the prompt.
        "chat_rl": Work(tokens=27.5, rollouts=Rollouts(GSM8K_PROMPTS // 16, 256, 256, tests=400, every=60)),
        "chat_eval_rl": Work(tokens=3.4, cost=3.2),
        "report": Work(seconds=10),
    },
}


@dataclass(frozen=True)
class StepEstimate:
    """The estimate for a step."""

    seconds: float  # 0: not known
    tokens: float  # 0: none, or not known
    basis: str  # measured, as asked, or assumed, in words
    parts: Sequence[Part] = ()  # of the seconds, in stages that train


# ---- base training on paper ----


def base_run(flags: Flags, setting: Setting) -> BaseRun:
    """Return the figures for base training on this machine or named hardware; a UserError if training cannot run."""
    if setting.scale.world:
        # Times are measured: the tokens alone, without waiting for a dry run.
        return BaseRun(tokens=int(flags.get("--num-iterations", 0)) * int(flags["--total-batch-size"]))
    named = ""  # all of this machine
    if setting.accelerator and (setting.request.on or setting.idle or planned_nodes() > 1):
        named = f"{setting.gpus}x{setting.accelerator.name}"
    # A process, so that the plan alone does not import torch.
    command = [sys.executable, "-m", "scripts.base_train", "--dry-run", "--json", f"--on={named}", *flag_words(flags)]
    # The vocabulary that the scale will train: another run's tokenizer may lie in the folder, of another size.
    command.append(f"--vocab-size={setting.scale.flags['tok_train']['--vocab-size']}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        # The last line is the message for users.
        raise UserError(done.stderr.strip().splitlines()[-1].removeprefix("error: "))
    record = json.loads(done.stdout)
    plan = record["plan"]
    cost = record["estimate"]
    gain = 1.0
    if "--fp8" in flags and setting.accelerator:
        gain, _ = fp8_gain(setting.accelerator, setting.depth)
    return BaseRun(
        tokens=plan["tokens"] or 0,
        checkpoint=4 * plan["counts"]["total"] + plan["state_bytes"],
        flops=plan["flops_per_token"],
        rate=(cost["rate"] or 0.0) * cost["ranks"],
        basis=cost["source"],
        fp8_gain=gain,
        seconds=cost["seconds"] or 0.0,
        notes=tuple(record["lines"][:-1]),  # the last line is the time, which is estimated here
    )


# ---- seconds ----


def finished_steps(job: Job, setting: Setting) -> set[str]:
    """Return the names of steps that take no time any more: their results are here, and are those of the plan.

    Downloads run each time, and find their files.
    """
    finished: set[str] = set()
    if setting.request.fresh or setting.request.on:
        return finished
    repeated = set()  # stages that will be made again
    for step in job.steps:
        record = saved_record(job.record(step))
        is_here = step.outcome.exists() if step.output else step.name.startswith("download")
        is_current = record.get("finished") and is_here and step.parent not in repeated
        # Text and data sets are read when the step begins, not here: that takes time, and may write an embedded world.
        if is_current and not reason_to_repeat(record, step, parent_hashes(step)):
            finished.add(step.name)
        elif step.output and not step.skip:
            repeated.add(step.output)
    return finished


def estimate_step(
    job: Job, step: Step, setting: Setting, base: BaseRun, finished: Collection[str] = ()
) -> StepEstimate:
    """Return the estimate for a step. finished: names of the steps that will be skipped."""
    kind = setting.name if setting.name in CPU_SCALES else "gpu"
    work = WORK[kind].get(step.name, Work())
    flags = read_flags(step.command[1:])
    factor = time_factor(setting.scale, setting.request.seconds)
    tokens = work.tokens * 1e6 * (factor if "--num-iterations" in flags else 1)
    if step.name == "base_train":
        tokens = base.tokens
    if step.name in finished:
        return StepEstimate(saved_record(job.record(step))["seconds"], tokens, FINISHED)
    if "--target-seconds" in flags:
        clock = float(flags["--target-seconds"])
        if step.name == "base_train":
            return StepEstimate(base.seconds or clock, 0, "as asked")
        parts = tuning_parts(step.name, clock, work, setting, base)
        return StepEstimate(seconds_of(parts) if parts else clock, 0, "as asked", parts)
    # The tasks were those of a world.
    if setting.scale.world and work.seconds and (setting.world or not step.name.startswith(("base_eval", "chat_eval"))):
        # The width is fixed: time grows with depth, and with --seconds.
        seconds = work.seconds * factor * setting.depth / setting.scale.depth
        return StepEstimate(seconds, tokens, "measured on 2 cores")
    if not base.rate:
        return StepEstimate(0.0, tokens, base.basis)
    if step.name == "base_train" and base.seconds:
        return StepEstimate(base.seconds, tokens, base.basis)
    if step.name in COMPILED or work.rollouts:
        idle = max(1, setting.gpus) / max(1, gpus_of(setting, step.name))  # as many times as long
        parts = tuning_parts(step.name, idle * tokens * base.flops / base.rate_after, work, setting, base)
        return StepEstimate(seconds_of(parts), tokens, base.basis, parts)
    start = GPU_START_SECONDS if setting.gpus else CPU_START_SECONDS
    rate = base.rate if step.name == "base_train" else base.rate_after
    seconds = start + work.seconds + tokens * work.cost * base.flops / rate
    if step.name == "download":
        seconds += base.tokens * TEXT_BYTES / DOWNLOAD_SPEED
    if step.name == "download_tasks":
        seconds += TASK_BYTES / DOWNLOAD_SPEED
    return StepEstimate(seconds, tokens, base.basis)


def tuning_parts(name: str, training: float, work: Work, setting: Setting, base: BaseRun) -> list[Part]:
    """Return the parts of a stage that fine-tunes for so many seconds; none if the speed is not known."""
    if not base.rate:
        return []
    ranks = max(1, gpus_of(setting, name))
    rate = base.rate_after / max(1, setting.gpus)  # of a rank
    pace = Pace(setting.depth, base.flops, rate, ranks, on_gpu=setting.gpus > 0)
    steps = 1
    sampling = compiling = 0.0
    pauses = [Pause("evaluations", 0, scored=1e6 * work.scored)]
    if name in COMPILED:
        compiling = WARM_SECONDS.get(pace.device) or pace.compiling(searches=True, validates=True)
    if work.rollouts:
        drawn = work.rollouts
        steps = drawn.steps
        sampling = steps * pace.sampling(drawn.answers / ranks, drawn.longest)
        pauses = [Pause("test scores", drawn.every, at_start=True, rows=drawn.tests / ranks, length=drawn.longest)]
    return parts_of(
        pace,
        steps=steps,
        training=training,
        sampling=sampling,
        compiling=compiling,
        pauses=pauses,
        save_every=work.rollouts.every if work.rollouts else 0,
        saved=base.checkpoint,
    )


# ---- the plan in words ----


def job_lines(job: Job, setting: Setting, base: BaseRun) -> list[str]:
    """Return the plan as lines for the reader; a UserError if the disk has too little room."""
    rows = []
    coming = []  # time still to come, in seconds: finished steps are skipped
    spent = []  # lines about the time of stages
    finished = finished_steps(job, setting)
    for step in job.steps:
        if step.skip:
            continue
        estimate = estimate_step(job, step, setting, base, finished)
        tokens = f"{estimate.tokens / 1e6:,.1f} M" if estimate.tokens else None
        time = duration(estimate.seconds) if estimate.seconds else None
        basis = estimate.basis.partition(":")[0]  # its reason follows the table
        is_beside = step.name == "download_tasks"  # base training, which takes longer
        price = None if is_beside else dollars(estimate.seconds, setting)
        rows.append([step.name, tokens, time, price, basis])
        if estimate.basis != FINISHED and not is_beside:
            coming.append(estimate.seconds)
        if estimate.parts:
            spent.append(f"{step.name}: of the time: {', '.join(map(str, estimate.parts))}")
    whole = f"about {duration(sum(coming))}" if all(coming) else "not known"
    gpus = f"{setting.gpus} x {setting.accelerator.name}" if setting.accelerator else "no GPU"
    idle = f", {setting.idle} more are idle (rows of a batch are a power of two)" if setting.idle else ""
    text = f"the embedded world in {setting.world}" if setting.world else setting.data
    return [
        f"scale: {setting.name}, {setting.scale.description}: {setting.reason}",
        f"machine: {usable_cores()} cores, {gpus}{idle}; depth {setting.depth}",
        f"text: {text}",
        terminal_table(table_of("", "Step | Tokens | Time | Dollars | Estimate", rows)),
        *skipped_lines(job.steps),
        *([f"speed: {base.basis}"] if base.rate else []),
        *(f"base_train: {line}" for line in base.notes),
        *spent,
        f"in all: {whole}, {disk_room(job, setting, base)}, dollars {dollars(sum(coming), setting)}",
        f"logs and records: {job.folder}",
    ]


def dollars(seconds: float, setting: Setting) -> str:
    """Return the price for some time on all GPUs, idle ones too, or n/a."""
    rate = setting.accelerator.dollars if setting.accelerator else None  # per GPU and hour
    return "n/a" if rate is None else f"{rate * (setting.gpus + setting.idle) * seconds / 3600:,.2f}"


def disk_room(job: Job, setting: Setting, base: BaseRun) -> str:
    """Return needed and free disk in words; a UserError if this machine has too little."""
    needed = CHECKPOINTS * base.checkpoint + TEXT_BYTES * base.tokens
    if setting.scale.disk:
        # Measured at the scale's depth; a model with a small vocabulary grows by about this power of depth.
        needed = 1e9 * setting.scale.disk * (setting.depth / setting.scale.depth) ** 2.5
    # The base folder may not be there yet: ask the file system that will hold the data.
    home = base_dir().absolute()
    existing = next(path for path in [home, *home.parents] if path.exists())
    free = shutil.disk_usage(existing).free
    # Not for named hardware. A resumed run has written a part already; each stage checks the room for its checkpoints.
    if needed > free and not (setting.request.on or stage_dir("base_train", job.tag).exists()):
        raise UserError(
            f"{base_dir()} has too little room: {needed / 1e9:.1f} GB are needed, "
            f"{(needed - free) / 1e9:.1f} are missing; free some, or set NANOCHAT_BASE_DIR"
        )
    return f"{needed / 1e9:.1f} GB of disk ({free / 1e9:.1f} are free)"
