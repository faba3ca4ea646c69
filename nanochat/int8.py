"""Layers of whole numbers with a scale for each row: what `--quant` leaves of a model on a CPU.

The numbers themselves are multiplied, and the products scaled: what is computed is the rounded model, not a further
approximation of it. A model holds a byte for each weight. Packed for generation (fused.py) there are two more: FBGEMM's
product takes fp16, in which the numbers are exact, and reads half the bytes of fp32.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanochat.gpt import GPT, Embedding, Linear
from nanochat.quantized import Quantized

HAS_FBGEMM = "fbgemm" in torch.backends.quantized.supported_engines  # on x86
FEW_ROWS = 64  # up to so many, reading the weights takes longer than multiplying


class Int8(nn.Module):
    """A layer's matrix. It is fixed: no parameter or buffer, so casts, `state_dict` and optimizers pass it by."""

    def __init__(self, matrix: Quantized) -> None:
        super().__init__()
        self.weight = matrix.codes  # (rows, columns) int8
        self.scales = matrix.scales.float()  # (rows,)

    @property
    def active_weight(self) -> Tensor:
        """The weight as products read it, in fp32."""
        return self.weight.float() * self.scales[:, None]


class Int8Linear(Int8):
    """A linear layer for many rows at a time, as evaluations have them: its numbers are cast for each product."""

    def forward(self, x: Tensor) -> Tensor:
        return _scaled_product(x, self.weight, self.scales)


class Int8Embedding(Int8):
    """A table, of which rows are scaled when they are read."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids].float() * self.scales[ids].unsqueeze(-1)


class PackedInt8Linear(nn.Module):
    """Int8 layers with a common input as one product, for generation. It does not follow `copy_weights`.

    dtype: of the inputs. order: of the rows, which are the outputs (None: as they are).
    """

    def __init__(self, layers: Sequence[Int8], dtype: torch.dtype, order: Tensor | None = None) -> None:
        super().__init__()
        weight = torch.cat([layer.weight for layer in layers]) if len(layers) > 1 else layers[0].weight
        scales = torch.cat([layer.scales for layer in layers])
        if order is not None:
            weight, scales = weight[order], scales[order]
        self.scales = scales
        # Prompts in bf16 have a faster product of their own on some CPUs.
        self.plain = weight if dtype == torch.bfloat16 or not HAS_FBGEMM else None
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None) if HAS_FBGEMM else None

    def forward(self, x: Tensor) -> Tensor:
        is_many = x.numel() > FEW_ROWS * x.shape[-1]
        if self.plain is not None and (is_many or self.packed is None):
            return _scaled_product(x, self.plain, self.scales)
        product = torch.ops.quantized.linear_dynamic_fp16(x.float(), self.packed)
        return (product * self.scales).to(x.dtype)


def _scaled_product(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Return x times rows of whole numbers, scaled afterwards. fp16 would overflow before that, so it becomes fp32."""
    factor = x.float() if x.dtype == torch.float16 else x
    return (F.linear(factor, weight.to(factor.dtype)) * scales).to(x.dtype)


def keep_int8(model: GPT, stored: Mapping[str, Quantized]) -> None:
    """Let a model's linear layers and tables keep the whole numbers that they were rounded to, in place of floats.

    stored: parameter's name → its numbers. Other parameters stay as they are.
    """
    for name, module in list(model.named_modules()):
        matrix = stored.get(f"{name}.weight")
        if matrix is None:
            continue
        if isinstance(module, Linear):
            model.set_submodule(name, Int8Linear(matrix))
        elif isinstance(module, Embedding):
            model.set_submodule(name, Int8Embedding(matrix))
