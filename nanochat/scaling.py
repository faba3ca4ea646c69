"""From base training's flags to a run plan; --depth is the dial that sets the rest. cost.py has the plan's cost.

N, the size that models are compared by, counts matrices and head. The best values for the reference, a model with depth
12, are carried over: the batch grows with tokens^0.383 (arXiv 2505.13738), learning rates with the batch's root, and
weight decay so that batch / (rate × decay × tokens) stays constant (arXiv 2405.13698).
"""

import math
from dataclasses import dataclass, replace

from nanochat.errors import UserError
from nanochat.gpt import GPT, SMEAR_GATE_INPUTS, GPTConfig
from nanochat.log import Record, format_value, print0
from nanochat.models import planned_model
from nanochat.param_groups import Rates, group_rates, parameter_counts, state_bytes
from nanochat.paths import tokenizer_file
from nanochat.settings import PretrainSettings
from nanochat.tokenizer import Tokenizer

REFERENCE_DEPTH = 12
REFERENCE_BATCH = 2**19  # tokens, best for the reference
BATCH_EXPONENT = 0.383
TOKENS_PER_PARAMETER = 12.0  # the horizon where no flag gives one
ASSUMED_VOCABULARY = 49_152  # where no tokenizer is trained yet
CPU_TOKENS = 16_384  # tokens in a micro-batch on a CPU: larger ones are not faster


# ---- the plan ----


@dataclass(frozen=True)
class RunPlan:
    """Base training before it begins.

    counts: parameters by kind. state_bytes: the optimizer's. rates: of each optimizer group. steps: None if a clock
    ends the run, after `seconds`. notes: a line about each value that was chosen.
    """

    model: GPTConfig
    counts: dict[str, int]
    state_bytes: int
    flops_per_token: int
    total_batch_size: int  # tokens
    rates: dict[str, Rates]
    steps: int | None
    seconds: float | None
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


def plan_with_tokenizer(config: PretrainSettings) -> tuple[RunPlan, Tokenizer | None]:
    """Return the plan of a new model, which is printed, and its tokenizer.

    A dry run needs shapes alone, so no GPU, corpus or tokenizer has to be there.
    """
    vocabulary = tokenizer_file(config.tokenizer_tag)
    tokenizer = None
    if not config.vocab_size and (vocabulary.exists() or not config.dry_run):
        tokenizer = Tokenizer.load(vocabulary)
    size = tokenizer.vocab_size if tokenizer else config.vocab_size or None
    plan = plan_run(config, size, tokenizer.bos if tokenizer else 0)
    if not config.json:  # for programs: nothing else on stdout
        print0(*plan.notes, *(f"{name}: {format_value(value)}" for name, value in plan.summary.items()), sep="\n")
    return plan, tokenizer


def plan_run(config: PretrainSettings, vocab_size: int | None, bos_id: int = 0) -> RunPlan:
    """Return the plan that follows from the flags; vocab_size None: no tokenizer is trained yet."""
    notes = []
    if vocab_size is None:
        vocab_size = ASSUMED_VOCABULARY
        notes = [f"vocabulary {vocab_size:,} = assumed, no tokenizer is trained yet"]
    model = planned_model(config, vocab_size, bos_id)
    # The reference has its own width and heads, which --kv-heads need not divide.
    reference = planned_model(replace(config, depth=REFERENCE_DEPTH, width=0, kv_heads=0), vocab_size, bos_id)
    shape = model.config
    ratio = f"depth {shape.depth} x aspect_ratio {config.aspect_ratio}, up to a multiple of head_dim {config.head_dim}"
    counts = parameter_counts(model)
    reference_counts = parameter_counts(reference)
    states = state_bytes(model)
    n = scaled_size(counts)  # the size that scaling laws compare
    reference_n = scaled_size(reference_counts)
    size = n / reference_n  # and that of the horizons in tokens, at one ratio
    flops = round(config.share_of_flops * flops_per_token(model, shape.max_seq_len))

    # A given batch changes learning rates and weight decay too.
    batch = config.total_batch_size
    chosen = "given"
    if batch is None or batch < 1:
        batch = 2 ** round(math.log2(REFERENCE_BATCH * size**BATCH_EXPONENT))  # divides well among ranks
        chosen = f"2^19 x (N {n:,} / {reference_n:,})^{BATCH_EXPONENT}, to a power of 2"
    batch_scale = rate_scale(batch)
    decay = (batch / REFERENCE_BATCH) ** 0.5 / size  # the square root has no lower limit here, see dev/LOG.md
    steps, horizon = _horizon(config, n, flops, batch)
    notes += [
        f"width {shape.width:,} = {'given' if config.width else ratio}",
        f"heads {shape.heads:,} = width / head_dim {config.head_dim}, for keys and values {shape.kv_heads:,}",
        f"total_batch_size {batch:,} = {chosen}",
        f"learning rates x {batch_scale:.4g} = (total_batch_size / 2^19)^0.5, at least 1/4",
        f"weight decay x {decay:.4g} = (total_batch_size / 2^19)^0.5 / (N / N at depth 12)",
        f"num_iterations {'?' if steps is None else f'{steps:,}'} = {horizon}",
    ]
    notes += config.model_notes
    return RunPlan(
        model=shape,
        counts=counts,
        state_bytes=states,
        flops_per_token=flops,
        total_batch_size=batch,
        rates=group_rates(config, shape.width, batch_scale, config.weight_decay * decay),
        steps=steps,
        seconds=config.target_seconds if steps is None else None,
        notes=notes,
    )


def scaled_size(counts: dict[str, int]) -> int:
    """Return N, the size that models are compared by."""
    return counts["matrices"] + (counts["head"] or counts["embed"])  # an embedding may be the head as well


def _horizon(config: PretrainSettings, n: int, flops: float, batch: int) -> tuple[int | None, str]:
    """Return the steps, None if a clock ends the run, and a note about them. flops: per token."""
    # -1 is the default of all horizons; OptimizerSettings refuses two of them, and values that are not above 0.
    if config.target_seconds != -1:
        return None, f"as many as {config.target_seconds:g} seconds allow"
    if config.num_iterations != -1:
        return config.num_iterations, "given"
    if config.target_flops != -1:
        steps = config.target_flops / (flops * batch)
        least = config.steps_together
        if steps < least:
            what = "a step, which has" if least == 1 else f"{least} steps, which belong together and have"
            raise UserError(
                f"--target-flops={config.target_flops:g} is below {what} {least * flops * batch:.3g} FLOPs: use"
                f" more, or a smaller --total-batch-size than {batch:,}"
            )
        return _whole(steps, config), f"{config.target_flops:g} FLOPs / those of a step"
    ratio = config.target_param_data_ratio if config.target_param_data_ratio != -1 else TOKENS_PER_PARAMETER
    return _whole(ratio * n // batch, config), f"{ratio:g} x N / total_batch_size"


def _whole(steps: float, config: PretrainSettings) -> int:
    """Return the nearest number of steps that a run can have, from its first ones on."""
    together = config.steps_together
    return max(1, round(steps / together)) * together


def rate_scale(total_batch_size: int) -> float:
    """Return the factor for learning rates, which were found for the reference's batch."""
    # Square-root rule for Adam-like updates. Small batches learn faster at higher rates (dev/LOG.md).
    return max(0.25, (total_batch_size / REFERENCE_BATCH) ** 0.5)


def flops_per_token(model: GPT, row_length: int) -> int:
    """Return FLOPs forward and backward in rows of so many tokens: 6 per matmul weight, 12 per channel and key.

    Norms are left out. A layer counts its window, or the row, for each token: no shorter contexts at a row's start.
    """
    config = model.config
    weights = sum(weight.numel() for weight in model.blocks.parameters() if weight.ndim == 2)
    keys = (min(window or row_length, row_length) for window in config.windows)
    sweep = 6 * weights + 12 * config.heads * config.head_dim * sum(keys)
    head = 6 * model.head_weight.numel()
    smear = 6 * SMEAR_GATE_INPUTS if config.smear else 0
    runs = config.applications
    # A sweep without a gradient costs a third.
    return round((runs.trained + runs.untrained / 3) * sweep) + runs.heads * head + smear


# ---- batches ----


def require_multiple(name: str, count: int, ranks: int) -> None:
    """Raise a UserError if the ranks cannot have the same number each."""
    if count % ranks:
        raise UserError(f"{count} {name} cannot be shared by {ranks} ranks: use a multiple of {ranks}")


def row_choices(asked: str, total_batch_size: int, row_length: int, ranks: int) -> list[int]:
    """Return the rows that a micro-batch may have, in order: the number asked for, or for auto all that divide a step.

    total_batch_size: tokens in a step. row_length: tokens in a row.
    """
    row = row_length * ranks  # tokens in the smallest step
    rows, rest = divmod(total_batch_size, row)
    if rest or not rows:
        raise UserError(
            f"--total-batch-size={total_batch_size} is not a multiple of a row on every rank ("
            f"{row_length} tokens x {ranks} ranks): use --total-batch-size={(rows + 1) * row}"
        )
    legal = _divisors(rows)
    if asked == "auto":
        return legal
    if asked not in map(str, legal):
        raise UserError(
            f"--device-batch-size={asked} (x {row_length} tokens x {ranks} ranks) does not divide "
            f"--total-batch-size={total_batch_size}: use auto or one of {legal}"
        )
    return [int(asked)]


def _divisors(number: int) -> list[int]:
    return [count for count in range(1, number + 1) if number % count == 0]
