"""The Triton form of a chunk's cross-entropy: logits in, their gradient out in the same memory, no copy in fp32.

Imported only where triton is installed and used: see FORMS in cross_entropy.py.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST_BLOCK = 4096  # columns of a row that a program handles at a time


def triton_losses(
    logits: Tensor,
    targets: Tensor,
    softcap: float,
    vocab_size: int,
    gradient_scale: float,
    *,
    ignored: int,
) -> tuple[Tensor, Tensor | None]:
    """Return losses (n,) in fp32 of logits (n, V), and the logits overwritten by their gradient times a scale, or None.

    gradient_scale: 0 for no gradient.
    """
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    width = logits.shape[1]
    _row_kernel[(len(logits),)](
        logits,
        targets,
        losses,
        logits.stride(0),
        vocab_size,
        width,
        SOFTCAP=softcap,
        GRADIENT_SCALE=gradient_scale,
        IGNORED=ignored,
        BLOCK=min(LONGEST_BLOCK, triton.next_power_of_2(width)),
        num_warps=8,
    )
    return losses, logits if gradient_scale else None


@triton.jit
def _row_kernel(
    logits,
    targets,
    losses,
    stride,
    vocab_size,
    width,
    SOFTCAP: tl.constexpr,
    GRADIENT_SCALE: tl.constexpr,
    IGNORED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Handle one row per program: a pass for the softmax's denominator, kept online, and a pass for the gradient."""
    row = tl.program_id(0).to(tl.int64)  # row · stride exceeds 2³¹
    logits += row * stride
    target = tl.load(targets + row)
    peak = float("-inf")
    total = 0.0  # of exponentials, relative to the peak so far
    chosen = 0.0  # the target's logit
    for start in range(0, vocab_size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        z, _ = _capped(logits, column, vocab_size, SOFTCAP)
        new_peak = tl.maximum(peak, tl.max(z, 0))
        total = total * tl.exp(peak - new_peak) + tl.sum(tl.exp(z - new_peak), 0)
        peak = new_peak
        # Picked up here: a separate load could come after another warp's write of the gradient.
        chosen += tl.sum(tl.where(column == target, z, 0.0), 0)
    log_total = peak + tl.log(total)
    tl.store(losses + row, tl.where(target == IGNORED, 0.0, log_total - chosen))

    if GRADIENT_SCALE > 0:
        for start in range(0, width, BLOCK):
            column = start + tl.arange(0, BLOCK)
            z, slope = _capped(logits, column, vocab_size, SOFTCAP)
            hit = tl.where(column == target, 1.0, 0.0)
            gradient = (tl.exp(z - log_total) - hit) * slope * GRADIENT_SCALE
            gradient = tl.where(target == IGNORED, 0.0, gradient).to(logits.dtype.element_ty)
            tl.store(logits + column, gradient, mask=column < width)


@triton.jit
def _capped(logits, column, vocab_size, SOFTCAP: tl.constexpr):
    """Return logits under the softcap in fp32, -inf in the padding, and the slope of the softcap there."""
    z = tl.load(logits + column, mask=column < vocab_size, other=0.0).to(tl.float32)
    slope = tl.full(z.shape, 1.0, tl.float32)
    if SOFTCAP > 0:
        bent = 2.0 * tl.sigmoid(2.0 * z / SOFTCAP) - 1.0  # tanh
        z = SOFTCAP * bent
        slope = 1.0 - bent * bent
    return tl.where(column < vocab_size, z, float("-inf")), slope
