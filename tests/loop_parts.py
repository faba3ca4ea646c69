"""A small model, made-up rows, faults to plant, and training with them: what the tests of the loop run on any ranks.

`main` is one of several ranks and trains in all ways that the tests need. It leaves models in `folder` as
CASE.safetensors, and the facts that this rank saw as RANK.json.
"""

import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nanochat import schedules
from nanochat import train as loop
from nanochat.dataloader import BatchSource
from nanochat.gpt import GPT
from nanochat.log import MetricLog, Record, read_metrics
from nanochat.models import build_model, config_with
from nanochat.objectives import LossSum, Metric, maximum, next_token
from nanochat.optim import Group, Optimizer
from nanochat.param_groups import build_groups, group_rates
from nanochat.runtime import Runtime, setup, stop_requests
from nanochat.settings import OptimizerSettings
from nanochat.train import Evaluation, LoopSettings, State, new_loop

CPU = torch.device("cpu")
ALONE = Runtime(CPU, torch.float32, "chunks")
AHEAD = replace(ALONE, device=torch.device("cuda"))  # the loop runs ahead of what it computes, as on a GPU; on the CPU
ROWS, LENGTH, VOCABULARY = 8, 32, 128
EXACT = 1e-5  # two models are equal
WARM = schedules.pretraining(OptimizerSettings())  # as base training begins


class Planted(torch.autograd.Function):
    """What comes in; `fault` makes of its gradient another one, or raises."""

    @staticmethod
    def forward(context: Any, x: Tensor, fault: Callable[[Tensor], Tensor]):
        context.fault = fault
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor):
        return context.fault(gradient), None


def plant(model: GPT, fault: Callable[[Tensor], Tensor]):
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
    ) -> None:
        self.rank, self.ranks, self.targets, self.batches = runtime.rank, runtime.world_size, targets, batches
        self.taken, self.idle_steps = 0, idle

    @property
    def idle(self):
        return self.taken in self.idle_steps

    @property
    def progress(self):
        return self.taken / self.batches

    def __next__(self):
        generator = torch.Generator().manual_seed(self.taken)
        ids = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
        targets = ids[:, 1:].clone()
        for row in range(ROWS):
            targets[row, self.targets(row) :] = -1
        self.taken += 1
        return ids[self.rank :: self.ranks, :-1], targets[self.rank :: self.ranks]

    def state_dict(self) -> Record:
        return {"taken": self.taken}

    def load_state_dict(self, state: Record) -> None:
        self.taken = state["taken"]


def uneven(row: int):
    return 5 * row % LENGTH


def every_other(row: int):
    return LENGTH * (row % 2)


def skipping(model: GPT, batch: tuple[Tensor, Tensor]):
    """An objective that uses only the head where no target is: the other gradients do not arrive."""
    if (batch[1] >= 0).any():
        return next_token(model, batch)
    return LossSum(0 * model.head.weight.sum(), torch.tensor(0))


def numbered(model: GPT, batch: tuple[Tensor, Tensor]):
    """An objective that measures the largest first token, and the sum of all."""
    firsts = batch[0][:, 0].float()
    metrics = {"first/largest": maximum(firsts.max()), "first/all": Metric(firsts.sum(), firsts.new_ones(()), "sum")}
    return next_token(model, batch)._replace(metrics=metrics)


def spoilt(source: Rows, factor: float):
    """An objective whose loss is multiplied in the second step."""

    def objective(model: GPT, batch: tuple[Tensor, Tensor]):
        loss = next_token(model, batch)
        return loss._replace(total=loss.total * (factor if source.taken == 2 else 1.0))

    return objective


@dataclass
class Trained:
    state: State
    parameters: dict[str, Tensor]
    records: list[dict[str, Any]]  # of metrics.jsonl
    source: Any


def small_model(runtime: Runtime = ALONE, **fields: Any):
    shape = {"vocab_size": VOCABULARY, "depth": 2, "width": 64, "heads": 2, "kv_heads": 2}
    return build_model(config_with({**shape, "max_seq_len": LENGTH, "bos_id": 0, **fields}), runtime, 1)


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
    after_step: Sequence[Callable[[State], None]] = (),
    **options: Any,
):
    """Run the loop on a new model, for 3 steps unless `options` has another horizon; they are LoopSettings."""
    model = model or small_model()
    source = source or Rows(runtime)
    state = state or State()
    if groups is None:
        batch_scale = (ROWS * LENGTH / 2**19) ** 0.5
        groups = build_groups(model, group_rates(OptimizerSettings(), model.config.width, batch_scale, 0.1))
    optimizer = Optimizer(groups, runtime.rank, runtime.world_size, chunk_bytes=2**17)
    usual = {"steps": None if "seconds" in options else 3, "schedules": WARM, "flops_per_token": 1e6}
    settings = LoopSettings(device_batch=device_batch, **usual | options)
    with MetricLog(folder) as log, stop_requests() as requests:
        made = new_loop(model, optimizer, source, objective, runtime, log, settings, state, after_step)
        made.train(evaluations, save, requests)
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Trained(state, parameters, read_metrics(log.path), source)


def furthest(one: dict[str, Tensor], other: dict[str, Tensor]):
    """How far two models are from each other, in the parameter that differs most."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


class Cases:
    def __init__(self, folder: Path, runtime: Runtime) -> None:
        self.folder, self.runtime = folder, runtime
        self.last = runtime.rank == runtime.world_size - 1
        self.seen: dict[str, Any] = {}

    def train(self, case: str, **options: Any):
        trained = train(self.folder / case, options.pop("runtime", self.runtime), **options)
        for name, p in trained.parameters.items():
            assert all(torch.equal(p, other) for other in self.runtime.all_gather(p)), f"{case}: ranks differ in {name}"
        self.seen[case] = vars(trained.state)
        if self.runtime.rank == 0:
            save_file(trained.parameters, self.folder / f"{case}.safetensors")
        return trained

    def exact(self) -> None:
        for rows in range(1, ROWS // self.runtime.world_size + 1):
            if ROWS // self.runtime.world_size % rows == 0:
                self.train(f"plain {rows}", device_batch=rows)

        self.train("masked", device_batch=1, source=Rows(self.runtime, uneven), grad_clip=0.1)
        self.train("measured", objective=numbered, source=Rows(self.runtime))
        # Some ranks have no gradients to send in their backward.
        self.train("skipping", objective=skipping, source=Rows(self.runtime, every_other))

        model, kept = small_model(), []

        def keep(state: loop.State) -> None:
            kept.append([p.detach().clone() for p in model.parameters()])

        keeps = [loop.Evaluation(1, keep, at_start=True)]
        self.train("idle", model=model, source=Rows(self.runtime, idle=[1, 3]), evaluations=keeps, steps=4)
        alike = [all(map(torch.equal, one, other)) for one, other in itertools.pairwise(kept)]
        self.seen["idle"]["unchanged"] = alike

    def not_finite(self, case: str, **options: Any) -> None:
        """All ranks have to find out, at the same step."""
        steps = []
        evaluations = [loop.Evaluation(1, lambda state: steps.append(state.step), at_start=True)]
        try:
            train(self.folder / case, self.runtime, evaluations=evaluations, **options)
        except FloatingPointError as error:
            self.seen[case] = {"error": str(error), "steps": steps}

    def faults(self) -> None:
        source = Rows(self.runtime)
        self.not_finite("nan loss", objective=spoilt(source, float("nan") if self.last else 1.0), source=source)
        source = Rows(self.runtime)

        def overflow(gradient: Tensor):
            return gradient * (float("inf") if self.last and source.taken == 2 else 1.0)

        self.not_finite("infinite gradient", model=plant(small_model(), overflow), source=source)

    def out_of_memory(self, at: int) -> None:
        """The last rank has too little for all of its rows, in the backward of step `at`."""
        source = Rows(self.runtime)

        def fail(gradient: Tensor):
            if self.last and source.taken == at and len(gradient) == ROWS // self.runtime.world_size:
                raise torch.OutOfMemoryError("planted")
            return gradient

        self.train(f"out of memory {at}", model=plant(small_model(), fail), source=source)

    def half_precision(self) -> None:
        """Only the last rank's gradients overflow, while the scale is above 1/8; and its memory runs out once."""
        source, state, failed = Rows(self.runtime), loop.State(), []

        def overflow(gradient: Tensor):
            if self.last and source.taken == 2 and not failed:
                failed.append(True)
                raise torch.OutOfMemoryError("planted")
            return gradient * (float("inf") if self.last and state.loss_scale > 1 / 8 else 1.0)

        half, model = replace(self.runtime, dtype=torch.float16), plant(small_model(), overflow)
        self.train("half precision", runtime=half, model=model, source=source, state=state)
        self.seen["half precision"]["taken"] = source.taken

    def clock(self) -> None:
        """Ranks whose clocks differ, the last one's is fast, end with the same step."""
        loop.time = SimpleNamespace(perf_counter=lambda: time.perf_counter() * (4 if self.last else 1))
        self.train("clock", seconds=0.3)
        loop.time = time


def main(folder: Path) -> None:
    with setup("cpu", "fp32") as runtime:
        cases = Cases(folder, runtime)
        cases.exact()
        cases.faults()
        cases.out_of_memory(at=1)
        cases.out_of_memory(at=3)
        cases.half_precision()
        cases.clock()
    (folder / f"{runtime.rank}.json").write_text(json.dumps(cases.seen))
