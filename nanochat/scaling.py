"""The one dial: from `--depth` follow width, batch, horizon and the scales of rates; and what such a run would take.

N is the number of parameters by which models are compared: matrices and head. What was found best for a model of depth
12, the reference, is carried to others: the batch grows with tokens^0.383 (arXiv 2505.13738), rates with the root of
the batch, and weight decay so that batch / (rate x decay x tokens) stays (arXiv 2405.13698). `note` is told each value.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nanochat.hardware import Accelerator
from nanochat.log import duration

REFERENCE_DEPTH = 12
REFERENCE_BATCH = 2**19  # tokens, best for the reference
BATCH_EXPONENT = 0.383
TOKENS_PER_PARAMETER = 12.0  # where no horizon is given
ASSUMED_MFU = 0.4  # where none was measured
# What a block keeps for the backward pass, in widths a token: counted, uncompiled, MLP ratio 4 (compiled it is 21).
BLOCK_KEEPS = 24

# Flag -> steps from (its value, N, FLOPs of a token, tokens of a batch; None: not known before), and how to say it.
HORIZONS = {
    "num_iterations": (lambda value, n, flops, batch: value, "given"),
    "target_flops": (lambda value, n, flops, batch: value / (flops * batch), "{:g} FLOPs / those of a step"),
    "target_param_data_ratio": (lambda value, n, flops, batch: value * n // batch, "{:g} x N / total_batch_size"),
    "target_seconds": (lambda value, n, flops, batch: None, "as many as {:g} seconds allow"),
}

Note = Callable[[str], None]


@dataclass(frozen=True)
class Scale:
    """total_batch_size: tokens. rates, weight_decay: as multiples of the reference's. steps is None: until seconds."""

    total_batch_size: int
    rates: float
    weight_decay: float
    steps: int | None
    seconds: float | None


def shape(
    depth: int,
    *,
    aspect_ratio: int = 64,
    head_dim: int = 128,
    width: int | None = None,
    kv_heads: int | None = None,
    note: Note = lambda line: None,
) -> dict[str, int]:
    """The sizes of the model of a depth, fields of its config; what is given is not derived."""
    if min(depth, aspect_ratio, head_dim) < 1:
        raise ValueError(f"depth {depth}, aspect ratio {aspect_ratio} and head dim {head_dim} have to be 1 or more")
    rounded = math.ceil(depth * aspect_ratio / head_dim) * head_dim
    how = f"depth {depth} x aspect_ratio {aspect_ratio}, up to a multiple of head_dim {head_dim}"
    width = _derived("width", width, rounded, how, note)
    if width < 1 or width % head_dim:
        near = max(1, round(width / head_dim)) * head_dim
        raise ValueError(f"--width={width} is not a multiple of --head-dim={head_dim}: take {near}")
    heads = _derived("heads", None, width // head_dim, f"width / head_dim {head_dim}", note)
    kv_heads = _derived("kv_heads", kv_heads, heads, "heads", note)
    if kv_heads not in (legal := _divisors(heads)):
        raise ValueError(f"--kv-heads={kv_heads} does not divide {heads} heads: take {_near(kv_heads, legal)}")
    return {"depth": depth, "width": width, "heads": heads, "kv_heads": kv_heads}


def scale(
    n: int, reference_n: int, flops_per_token: float, horizon: Mapping, *, total_batch_size: int | None, note: Note
) -> Scale:
    """Batch, horizon and scales. n, reference_n: N of the model, and of that of REFERENCE_DEPTH.

    horizon: flag of HORIZONS -> its value; one is given, or none: then it is TOKENS_PER_PARAMETER.
    """
    given = {name: value for name, value in horizon.items() if value is not None}
    flags = [f"--{name.replace('_', '-')}={value:g}" for name, value in given.items()]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(flags)} are {len(given)} horizons: keep one of them")
    name, value = next(iter(given.items()), ("target_param_data_ratio", TOKENS_PER_PARAMETER))
    if value <= 0:
        raise ValueError(f"{flags[0]} is no horizon: it has to be more than 0")
    size = n / reference_n  # and that of their tokens, at one ratio
    best = 2 ** round(math.log2(REFERENCE_BATCH * size**BATCH_EXPONENT))
    how = f"2^19 x (N {n:,} / {reference_n:,})^{BATCH_EXPONENT}, to a power of 2"
    batch = _derived("total_batch_size", total_batch_size, best, how, note)
    rates = _derived("learning rates x", None, rate_scale(batch), "(total_batch_size / 2^19)^0.5", note)
    decay = _derived("weight decay x", None, rates / size, f"that / (N / {reference_n:,})", note)
    steps_of, how = HORIZONS[name]
    steps = steps_of(value, n, flops_per_token, batch)
    steps = None if steps is None else max(1, round(steps))
    steps = _derived("num_iterations", None, steps, how.format(value), note)
    return Scale(batch, rates, decay, steps, value if name == "target_seconds" else None)


def rate_scale(total_batch_size: int) -> float:
    """What learning rates are multiplied by: they were found for the reference's batch."""
    return (total_batch_size / REFERENCE_BATCH) ** 0.5


def _derived(name: str, given, value, how: str, note: Note):
    """What is given, or else the derived value; told either way."""
    chosen = value if given is None else given
    shown = "?" if chosen is None else f"{chosen:,}" if isinstance(chosen, int) else f"{chosen:.4g}"
    note(f"{name} {shown} = {how if given is None else 'given'}")
    return chosen


# ---- batches ----


def accumulation_steps(total_batch_size: int, device_batch_size: int, seq_len: int, ranks: int) -> int:
    """Micro-batches of a step; ValueError with the nearest legal values where there is no whole number of them."""
    legal, micro = legal_rows(total_batch_size, seq_len, ranks), device_batch_size * seq_len * ranks
    if device_batch_size in legal:
        return total_batch_size // micro
    sentence = (
        f"--device-batch-size={device_batch_size} (x {seq_len} tokens x {ranks} ranks) does not divide "
        f"--total-batch-size={total_batch_size}: take --device-batch-size={_near(device_batch_size, legal)}"
    )
    if micro > 0:
        sentence += f", or --total-batch-size={_near(total_batch_size, _around(total_batch_size, micro))}"
    raise ValueError(sentence)


def legal_rows(total_batch_size: int, seq_len: int, ranks: int) -> list[int]:
    """The device batch sizes, in rows, that a total batch of tokens can be cut into, in order."""
    row = seq_len * ranks
    if total_batch_size < row or total_batch_size % row:
        near = _near(total_batch_size, _around(total_batch_size, row))
        raise ValueError(
            f"--total-batch-size={total_batch_size} is no multiple of a row on every rank ({seq_len} tokens x {ranks} "
            f"ranks): take --total-batch-size={near}"
        )
    return _divisors(total_batch_size // row)


def read_rows(text: str) -> int:
    """Return the number of rows in --device-batch-size."""
    if not text.isdecimal() or not int(text):
        raise ValueError(f"--device-batch-size={text} is no number of rows, take auto or a whole number")
    return int(text)


def _around(number: int, step: int) -> list[int]:
    """The multiples of a step on both sides of a number."""
    return [max(1, number // step) * step, (number // step + 1) * step]


def _divisors(number: int) -> list[int]:
    return [count for count in range(1, number + 1) if number % count == 0]


def _near(wanted: int, legal: list[int]) -> str:
    """The up to three nearest: 4, 8 or 16."""
    *first, last = sorted(sorted(set(legal), key=lambda value: abs(value - wanted))[:3])
    return f"{', '.join(map(str, first))} or {last}" if first else f"{last}"


# ---- what it would take ----


def memory(
    counts: Mapping[str, int], model: Any, rows: int, seq_len: int, ranks: int, *, logits: int, checkpointing=False
) -> dict[str, float]:
    """Bytes of a rank by what they are for, an estimate: neither fragmentation nor what the framework takes is in it.

    counts: `GPT.parameter_counts()`. model: its config. rows: of a micro-batch. logits: bytes of a chunk of them.
    Computed in 2 bytes a number, without the caches of evaluation and sampling.
    """
    adam = counts["total"] - counts["matrices"]
    kept = model.depth + BLOCK_KEEPS if checkpointing else model.depth * BLOCK_KEEPS
    return {
        "weights": 4 * counts["total"],
        "weights in the compute dtype": 2 * (counts["matrices"] + counts["head"]),
        "gradients": 4 * counts["total"],
        "optimizer": (4 * counts["matrices"] + 8 * adam) / ranks,  # Muon keeps one fp32 tensor a weight, AdamW two
        "activations": 2 * rows * seq_len * model.width * kept,
        "logits": 2 * logits,  # and their gradient
    }


def cost(flops: float, ranks: int, accelerator: Accelerator, dtype: str, measured: tuple | None = None) -> str:
    """Time and dollars; n/a where a rate or price is not known. measured: FLOP/s of a rank, and of which run."""
    name, peak = f"{ranks}x{accelerator.name}", accelerator.peak(dtype)
    if not peak and not measured:
        return f"time n/a, dollars n/a: no {dtype} peak rate is known of {name}"
    rate, source = (measured[0], f"measured: run {measured[1]}") if measured else (peak * ASSUMED_MFU, "assumed")
    seconds = flops / (rate * ranks)
    how = f"{rate / 1e9:,.0f} GFLOP/s each ({source}), MFU n/a"
    if peak:
        how = f"{100 * rate / peak:.3g}% MFU ({source}) of {peak / 1e12:,.0f} TFLOP/s each"
    return f"time {duration(seconds)} on {name}, {how}; {price(seconds, ranks, accelerator)}"


def price(seconds: float, ranks: int, accelerator: Accelerator) -> str:
    rate = accelerator.dollars
    return f"dollars {rate * ranks * seconds / 3600:,.2f} at {rate:.2f} an hour each" if rate else "dollars n/a"
