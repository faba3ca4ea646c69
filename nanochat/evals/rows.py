"""A text as rows to evaluate."""

import torch.nn.functional as F
from torch import Tensor

from nanochat.cross_entropy import IGNORED
from nanochat.errors import UserError


def overlapping_rows(ids: Tensor, length: int, stride: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, (rows, length) each; a row starts every `stride` tokens."""
    if not 1 <= stride <= length:
        raise UserError(f"--stride={stride} would leave out text, use 1 to {length}, the context's length")
    missing = length + 1 - len(ids)  # of one row; its last token has a target too
    ids = F.pad(ids, (0, max(missing, missing % stride)), value=IGNORED)  # to one row or whole strides
    return ids[:-1].unfold(0, length, stride), ids[1:].unfold(0, length, stride)
