"""The device side of generation: KV caches, the state of each slot's row, and the step that gives each row a token.

A step takes all decisions on the device. A row that ends, or that waits for the host, stands still: its state does not
change and the step gives -1 for it. On CUDA the steps are graphs, replayed without help from the host.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from nanochat.gpt import GPT, GPTConfig
from nanochat.log import print0
from nanochat.runtime import free_memory

BUCKETS = (1, 8, 32, 64, 128, 256)  # on CUDA a step takes one of these numbers of rows, and has a graph for each
KEYS_BLOCK = 32  # a step reads a multiple of this many keys, on CUDA times a power of two
CAPTURING = threading.Lock()  # a process captures one graph at a time
PREFILL_TOKENS = 8192  # of prompts run at once, padding included


# ---- caches ----


class Cache(Protocol):
    """Keys and values that the model's layers attend to; `GPT.context` reads the attributes, each layer updates."""

    positions: Tensor | None  # (B or 1, T): the position of each given token in its row; None: rows begin with them
    previous: Tensor | None  # (B, 1): the token before each row's first given token; any id at position 0
    capacity: int  # keys of a row that `update` returns, if there are positions

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Take keys and values (B, T, Hkv, D) of the given tokens; return those of the rows, key j at position j."""
        ...


@dataclass
class Recording:
    """The cache of rows that begin: it hands each layer's keys and values to `keep`."""

    keep: Callable[[int, Tensor, Tensor], None]
    positions: None = None
    previous: None = None
    capacity: int = 0

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.keep(layer, k, v)
        return k, v


class Prefix:
    """Keys and values of texts, computed once however many rows continue a text; gradients flow through.

    ids: (texts, longest). lengths: (texts,) on the host; a text may be empty.
    """

    def __init__(self, model: GPT, ids: Tensor, lengths: Tensor):
        self.lengths = lengths
        self.longest = ids.shape[1]
        self.layers: list[tuple[Tensor, Tensor]] = []
        model.hidden(ids, cache=Recording(lambda layer, k, v: self.layers.append((k, v))))
        last = (lengths - 1).clamp(min=0).to(ids.device)
        self.last = ids.gather(1, last[:, None])  # the last token of each text

    def rows(self, texts: Tensor, lengths: Tensor) -> "PrefixedRows":
        """Return the cache of rows that continue texts[i] by lengths[i] tokens; both (rows,), on the host."""
        starts = self.lengths[texts]
        width = int(lengths.max())
        capacity = int((starts + lengths).max())
        # Key j of a row is key j of its text, then key j - start of its own tokens. `source` is the index of key j
        # among all keys of the texts, followed by all keys of the rows; padding repeats a valid index.
        own = torch.arange(capacity) - starts[:, None]
        first_own = len(self.lengths) * self.longest + torch.arange(len(texts))[:, None] * width
        from_text = texts[:, None] * self.longest + torch.arange(capacity).clamp(max=self.longest - 1)
        source = torch.where(own < 0, from_text, first_own + own.clamp(max=width - 1))
        positions = (starts[:, None] + torch.arange(width)).clamp(max=capacity - 1)
        device = self.last.device
        previous = self.last[texts.to(device)]
        return PrefixedRows(positions.to(device), previous, capacity, self.layers, source.to(device))


@dataclass
class PrefixedRows:
    """The cache of rows behind the texts of a Prefix."""

    positions: Tensor
    previous: Tensor
    capacity: int
    layers: list[tuple[Tensor, Tensor]]
    source: Tensor  # (rows, capacity)

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        text_keys, text_values = self.layers[layer]
        return self._joined(text_keys, k), self._joined(text_values, v)

    def _joined(self, text: Tensor, own: Tensor) -> Tensor:
        every = torch.cat([text.flatten(0, 1), own.flatten(0, 1)])
        return every.index_select(0, self.source.flatten()).unflatten(0, self.source.shape)


class KVCache:
    """Keys and values of `slots` rows of up to `length` tokens, in fixed memory that CUDA graphs can read.

    A slot needs no clearing: no position is seen before it is written. Samples of one prompt copy its slot instead of
    sharing a Prefix: a decoding step reads each row's keys in one piece, which takes half the time of gathering them.
    """

    def __init__(self, config: GPTConfig, slots: int, length: int, dtype: torch.dtype, device: torch.device):
        self.slots = slots
        self.length = length
        # Keys that one head reads lie together. Zeros, because masked values must still be finite.
        shape = (config.depth, 2, slots, config.kv_heads, length, config.head_dim)
        self.store = torch.zeros(shape, dtype=dtype, device=device)
        self.layers = [(keys, values) for keys, values in self.store]
        # (slots, kv_heads): the index of each head's position 0 among a layer's keys.
        self.offsets = torch.arange(slots * config.kv_heads, device=device).view(slots, -1) * length

    @staticmethod
    def slot_bytes(config: GPTConfig, length: int, dtype: torch.dtype) -> int:
        return 2 * config.depth * config.kv_heads * config.head_dim * length * dtype.itemsize

    def prompts(self, slots: Tensor) -> Recording:
        """Return the cache that runs the prompts of new rows, padding included, into these slots."""
        return Recording(partial(self._write, slots))

    def _write(self, slots: Tensor, layer: int, k: Tensor, v: Tensor) -> None:
        for store, given in zip(self.layers[layer], (k, v), strict=True):
            store[slots, :, : given.shape[1]] = given.transpose(1, 2)

    def next_tokens(self, positions: Tensor, previous: Tensor, capacity: int) -> "NextTokens":
        """Return the cache that runs one more token of the first rows, at positions (rows, 1) below `capacity`."""
        places = (self.offsets[: len(positions)] + positions).flatten()
        return NextTokens(positions, previous, capacity, self.layers, places)

    def copy(self, source: int, targets: list[int], length: int) -> None:
        """Copy the first `length` positions of one slot into others."""
        self.store[:, :, targets, :, :length] = self.store[:, :, source, None, :, :length]

    def take(self, other: "KVCache", slots: int) -> None:
        """Copy the first slots of a cache that is no longer than this one."""
        self.store[:, :, :slots, :, : other.length] = other.store[:, :, :slots]


@dataclass
class NextTokens:
    """The cache of a decoding step: the first rows of a KVCache take one token each."""

    positions: Tensor
    previous: Tensor
    capacity: int
    layers: list[tuple[Tensor, Tensor]]
    places: Tensor  # (rows * kv_heads,): the index of each new key among a layer's keys

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.layers[layer]
        return self._put(keys, k), self._put(values, v)

    def _put(self, store: Tensor, given: Tensor) -> Tensor:
        store.view(-1, store.shape[-1]).index_copy_(0, self.places, given.flatten(0, 2))
        return store[: len(given), :, : self.capacity].transpose(1, 2)


# ---- decoder ----

# The state of a row: name → (dtype, size). Index p of a "positions" entry is meant for the token at position p.
STATE = {
    "token": (torch.int64, "one"),  # the newest, which the next step feeds
    "previous": (torch.int64, "one"),  # the token before it
    "position": (torch.int64, "one"),  # of the newest
    "last": (torch.int64, "one"),  # the position at which the row is full
    "live": (torch.bool, "one"),
    "temperature": (torch.float32, "one"),
    "top_k": (torch.int64, "one"),
    "top_p": (torch.float32, "one"),
    "halting": (torch.bool, "vocabulary"),  # the row stands still after it has chosen one of these tokens
    "uniform": (torch.float64, "positions"),  # the row's random numbers, from 0 to 1
    "forced": (torch.int64, "positions"),  # tokens to put in instead of chosen ones; -1: none
}


@dataclass
class RowStart:
    """The state of a row whose prompt has run but for its last token; the fields are those of STATE."""

    token: int
    previous: int
    position: int
    last: int
    temperature: float
    top_k: int
    top_p: float
    halting: frozenset[int]
    uniform: np.ndarray  # (last - position,), for the positions after `position`


class StepKind(NamedTuple):
    """The parts of a step that the rows need; on CUDA each kind has a graph of its own."""

    sampled: bool = False  # some row has a temperature
    ranks: int = 0  # how many of the likeliest tokens top-k and top-p must order; 0: no row filters
    logprobs: bool = False


class Decoder:
    """Rows in slots, filled from the first on: a step runs the first slots. model: packed for inference (fused.py)."""

    def __init__(self, model: GPT):
        self.model = model
        self.config = model.config
        self.device = model.device
        self.on_cuda = self.device.type == "cuda"
        self.cache: KVCache | None = None
        self.state: dict[str, Tensor] = {}
        self.wanted = 0  # slots; where memory is short there are fewer

    def make_room(self, slots: int, length: int, kept: int = 0) -> int:
        """Make room for rows of that length, and return how many of `slots` there are: fewer where memory is short.

        kept: the first slots, in which rows run and keep their state; if memory lacks there are no others.
        """
        length = min(self._keys(length), self.config.max_seq_len)
        long_enough = self.cache is not None and self.cache.length >= length
        usable = self.cache.slots if long_enough else kept
        # A free slot is enough: more were refused before, or not wanted.
        if usable > kept and self.wanted >= slots:
            return min(slots, usable)
        self.wanted = max(slots, self.wanted)
        if self.cache is not None:
            length = max(length, self.cache.length)
        if not kept:
            self.cache, self.state = None, {}  # frees the memory before it is asked for again
        slot_bytes = KVCache.slot_bytes(self.config, length, self.model.compute_dtype)
        fit = max(1, free_memory(self.device) // 2 // slot_bytes)
        if kept and fit <= usable:
            return min(slots, usable)
        if fit < self.wanted:
            print0(f"generation: {fit} rows at once and not {self.wanted}, as memory is short")
        self._allocate(min(self.wanted, fit), length, kept)
        return min(slots, self.cache.slots)

    def _allocate(self, slots: int, length: int, kept: int) -> None:
        old_cache, old_state = self.cache, self.state
        self.state = {}
        self.graphs: dict[tuple[int, int, StepKind], tuple | None] = {}  # they read the memory of the old cache
        self.pool = torch.cuda.graph_pool_handle() if self.on_cuda else None
        # torch's own stream for capturing would be that of the first device.
        self.stream = torch.cuda.Stream() if self.on_cuda else None
        self.cache = KVCache(self.config, slots, length, self.model.compute_dtype, self.device)
        sizes = {"one": 1, "positions": length, "vocabulary": self.config.vocab_size}
        for name, (dtype, size) in STATE.items():
            if dtype == torch.float64 and self.device.type == "mps":
                dtype = torch.float32  # the largest that MPS has
            new = torch.zeros(slots, sizes[size], dtype=dtype, device=self.device)
            if kept:
                old = old_state[name][:kept]
                new[:kept, : old.shape[1]] = old
            self.state[name] = new
        if kept:
            self.cache.take(old_cache, kept)

    def _keys(self, positions: int) -> int:
        blocks = -(-positions // KEYS_BLOCK)
        return KEYS_BLOCK * (1 << (blocks - 1).bit_length() if self.on_cuda else blocks)

    def prefill(self, prompts: dict[int, Sequence[int]]) -> None:
        """Run prompts into slots, all but their last tokens, prompts of similar length together."""
        longer = [slot for slot, tokens in prompts.items() if len(tokens) > 1]
        slots = sorted(longer, key=lambda slot: -len(prompts[slot]))
        while slots:
            rows = max(1, PREFILL_TOKENS // (len(prompts[slots[0]]) - 1))
            self._run_prompts([prompts[slot][:-1] for slot in slots[:rows]], slots[:rows])
            slots = slots[rows:]

    def _run_prompts(self, prompts: list[Sequence[int]], slots: list[int]) -> None:
        ids = torch.zeros(len(prompts), len(prompts[0]), dtype=torch.int64)  # the longest prompt comes first
        for row, tokens in zip(ids, prompts, strict=True):
            row[: len(tokens)] = torch.as_tensor(tokens)
        cache = self.cache.prompts(torch.tensor(slots, device=self.device))
        self.model.hidden(ids.to(self.device), cache=cache)

    def seat(self, slots: list[int], rows: list[RowStart]) -> None:
        """Begin rows in slots: they are live, and nothing is forced."""
        values = {
            "live": torch.ones(len(rows), 1),
            "forced": torch.full((len(rows), self.cache.length), -1),
            "halting": torch.zeros(len(rows), self.config.vocab_size),
            "uniform": torch.zeros(len(rows), self.cache.length, dtype=torch.float64),
        }
        for i, row in enumerate(rows):
            values["halting"][i, list(row.halting)] = 1
            values["uniform"][i, row.position + 1 : row.last + 1] = torch.from_numpy(row.uniform)
        for name in self.state.keys() - values.keys():
            values[name] = torch.tensor([getattr(row, name) for row in rows])[:, None]
        index = torch.tensor(slots, device=self.device)
        for name, state in self.state.items():
            state[index] = values[name].to(self.device, state.dtype)

    def resume(self, slot: int, position: int, forced: list[int]) -> None:
        """Let a row that stands still go on, with the forced tokens from the position on."""
        if forced:
            tokens = torch.tensor(forced).to(self.device)
            self.state["forced"][slot, position : position + len(forced)] = tokens
        self.state["live"][slot] = True

    def move(self, source: int, target: int, length: int) -> None:
        """Move a row into another slot; a step may be under way that has added a token to its length."""
        self.cache.copy(source, [target], min(length + 1, self.cache.length))
        for state in self.state.values():
            state[target] = state[source]

    def step(self, rows: int, longest: int, kind: StepKind) -> tuple[list[Tensor], torch.cuda.Event | None]:
        """Return the columns of `_compute` for the first rows, on the host, and on CUDA the event to wait for first.

        longest: tokens of the longest row, as far as the host knows.
        """
        keys = min(self._keys(longest + self.on_cuda), self.cache.length)
        if not self.on_cuda:
            return self._compute(rows, keys, kind), None
        bucket = next((size for size in BUCKETS if size >= rows), rows)
        columns = self._replay(min(bucket, self.cache.slots), keys, kind)
        host_columns = [column.to("cpu", non_blocking=True) for column in columns]
        return host_columns, torch.cuda.current_stream().record_event()

    def _replay(self, rows: int, keys: int, kind: StepKind) -> list[Tensor]:
        """Run a step as a CUDA graph, which the second step of its shape captures."""
        shape = (rows, keys, kind)
        if shape not in self.graphs:
            self.graphs[shape] = None  # the first step runs without: it makes everything that is made only once
            return self._compute(rows, keys, kind)
        if self.graphs[shape] is None:
            graph = torch.cuda.CUDAGraph()
            # thread_local: engines in other threads may use CUDA meanwhile.
            with CAPTURING, torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
                columns = self._compute(rows, keys, kind)
            self.graphs[shape] = graph, columns
        graph, columns = self.graphs[shape]
        graph.replay()
        return columns

    def _compute(self, rows: int, keys: int, kind: StepKind) -> list[Tensor]:
        """Return the token given to each row, and with kind.logprobs the model's log-probability of its choice."""
        state = {name: value[:rows] for name, value in self.state.items()}
        newest, position, live = state["token"], state["position"], state["live"]
        cache = self.cache.next_tokens(position, state["previous"], keys)
        logits = self.model.logits(self.model.hidden(newest, cache=cache)[:, -1])
        following = (position + 1).clamp(max=self.cache.length - 1)
        token = logits.argmax(-1, keepdim=True)
        if kind.sampled:
            drawn = sample_tokens(
                logits,
                state["uniform"].gather(1, following),
                state["temperature"],
                state["top_k"],
                state["top_p"],
                kind.ranks,
            )
            token = torch.where(state["temperature"] > 0, drawn, token)
        columns = []
        if kind.logprobs:
            columns.append(logits.log_softmax(-1).gather(1, token).flatten())
        forced = state["forced"].gather(1, following)
        halts = state["halting"].gather(1, token) & (forced < 0) | (following >= state["last"])
        token = torch.where(forced < 0, token, forced)
        columns.insert(0, torch.where(live, token, -1).flatten())
        # In place, where the next replay of a graph reads them.
        state["previous"].copy_(torch.where(live, newest, state["previous"]))
        newest.copy_(torch.where(live, token, newest))
        position.add_(live)
        live.logical_and_(~halts)
        return columns


def sample_tokens(
    logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, ranks: int
) -> Tensor:
    """Return a token (rows, 1) for each row: the first at which the probabilities, summed by id, pass `uniform`.

    The token follows from the row's own number, and changes only if the last bit of a sum lies between. ranks: how many
    of the likeliest tokens the filtered rows need in order; to order all of them takes long.
    """
    logits = logits / torch.where(temperature > 0, temperature, 1.0)
    if ranks:
        ranked = logits.topk(ranks).values
        in_top_k = torch.arange(ranks, device=ranked.device) < top_k
        probabilities = ranked.masked_fill(~in_top_k, -torch.inf).softmax(-1)
        before = probabilities.cumsum(-1) - probabilities  # of all likelier tokens
        kept = in_top_k & ((before < top_p) | (top_p >= 1))
        least = ranked.masked_fill(~kept, torch.inf).amin(-1, keepdim=True)
        unfiltered = (top_k >= logits.shape[-1]) & (top_p >= 1)
        logits = logits.masked_fill((logits < least) & ~unfiltered, -torch.inf)
    mass = logits.softmax(-1).cumsum(-1, dtype=uniform.dtype)
    token = (mass <= uniform * mass[:, -1:]).sum(-1, keepdim=True)
    return token.clamp(max=logits.shape[-1] - 1)
