"""Bits per byte: how well a model predicts a fixed text, on a scale that no tokenizer changes.

The text is the first so many bytes of a split. Its documents, each behind <|bos|>, make one long row of tokens that is
cut every `seq_len`; each token is predicted once. So the figure depends on text, model and length of context alone: not
on batch size, ranks or padding. A special token stands for no bytes and is not counted. With a stride the rows begin
every so many tokens and overlap: no token is then predicted from little but those that stand in the first row.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from nanochat.log import Progress, print0
from nanochat.tokenizer import Tokenizer


@dataclass(frozen=True)
class EvalText:
    """ids: all tokens in order. lengths: bytes of each id of the vocabulary, 0 for special ones. bytes: of the text."""

    ids: torch.Tensor
    lengths: torch.Tensor
    bytes: int


class Bpb(NamedTuple):
    """value: bits per byte of the text. stderr: of the value, taking its rows as a sample of more such text."""

    value: float
    stderr: float
    bytes: int


def read_text(batches: Iterable[Any], tokenizer: Tokenizer, max_bytes: int) -> EvalText:
    """The first `max_bytes` of documents that come in Arrow arrays of texts; the last one is cut at a character."""
    ids, size = [], 0
    for text in _until(batches, max_bytes):
        ids += [tokenizer.special_tokens["<|bos|>"], *tokenizer.encode(text)]
        size += len(text.encode())
    if not size:
        raise ValueError("there is no text to evaluate on, take a corpus with a validation split that is not empty")
    return EvalText(torch.tensor(ids), torch.from_numpy(tokenizer.token_lengths().astype(np.int64)), size)


def _until(batches: Iterable[Any], most: int) -> Iterator[str]:
    for batch in batches:
        for text in batch.to_pylist():
            kept = text.encode()[:most].decode(errors="ignore")
            most -= len(kept.encode())
            if kept:
                yield kept
            if len(kept) < len(text) or most == 0:
                return


def bits_per_byte(model: Any, text: EvalText, seq_len: int, batch_size: int, runtime: Any, stride: int = 0) -> Bpb:
    """`model(ids, targets, reduction="none")` gives the loss of each target in nats; -1 is none.

    All ranks call it and get the same figure. batch_size: rows at once on a rank, all of them of `seq_len`, the last
    ones padded, so that compiled code meets one shape. stride: tokens from row to row, 0: seq_len.
    """
    stride = stride or seq_len
    if not 1 <= stride <= seq_len:
        raise ValueError(f"--stride={stride} would leave out text, take 1 to {seq_len}, the context's length")
    rows = 1 + max(0, -(-(len(text.ids) - 1 - seq_len) // stride))
    padded = torch.full(((rows - 1) * stride + seq_len + 1,), -1)
    padded[: len(text.ids)] = text.ids

    def row(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        at = numbers[:, None] * stride + torch.arange(seq_len)
        # The first row that a target is in gives it the longest context; later ones have it as context alone.
        first_in = (numbers[:, None] == 0) | (torch.arange(seq_len) >= seq_len - stride)
        return padded[at], padded[at + 1].where(first_in, -1)

    [sums] = sums_of_rows(model, row, rows, seq_len, text.lengths[None], batch_size, runtime)
    value, stderr = ratio(sums)
    size = int(sums[:, 1].sum())
    assert size == text.bytes, (size, text.bytes)
    return Bpb(value / math.log(2), stderr / math.log(2), size)


@torch.no_grad()
def sums_of_rows(
    model: Any, rows: Callable, count: int, seq_len: int, weights: torch.Tensor, batch_size: int, runtime: Any
) -> torch.Tensor:
    """(kinds, count, 2): of each row the nats of its targets and the sum of their weights, on all ranks.

    rows: numbers (n,) -> inputs and targets (n, seq_len), -1: padding, and no target. weights (kinds, vocabulary): of
    each kind of sum; what weighs 0 is not counted.
    """
    weights = weights.to(runtime.device)
    sums = torch.zeros(len(weights), count, 2, dtype=torch.float64)
    mine, progress = range(runtime.rank, count, runtime.world_size), Progress("evaluate", "rows")
    for first in range(0, len(mine), batch_size):
        numbers = torch.tensor(mine[first : first + batch_size])
        inputs, targets = torch.full((2, batch_size, seq_len), -1)
        inputs[: len(numbers)], targets[: len(numbers)] = rows(numbers)
        targets = targets.to(runtime.device)
        losses = model(inputs.clamp(min=0).to(runtime.device), targets, reduction="none").view(targets.shape).float()
        sizes = torch.where(targets >= 0, weights[:, targets.clamp(min=0)], 0)
        pairs = torch.stack([(losses * (sizes > 0)).sum(2), sizes.sum(2).float()], dim=2)
        sums[:, numbers] = pairs[:, : len(numbers)].cpu().double()
        progress.update(min(count, (first + batch_size) * runtime.world_size), count)
    progress.clear()
    return runtime.all_reduce(sums.to(runtime.device)).cpu() if runtime.world_size > 1 else sums


def ratio(sums: torch.Tensor) -> tuple[float, float]:
    """What stands first over what stands second in the sum of all rows (n, 2), and its error, rows being a sample."""
    above, below = sums.sum(0).tolist()
    value, rows = above / below, len(sums)
    # Of a ratio of sums: the spread of what each row adds beyond its share.
    excess = sums[:, 0] - value * sums[:, 1]
    spread = rows / max(rows - 1, 1) * float((excess**2).sum())
    return value, math.sqrt(spread) / below if rows > 1 else math.nan


def validation(
    measure: Callable[[], dict[str, tuple[float, float]]], tokens: int, often: int, model: Any, runtime: Any, log: Any
) -> Callable:
    """A hook of the training loop; measure: figures with their errors, which the state notes, and the lowest ones.

    It computes as the model is written until, with `tokens` every `often` steps, compiling that too has paid.
    """
    flops = model.flops_per_token() // 3 * tokens

    def validate(state: Any) -> None:
        before = state.step // often if often else int(state.step > 0)
        pays = runtime.compiling_pays(flops * (1 + before))
        with nullcontext() if pays else model.as_written():
            found = measure()
        for name, (value, stderr) in found.items():
            state.notes |= {f"val {name}": value, f"val {name} stderr": stderr}
            if value <= state.notes.get(f"lowest val {name}", math.inf):
                state.notes |= {f"lowest val {name}": value, f"lowest val {name} stderr": stderr}
            print0(f"step {state.step:05d} | validation {name}: {value:.4f} ± {stderr:.4f}")
            log.write("validation", state.step, **{f"val/{name}": value, f"val/{name}_stderr": stderr})

    return validate
