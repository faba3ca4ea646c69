"""The device's side of generation: what it knows of the row in each slot, and the step that gives each row a token.

All that a step decides, it decides on the device. A row that ends, or that needs the host's answer, stands still from
then on: its state does not change and it is given -1. On CUDA the steps are graphs, replayed without the host's aid.
"""

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nanochat.gpt import GPT
from nanochat.kvcache import KVCache
from nanochat.log import print0
from nanochat.runtime import free_memory

BUCKETS = (1, 8, 32, 64, 128, 256)  # on CUDA a step takes one of these numbers of rows, and has a graph for each
KEYS_BLOCK = 32  # how many keys a step looks at is a multiple of this, on CUDA a power of two of them
CAPTURING = threading.Lock()  # a process makes one graph at a time
PREFILL_TOKENS = 8192  # of prompts run at once, padding included

# What is known of a row: name → (dtype, how many). At a position stands what is meant for the token there.
STATE = {
    "token": (torch.int64, "one"),  # the newest, which the next step feeds
    "previous": (torch.int64, "one"),  # the one before it
    "position": (torch.int64, "one"),  # of the newest
    "last": (torch.int64, "one"),  # the position at which the row is full
    "live": (torch.bool, "one"),
    "temperature": (torch.float32, "one"),
    "top_k": (torch.int64, "one"),
    "top_p": (torch.float32, "one"),
    "halting": (torch.bool, "words"),  # whether the row stands still once it has chosen the word
    "uniform": (torch.float64, "positions"),  # its random numbers, from 0 to 1
    "forced": (torch.int64, "positions"),  # tokens not to be chosen but put in; -1: none
}


class Decoder:
    """Slots are filled from the first on: a step takes as many of them as it is told. model: a `fused.Fused`."""

    def __init__(self, model: GPT):
        self.model, self.config = model, model.config
        self.device = model.embed.weight.device
        self.on_cuda = self.device.type == "cuda"
        self.cache: KVCache | None = None
        self.state: dict[str, Tensor] = {}
        self.asked = 0  # slots: where memory is short, there are fewer

    def make_room(self, slots: int, length: int, kept: int = 0) -> int:
        """At most so many slots, fewer where memory is short, for rows of that length; how many they are.

        kept: how many of the first slots keep what they hold; where memory lacks for that, there are no others.
        """
        length, dtype = min(self._keys(length), self.config.max_seq_len), self.model.compute_dtype
        cache, state = self.cache, self.state
        usable = cache.slots if cache is not None and cache.length >= length else kept
        if usable > kept and self.asked >= slots:
            return min(slots, usable)
        length = max(length, cache.length if cache is not None else 0)
        self.asked = max(slots, self.asked)
        if not kept:
            self.cache, self.state, cache, state = None, {}, None, {}  # before there are new ones
        fit = max(1, free_memory(self.device) // 2 // KVCache.slot_bytes(self.config, length, dtype))
        if kept and fit <= usable:
            return min(slots, usable)
        if fit < self.asked:
            print0(f"generation: {fit} rows at once and not {self.asked}, as memory is short")
        there = min(self.asked, fit)
        self.graphs: dict[tuple, Any] = {}  # of what was there before
        self.pool = torch.cuda.graph_pool_handle() if self.on_cuda else None
        self.stream = torch.cuda.Stream() if self.on_cuda else None  # torch's own would be that of the first device
        self.cache = KVCache(self.config, there, length, dtype, self.device)
        sizes = {"one": 1, "positions": length, "words": self.config.vocab_size}
        kinds = {torch.float64: torch.float32} if self.device.type == "mps" else {}
        self.state = {
            name: torch.zeros(there, sizes[size], dtype=kinds.get(kind, kind), device=self.device)
            for name, (kind, size) in STATE.items()
        }
        if cache is not None:
            self.cache.take(cache, kept)
        for name, value in state.items():
            self.state[name][:kept, : value.shape[1]] = value[:kept]
        return min(slots, there)

    def _keys(self, positions: int) -> int:
        blocks = -(-positions // KEYS_BLOCK)
        return KEYS_BLOCK * (1 << (blocks - 1).bit_length() if self.on_cuda else blocks)

    def prefill(self, prompts: dict[int, Sequence[int]]) -> None:
        """Run prompts into slots, all but their last tokens, those of like length together."""
        slots = sorted((slot for slot, tokens in prompts.items() if len(tokens) > 1), key=lambda s: -len(prompts[s]))
        while slots:
            length = len(prompts[slots[0]]) - 1
            rows = max(1, PREFILL_TOKENS // length)
            batch, slots = slots[:rows], slots[rows:]
            self._run([prompts[slot][:-1] for slot in batch], batch, length)

    def _run(self, prompts: list[Sequence[int]], slots: list[int], length: int) -> None:
        ids = torch.zeros(len(prompts), length, dtype=torch.int64)
        for row, tokens in zip(ids, prompts, strict=True):
            row[: len(tokens)] = torch.as_tensor(tokens)
        cache = self.cache.filling(torch.tensor(slots, device=self.device), length)
        self.model.hidden(ids.to(self.device), cache=cache)

    def seat(self, slots: list[int], rows: list[dict[str, Any]]) -> None:
        """Begin rows in slots. Each has the state's names with their values; halting: ids; uniform: from position on.

        What a row does not have: it is live, and nothing is forced.
        """
        length, words = self.cache.length, self.config.vocab_size
        values = {"live": torch.ones(len(rows), 1), "forced": torch.full((len(rows), length), -1)}
        values |= {"halting": torch.zeros(len(rows), words), "uniform": torch.zeros(len(rows), length, dtype=float)}
        for i, row in enumerate(rows):
            values["halting"][i, list(row["halting"])] = 1
            values["uniform"][i, row["position"] + 1 : row["last"] + 1] = torch.from_numpy(row["uniform"])
        for name in self.state.keys() - values.keys():
            values[name] = torch.tensor([row[name] for row in rows])[:, None]
        at = torch.tensor(slots, device=self.device)
        for name, mine in self.state.items():
            mine[at] = values[name].to(self.device, mine.dtype)

    def resume(self, slot: int, position: int, forced: list[int]) -> None:
        """Let a row that stands still go on, with these tokens from the position on."""
        if forced:
            tokens = torch.tensor(forced).to(self.device)
            self.state["forced"][slot, position : position + len(forced)] = tokens
        self.state["live"][slot] = True

    def move(self, source: int, target: int, length: int) -> None:
        """A row into another slot; a step may be under way that has added to its length."""
        self.cache.copy(source, [target], min(length + 1, self.cache.length))
        for value in self.state.values():
            value[target] = value[source]

    def step(self, rows: int, longest: int, *kinds: int) -> tuple[list[Tensor], Any]:
        """What `_compute` gives of the first rows, on the host, and on CUDA the event after which it is there.

        longest: tokens of the longest row, as far as is known. kinds: as `_compute` takes them.
        """
        keys = min(self._keys(longest + self.on_cuda), self.cache.length)
        if not self.on_cuda:
            return self._compute(rows, keys, *kinds), None
        rows = min(next((size for size in BUCKETS if size >= rows), rows), self.cache.slots)
        shape = (rows, keys, *kinds)
        if shape not in self.graphs:
            self.graphs[shape] = None  # the first time without, so that all that is made only once is made
            found = self._compute(*shape)
        else:
            if self.graphs[shape] is None:
                graph = torch.cuda.CUDAGraph()
                # What engines of other threads do meanwhile is no fault of this graph.
                with CAPTURING, torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
                    result = self._compute(*shape)
                self.graphs[shape] = graph, result
            graph, found = self.graphs[shape]
            graph.replay()
        return [column.to("cpu", non_blocking=True) for column in found], torch.cuda.current_stream().record_event()

    def _compute(self, rows: int, keys: int, sampled: bool, ranks: int, logprobs: bool) -> list[Tensor]:
        """The token that each row is given; with logprobs also the model's log-probability of what it chose.

        sampled: whether a row is. ranks: as `draw` takes them.
        """
        state = {name: value[:rows] for name, value in self.state.items()}
        newest, position, live = state["token"], state["position"], state["live"]
        cache = self.cache.growing(position, state["previous"], keys)
        logits = self.model.logits(self.model.hidden(newest, cache=cache)[:, -1])
        following = (position + 1).clamp(max=self.cache.length - 1)
        token = logits.argmax(-1, keepdim=True)
        if sampled:
            settings = (state[name] for name in ("temperature", "top_k", "top_p"))
            drawn = draw(logits, state["uniform"].gather(1, following), *settings, ranks)
            token = torch.where(state["temperature"] > 0, drawn, token)
        chances = [logits.log_softmax(-1).gather(1, token).flatten()] * logprobs
        forced = state["forced"].gather(1, following)
        halts = state["halting"].gather(1, token) & (forced < 0) | (following >= state["last"])
        token = torch.where(forced < 0, token, forced)
        given = torch.where(live, token, -1).flatten()
        state["previous"].copy_(torch.where(live, newest, state["previous"]))
        newest.copy_(torch.where(live, token, newest))
        position.add_(live)
        live.logical_and_(~halts)
        return [given, *chances]


def draw(logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, ranks: int) -> Tensor:
    """A token (rows, 1) for each row: the first at which the probabilities, added in order of ids, pass `uniform`.

    It follows from the row's own number, and changes only where a last bit of a sum lies between. ranks: how many of
    the likeliest words must be put in order for the rows that are filtered, since ordering all of them takes long.
    """
    logits = logits / torch.where(temperature > 0, temperature, 1.0)
    if ranks:
        ranked = logits.topk(ranks).values
        first = torch.arange(ranks, device=ranked.device) < top_k
        chances = ranked.masked_fill(~first, -torch.inf).softmax(-1)
        kept = first & ((chances.cumsum(-1) - chances < top_p) | (top_p >= 1))
        least = ranked.masked_fill(~kept, torch.inf).amin(-1, keepdim=True)
        whole = (top_k >= logits.shape[-1]) & (top_p >= 1)
        logits = logits.masked_fill((logits < least) & ~whole, -torch.inf)
    mass = logits.softmax(-1).cumsum(-1, dtype=uniform.dtype)
    return (mass <= uniform * mass[:, -1:]).sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
