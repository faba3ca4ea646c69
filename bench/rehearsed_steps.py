"""The training steps of bench.rehearse, on fake tensors or real ones, each called in a process of its own."""

from collections.abc import Iterable
from dataclasses import asdict

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from bench.rehearsal import rehearse, resident
from nanochat import fp8, schedules
from nanochat.dataloader import BatchSource, Record
from nanochat.gpt import GPTConfig
from nanochat.models import model_class
from nanochat.objectives import Objective, next_token
from nanochat.optim import Optimizer
from nanochat.param_groups import build_groups, group_rates
from nanochat.runtime import DTYPES, Runtime
from nanochat.scaling import plan_run
from nanochat.settings import TrainingSettings
from nanochat.train import LoopSettings, TrainingLoop, new_loop
from scripts.base_train import Config

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

    Differences: fp8 is emulated, and Muon and the model's ends are compiled on every device.
    """
    config = TrainingSettings()
    model = model_class(shape)(shape, runtime.attention, checkpointing)  # not on the meta device
    model.compute_dtype = runtime.dtype
    if in_fp8:
        fp8.convert(model, emulated=True)
    if compiled:
        model.compile_parts()
        model.compile_ends()
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


# ---- what bench.rehearse asks for ----


def rehearsed_small(dtype: str, compiled: bool):
    return rehearsed(SMALL, SMALL_ROWS, 1, dtype, "cpu", compiled=compiled)


def rehearsed_run(depth: int, vocab: int, precision: str, rows: int, ranks: int, checkpointing: bool):
    """Return the figures of a run of scripts.base_train with the default shape."""
    shape = asdict(plan_run(Config(depth=depth), vocab).model)
    return rehearsed(shape, rows, ranks, in_fp8=precision == "fp8", checkpointing=checkpointing)
