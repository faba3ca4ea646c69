"""What a pretraining run will be, from its flags alone: the model's shape, batch, horizon, rates; and what it takes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from nanochat.cross_entropy import CHUNK_BYTES
from nanochat.gpt import CONFIGURATIONS, GPT, GPTConfig
from nanochat.hardware import Accelerator
from nanochat.scaling import HORIZONS, REFERENCE_DEPTH, Scale, Shape, cost, legal_rows, memory, scale, shape


@dataclass(frozen=True)
class Blueprint:
    """counts: of parameters, by kind. scaled: those that models are compared by. notes: how each value came about."""

    model: GPTConfig
    shape: Shape
    counts: dict[str, int]
    scaled: int
    flops_per_token: int
    scale: Scale
    notes: list[str]

    @property
    def tokens(self) -> int | None:
        """Of the whole run; None if a clock ends it."""
        return None if self.scale.steps is None else self.scale.steps * self.scale.total_batch_size


def draw(config: Any, vocab_size: int, bos_id: int) -> Blueprint:
    """The blueprint of `config`, scripts.base_train's."""
    if config.model not in CONFIGURATIONS:
        raise ValueError(f"--model={config.model} is not known, take one of {', '.join(CONFIGURATIONS)}")
    notes: list[str] = []
    form, model = _model(config, config.depth, vocab_size, bos_id, notes.append)
    _, reference = _model(config, REFERENCE_DEPTH, vocab_size, bos_id, lambda line: None)
    counts, scaled = model.parameter_counts(), _scaled(model)
    flops = model.flops_per_token()
    horizon = {name: value for name in HORIZONS if (value := getattr(config, name)) > 0}
    batch = config.total_batch_size if config.total_batch_size > 0 else None
    scales = scale(scaled, _scaled(reference), flops, horizon, total_batch_size=batch, note=notes.append)
    return Blueprint(model.config, form, counts, scaled, flops, scales, notes)


def _model(config: Any, depth: int, vocab_size: int, bos_id: int, note: Callable) -> tuple[Shape, GPT]:
    options = {"aspect_ratio": config.aspect_ratio, "head_dim": config.head_dim, "kv_heads": config.kv_heads or None}
    form = shape(depth, **options, note=note)
    fields = CONFIGURATIONS[config.model] | ({"window_pattern": config.window_pattern} if config.window_pattern else {})
    sizes = {"depth": depth, "width": form.width, "heads": form.heads, "kv_heads": form.kv_heads}
    with torch.device("meta"):
        model = GPT(GPTConfig(vocab_size, max_seq_len=config.max_seq_len, bos_id=bos_id, **sizes, **fields))
    return form, model


def _scaled(model: GPT) -> int:
    counts = model.parameter_counts()
    return counts["matrices"] + (counts["head"] or counts["embed"])


def estimate(plan: Blueprint, config: Any, ranks: int, accelerator: Accelerator, dtype: str) -> list[str]:
    """Lines of what the run will take on some hardware: memory of a rank, time, dollars."""
    rows = legal_rows(plan.scale.total_batch_size, config.max_seq_len, ranks)
    asked = config.device_batch_size
    sizes = rows if asked == "auto" else [int(asked)]
    options = {"logits": CHUNK_BYTES["cuda"], "checkpointing": config.checkpointing}
    needs = {size: memory(plan.counts, plan.shape, size, config.max_seq_len, ranks, **options) for size in sizes}
    fit = [size for size in sizes if not accelerator.memory or sum(needs[size].values()) < 0.9e9 * accelerator.memory]
    size = max(fit, default=sizes[0])
    parts = ", ".join(f"{name} {bytes_ / 1e9:.2f}" for name, bytes_ in needs[size].items())
    lines = [f"memory of a rank, GB: {sum(needs[size].values()) / 1e9:.2f} with {size} rows at once ({parts})"]
    if not fit:
        lines.append(f"that is more than {accelerator.memory} GB: take --checkpointing, or more ranks")
    if plan.tokens is None:
        return [*lines, f"time {plan.scale.seconds:g} s, as asked"]
    return [*lines, cost(plan.flops_per_token * plan.tokens, ranks, accelerator, dtype)[2]]
