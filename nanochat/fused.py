"""The model packed for generation: the same blocks, with layers replaced by ones that launch fewer kernels per token.

`pack` copies a GPT: weights are cast once, queries, keys and values become one product, and rotation multiplies complex
numbers. A new Linear or parameter in the model is packed without a change here.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanochat.attention import RotaryTable
from nanochat.fp8 import Float8Linear
from nanochat.gpt import GPT, Attention, Block, Embedding, Linear
from nanochat.int8 import Int8, Int8Embedding, Int8Linear, PackedInt8Linear
from nanochat.models import new_model

PACKED_ROWS = 32  # the row count for which oneDNN orders a weight; the order is good for one row too
# Row counts that a packed weight meets. oneDNN keeps 0.5 to 3 MB for each row count and weight shape, up to a
# thousand: with requests of any length a server would grow by hundreds of MB.
SIZES = (*range(1, 17), *range(20, 65, 4), 96, 128, 192, 256, 384, 512, 768, 1024)


class PackedLinear(nn.Module):
    """Linear layers with a common input as one product, in the inference dtype; on x86 CPUs ordered for oneDNN.

    matrix: gives (outputs, inputs) from the model's own weights, for `refresh`.
    """

    def __init__(self, matrix: Callable[[], Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.matrix = matrix
        self.dtype = dtype
        self.weight: Tensor | None = None
        example = matrix()
        # Small weights keep their layout.
        self.packed = example.device.type == "cpu" and min(example.shape) >= PACKED_ROWS and _can_order(dtype)

    def refresh(self) -> None:
        weight = self.matrix().to(self.dtype, copy=True)  # the model's own may change before the next refresh
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)
        elif self.weight is None:
            self.weight = weight
        else:
            self.weight.copy_(weight)  # into the memory that a CUDA graph reads

    def forward(self, x: Tensor) -> Tensor:
        if not self.packed:
            assert self.weight is not None  # set by `refresh`
            return F.linear(x, self.weight)
        if math.prod(x.shape[:-1]) in SIZES:
            return self._product(x)
        # Other row counts: at most SIZES[-1] rows at a time, padded with zeros to the next known size.
        parts = []
        for rows in x.flatten(0, -2).split(SIZES[-1]):
            size = next(size for size in SIZES if size >= len(rows))
            parts.append(self._product(F.pad(rows, (0, 0, 0, size - len(rows))))[: len(rows)])
        return torch.cat(parts).unflatten(0, x.shape[:-1])

    def meet_sizes(self) -> None:
        """Run every row count once, so that oneDNN keeps now what it would keep later."""
        assert self.weight is not None  # set by `refresh`
        inputs = self.matrix().shape[1]
        for rows in SIZES if self.packed else ():
            self._product(torch.zeros(rows, inputs, dtype=self.dtype))

    def _product(self, x: Tensor) -> Tensor:
        # No bias, and no activation fused into the kernel.
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")


def _can_order(dtype: torch.dtype) -> bool:
    """Whether oneDNN orders weights of this dtype on this CPU; where it does not, a product reads them as they are."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        # Not every CPU has the instructions (on x86: AVX-512 or AVX-NE-CONVERT), and oneDNN would refuse the weight.
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype != torch.float16


class PairRotation(NamedTuple):
    """Complex factors for some positions, (B or none, T, 1, rotated pairs)."""

    factors: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Return x (B, T, H, D) in fp32, rotated by position; the two channels in a pair lie side by side."""
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))  # (B, T, H, D / 2)
        return torch.view_as_real(pairs * self.factors).flatten(-2)


class PairTable(nn.Module):
    """The rotary table as complex numbers, (max_seq_len, head_dim / 2). channels: of a head."""

    def __init__(self, table: RotaryTable, channels: int) -> None:
        super().__init__()
        still = channels // 2 - table.cos.shape[1]  # pairs that do not rotate: multiplied by 1
        self.factors = F.pad(torch.complex(table.cos, table.sin), (0, still), value=1)

    def forward(self, positions: Tensor | slice) -> PairRotation:
        return PairRotation(self.factors[positions].unsqueeze(-2))


@torch.inference_mode()
def pack(model: GPT) -> GPT:
    """Return a copy for inference, in the model's compute_dtype; the weights are those at the last `copy_weights`.

    Whole numbers (int8.py) are fixed, and tables of them are shared with the model.
    """
    device = model.device
    dtype = model.compute_dtype
    config = model.config
    if isinstance(model.head_module, Int8Embedding):
        config = replace(config, tie_embeddings=False)  # the head's product has an order of its own
    packed = new_model(config, attention="decode" if device.type == "cpu" else "sdpa")
    packed.compute_dtype = dtype
    packed.end_like(model)
    for block, source in zip(packed.blocks, model.blocks, strict=True):
        assert isinstance(block, Block)
        assert isinstance(source, Block)
        _pack_attention(block.attn, source.attn, dtype)
    for name, module in list(packed.named_modules()):
        if isinstance(module, nn.Linear):
            own = model.head_module if name == "head" else model.get_submodule(name)  # a tied table is the head
            assert isinstance(own, Linear | Embedding | Float8Linear | Int8)
            is_int8 = isinstance(own, Int8)
            packed.set_submodule(
                name, PackedInt8Linear([own], dtype) if is_int8 else PackedLinear(partial(_active, own), dtype)
            )
        elif isinstance(module, nn.Embedding) and isinstance(own := model.get_submodule(name), Int8Embedding):
            packed.set_submodule(name, own)
    packed.to_empty(device=device)  # most layers were replaced before they took memory
    packed.requires_grad_(False)
    # Cast once here instead of in every forward.
    packed.embed.to(dtype)
    packed.value_embeds.to(dtype)
    if packed.config.rotated_channels:
        packed.set_submodule("rotary", PairTable(packed.rotary, packed.config.head_dim))
    copy_weights(packed, model)
    return packed.eval()


def _active(layer: Linear | Embedding | Float8Linear) -> Tensor:
    """Return the matrix that a layer multiplies by at present, which training may round."""
    return layer.active_weight.detach()


def _pack_attention(attention: Attention, source: Attention, dtype: torch.dtype) -> None:
    """Join queries, keys and values into one product, with the two channels in each rotating pair side by side.

    Scores do not depend on the channel order, as long as queries and keys share one.
    """
    config = source.config
    layers = source.q, source.k, source.v
    order = torch.arange(sum(len(layer.weight) for layer in layers), device=source.q.weight.device)
    order = order.view(-1, config.head_dim)  # (heads + 2 * kv_heads, head_dim)
    heads = config.heads + config.kv_heads  # values keep their order
    rotated = order[:heads, : config.rotated_channels]
    if config.rotated_channels:  # otherwise the model rotates by tables of its own
        rotated.copy_(rotated.unflatten(1, (2, -1)).mT.flatten(1))  # channel i pairs with i + half of the rotated ones
    rounded = [layer for layer in layers if isinstance(layer, Int8Linear)]
    if len(rounded) == len(layers):
        attention.qkv = PackedInt8Linear(rounded, dtype, order.flatten())
    else:
        attention.qkv = PackedLinear(lambda: torch.cat([_active(layer) for layer in layers])[order.flatten()], dtype)
    del attention.q, attention.k, attention.v


@torch.inference_mode()
def meet_sizes(packed: GPT) -> None:
    """Let oneDNN keep now what it keeps for each row count, once for each shape of a weight."""
    layers = [module for module in packed.modules() if isinstance(module, PackedLinear)]
    for layer in {layer.matrix().shape: layer for layer in layers}.values():
        layer.meet_sizes()


@torch.inference_mode()
def copy_weights(packed: GPT, model: GPT) -> None:
    """Copy the model's present weights into the packed model. All ranks of a sharded model call this together."""
    with model.whole():
        sources: dict[str, Tensor] = dict(model.named_parameters())
        sources |= {f"{name}.weight": _active(m) for name, m in model.named_modules() if isinstance(m, Embedding)}
        # Parameters outside Linear layers: embeddings, residual factors.
        for name, parameter in packed.named_parameters():
            parameter.copy_(sources[name])
        for module in packed.modules():
            if isinstance(module, PackedLinear):
                module.refresh()
