"""Weights, gradients and optimizer states in shards: a rank keeps an equal shard of each unit, and gathers it for use.

A unit is a block, an embedding, or the head. Its whole weights exist while a call of it computes, forward or backward;
for evaluations the whole model exists (`Shards.whole`). Parameters with one dimension, and the gate of smear, stay
whole on every rank. A sharded Parameter has its shape, but no memory.

Every gather is a collective: all ranks make the same calls in the same order.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Parameter

from nanochat.fp8 import Float8Linear, requantize_layers
from nanochat.gpt import GPT, Block
from nanochat.muon import decay_and_step, nesterov
from nanochat.optim import (
    KINDS,
    AdamWStack,
    Group,
    Layout,
    MakeStack,
    MuonStack,
    Named,
    Optimizer,
    Stack,
    Stacking,
    flat_layout,
)
from nanochat.runtime import Runtime, Waiting

Result = TypeVar("Result")
ReadWeight = Callable[[str], Tensor]  # from a parameter's name


class Piece:
    """Same-shaped parameters of one unit, end to end. `mine` and `reduced` become views into a stack's buffers."""

    def __init__(self, names: Sequence[str], values: Sequence[Tensor], runtime: Runtime, dtype: torch.dtype) -> None:
        ranks = runtime.world_size
        self.names = names
        self.layout, self.shard_size = flat_layout(values[0].shape, len(values), ranks)
        self.mine = torch.zeros(self.shard_size, device=runtime.device)  # this rank's shard of the weights
        for place, value in enumerate(values):
            self.layout.take(self.mine, runtime.rank, place, value)
        self.reduced = torch.zeros_like(self.mine)  # and of the gradients, summed over the ranks
        # It has memory only while it is used.
        self.gathered = torch.empty(ranks * self.shard_size, dtype=dtype, device=runtime.device)
        self.weights = self.views(self.gathered)

    def views(self, whole: Tensor) -> list[Tensor]:
        return [self.layout.view(whole, place) for place in range(len(self.names))]

    def gather(self, whole: Tensor) -> Tensor:
        """Fill a buffer with all shards, and return it."""
        # `data`: else autograd would take this for a change in the tensors that it saved.
        dist.all_gather_into_tensor(whole.data, self.mine.to(whole.dtype))
        return whole

    def reduce(self, gradients: Sequence[Tensor | None]) -> None:
        """Add this rank's shard of the gradients, summed over the ranks."""
        whole = torch.zeros_like(self.gathered, dtype=torch.float32)
        for view, gradient in zip(self.views(whole), gradients, strict=True):
            if gradient is not None:
                view.copy_(gradient)
        shard = torch.empty_like(self.mine)
        dist.reduce_scatter_tensor(shard, whole)
        self.reduced += shard


class Unit:
    """A module with parameters that are gathered and released together."""

    def __init__(self, prefix: str, module: nn.Module, read: ReadWeight, runtime: Runtime, waiting: Waiting) -> None:
        self.waiting = waiting
        fp8_layers = [layer for layer in module.modules() if isinstance(layer, Float8Linear)]
        # Gradients of embeddings and head add up in the dtype of the weights, and fp8 is rounded from fp32.
        dtype = runtime.dtype if isinstance(module, Block) and not fp8_layers else torch.float32
        by_shape = {}
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                by_shape.setdefault(parameter.shape, []).append(name)
        self.pieces: list[Piece] = []
        # (the layer, "weight") for each parameter, in the order of the pieces.
        self.places: list[tuple[nn.Module, str]] = []
        for names in by_shape.values():
            full = [f"{prefix}.{name}" for name in names]
            self.pieces.append(Piece(full, list(map(read, full)), runtime, dtype))
            self.places += [(module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names]
        self.weights = [weight for piece in self.pieces for weight in piece.weights]
        self.parameters: list[Parameter] = []
        for (layer, name), weight in zip(self.places, self.weights, strict=True):
            # One number, repeated in a view.
            empty = torch.zeros(1, device=runtime.device).expand(weight.shape)
            parameter = Parameter(empty)
            layer._parameters[name] = parameter
            self.parameters.append(parameter)
        self.buffers = [piece.gathered for piece in self.pieces]
        self.fp8_layers = fp8_layers
        weight_of = {layer: weight for (layer, _), weight in zip(self.places, self.weights, strict=True)}
        self.fp8_weights = [weight_of[layer] for layer in fp8_layers]
        for layer in fp8_layers:
            layer.is_sharded = True
            by_rows, by_columns, scale = (torch.zeros_like(part, device=runtime.device) for part in layer.quantized)
            layer.quantized = by_rows, by_columns, scale
            self.buffers += layer.quantized[:2]  # without the scale
        self.is_whole = False  # True: the memory stays
        self.has_memory = True
        self.release()

    def gather(self) -> None:
        """Make the whole weights, unless they are here."""
        if not self.has_memory:
            self._set_memory(True)
            self.fill()

    def fill(self) -> None:
        """Bring the whole weights up to date."""
        with self.waiting.counted():
            for piece in self.pieces:
                piece.gather(piece.gathered)
        requantize_layers(self.fp8_layers, self.fp8_weights)

    def release(self) -> None:
        if not self.is_whole:
            self._set_memory(False)

    def _set_memory(self, has_memory: bool) -> None:
        self.has_memory = has_memory
        for buffer in self.buffers:
            buffer.untyped_storage().resize_(buffer.nbytes if has_memory else 0)

    def call(self, function: Callable[..., Result], inputs: Sequence[Any], recomputed: bool) -> Result:
        """Return function(*inputs), with the whole weights in place of the module's parameters."""
        self.gather()
        weights = _Gathered.apply(self, *self.parameters)
        # A checkpointed call saves nothing: in the backward it runs again, and what it saves then is used at once.
        hooks = nullcontext() if recomputed else saved_tensors_hooks(self._pack, self._unpack)
        try:
            self._place(weights)
            with hooks:
                outputs = function(*inputs)
        finally:
            self._place(self.parameters)
            if torch._C._current_graph_task_id() == -1:  # no backward runs
                self.release()
        first: Any = outputs[0] if isinstance(outputs, tuple) else outputs
        if first.requires_grad and not isinstance(function, nn.Embedding):  # whose backward reads no weights
            first.register_hook(lambda _: self.gather())  # the loss of single tokens recomputes logits by itself
        return outputs

    def _place(self, weights: Sequence[Any]) -> None:
        for (layer, name), weight in zip(self.places, weights, strict=True):
            layer._parameters[name] = weight

    def _pack(self, tensor: Tensor) -> tuple[Tensor, bool]:
        """Return what autograd keeps in place of a saved tensor."""
        place = tensor.untyped_storage().data_ptr()
        is_weight = any(place == buffer.untyped_storage().data_ptr() for buffer in self.buffers)
        return (tensor.detach() if is_weight else tensor), is_weight

    def _unpack(self, saved: tuple[Tensor, bool]) -> Tensor:
        tensor, is_weight = saved
        if is_weight:
            self.gather()
        return tensor

    def end_backward(self, gradients: Sequence[Tensor | None]) -> None:
        """Give each rank its shard of the gradients of a call."""
        self.release()  # before the gradients are copied
        start = 0
        with self.waiting.counted():
            for piece in self.pieces:
                piece.reduce(gradients[start : start + len(piece.names)])
                start += len(piece.names)


class _UnitContext(FunctionCtx):
    """What the forward leaves for the backward."""

    unit: Unit


class _Gathered(torch.autograd.Function):
    """A unit's whole weights, as functions of its parameters, which get no gradient: the shards do."""

    @staticmethod
    def forward(ctx: _UnitContext, unit: Unit, *parameters: Parameter) -> tuple[Tensor, ...]:
        ctx.unit = unit
        ctx.set_materialize_grads(False)
        return tuple(weight.view_as(weight) for weight in unit.weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: _UnitContext, *gradients: Tensor | None) -> tuple[None, ...]:
        ctx.unit.end_backward(gradients)
        return None, *[None] * len(gradients)


class Shards(Stacking):
    """All units of a model. `model` is on the meta device; read: returns a parameter's whole values."""

    sends_early = False  # the gathers of a backward and the gradients that it gives need one order on all ranks

    def __init__(self, model: GPT, read: ReadWeight, runtime: Runtime) -> None:
        super().__init__()
        self.model = model
        self.is_whole = False
        names = {f"blocks.{i}": block for i, block in enumerate(model.blocks)}
        names |= {f"value_embeds.{key}": table for key, table in model.value_embeds.items()}
        names["embed"] = model.embed
        if not model.config.tie_embeddings:
            names["head"] = model.head
        self.units = {module: Unit(name, module, read, runtime, self.waiting) for name, module in names.items()}
        self.pieces = {name: piece for unit in self.units.values() for piece in unit.pieces for name in piece.names}
        # Parameters and tables that stay whole.
        model._apply(lambda old: torch.empty_like(old, device=runtime.device) if old.is_meta else old)
        model.fill_tables()
        for name, parameter in model.named_parameters():
            if name not in self.pieces:
                parameter.data.copy_(read(name))
        model.shards = self

    def call(
        self, module: nn.Module, function: Callable[..., Result], *inputs: Any, recomputed: bool = False
    ) -> Result:
        """Return function(*inputs), for which the module has its whole weights. recomputed: in the backward too."""
        return function(*inputs) if self.is_whole else self.units[module].call(function, inputs, recomputed)

    @contextmanager
    @torch.no_grad
    def whole(self) -> Iterator[None]:
        """Give the model its whole weights in this context, blocks in the compute dtype. All ranks enter."""
        if self.is_whole:
            yield
            return
        empty = {parameter: parameter.data for unit in self.units.values() for parameter in unit.parameters}
        for unit in self.units.values():
            unit.gather()
            unit.is_whole = True
            for parameter, weight in zip(unit.parameters, unit.weights, strict=True):
                parameter.data = weight
        self.is_whole = True
        try:
            yield
        finally:
            self.is_whole = False
            for parameter, data in empty.items():
                parameter.data = data
            for unit in self.units.values():
                unit.is_whole = False
                unit.release()
            self.waiting.take()  # an evaluation is not training

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, values in fp32), as of the model's state_dict; all ranks iterate to the end."""
        for name, tensor in self.model.state_dict().items():
            if name not in self.pieces:
                yield name, tensor
        for unit in self.units.values():
            for piece in unit.pieces:
                whole = piece.gather(torch.empty_like(piece.gathered, dtype=torch.float32))
                yield from zip(piece.names, piece.views(whole), strict=True)

    def divide(self, group: Group) -> Iterator[tuple[MakeStack, list[Named]]]:
        """Yield the parameters of each stack: same-shaped ones that are whole, or whose pieces have as many members."""
        alike: dict[tuple[int, ...], list[Named]] = {}
        for name, parameter in group.params:
            members = len(self.pieces[name].names) if name in self.pieces else 0  # 0: it is whole
            alike.setdefault((members, *parameter.shape), []).append((name, parameter))
        for (members, *_), params in alike.items():
            yield (partial(STACKS[group.kind], self.pieces) if members else KINDS[group.kind]), params


# ---- optimizer kinds ----


class _Sharded(Stack):
    """Lays a stack out by pieces: a chunk is a piece, and a rank owns an equal shard of its elements and states."""

    is_exchanged = False

    def __init__(self, pieces: dict[str, Piece], group: Group, members: list[Named], *arguments: int) -> None:
        self.pieces = list(dict.fromkeys(pieces[name] for name, _ in members))
        super().__init__(group, members, *arguments)

    def _arrange(self, chunk_bytes: int) -> None:
        first = self.pieces[0]
        self.per_chunk = len(first.names)
        self.shard_size = first.shard_size
        self.layout = first.layout
        self.layouts = self.state_layouts()

    def _allocate(self) -> None:
        """Move the shards into buffers of this stack."""
        self.values = self.mine = torch.stack([piece.mine for piece in self.pieces])
        self.grads = self.reduced = torch.zeros_like(self.mine)
        for chunk, piece in enumerate(self.pieces):
            piece.mine = self.mine[chunk]
            piece.reduced = self.reduced[chunk]


class ShardedAdamW(_Sharded, AdamWStack):
    """AdamW on shards of the elements."""


class ShardedMuon(_Sharded, MuonStack):
    """Muon on shards of the elements. For a step, whole pieces are dealt to the ranks, and come back updated."""

    def update(self, scale: Tensor, optimizer: Optimizer) -> None:
        lr, momentum, beta2, weight_decay = self.factors(optimizer)
        update = nesterov(self.reduced, self.states["momentum"], scale, momentum)
        with optimizer.waiting.counted():
            dealt = self._deal(update)
            variances = self._deal(self.states["variance"])
        matrices = self._views(dealt, self.layout)
        rows = self._views(variances, self.layouts["variance"])
        # Flattened, they may be copies.
        moved = rows.flatten(0, 1)
        updates = optimizer.orthogonalize(matrices.flatten(0, 1), moved, lr, beta2, optimizer.polar_dtype)
        matrices.copy_(updates.view_as(matrices))
        rows.copy_(moved.view_as(rows))
        with optimizer.waiting.counted():
            updates = self._collect(dealt)
            variances = self._collect(variances)
        self.states["variance"].copy_(variances)
        decay_and_step(self.mine, updates, lr * weight_decay)

    def _views(self, dealt: Tensor, layout: Layout) -> Tensor:
        """Return (pieces, members, *shape), the tensors in dealt pieces."""
        places = dealt[:, : self.per_chunk * layout.slot].unflatten(1, (self.per_chunk, layout.slot))
        return places[..., : math.prod(layout.shape)].unflatten(2, layout.shape)

    def _deal(self, shards: Tensor) -> Tensor:
        """Exchange shards (pieces, elements) of all pieces for whole pieces: each rank gets equally many, in order."""
        rest = -len(shards) % self.ranks
        received = _exchange(F.pad(shards, (0, 0, 0, rest)))
        return received.unflatten(0, (self.ranks, -1)).transpose(0, 1).flatten(1)

    def _collect(self, dealt: Tensor) -> Tensor:
        """Undo `_deal`."""
        sent = dealt.unflatten(1, (self.ranks, -1)).transpose(0, 1).flatten(0, 1)
        return _exchange(sent)[: self.chunks]


def _exchange(sent: Tensor) -> Tensor:
    """Give each rank one of as many equal parts as there are ranks."""
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent.contiguous())
    return received


STACKS = {"muon": ShardedMuon, "adamw": ShardedAdamW}
