"""The cost of a plan on paper: memory, time and price, for `--dry-run`; the job plan reads base training's too.

Training does not import this. Memory is counted, speed is that of an earlier run on such hardware or assumed, and
timing.py has what a run does beside its steps.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache

from nanochat.cores import usable_cores
from nanochat.cross_entropy import CHUNK_BYTES
from nanochat.environment import hardware
from nanochat.gpt import GPTConfig
from nanochat.hardware import Accelerator, Figure, find_accelerator, fp8_gain
from nanochat.log import duration, print0
from nanochat.models import new_model
from nanochat.outcome import readable_outcomes
from nanochat.paths import base_dir
from nanochat.runtime import VALIDATION_BYTES, compiling_pays, planned_hardware, planned_precision
from nanochat.scaling import CPU_TOKENS, RunPlan, row_choices
from nanochat.settings import PretrainSettings, TrainingSettings
from nanochat.timing import Pace, Part, Pause, parts_of, seconds_of, text_pause

# Of a CPU core, where no run was measured; dev/MEASURED.md, "Speed of training on a CPU".
CORE_FLOPS = {"fp32": 5e10, "bf16": 1e11}
FIT_SHARE = 0.9  # share of an accelerator's memory that a plan may fill
UNCOMPILED_KEEPS = 7 / 6  # of what a compiled model keeps
SHOWN_SECONDS = 0.05  # a shorter part of the time is not listed
REST_KEEPS = 5  # activations per token and channel outside the blocks


@dataclass(frozen=True)
class BlockActivations:
    """Activations per token and channel on a GPU, compiled. Found by rehearsals (bench/rehearse.py)."""

    keeps: float  # in each layer
    takes: float  # by the backward of one layer


PLAIN_BLOCK = BlockActivations(keeps=20.6, takes=10)
FP8_BLOCK = BlockActivations(keeps=15.8, takes=26)
CHECKPOINTED_BLOCK = BlockActivations(keeps=1.5, takes=29)
CHECKPOINTED_FP8_BLOCK = BlockActivations(keeps=1.5, takes=37)


@dataclass(frozen=True)
class Work:
    """What a run does beside training on whole rows.

    pauses: evaluations. trained: tokens of training that a step is worth; None: those of its rows. answers, length: how
    many a rank samples in a step, and the most tokens of one. memory: further bytes of a rank, by part.
    """

    pauses: Sequence[Pause] = ()
    trained: float | None = None
    answers: float = 0.0
    length: int = 0
    memory: Mapping[str, float] = field(default_factory=dict)


def print_cost(plan: RunPlan, config: PretrainSettings, others: Sequence[Pause] = ()) -> None:
    """Print base training's cost on the hardware `config.on`: lines for people, or, with `config.json`, as JSON.

    others: evaluations beside validation on text.
    """
    ranks, accelerator = planned_hardware(config.on)
    size = config.eval_bytes if config.eval_bytes > 0 else VALIDATION_BYTES[device_of(accelerator)]
    work = Work([text_pause(config.eval_every, size), *others])
    print_estimate(plan, config, ranks, accelerator, work)


def print_estimate(plan: RunPlan, config: TrainingSettings, ranks: int, accelerator: Accelerator, work: Work) -> None:
    """Print a plan's cost as text, or with the plan as JSON."""
    cost, lines = estimate(plan, config, ranks, accelerator, work)
    if config.json:
        record = {"plan": asdict(plan) | {"tokens": plan.tokens}, "estimate": asdict(cost), "lines": lines}
        lines = [json.dumps(record)]
    print0(*lines, sep="\n")


def device_of(accelerator: Accelerator) -> str:
    """Return the key of tables about devices: cpu or gpu; Apple's GPU trains with the settings of a CPU."""
    return "cpu" if accelerator.name in ("CPU", "MPS") else "gpu"


@dataclass(frozen=True)
class Cost:
    """The cost of a run on some accelerators; None where a figure is unknown."""

    ranks: int
    device_batch_size: int  # rows
    memory: dict[str, float]  # a rank's bytes, by part
    seconds: Figure  # of the whole command
    parts: list[Part]  # which make the seconds; empty where no speed is known
    rate: Figure  # a rank's FLOP/s
    source: str  # of the rate, such as "measured: run TAG"
    dollars: Figure


def estimate(
    plan: RunPlan, config: TrainingSettings, ranks: int, accelerator: Accelerator, work: Work | None = None
) -> tuple[Cost, list[str]]:
    """Return a plan's cost on some accelerators, and the same as text for people."""
    work = work or Work()
    in_fp8 = is_fp8(config)
    dtype = planned_precision(config.dtype, accelerator, is_elsewhere=bool(config.on))
    sizes = row_choices(config.device_batch_size, plan.total_batch_size, plan.model.max_seq_len, ranks)
    itemsize = 4 if dtype == "fp32" else 2
    setting = ranks, config.checkpointing, in_fp8, itemsize

    def bytes_of(rows: int, sharded: bool = config.shard_weights) -> dict[str, float]:
        parts = memory(plan, rows, *setting, sharded)
        if not config.compile:
            parts["activations"] *= UNCOMPILED_KEEPS
        return {**parts, **work.memory}

    needed = {rows: bytes_of(rows) for rows in sizes}
    # Without a known limit every size fits.
    limit = FIT_SHARE * 1e9 * accelerator.memory if accelerator.memory else math.inf
    on_cpu = device_of(accelerator) == "cpu"
    most = max(sizes[0], CPU_TOKENS // plan.model.max_seq_len) if on_cpu else sizes[-1]
    fitting = [rows for rows in sizes if rows <= most and sum(needed[rows].values()) < limit]
    rows = max(fitting, default=sizes[0])  # if none fits, the smallest shows how much is missing

    each = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in needed[rows].items())  # bytes -> GB
    total = sum(needed[rows].values()) / 1e9
    doubt = "; that is a GPU's, fine-tuning on a CPU takes about twice as much" if on_cpu else ""
    lines = [f"memory of a rank, GB: {total:.2f} with {rows} rows at once ({each}){doubt}"]
    if not fitting:
        share = f"{FIT_SHARE:.0%} of {accelerator.memory:g} GB"
        advice = "--checkpointing, or more ranks"
        if ranks > 1 and not config.shard_weights:
            sharded = sum(bytes_of(rows, True).values())
            advice = f"--shard-weights ({sharded / 1e9:.2f} GB), {advice}"
        lines.append(f"that is more than {share}: use {advice}")
    if config.shard_weights and ranks > 1:
        received, whole = traffic(plan, rows, ranks, 4 if in_fp8 else itemsize)
        lines.append(f"sharded weights: a rank receives {received / 1e9:,.2f} GB in a step, not {whole / 1e9:,.2f} GB")

    rate, source = _rate(plan, config, accelerator, dtype)
    seconds = plan.seconds  # None: no clock ends the run
    parts: list[Part] = []
    if rate:
        cores = usable_cores()
        pace = Pace(plan.model.depth, plan.flops_per_token, rate, ranks, on_gpu=not on_cpu, cores=cores)
        parts = _parts(plan, config, work, pace, searches=len(sizes) > 1)
    if parts:
        seconds = seconds_of(parts)
        lines.append(f"of the time: {', '.join(str(part) for part in parts if part.seconds >= SHOWN_SECONDS)}")
    hourly = accelerator.dollars  # None: no price is known
    dollars = None if hourly is None or seconds is None else hourly * ranks * seconds / 3600
    cost = Cost(ranks, rows, needed[rows], seconds, parts, rate, source, dollars)
    time = "n/a" if seconds is None else duration(seconds)
    speed = "n/a" if rate is None else f"{rate / 1e12:,.3g} TFLOP/s each ({source})"
    price = "n/a" if dollars is None else f"{dollars:,.2f}"
    lines.append(f"time {time} on {ranks}x{accelerator.name}, {dtype}, {speed}; dollars {price}")
    return cost, lines


def is_fp8(config: TrainingSettings) -> bool:
    """Return True for a run in fp8: only base training has the flag."""
    return isinstance(config, PretrainSettings) and config.fp8


def _parts(plan: RunPlan, config: TrainingSettings, work: Work, pace: Pace, searches: bool) -> list[Part]:
    """Return what makes up a run's time; nothing where neither steps nor a clock are known."""
    training = pace.step(plan.total_batch_size if work.trained is None else work.trained)  # of a step
    sampling = pace.sampling(work.answers, work.length) if work.answers else 0.0
    if plan.steps is not None:
        steps: float = plan.steps
    elif plan.seconds is not None:
        steps = plan.seconds / (training + sampling)  # evaluations and saves are not on the clock
    else:
        return []
    compiling = 0.0
    flops = plan.flops_per_token * plan.total_batch_size / pace.ranks
    if config.compile and compiling_pays(not pace.on_gpu, flops, plan.steps, plan.seconds):
        compiling = pace.compiling(searches, config.eval_every >= 0)
    saved = 4 * plan.counts["total"] + plan.state_bytes  # weights in fp32
    return parts_of(
        pace,
        steps=max(1, int(steps)),
        training=steps * training,
        sampling=steps * sampling,
        compiling=compiling,
        pauses=work.pauses,
        save_every=config.save_every,
        saved=saved,
    )


def memory(
    plan: RunPlan,
    rows: int,
    ranks: int,
    checkpointing: bool = False,
    fp8: bool = False,
    itemsize: int = 2,
    sharded: bool = False,
) -> dict[str, float]:
    """Return a rank's estimated bytes by part, for micro-batches with so many rows on a GPU, compiled.

    itemsize: bytes of an activation. A rehearsed step has the same peak within 5 %, and takes 15 seconds, too long for
    a dry run. Uncompiled, activations take a sixth more. Fragmentation, the framework, and caches for evaluation and
    sampling are left out.
    """
    block = block_activations(checkpointing, fp8)
    counts = plan.counts
    model = plan.model
    empty = _empty_places(model, ranks)
    stored = 4 * (counts["total"] + empty)  # in fp32
    tokens = rows * model.max_seq_len
    head = counts["head"] or counts["embed"]
    channels = itemsize * tokens * model.width  # bytes of one activation
    runs = model.applications
    times = runs.trained
    keeps = block.keeps + (runs.kept_with_checkpointing if checkpointing else runs.kept)
    # Each time has a copy, unless the backward makes it again. In fp8 there is one, in two orders.
    copies = 1 if checkpointing or fp8 else times
    # A chunk of logits with its gradient, the head in the compute dtype, its gradient in fp32, and one chunk's share;
    # and for each run of the head but the last its gradient.
    loss = 2 * min(CHUNK_BYTES["cuda"], itemsize * tokens * model.padded_vocab) + 8 * head
    loss += 4 * head * (runs.heads - 1)
    others = {
        "optimizer": (plan.state_bytes + 4 * empty) / ranks,  # each rank keeps a share
        "activations": channels * (model.depth * times * keeps + REST_KEEPS),
        "loss or backward": max(loss, channels * block.takes),
    }
    if sharded and ranks > 1:
        # The whole weights of one unit with their gradients. There are no empty places.
        unit = max(head, counts["matrices"] / model.depth)
        share = 4 * counts["total"] / ranks
        optimizer = plan.state_bytes / ranks
        return {"weights": share, "gradients": share, "one block": 8 * unit} | others | {"optimizer": optimizer}
    return {
        "weights": stored,  # master copies
        "weights in the compute dtype": 2 * counts["matrices"] * copies if itemsize == 2 else 0,
        "gradients": stored,  # summed over micro-batches
        "summed gradients": stored / ranks if ranks > 1 else 0,  # over the ranks, a share
        **others,
    }


def block_activations(checkpointing: bool, fp8: bool) -> BlockActivations:
    """Return the activations of a block in a run with these flags."""
    if checkpointing:
        return CHECKPOINTED_FP8_BLOCK if fp8 else CHECKPOINTED_BLOCK
    return FP8_BLOCK if fp8 else PLAIN_BLOCK


def traffic(plan: RunPlan, rows: int, ranks: int, itemsize: int) -> tuple[float, float]:
    """Return the bytes that a rank receives in a step with sharded weights, and with whole ones.

    For a model that runs each block and the head once.
    """
    parts = plan.total_batch_size // (rows * plan.model.max_seq_len * ranks)  # micro-batches
    matrices = plan.counts["matrices"]
    others = plan.counts["total"] - plan.counts["matrices"]
    # Forward and backward gather the weights, embeddings in fp32 and for the forward alone; gradients are fp32.
    sharded = parts * (2 * itemsize * matrices + 4 * others + 4 * plan.counts["head"] + 4 * plan.counts["total"])
    sharded += 8 * matrices / ranks  # for Muon, a rank gets its part of the matrices, and shares of them come back
    return sharded * (ranks - 1) / ranks, 8 * plan.counts["total"] * (ranks - 1) / ranks


@lru_cache
def _empty_places(model: GPTConfig, ranks: int) -> int:
    """Return the elements that the optimizer stores beside the parameters.

    Each rank owns the same number of matrices of a shape, so the last ranks may have empty places.
    """
    shapes = Counter(parameter.shape for parameter in new_model(model).blocks.parameters())
    return sum(-count % ranks * shape.numel() for shape, count in shapes.items())


def _rate(plan: RunPlan, config: TrainingSettings, accelerator: Accelerator, dtype: str) -> tuple[Figure, str]:
    """Return a rank's FLOP/s, None if unknown, and its basis in words.

    The basis is the finished run nearest in depth on such hardware, "measured: run TAG", else an assumption. Hardware
    outside the table of accelerators has to be this machine, or to have the name in --on.
    """
    here = hardware()
    depth = plan.model.depth
    found = []
    for run in readable_outcomes(base_dir(), "base_train"):
        # A run that was too short has no speed; the record of an earlier version may lack one.
        if run.metrics.get("Tokens per second", "n/a") == "n/a":
            continue
        there = run.environment["Hardware"]
        device = re.sub(r"^\d+x ", "", there["GPUs"])  # "8x NVIDIA H200"
        # A run also records its price and nodes.
        is_here = not config.on and here.items() <= there.items()
        same_hardware = is_here or find_accelerator(device).name == accelerator.name
        if same_hardware and (run.config["dtype"], run.config["fp8"]) == (config.dtype, is_fp8(config)):
            flops = run.figure("Tokens per second") * run.figure("Number of FLOPs per token")
            rate = flops / run.metrics["DDP world size"]  # each rank's FLOP/s
            found.append((abs(run.config["depth"] - depth), rate, f"measured: run {run.tag}"))
    if found:
        _, rate, source = min(found)  # nearest depth, then the slower run
        return rate, source
    if accelerator.name == "CPU":
        of_core = CORE_FLOPS.get(dtype, CORE_FLOPS["fp32"])
        return of_core * usable_cores(), f"assumed: {of_core / 1e9:g} GFLOP/s a core"
    peak = accelerator.peak(dtype)
    if not peak:
        return None, f"no {dtype} speed of {accelerator.name} is known"
    gain, reason = 1.0, ""
    if is_fp8(config) and dtype == "bf16":
        gain, reason = fp8_gain(accelerator, depth)
    share = gain * accelerator.mfu
    return share * peak, f"assumed: {share:.0%} of the {dtype} peak{reason and f', {reason}'}"
