"""Attention alone, forward and backward, by kernel and window: milliseconds and TFLOP/s over the keys in sight.

    python -m bench.attention [--rows 16] [--length 2048] [--heads 10] [--head-dim 128] [--windows 0,513] [--only flex]

Each kernel is compiled as in a block of the model; with `--forward` none is and no gradient is computed, as in
evaluations. A kernel that cannot run here is named with the reason.
"""

import time
from dataclasses import dataclass
from typing import Any

from bench.common import parser_of
from bench.findings import Findings

KERNELS = ("flash3", "flash4", "flex", "sdpa", "chunks")


@dataclass(frozen=True)
class Case:
    """What is measured: the shape of queries and keys, and how they are computed."""

    rows: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    forward: bool  # alone, and not compiled

    def flops(self, window: int) -> float:
        """Return the FLOPs: seven products over the keys in sight, two of them forward."""
        pairs = sum(min(query + 1, window or self.length) for query in range(self.length))  # of a query and a key
        products = 2 if self.forward else 7
        return products * 2.0 * self.rows * self.heads * self.head_dim * pairs

    def measure(self, path: str, window: int, repeats: int) -> float:
        """Return the median seconds."""
        import torch

        from nanochat.attention import attend, make_mask
        from nanochat.runtime import DTYPES

        on_gpu = torch.cuda.is_available()
        device = torch.device("cuda" if on_gpu else "cpu")
        dtype = DTYPES[self.dtype or ("bf16" if on_gpu else "fp32")]
        mask = make_mask(path, self.length, self.length, device, window=window)
        scale = self.head_dim**-0.5

        def random(heads: int) -> torch.Tensor:
            return torch.randn(self.rows, self.length, heads, self.head_dim, device=device, dtype=dtype)

        inputs = [random(heads).requires_grad_() for heads in (self.heads, self.kv_heads, self.kv_heads)]
        gradient = random(self.heads)

        def as_written(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return attend(q, k, v, mask, scale)

        run = as_written if self.forward else torch.compile(as_written, dynamic=False)

        def step() -> float:
            start = time.perf_counter()
            with torch.set_grad_enabled(not self.forward):
                found = run(*inputs)
            if not self.forward:
                torch.autograd.grad(found, inputs, gradient)
            if on_gpu:
                torch.cuda.synchronize()
            return time.perf_counter() - start

        for _ in range(3):  # compiles
            step()
        return sorted(step() for _ in range(repeats))[repeats // 2]


def main() -> None:
    parser = parser_of("attention", __doc__, rows=16, length=2048, heads=10, repeats=20, **{"head-dim": 128})
    parser.add_argument("--windows", default="0,513", help="keys that a query sees, itself included; 0: all before it")
    parser.add_argument("--kv-heads", type=int, default=0, help="0: as many as query heads")
    parser.add_argument("--dtype", default="", choices=["", "bf16", "fp16", "fp32"], help="default: bf16 on a GPU")
    parser.add_argument("--forward", action="store_true", help="forward alone, not compiled")
    parser.add_argument("--only", nargs="*", default=KERNELS, choices=KERNELS, help="kernels to measure")
    options = parser.parse_args()
    findings = Findings("attention", options.json)
    names = ("rows", "length", "heads", "kv_heads", "head_dim", "dtype", "forward")
    shape: dict[str, Any] = {name: getattr(options, name) for name in names}
    case = Case(**shape | {"kv_heads": options.kv_heads or options.heads})
    print(f"{case.rows} rows, {case.length} tokens, {case.heads} heads of {case.head_dim}, {case.kv_heads} of keys\n")
    measured = "forward" if case.forward else "forward and backward"
    print(f"| kernel | window | {measured} | TFLOP/s |\n|---|---|---|---|")
    for window in map(int, options.windows.split(",")):
        for path in options.only:
            try:
                seconds = case.measure(path, window, options.repeats)
            except Exception as error:  # a missing package, a kernel without this shape: the libraries share no class
                reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                print(f"| {path} | {window} | {reason} | |")
                findings.add(kernel=path, window=window, failure=reason)
                continue
            rate = case.flops(window) / seconds / 1e12
            print(f"| {path} | {window} | {1e3 * seconds:.2f} ms | {rate:.3g} |", flush=True)
            findings.add(kernel=path, window=window, seconds=seconds, tflops=rate)
    findings.finish()


if __name__ == "__main__":
    main()
