"""Estimates for the main job: time and dollars for each step, disk, on this machine or on named hardware.

A step's time is, in this order: the measured time in this job; the time given by a flag; the time measured for the
scale; or work divided by speed. Work is counted in tokens: trained, scored, generated. Each estimate names a basis.
"""

import json
import os
import shutil
import subprocess
import sys
from typing import NamedTuple

from nanochat.jobs.plan import TRAINING, Setting, skipped_lines
from nanochat.jobs.runner import Job, Step, read_record
from nanochat.jobs.scales import Flags, flag_words, read_flags, time_share
from nanochat.log import duration, table_of, terminal_table
from nanochat.outcome import ROOT
from nanochat.paths import base_dir, stage_dir

GENERATION = {True: 0.025, False: 0.2}  # on a GPU or not: FLOP/s, sampling relative to training
START_SECONDS = {True: 30.0, False: 3.0}  # on a GPU or not: imports, loading and compiling when a stage starts
DOWNLOAD_SPEED = 5e7  # bytes a second
TOKENIZER_SPEED = 2e7  # characters a second, while the vocabulary is learned

# Sizes from the public data sets, used if no flag limits the work.
MIXTURE_TOKENS = {"mid_train": 4.4e8, "chat_sft": 1.4e7}  # one pass over the default mixture
CORE_TASKS = 22
CORE_QUESTIONS = 66835
CORE_TOKENS = 720  # in a question with the examples before
CHOICE_TASKS = 4  # ARC, MMLU, AQUA: the answer is a letter
CHOICE_QUESTIONS = 17844
PROMPT_TOKENS = 150  # in a question of a chat task
WRITTEN_TASKS = 2  # GSM8K, HumanEval: the answer is generated
WRITTEN_QUESTIONS = 1483
RL_QUESTIONS = 7473  # GSM8K, with the defaults of scripts.chat_rl
RL_EXAMPLES = 16  # in a step
RL_SAMPLES = 4
BYTES_PER_TOKEN = 4.0  # English text, large vocabulary

CHECKPOINT_BYTES = 12  # on disk, for each parameter, at most
CHECKPOINTS = len(TRAINING) + 2  # kept at the same time
TEXT_BYTES = 2.5  # compressed, for each token in the hub's text
FINISHED = "finished"  # basis for a step that will be skipped


class BaseRun(NamedTuple):
    """Figures for base training, before the start."""

    tokens: int  # 0 if a clock ends the run
    batch: int  # tokens per step
    parameters: int = 0
    flops: float = 0.0  # per token, forward and backward
    rate: float = 0.0  # FLOP/s of all devices together while training; 0: not known
    basis: str = "not known"  # of the rate
    notes: tuple[str, ...] = ()  # lines about memory


class Work(NamedTuple):
    """The work in a step, in tokens."""

    trained: float = 0.0  # forward and backward
    scored: float = 0.0  # forward only
    generated: float = 0.0  # a token at a time
    seconds: float = 0.0  # work without the model, already as time

    @property
    def tokens(self) -> float:
        return self.trained + self.scored + self.generated


class StepEstimate(NamedTuple):
    """The estimate for a step."""

    seconds: float  # 0: not known
    tokens: float  # 0: none, or not known
    basis: str  # measured, as asked, or assumed, in words


# ---- base training on paper ----


def dry_run(flags: Flags, setting: Setting) -> BaseRun:
    """Return the figures for base training on this machine or named hardware; a ValueError if training cannot run."""
    if setting.scale.seconds:
        # Times are measured: the tokens alone, without waiting for a dry run.
        batch = int(flags.get("--total-batch-size", 0))
        return BaseRun(tokens=int(flags.get("--num-iterations", 0)) * batch, batch=batch)
    # Empty: all of this machine.
    named = f"{setting.gpus}x{setting.accelerator.name}" if setting.request.on or setting.idle else ""
    # A process, so that the plan alone does not import torch.
    command = [sys.executable, "-m", "scripts.base_train", "--dry-run", "--json", f"--on={named}", *flag_words(flags)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        # The last line is the message for users.
        raise ValueError(done.stderr.strip().splitlines()[-1].removeprefix("error: "))
    record = json.loads(done.stdout)
    plan, cost = record["plan"], record["estimate"]
    return BaseRun(
        tokens=plan["tokens"] or 0,
        batch=plan["total_batch_size"],
        parameters=plan["counts"]["total"],
        flops=plan["flops_per_token"],
        rate=(cost["rate"] or 0.0) * cost["ranks"],
        basis=cost["source"],
        notes=tuple(record["lines"][:-1]),  # the last line is the time, which is estimated here
    )


# ---- the work in each step ----


def step_work(name: str, flags: Flags, base: BaseRun) -> Work:
    """Return the work in a step of the main job. Without a flag that limits it, all of the public data is read."""

    def limited(flag: str, default: float) -> float:
        return float(flags.get(flag, default))

    if name == "download":
        return Work(seconds=base.tokens * TEXT_BYTES / DOWNLOAD_SPEED)
    if name == "tok_train":
        return Work(seconds=limited("--max-chars", 2e9) / TOKENIZER_SPEED)
    if name == "base_train":
        return Work(trained=base.tokens)
    if name == "base_loss":
        return Work(scored=2 * limited("--eval-bytes", 4e6) / BYTES_PER_TOKEN)  # training and validation text
    if name == "base_eval":
        limit = limited("--max-per-task", CORE_QUESTIONS)
        return Work(scored=min(CORE_QUESTIONS, limit * CORE_TASKS) * CORE_TOKENS)
    if name in MIXTURE_TOKENS:
        # Tuning inherits the batch size; without a step count the mixture is read once.
        return Work(trained=limited("--num-iterations", 0) * base.batch or MIXTURE_TOKENS[name])
    if name.startswith("chat_eval"):
        limit = limited("--max-problems", CHOICE_QUESTIONS)
        choices = min(CHOICE_QUESTIONS, limit * CHOICE_TASKS)
        written = min(WRITTEN_QUESTIONS, limit * WRITTEN_TASKS)
        # At most: many answers end earlier.
        return Work(scored=choices * PROMPT_TOKENS, generated=written * limited("--max-new-tokens", 512))
    if name == "chat_rl":
        steps = limited("--num-iterations", RL_QUESTIONS // RL_EXAMPLES)
        length = limited("--max-new-tokens", 256)
        samples = steps * RL_EXAMPLES * limited("--num-samples", RL_SAMPLES)
        tested = (2 + steps // 60) * limited("--eval-examples", 400)  # at the ends, and every 60 steps
        return Work(trained=samples * (PROMPT_TOKENS + length), generated=(samples + tested) * length)
    return Work(seconds=10)  # the world, compression, the card


# ---- seconds ----


def work_seconds(work: Work, setting: Setting, base: BaseRun) -> float:
    """Return the time for some work in seconds."""
    on_gpu = setting.gpus > 0
    forward = base.flops / 3  # per token; the backward pass costs twice as much
    # FLOPs, as if sampling ran at training speed; each sampled token reads all weights.
    flops = work.trained * base.flops + (work.scored + work.generated / GENERATION[on_gpu]) * forward
    return START_SECONDS[on_gpu] + work.seconds + flops / base.rate


def estimate_step(job: Job, step: Step, setting: Setting, base: BaseRun) -> StepEstimate:
    """Return the estimate for a step."""
    flags = read_flags(step.command[1:])
    work = step_work(step.name, flags, base)
    record = read_record(job.record(step))
    # A step with other flags will be repeated, so the old time does not count.
    if record.get("finished") and record["command"] == step.command:
        return StepEstimate(record["seconds"], work.tokens, FINISHED)
    if "--target-seconds" in flags:
        return StepEstimate(float(flags["--target-seconds"]), 0, "as asked")
    scale = setting.scale
    # The scale was measured with the tasks of a world.
    measured = setting.world or not step.name.startswith(("base_eval", "chat_eval"))
    if measured and step.name in scale.seconds:
        # The width is fixed: time grows with depth, and with --seconds.
        share = setting.depth / scale.depth * time_share(scale, setting.request.seconds)
        return StepEstimate(scale.seconds[step.name] * share, work.tokens, "measured on 2 cores")
    return StepEstimate(work_seconds(work, setting, base) if base.rate else 0.0, work.tokens, base.basis)


# ---- the plan in words ----


def plan_lines(job: Job, setting: Setting, base: BaseRun) -> list[str]:
    """Return the plan as lines for the reader; a ValueError if the disk has too little room."""
    rows = []
    coming = []  # time still to come, in seconds: finished steps are skipped
    for step in job.steps:
        if step.skip:
            continue
        estimate = estimate_step(job, step, setting, base)
        tokens = f"{estimate.tokens / 1e6:,.1f} M" if estimate.tokens else None
        time = duration(estimate.seconds) if estimate.seconds else None
        basis = estimate.basis.partition(":")[0]  # its reason follows the table
        rows.append([step.name, tokens, time, dollars(estimate.seconds, setting), basis])
        if estimate.basis != FINISHED:
            coming.append(estimate.seconds)
    whole = f"about {duration(sum(coming))}" if all(coming) else "not known"
    gpus = f"{setting.gpus} x {setting.accelerator.name}" if setting.accelerator else "no GPU"
    idle = f", {setting.idle} more are idle (rows of a batch are a power of two)" if setting.idle else ""
    text = f"the embedded world in {setting.world}" if setting.world else setting.data
    return [
        f"scale: {setting.name}, {setting.scale.description}: {setting.reason}",
        f"machine: {os.cpu_count()} cores, {gpus}{idle}; depth {setting.depth}",
        f"text: {text}",
        terminal_table(table_of("", "Step | Tokens | Time | Dollars | Estimate", rows)),
        *skipped_lines(job.steps),
        *([f"speed: {base.basis}"] if base.rate else []),
        *(f"base_train: {line}" for line in base.notes),
        f"in all: {whole}, {disk_room(job, setting, base)}, dollars {dollars(sum(coming), setting)}",
        f"logs and records: {job.folder}",
    ]


def dollars(seconds: float, setting: Setting) -> str:
    """Return the price for some time on all GPUs at work, or n/a."""
    rate = setting.accelerator.dollars if setting.accelerator else None  # per GPU and hour
    return f"{rate * setting.gpus * seconds / 3600:,.2f}" if rate else "n/a"


def disk_room(job: Job, setting: Setting, base: BaseRun) -> str:
    """Return needed and free disk in words; a ValueError if this machine has too little."""
    needed = CHECKPOINT_BYTES * base.parameters * CHECKPOINTS + TEXT_BYTES * base.tokens
    if setting.scale.disk:
        # Measured at the scale's depth; a model with a small vocabulary grows by about this power of depth.
        needed = 1e9 * setting.scale.disk * (setting.depth / setting.scale.depth) ** 2.5
    # A resumed run has written a part already.
    folders = [stage_dir(stage, job.tag) for stage in TRAINING]
    used = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    # The base folder may not be there yet: ask the file system that will hold the data.
    home = base_dir().absolute()
    existing = next(path for path in [home, *home.parents] if path.exists())
    free = shutil.disk_usage(existing).free
    missing = needed - used - free
    # For named hardware the local disk does not matter.
    if missing > 0 and not setting.request.on:
        raise ValueError(
            f"{base_dir()} has too little room: {needed / 1e9:.1f} GB are needed, {missing / 1e9:.1f} are missing; "
            "free some, or set NANOCHAT_BASE_DIR"
        )
    return f"{needed / 1e9:.1f} GB of disk ({free / 1e9:.1f} are free)"
