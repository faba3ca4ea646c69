"""The Triton form of a chunk's cross-entropy: logits in, their gradient out in the same memory, no fp32 copy.

Imported only where triton is installed (see FORMS in cross_entropy.py).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST_BLOCK = 4096  # columns of a row that a program handles at a time


def triton_form(
    logits: Tensor, targets: Tensor, softcap: float, vocab_size: int, with_gradient: bool, *, ignored: int
) -> tuple[Tensor, Tensor | None]:
    """Losses (n,) in fp32 of (n, V) logits, and the logits overwritten by their gradient, or None and left alone."""
    assert logits.stride(1) == 1, logits.stride()
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    width = logits.shape[1]
    if len(logits):
        _row_kernel[(len(logits),)](
            logits,
            targets,
            losses,
            logits.stride(0),
            targets.stride(0),
            vocab_size,
            width,
            float(softcap),
            HAS_SOFTCAP=softcap > 0,
            WITH_GRADIENT=with_gradient,
            IGNORED=ignored,
            BLOCK=min(LONGEST_BLOCK, triton.next_power_of_2(width)),
            num_warps=8,
        )
    return losses, logits if with_gradient else None


@triton.jit
def _row_kernel(
    logits,
    targets,
    losses,
    logits_stride,
    targets_stride,
    vocab_size,
    width,
    softcap,
    HAS_SOFTCAP: tl.constexpr,
    WITH_GRADIENT: tl.constexpr,
    IGNORED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per row: a pass for the softmax's denominator, kept online, and a pass that writes the gradient."""
    row = tl.program_id(0).to(tl.int64)  # row · stride passes 2³¹
    logits += row * logits_stride
    target = tl.load(targets + row * targets_stride)
    peak = float("-inf")
    total = 0.0
    chosen = 0.0
    for start in range(0, vocab_size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        z = tl.load(logits + column, mask=column < vocab_size, other=0.0).to(tl.float32)
        if HAS_SOFTCAP:
            z = softcap * _tanh(z / softcap)
        z = tl.where(column < vocab_size, z, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(z, 0))
        total = total * tl.exp(peak - new_peak) + tl.sum(tl.exp(z - new_peak), 0)
        peak = new_peak
        # Picked up on the way: a load of its own could come after another warp's write of the gradient.
        chosen += tl.sum(tl.where(column == target, z, 0.0), 0)
    log_total = peak + tl.log(total)
    tl.store(losses + row, tl.where(target == IGNORED, 0.0, log_total - chosen))

    if WITH_GRADIENT:
        for start in range(0, width, BLOCK):
            column = start + tl.arange(0, BLOCK)
            z = tl.load(logits + column, mask=column < vocab_size, other=0.0).to(tl.float32)
            slope = 1.0
            if HAS_SOFTCAP:
                bent = _tanh(z / softcap)
                z = softcap * bent
                slope = 1.0 - bent * bent
            gradient = (tl.exp(z - log_total) - tl.where(column == target, 1.0, 0.0)) * slope
            learned = (column < vocab_size) & (target != IGNORED)
            gradient = tl.where(learned, gradient, 0.0).to(logits.dtype.element_ty)
            tl.store(logits + column, gradient, mask=column < width)


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0
