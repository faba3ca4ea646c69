"""Muon for matrices, AdamW for the rest; each rank keeps and updates a shard of all optimizer states.

A group's same-shaped parameters are stored end to end in one buffer, and so are their gradients: `Parameter.data` and
`.grad` become views into them. Nothing is copied to be batched or sent, and a parameter without a gradient has zeros.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.optim.adamw import adamw

from nanochat.muon import muon_update, orthogonalize
from nanochat.runtime import Waiting

Named = tuple[str, Parameter]
WholeStates = Iterator[tuple[str, dict[str, Tensor]]]  # with a parameter's name
ReadStates = Callable[[str], Mapping[str, Tensor]]  # from a parameter's name

CHUNK_BYTES = 2**25  # gradients sent at once: large enough for bandwidth, small enough to start within the backward


@dataclass
class Group:
    """Parameters under one rule. Fields that do not begin with `initial_` may change between steps.

    kind: a key of KINDS. momentum: Muon's, or AdamW's beta1. beta2: decays AdamW's squares or Muon's variances.
    """

    name: str
    kind: str
    params: list[Named]
    lr: float
    momentum: float
    beta2: float
    weight_decay: float = 0.0
    eps: float = 1e-10  # AdamW only

    def __post_init__(self) -> None:
        # Schedules multiply these.
        self.initial_lr = self.lr
        self.initial_weight_decay = self.weight_decay


# ---- optimizer kinds: a subclass of Stack each, complete in itself ----


@dataclass(frozen=True)
class Layout:
    """Place of same-shaped tensors in a flat chunk: one begins `slot` elements after the one before."""

    shape: tuple[int, ...]
    slot: int

    def view(self, chunk: Tensor, place: int) -> Tensor:
        return chunk.view(-1)[place * self.slot :][: math.prod(self.shape)].view(self.shape)

    def take(self, shard: Tensor, rank: int, place: int, value: Tensor) -> None:
        """Copy a tensor into a rank's shard of the chunk, as far as it lies there; of a file, no more is read."""
        first = place * self.slot - rank * len(shard)  # of its elements, in the shard; negative: in one before
        begin = max(first, 0)
        end = min(first + value.numel(), len(shard))
        if begin < end:
            shard[begin:end] = value.reshape(-1)[begin - first : end - first]


def flat_layout(shape: Sequence[int], members: int, ranks: int) -> tuple[Layout, int]:
    """Return the layout of so many tensors in a chunk, and the elements in each rank's equal shard."""
    slot = 4 * math.ceil(math.prod(shape) / 4)  # 16 bytes: compiled code asks for aligned parameters
    return Layout(tuple(shape), slot), 4 * math.ceil(members * slot / (4 * ranks))


class Stack(ABC):
    """K same-shaped parameters in one buffer (chunks, ranks, shard); a chunk is sent at once.

    A subclass is an optimizer kind: it lays parameters and states out, updates this rank's shard, and has the traits
    that other modules look up: the states' size, and the Group fields that schedules move.
    """

    is_exchanged = True  # the optimizer sums its gradients over the ranks, and gathers its new values
    counts_steps = False  # True: "step" is stored with the states in a checkpoint
    state_bytes: int  # per parameter element
    scheduled: tuple[str, ...]  # Group fields that schedules move

    # Set by a kind's `_arrange(chunk_bytes)`:
    layout: Layout  # of the parameters
    layouts: dict[str, Layout]  # of the states, by name in checkpoints
    per_chunk: int  # parameters
    shard_size: int  # elements in a chunk that one rank owns

    @abstractmethod
    def _arrange(self, chunk_bytes: int) -> None:
        """Choose the layouts, from the parameters' shape and the bytes that a chunk may have."""

    @abstractmethod
    def state_layouts(self) -> dict[str, Layout]:
        """Return the layout of each state in a chunk."""

    def __init__(
        self, group: Group, members: list[Named], number: int, rank: int, ranks: int, chunk_bytes: int
    ) -> None:
        self.group = group
        self.members = members
        self.number = number
        self.rank = rank
        self.ranks = ranks
        first = members[0][1]
        self.shape = first.shape
        self.numel = first.numel()
        self.device = first.device
        self._arrange(chunk_bytes)
        # The last chunk may have empty places.
        self.chunks = math.ceil(len(members) / self.per_chunk)
        self.updates = self._zeros()  # updates so far, all alike: AdamW's fused kernel wants one for each tensor
        self.states: dict[str, Tensor] = {}  # name → (chunks, elements that this rank owns)
        for name, layout in self.layouts.items():
            owned = math.ceil(self.per_chunk * layout.slot / ranks)
            self.states[name] = self._zeros(self.shard_size if layout.slot == self.layout.slot else owned)
        self._allocate()

    def _allocate(self) -> None:
        """Move values and gradients of the parameters into buffers of this stack."""
        self.values = self._zeros(self.ranks, self.shard_size)
        self.grads = self._zeros(self.ranks, self.shard_size)
        self.mine = self.values[:, self.rank]  # (chunks, shard): the values that this rank updates
        self.reduced = self.grads[:, 0] if self.ranks == 1 else self._zeros(self.shard_size)  # their gradients, summed
        for index, (_, parameter) in enumerate(self.members):
            chunk, place = divmod(index, self.per_chunk)
            value = self.layout.view(self.values[chunk], place)
            parameter.grad = self.layout.view(self.grads[chunk], place)
            parameter.data = value.copy_(parameter.data)  # the model now reads the buffer itself

    @abstractmethod
    def update(self, scale: Tensor, optimizer: "Optimizer") -> None:
        """Step this rank's shard, `mine`, by the gradients `reduced` × scale (0-d)."""

    def _zeros(self, *sizes: int) -> Tensor:
        return torch.zeros(self.chunks, *sizes, device=self.device)

    def names(self, chunk: int) -> list[str]:
        first = chunk * self.per_chunk
        return [name for name, _ in self.members[first : first + self.per_chunk]]

    def save(self) -> WholeStates:
        """Yield (name, whole states); ranks gather together, and take turns to save a chunk."""
        for chunk in range(self.chunks):
            # All ranks' shards end to end; one rank has everything.
            gathered = {key: state[chunk] for key, state in self.states.items()}
            if self.ranks > 1:
                for key, shard in gathered.items():
                    gathered[key] = shard.new_empty(self.ranks * len(shard))
                    dist.all_gather_into_tensor(gathered[key], shard)
            if (self.number + chunk) % self.ranks != self.rank:
                continue
            for place, name in enumerate(self.names(chunk)):
                saved = {key: self.layouts[key].view(whole, place) for key, whole in gathered.items()}
                if self.counts_steps:
                    saved["step"] = self.updates[chunk]
                yield name, saved

    def load(self, read: ReadStates) -> None:
        """Take this rank's shard from each whole state."""
        for chunk in range(self.chunks):
            for place, name in enumerate(self.names(chunk)):
                saved = read(name)  # whole, whatever number of ranks saved it
                for key, state in self.states.items():
                    self.layouts[key].take(state[chunk], self.rank, place, saved[key])
                if self.counts_steps:
                    self.updates[chunk] = saved["step"]


# From a group, the members of a stack, its number among all stacks, rank, number of ranks, and bytes of a chunk.
MakeStack = Callable[[Group, list[Named], int, int, int, int], Stack]


class MuonStack(Stack):
    """Muon, for matrices; a rank owns whole ones."""

    state_bytes = 4  # the variances, one a row or column, are few
    scheduled = ("lr", "momentum", "weight_decay")

    def _arrange(self, chunk_bytes: int) -> None:
        # Each rank owns as many matrices, in chunks of equal size: the largest divisor that fits.
        owned = math.ceil(len(self.members) / self.ranks)
        most = max(chunk_bytes // (4 * self.ranks * self.numel), 1)
        at_once = max(count for count in range(1, min(owned, most) + 1) if owned % count == 0)
        self.per_chunk = at_once * self.ranks
        self.shard_size = at_once * self.numel
        self.layout = Layout(self.shape, self.numel)
        self.layouts = self.state_layouts()

    def state_layouts(self) -> dict[str, Layout]:
        m, n = self.shape
        return {"momentum": self.layout, "variance": Layout((m, 1), m) if m >= n else Layout((1, n), n)}

    def factors(self, optimizer: "Optimizer") -> list[float | Tensor]:
        """Return learning rate, momentum, beta2 and weight decay for `muon_update`."""
        group = self.group
        m, n = self.shape
        lr = group.lr * max(1.0, m / n) ** 0.5
        return [optimizer.factor(factor) for factor in (lr, group.momentum, group.beta2, group.weight_decay)]

    def update(self, scale: Tensor, optimizer: "Optimizer") -> None:
        m, n = self.shape
        optimizer.muon_update(
            self.mine.view(self.chunks, -1, m, n),
            self.reduced.view(-1, m, n),
            [self.states[key].view(-1, *self.layouts[key].shape) for key in ("momentum", "variance")],
            scale,
            self.factors(optimizer),
            optimizer.polar_dtype,
        )


class AdamWStack(Stack):
    """AdamW, for any shape; a rank owns an equal shard of each chunk's elements."""

    counts_steps = True
    states_of = ("exp_avg", "exp_avg_sq")
    state_bytes = 8
    scheduled = ("lr",)

    def _arrange(self, chunk_bytes: int) -> None:
        self.per_chunk = max(1, min(len(self.members), chunk_bytes // (4 * self.numel)))
        self.layout, self.shard_size = flat_layout(self.shape, self.per_chunk, self.ranks)
        self.layouts = self.state_layouts()

    def state_layouts(self) -> dict[str, Layout]:
        return dict.fromkeys(self.states_of, self.layout)

    def update(self, scale: Tensor, optimizer: "Optimizer") -> None:
        group = self.group
        # No AMSGrad; the kernel divides by grad_scale.
        adamw(
            list(self.mine),
            list(self.reduced),
            list(self.states["exp_avg"]),
            list(self.states["exp_avg_sq"]),
            [],
            list(self.updates),
            fused=True,
            amsgrad=False,
            maximize=False,
            lr=group.lr,
            beta1=group.momentum,
            beta2=group.beta2,
            eps=group.eps,
            weight_decay=group.weight_decay,
            grad_scale=scale.reciprocal(),
        )


KINDS = {"muon": MuonStack, "adamw": AdamWStack}


class Stacking:
    """Divides groups into stacks: same-shaped parameters share one. sharding.Shards does it for sharded weights."""

    sends_early = True  # within the last backward of a step, the gradients that are complete

    def __init__(self) -> None:
        self.waiting = Waiting()  # for other ranks

    def divide(self, group: Group) -> Iterator[tuple[MakeStack, list[Named]]]:
        """Yield the parameters of each stack, with what makes it."""
        by_shape: dict[tuple[int, ...], list[Named]] = {}
        for name, parameter in group.params:
            by_shape.setdefault(tuple(parameter.shape), []).append((name, parameter))
        for members in by_shape.values():
            yield KINDS[group.kind], members


# ---- all groups together ----


class Optimizer:
    """Steps all groups, on one rank or with the ranks in the default process group.

    polar_dtype: for Muon's matrix products. compile: Muon's step as a graph for each shape. stacking: how groups become
    stacks. The model is on its device when this is made: parameters are replaced in place only. Between
    `reduce_in_backward` and `finish_reducing` no rank calls other collectives.
    """

    def __init__(
        self,
        groups: list[Group],
        rank: int = 0,
        world_size: int = 1,
        polar_dtype: torch.dtype = torch.float32,
        compile: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
        stacking: Stacking | None = None,
    ) -> None:
        self.groups = groups
        self.polar_dtype = polar_dtype
        compiled = partial(torch.compile, fullgraph=True, dynamic=False) if compile else lambda function: function
        self.muon_update = compiled(muon_update)
        self.orthogonalize = compiled(orthogonalize)
        # A graph would be compiled again for each float.
        self.factor = torch.tensor if compile else float
        self.ranks = world_size
        self.stacking = stacking or Stacking()
        self.waiting = self.stacking.waiting
        self._stacks: list[Stack] = []
        # Gradients are summed over the ranks chunk by chunk, in the same order on all ranks.
        self._chunks: list[tuple[Tensor, Tensor]] = []  # reduced (shard,), gradients (ranks × shard,); one rank: none
        self._members: list[int] = []  # parameters in each chunk
        self._order: list[int] = []  # in which the first backward on rank 0 completed the chunks; empty before
        self._missing: list[int] = []  # per chunk, gradients that the last backward is still to bring
        self._complete: list[int] = []  # in the last backward
        self._works: list[dist.Work] = []  # of the first chunks in order
        limit = chunk_bytes if world_size > 1 else 2**63  # one rank sends nothing: one chunk
        for group in groups:
            for make, members in self.stacking.divide(group):
                stack = make(group, members, len(self._stacks), rank, world_size, limit)
                self._stacks.append(stack)
                if world_size == 1 or not stack.is_exchanged:
                    continue
                for index, (_, parameter) in enumerate(members):
                    chunk = len(self._chunks) + index // stack.per_chunk
                    parameter.register_post_accumulate_grad_hook(partial(self._arrived, chunk))
                for chunk, pair in enumerate(zip(stack.reduced, stack.grads.flatten(1), strict=True)):
                    self._chunks.append(pair)
                    self._members.append(len(stack.names(chunk)))

    @torch.no_grad
    def step(self, grad_scale: float | Tensor = 1.0, clip: float = 0.0) -> Tensor:
        """Update by the ranks' summed gradients × grad_scale, 0-d; return the gradient's norm, 0-d on the device.

        The norm is that before clipping to `clip` (0: none). The host does not wait for the device. Gradients are
        undefined afterwards, until `zero_grad`.
        """
        self.finish_reducing()
        self._works = []
        shards = [stack.reduced for stack in self._stacks]
        squares = torch.stack(torch._foreach_norm(shards)).square().sum()  # of this rank's shards
        if self.ranks > 1:
            dist.all_reduce(squares)
        scale = torch.as_tensor(grad_scale, device=squares.device)
        norm = squares.sqrt() * scale  # without touching the gradients
        if clip > 0:  # on the device: the host does not learn the norm
            scale = scale * (clip / norm).clamp(max=1)
        gathers = []
        for stack in self._stacks:
            stack.update(scale, self)
            if self.ranks > 1 and stack.is_exchanged:  # new values travel while the next stack computes
                pairs = zip(stack.values.flatten(1), stack.mine, strict=True)
                gathers += [dist.all_gather_into_tensor(whole, mine, async_op=True) for whole, mine in pairs]
        with self.waiting.counted():
            for gather in gathers:
                gather.wait()
        return norm

    @contextmanager
    @torch.no_grad
    def restoring(self) -> Iterator[None]:
        """Restore weights and states when this context ends without an error. All ranks enter."""
        tensors = [tensor for stack in self._stacks for tensor in (stack.values, stack.updates, *stack.states.values())]
        kept = [tensor.clone() for tensor in tensors]
        yield
        torch._foreach_copy_(tensors, kept)

    def zero_grad(self) -> None:
        for stack in self._stacks:
            stack.grads.zero_()  # in place: `.grad` stays a view

    @contextmanager
    def reduce_in_backward(self) -> Iterator[None]:
        """Wrap the last backward before a step: gradients that are complete start to be summed over the ranks.

        If other collectives run in the backward, all of them need one order: then `finish_reducing` sends everything.
        """
        if not self.stacking.sends_early:
            yield
            return
        self._missing = list(self._members)  # hooks count down from here
        self._complete = []
        try:
            yield
        finally:
            self._missing = []
        if self._chunks and not self._order:
            # Parameters without a gradient leave their chunks incomplete: these come last.
            rest = [chunk for chunk in range(len(self._chunks)) if chunk not in self._complete]
            order = torch.tensor(self._complete + rest, device=self._chunks[0][0].device)
            dist.broadcast(order, 0)  # backward may end in another order on each rank
            self._order = order.tolist()

    def finish_reducing(self) -> None:
        """Sum the gradients that no backward has sent; other collectives may follow. `step` does it where needed."""
        self._send(everything=True)
        self._wait()

    def restart(self) -> None:
        """Discard gradients, to accumulate this rank's step again; gradients that were sent (complete) stay."""
        self._wait()  # sending reads the gradients
        self.zero_grad()

    def _arrived(self, chunk: int, _: Tensor) -> None:
        """Count a gradient that autograd has accumulated, and send the chunks whose turn has come."""
        if self._missing:
            self._missing[chunk] -= 1
            if self._missing[chunk] == 0:
                self._complete.append(chunk)
            if self._order:
                self._send()

    def _send(self, everything: bool = False) -> None:
        """Start to reduce the next chunks in order, up to the first incomplete one, or all of them."""
        order = self._order or range(len(self._chunks))
        for chunk in order[len(self._works) :]:
            if not everything and self._missing[chunk]:
                return
            reduced, gradients = self._chunks[chunk]
            work = dist.reduce_scatter_tensor(reduced, gradients, async_op=True)
            assert work is not None  # asynchronous
            self._works.append(work)

    def _wait(self) -> None:
        with self.waiting.counted():
            for work in self._works:  # queued on the device, in sending order
                work.wait()

    def state_tensors(self) -> WholeStates:
        """Yield (name, whole states) for the parameters that this rank saves; all ranks iterate to the end.

        Ranks gather on the way, with no other collective between: a caller that copies one before it takes the next
        needs no room for all. On one rank they are views into the live state, which the next step overwrites.
        """
        for stack in self._stacks:
            yield from stack.save()

    @torch.no_grad
    def load_state_tensors(self, read: ReadStates) -> None:
        """Continue from states that any number of ranks saved; `read` returns a parameter's states."""
        for stack in self._stacks:
            stack.load(read)
