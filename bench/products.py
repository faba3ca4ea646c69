"""Candidates for the products of a training step beside what runs now; none is in the model before a GPU has shown it.

    python -m bench.products [--rows 16] [--length 2048] [--width 1408] [--vocab 49152] [--only head-fp8]

Each row has the milliseconds of both ways in one layer, or in the loss of one micro-batch, and how far the candidate's
result is from that in fp32, relative to its norm. What runs now is compiled as in a run.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.common import parser_of
from bench.findings import Findings

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Result = tuple["Tensor", ...]
Way = Callable[[], Result]


@dataclass(frozen=True)
class Sizes:
    """Of a micro-batch and a model."""

    tokens: int
    width: int
    vocab: int


@dataclass(frozen=True)
class Ways:
    """Functions without arguments that compute the same tensors."""

    now: Way
    candidate: Way
    exact: Way  # in fp32, as far as memory allows
    read: Callable[[Result], Result] = lambda found: found  # of the tensors of a way, to compare them


def _given(device: "torch.device", *shape: int, scale: float = 1.0) -> "Tensor":
    import torch

    return (torch.randn(*shape, device=device) * scale).to(torch.bfloat16)


def head_in_fp8(sizes: Sizes, device: "torch.device") -> Ways:
    """A chunk of the loss: logits, and both products of their gradient. Its weight is quantized once a step.

    Neither way adds the weight's gradient to that of the chunks before.
    """
    import torch

    from nanochat.cross_entropy import ALIGNED, CHUNK_BYTES, chunk_length
    from nanochat.fp8 import BACKWARD, FORWARD, quantize

    most = max(512, CHUNK_BYTES[device.type] // (2 * sizes.vocab))
    tokens = chunk_length(sizes.tokens, most, ALIGNED[device.type]) // 16 * 16
    rows = _given(device, tokens, sizes.width)
    head = _given(device, sizes.vocab, sizes.width, scale=sizes.width**-0.5)
    gradient = _given(device, tokens, sizes.vocab, scale=1e-3)  # the softmax's, which both ways compute alike
    by_rows, head_scale = quantize(head, FORWARD)
    by_columns = by_rows.t().contiguous()
    quantized = torch.compile(quantize, dynamic=False)

    def now() -> Result:
        return rows @ head.t(), gradient @ head, gradient.t() @ rows

    def candidate() -> Result:
        rows8, scale = quantized(rows, FORWARD)
        logits = torch._scaled_mm(rows8, by_rows.t(), scale, head_scale, out_dtype=rows.dtype, use_fast_accum=True)
        gradient8, outer = quantized(gradient, BACKWARD)
        rows_gradient = torch._scaled_mm(gradient8, by_columns.t(), outer, head_scale, out_dtype=rows.dtype)
        by_token = gradient8.t().contiguous(), rows8.t().contiguous().t()
        return logits, rows_gradient, torch._scaled_mm(*by_token, outer, scale, out_dtype=torch.float32)

    def exact() -> Result:
        return (
            rows.float() @ head.float().t(),
            gradient.float() @ head.float(),
            gradient.float().t() @ rows.float(),
        )

    return Ways(now, candidate, exact)


def weight_gradient_in_product(sizes: Sizes, device: "torch.device") -> Ways:
    """An MLP's weight gradient in bf16, added up in fp32 by the product itself: nothing else is written and read."""
    import torch

    rows = _given(device, sizes.tokens, sizes.width)
    outer = _given(device, sizes.tokens, 4 * sizes.width, scale=1e-3)
    total = torch.zeros(4 * sizes.width, sizes.width, device=device)

    product = torch.compile(lambda: (outer.t() @ rows).float(), dynamic=False)  # as a compiled backward ends

    def now() -> Result:
        return (total + product(),)

    def candidate() -> Result:
        return (torch.addmm(total, outer.t(), rows, out_dtype=torch.float32),)

    return Ways(now, candidate, lambda: (outer.float().t() @ rows.float(),))


def largest_value_with_norm(sizes: Sizes, device: "torch.device") -> Ways:
    """The input of a block's products: normed and quantized. Now the largest value is found first, then the tensor is
    read again; with the scale of the step before (delayed) one kernel norms, quantizes, and finds the next scale.
    """
    import torch

    from nanochat.fp8 import FORWARD, quantize
    from nanochat.gpt import norm

    x = _given(device, sizes.tokens, sizes.width)
    limit = torch.finfo(FORWARD).max
    earlier = norm(x.float()).abs().amax() * 1.1 / limit  # with some room, as it is another batch's

    @torch.compile(dynamic=False)
    def in_two_passes() -> Result:
        values, scale = quantize(norm(x), FORWARD)
        return values, scale

    @torch.compile(dynamic=False)
    def delayed() -> Result:
        normed = norm(x).float()
        return (normed / earlier).clamp(-limit, limit).to(FORWARD), earlier, normed.abs().amax() / limit

    def read(found: Result) -> Result:
        values, scale, *_ = found
        return (values.float() * scale,)

    return Ways(in_two_passes, delayed, lambda: (norm(x.float()),), read)


def up_with_activation(sizes: Sizes, device: "torch.device") -> Ways:
    """The MLP's first product with its relu² in bf16: now the library's product and a kernel after it; the candidate
    lets the compiler choose a Triton product whose last lines are the activation (mode max-autotune).
    """
    import torch
    import torch.nn.functional as F

    x = _given(device, sizes.tokens, sizes.width)
    weight = _given(device, 4 * sizes.width, sizes.width, scale=sizes.width**-0.5)

    def hidden(x: "Tensor") -> Result:
        return (F.relu(F.linear(x, weight)).square(),)

    now = torch.compile(hidden, dynamic=False)
    fused = torch.compile(hidden, dynamic=False, mode="max-autotune-no-cudagraphs")
    return Ways(lambda: now(x), lambda: fused(x), lambda: (F.relu(F.linear(x.float(), weight.float())).square(),))


CASES: dict[str, Callable[[Sizes, "torch.device"], Ways]] = {
    "head-fp8": head_in_fp8,
    "gradient-sum": weight_gradient_in_product,
    "delayed-scale": largest_value_with_norm,
    "relu2": up_with_activation,
}


def median_ms(way: Way, on_gpu: bool, repeats: int) -> float:
    """Return the median milliseconds of a way, which has run before."""
    import torch

    def once() -> float:
        start = time.perf_counter()
        way()
        if on_gpu:
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)

    return sorted(once() for _ in range(repeats))[repeats // 2]


def error_of(found: Result, exact: Result) -> float:
    """Return the largest relative error among the tensors of a way."""
    return max(float((ours.float() - true).norm() / true.norm()) for ours, true in zip(found, exact, strict=True))


def main() -> None:
    parser = parser_of("products", __doc__, rows=16, length=2048, width=1408, vocab=49152, repeats=20)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES), help="candidates to measure")
    options = parser.parse_args()
    import torch

    torch.manual_seed(0)
    findings = Findings("products", options.json)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    sizes = Sizes(options.rows * options.length, options.width, options.vocab)
    print(f"{sizes.tokens:,} tokens, width {sizes.width:,}, {sizes.vocab:,} words, {device.type}\n")
    print("| candidate | now | candidate | ratio | error now | error of the candidate |\n|---|---|---|---|---|---|")
    for name in options.only:
        try:
            ways = CASES[name](sizes, device)
            exact = ways.exact()
            errors = [error_of(ways.read(way()), exact) for way in (ways.now, ways.candidate)]
            del exact
            now, candidate = (median_ms(way, on_gpu, options.repeats) for way in (ways.now, ways.candidate))
        except RuntimeError as error:  # a product that this device or PyTorch lacks, or memory
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0].partition('. ')[0]}"
            print(f"| {name} | {reason} | | | | |", flush=True)
            findings.add(candidate=name, failure=reason)
            continue
        if any(map(math.isnan, errors)):
            print(f"| {name} | values that are no numbers: {errors[0]}, {errors[1]} | | | | |", flush=True)
            findings.add(candidate=name, failure="values that are no numbers")
            continue
        cells = [f"{now:.3f} ms", f"{candidate:.3f} ms", f"{candidate / now:.2f}", *(f"{each:.1e}" for each in errors)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        findings.add(candidate=name, now=now / 1e3, seconds=candidate / 1e3, error_now=errors[0], error=errors[1])
    findings.finish()


if __name__ == "__main__":
    main()
