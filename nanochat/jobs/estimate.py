"""Estimates: time and dollars of each step of the main job, memory and disk, on this machine or on named hardware.

The time of a step is, in this order: the time that it took in this job; the time that it was given; the time that an
earlier run took with the same flags on the same hardware; the time measured for the scale; its work divided by a speed.
Work is counted in tokens: trained, scored, generated. Each estimate names its basis, and an assumption is called one.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanochat import hardware
from nanochat.data import hub
from nanochat.jobs.plan import TRAINING, Request, Setting, flag_words, skipped_lines, time_share
from nanochat.jobs.runner import Job, Step, read_record, recorded_command
from nanochat.log import duration, terminal_table
from nanochat.outcome import ROOT, Outcome, environment, read_outcomes
from nanochat.paths import base_dir, stage_dir

# Assumed speeds, for hardware on which nothing was measured yet.
ASSUMED_MFU = 0.4  # of the 16-bit peak; a higher rate by fp8 was never measured, so none is assumed
CPU_FLOPS = 2.5e10  # of a core: the embedded run reaches 52 GFLOP/s on two
GENERATION = {"GPU": 0.025, "CPU": 0.2}  # speed of sampling, as a fraction of training's: each token reads all weights
EVALUATION_SHARE = 0.05  # of a training stage: validation, scores and samples in between
DECODE_SECONDS, DECODE_ROWS = {"GPU": 0.015, "CPU": 0.0}, 64  # least time of a sampling step, for so many rows at once
START_SECONDS = {"GPU": 30.0, "CPU": 3.0}  # of a stage: imports, loading, compiling
DOWNLOAD_SPEED = 5e7  # bytes a second
TOKENIZER_SPEED = 2e7  # characters a second

# Sizes of the real data sets and of the scripts' defaults, for work that no flag limits.
MIXTURE_TOKENS = {"mid_train": 4.4e8, "chat_sft": 1.4e7}  # one pass over the default mixtures
RL_QUESTIONS, RL_PROMPT = 7473, 150  # GSM8K; tokens of a question
RL_STEP, RL_SAMPLES = 16, 4  # questions of a step, samples of each
RL_NEW_TOKENS, RL_EVALUATION, RL_EVERY = 64, 400, 60
CORE_TASKS, CORE_QUESTIONS, CORE_TOKENS = 22, 66835, 720  # tokens of a question, with the examples before it
CHOICE_TASKS, CHOICE_QUESTIONS, CHOICE_TOKENS = 4, 17844, 150  # ARC, MMLU, AQUA: answered by a letter
WRITTEN_TASKS, WRITTEN_QUESTIONS, WRITTEN_TOKENS = 2, 1483, 512  # GSM8K, HumanEval: answered in words
LOSS_BYTES = 4e6  # of each of two splits
BYTES_PER_TOKEN = 4.0
TOKENIZER_CHARACTERS = 2e9

FINISHED = "finished"  # the basis of a step that is not to be run
# Disk.
CHECKPOINT_BYTES = 12  # of a parameter, at most
CHECKPOINTS = len(TRAINING) + 2  # kept at once
TEXT_BYTES = 2.5  # on disk, of a token of the hub's text


@dataclass(frozen=True)
class BaseRun:
    """Figures of base training, from its dry run. tokens: 0 if a clock ends it. flops: of a trained token.

    notes: lines about memory.
    """

    parameters: int
    tokens: int
    batch: int
    flops: float
    notes: list[str]


@dataclass(frozen=True)
class Work:
    """Tokens that a step trains on, scores or generates; seconds: of work without the model."""

    trained: float = 0.0
    scored: float = 0.0
    generated: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class StepEstimate:
    """Seconds of a step, its tokens (0: none or not known), and the basis of the estimate."""

    seconds: float
    tokens: float
    basis: str


# ---- base training on paper ----


def dry_run(flags: Mapping[str, str], hardware_name: str) -> BaseRun:
    """Return the figures of base training; a ValueError with its own words where it could not run."""
    words = flag_words(flags)
    if hardware_name:
        words.append(f"--on={hardware_name}")
    command = [sys.executable, "-m", "scripts.base_train", "--dry-run", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1].removeprefix("error: "))

    # Until base_train prints JSON.
    def number(label: str) -> float:
        found = re.search(rf"^{label}: ([\d,.e+]+)$", done.stdout, re.MULTILINE)
        return float(found[1].replace(",", "")) if found else 0.0

    return BaseRun(
        parameters=int(number("Number of parameters")),
        tokens=int(number("Number of training tokens")),
        batch=int(number("Total batch size")),
        flops=number("Number of FLOPs per token"),
        notes=re.findall(r"^(?:memory of a rank|that is more).*", done.stdout, re.MULTILINE),
    )


def base_run_of_flags(flags: Mapping[str, str]) -> BaseRun:
    """Return the figures of a scale whose times are measured: tokens alone, without the seconds of a dry run."""
    batch = int(flags.get("--total-batch-size", 0))
    steps = int(flags.get("--num-iterations", 0))
    return BaseRun(parameters=0, tokens=steps * batch, batch=batch, flops=0.0, notes=[])


# ---- the work of each step ----

Counter = Callable[[Mapping[str, str], BaseRun], Work]


def _tokenizer(flags: Mapping[str, str], base: BaseRun) -> Work:
    characters = float(flags.get("--max-chars", TOKENIZER_CHARACTERS))
    return Work(seconds=characters / TOKENIZER_SPEED)


def _base_loss(flags: Mapping[str, str], base: BaseRun) -> Work:
    return Work(scored=2 * float(flags.get("--eval-bytes", LOSS_BYTES)) / BYTES_PER_TOKEN)


def _core(flags: Mapping[str, str], base: BaseRun) -> Work:
    limit = int(flags.get("--max-per-task", -1))
    questions = CORE_QUESTIONS if limit < 0 else min(CORE_QUESTIONS, limit * CORE_TASKS)
    return Work(scored=questions * CORE_TOKENS)


def _chat_eval(flags: Mapping[str, str], base: BaseRun) -> Work:
    limit = int(flags.get("--max-problems", 0)) or CORE_QUESTIONS
    choices = min(CHOICE_QUESTIONS, limit * CHOICE_TASKS)
    written = min(WRITTEN_QUESTIONS, limit * WRITTEN_TASKS)
    length = int(flags.get("--max-new-tokens", WRITTEN_TOKENS))
    return Work(scored=choices * CHOICE_TOKENS, generated=written * length)


def _tuning(stage: str) -> Counter:
    """Return the counter of a stage that trains on conversations."""

    def count(flags: Mapping[str, str], base: BaseRun) -> Work:
        steps = int(flags.get("--num-iterations", 0))
        return Work(trained=steps * base.batch or MIXTURE_TOKENS[stage])

    return count


def _rl(flags: Mapping[str, str], base: BaseRun) -> Work:
    steps = int(flags.get("--num-iterations", 0)) or RL_QUESTIONS // RL_STEP
    length = int(flags.get("--max-new-tokens", RL_NEW_TOKENS))
    evaluations = 2 + steps // RL_EVERY
    samples = steps * RL_STEP * RL_SAMPLES
    scored_samples = evaluations * int(flags.get("--eval-examples", RL_EVALUATION))
    return Work(
        trained=samples * (RL_PROMPT + length),
        generated=(samples + scored_samples) * length,
    )


WORK: dict[str, Counter] = {
    "world": lambda flags, base: Work(seconds=10),
    "download": lambda flags, base: Work(seconds=base.tokens * TEXT_BYTES / DOWNLOAD_SPEED),
    "tok_train": _tokenizer,
    "tok_eval": lambda flags, base: Work(seconds=20),
    "base_train": lambda flags, base: Work(trained=base.tokens),
    "base_loss": _base_loss,
    "base_eval": _core,
    "mid_train": _tuning("mid_train"),
    "chat_eval_mid": _chat_eval,
    "chat_sft": _tuning("chat_sft"),
    "chat_eval_sft": _chat_eval,
    "chat_rl": _rl,
    "chat_eval_rl": _chat_eval,
    "report": lambda flags, base: Work(seconds=5),
}


# ---- earlier runs ----


def earlier_runs(setting: Setting) -> list[Outcome]:
    """Return the finished stages on the hardware of a setting, oldest first."""
    outcomes = [outcome for *_, outcome in read_outcomes(base_dir()) if isinstance(outcome, Outcome)]
    if not outcomes:
        return []
    here = {} if setting.planned else environment()["Hardware"]
    outcomes = [outcome for outcome in outcomes if _same_hardware(outcome.environment["Hardware"], setting, here)]
    return sorted(outcomes, key=lambda outcome: outcome.timestamp)


def _same_hardware(there: dict[str, str], setting: Setting, here: dict[str, str]) -> bool:
    if setting.planned:
        count, _, name = there["GPUs"].partition("x ")
        return count == str(setting.gpus) and hardware.find(name) == setting.accelerator
    return all(there.get(part) == here[part] for part in ("CPUs", "Memory", "GPUs"))


def same_run(outcomes: Sequence[Outcome], step: Step, depth: int) -> Outcome | None:
    """Return the newest run of a step with the same flags on a base model of the same depth."""
    depths = {outcome.tag: outcome.config["depth"] for outcome in outcomes if outcome.stage == "base_train"}
    for outcome in reversed(outcomes):
        same_model = step.name.startswith("tok") or depths.get(outcome.tag) == depth
        if outcome.stage == step.name and same_model and _same_flags(outcome.config, step):
            return outcome
    return None


def _same_flags(config: Mapping[str, object], step: Step) -> bool:
    for flag, value in step_flags(step).items():
        name = flag.removeprefix("--").replace("-", "_")
        if name in ("tag", "tokenizer_tag", "seed"):
            continue
        known = config.get(name)
        # A switch has no value on the command line; 1e6 and 1000000.0 are the same number.
        if isinstance(known, bool):
            same = known == (value == "")
        elif isinstance(known, int | float):
            same = known == float(value)
        else:
            same = str(known) == value
        if not same:
            return False
    return True


def step_flags(step: Step) -> dict[str, str]:
    """Return flag -> value of the command of a step."""
    return {flag: value for flag, _, value in (word.partition("=") for word in step.command[1:])}


# ---- seconds ----


def training_speed(setting: Setting, outcomes: Sequence[Outcome]) -> tuple[float, str]:
    """Return FLOP/s of all devices together, and the basis: the run of the nearest depth, or an assumption."""
    trained = [outcome for outcome in outcomes if outcome.stage == "base_train"]
    trained = [outcome for outcome in trained if outcome.metrics["Tokens per second"] != "n/a"]
    if trained:
        nearest = min(trained, key=lambda outcome: abs(outcome.config["depth"] - setting.depth))
        tokens, flops = nearest.metrics["Tokens per second"], nearest.metrics["Number of FLOPs per token"]
        return tokens["value"] * flops["value"], f"measured: run {nearest.tag}"
    if not setting.gpus:
        return (os.cpu_count() or 1) * CPU_FLOPS, f"assumed: {CPU_FLOPS / 1e9:g} GFLOP/s a core"
    precision = setting.accelerator.precision
    peak = setting.accelerator.peak(precision)
    if not peak:
        return 0.0, f"no {precision} rate of {setting.accelerator.name} is known"
    return setting.gpus * peak * ASSUMED_MFU, f"assumed: {ASSUMED_MFU:.0%} of the {precision} peak"


def work_seconds(work: Work, setting: Setting, base: BaseRun, speed: float) -> float:
    """Return the seconds of some work at a training speed in FLOP/s."""
    device = "GPU" if setting.gpus else "CPU"
    forward = base.flops / 3  # of a token; the backward pass costs twice as much
    trained = work.trained * base.flops * (1 + EVALUATION_SHARE)
    scored = work.scored * forward
    generated = work.generated * forward / GENERATION[device]
    waiting = work.generated / DECODE_ROWS * DECODE_SECONDS[device]
    return START_SECONDS[device] + work.seconds + waiting + (trained + scored + generated) / speed


class Estimator:
    """Estimates the steps of a job."""

    def __init__(self, setting: Setting, request: Request, base: BaseRun):
        self.setting, self.base = setting, base
        self.outcomes = earlier_runs(setting)
        self.speed, self.basis = training_speed(setting, self.outcomes)
        # Times in the scale's table, for other depths and clocks in proportion. Widths do not change with depth there.
        share = time_share(setting.scale, request.seconds) if request.seconds else 1.0
        depth_share = setting.depth / setting.scale.depth if setting.scale.depth else 1.0
        self._table_share = share * depth_share

    def estimate(self, job: Job, step: Step) -> StepEstimate:
        """Return the estimate of a step; 0 seconds if nothing is known."""
        record = read_record(job, step)
        flags = step_flags(step)
        work = WORK[step.name](flags, self.base)
        tokens = work.trained + work.scored + work.generated
        if record and recorded_command(record) == step.command and record["finished"]:
            return StepEstimate(record["seconds"], tokens, FINISHED)
        if "--target-seconds" in flags:
            return StepEstimate(float(flags["--target-seconds"]), 0, "as asked")
        earlier = same_run(self.outcomes, step, self.setting.depth)
        if earlier:
            return StepEstimate(earlier.seconds, tokens, f"measured: run {earlier.tag}")
        table = self.setting.scale.seconds.get(step.name)
        if table:
            basis = "measured on 2 cores" if self._table_share == 1 else "in proportion to 2 cores"
            return StepEstimate(table * self._table_share, tokens, basis)
        if not self.speed:
            return StepEstimate(0.0, tokens, self.basis)
        seconds = work_seconds(work, self.setting, self.base, self.speed)
        return StepEstimate(seconds, tokens, self.basis if tokens else "assumed")


# ---- the plan in words ----


def plan_lines(job: Job, setting: Setting, request: Request, base: BaseRun) -> list[str]:
    """Return the plan as lines for the reader; a ValueError if the disk has too little room."""
    estimator = Estimator(setting, request, base)
    steps = [step for step in job.steps if not step.skip]
    estimates = {step.name: estimator.estimate(job, step) for step in steps}
    rows = [_row(name, estimate, setting) for name, estimate in estimates.items()]
    columns = [["Step", ""], ["Tokens", ""], ["Time", ""], ["Dollars", ""], ["Estimate", ""]]
    open_seconds = [estimate.seconds for estimate in estimates.values() if estimate.basis != FINISHED]
    gpus = f"{setting.gpus} x {setting.accelerator.name}" if setting.accelerator else "no GPU"
    idle = f", {setting.idle} more are idle (rows of a batch are a power of two)" if setting.idle else ""
    text = f"the embedded world in {setting.world}" if setting.own_world else setting.data
    mirror = hub.mirror()
    datasets = f"; data sets of the mirror {mirror}" if mirror and not setting.own_world else ""
    memory = f", {setting.scale.memory:.1f} GB of memory" if setting.scale.memory else ""
    return [
        f"scale: {setting.name}, {setting.scale.description}: {setting.reason}",
        f"machine: {os.cpu_count()} cores, {gpus}{idle}; depth {setting.depth}",
        f"text: {text}{datasets}",
        terminal_table({"title": "", "columns": columns, "rows": rows}),
        *skipped_lines(job.steps),
        *(f"base_train: {line}" for line in base.notes),
        f"in all: about {duration(sum(open_seconds))}{memory}, {disk_line(job, setting, base)}, "
        f"dollars {dollars(sum(open_seconds), setting)}",
        f"logs and records: {job.folder}",
    ]


def _row(name: str, estimate: StepEstimate, setting: Setting) -> list[str | None]:
    tokens = f"{estimate.tokens / 1e6:,.1f} M" if estimate.tokens else None
    time = duration(estimate.seconds) if estimate.seconds else None
    price = dollars(estimate.seconds, setting) if estimate.seconds else None
    return [name, tokens, time, price, estimate.basis]


def dollars(seconds: float, setting: Setting) -> str:
    rate = setting.accelerator.dollars if setting.accelerator else None
    return f"{rate * setting.gpus * seconds / 3600:,.2f}" if rate else "n/a"


def disk_line(job: Job, setting: Setting, base: BaseRun) -> str:
    """Return needed and free disk in words; a ValueError where they do not fit on this machine."""
    if setting.scale.disk:
        # Measured at the scale's depth; the size of a model with few words grows by about this power.
        growth = (setting.depth / setting.scale.depth) ** 2.5
        needed = 1e9 * setting.scale.disk * growth
    else:
        needed = CHECKPOINT_BYTES * base.parameters * CHECKPOINTS + TEXT_BYTES * base.tokens
    used = sum(folder_size(stage_dir(stage, job.tag)) for stage in TRAINING)
    existing = next(path for path in (base_dir(), *base_dir().absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    missing = needed - used - free
    if missing > 0 and not setting.planned:
        raise ValueError(
            f"{base_dir()} has too little room: {needed / 1e9:.1f} GB are needed, {missing / 1e9:.1f} are missing; "
            "free some, or set NANOCHAT_BASE_DIR"
        )
    return f"{needed / 1e9:.1f} GB of disk ({free / 1e9:.1f} are free)"


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder; 0 if there is none."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
