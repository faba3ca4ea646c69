"""Layers of whole numbers with a scale for each row (`--quant` on a CPU): one byte a weight, and no fp32 copy of it.

The numbers themselves are multiplied, and the products scaled: what is computed is the rounded model, not a further
approximation of it. A packed layer (fused.py) keeps them as fp16, in which they are exact, in the order of FBGEMM's
product: that reads half of fp32's bytes, which is what one row waits for.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanochat.gpt import GPT, Embedding, Linear
from nanochat.quantized import Quantized, Stored


class _Int8(nn.Module):
    """A layer's matrix. No parameter and no buffer: casts of a model pass it by."""

    def __init__(self, matrix: Quantized) -> None:
        super().__init__()
        self.weight = matrix.codes  # (rows, columns) int8
        self.scales = matrix.scales.float()  # (rows,)

    @property
    def active_weight(self) -> Tensor:
        """The weight as products read it, in fp32."""
        return self.weight.float() * self.scales[:, None]


class Int8Linear(_Int8):
    """A linear layer for many rows at a time, as evaluations have them: its numbers are cast for each product."""

    def forward(self, x: Tensor) -> Tensor:
        return (F.linear(x, self.weight.to(x.dtype)) * self.scales).to(x.dtype)


class Int8Embedding(_Int8):
    """A table, of which rows are scaled when they are read."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids].float() * self.scales[ids].unsqueeze(-1)


class PackedInt8Linear(nn.Module):
    """Int8 layers with a common input as one product for a few rows at a time.

    order: of the rows, which are the outputs (None: as they are).
    """

    def __init__(self, layers: Sequence[_Int8], order: Tensor | None = None) -> None:
        super().__init__()
        weight = torch.cat([layer.weight for layer in layers])
        scales = torch.cat([layer.scales for layer in layers])
        if order is not None:
            weight, scales = weight[order], scales[order]
        self.scales = scales
        self.plain = None if HAS_FBGEMM else weight
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None) if HAS_FBGEMM else None

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is None:
            assert self.plain is not None  # one of both is set
            product = F.linear(x, self.plain.to(x.dtype))
        else:
            product = torch.ops.quantized.linear_dynamic_fp16(x.float(), self.packed)
        return (product * self.scales).to(x.dtype)


HAS_FBGEMM = "fbgemm" in torch.backends.quantized.supported_engines  # on x86


def keep_int8(model: GPT, stored: Stored) -> None:
    """Let a model's linear layers and tables keep the whole numbers that they were rounded to, in place of floats.

    stored: parameter's name → its numbers. What is no matrix of such a layer stays as it is.
    """
    for name, module in list(model.named_modules()):
        matrix = stored.get(f"{name}.weight")
        if not isinstance(matrix, Quantized):
            continue
        if isinstance(module, Linear):
            model.set_submodule(name, Int8Linear(matrix))
        elif isinstance(module, Embedding):
            model.set_submodule(name, Int8Embedding(matrix))
