"""Muon for matrices, AdamW for the rest; each rank keeps the states of, and updates, its share of every parameter.

Same-shaped parameters of a group lie end to end in one buffer, and so do their gradients: `Parameter.data` and `.grad`
become views of them. So nothing is copied to be batched or sent, and a parameter without a gradient has a zero one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.optim.adamw import adamw

# Coefficients (a, b, c) of the odd polynomials a·x + b·x³ + c·x⁵ whose composition brings singular values in (0, 1]
# near 1: Polar Express (arXiv 2505.16932) for 5 steps, safety factor 2e-2, cushion 2.
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
SAFETY = 1.01  # rounding must not lift a singular value above 1, where the polynomials diverge
ROW_FLOOR = 1e-4  # of the mean row: a row that gets no gradient fades away, it is not blown up for ever
TINY = 1e-10  # what nothing but zero is smaller than
CHUNK_BYTES = 2**25  # of gradients sent at once: large enough for bandwidth, small enough to start within backward


@dataclass
class Group:
    """Parameters under one rule. What is not `initial_…` may change between steps.

    kind: "muon" (matrices; beta2 is the decay of the variances) or "adamw".
    """

    name: str
    kind: str
    params: list[tuple[str, Parameter]]
    lr: float
    momentum: float
    beta2: float
    weight_decay: float = 0.0
    eps: float = 1e-10  # of AdamW
    initial_lr: float = field(init=False)
    initial_weight_decay: float = field(init=False)

    def __post_init__(self) -> None:
        self.initial_lr, self.initial_weight_decay = self.lr, self.weight_decay


def polar_express(x: Tensor) -> Tensor:
    """Nearly the nearest semi-orthogonal matrix to each of (k, m, n), whose singular values are at most 1."""
    tall = x.size(-2) > x.size(-1)
    for a, b, c in POLAR_EXPRESS:
        gram = x.mT @ x if tall else x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, *((x, polynomial) if tall else (polynomial, x)), beta=a)
    return x


def muon_update(
    values: Tensor, grads: Tensor, states: Sequence[Tensor], scale: Tensor, factors: Sequence, polar_dtype: torch.dtype
) -> None:
    """One step of Muon on (…, m, n) values, in place; gradients and momenta are (k, m, n).

    variances: (k, m, 1), or (k, 1, n) for matrices wider than tall. scale: of the gradients, 0-d. The factors may be
    0-d tensors: a compiled graph then outlives their changes.
    """
    (momenta, variances), (lr, momentum, beta2, weight_decay), (m, n) = states, factors, grads.shape[-2:]
    gradients = grads * scale
    momenta.lerp_(gradients, 1 - momentum)
    update = gradients.lerp(momenta, momentum)  # Nesterov
    # MuonEq: every row gets the same norm, which conditions what is orthogonalised; then the whole gets norm 1.
    rows = update.norm(dim=-1, keepdim=True)
    raised = rows.maximum(rows.norm(dim=-2, keepdim=True) * (ROW_FLOOR / m**0.5)).clamp_min(TINY**2)
    whole = (rows / raised).norm(dim=-2, keepdim=True).clamp_min(1)
    update = polar_express((update / (raised * whole * SAFETY)).to(polar_dtype))
    # Muon+: the Frobenius norm of an exactly semi-orthogonal matrix. It is reached by way of the last factor.
    # NorMuon: rows (or columns) that are always large are damped, the others raised, the norm of the whole is kept.
    along = -1 if m >= n else -2
    squares = update.norm(dim=along, keepdim=True, dtype=torch.float32).square()
    snap = min(m, n) / squares.sum(dim=(-2, -1), keepdim=True).clamp_min(TINY)
    means = squares * snap / grads.size(along)
    variances.lerp_(means, 1 - beta2)
    damping = variances.clamp_min(TINY).rsqrt()
    energy = means.sum(dim=(-2, -1), keepdim=True)
    damped = (means * damping.square()).sum(dim=(-2, -1), keepdim=True).clamp_min(TINY)
    update = (update * (lr * damping * (snap * energy / damped).sqrt())).view_as(values)
    # Cautious: weights decay only where the step shrinks them as well.
    values.mul_(1 - lr * weight_decay * (update * values >= 0)).sub_(update)


class _Stack:
    """K same-shaped parameters of a group in slots of one buffer (chunks, ranks, share); a chunk is sent at once.

    slot: elements from one parameter to the next; share: elements of a chunk that one rank owns, and updates. A
    subclass says how slots fill a chunk, what the states are, and how they are stepped.
    """

    steps: Tensor | None = None  # (chunks,)

    def __init__(self, group: Group, members: list, number: int, rank: int, ranks: int, chunk_bytes: int):
        self.group, self.members, self.number, self.rank, self.ranks = group, members, number, rank, ranks
        self.shape, self.numel = members[0][1].shape, members[0][1].numel()
        slot, self.per_chunk, share, states = self._layout(chunk_bytes)
        self.chunks = math.ceil(len(members) / self.per_chunk)
        self.values, self.grads = self._zeros(ranks, share), self._zeros(ranks, share)
        self.mine = self.values[:, rank]  # (chunks, share)
        self.reduced = self.grads[:, 0] if ranks == 1 else self._zeros(share)
        # (chunks, share of it); one's shape; its slot
        self.states = {name: (self._zeros(size), *one) for name, (size, *one) in states.items()}
        for index, (name, parameter) in enumerate(members):
            assert parameter.dtype == torch.float32, f"{name} is {parameter.dtype}: master weights are float32"
            chunk, at = divmod(index, self.per_chunk)
            both = (buffer[chunk].view(-1)[at * slot :][: self.numel] for buffer in (self.values, self.grads))
            value, parameter.grad = (flat.view(self.shape) for flat in both)
            parameter.data = value.copy_(parameter.data)

    def _zeros(self, *sizes: int) -> Tensor:
        return torch.zeros(self.chunks, *sizes, device=self.members[0][1].device)

    def save(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Whole states by name: ranks gather together, and take turns to save a chunk."""
        for chunk in range(self.chunks):
            wholes = {state: self._whole(tensor[chunk]) for state, (tensor, _, _) in self.states.items()}
            if (self.number + chunk) % self.ranks != self.rank:
                continue
            for at, (name, _) in enumerate(self.members[chunk * self.per_chunk :][: self.per_chunk]):
                saved = {} if self.steps is None else {"step": self.steps[chunk]}
                for state, (_, shape, slot) in self.states.items():
                    saved[state] = wholes[state][at * slot :][: math.prod(shape)].view(shape)
                yield name, saved

    def _whole(self, share: Tensor) -> Tensor:
        if self.ranks == 1:
            return share
        whole = share.new_empty(self.ranks * len(share))
        dist.all_gather_into_tensor(whole, share)
        return whole

    def load(self, read: Callable[[str], dict[str, Tensor]]) -> None:
        """Of each whole state, take what lies in this rank's share."""
        for index, (name, _) in enumerate(self.members):
            (chunk, at), saved = divmod(index, self.per_chunk), read(name)
            if self.steps is not None:
                self.steps[chunk] = saved["step"]
            for state, (tensor, shape, slot) in self.states.items():
                assert tuple(saved[state].shape) == tuple(shape), f"{state} of {name}: {saved[state].shape}"
                start = at * slot - self.rank * tensor.size(1)  # in this rank's share
                first, last = max(start, 0), min(start + math.prod(shape), tensor.size(1))
                if first < last:
                    tensor[chunk, first:last] = saved[state].flatten()[first - start : last - start]


class MuonStack(_Stack):
    """Matrices; a rank owns whole ones."""

    def _layout(self, chunk_bytes: int) -> tuple:
        assert len(self.shape) == 2, f"{self.members[0][0]} is no matrix, Muon cannot step it"
        (m, n), slot = self.shape, self.numel
        owned, most = math.ceil(len(self.members) / self.ranks), chunk_bytes // (4 * self.ranks * slot)
        at_once = max(count for count in range(1, owned + 1) if owned % count == 0 and count <= max(most, 1))
        variance = at_once * max(m, n), (m, 1) if m >= n else (1, n), max(m, n)
        states = {"momentum": (at_once * slot, self.shape, slot), "variance": variance}
        return slot, at_once * self.ranks, at_once * slot, states

    def update(self, scale: Tensor, kernel: Callable, polar_dtype: torch.dtype, factor: Callable) -> None:
        group, (m, n) = self.group, self.shape
        states = [tensor.view(-1, *shape) for tensor, shape, _ in self.states.values()]
        factors = (group.lr * max(1.0, m / n) ** 0.5, group.momentum, group.beta2, group.weight_decay)
        values, grads = self.mine.view(self.chunks, -1, m, n), self.reduced.view(-1, m, n)
        kernel(values, grads, states, scale, list(map(factor, factors)), polar_dtype)


class AdamWStack(_Stack):
    """Anything; a rank owns an equal share of the elements of each chunk."""

    def __init__(self, *about: Any):
        super().__init__(*about)
        self.steps = self._zeros()  # all alike; the fused kernel wants one for each tensor

    def _layout(self, chunk_bytes: int) -> tuple:
        slot = 4 * math.ceil(self.numel / 4)  # 16 bytes: compiled code asks for aligned parameters
        per_chunk = max(1, min(len(self.members), chunk_bytes // (4 * slot)))
        share = 4 * math.ceil(per_chunk * slot / (4 * self.ranks))
        return slot, per_chunk, share, dict.fromkeys(("exp_avg", "exp_avg_sq"), (share, self.shape, slot))

    def update(self, scale: Tensor, *_: Any) -> None:
        group = self.group
        tensors = (self.mine, self.reduced, *(moment for moment, _, _ in self.states.values()))
        options = {"eps": group.eps, "weight_decay": group.weight_decay, "amsgrad": False, "maximize": False}
        options |= {"lr": group.lr, "beta1": group.momentum, "beta2": group.beta2, "fused": True}
        # The kernel divides by grad_scale.
        adamw(*map(list, tensors), [], list(self.steps), grad_scale=scale.reciprocal(), **options)


STACKS = {"muon": MuonStack, "adamw": AdamWStack}


class Optimizer:
    """Steps the groups' parameters, on one rank or with the ranks of the default process group.

    polar_dtype: of Muon's matrix products. compile: Muon's step as one graph for each shape. The model is on its device
    by now, and stays: parameters are replaced in place only. Between `reduce_in_backward` and `finish_reducing` no rank
    calls other collectives.
    """

    def __init__(
        self,
        groups: list[Group],
        rank=0,
        world_size=1,
        polar_dtype=torch.float32,
        compile=False,
        chunk_bytes=CHUNK_BYTES,
    ):
        self.groups, self._polar_dtype = groups, polar_dtype
        self._muon = torch.compile(muon_update, fullgraph=True, dynamic=False) if compile else muon_update
        self._factor = torch.tensor if compile else float  # a graph would be compiled anew for each float
        self._stacks: list[MuonStack | AdamWStack] = []
        limit = chunk_bytes if world_size > 1 else 2**63  # nothing is sent
        for group in self.groups:
            by_shape: dict[tuple[int, ...], list[tuple[str, Parameter]]] = {}
            for name, parameter in group.params:
                by_shape.setdefault(tuple(parameter.shape), []).append((name, parameter))
            for members in by_shape.values():
                self._stacks.append(STACKS[group.kind](group, members, len(self._stacks), rank, world_size, limit))
        self._shared = self._stacks if world_size > 1 else []  # with other ranks
        self._reduce = _Reduce(self._shared)

    @torch.no_grad
    def step(self, grad_scale: float | Tensor = 1.0, clip: float = 0.0) -> Tensor:
        """Update by the ranks' summed gradients × grad_scale; their norm, 0-d on the device, before it is clipped.

        No host synchronisation. Gradients are undefined afterwards, until `zero_grad`.
        """
        self.finish_reducing()
        self._reduce.works = []
        shards = [stack.reduced for stack in self._stacks]
        squares = torch.stack(torch._foreach_norm(shards)).square().sum()
        if self._shared:
            dist.all_reduce(squares)
        norm = squares.sqrt() * grad_scale
        scale = grad_scale if isinstance(grad_scale, Tensor) else torch.full_like(norm, grad_scale)
        if clip > 0:
            scale = scale * (clip / norm).clamp(max=1)
        gathers = []
        for stack in self._stacks:
            stack.update(scale, self._muon, self._polar_dtype, self._factor)
            if self._shared:
                pairs = zip(stack.values.flatten(1), stack.mine, strict=True)
                gathers += [dist.all_gather_into_tensor(whole, mine, async_op=True) for whole, mine in pairs]
        for gather in gathers:
            gather.wait()
        return norm

    def zero_grad(self) -> None:
        for stack in self._stacks:
            stack.grads.zero_()

    def reduce_in_backward(self) -> AbstractContextManager:
        """Around the last backward before a step: what is complete there starts to be summed over the ranks."""
        return self._reduce.during_backward()

    def finish_reducing(self) -> None:
        """Sum over the ranks what no backward has sent: other collectives may follow. `step` does it where none did."""
        self._reduce.send(everything=True)
        self._reduce.wait()

    def restart(self) -> None:
        """Throw the gradients away: this rank accumulates the step anew; what it has sent (complete) stays sent."""
        self._reduce.wait()  # it reads the gradients
        self.zero_grad()

    def state_tensors(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """(name, states) of the parameters that this rank is to save, each whole; all ranks call it, to its end.

        Ranks gather them on their way, with no other collective between: who copies one before the next needs no room
        for all. One rank's are views of the live state, spoilt by the next step.
        """
        return (named for stack in self._stacks for named in stack.save())

    @torch.no_grad
    def load_state_tensors(self, read: Callable[[str], dict[str, Tensor]]) -> None:
        """Go on from states that any number of ranks saved; `read` gives the states of a parameter."""
        for stack in self._stacks:
            stack.load(read)


class _Reduce:
    """Sums gradients over the ranks, chunk by chunk, each rank getting its share; all ranks in the same order.

    The order is that in which chunks became complete in the first backward, on rank 0. Without stacks it does nothing.
    """

    def __init__(self, stacks: Sequence[_Stack]):
        self.chunks: list[tuple[Tensor, Tensor]] = []  # reduced (share,), gradients (ranks × share,)
        self._members: list[int] = []
        for stack in stacks:
            for index, (_, parameter) in enumerate(stack.members):
                chunk = len(self.chunks) + index // stack.per_chunk
                self._members += [0] * (chunk == len(self._members))
                self._members[chunk] += 1
                parameter.register_post_accumulate_grad_hook(partial(self._arrived, chunk))
            self.chunks += zip(stack.reduced, stack.grads.flatten(1), strict=True)
        self._order, self._order_is_known = list(range(len(self.chunks))), not stacks
        self._missing: list[int] = []  # of each chunk, parameters whose gradient this last backward is still to bring
        self._complete: list[int] = []
        self.works: list[dist.Work] = []  # of the first chunks in order

    @contextmanager
    def during_backward(self) -> Iterator[None]:
        self._missing, self._complete = list(self._members), []
        try:
            yield
        finally:
            self._missing = []
        if not self._order_is_known:
            rest = [chunk for chunk in self._order if chunk not in self._complete]
            order = torch.tensor(self._complete + rest, device=self.chunks[0][0].device)
            dist.broadcast(order, 0)
            self._order, self._order_is_known = order.tolist(), True

    def _arrived(self, chunk: int, _: Tensor) -> None:
        if self._missing:
            self._missing[chunk] -= 1
            if self._missing[chunk] == 0:
                self._complete.append(chunk)
            if self._order_is_known:
                self.send()

    def send(self, everything: bool = False) -> None:
        for chunk in self._order[len(self.works) :]:
            if not everything and self._missing[chunk]:
                return
            self.works.append(dist.reduce_scatter_tensor(*self.chunks[chunk], async_op=True))

    def wait(self) -> None:
        for work in self.works:
            work.wait()
