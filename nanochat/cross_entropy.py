"""Cross-entropy of a linear head, a chunk of tokens at a time: the logits of a whole batch never exist at once.

The logits of a chunk are turned into its losses and, where the loss is to be differentiated, into their own gradient at
once, so that the backward pass only multiplies what is there by one number.
"""

import functools
import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

IGNORED = -1  # the target of a token that is not learned
SAFE_EXPONENT = 60.0  # of which the exponential, summed over any vocabulary or row, is far from fp32's limit

# Logits per chunk, by device type. A CPU wants them in its caches; for a GPU a chunk must still be a large matmul.
CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 512 << 20, "mps": 64 << 20}
# However large the vocabulary: each chunk reads the whole weight, and if it is differentiated adds to all its gradient.
LEAST_TOKENS = {False: 64, True: 512}


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    softcap: float = 0.0,
    vocab_size: int | None = None,
    reduction: str = "sum",
    chunk: int = 0,
    form: str | None = None,
) -> Tensor:
    """Losses of softcap·tanh(z / softcap) for z = hidden @ weightᵀ, where targets are not -1; a softcap of 0 is none.

    hidden (N, D); weight (V, D) in any dtype, of which rows from vocab_size on are padding; targets (N,). "sum": a
    scalar, "none": (N,), both in fp32 (fp64 for fp64). chunk: tokens at a time, 0 = chosen; form: a key of FORMS.
    """
    assert reduction in ("sum", "none"), reduction
    assert hidden.shape == (len(targets), weight.shape[1]), (hidden.shape, weight.shape, targets.shape)
    chunk_losses = FORMS[form or choose(hidden.device)[0]]
    vocab_size = vocab_size or len(weight)
    recorded = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    fit = CHUNK_BYTES[hidden.device.type] // (len(weight) * hidden.element_size())
    chunk = chunk or max(LEAST_TOKENS[recorded], fit)
    chunks = max(1, -(-len(targets) // chunk))
    chunk = -(-len(targets) // chunks)  # as long as each other, so that few shapes occur
    if recorded and reduction == "sum":
        return _SumOfLosses.apply(hidden, weight, targets, chunk, chunk_losses, softcap, vocab_size)
    head = weight if recorded else weight.to(hidden.dtype)  # cast once, unless chunks' gradients add up in it

    def losses(hidden: Tensor, targets: Tensor) -> Tensor:
        logits = hidden @ head.to(hidden.dtype).t()
        return (torch_form if recorded else chunk_losses)(logits, targets, softcap, vocab_size, False)[0]

    if recorded:  # per-token losses are differentiated by autograd, which computes a chunk's logits once more
        losses = functools.partial(checkpoint, losses, use_reentrant=False)
    each = torch.cat(list(map(losses, hidden.split(chunk), targets.split(chunk))))
    return each if reduction == "none" else each.sum()


class _SumOfLosses(torch.autograd.Function):
    """The gradient for a loss of 1 is made in the forward pass, while a chunk's logits are there."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, chunk, chunk_losses, softcap, vocab_size):
        head = weight.to(hidden.dtype)
        total = torch.zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
        chunks = (tensor.split(chunk) for tensor in (hidden, targets, hidden_gradient))
        for rows, labels, rows_gradient in zip(*chunks, strict=True):
            losses, gradient = chunk_losses(rows @ head.t(), labels, softcap, vocab_size, True)
            total += losses.sum()
            rows_gradient.copy_(gradient @ head)
            weight_gradient += gradient.t() @ rows
        ctx.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype))
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, outer):
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient * outer, weight_gradient * outer, None, None, None, None, None


# ---- forms: (n, V) logits of a chunk → losses (n,), and the logits' gradient in their dtype, None unless asked for.
# ---- The logits are consumed: a form may write over them.


def torch_form(logits: Tensor, targets: Tensor, softcap: float, vocab_size: int, with_gradient: bool):
    """The softmax is computed in fp32 at least, in as few passes as can be: a CPU spends its time on them."""
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if softcap:
        bent = 1 - 2 / (1 + torch.exp(z * (2 / softcap)))  # tanh, which takes three times as long
        z = bent * softcap
    if vocab_size < z.shape[1]:
        z[:, vocab_size:] = -torch.inf
    kept, index = (targets != IGNORED).unsqueeze(1), targets.clamp(min=0).unsqueeze(1)
    # What a softcap bounds needs no shift to be kept from overflowing.
    peak = 0.0 if 0 < softcap <= SAFE_EXPONENT else z.detach().amax(1, keepdim=True)
    exponentials = torch.exp(z - peak)
    total = exponentials.sum(1, keepdim=True)
    losses = torch.where(kept, peak + total.log() - z.gather(1, index), 0.0).squeeze(1)
    if not with_gradient:
        return losses, None
    hit = torch.arange(z.shape[1], device=z.device) == index
    gradient = exponentials * (kept / total) - (hit & kept).to(z.dtype)
    if softcap:
        gradient = gradient * (1 - bent * bent)
    return losses, gradient.to(logits.dtype)


@functools.cache
def _compiled() -> Callable:
    return torch.compile(torch_form, dynamic=True)


def compiled_form(*chunk):
    return (torch_form if torch.compiler.is_compiling() else _compiled())(*chunk)


def triton_form(*chunk):
    from nanochat import cross_entropy_triton  # it imports triton, which not every machine has

    return cross_entropy_triton.triton_form(*chunk, ignored=IGNORED)


FORMS = {"torch": torch_form, "compiled": compiled_form, "triton": triton_form}


def choose(device: torch.device, compiling: bool = False) -> tuple[str, str]:
    """(key of FORMS, reason) of the fastest form for a device; compiling: time may be spent on the compiler."""
    if device.type == "cuda" and importlib.util.find_spec("triton"):
        return "triton", "one kernel turns the logits into their gradient in place"
    why_not = "triton is not installed" if device.type == "cuda" else f"no kernel for {device.type}"
    return ("compiled" if compiling else "torch"), why_not
