"""A pretraining run on paper, from its flags alone: the model's shape, batch, horizon, rates, and what it takes."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from nanochat.cross_entropy import CHUNK_BYTES
from nanochat.gpt import GPT, GPTConfig, config_fields, new_model
from nanochat.hardware import Accelerator, find_accelerator
from nanochat.outcome import Outcome, environment, read_outcomes
from nanochat.paths import base_dir
from nanochat.runtime import asked_precision
from nanochat.scaling import (
    HORIZONS,
    REFERENCE_DEPTH,
    Scale,
    accumulation_steps,
    cost,
    legal_rows,
    memory,
    price,
    read_rows,
    scale,
    shape,
)
from nanochat.tokenizer import Tokenizer

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

    @property
    def rows(self) -> int:
        """Of a step, of all ranks."""
        return self.scale.total_batch_size // self.model.max_seq_len

    @property
    def tokens(self) -> int | None:
        """Of the whole run; None if a clock ends it."""
        return None if self.scale.steps is None else self.scale.steps * self.scale.total_batch_size


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
    sizes = rows if asked == "auto" else [read_rows(asked)]
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
