"""A pretraining run on paper, from its flags alone: the model's shape, batch, horizon, rates, and what it takes."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from nanochat import fp8
from nanochat.checkpoint import Checkpoint
from nanochat.cross_entropy import CHUNK_BYTES
from nanochat.gpt import GPT, GPTConfig, config_fields, new_model
from nanochat.hardware import Accelerator, find_accelerator
from nanochat.log import print0
from nanochat.objectives import next_token
from nanochat.optim import Optimizer
from nanochat.outcome import Outcome, environment, read_outcomes
from nanochat.param_groups import LEARNING_RATES, build_groups
from nanochat.paths import base_dir
from nanochat.restore import build_model
from nanochat.runtime import COMPILING_SECONDS, asked_precision
from nanochat.scaling import (
    HORIZONS,
    REFERENCE_DEPTH,
    Scale,
    accumulation_steps,
    cost,
    legal_rows,
    memory,
    price,
    rate_scale,
    scale,
    shape,
)
from nanochat.tokenizer import Tokenizer
from nanochat.train import largest_device_batch

ASSUMED_VOCABULARY = 2**16


@dataclass(frozen=True)
class Blueprint:
    """counts: of parameters, by kind. scaled: those that models are compared by. notes: how each value came about."""

    model: GPTConfig
    counts: dict[str, int]
    scaled: int
    flops_per_token: int
    scale: Scale
    notes: list[str]

    @property
    def summary(self) -> dict[str, Any]:
        """As the report card names it; what a clock decides is left out."""
        facts = {f"Number of parameters, {kind}": count for kind, count in self.counts.items() if kind != "total"}
        facts = {"Number of parameters": self.counts["total"], **facts}
        facts["Total batch size"] = self.scale.total_batch_size
        facts["Number of FLOPs per token"] = {"value": self.flops_per_token, "format": ".4e"}
        if self.tokens is not None:
            facts["Calculated number of iterations"] = self.scale.steps
            facts["Number of training tokens"] = self.tokens
            facts["Tokens : Params ratio"] = {"value": self.tokens / self.scaled, "format": ".2f"}
        return facts

    def build(self, config: Any, weights: Checkpoint | int, runtime: Any) -> tuple[GPT, Optimizer, int]:
        """The model (weights: a checkpoint's, or new ones from a seed), its optimizer, and rows of a micro-batch."""
        decay = config.weight_decay * self.scale.weight_decay
        steps, batch = self.scale.steps, self.scale.total_batch_size
        return build(self.model, config, batch, steps, decay, weights, runtime, in_fp8=config.fp8)

    @property
    def rows(self) -> int:
        """Of a step, of all ranks."""
        return self.scale.total_batch_size // self.model.max_seq_len

    @property
    def tokens(self) -> int | None:
        """Of the whole run; None if a clock ends it."""
        return None if self.scale.steps is None else self.scale.steps * self.scale.total_batch_size


def build(
    shape: GPTConfig,
    config: Any,
    batch: int,
    steps: int | None,
    weight_decay: float,
    weights: Checkpoint | int,
    runtime: Any,
    in_fp8: bool = False,
) -> tuple[GPT, Optimizer, int]:
    """A model, its optimizer, and rows of a micro-batch; config: of a training stage.

    batch: tokens of a step. steps: in all, None where that is not known.
    """
    model = build_model(shape, runtime, weights, shape.attention_needs, checkpointing=config.checkpointing)
    before = weights.manifest["loop"]["device_batch"] if isinstance(weights, Checkpoint) else None
    rows = _device_rows(config.device_batch_size, before, batch, config.max_seq_len, model, runtime)
    if in_fp8:
        print0(fp8.describe(*fp8.convert(model)))
    if config.compile:
        if _long_enough(config.target_seconds, steps and model.flops_per_token() * batch * steps, runtime):
            model.compile_parts()
        else:
            print0("not compiled: what so short a run computes is done before the compiler is")
    groups = build_groups(
        model.named_parameters(),
        learning_rates={name: getattr(config, name) for name in LEARNING_RATES},
        batch_scale=rate_scale(batch),
        width=shape.width,
        matrix_weight_decay=weight_decay,
    )
    return model, Optimizer(groups, runtime.rank, runtime.world_size, **runtime.optimizer_options), rows


def _device_rows(asked: str, before: int | None, batch: int, length: int, model: GPT, runtime: Any) -> int:
    rows = legal_rows(batch, length, runtime.world_size)
    if asked == "auto" and before in rows:
        size, how = before, "as before"  # free memory may differ by now, and with the size the rounding
    elif asked == "auto":
        ids = torch.zeros(rows[-1], length, dtype=torch.int64, device=runtime.device)
        states = 8 * sum(parameter.numel() for parameter in model.parameters()) // runtime.world_size
        size, how = largest_device_batch(model, next_token, (ids, ids), runtime, states), "the most that fit"
    else:
        size, how = _whole(asked), "as asked"
    steps = accumulation_steps(batch, size, length, runtime.world_size)
    print0(f"device batch: {size} rows of {length:,} tokens, {how}; {steps} of them make a step on each rank")
    return size


def _long_enough(seconds: float, flops: float | None, runtime: Any) -> bool:
    """For a compiler to pay; of a run of so many seconds, or FLOPs, neither where both are unknown."""
    if seconds > 0:
        return seconds > COMPILING_SECONDS or runtime.device.type != "cpu"
    return flops is None or runtime.compiling_pays(flops)


def _whole(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(f"--device-batch-size={text} is no number of rows, take auto or a whole number")
    return int(text)


def draw(config: Any, tokenizer: Tokenizer | None) -> Blueprint:
    """The blueprint of `config`, scripts.base_train's; without a tokenizer, of a vocabulary of common size."""
    assumed = f"vocabulary {ASSUMED_VOCABULARY:,} = assumed, no tokenizer is trained yet"
    notes: list[str] = [] if tokenizer else [assumed]
    words = (tokenizer.vocab_size, tokenizer.special_tokens["<|bos|>"]) if tokenizer else (ASSUMED_VOCABULARY, 0)
    model = _model(config, config.depth, *words, notes.append)
    # Its width and heads are others, of which --kv-heads need not be a divisor.
    reference = _model(replace(config, width=0, kv_heads=0), REFERENCE_DEPTH, *words, lambda line: None)
    counts, scaled = model.parameter_counts(), _scaled(model)
    flops = model.flops_per_token()
    horizon = {name: value for name in HORIZONS if (value := getattr(config, name)) != -1}
    batch = config.total_batch_size if config.total_batch_size > 0 else None
    scales = scale(scaled, _scaled(reference), flops, horizon, total_batch_size=batch, note=notes.append)
    return Blueprint(model.config, counts, scaled, flops, scales, notes)


def _model(config: Any, depth: int, vocab_size: int, bos_id: int, note: Callable) -> GPT:
    given = {"width": config.width or None, "kv_heads": config.kv_heads or None}
    sizes = shape(depth, aspect_ratio=config.aspect_ratio, head_dim=config.head_dim, **given, note=note)
    fields = config_fields(config.model) | ({"window_pattern": config.window_pattern} if config.window_pattern else {})
    with torch.device("meta"):
        return new_model(GPTConfig(vocab_size, max_seq_len=config.max_seq_len, bos_id=bos_id, **sizes, **fields))


def _scaled(model: GPT) -> int:
    counts = model.parameter_counts()
    return counts["matrices"] + (counts["head"] or counts["embed"])


def measured(config: Any, accelerator: Accelerator) -> tuple[float, str] | None:
    """FLOP/s of a rank, and the tag, of the finished run nearest in depth; None if none was on such hardware.

    What is not in the table of accelerators is such hardware only if it is this machine.
    """
    here, found = environment()["Hardware"], []
    runs = [run for *_, run in read_outcomes(base_dir()) if isinstance(run, Outcome)]
    for run in [run for run in runs if run.stage == "base_train"]:
        speed, there = run.metrics.get("Tokens per second", "n/a"), run.environment["Hardware"]
        alike = all(run.config.get(name) == getattr(config, name) for name in ("device_type", "dtype", "fp8"))
        same = find_accelerator(re.sub(r"^\d+x ", "", there["GPUs"])) == accelerator or (
            not config.on and there == here
        )
        if speed != "n/a" and alike and same:
            flops = speed["value"] * run.metrics["Number of FLOPs per token"]["value"] / run.metrics["DDP world size"]
            found.append((abs(run.config["depth"] - config.depth), flops, run.tag))
    return min(found)[1:] if found else None


def estimate(plan: Blueprint, config: Any, ranks: int, accelerator: Accelerator) -> list[str]:
    """Lines of what the run will take on some hardware: memory of a rank, time, dollars."""
    dtype = asked_precision(config.dtype)
    dtype = accelerator.precision if dtype == "auto" else dtype
    rows = legal_rows(plan.scale.total_batch_size, config.max_seq_len, ranks)
    asked = config.device_batch_size
    sizes = rows if asked == "auto" else [_whole(asked)]
    accumulation_steps(plan.scale.total_batch_size, sizes[0], config.max_seq_len, ranks)  # or it says what is possible
    options = {"logits": CHUNK_BYTES["cuda"], "checkpointing": config.checkpointing}
    needs = {size: memory(plan.counts, plan.model, size, config.max_seq_len, ranks, **options) for size in sizes}
    fit = [size for size in sizes if not accelerator.memory or sum(needs[size].values()) < 0.9e9 * accelerator.memory]
    size = max(fit, default=sizes[0])
    parts = ", ".join(f"{name} {bytes_ / 1e9:.2f}" for name, bytes_ in needs[size].items())
    lines = [f"memory of a rank, GB: {sum(needs[size].values()) / 1e9:.2f} with {size} rows at once ({parts})"]
    if not fit:
        lines.append(f"that is more than {accelerator.memory} GB: take --checkpointing, or more ranks")
    if plan.tokens is None:
        dollars = price(plan.scale.seconds, ranks, accelerator)
        return [*lines, f"time {plan.scale.seconds:g} s on {ranks}x{accelerator.name}, as asked; {dollars}"]
    flops, rate = plan.flops_per_token * plan.tokens, measured(config, accelerator)
    return [*lines, cost(flops, ranks, accelerator, dtype, rate)]
