"""Attention alone, forward and backward, by kernel and window: milliseconds and TFLOP/s over the keys in sight.

    python -m bench.attention [--rows 16] [--length 2048] [--heads 10] [--head-dim 128] [--windows 0,513] [--only flex]

Each kernel is compiled as in a block of the model. A kernel that cannot run here is named with the reason.
"""

import time

from bench.common import parser_of
from bench.findings import Findings

KERNELS = ("flash3", "flash4", "flex", "sdpa", "chunks")


def count_flops(rows: int, length: int, heads: int, head_dim: int, window: int) -> float:
    """Return the FLOPs of a forward and backward: seven products over the keys in sight, two of them forward."""
    pairs = sum(min(query + 1, window or length) for query in range(length))  # of a query and a key, in a row
    return 7 * 2.0 * rows * heads * head_dim * pairs


def measure(path: str, rows: int, length: int, heads: int, head_dim: int, window: int, repeats: int) -> float:
    """Return the median seconds of a forward and backward."""
    import torch

    from nanochat.attention import attend, make_mask

    on_gpu = torch.cuda.is_available()
    device, dtype = (torch.device("cuda"), torch.bfloat16) if on_gpu else (torch.device("cpu"), torch.float32)
    mask = make_mask(path, length, length, device, window=window)
    shape = (rows, length, heads, head_dim)
    gradient = torch.randn(shape, device=device, dtype=dtype)
    inputs = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
    run = torch.compile(lambda q, k, v: attend(q, k, v, mask, head_dim**-0.5), dynamic=False)

    def step() -> float:
        start = time.perf_counter()
        torch.autograd.grad(run(*inputs), inputs, gradient)
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    for _ in range(3):  # compiles
        step()
    return sorted(step() for _ in range(repeats))[repeats // 2]


def main() -> None:
    parser = parser_of("attention", __doc__, rows=16, length=2048, heads=10, repeats=20, **{"head-dim": 128})
    parser.add_argument("--windows", default="0,513", help="keys that a query sees, itself included; 0: all before it")
    parser.add_argument("--only", nargs="*", default=KERNELS, choices=KERNELS, help="kernels to measure")
    options = parser.parse_args()
    findings = Findings("attention", options.json)
    shape = (options.rows, options.length, options.heads, options.head_dim)
    print("{} rows, {} tokens, {} heads of {}\n".format(*shape))
    print("| kernel | window | forward and backward | TFLOP/s |\n|---|---|---|---|")
    for window in map(int, options.windows.split(",")):
        for path in options.only:
            try:
                seconds = measure(path, *shape, window, options.repeats)
            except Exception as error:  # a missing package, a kernel without this shape: the libraries share no class
                reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                print(f"| {path} | {window} | {reason} | |")
                findings.add(kernel=path, window=window, failure=reason)
                continue
            rate = count_flops(*shape, window) / seconds / 1e12
            print(f"| {path} | {window} | {1e3 * seconds:.2f} ms | {rate:.3g} |", flush=True)
            findings.add(kernel=path, window=window, seconds=seconds, tflops=rate)
    findings.finish()


if __name__ == "__main__":
    main()
