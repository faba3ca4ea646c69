"""The device side of generation: KV caches, the row state in each slot, and the step that gives each row a token.

A step makes all decisions on the device. A row that ends, or waits for the host, is paused: the row state does not
change and the step gives -1. On CUDA the steps are graphs, replayed without help from the host.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nanochat.errors import UserError
from nanochat.gpt import GPT
from nanochat.runtime import free_memory
from nanochat.tables import parse_rows

BUCKETS = (1, 8, 32, 64, 128, 256)  # row counts for steps on CUDA, with a graph for each
KEYS_BLOCK = 32  # a step reads a multiple of 32 keys, on CUDA 32 times a power of two
CAPTURING = threading.Lock()  # a process captures one graph at a time
PREFILL_TOKENS = 8192  # most prompt tokens run at once, padding included
LIKELY = 20  # tokens that a step with `StepKind.likely` returns for each row


# ---- caches ----


KeysValues = tuple[Tensor, Tensor]
Stored = TypeVar("Stored")  # keys, or values, as a cache stores them


def _updating(
    layers: Mapping[int, Sequence[Stored]] | Sequence[Sequence[Stored]], put: Callable[[Stored, Tensor], Tensor]
) -> Callable[[int, Tensor, Tensor], KeysValues]:
    """Return Cache.update for stored keys and values by layer; `put` takes stored and given ones, returns the rows'."""

    def update(layer: int, k: Tensor, v: Tensor) -> KeysValues:
        stored_k, stored_v = layers[layer]
        return put(stored_k, k), put(stored_v, v)

    return update


class Cache(NamedTuple):
    """Keys and values that the model's layers attend to; `GPT.context` reads the positions, each layer updates."""

    # Takes a layer's number and the given tokens' keys and values (B, T, Hkv, D); returns the whole rows', key j at
    # position j.
    update: Callable[[int, Tensor, Tensor], KeysValues]
    positions: Tensor | None = None  # (B or 1, T): each given token's position in the row; None: rows begin here
    previous: Tensor | None = None  # (B, 1): the token before each row's first given token; any id at position 0
    capacity: int = 0  # keys per row that `update` returns, if there are positions


class Prefix:
    """Keys and values for texts, computed once however many rows continue a text; gradients flow through.

    ids: (texts, longest); tokens behind a text's end do not belong to it. lengths: (texts,) on the host, maybe 0.
    """

    def __init__(self, model: GPT, ids: Tensor, lengths: Tensor) -> None:
        self.lengths = lengths
        self.longest = ids.shape[1]
        self.layers: dict[int, KeysValues] = {}  # keys and values, (texts, longest, Hkv, D) each

        def keep(layer: int, k: Tensor, v: Tensor) -> KeysValues:
            self.layers[layer] = k, v  # the same again, if a backward computes the layer again
            return k, v

        self.hidden = model.hidden(ids, Cache(keep))  # (texts, longest, width)
        last = (lengths - 1).clamp(min=0).to(ids.device)
        self.last = ids.gather(1, last[:, None])  # (texts, 1): each text's last token

    def rows(self, texts: Tensor, lengths: Tensor) -> Cache:
        """Return the cache for rows that continue texts[i] by lengths[i] tokens; both (rows,), on the host."""
        starts = self.lengths[texts]  # (rows,): where each row's own tokens begin
        width = int(lengths.max())
        capacity = int((starts + lengths).max())
        # Key j in a row is the text's key j, then the row's own key j - start. `source` is the index of key j in a
        # list with all text keys, followed by all row keys; padding repeats a valid index. Two texts of up to 3 tokens
        # have the keys 0 to 5: if row 0 continues text 1, of length 2, by 2 tokens, its keys are 3, 4, 6 and 7.
        key = torch.arange(capacity)
        own_key = key - starts[:, None]  # (rows, capacity); below 0: the key belongs to the text
        text_keys = len(self.lengths) * self.longest
        row_begins = text_keys + torch.arange(len(texts))[:, None] * width
        from_text = texts[:, None] * self.longest + key
        source = torch.where(own_key < 0, from_text, row_begins + own_key.clamp(max=width - 1))
        positions = (starts[:, None] + torch.arange(width)).clamp(max=capacity - 1)  # padding behind the longest row
        device = self.last.device
        source = source.to(device)

        def joined(of_texts: Tensor, of_rows: Tensor) -> Tensor:
            every = torch.cat([of_texts.flatten(0, 1), of_rows.flatten(0, 1)])  # (all keys, Hkv, D)
            return every.index_select(0, source.flatten()).unflatten(0, source.shape)  # (rows, capacity, Hkv, D)

        return Cache(_updating(self.layers, joined), positions.to(device), self.last[texts.to(device)], capacity)


class KVCache:
    """Keys and values for `slots` rows with up to `length` tokens, in fixed memory that CUDA graphs can read.

    A slot needs no clearing: each position is written before any query sees the position. Samples from one prompt copy
    the prompt's slot instead of sharing a Prefix: a decoding step reads each row's keys in one piece, in half the time
    that gathering would take.
    """

    def __init__(self, model: GPT, slots: int, length: int) -> None:
        self.slots = slots
        config = model.config
        device = model.device
        # Keys and values; heads before length: the keys that one head reads lie together.
        shape = (model.cached_layers, 2, slots, config.kv_heads, length, config.head_dim)
        # Zeros, because masked values must still be finite.
        self.store = torch.zeros(shape, dtype=model.compute_dtype, device=device)
        self.layers = [layer.unbind() for layer in self.store]
        # (slots, kv_heads): the index that each head's position 0 has among a layer's keys.
        self.offsets = torch.arange(slots * config.kv_heads, device=device).view(slots, -1) * length

    def prompts(self, slots: Tensor) -> Cache:
        """Return the cache that runs new rows' prompts, padding included, into these slots."""

        def put(store: Tensor, given: Tensor) -> Tensor:
            store[slots, :, : given.shape[1]] = given.transpose(1, 2)  # from (rows, T, Hkv, D) to the layout by head
            return given

        return Cache(_updating(self.layers, put))

    def next_tokens(self, positions: Tensor, previous: Tensor, capacity: int) -> Cache:
        """Return the cache that runs one more token in the first rows, at positions (rows, 1) below `capacity`."""
        # (rows * kv_heads,): each new key's index among a layer's keys.
        places = (self.offsets[: len(positions)] + positions).flatten()

        def put(store: Tensor, given: Tensor) -> Tensor:
            # As (slots * Hkv * length, D).
            store.view(-1, store.shape[-1]).index_copy_(0, places, given.flatten(0, 2))
            return store[: len(given), :, :capacity].transpose(1, 2)  # a view, (rows, capacity, Hkv, D)

        return Cache(_updating(self.layers, put), positions, previous, capacity)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions from one slot into another."""
        self.store[:, :, target, :, :length] = self.store[:, :, source, :, :length]


# ---- decoder ----


def graph_rows(rows: int) -> int:
    """Return the row count of the graph that steps some rows: few, as each is captured, and keeps its memory."""
    return next((size for size in BUCKETS if size >= rows), -(-rows // BUCKETS[-1]) * BUCKETS[-1])


# Row state: name, dtype, meaning; one number per row, but for the last three.
STATE = """
    token        int64    the newest, input for the next step
    previous     int64    the token before it
    position     int64    where the newest token stands
    last         int64    the position at which the row is full
    live         bool     the row is not paused
    temperature  float32  of sampling, 0: the likeliest token
    top_k        int64    likeliest tokens to sample from
    top_p        float32  probability of the likeliest tokens to sample from
    halting      bool     by token: the row is paused after choosing it
    uniform      float64  by position: the row's random numbers, from 0 to 1
    forced       int64    by position: a token to put in instead of a chosen one; -1: none
"""
RowState = dict[str, float | np.ndarray]  # the entries of STATE that a row begins with; `Decoder.seat` sets the rest


@dataclass(frozen=True)
class StepKind:
    """The parts of a step that the rows need; on CUDA each kind has a separate graph."""

    sampled: bool  # some row has a temperature
    ranks: int  # likeliest tokens that top-k and top-p must order; 0: no row filters
    logprobs: bool
    likely: bool = False  # with the LIKELY likeliest tokens


@dataclass(frozen=True)
class GraphShape:
    """The steps that one CUDA graph can run."""

    rows: int
    keys: int
    kind: StepKind


@dataclass(frozen=True)
class Graph:
    """A captured step, and the memory in which a replay leaves what `Decoder._compute` returns."""

    graph: torch.cuda.CUDAGraph
    columns: list[Tensor]


class Decoder:
    """Rows in slots, filled from the first on: a step runs the first slots. model: packed for inference (fused.py)."""

    def __init__(self, model: GPT) -> None:
        self.model = model
        self.config = model.config
        self.device = model.device
        self.on_cuda = self.device.type == "cuda"
        self._cache: KVCache | None = None
        self.wanted = 0  # slots; where memory is short there are fewer
        self.length = 0  # positions in a slot

    @property
    def cache(self) -> KVCache:
        """The cache that `make_room` has made."""
        assert self._cache is not None, "make_room comes first"
        return self._cache

    def make_room(self, slots: int, length: int) -> int:
        """Make room while no row runs; return the number of slots: fewer than asked if memory is short."""
        length = min(self._keys(length), self.config.max_seq_len)
        if slots > self.wanted or length > self.length:
            self._allocate(max(slots, self.wanted), max(length, self.length))
        return min(slots, self.cache.slots)

    def _allocate(self, slots: int, length: int) -> None:
        """Replace cache and row state by larger ones; UserError if not even one row of this length fits."""
        self._cache = None  # frees the old memory before the new is allocated
        self.state: dict[str, Tensor] = {}  # name → (slots, size)
        self.graphs: dict[GraphShape, Graph | None] = {}  # on CUDA; old ones read the old cache
        # Until there is a cache.
        self.wanted = 0
        self.length = 0
        key_bytes = self.config.kv_width * self.model.compute_dtype.itemsize
        slot_bytes = 2 * self.model.cached_layers * length * key_bytes  # keys and values
        free = free_memory(self.device)
        if slot_bytes > free:
            needed = f"{slot_bytes / 1e9:,.1f} GB, {free / 1e9:,.1f} GB are free"
            raise UserError(
                f"the cache for one row of {length} tokens needs {needed}: use fewer --exits, or a shorter context"
            )
        fit = max(1, free // 2 // slot_bytes)  # half the memory stays free
        self._cache = KVCache(self.model, min(slots, fit), length)
        sizes = {"halting": self.config.vocab_size, "uniform": length, "forced": length}
        for name, dtype, _ in parse_rows(STATE):
            if self.device.type == "mps":
                dtype = dtype.replace("float64", "float32")  # it has no fp64
            shape = (self.cache.slots, sizes.get(name, 1))
            self.state[name] = torch.zeros(shape, dtype=getattr(torch, dtype), device=self.device)
        if self.on_cuda:
            self.pool = torch.cuda.graph_pool_handle()
            self.stream = torch.cuda.Stream()  # torch's own for capturing would belong to the first device
        self.wanted = slots
        self.length = length

    def _keys(self, positions: int) -> int:
        blocks = -(-positions // KEYS_BLOCK)
        if self.on_cuda:
            blocks = 1 << (blocks - 1).bit_length()  # a power of two: few graphs
        return KEYS_BLOCK * blocks

    def prefill(self, prompts: dict[int, Sequence[int]]) -> None:
        """Run prompts into slots, all but the last tokens, with prompts batched by length."""
        longer = [slot for slot, tokens in prompts.items() if len(tokens) > 1]
        slots = sorted(longer, key=lambda slot: -len(prompts[slot]))  # longest first: little padding in a batch
        while slots:
            rows = max(1, PREFILL_TOKENS // (len(prompts[slots[0]]) - 1))
            batch = slots[:rows]
            slots = slots[rows:]
            ids = [torch.as_tensor(prompts[slot][:-1], dtype=torch.int64) for slot in batch]
            cache = self.cache.prompts(torch.tensor(batch, device=self.device))
            self.model.hidden(pad_sequence(ids, batch_first=True).to(self.device), cache=cache)

    def seat(self, first: int, rows: Sequence[RowState]) -> None:
        """Begin rows in the slots from `first` on, after their prompts have run up to the last token.

        They are live, and without forced tokens. A row has the other entries of STATE: numbers, or arrays.
        """
        slots = slice(first, first + len(rows))
        self.state["live"][slots] = True
        self.state["forced"][slots] = -1
        for name in rows[0]:
            values = np.stack([row[name] for row in rows])
            self.state[name][slots] = torch.from_numpy(values).view(len(rows), -1)

    def resume(self, slot: int, position: int, forced: list[int]) -> None:
        """Let a row that is paused continue; `forced` tokens are put in from the position on."""
        tokens = torch.tensor(forced, dtype=torch.int64, device=self.device)
        self.state["forced"][slot, position : position + len(forced)] = tokens
        self.state["live"][slot] = True

    def move(self, source: int, target: int, length: int) -> None:
        """Move a row into another slot; `length` is the number of tokens that the host knows."""
        # One more: a step under way may have added a token.
        self.cache.copy(source, target, length + 1)
        for state in self.state.values():
            state[target] = state[source]

    def step(self, rows: int, longest: int, kind: StepKind) -> tuple[list[Tensor], torch.cuda.Event | None]:
        """Return the columns from `_compute` for the first rows, on the host, and on CUDA the event to wait for first.

        longest: tokens in the longest row, as far as the host knows.
        """
        # On CUDA the host is one step late, so the row may be a token longer.
        keys = min(self._keys(longest + self.on_cuda), self.length)
        if not self.on_cuda:
            return self._compute(rows, keys, kind), None
        columns = self._replay(GraphShape(min(graph_rows(rows), self.cache.slots), keys, kind))
        on_host = [column.to("cpu", non_blocking=True) for column in columns]
        copied = torch.cuda.Event()
        copied.record()
        return on_host, copied

    def _replay(self, shape: GraphShape) -> list[Tensor]:
        """Run a step as a CUDA graph, captured by the second step with the same shape."""
        if shape not in self.graphs:
            # The first step runs without a graph and does all one-time work.
            self.graphs[shape] = None
            return self._compute(shape.rows, shape.keys, shape.kind)
        captured = self.graphs[shape]
        if captured is None:
            graph = torch.cuda.CUDAGraph()
            # thread_local: engines in other threads may use CUDA meanwhile.
            capture = torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local")
            with CAPTURING, capture:
                columns = self._compute(shape.rows, shape.keys, shape.kind)
            captured = self.graphs[shape] = Graph(graph, columns)
        captured.graph.replay()
        return captured.columns

    def _compute(self, rows: int, keys: int, kind: StepKind) -> list[Tensor]:
        """Return the token given to each row (rows,).

        With kind.logprobs also the model's log-probability for its choice (rows,), and with kind.likely the likeliest
        tokens and their log-probabilities (rows, LIKELY), the likeliest first.
        """
        state = {name: value[:rows] for name, value in self.state.items()}
        newest = state["token"]  # (rows, 1), as the other single numbers
        position = state["position"]
        live = state["live"]
        cache = self.cache.next_tokens(position, state["previous"], keys)
        logits = self.model(newest, cache=cache)[:, -1]  # (rows, vocab_size)
        # The position to fill; a full row is paused, but its index must be valid.
        following = (position + 1).clamp(max=self.length - 1)
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
        logprobs = []
        if kind.logprobs:
            of_all = logits.log_softmax(-1)
            logprobs.append(of_all.gather(1, token).flatten())
            if kind.likely:
                top = of_all.topk(min(LIKELY, of_all.shape[-1]))
                logprobs += [top.indices, top.values]
        forced = state["forced"].gather(1, following)
        chosen = forced < 0  # the model's token counts: none is put in
        ends = state["halting"].gather(1, token) & chosen
        halts = ends | (following >= state["last"])
        token = torch.where(chosen, token, forced)
        given = torch.where(live, token, -1).flatten()
        # In place, where a graph's next replay reads the state.
        state["previous"].copy_(torch.where(live, newest, state["previous"]))
        newest.copy_(torch.where(live, token, newest))
        position.add_(live)
        live.logical_and_(~halts)
        return [given, *logprobs]


def sample_tokens(
    logits: Tensor,  # (rows, vocab_size)
    uniform: Tensor,  # (rows, 1), from 0 to 1, as the settings that follow
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    ranks: int,
) -> Tensor:
    """Return a token (rows, 1) for each row: the first at which the probabilities, summed by id, pass `uniform`.

    The token depends on the row's own number alone; rounding changes a token only if the number lies within the last
    bit of a sum. ranks: likeliest tokens that filtered rows need in order; to order the whole vocabulary takes long.
    """
    logits = logits / torch.where(temperature > 0, temperature, 1.0)
    if ranks:
        ranked = logits.topk(ranks).values  # (rows, ranks), likeliest first
        in_top_k = torch.arange(ranks, device=ranked.device) < top_k
        probabilities = ranked.masked_fill(~in_top_k, -torch.inf).softmax(-1)
        before = probabilities.cumsum(-1) - probabilities  # sums over likelier tokens
        kept = in_top_k & ((before < top_p) | (top_p >= 1))
        least = ranked.masked_fill(~kept, torch.inf).amin(-1, keepdim=True)
        unfiltered = (top_k >= logits.shape[-1]) & (top_p >= 1)
        dropped = (logits < least) & ~unfiltered
        logits = logits.masked_fill(dropped, -torch.inf)
    mass = logits.softmax(-1).cumsum(-1, dtype=uniform.dtype)
    # Scaled by the total, because rounding leaves the total beside 1.
    passed = mass <= uniform * mass[:, -1:]
    return passed.sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
