"""Memory of a training step on GPUs that are not there: rehearsed on fake tensors (bench/rehearsal.py).

    python -m bench.rehearse --depths 20,22,24,26 --rows 16,32 --vocab 32768,49152 --ranks 8
    python -m bench.rehearse --check

The table has a row for each depth, vocabulary, precision and number of rows at once: a rank's memory in GB at the peak
by kind, whether it fits into 80 GB, the GB that a rank sends, the graphs compiled in the first and second step, breaks
of a graph, and the times that the host reads a value from the device in the second step.
`--check` takes small steps on this CPU, plain and compiled, and compares their peaks with rehearsed ones: the exit code
is 1 if one is off by more than 10 %. Every case is a process of its own.
"""

import argparse
import sys
from itertools import product

from bench.common import parser_of, required
from bench.findings import Findings

LIMIT = 80e9  # bytes of an H100 or A100
TOLERANCE = 0.1  # of a measured peak
KINDS = ("weights", "gradients", "optimizer", "summed gradients", "activations", "logits", "backward")  # of memory
COPIES = ("weights in the compute dtype", "fp8 copies")
CHECKED = {  # name → (precision, compiled)
    "bf16": ("bf16", False),
    "fp32": ("fp32", False),
    "bf16, compiled": ("bf16", True),
}


def check(findings: Findings):
    """Print real and rehearsed peaks; return True if they agree."""
    from bench.rehearsed_steps import SMALL, SMALL_ROWS, measured, rehearsed_small

    agree = True
    print("| a step on the CPU | rehearsed | measured | difference |\n|---|---|---|---|")
    for name, (dtype, compiled) in CHECKED.items():
        expected = required(rehearsed_small, dtype, compiled)["peak"]
        real = required(measured, SMALL, SMALL_ROWS, dtype, compiled)["peak"]
        agree = agree and abs(expected - real) <= TOLERANCE * real
        print(f"| {name} | {expected / 1e6:,.1f} MB | {real / 1e6:,.1f} MB | {expected / real - 1:+.1%} |", flush=True)
        findings.add(step=name, rehearsed=expected, measured=real, difference=expected / real - 1)
    return agree


def table(findings: Findings, options: argparse.Namespace) -> None:
    """Print a row for each case."""
    from bench.rehearsed_steps import rehearsed_run
    from nanochat.cost import FIT_SHARE

    titles = ["depth", "vocabulary", "precision", "rows", *KINDS, "copies", "other", "peak", "at", "fits 80 GB"]
    titles += ["sent", "graphs", "breaks", "waits"]
    print("|", " | ".join(titles), "|\n|" + "---|" * len(titles))
    cases = product(numbers(options.depths), numbers(options.vocab), options.dtypes.split(","), numbers(options.rows))
    for depth, vocab, precision, rows in cases:
        found = required(rehearsed_run, depth, vocab, precision, rows, options.ranks, options.checkpointing)
        memory = found["memory"]
        peak = found["peak"]
        copies = sum(memory.get(kind, 0) for kind in COPIES)
        sizes = [*(memory.get(kind, 0) for kind in KINDS), copies]
        sizes += [peak - sum(sizes), peak]
        fits = "yes" if peak <= FIT_SHARE * LIMIT else "barely" if peak <= LIMIT else "no"
        sent = (options.ranks - 1) / options.ranks * sum(found["sent"].values())  # as a ring sends it
        cells = [depth, f"{vocab:,}", precision, rows, *(f"{size / 1e9:.2f}" for size in sizes), found["moment"], fits]
        cells += [f"{sent / 1e9:.2f}", " + ".join(map(str, found["graphs"])), len(found["breaks"]), len(found["waits"])]
        print("|", " | ".join(map(str, cells)), "|", flush=True)
        exact = [depth, vocab, precision, rows, *(size / 1e9 for size in sizes), *cells[4 + len(sizes) :]]
        exact[titles.index("sent")] = sent / 1e9
        findings.add(**dict(zip(titles, exact, strict=True)))


def numbers(text: str):
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = parser_of("rehearse", __doc__, ranks=8)
    parser.add_argument("--depths", default="20,22,24,26")
    parser.add_argument("--rows", default="16,32", help="rows of 2,048 tokens at once on a rank")
    parser.add_argument("--vocab", default="32768,49152")
    parser.add_argument("--dtypes", default="bf16,fp8")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--check", action="store_true", help="compare with real steps on this CPU")
    options = parser.parse_args()
    findings = Findings("rehearse", options.json)
    from nanochat.runtime import avoid_broken_amx  # imports torch, and --help does not wait for that

    avoid_broken_amx()  # also in the child processes
    if options.check:
        agree = check(findings)
        findings.write()
        sys.exit(0 if agree else 1)
    table(findings, options)
    findings.write()


if __name__ == "__main__":
    main()
