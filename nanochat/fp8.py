"""Linear layers that multiply in fp8: e4m3 for activations and weights, e5m2 for gradients, one scale per tensor.

Parameters stay in fp32 under their own names. Each has fp8 copies in the two orders that the forward and the
backward product read, made once per optimizer step. Evaluation does not use fp8: see Float8Linear.forward.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from nanochat.errors import UserError

FORWARD = torch.float8_e4m3fn
BACKWARD = torch.float8_e5m2  # gradients need range more than digits
MULTIPLE = 16  # fp8 kernels need multiples of it, except for the number of rows of the left matrix
FIRST_CAPABILITY = (8, 9)  # of CUDA devices with fp8 in their tensor cores
SMALLEST_PEAK = 1e-12  # a tensor of zeros is scaled by this, to avoid a division by 0


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return (x in fp8, contiguous; 0-d fp32 scale that multiplies back); values that are not finite become NaN."""
    scale = _scale(torch.linalg.vector_norm(x, math.inf, dtype=torch.float32), dtype)
    return (x.float() / scale).to(dtype).contiguous(), scale


def _scale(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the scale with which the largest value lands on the limit: nothing overflows."""
    return largest.clamp(min=SMALLEST_PEAK) / torch.finfo(dtype).max


class _ProductContext(FunctionCtx):
    """What the forward leaves for the backward."""

    saved_tensors: tuple[Tensor, ...]


class _Float8Product(torch.autograd.Function):
    """x (M, K) @ weightᵀ for a weight (N, K), given as fp8 copies by rows (N, K) and by columns (K, N)."""

    @staticmethod
    def forward(
        ctx: _ProductContext, x: Tensor, weight: Tensor, by_rows: Tensor, by_columns: Tensor, weight_scale: Tensor
    ) -> Tensor:
        x8, x_scale = quantize(x, FORWARD)
        ctx.save_for_backward(x8, x_scale, by_columns, weight_scale)
        # Sums in the forward keep fewer digits. The kernel takes its right matrix as a transposed view.
        return torch._scaled_mm(x8, by_rows.t(), x_scale, weight_scale, out_dtype=x.dtype, use_fast_accum=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: _ProductContext, outer: Tensor) -> tuple[Tensor | None, ...]:
        x8, x_scale, by_columns, weight_scale = ctx.saved_tensors
        outer8, outer_scale = quantize(outer, BACKWARD)
        x_gradient = torch._scaled_mm(outer8, by_columns.t(), outer_scale, weight_scale, out_dtype=outer.dtype)
        # The kernel reads both matrices along the summed dimension: tokens here.
        by_token = outer8.t().contiguous(), x8.t().contiguous().t()
        weight_gradient = torch._scaled_mm(*by_token, outer_scale, x_scale, out_dtype=torch.float32)
        return x_gradient, weight_gradient, None, None, None


class Float8Linear(nn.Linear):
    """A Linear without bias that takes over another one's weight; `convert` makes it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight = linear.weight  # the same Parameter: optimizers and checkpoints notice nothing
        self.train(linear.training)
        self.is_sharded = False  # True: sharding.py quantizes the weight whenever it gathers it
        by_rows, scale = quantize(self.weight.detach(), FORWARD)
        # By rows, by columns, scale. No buffers: they would be in checkpoints, and be cast along with the model.
        self.quantized = by_rows, by_rows.t().contiguous(), scale

    @property
    def active_weight(self) -> Tensor:
        """The weight as generation reads it, which is not in fp8, as evaluations are not."""
        return self.weight

    def requantize(self, weight: Tensor, new_scale: Tensor) -> None:
        """Quantize the weight again, into the same memory, which compiled graphs read."""
        # `data`: for autograd a weight that is gathered again has not changed.
        by_rows, by_columns, scale = (part.data if self.is_sharded else part for part in self.quantized)
        scale.copy_(new_scale)
        by_rows.copy_(weight / scale)
        by_columns.copy_(by_rows.t())

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out): in fp8 if a gradient is recorded in training mode, else in the dtype of x."""
        if not (self.training and torch.is_grad_enabled()):
            return nn.functional.linear(x, self.weight.to(x.dtype))
        rows = x.reshape(-1, self.in_features)
        if len(rows) % MULTIPLE:
            raise UserError(
                f"{len(rows)} tokens in a micro-batch: fp8 needs a multiple of {MULTIPLE}; change --device-batch-size"
            )
        # The weight is passed for its gradient; the products read its copies.
        product = _Float8Product.apply(rows, self.weight, *self.quantized)
        return product.reshape(*x.shape[:-1], self.out_features)


def convert(
    model: nn.Module, min_dim: int = 128, emulated: bool = False, device: torch.device | None = None
) -> list[str]:
    """Replace the Linears that gain by Float8Linear; return their names.

    device: the model's, for one that has no weights yet.

    Not replaced: the head, whose product is part of the loss, sides that are not multiples of 16, and sides under
    min_dim, which cost more to quantize than they save. emulated: also on devices without fp8 units, slowly, for tests.
    """
    device = device or next(model.parameters()).device
    has_units = device.type == "cuda" and torch.cuda.get_device_capability(device) >= FIRST_CAPABILITY
    if not emulated and not has_units:
        raise UserError("this device does not multiply in fp8 (NVIDIA GPUs from Ada on do): omit --fp8")
    replaced = []
    for name, module in list(model.named_modules()):  # a list, because the loop changes the modules
        if not isinstance(module, nn.Linear) or name == "head":
            continue
        if all(dim >= min_dim and dim % MULTIPLE == 0 for dim in module.weight.shape):
            model.set_submodule(name, Float8Linear(module))
            replaced.append(name)
    return replaced


def requantize(model: nn.Module) -> None:
    """Quantize the weights again, after each optimizer step; does nothing to a model without fp8 layers."""
    layers = [module for module in model.modules() if isinstance(module, Float8Linear) and not module.is_sharded]
    requantize_layers(layers, [layer.weight.detach() for layer in layers])


def requantize_layers(layers: Sequence[Float8Linear], weights: list[Tensor]) -> None:
    """Quantize weights for layers."""
    if layers:
        # One pass over all weights: a kernel for each would be a thousand in a large model.
        largest = torch._foreach_norm(weights, math.inf)
        for layer, weight, scale in zip(layers, weights, _scale(torch.stack(largest), FORWARD), strict=True):
            layer.requantize(weight, scale)
