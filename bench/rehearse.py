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
from collections.abc import Iterable
from dataclasses import asdict
from itertools import product

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from bench.common import parser_of, required
from bench.rehearsal import rehearse, resident
from nanochat import fp8, schedules
from nanochat.cost import FIT_SHARE
from nanochat.dataloader import BatchSource, Record
from nanochat.gpt import GPTConfig
from nanochat.models import model_class
from nanochat.objectives import Objective, next_token
from nanochat.optim import Optimizer
from nanochat.param_groups import build_groups, group_rates
from nanochat.runtime import DTYPES, Runtime, avoid_broken_amx
from nanochat.scaling import plan_run
from nanochat.settings import TrainingSettings
from nanochat.train import LoopSettings, TrainingLoop, new_loop
from scripts.base_train import Config

LIMIT = 80e9  # bytes of an H100 or A100
TOLERANCE = 0.1  # of a measured peak
KINDS = ("weights", "gradients", "optimizer", "summed gradients", "activations", "logits", "backward")  # of memory
COPIES = ("weights in the compute dtype", "fp8 copies")
CHECKED = {  # name → (precision, compiled)
    "bf16": ("bf16", False),
    "fp32": ("fp32", False),
    "bf16, compiled": ("bf16", True),
}
SMALL = {"vocab_size": 4096, "depth": 4, "width": 256, "heads": 4, "kv_heads": 4, "max_seq_len": 512, "bos_id": 0}
SMALL_ROWS = 8


# ---- a step, fake or real ----


class Rows(BatchSource):
    """The same rows in every step."""

    progress = 0.0

    def __init__(self, rows: int, length: int) -> None:
        self.ids = torch.zeros(rows, length, dtype=torch.int64)

    def __next__(self):
        return self.ids, self.ids

    def state_dict(self) -> Record:
        return {}

    def load_state_dict(self, state: Record) -> None:
        """There is no position."""


def new_step(
    shape: GPTConfig,
    rows: int,
    runtime: Runtime,
    *,
    checkpointing: bool = False,
    in_fp8: bool = False,
    compiled: bool = True,
    objective: Objective = next_token,
):
    """Return a loop whose `launch` takes one training step, with the parts of a run; the weights have no values.

    Differences: fp8 is emulated, and Muon is compiled on every device.
    """
    config = TrainingSettings()
    model = model_class(shape)(shape, runtime.attention, checkpointing)  # not on the meta device
    model.compute_dtype = runtime.dtype
    if in_fp8:
        fp8.convert(model, emulated=True)
    if compiled:
        model.compile_parts()
    groups = build_groups(model, group_rates(config, shape.width, 1.0, config.weight_decay))
    polar_dtype = torch.bfloat16 if runtime.dtype == torch.bfloat16 else torch.float32
    optimizer = Optimizer(groups, runtime.rank, runtime.world_size, polar_dtype, compiled)
    settings = LoopSettings(device_batch=rows, steps=100, schedules=schedules.pretraining(config))
    # A step alone logs nothing.
    return new_loop(model, optimizer, Rows(rows, shape.max_seq_len), objective, runtime, None, settings)


def rehearsed(shape: dict, rows: int, ranks: int = 1, dtype: str = "bf16", on: str = "cuda", **options: bool):
    """Return the figures of two rehearsed steps, JSON-able: memory, bytes sent and waits are the second one's."""
    found = rehearse(
        lambda runtime: new_step(GPTConfig(**shape), rows, runtime, **options), ranks, DTYPES[dtype], on, steps=2
    )
    return asdict(found) | {"peak": found.peak}


# ---- the real step ----


def measured(shape: dict, rows: int, dtype: str, compiled: bool):
    """Return the peak of real memory in a step on the CPU, by the allocator's own records."""
    runtime = Runtime(torch.device("cpu"), DTYPES[dtype], "sdpa")
    loop = new_step(GPTConfig(**shape), rows, runtime, compiled=compiled)
    loop.model.init_weights(0)
    loop.model.compiled = False  # the loss, as in a rehearsal on a CPU
    return {"peak": real_peak(loop)}


def real_peak(loop: TrainingLoop):
    """Return the bytes at the peak of a loop's third step: what stays between steps, and what the step takes."""
    loop.launch([])
    loop.launch([])  # compiled, and no buffer is new
    held = _bytes(tensor for tensors in resident(loop).values() for tensor in tensors)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        loop.launch([])
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    taken = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        taken += event.nbytes()  # below 0: freed
        highest = max(highest, taken)
    return held + highest


def _bytes(tensors: Iterable[Tensor]):
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


# ---- the parent ----


def check():
    """Print real and rehearsed peaks; return True if they agree."""
    agree = True
    print("| a step on the CPU | rehearsed | measured | difference |\n|---|---|---|---|")
    for name, (dtype, compiled) in CHECKED.items():
        expected = required(rehearsed_small, dtype, compiled)["peak"]
        real = required(measured, SMALL, SMALL_ROWS, dtype, compiled)["peak"]
        agree = agree and abs(expected - real) <= TOLERANCE * real
        print(f"| {name} | {expected / 1e6:,.1f} MB | {real / 1e6:,.1f} MB | {expected / real - 1:+.1%} |", flush=True)
    return agree


def rehearsed_small(dtype: str, compiled: bool):
    return rehearsed(SMALL, SMALL_ROWS, 1, dtype, "cpu", compiled=compiled)


def rehearsed_run(depth: int, vocab: int, precision: str, rows: int, ranks: int, checkpointing: bool):
    """Return the figures of a run of scripts.base_train with the default shape."""
    shape = asdict(plan_run(Config(depth=depth), vocab).model)
    return rehearsed(shape, rows, ranks, in_fp8=precision == "fp8", checkpointing=checkpointing)


def table(options: argparse.Namespace) -> None:
    """Print a row for each case."""
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
    avoid_broken_amx()  # also in the child processes
    if options.check:
        sys.exit(0 if check() else 1)
    table(options)


if __name__ == "__main__":
    main()
