"""Generation: many requests at once through fixed slots, each row as if it were alone, with the calculator's turns.

Every slot holds one row. A step feeds each row its newest token and samples the next; a row that has ended makes room
for the next one at once. All that a step decides, it decides on the device. The host follows, on a GPU one step late,
so that no step waits for it; a row that needs the host (it ended, or asks the calculator) stands still until then.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nanochat.calculator import Refused, calculate
from nanochat.fused import Fused
from nanochat.gpt import GPT
from nanochat.kvcache import KVCache

SLOTS = {"cuda": 256}  # device → rows at once, where memory allows
OTHER_SLOTS = 32
BUCKETS = (1, 8, 32, 64, 128, 256)  # on CUDA a step takes one of these numbers of rows, and has a graph for each
KEYS_BLOCK = 64  # how many keys a step looks at is a multiple of this, on CUDA a power of two of them
PREFILL_TOKENS = 8192  # of prompts run at once, padding included
OFF = 2.0  # a top_p that no sum of probabilities reaches


@dataclass(frozen=True)
class Request:
    """tokens: the prompt. temperature 0: greedy. top_k 0, top_p 1: off. stop: ids that end a row and are left out,
    None: those that end a turn. n: samples, of which each draws from a generator of its own, from seed and number."""

    tokens: Sequence[int]
    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: frozenset[int] | None = None
    n: int = 1


class Event(NamedTuple):
    """A token of a sample, or its end: then token is None and reason stop or length. sampled: not forced by a tool.

    logprob: the model's of what it chose, a token or to stop; where it was asked for, else 0.
    """

    request: int
    sample: int
    token: int | None
    sampled: bool = True
    reason: str = ""
    logprob: float = 0.0


@dataclass
class Completion:
    """mask: 1 where the model chose the token, 0 where the calculator's answer was put in.

    logprobs, where asked for: the model's of each token, at temperature 1 and without filters, 0 for what was put in;
    and behind them, if the reason is stop, that of stopping.
    """

    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    reason: str = ""
    logprobs: list[float] = field(default_factory=list)


@dataclass
class _Row:
    """A sample under way. most: tokens it may have, prompt included. forced: how many of those put in are to come."""

    request: Request
    where: tuple[int, int]
    stop: frozenset[int]
    most: int
    slot: int = -1
    length: int = 0
    forced: int = 0
    expression: list[int] | None = None


class Engine:
    """Its weights are a copy in the model's compute_dtype, laid out for generation, as of its making or `refresh`.

    slots: how many rows run at once; 0: as many as the device does well. One stream at a time.
    """

    def __init__(self, model: GPT, tokenizer: Any, slots: int = 0):
        self.config, self.dtype = model.config, model.compute_dtype
        self.device = model.embed.weight.device
        self.on_cuda = self.device.type == "cuda"
        self.slots = slots or SLOTS.get(self.device.type, OTHER_SLOTS)
        self.tokenizer, self.special = tokenizer, tokenizer.special_tokens
        self.ends = frozenset(self.special[name] for name in ("<|assistant_end|>", "<|bos|>"))
        self.cache: KVCache | None = None
        self.model = Fused(model)
        self.refresh = self.model.refresh

    def generate(self, requests: Sequence[Request], logprobs: bool = False) -> list[list[Completion]]:
        """The n completions of each request."""
        found = [[Completion() for _ in range(request.n)] for request in requests]
        for event in self.stream(requests, logprobs):
            completion = found[event.request][event.sample]
            if logprobs and event.reason != "length":
                completion.logprobs.append(event.logprob)
            if event.token is None:
                completion.reason = event.reason
            else:
                completion.tokens.append(event.token)
                completion.mask.append(int(event.sampled))
        return found

    @torch.inference_mode()
    def stream(self, requests: Sequence[Request], logprobs: bool = False) -> Iterator[Event]:
        """Events of all samples as they come, those of each in order."""
        self.with_logprobs = logprobs
        waiting = [row for i, request in enumerate(requests) for row in self._rows(i, request)]
        waiting.sort(key=lambda row: len(row.request.tokens))  # the longest first: what memory lacks shows at once
        self.rows: list[_Row] = []
        if waiting:
            self._make_room(waiting)
        late = None
        while waiting or self.rows:
            self._admit(waiting)
            step = self._step()
            step, late = (late, step) if self.on_cuda else (step, None)
            if step is not None:
                yield from self._follow(*step)

    # ---- rows come and go ----

    def _rows(self, number: int, request: Request) -> list[_Row]:
        context, length = self.config.max_seq_len, len(request.tokens)
        rules = [
            (length > 0, "has no tokens: begin it with <|bos|>"),
            (
                length < context,
                f"has {length:,} tokens, the model's context is {context:,}: shorten it by at least one",
            ),
            (all(0 <= token < self.config.vocab_size for token in request.tokens), "has ids beyond the vocabulary"),
            (request.max_new_tokens > 0 and request.n > 0, "asks for no tokens: max_new_tokens and n start at 1"),
            (request.temperature >= 0 and request.top_k >= 0 and request.seed >= 0, "has a negative setting"),
            (0 < request.top_p <= 1, f"has top_p {request.top_p}: it is above 0 and at most 1"),
        ]
        for kept, sentence in rules:
            if not kept:
                raise ValueError(f"request {number} {sentence}")
        stop = self.ends if request.stop is None else request.stop
        most = min(length + request.max_new_tokens, context)
        return [_Row(request, (number, sample), stop, most, length=length) for sample in range(request.n)]

    def _make_room(self, rows: list[_Row]) -> None:
        """Slots for rows; what an earlier stream had is used again if it suffices."""
        length = min(self._capacity(max(row.most for row in rows)), self.config.max_seq_len)
        slots = min(self.slots, len(rows))
        if self.cache is not None and self.cache.slots >= slots and self.cache.length >= length:
            return
        if self.cache is not None:
            slots, length = max(slots, self.cache.slots), max(length, self.cache.length)
        self.cache = self.state = None  # what is replaced is freed before
        self.graphs: dict[tuple, Any] = {}
        if self.on_cuda:
            fit = torch.cuda.mem_get_info(self.device)[0] // 2 // KVCache.slot_bytes(self.config, length, self.dtype)
            slots = max(1, min(slots, fit))
        self.cache = KVCache(self.config, slots, length, self.dtype, self.device)
        sizes = {"forced": length, "uniform": length, "halting": self.config.vocab_size}
        fine = torch.float32 if self.device.type == "mps" else torch.float64
        kinds = {"uniform": fine, "temperature": torch.float32, "top_p": torch.float32}
        kinds |= {"halting": torch.bool, "live": torch.bool}
        names = ("token", "previous", "position", "last", "top_k", *sizes, *kinds)
        self.state = {
            name: torch.zeros(slots, sizes.get(name, 1), dtype=kinds.get(name, torch.int64), device=self.device)
            for name in names
        }

    def _capacity(self, length: int) -> int:
        blocks = -(-length // KEYS_BLOCK)
        return KEYS_BLOCK * (1 << (blocks - 1).bit_length() if self.on_cuda else blocks)

    def _admit(self, waiting: list[_Row]) -> None:
        """Fill the slots that are free: prompts are run in batches of like length, once for all samples of one."""
        came = [waiting.pop() for _ in range(min(len(waiting), self.cache.slots - len(self.rows)))]
        if not came:
            return
        holders = {row.where[0]: row.slot for row in self.rows}
        fresh, copies = [], {}
        for row in came:
            row.slot = len(self.rows)
            self.rows.append(row)
            if row.where[0] in holders:
                copies.setdefault(holders[row.where[0]], []).append(row)
            else:
                holders[row.where[0]] = row.slot
                fresh.append(row)
        while fresh:
            longest = len(fresh[0].request.tokens) - 1  # a prompt's last token is fed by the first step
            batch, fresh = fresh[: (fit := max(1, PREFILL_TOKENS // max(longest, 1)))], fresh[fit:]
            if longest:
                self._prefill(batch, longest)
        for source, rows in copies.items():
            self.cache.copy(source, [row.slot for row in rows], len(rows[0].request.tokens) - 1)
        self._seat(came)

    def _prefill(self, rows: list[_Row], length: int) -> None:
        ids = torch.zeros(len(rows), length, dtype=torch.int64)
        for i, row in enumerate(rows):
            prompt = torch.as_tensor(row.request.tokens[:-1])
            ids[i, : len(prompt)] = prompt
        slots = torch.tensor([row.slot for row in rows], device=self.device)
        self.model.hidden(ids.to(self.device), cache=self.cache.filling(slots, length))

    def _seat(self, rows: list[_Row]) -> None:
        """What the device knows of new rows; values at a position are of the token that stands there."""
        length, halting = self.cache.length, torch.zeros(len(rows), self.config.vocab_size, dtype=torch.bool)
        uniform = torch.zeros(len(rows), length, dtype=torch.float64)
        for i, row in enumerate(rows):
            halting[i, [*row.stop, self.special["<|python_end|>"]]] = True
            generator = np.random.default_rng([row.request.seed, row.where[1]])
            uniform[i, row.length : row.most] = torch.from_numpy(generator.random(row.most - row.length))
        requests = [row.request for row in rows]
        columns = {
            "token": [request.tokens[-1] for request in requests],
            "previous": [request.tokens[-2] if len(request.tokens) > 1 else 0 for request in requests],
            "position": [row.length - 1 for row in rows],
            "last": [row.most - 1 for row in rows],
            "top_k": [request.top_k or self.config.vocab_size for request in requests],
            "temperature": [request.temperature for request in requests],
            "top_p": [request.top_p if request.top_p < 1 else OFF for request in requests],
            "live": [True] * len(rows),
        }
        values = {name: torch.tensor(column)[:, None] for name, column in columns.items()}
        values |= {"halting": halting, "uniform": uniform, "forced": torch.full((len(rows), length), -1)}
        slots = torch.tensor([row.slot for row in rows], device=self.device)
        for name, value in values.items():
            self.state[name][slots] = value.to(self.device, self.state[name].dtype)

    def _leave(self, row: _Row) -> None:
        """The last row takes its slot, so that a step takes the first slots, no more than there are rows."""
        moved = self.rows.pop()
        if moved is not row:
            self.cache.copy(moved.slot, [row.slot], min(moved.length + 1, self.cache.length))  # a step may be ahead
            for value in self.state.values():
                value[row.slot] = value[moved.slot]
            moved.slot = row.slot
            self.rows[row.slot] = moved

    # ---- a step ----

    def _step(self) -> tuple[list[_Row], list[Tensor], Any]:
        """Rows, what `_compute` gives of them, and on CUDA when it will be known."""
        rows = len(self.rows)
        if self.on_cuda:
            rows = min(next((size for size in BUCKETS if size >= rows), rows), self.cache.slots)
        requests = [row.request for row in self.rows]
        sampled = any(request.temperature for request in requests)
        filtered = any(request.temperature and (request.top_k or request.top_p < 1) for request in requests)
        capacity = min(self._capacity(max(row.length for row in self.rows) + self.on_cuda), self.cache.length)
        shape = (rows, capacity, sampled, filtered, self.with_logprobs)
        if not self.on_cuda:
            return list(self.rows), self._compute(*shape), None
        if shape not in self.graphs:
            self.graphs[shape] = None  # the first time as it is, so that all that is made once is made
            found = self._compute(*shape)
        else:
            if self.graphs[shape] is None:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    found = self._compute(*shape)
                self.graphs[shape] = graph, found
            graph, found = self.graphs[shape]
            graph.replay()
        found = [column.to("cpu", non_blocking=True) for column in found]
        return list(self.rows), found, torch.cuda.current_stream().record_event()

    def _compute(self, rows: int, capacity: int, sampled: bool, filtered: bool, logprobs: bool) -> list[Tensor]:
        """All that runs on the device; the state moves on in place.

        The token that each row is given, -1: it stands still; and if asked for, the log-probability of what it chose.
        """
        state = {name: value[:rows] for name, value in self.state.items()}
        position, live = state["position"], state["live"]
        cache = self.cache.growing(position, state["previous"], capacity)
        logits = self.model.logits(self.model.hidden(state["token"], cache=cache)[:, -1])
        following = (position + 1).clamp(max=self.cache.length - 1)
        uniform = state["uniform"].gather(1, following)
        token = logits.argmax(-1, keepdim=True)
        if sampled:
            settings = state["temperature"], state["top_k"], state["top_p"], filtered
            token = torch.where(state["temperature"] > 0, draw(logits, uniform, *settings), token)
        chances = [logits.log_softmax(-1).gather(1, token).flatten()] * logprobs
        forced = state["forced"].gather(1, following)
        halts = state["halting"].gather(1, token) & (forced < 0) | (following >= state["last"])
        token = torch.where(forced < 0, token, forced)
        result = torch.where(live, token, -1).flatten()
        state["previous"].copy_(torch.where(live, state["token"], state["previous"]))
        state["token"].copy_(torch.where(live, token, state["token"]))
        position.add_(live)
        live.logical_and_(~halts)
        return [result, *chances]

    def _follow(self, rows: list[_Row], found: list[Tensor], done: Any) -> Iterator[Event]:
        """What a step's tokens mean for their rows."""
        if done is not None:
            done.synchronize()
        columns = [column.tolist() for column in found]
        for row, token, *logprob in zip(rows, *columns, strict=False):  # a bucket may be larger
            if token < 0:
                continue
            sampled = row.forced == 0
            row.forced -= not sampled
            if sampled and token in row.stop:
                self._leave(row)
                yield Event(*row.where, None, True, "stop", *logprob)
                continue
            row.length += 1
            yield Event(*row.where, token, sampled, "", *logprob * sampled)
            answer = self._answer(row, token) if sampled else None
            if row.length == row.most:
                self._leave(row)
                yield Event(*row.where, None, reason="length")
            elif answer is not None:
                self._force(row, answer)

    def _answer(self, row: _Row, token: int) -> list[int] | None:
        """What follows a token that makes the row stand still: the calculator's answer, or nothing, and it goes on."""
        if token != self.special["<|python_end|>"]:
            if token == self.special["<|python_start|>"]:
                row.expression = []
            elif row.expression is not None:
                row.expression.append(token)
            return None
        expression, row.expression = row.expression, None
        try:
            answer = calculate(self.tokenizer.decode(expression or []))
        except Refused:
            return []
        return [self.special["<|output_start|>"], *self.tokenizer.encode(answer), self.special["<|output_end|>"]]

    def _force(self, row: _Row, tokens: list[int]) -> None:
        tokens = tokens[: row.most - row.length]
        row.forced = len(tokens)
        forced = torch.tensor(tokens, dtype=torch.int64).to(self.device)
        self.state["forced"][row.slot, row.length : row.length + len(tokens)] = forced
        self.state["live"][row.slot] = True


def draw(logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, filtered: bool) -> Tensor:
    """A token (rows, 1) of each row: the first at which the probabilities before it, in order of ids, pass `uniform`.

    So it follows from the row's own number: it can change only where a last bit of a probability lies between.
    """
    logits = logits / torch.where(temperature > 0, temperature, 1.0)
    if filtered:
        ranked = logits.sort(-1, descending=True).values
        ranks = torch.arange(ranked.shape[-1], device=ranked.device)
        chances = ranked.masked_fill(ranks >= top_k, -torch.inf).softmax(-1)
        kept = (ranks < top_k) & (chances.cumsum(-1) - chances < top_p)
        least = ranked.masked_fill(~kept, torch.inf).amin(-1, keepdim=True)
        logits = logits.masked_fill(logits < least, -torch.inf)
    mass = logits.softmax(-1).cumsum(-1, dtype=uniform.dtype)
    return (mass <= uniform * mass[:, -1:]).sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
