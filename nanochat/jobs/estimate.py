"""Estimates for the main job: time and dollars for each step, disk, on this machine or on named hardware.

A step's time is, in this order: the measured time in this job; the time given by a flag; the time measured for the
scale; or work divided by speed. Work is counted in tokens: trained, scored, generated. Each estimate names a basis.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from nanochat.data import hub
from nanochat.hardware import find_accelerator
from nanochat.jobs.plan import TRAINING, Request, Setting, flag_words, skipped_lines
from nanochat.jobs.runner import Job, Step, read_record, recorded_command
from nanochat.jobs.scales import time_share
from nanochat.log import duration, terminal_table
from nanochat.outcome import ROOT, Outcome, environment, read_outcomes
from nanochat.paths import base_dir, stage_dir

Flags = Mapping[str, str]

# Assumed speeds, used where nothing was measured.
MFU = 0.4  # share in the 16-bit peak; nobody measured a gain by fp8, so none is assumed
CPU_FLOPS = 2.5e10  # a core; the embedded run reaches 52 GFLOP/s on two
GENERATION = {"GPU": 0.025, "CPU": 0.2}  # FLOP/s, sampling relative to training: each token reads all weights
DECODE_SECONDS = {"GPU": 0.015, "CPU": 0.0}  # least time for a sampling step, with DECODE_ROWS samples at once
DECODE_ROWS = 64
IN_TRAINING = 0.05  # share in a training stage spent on validation, scores and samples
START_SECONDS = {"GPU": 30.0, "CPU": 3.0}  # imports, loading and compiling when a stage starts
DOWNLOAD_SPEED = 5e7  # bytes a second
TOKENIZER_SPEED = 2e7  # characters a second, while the vocabulary is learned

# Sizes from the public data sets, used if no flag limits the work.
MIXTURE_TOKENS = {"mid_train": 4.4e8, "chat_sft": 1.4e7}  # one pass over the default mixture
CORE = {"tasks": 22, "questions": 66835, "tokens": 720}  # tokens in a question with the examples before
CHOICES = {"tasks": 4, "questions": 17844, "tokens": 150}  # ARC, MMLU, AQUA: the answer is a letter
WRITTEN = {"tasks": 2, "questions": 1483}  # GSM8K, HumanEval: the answer is generated
RL = {"questions": 7473, "prompt": 150, "per_step": 16, "samples": 4}  # GSM8K, defaults of scripts.chat_rl
BYTES_PER_TOKEN = 4.0  # English text, large vocabulary

CHECKPOINT_BYTES = 12  # on disk, for each parameter, at most
CHECKPOINTS = len(TRAINING) + 2  # kept at the same time
TEXT_BYTES = 2.5  # compressed, for each token in the hub's text
FINISHED = "finished"  # basis for a step that will be skipped


@dataclass(frozen=True)
class BaseRun:
    """Figures for base training, before the start."""

    parameters: int
    tokens: int  # 0 if a clock ends the run
    batch: int  # tokens per step
    flops: float  # per token, forward and backward
    notes: list[str]  # lines about memory


@dataclass(frozen=True)
class Work:
    """The work in a step, in tokens."""

    trained: float = 0.0  # forward and backward
    scored: float = 0.0  # forward only
    generated: float = 0.0  # a token at a time
    seconds: float = 0.0  # work without the model, already as time

    @property
    def tokens(self) -> float:
        return self.trained + self.scored + self.generated


@dataclass(frozen=True)
class StepEstimate:
    """The estimate for a step."""

    seconds: float  # 0: not known
    tokens: float  # 0: none, or not known
    basis: str  # measured, as asked, or assumed, in words


# ---- base training on paper ----


def dry_run(flags: Flags, vocab_size: int, hardware_name: str) -> BaseRun:
    """Return the figures for base training on this machine or named hardware; a ValueError if training cannot run.

    vocab_size: the planned vocabulary, because the tokenizer may not be trained yet.
    """
    words = flag_words(flags)
    if hardware_name:
        words.append(f"--on={hardware_name}")
    command = [sys.executable, "-m", "scripts.base_train", "--dry-run", "--json", *words]
    # A process, so that the plan alone does not import torch.
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        # The last line is the message for users.
        message = done.stderr.strip().splitlines()[-1]
        raise ValueError(message.removeprefix("error: "))
    record = json.loads(done.stdout)
    plan = record["plan"]
    counts = plan["counts"]
    # Without a tokenizer the dry run assumes a large vocabulary: take off the share that will not be there.
    too_many = 1 - vocab_size / plan["model"]["vocab_size"]
    missing = int(too_many * (counts["embed"] + counts["head"]))
    return BaseRun(
        parameters=counts["total"] - missing,
        tokens=plan["tokens"] or 0,
        batch=plan["total_batch_size"],
        flops=plan["flops_per_token"] - 6 * too_many * counts["head"],
        notes=record["lines"][:-1],  # the last line is the time, which is estimated here
    )


def base_run_of_flags(flags: Flags) -> BaseRun:
    """Return the figures for a scale with measured times: tokens alone, without waiting for a dry run."""
    batch = int(flags.get("--total-batch-size", 0))
    steps = int(flags.get("--num-iterations", 0))
    # Measured times need neither parameters nor FLOPs.
    return BaseRun(
        parameters=0,
        tokens=steps * batch,
        batch=batch,
        flops=0.0,
        notes=[],
    )


# ---- the work in each step ----


def step_work(name: str, flags: Flags, base: BaseRun) -> Work:
    """Return the work in a step of the main job."""
    return WORK[name](name, flags, base)


def _download(name: str, flags: Flags, base: BaseRun) -> Work:
    return Work(seconds=base.tokens * TEXT_BYTES / DOWNLOAD_SPEED)


def _tokenizer(name: str, flags: Flags, base: BaseRun) -> Work:
    return Work(seconds=float(flags["--max-chars"]) / TOKENIZER_SPEED)


def _base_train(name: str, flags: Flags, base: BaseRun) -> Work:
    return Work(trained=base.tokens)


def _base_loss(name: str, flags: Flags, base: BaseRun) -> Work:
    size = float(flags.get("--eval-bytes", 4e6))
    return Work(scored=2 * size / BYTES_PER_TOKEN)  # training and validation text


def _base_eval(name: str, flags: Flags, base: BaseRun) -> Work:
    limit = int(flags.get("--max-per-task", CORE["questions"]))
    questions = min(CORE["questions"], limit * CORE["tasks"])
    return Work(scored=questions * CORE["tokens"])


def _tuning(name: str, flags: Flags, base: BaseRun) -> Work:
    steps = int(flags.get("--num-iterations", 0))
    # Tuning inherits the batch size; without a step count the mixture is read once.
    return Work(trained=steps * base.batch or MIXTURE_TOKENS[name])


def _chat_eval(name: str, flags: Flags, base: BaseRun) -> Work:
    limit = int(flags.get("--max-problems", CHOICES["questions"]))
    choices = min(CHOICES["questions"], limit * CHOICES["tasks"])
    written = min(WRITTEN["questions"], limit * WRITTEN["tasks"])
    length = int(flags.get("--max-new-tokens", 512))
    return Work(
        scored=choices * CHOICES["tokens"],
        generated=written * length,  # at most; many answers end earlier
    )


def _rl(name: str, flags: Flags, base: BaseRun) -> Work:
    steps = int(flags.get("--num-iterations", RL["questions"] // RL["per_step"]))
    length = int(flags.get("--max-new-tokens", 64))
    samples = steps * RL["per_step"] * RL["samples"]
    evaluations = 2 + steps // 60  # at the ends, and every 60 steps
    tested = evaluations * int(flags.get("--eval-examples", 400))
    return Work(
        trained=samples * (RL["prompt"] + length),
        generated=(samples + tested) * length,
    )


def _short(name: str, flags: Flags, base: BaseRun) -> Work:
    return Work(seconds=10)


WORK = {
    "world": _short,
    "download": _download,
    "tok_train": _tokenizer,
    "tok_eval": _short,
    "base_train": _base_train,
    "base_loss": _base_loss,
    "base_eval": _base_eval,
    "mid_train": _tuning,
    "chat_eval_mid": _chat_eval,
    "chat_sft": _tuning,
    "chat_eval_sft": _chat_eval,
    "chat_rl": _rl,
    "chat_eval_rl": _chat_eval,
    "report": _short,
}


# ---- seconds ----


def training_speed(setting: Setting) -> tuple[float, str]:
    """Return FLOP/s for all devices together (0: not known), and the basis.

    Measured by the finished base training on such hardware, nearest in depth.
    """
    trained = []
    for _, outcome in read_outcomes(base_dir()):
        # A damaged record is text; a run with few steps has no measured speed.
        if not isinstance(outcome, Outcome) or outcome.stage != "base_train":
            continue
        if isinstance(outcome.metrics["Tokens per second"], dict):
            trained.append(outcome)
    # Reading this machine's hardware takes time: only for a comparison.
    here = environment()["Hardware"] if trained else {}
    trained = [outcome for outcome in trained if _same_hardware(outcome.environment["Hardware"], setting, here)]
    if trained:
        nearest = min(trained, key=lambda outcome: abs(outcome.config["depth"] - setting.depth))
        tokens = nearest.metrics["Tokens per second"]
        flops = nearest.metrics["Number of FLOPs per token"]
        return tokens["value"] * flops["value"], f"measured: run {nearest.tag}"
    if not setting.gpus:
        cores = os.cpu_count() or 1
        return cores * CPU_FLOPS, f"assumed: {CPU_FLOPS / 1e9:g} GFLOP/s a core"
    accelerator = setting.accelerator
    precision = accelerator.precision
    peak = accelerator.peak(precision)
    if not peak:
        return 0.0, f"no {precision} speed of {accelerator.name} is known"
    return setting.gpus * peak * MFU, f"assumed: {MFU:.0%} of the {precision} peak"


def _same_hardware(there: Mapping[str, str], setting: Setting, here: Mapping[str, str]) -> bool:
    if setting.planned:
        # Outcomes record GPUs as "8x NVIDIA H100".
        count, _, name = there["GPUs"].partition("x ")
        return count == str(setting.gpus) and find_accelerator(name) == setting.accelerator
    return all(there.get(part) == here[part] for part in ("CPUs", "Memory", "GPUs"))


def work_seconds(work: Work, setting: Setting, base: BaseRun, speed: float) -> float:
    """Return the time for some work in seconds. speed: training FLOP/s."""
    device = "GPU" if setting.gpus else "CPU"
    forward = base.flops / 3  # per token; the backward pass costs twice as much
    # FLOPs, as if sampling ran at training speed
    trained = work.trained * base.flops * (1 + IN_TRAINING)
    scored = work.scored * forward
    generated = work.generated * forward / GENERATION[device]
    computing = (trained + scored + generated) / speed
    # Small models wait for kernel launches, however fast the device is.
    decoding = work.generated / DECODE_ROWS * DECODE_SECONDS[device]
    return START_SECONDS[device] + work.seconds + decoding + computing


def estimate_step(
    job: Job,
    step: Step,
    setting: Setting,
    base: BaseRun,
    speed: tuple[float, str],
    share: float,
) -> StepEstimate:
    """Return the estimate for a step. speed: training FLOP/s, with a basis. share: factor for the scale's times."""
    flags = dict(word.partition("=")[::2] for word in step.command[1:])
    work = step_work(step.name, flags, base)
    record = read_record(job, step)
    # A step with other flags will be repeated, so the old time does not count.
    if record.get("finished") and recorded_command(record) == step.command:
        return StepEstimate(record["seconds"], work.tokens, FINISHED)
    if "--target-seconds" in flags:
        return StepEstimate(float(flags["--target-seconds"]), 0, "as asked")
    measured = setting.scale.seconds.get(step.name)
    if measured:
        basis = "measured on 2 cores" if share == 1 else "in proportion to 2 cores"
        return StepEstimate(measured * share, work.tokens, basis)
    flops, basis = speed
    # The basis names the missing figure.
    if not flops:
        return StepEstimate(0.0, work.tokens, basis)
    seconds = work_seconds(work, setting, base, flops)
    return StepEstimate(seconds, work.tokens, basis if work.tokens else "assumed")


def estimate_job(job: Job, setting: Setting, request: Request, base: BaseRun) -> dict[str, StepEstimate]:
    """Return step name -> estimate, without the steps that are left out."""
    speed = training_speed(setting)
    # A scale with measured times has a fixed width: time grows with depth, and with --seconds.
    share = setting.depth / setting.scale.depth if setting.scale.depth else 1.0
    if request.seconds:
        share *= time_share(setting.scale, request.seconds)
    estimates = {}
    for step in job.steps:
        if not step.skip:
            estimates[step.name] = estimate_step(job, step, setting, base, speed, share)
    return estimates


# ---- the plan in words ----


def plan_lines(job: Job, setting: Setting, request: Request, base: BaseRun) -> list[str]:
    """Return the plan as lines for the reader; a ValueError if the disk has too little room."""
    estimates = estimate_job(job, setting, request, base)
    columns = [[name, ""] for name in ("Step", "Tokens", "Time", "Dollars", "Estimate")]
    rows = [_row(name, estimate, setting) for name, estimate in estimates.items()]
    # Time still to come: finished steps are skipped.
    seconds = sum(estimate.seconds for estimate in estimates.values() if estimate.basis != FINISHED)
    gpus = f"{setting.gpus} x {setting.accelerator.name}" if setting.accelerator else "no GPU"
    idle = f", {setting.idle} more are idle (rows of a batch are a power of two)" if setting.idle else ""
    text = f"the embedded world in {setting.world}" if setting.own_world else setting.data
    mirror = hub.mirror()
    if mirror and not setting.own_world:
        text += f"; data sets of the mirror {mirror}"
    memory = f", {setting.scale.memory:.1f} GB of memory" if setting.scale.memory else ""
    total = f"in all: about {duration(seconds)}{memory}, {disk_room(job, setting, base)}"
    return [
        f"scale: {setting.name}, {setting.scale.description}: {setting.reason}",
        f"machine: {os.cpu_count()} cores, {gpus}{idle}; depth {setting.depth}",
        f"text: {text}",
        terminal_table({"title": "", "columns": columns, "rows": rows}),
        *skipped_lines(job.steps),
        *(f"base_train: {line}" for line in base.notes),
        f"{total}, dollars {dollars(seconds, setting)}",
        f"logs and records: {job.folder}",
    ]


def _row(name: str, estimate: StepEstimate, setting: Setting) -> list[str | None]:
    tokens = f"{estimate.tokens / 1e6:,.1f} M" if estimate.tokens else None
    if not estimate.seconds:
        return [name, tokens, None, None, estimate.basis]
    return [
        name,
        tokens,
        duration(estimate.seconds),
        dollars(estimate.seconds, setting),
        estimate.basis,
    ]


def dollars(seconds: float, setting: Setting) -> str:
    """Return the price for some time on all GPUs at work, or n/a."""
    rate = setting.accelerator.dollars if setting.accelerator else None  # per GPU and hour
    return f"{rate * setting.gpus * seconds / 3600:,.2f}" if rate else "n/a"


def disk_room(job: Job, setting: Setting, base: BaseRun) -> str:
    """Return needed and free disk in words; a ValueError if this machine has too little."""
    if setting.scale.disk:
        # Measured at the scale's depth; a model with a small vocabulary grows by about this power of depth.
        growth = (setting.depth / setting.scale.depth) ** 2.5
        needed = 1e9 * setting.scale.disk * growth
    else:
        checkpoints = CHECKPOINT_BYTES * base.parameters * CHECKPOINTS
        needed = checkpoints + TEXT_BYTES * base.tokens
    # A resumed run has written a part already.
    folders = [stage_dir(stage, job.tag) for stage in TRAINING]
    used = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    # The base folder may not be there yet: ask the file system that will hold the data.
    candidates = [base_dir(), *base_dir().absolute().parents]
    existing = next(path for path in candidates if path.exists())
    free = shutil.disk_usage(existing).free
    missing = needed - used - free
    # For named hardware the local disk does not matter.
    if missing > 0 and not setting.planned:
        raise ValueError(
            f"{base_dir()} has too little room: {needed / 1e9:.1f} GB are needed, {missing / 1e9:.1f} are missing; "
            "free some, or set NANOCHAT_BASE_DIR"
        )
    return f"{needed / 1e9:.1f} GB of disk ({free / 1e9:.1f} are free)"
