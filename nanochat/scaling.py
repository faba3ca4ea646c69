"""From base training's flags to a run plan, and the plan's cost; --depth is the dial that sets the rest.

N, the size that models are compared by, counts matrices and head. The best values for the reference, a model with depth
12, are carried over: the batch grows with tokens^0.383 (arXiv 2505.13738), learning rates with the batch's root, and
weight decay so that batch / (rate × decay × tokens) stays constant (arXiv 2405.13698).
"""

import json
import math
import os
import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from nanochat.cross_entropy import CHUNK_BYTES
from nanochat.gpt import GPT, SMEAR_GATE_INPUTS, GPTConfig
from nanochat.hardware import Accelerator, Figure, find_accelerator
from nanochat.log import Record, duration
from nanochat.models import config_fields, config_with, new_model
from nanochat.outcome import hardware, read_outcomes
from nanochat.param_groups import parameter_counts, state_bytes
from nanochat.paths import base_dir
from nanochat.runtime import asked_precision, planned_hardware

if TYPE_CHECKING:
    from nanochat.settings import PretrainSettings, TrainingSettings

REFERENCE_DEPTH = 12
REFERENCE_BATCH = 2**19  # tokens, best for the reference
BATCH_EXPONENT = 0.383
TOKENS_PER_PARAMETER = 12.0  # the horizon where no flag gives one
ASSUMED_VOCABULARY = 49_152  # where no tokenizer is trained yet
CORE_FLOPS = 2.5e10  # of a CPU core, where no run was measured; the embedded run reaches 52 GFLOP/s on two
CPU_TOKENS = 16_384  # tokens in a micro-batch on a CPU: larger ones are no faster
FIT_SHARE = 0.9  # share of an accelerator's memory that a plan may fill
# Activations per token and channel on a GPU, compiled: kept in each layer, and taken by the backward of one layer. The
# first key is checkpointing, the second is --fp8. Found by rehearsals (bench/rehearse.py).
BLOCK_KEEPS = {False: (20.6, 15.8), True: (1.5, 1.5)}
BLOCK_TAKES = {False: (10, 26), True: (29, 37)}
REST_KEEPS = 5  # outside the blocks


# ---- the plan ----


@dataclass(frozen=True)
class RunPlan:
    """Base training before it begins.

    counts: parameters by kind. state_bytes: the optimizer's. decay_scale: factor for the flags' weight decay. steps:
    None if a clock ends the run, after `seconds`. notes: a line about each value that was chosen.
    """

    model: GPTConfig
    counts: dict[str, int]
    state_bytes: int
    flops_per_token: int
    total_batch_size: int  # tokens
    decay_scale: float
    steps: int | None
    seconds: Figure
    notes: list[str]

    @property
    def tokens(self) -> int | None:
        """Return the whole run's tokens; None if a clock ends it."""
        return None if self.steps is None else self.steps * self.total_batch_size

    @property
    def summary(self) -> Record:
        """Return the plan's figures as the report card names them, without those that a clock decides."""
        kinds = {f"Number of parameters, {kind}": count for kind, count in self.counts.items() if kind != "total"}
        facts = {
            "Number of parameters": self.counts["total"],
            **kinds,
            "Total batch size": self.total_batch_size,
            "Number of FLOPs per token": {"value": self.flops_per_token, "format": ".4e"},
        }
        if self.tokens is not None:
            facts |= {
                "Calculated number of iterations": self.steps,
                "Number of training tokens": self.tokens,
                "Tokens : Params ratio": {"value": self.tokens / scaled_size(self.counts), "format": ".2f"},
            }
        return facts


def plan_run(config: "PretrainSettings", vocab_size: int | None, bos_id: int = 0) -> RunPlan:
    """Return the plan that follows from the flags; vocab_size None: no tokenizer is trained yet."""
    notes = []
    if vocab_size is None:
        vocab_size = ASSUMED_VOCABULARY
        notes = [f"vocabulary {vocab_size:,} = assumed, no tokenizer is trained yet"]
    model = _new_model(config, vocab_size, bos_id)
    # The reference has its own width and heads, which --kv-heads need not divide.
    reference = _new_model(replace(config, depth=REFERENCE_DEPTH, width=0, kv_heads=0), vocab_size, bos_id)
    shape = model.config
    ratio = f"depth {shape.depth} x aspect_ratio {config.aspect_ratio}, up to a multiple of head_dim {config.head_dim}"
    counts = parameter_counts(model)
    n = scaled_size(counts)  # the size that scaling laws compare
    reference_n = scaled_size(parameter_counts(reference))
    flops = flops_per_token(model)  # forward and backward

    size = n / reference_n  # and that of the horizons in tokens, at one ratio
    # A given batch changes learning rates and weight decay too.
    batch, chosen = config.total_batch_size, "given"
    if batch < 1:
        batch = 2 ** round(math.log2(REFERENCE_BATCH * size**BATCH_EXPONENT))  # divides well among ranks
        chosen = f"2^19 x (N {n:,} / {reference_n:,})^{BATCH_EXPONENT}, to a power of 2"
    rates = rate_scale(batch)
    decay = (batch / REFERENCE_BATCH) ** 0.5 / size  # the square root has no lower limit here, see dev/LOG.md
    steps, horizon = _horizon(config, n, flops, batch)
    notes += [
        f"width {shape.width:,} = {'given' if config.width else ratio}",
        f"heads {shape.heads:,} = width / head_dim {config.head_dim}, for keys and values {shape.kv_heads:,}",
        f"total_batch_size {batch:,} = {chosen}",
        f"learning rates x {rates:.4g} = (total_batch_size / 2^19)^0.5, at least 1/4",
        f"weight decay x {decay:.4g} = (total_batch_size / 2^19)^0.5 / (N / N at depth 12)",
        f"num_iterations {'?' if steps is None else f'{steps:,}'} = {horizon}",
    ]
    notes += config.model_notes
    return RunPlan(
        model=shape,
        counts=counts,
        state_bytes=state_bytes(model),
        flops_per_token=flops,
        total_batch_size=batch,
        decay_scale=decay,
        steps=steps,
        seconds=config.target_seconds if steps is None else None,
        notes=notes,
    )


def _new_model(config: "PretrainSettings", vocab_size: int, bos_id: int) -> GPT:
    """Return a model without weights; a width or kv_heads 0 follows from the other sizes."""
    head_dim = config.head_dim
    width = config.width or math.ceil(config.depth * config.aspect_ratio / head_dim) * head_dim
    if width % head_dim:
        raise ValueError(f"--width={width} is not a multiple of --head-dim={head_dim}")
    heads = width // head_dim
    kv_heads = config.kv_heads or heads
    legal = _divisors(heads)  # each key head serves as many query heads
    if kv_heads not in legal:
        raise ValueError(f"--kv-heads={kv_heads} does not divide {heads} heads: take one of {legal}")
    sizes = {"depth": config.depth, "width": width, "heads": heads, "kv_heads": kv_heads}
    sizes |= {"vocab_size": vocab_size, "max_seq_len": config.max_seq_len, "bos_id": bos_id}
    fields = config_fields(config.model) | sizes | config.model_fields
    if config.window_pattern:
        fields["window_pattern"] = config.window_pattern
    return new_model(config_with(fields))


def scaled_size(counts: dict[str, int]) -> int:
    """Return N, the size that models are compared by."""
    return counts["matrices"] + (counts["head"] or counts["embed"])  # an embedding may be the head as well


def _horizon(config: "PretrainSettings", n: int, flops: float, batch: int) -> tuple[int | None, str]:
    """Return the steps, None if a clock ends the run, and a note about them. flops: per token."""
    # -1 is the default of all horizons; HorizonSettings refuses two of them, and values that are not above 0.
    if config.target_seconds != -1:
        return None, f"as many as {config.target_seconds:g} seconds allow"
    if config.num_iterations != -1:
        return config.num_iterations, "given"
    if config.target_flops != -1:
        steps = round(config.target_flops / (flops * batch))
        return max(1, steps), f"{config.target_flops:g} FLOPs / those of a step"
    ratio = config.target_param_data_ratio if config.target_param_data_ratio != -1 else TOKENS_PER_PARAMETER
    return max(1, round(ratio * n // batch)), f"{ratio:g} x N / total_batch_size"


def rate_scale(total_batch_size: int) -> float:
    """Return the factor for learning rates, which were found for the reference's batch."""
    # Square-root rule for Adam-like updates. Small batches learn faster at higher rates (dev/LOG.md).
    return max(0.25, (total_batch_size / REFERENCE_BATCH) ** 0.5)


def flops_per_token(model: GPT) -> int:
    """Return FLOPs forward and backward: 6 per matmul weight, 12 per channel and key; no norms."""
    config = model.config
    weights = sum(weight.numel() for weight in model.blocks.parameters() if weight.ndim == 2)
    keys = (window or config.max_seq_len for window in config.windows)
    sweep = 6 * weights + 12 * config.width * sum(keys)
    head, smear = 6 * model.head_weight.numel(), 6 * SMEAR_GATE_INPUTS * config.smear
    runs = config.applications
    # A sweep without a gradient costs a third.
    return round((runs.trained + runs.untrained / 3) * sweep) + runs.heads * head + smear


# ---- batches ----


def row_choices(config: "TrainingSettings", total_batch_size: int, ranks: int) -> list[int]:
    """Return the rows that a micro-batch may have, in order: the given number, or all that divide a step."""
    row = config.max_seq_len * ranks  # tokens in the smallest step
    rows, rest = divmod(total_batch_size, row)
    if rest or not rows:
        raise ValueError(
            f"--total-batch-size={total_batch_size} is no multiple of a row on every rank ({config.max_seq_len} tokens "
            f"x {ranks} ranks): take --total-batch-size={(rows + 1) * row}"
        )
    legal = _divisors(rows)
    asked = config.device_batch_size
    if asked == "auto":
        return legal
    if asked not in map(str, legal):
        raise ValueError(
            f"--device-batch-size={asked} (x {config.max_seq_len} tokens x {ranks} ranks) does not divide "
            f"--total-batch-size={total_batch_size}: take auto or one of {legal}"
        )
    return [int(asked)]


def _divisors(number: int) -> list[int]:
    return [count for count in range(1, number + 1) if number % count == 0]


# ---- the cost ----


def estimate(
    plan: RunPlan, config: "PretrainSettings", ranks: int, accelerator: Accelerator
) -> tuple[Record, list[str]]:
    """Return a plan's cost on some accelerators, and the same as text for people; None where a figure is unknown.

    device_batch_size: rows. memory: a rank's bytes, by part. rate: a rank's FLOP/s. source: of the rate, such as
    "measured: run TAG".
    """
    dtype = asked_precision(config.dtype)
    if dtype == "auto":
        dtype = accelerator.precision
    sizes = row_choices(config, plan.total_batch_size, ranks)
    itemsize = 4 if dtype == "fp32" else 2
    setting = ranks, config.checkpointing, config.fp8, itemsize
    needed = {rows: memory(plan, rows, *setting, config.shard_weights) for rows in sizes}
    # Without a known limit every size fits.
    limit = FIT_SHARE * 1e9 * accelerator.memory if accelerator.memory else math.inf
    most = max(sizes[0], CPU_TOKENS // config.max_seq_len) if accelerator.name == "CPU" else sizes[-1]
    fitting = [rows for rows in sizes if rows <= most and sum(needed[rows].values()) < limit]
    rows = max(fitting, default=sizes[0])  # if none fits, the smallest shows how much is missing

    rate, source = _rate(config, accelerator, dtype)
    seconds = plan.seconds  # None: no clock ends the run
    if plan.tokens is not None and rate:
        # Without evaluations and compiling.
        seconds = plan.flops_per_token * plan.tokens / (rate * ranks)
    hourly = accelerator.dollars  # None: no price is known
    dollars = None if hourly is None or seconds is None else hourly * ranks * seconds / 3600

    parts = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in needed[rows].items())  # bytes -> GB
    total = sum(needed[rows].values()) / 1e9
    lines = [f"memory of a rank, GB: {total:.2f} with {rows} rows at once ({parts})"]
    if not fitting:
        share = f"{FIT_SHARE:.0%} of {accelerator.memory:g} GB"
        advice = "--checkpointing, or more ranks"
        if ranks > 1 and not config.shard_weights:
            sharded = sum(memory(plan, rows, *setting, True).values())
            advice = f"--shard-weights ({sharded / 1e9:.2f} GB), {advice}"
        lines.append(f"that is more than {share}: take {advice}")
    if config.shard_weights and ranks > 1:
        received, whole = traffic(plan, rows, ranks, 4 if config.fp8 else itemsize)
        lines.append(f"sharded weights: a rank receives {received / 1e9:,.2f} GB in a step, not {whole / 1e9:,.2f} GB")
    time = "n/a" if seconds is None else duration(seconds)
    speed = "n/a" if rate is None else f"{rate / 1e12:,.3g} TFLOP/s each ({source})"
    price = "n/a" if dollars is None else f"{dollars:,.2f}"
    lines.append(f"time {time} on {ranks}x{accelerator.name}, {dtype}, {speed}; dollars {price}")
    record = {
        "ranks": ranks,
        "device_batch_size": rows,
        "memory": needed[rows],
        "seconds": seconds,
        "rate": rate,
        "source": source,
        "dollars": dollars,
    }
    return record, lines


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
    counts, model = plan.counts, plan.model
    empty = _empty_places(model, ranks)
    stored = 4 * (counts["total"] + empty)  # in fp32
    tokens = rows * model.max_seq_len
    head = counts["head"] or counts["embed"]
    channels = itemsize * tokens * model.width  # bytes of one activation
    runs = model.applications
    times = runs.trained
    keeps = BLOCK_KEEPS[checkpointing][fp8] + runs.kept[checkpointing]
    # Each time has a copy, unless the backward makes it again. In fp8 there is one, in two orders.
    copies = 1 if checkpointing or fp8 else times
    # A chunk of logits with its gradient, the head in the compute dtype, its gradient in fp32, and one chunk's share;
    # and for each run of the head but the last its gradient.
    loss = 2 * min(CHUNK_BYTES["cuda"], itemsize * tokens * model.padded_vocab) + 8 * head
    loss += 4 * head * (runs.heads - 1)
    others = {
        "optimizer": (plan.state_bytes + 4 * empty) / ranks,  # each rank keeps a share
        "activations": channels * (model.depth * times * keeps + REST_KEEPS),
        "loss or backward": max(loss, channels * BLOCK_TAKES[checkpointing][fp8]),
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


def traffic(plan: RunPlan, rows: int, ranks: int, itemsize: int) -> list[float]:
    """Return the bytes that a rank receives in a step with sharded weights, and with whole ones.

    For a model that runs each block and the head once.
    """
    parts = plan.total_batch_size // (rows * plan.model.max_seq_len * ranks)  # micro-batches
    matrices, others = plan.counts["matrices"], plan.counts["total"] - plan.counts["matrices"]
    # Forward and backward gather the weights, embeddings in fp32 and for the forward alone; gradients are fp32.
    sharded = parts * (2 * itemsize * matrices + 4 * others + 4 * plan.counts["head"] + 4 * plan.counts["total"])
    sharded += 8 * matrices / ranks  # for Muon, a rank gets its part of the matrices, and shares of them come back
    return [size * (ranks - 1) / ranks for size in (sharded, 8 * plan.counts["total"])]


@lru_cache
def _empty_places(model: GPTConfig, ranks: int) -> int:
    """Return the elements that the optimizer stores beside the parameters.

    Each rank owns the same number of matrices of a shape, so the last ranks may have empty places.
    """
    shapes = Counter(parameter.shape for parameter in new_model(model).blocks.parameters())
    return sum(-count % ranks * shape.numel() for shape, count in shapes.items())


def _rate(config: "TrainingSettings", accelerator: Accelerator, dtype: str) -> tuple[Figure, str]:
    """Return a rank's FLOP/s, None if unknown, and its basis in words.

    The basis is the finished run nearest in depth on such hardware, "measured: run TAG", else an assumption. Hardware
    outside the table of accelerators has to be this machine, or to have the name in --on.
    """
    here = hardware()
    found = []
    for run in read_outcomes(base_dir()):
        # A run that was too short has no speed.
        if run.stage != "base_train" or run.metrics["Tokens per second"] == "n/a":
            continue
        there = run.environment["Hardware"]
        device = re.sub(r"^\d+x ", "", there["GPUs"])  # "8x NVIDIA H200"
        # A run also records its price and nodes.
        is_here = not config.on and here.items() <= there.items()
        same_hardware = is_here or find_accelerator(device).name == accelerator.name
        if same_hardware and all(run.config[name] == getattr(config, name) for name in ("dtype", "fp8")):
            flops = run.figure("Tokens per second") * run.figure("Number of FLOPs per token")
            rate = flops / run.metrics["DDP world size"]  # each rank's FLOP/s
            found.append((abs(run.config["depth"] - config.depth), rate, f"measured: run {run.tag}"))
    if found:
        return min(found)[1:]  # nearest depth, then the slower run
    if accelerator.name == "CPU":
        return CORE_FLOPS * (os.cpu_count() or 1), f"assumed: {CORE_FLOPS / 1e9:g} GFLOP/s a core"
    peak = accelerator.peak(dtype)
    if not peak:
        return None, f"no {dtype} speed of {accelerator.name} is known"
    return accelerator.mfu * peak, f"assumed: {accelerator.mfu:.0%} of the {dtype} peak"


def dry_run(plan: RunPlan, config: "PretrainSettings") -> list[str]:
    """Return the estimate for the hardware `config.on` as lines for people, or, with `config.json`, as a JSON line."""
    record, lines = estimate(plan, config, *planned_hardware(config.on))
    if not config.json:
        return lines
    plan_record = asdict(plan) | {"tokens": plan.tokens}
    return [json.dumps({"plan": plan_record, "estimate": record, "lines": lines})]
