"""What stands before a token: for smear, and for heads whose keys are those of the token before."""

from typing import NamedTuple

import torch
from torch import Tensor


def behind(x: Tensor, first: Tensor | None = None) -> Tensor:
    """x (B, T, …) a token later: each place has what stood before it, the first of a row `first` (B, 1, …) or zeros."""
    return torch.cat([torch.zeros_like(x[:, :1]) if first is None else first, x[:, :-1]], dim=1)


def shifted(k: Tensor, heads: int, place: "Place | None" = None) -> Tensor:
    """Keys (B, T, Hkv, D), the first heads' of the token before; where none is before, as place knows, zeros."""
    if not heads:
        return k
    moved = k[:, :, :heads]
    moved = behind(moved) if place is None else place.before(moved)
    return torch.cat([moved, k[:, :, heads:]], dim=2)


class Place(NamedTuple):
    """What stands before each token of rows that hold several documents: nothing where it is the `first` of one.

    forks, ends: where a row's documents go on from a trunk, which tokens begin one of them, and where the trunk ends.
    """

    first: Tensor  # (B, T)
    forks: Tensor | None = None  # (B, T)
    ends: Tensor | None = None  # (B, 1)

    @classmethod
    def of(cls, starts: Tensor, trunks: Tensor | None) -> "Place":
        """As `GPT.hidden` takes them."""
        index = torch.arange(starts.shape[1], device=starts.device)
        if trunks is None:
            return cls(index == starts)
        return cls((index == 0).expand_as(starts), index == starts, trunks - 1)

    def before(self, x: Tensor) -> Tensor:
        """x (B, T, …) of the token before each."""
        lift = (slice(None), slice(None), *[None] * (x.ndim - 2))
        found = behind(x)
        if self.forks is not None:
            last = x.gather(1, self.ends[lift].expand(-1, -1, *x.shape[2:]))
            found = torch.where(self.forks[lift], last, found)
        return found.masked_fill(self.first[lift], 0)
