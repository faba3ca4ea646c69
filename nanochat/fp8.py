"""Linear layers that multiply in fp8: e4m3 for activations and weights, e5m2 for gradients, one scale per tensor.

The parameters stay what they were, fp32 under their own names; beside each lie its fp8 copies, in the two orders that
the forward and the backward product read, made once per optimizer step. Evaluation is not in fp8: Float8Linear.forward.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2  # gradients need range more than digits
MULTIPLE = 16  # of which the fp8 kernels want every dimension but the number of rows of the left matrix
FIRST_CAPABILITY = (8, 9)  # of CUDA, with fp8 in its tensor cores
SMALLEST_PEAK = 1e-12  # what a tensor of zeros is scaled by, so that nothing is divided by 0


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(x in fp8, contiguous; 0-d fp32 scale that gives x back when multiplied); what is not finite becomes NaN."""
    limit = torch.finfo(dtype).max
    scale = torch.linalg.vector_norm(x, float("inf"), dtype=torch.float32).clamp(min=SMALLEST_PEAK) / limit
    return (x.float() / scale).to(dtype).contiguous(), scale  # the greatest value lands on the limit: nothing overflows


class _Float8Product(torch.autograd.Function):
    """x (M, K) @ weightᵀ for a weight (N, K), given as its fp8 copies by rows (N, K) and by columns (K, N)."""

    @staticmethod
    def forward(ctx, x, weight, by_rows, by_columns, weight_scale):
        x8, x_scale = quantize(x, FORWARD)
        ctx.save_for_backward(x8, x_scale, by_columns, weight_scale)
        ctx.weight_dtype = weight.dtype
        return _product(x8, by_rows, x_scale, weight_scale, x.dtype, fast=True)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, outer):
        x8, x_scale, by_columns, weight_scale = ctx.saved_tensors
        outer8, outer_scale = quantize(outer, BACKWARD)
        x_gradient = _product(outer8, by_columns, outer_scale, weight_scale, outer.dtype)
        turned = outer8.t().contiguous(), x8.t().contiguous()
        weight_gradient = _product(*turned, outer_scale, x_scale, ctx.weight_dtype)
        return x_gradient, weight_gradient, None, None, None


def _product(left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, dtype: torch.dtype, fast=False):
    """left (a, k) @ right (b, k)ᵀ, both contiguous; fast: sums kept with fewer digits, good enough for activations."""
    scales = {"scale_a": left_scale, "scale_b": right_scale}
    return torch._scaled_mm(left, right.t(), **scales, out_dtype=dtype, use_fast_accum=fast)


class Float8Linear(nn.Linear):
    """A Linear without bias that takes over another's weight; made by `convert`."""

    def __init__(self, linear: nn.Linear):
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight = linear.weight
        self.train(linear.training)
        # Plain attributes: as buffers they would be in checkpoints, or be cast along with the model.
        self.quantized = self._copies()  # by rows, by columns, scale

    def _copies(self) -> tuple[Tensor, Tensor, Tensor]:
        by_rows, scale = quantize(self.weight.detach(), FORWARD)
        return by_rows, by_rows.t().contiguous(), scale

    def refresh(self) -> None:
        """Quantize the weight anew, into the same memory: a compiled graph goes on reading it."""
        for old, new in zip(self.quantized, self._copies(), strict=True):
            old.copy_(new)

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) → (…, out): in fp8 where a gradient is recorded in training mode, else in the dtype of x."""
        if not (self.training and torch.is_grad_enabled()):
            return nn.functional.linear(x, self.weight.to(x.dtype))
        rows = x.reshape(-1, self.in_features)
        if len(rows) % MULTIPLE:
            raise ValueError(
                f"{len(rows)} tokens in a micro-batch: fp8 needs a multiple of {MULTIPLE}; change the device batch size"
                " or the sequence length, or train without fp8"
            )
        return _Float8Product.apply(rows, self.weight, *self.quantized).reshape(*x.shape[:-1], self.out_features)


def convert(
    model: nn.Module, min_dim: int = 128, keep: Collection[str] = ("head",), emulated: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Put Float8Linear in the place of the Linears that gain; ([names converted], {name left: reason}).

    Called when the model is on its device. keep: names to leave, as the head, whose product is part of the loss.
    emulated: also where no unit multiplies fp8 (torch._scaled_mm works on CPU, slowly), for tests.
    """
    device = next(model.parameters()).device
    multiplies = device.type == "cuda" and torch.cuda.get_device_capability(device) >= FIRST_CAPABILITY
    if not (multiplies or emulated):
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"the device {device.type}"
        raise ValueError(
            f"{name} does not multiply in fp8 (an NVIDIA GPU of the Ada, Hopper or a later family does): leave fp8 off"
        )
    linears = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    left = {name: reason for name, linear in linears if (reason := _why_not(name, linear, min_dim, keep))}
    converted = [name for name, _ in linears if name not in left]
    for name in converted:
        model.set_submodule(name, Float8Linear(model.get_submodule(name)))
    return converted, left


def describe(converted: list[str], left: dict[str, str]) -> str:
    reasons = "; ".join(f"{name}: {why}" for name, why in left.items())
    return f"fp8: {len(converted)} layers" + (f"; not {reasons}" if reasons else "")


def _why_not(name: str, linear: nn.Linear, min_dim: int, keep: Collection[str]) -> str:
    """Why a layer stays as it is, or nothing."""
    dims = linear.out_features, linear.in_features
    reasons = {
        "named to be kept": name in keep,
        "it has a bias": linear.bias is not None,
        f"{dims[0]}×{dims[1]}: not multiples of {MULTIPLE}": any(dim % MULTIPLE for dim in dims),
        f"{dims[0]}×{dims[1]}: a side under {min_dim} costs more to quantize than it saves": min(dims) < min_dim,
        "it is in fp8 already": isinstance(linear, Float8Linear),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def refresh(model: nn.Module) -> None:
    """Quantize the weights anew: called after every optimizer step, it does nothing to a model without fp8 layers."""
    for module in model.modules():
        if isinstance(module, Float8Linear):
            module.refresh()
