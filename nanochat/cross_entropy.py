"""Cross-entropy of a linear head, a chunk of tokens at a time: the logits of a whole batch never exist at once.

A chunk's logits become losses and, if the loss is to be differentiated, their own gradient at once: the backward pass
only multiplies by one number.
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.utils.checkpoint import checkpoint

IGNORED = -1  # the target of a token that is not learned
SAFE_EXPONENT = 60.0  # exponentials of less, summed over any vocabulary or row, stay far from fp32's limit

# Bytes of logits per chunk. A CPU needs them in the caches; for a GPU a chunk must still make a large matrix product.
CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 512 << 20, "mps": 64 << 20}
# Least tokens of a chunk: each chunk reads the whole weight, and with gradients adds to its whole gradient.
LEAST_TOKENS = 64
LEAST_TOKENS_WITH_GRADIENT = 512
ALIGNED = {"cpu": 1, "cuda": 256, "mps": 1}  # tokens: products of such sides are the fastest on a GPU
# Factor for gradients of logits: in fp16, which ends at 6e-8, most probabilities of a large vocabulary would become 0.
# A power of 2, so that it rounds nothing.
GRADIENT_SCALE = {torch.float16: 64.0}  # in other dtypes 1

# Settings of a loss are a tuple: form, softcap and vocab_size. A form takes logits (n, V), targets (n,), softcap,
# vocab_size and gradient_scale. It returns losses (n,), and the gradient of the logits in their dtype times
# gradient_scale; None for a scale of 0.
Losses = tuple[Tensor, Tensor | None]
Form = Callable[[Tensor, Tensor, float, int, float], Losses]
Settings = tuple[Form, float, int]
Reduced = Tensor | tuple[Tensor, Tensor]  # sum or losses; with factors, both


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    softcap: float = 0.0,
    vocab_size: int | None = None,
    reduction: str = "sum",
    factors: Tensor | None = None,
    chunk: int = 0,
    compiled: bool = False,
) -> Reduced:
    """Return the losses of logits softcap·tanh(z / softcap), z = hidden @ weightᵀ, of all targets that are not -1.

    hidden (…, D); weight (V, D) in any dtype, padding from row vocab_size on; targets (…). reduction: "sum", a scalar,
    or "none", (…); in fp32. factors (…): return the sum of losses times factors, and the losses, without a gradient.
    softcap: 0 for none. chunk: tokens at most, 0: as many as fit. compiled: compile the form; on a GPU it always is.
    """
    hidden = hidden.flatten(0, -2)
    labels = targets.flatten()
    factors = None if factors is None else factors.flatten()
    form = torch_form
    # Not compiled, it makes several copies of a chunk in fp32, which is large on a GPU. A graph around it compiles it.
    if (compiled or hidden.is_cuda) and not torch.compiler.is_compiling():
        form = compiled_form()
    settings = form, softcap, vocab_size or len(weight)
    recorded = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    fitting = CHUNK_BYTES[hidden.device.type] // (len(weight) * hidden.element_size())
    least = LEAST_TOKENS_WITH_GRADIENT if recorded else LEAST_TOKENS
    chunk = chunk_length(len(hidden), chunk or max(least, fitting), ALIGNED[hidden.device.type])
    if recorded and reduction == "sum":
        total, each = _SumOfLosses.apply(hidden, weight, labels, factors, chunk, settings)
        return total if factors is None else (total, each.view_as(targets))
    if recorded:  # autograd differentiates losses of single tokens, and computes the chunk's logits again for that
        settings = torch_form, *settings[1:]
        losses = partial(checkpoint, _losses, use_reentrant=False)
    else:
        weight = weight.to(hidden.dtype)  # once; recorded, gradients of chunks add up in the weight's dtype
        losses = _losses
    parts = zip(hidden.split(chunk), labels.split(chunk), strict=True)
    each = torch.cat([losses(rows, weight, part, settings) for rows, part in parts])
    if reduction == "none":
        return each.view_as(targets)
    return each.sum() if factors is None else (each @ factors, each.view_as(targets))


def chunk_length(tokens: int, most: int, unit: int) -> int:
    """Return the length of chunks: equal, for few shapes, and a multiple of `unit` if a quarter more chunks allow it.

    Each chunk reads the whole weight and its gradient, so many more would cost more than alignment brings.
    """
    chunks = max(1, -(-tokens // most))
    if unit > 1:
        multiples = (count for count in range(chunks, chunks * 5 // 4 + 1) if tokens % (count * unit) == 0)
        chunks = next(multiples, chunks)
    return max(1, -(-tokens // chunks))


def _losses(hidden: Tensor, head: Tensor, targets: Tensor, settings: Settings) -> Tensor:
    form, softcap, vocab_size = settings
    logits = hidden @ head.to(hidden.dtype).t()
    return form(logits, targets, softcap, vocab_size, 0.0)[0]


class _LossContext(FunctionCtx):
    """What the forward leaves for the backward."""

    saved_tensors: tuple[Tensor, ...]
    scale: float


class _SumOfLosses(torch.autograd.Function):
    """The sum of losses times factors (None: 1), and the losses, which have no gradient.

    The forward computes the gradient for a loss of 1, while a chunk's logits exist.
    """

    @staticmethod
    def forward(
        ctx: "_LossContext",
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        factors: Tensor | None,
        chunk: int,
        settings: Settings,
    ) -> tuple[Tensor, Tensor]:
        form, softcap, vocab_size = settings
        scale = GRADIENT_SCALE.get(hidden.dtype, 1.0)
        head = weight.to(hidden.dtype)
        total = torch.zeros((), device=hidden.device)  # sums are kept in fp32
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient: Tensor | None = None
        each = []  # losses of the chunks
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            rows = hidden[part]
            rows_gradient = hidden_gradient[part]
            logits = rows @ head.t()
            losses, gradient = form(logits, targets[part], softcap, vocab_size, scale)
            assert gradient is not None  # the scale is not 0
            each.append(losses)
            if factors is None:
                total += losses.sum()
            else:
                total += losses @ factors[part]
                gradient.mul_(factors[part, None])
            rows_gradient.copy_(gradient @ head)  # still scaled: backward divides
            # Sums over tokens, which could overflow: the other factor takes the scale away.
            product = gradient.t() @ (rows if scale == 1 else rows / scale)
            weight_gradient = product.float() if weight_gradient is None else weight_gradient.add_(product)
            del logits, gradient, product  # before the next chunk's exist
        assert weight_gradient is not None  # there is at least one token
        ctx.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype))
        ctx.scale = scale
        losses = torch.cat(each)
        ctx.mark_non_differentiable(losses)
        return total, losses

    @staticmethod
    @once_differentiable
    def backward(ctx: "_LossContext", outer: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient * (outer / ctx.scale), weight_gradient * outer, None, None, None, None


# ---- forms ----


def torch_form(logits: Tensor, targets: Tensor, softcap: float, vocab_size: int, gradient_scale: float) -> Losses:
    """Compute the softmax in fp32, in few passes over memory: a CPU spends its time on them."""
    z = logits.float()
    bent = None
    if softcap:
        bent = 1 - 2 / (1 + torch.exp(z * (2 / softcap)))  # tanh, which takes three times as long
        z = bent * softcap
    if vocab_size < z.shape[1]:
        z[:, vocab_size:] = -torch.inf
    kept = (targets != IGNORED).unsqueeze(1)
    index = targets.clamp(min=0).unsqueeze(1)
    # A softcap bounds the logits: no shift is needed against overflow.
    peak = 0.0 if 0 < softcap <= SAFE_EXPONENT else z.detach().amax(1, keepdim=True)
    exponentials = torch.exp(z - peak)
    total = exponentials.sum(1, keepdim=True)
    losses = torch.where(kept, peak + total.log() - z.gather(1, index), 0.0).squeeze(1)
    if not gradient_scale:
        return losses, None
    hit = torch.arange(z.shape[1], device=z.device) == index
    gradient = exponentials * (kept / total) - (hit & kept).to(z.dtype)
    if bent is not None:
        gradient = gradient * (1 - bent * bent)  # the slope of tanh
    if gradient_scale != 1:
        gradient = gradient * gradient_scale
    return losses, gradient.to(logits.dtype)


@cache
def compiled_form() -> Form:
    return torch.compile(torch_form, dynamic=True)
