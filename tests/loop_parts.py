"""A small model, made-up rows, faults to plant, and training with them: what the tests of the loop run on any ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nanochat import schedules
from nanochat.checkpoint import build_model
from nanochat.dataloader import BatchSource
from nanochat.gpt import GPT, GPTConfig
from nanochat.log import MetricLog, read_metrics
from nanochat.objectives import next_token
from nanochat.optim import Group, Optimizer
from nanochat.param_groups import build_groups
from nanochat.runtime import Runtime, stop_requests
from nanochat.settings import OptimizerSettings, TrainingSettings
from nanochat.train import Evaluation, State, TrainingLoop

CPU = torch.device("cpu")
ALONE = Runtime(CPU, torch.float32, "chunks")
AHEAD = replace(ALONE, device=torch.device("cuda"))  # the loop runs ahead of what it computes, as on a GPU; on the CPU
ROWS, LENGTH, VOCABULARY = 8, 32, 128
EXACT = 1e-5  # two models are equal
WARM = schedules.pretraining(OptimizerSettings())  # as base training begins


class Planted(torch.autograd.Function):
    """What comes in; `fault` makes of its gradient another one, or raises."""

    @staticmethod
    def forward(context: Any, x: Tensor, fault: Callable[[Tensor], Tensor]) -> Tensor:
        context.fault = fault
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return context.fault(gradient), None


def plant(model: GPT, fault: Callable[[Tensor], Tensor]) -> GPT:
    """The model, with a fault in the midst of its backward: some gradients have come by then, some have not."""
    model.blocks[1].register_forward_pre_hook(lambda _, given: (Planted.apply(given[0], fault), *given[1:]))
    return model


class Rows(BatchSource):
    """The same stream of made-up rows on any number of ranks, of which row i has `targets(i)` targets."""

    def __init__(
        self,
        runtime: Runtime = ALONE,
        targets: Callable[[int], int] = lambda row: LENGTH,
        batches: int = 0,
        idle: Sequence[int] = (),
    ):
        self.rank, self.ranks, self.targets, self.batches = runtime.rank, runtime.world_size, targets, batches
        self.taken, self.idle_steps = 0, idle

    @property
    def idle(self) -> bool:
        return self.taken in self.idle_steps

    @property
    def progress(self) -> float:
        return self.taken / self.batches

    def __next__(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.taken)
        ids = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
        targets = ids[:, 1:].clone()
        for row in range(ROWS):
            targets[row, self.targets(row) :] = -1
        self.taken += 1
        return ids[self.rank :: self.ranks, :-1], targets[self.rank :: self.ranks]


def uneven(row: int) -> int:
    return 5 * row % LENGTH


def every_other(row: int) -> int:
    return LENGTH * (row % 2)


def skipping(model: GPT, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, dict]:
    """An objective that uses only the head where no target is: the other gradients do not arrive."""
    if (batch[1] >= 0).any():
        return next_token(model, batch)
    return 0 * model.head.weight.sum(), torch.tensor(0), {}


@dataclass
class Trained:
    state: State
    parameters: dict[str, Tensor]
    records: list[dict[str, Any]]  # of metrics.jsonl
    source: Any


def small_model(runtime: Runtime = ALONE, **fields: Any) -> GPT:
    shape = {"depth": 2, "width": 64, "heads": 2, "max_seq_len": LENGTH, "bos_id": 0} | fields
    return build_model(GPTConfig(VOCABULARY, **shape), runtime, 1)


def train(
    folder: Path,
    runtime: Runtime = ALONE,
    *,
    device_batch: int = ROWS,
    objective: Callable = next_token,
    evaluations: Sequence[Evaluation] = (),
    save: Callable[[State], None] = lambda state: None,
    state: State | None = None,
    source: Any = None,
    model: GPT | None = None,
    groups: list[Group] | None = None,
    **options: Any,
) -> Trained:
    """Run the loop on a new model, for 3 steps unless `options` has another horizon; settings may be there too."""
    model = model or small_model()
    source = source or Rows(runtime)
    state = state or State()
    groups = groups or build_groups(model, OptimizerSettings(), (ROWS * LENGTH / 2**19) ** 0.5, 0.1)
    optimizer = Optimizer(groups, runtime.rank, runtime.world_size, chunk_bytes=2**17)
    given = [name for name in ("grad_clip", "save_every") if name in options]
    config = TrainingSettings(**{name: options.pop(name) for name in given})
    options = {"steps": None if "seconds" in options else 3, "schedules": WARM} | options
    options |= {"device_batch": device_batch, "flops_per_token": 1e6}
    with MetricLog(folder) as log, stop_requests() as requests:
        loop = TrainingLoop(model, source, objective, optimizer, runtime, log, config, state, **options)
        loop.run(evaluations, save, requests)
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Trained(state, parameters, read_metrics(log.path), source)


def furthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """How far two models are from each other, in the parameter that differs most."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)
