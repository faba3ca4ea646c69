"""One of several ranks: trains the small model in all the ways that the tests of the loop look at.

What came of it is left in `folder`: models as CASE.safetensors, what this rank saw as RANK.json.
"""

import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from loop_parts import ROWS, Rows, Trained, every_other, plant, skipping, small_model, train, uneven
from safetensors.torch import save_file
from torch import Tensor

from nanochat import train as loop
from nanochat.objectives import DeepSupervision, next_token
from nanochat.runtime import Runtime, setup


class Cases:
    def __init__(self, folder: Path, runtime: Runtime):
        self.folder, self.runtime = folder, runtime
        self.last = runtime.rank == runtime.world_size - 1
        self.seen: dict[str, Any] = {}

    def train(self, case: str, **options: Any) -> Trained:
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
        recursive, deep = small_model(supervision=3), DeepSupervision(5.0, 1.0)
        self.train("deep", model=recursive, objective=deep, device_batch=1, source=Rows(self.runtime, uneven))
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

        def spoilt(model: Any, batch: Any) -> tuple[Tensor, Tensor, dict]:
            loss, count, metrics = next_token(model, batch)
            return loss * (float("nan") if self.last and source.taken == 2 else 1.0), count, metrics

        self.not_finite("nan loss", objective=spoilt, source=source)
        source = Rows(self.runtime)

        def overflow(gradient: Tensor) -> Tensor:
            return gradient * (float("inf") if self.last and source.taken == 2 else 1.0)

        self.not_finite("infinite gradient", model=plant(small_model(), overflow), source=source)

    def out_of_memory(self, at: int) -> None:
        """The last rank has too little for all of its rows, in the backward of step `at`."""
        source = Rows(self.runtime)

        def fail(gradient: Tensor) -> Tensor:
            if self.last and source.taken == at and len(gradient) == ROWS // self.runtime.world_size:
                raise torch.OutOfMemoryError("planted")
            return gradient

        self.train(f"out of memory {at}", model=plant(small_model(), fail), source=source)

    def half_precision(self) -> None:
        """Only the last rank's gradients overflow, while the scale is above 1/8; and its memory runs out once."""
        source, state, failed = Rows(self.runtime), loop.State(), []

        def overflow(gradient: Tensor) -> Tensor:
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
