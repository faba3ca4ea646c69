"""Keys and values of rows that are being generated, a slot each, and of beginnings that rows in training share.

Both make the caches that `GPT.hidden` asks for.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from nanochat.before import shifted


class KVCache:
    """slots x length positions. What a slot held before needs no clearing: no position is seen before it is written.

    store: (depth, keys or values, slots, kv_heads, length, head_dim), so that what one head reads lies together.
    Shifted heads, whose keys are those of the token before, have them a position further, and zeros first.
    """

    def __init__(self, config: Any, slots: int, length: int, dtype: torch.dtype, device: torch.device):
        self.slots, self.length = slots, length
        shape = (config.depth, 2, slots, config.kv_heads, length, config.head_dim)
        self.store = torch.zeros(shape, dtype=dtype, device=device)  # what is masked must still be finite
        self.heads = torch.arange(slots * config.kv_heads, device=device).view(slots, -1) * length
        self.shifted = config.shifted_heads
        self.ahead = (torch.arange(config.kv_heads, device=device) < self.shifted).long()

    @staticmethod
    def slot_bytes(config: Any, length: int, dtype: torch.dtype) -> int:
        return 2 * config.depth * config.kv_heads * config.head_dim * length * dtype.itemsize

    def filling(self, slots: Tensor, length: int) -> SimpleNamespace:
        """To run the first `length` tokens of new rows, padding included, into these slots."""
        positions = torch.arange(length, device=self.store.device)[None]
        layers = [_Filling(keys, values, slots, self.shifted) for keys, values in self.store]
        return SimpleNamespace(positions=positions, capacity=length, previous=slots[:, None] * 0, layers=layers)

    def growing(self, positions: Tensor, previous: Tensor, capacity: int) -> SimpleNamespace:
        """To run one token more of the first slots, at positions (rows, 1) below `capacity`, behind `previous`."""
        heads = self.heads[: len(positions)]
        at, at_keys = ((heads + place).flatten() for place in (positions, self._ahead(positions)))
        layers = [_Growing(keys, values, at_keys, at, capacity) for keys, values in self.store]
        return SimpleNamespace(positions=positions, capacity=capacity, previous=previous, layers=layers)

    def _ahead(self, positions: Tensor) -> Tensor:
        """Where a token's key goes, of each head; a row that has ended at the very last position spoils only that."""
        return (positions + self.ahead).clamp(max=self.length - 1) if self.shifted else positions

    def copy(self, source: int, targets: list[int], length: int) -> None:
        """The first `length` positions of one slot into others, and what stands a position further."""
        length += bool(self.shifted)
        self.store[:, :, targets, :, :length] = self.store[:, :, source, None, :, :length]

    def take(self, other: "KVCache", slots: int) -> None:
        """The first slots of a cache that is no longer than this one."""
        self.store[:, :, :slots, :, : other.length] = other.store[:, :, :slots]


@dataclass
class _Filling:
    keys: Tensor  # (all slots, kv_heads, length, head_dim), as are the values
    values: Tensor
    slots: Tensor
    shifted: int

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        length, seen = k.shape[1], shifted(k, self.shifted)
        for mine, given in ((self.keys, seen), (self.values, v)):
            mine[self.slots, :, :length] = given.transpose(1, 2)
        if self.shifted:
            further = k[:, : self.keys.shape[2] - 1, : self.shifted]
            self.keys[self.slots, : self.shifted, 1 : length + 1] = further.transpose(1, 2)
        return seen, v  # nothing stands before them


@dataclass
class _Growing:
    keys: Tensor
    values: Tensor
    at_keys: Tensor  # of each row and head, where among the positions of all slots and heads
    at: Tensor
    capacity: int

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self._put(self.keys, k, self.at_keys), self._put(self.values, v, self.at)

    def _put(self, mine: Tensor, given: Tensor, at: Tensor) -> Tensor:
        mine.view(-1, mine.shape[-1]).index_copy_(0, at, given.flatten(0, 2))
        return mine[: len(given), :, : self.capacity].transpose(1, 2)


class Beginnings:
    """Texts that several rows go on from, computed once for all of these; gradients flow through.

    ids (texts, longest), lengths (texts,), at least 1, on the host.
    """

    def __init__(self, model: Any, ids: Tensor, lengths: Tensor):
        self._lengths, self._shifted = lengths, model.config.shifted_heads
        self._layers = [_Kept(self._shifted) for _ in range(model.config.depth)]
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        options = {"positions": positions, "capacity": ids.shape[1], "previous": ids[:, :1], "layers": self._layers}
        model.hidden(ids, cache=SimpleNamespace(**options))
        self._last, self._width = ids.gather(1, lengths.to(ids.device)[:, None] - 1), ids.shape[1]

    def before(self, texts: Tensor, lengths: Tensor) -> SimpleNamespace:
        """For rows each behind one of the texts, of so many tokens: both (rows,), on the host."""
        starts, width = self._lengths[texts], int(lengths.max())
        capacity = int((starts + lengths).max())
        place = torch.arange(capacity) - starts[:, None]  # of a position in what the row itself has; below 0: before it
        own = torch.arange(len(texts))[:, None] * width + place.clamp(max=width - 1) + len(self._lengths) * self._width
        shared = texts[:, None] * self._width + torch.arange(capacity).clamp(max=self._width - 1)
        device = self._last.device
        where = torch.where(place < 0, shared, own).to(device)
        positions = (starts[:, None] + torch.arange(width)).clamp(max=capacity - 1).to(device)
        layers = [_Behind(layer.kept, where, self._shifted) for layer in self._layers]
        previous = self._last[texts.to(device)]
        return SimpleNamespace(positions=positions, capacity=capacity, previous=previous, layers=layers)


class _Kept:
    def __init__(self, shifted_heads: int):
        self.shifted_heads = shifted_heads

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.kept = k, v
        return shifted(k, self.shifted_heads), v


@dataclass
class _Behind:
    kept: tuple[Tensor, Tensor]
    where: Tensor  # (rows, capacity), among all positions of the texts and then of the rows
    shifted_heads: int

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (self._joined(*pair) for pair in zip(self.kept, (k, v), strict=True))
        return shifted(k, self.shifted_heads), v

    def _joined(self, kept: Tensor, given: Tensor) -> Tensor:
        every = torch.cat([kept.flatten(0, 1), given.flatten(0, 1)])
        return every.index_select(0, self.where.flatten()).unflatten(0, self.where.shape)
