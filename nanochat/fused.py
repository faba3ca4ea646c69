"""The model packed for generation: the same blocks, whose layers are swapped for ones that take few kernels per token.

`pack` copies a GPT: weights are cast once, queries, keys and values are one product, and rotation multiplies complex
numbers. A new Linear or parameter of the model is packed without a change here.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanochat.attention import RotaryTable
from nanochat.gpt import GPT, Attention
from nanochat.models import new_model

PACKED_ROWS = 32  # the number of rows for which oneDNN orders a weight; the order is good for one row too
# Numbers of rows that a packed weight meets. oneDNN keeps 0.5 to 3 MB for each number of rows and weight shape, up to
# a thousand: with requests of any length a server would grow by hundreds of MB.
SIZES = (*range(1, 17), *range(20, 65, 4), 96, 128, 192, 256, 384, 512, 768, 1024)
EXACT_SIZES = frozenset(SIZES)


class PackedLinear(nn.Module):
    """Linear layers of the same input as one product, in the dtype of inference; on x86 CPUs ordered for oneDNN.

    weights: the model's own, which `refresh` copies. order: of the outputs, where it differs from the weights' order.
    """

    def __init__(self, *weights: Tensor, dtype: torch.dtype, order: Tensor | None = None):
        super().__init__()
        self.weights = weights
        self.dtype = dtype
        self.order = order
        self.weight: Tensor | None = None
        smallest = min(sum(map(len, weights)), weights[0].shape[1])
        has_onednn = weights[0].device.type == "cpu" and torch.backends.mkldnn.is_available()
        self.packed = has_onednn and dtype != torch.float16 and smallest >= PACKED_ROWS

    def refresh(self) -> None:
        weight = torch.cat([weight.to(self.dtype) for weight in self.weights])
        if self.order is not None:
            weight = weight[self.order]
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)
        elif self.weight is None:
            self.weight = weight
        else:
            self.weight.copy_(weight)  # into the memory that a CUDA graph reads

    def forward(self, x: Tensor) -> Tensor:
        if not self.packed:
            return F.linear(x, self.weight)
        if x.shape[:-1].numel() in EXACT_SIZES:
            return self._product(x)
        parts = [self._padded(rows) for rows in x.flatten(0, -2).split(SIZES[-1])]
        return torch.cat(parts).unflatten(0, x.shape[:-1])

    def _product(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")

    def _padded(self, rows: Tensor) -> Tensor:
        size = next(size for size in SIZES if size >= len(rows))
        return self._product(F.pad(rows, (0, 0, 0, size - len(rows))))[: len(rows)]


class PairRotation(NamedTuple):
    """Complex factors of some positions, (B or none, T, 1, head_dim / 2); 1 for channels that do not rotate."""

    factors: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Return x (B, T, H, D) rotated by position, in fp32; the two channels of a pair lie side by side."""
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.factors).flatten(-2)


class PairTable(nn.Module):
    """The rotary table as complex numbers."""

    def __init__(self, table: RotaryTable, head_dim: int):
        super().__init__()
        unrotated = head_dim // 2 - table.cos.shape[1]
        self.factors = F.pad(torch.complex(table.cos, table.sin), (0, unrotated), value=1)

    def forward(self, positions: Tensor | slice) -> PairRotation:
        return PairRotation(self.factors[positions].unsqueeze(-2))


@torch.inference_mode()
def pack(model: GPT) -> GPT:
    """Return a copy of the model for inference, in its compute_dtype; it has the weights of the last `refresh`."""
    device, dtype, config = model.device, model.compute_dtype, model.config
    with torch.device("meta"):
        packed = new_model(config, attention="decode" if device.type == "cpu" else "sdpa")
    packed.compute_dtype = dtype
    for name, module in list(packed.named_modules()):
        if isinstance(module, Attention):
            _pack_attention(module, model.get_submodule(name), dtype)
    for name, module in list(packed.named_modules()):
        if isinstance(module, nn.Linear):
            packed.set_submodule(name, PackedLinear(model.get_submodule(name).weight, dtype=dtype))
    packed.to_empty(device=device).requires_grad_(False).init_buffers()
    packed.embed.to(dtype)
    packed.value_embeds.to(dtype)
    packed.rotary = PairTable(packed.rotary, config.head_dim)
    refresh(packed, model)
    return packed.eval()


def _pack_attention(attention: Attention, source: Attention, dtype: torch.dtype) -> None:
    """Make one product of queries, keys and values, with the two channels of each rotating pair side by side.

    No score depends on the order of channels, as long as queries and keys have the same.
    """
    config = source.config
    weights = source.q.weight, source.k.weight, source.v.weight
    order = torch.arange(sum(map(len, weights)), device=source.q.weight.device).view(-1, config.head_dim)
    rotating = config.rope_dims or config.head_dim
    heads = config.heads + config.kv_heads
    order[:heads, :rotating] = order[:heads, :rotating].unflatten(1, (2, -1)).mT.flatten(1)
    attention.qkv = PackedLinear(*weights, dtype=dtype, order=order.flatten())
    attention.q = attention.k = attention.v = None


@torch.inference_mode()
def refresh(packed: GPT, model: GPT) -> None:
    """Copy the weights that the model has now."""
    sources = dict(model.named_parameters())
    for name, parameter in packed.named_parameters():
        parameter.copy_(sources[name])
    for module in packed.modules():
        if isinstance(module, PackedLinear):
            module.refresh()
