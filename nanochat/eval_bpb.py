"""Bits per byte: how well a model predicts a fixed text, on a scale that no tokenizer changes.

The text is the first so many bytes of a split. Its documents, each behind <|bos|>, make one long row of tokens that is
cut every `seq_len`; each token is predicted once. So the figure depends on text, model and length of context alone: not
on batch size, ranks or padding. A special token stands for no bytes and is not counted. With a stride the rows begin
every so many tokens and overlap: no token is then predicted from little but those that stand in the first row.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nanochat.log import print0
from nanochat.tokenizer import Tokenizer


@dataclass(frozen=True)
class EvalText:
    """ids: all tokens in order. lengths: bytes of each id of the vocabulary, 0 for special ones. bytes: of the text."""

    ids: torch.Tensor
    lengths: torch.Tensor
    bytes: int


@dataclass(frozen=True)
class Bpb:
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


@torch.no_grad()
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
    lengths = text.lengths.to(runtime.device)
    sums = torch.zeros(rows, 2, dtype=torch.float64)  # nats and bytes of each row
    mine = range(runtime.rank, rows, runtime.world_size)
    for first in range(0, len(mine), batch_size):
        numbers = torch.tensor(mine[first : first + batch_size])
        at = numbers[:, None] * stride + torch.arange(seq_len)
        # The first row that a target is in gives it the longest context; later ones have it as context alone.
        first_in = (numbers[:, None] == 0) | (torch.arange(seq_len) >= seq_len - stride)
        inputs, targets = torch.full((2, batch_size, seq_len), -1)
        inputs[: len(numbers)], targets[: len(numbers)] = padded[at], padded[at + 1].where(first_in, -1)
        targets = targets.to(runtime.device)
        losses = model(inputs.clamp(min=0).to(runtime.device), targets, reduction="none").view(targets.shape)
        sizes = torch.where(targets >= 0, lengths[targets.clamp(min=0)], 0)
        pair = torch.stack([(losses.float() * (sizes > 0)).sum(1), sizes.sum(1).float()], dim=1)
        sums[numbers] = pair[: len(numbers)].cpu().double()
    if runtime.world_size > 1:
        sums = runtime.all_sum(sums.to(runtime.device)).cpu()
    nats, size = sums.sum(0).tolist()
    assert size == text.bytes, (size, text.bytes)
    value = nats / size / math.log(2)
    # Of a ratio of sums: the spread of what each row adds beyond its share.
    excess = sums[:, 0] / math.log(2) - value * sums[:, 1]
    stderr = math.sqrt(rows / max(rows - 1, 1) * float((excess**2).sum())) / size if rows > 1 else math.nan
    return Bpb(value, stderr, int(size))


def validation(model: Any, text: EvalText, seq_len: int, batch_size: int, runtime: Any, log: Any) -> Callable:
    """A hook of the training loop: the figure goes to the log, and with the lowest one into the state's notes."""

    def validate(state: Any) -> None:
        found = bits_per_byte(model, text, seq_len, batch_size, runtime)
        lowest = min(found.value, state.notes.get("lowest val bpb", math.inf))
        state.notes |= {"val bpb": found.value, "val bpb stderr": found.stderr, "lowest val bpb": lowest}
        print0(f"step {state.step:05d} | validation bpb: {found.value:.4f} ± {found.stderr:.4f}")
        log.write(step=state.step, **{"val/bpb": found.value, "val/bpb_stderr": found.stderr})

    return validate
