"""The update of the original TRM: a step for each exit, which goes on from the states of the exit before.

A batch comes as often as the model has exits. The first step starts from the embedded tokens; each later one starts
from y and z as the step before has left them, without a gradient, and with the weights that it has changed. The loss is
that exit's alone. The original's halting is left out: every row runs all steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanochat.dataloader import TextLoader
from nanochat.log import Record
from nanochat.objectives import LossSum, Metric
from tracks.recursion.model import RecursiveGPT, States


class CarriedBatch(NamedTuple):
    """Rows for the step of one exit. Ids are (rows, T), states (rows, T, width) each, in the model's compute dtype."""

    inputs: Tensor
    targets: Tensor
    exit: int = 0
    before: States | None = None  # of the exit before; None at the first
    after: States | None = None  # are overwritten with the states of this exit; None: nobody goes on from them

    def rows(self, part: slice) -> "CarriedBatch":
        """Return some rows, as views: what is written into their states is in those of the batch."""
        return self._replace(
            inputs=self.inputs[part],
            targets=self.targets[part],
            before=None if self.before is None else States(*(state[part] for state in self.before)),
            after=None if self.after is None else States(*(state[part] for state in self.after)),
        )


@dataclass(eq=False, kw_only=True)
class CarriedText(TextLoader):
    """Text of which each batch comes once for each exit of a model. A saved position begins with a new batch."""

    model: RecursiveGPT

    def __post_init__(self) -> None:
        super().__post_init__()
        self._batch: CarriedBatch | None = None  # the last one

    @property
    def may_be_saved(self) -> bool:  # the states are in no checkpoint
        """True between two batches of text."""
        return self._batch is None or self._batch.exit == self.model.config.supervision - 1

    def __next__(self) -> CarriedBatch:  # ty: ignore[incompatible-method-override]  # the first two columns are the same
        if self._batch is None or self.may_be_saved:
            inputs, targets = super().__next__()
            self._batch = CarriedBatch(inputs, targets, after=self._new_states(inputs))
        else:
            # The states before the last exit are not needed any more: two pairs of tensors serve all exits.
            last = self._batch
            unused = last.before or self._new_states(last.inputs)
            self._batch = last._replace(exit=last.exit + 1, before=last.after, after=unused)
        return self._batch

    def _new_states(self, inputs: Tensor) -> States:
        shape = (*inputs.shape, self.model.config.width)
        y, z = torch.empty((2, *shape), dtype=self.model.compute_dtype, device=inputs.device)
        return States(y, z)

    def split(self, batch: CarriedBatch, rows: int) -> list[CarriedBatch]:
        return [batch.rows(slice(start, start + rows)) for start in range(0, len(batch.inputs), rows)]

    def load_state_dict(self, state: Record) -> None:
        self._batch = None
        super().load_state_dict(state)


@dataclass(frozen=True)
class CarriedSupervision:
    """The loss of one exit. A step that starts again, with smaller micro-batches, starts from the same states."""

    def __call__(self, model: RecursiveGPT, batch: CarriedBatch | tuple[Tensor, Tensor]) -> LossSum:
        """batch: a plain one, as for compiling, is at its first exit."""
        inputs, targets, exit_number, before, after = CarriedBatch(*batch)
        states, hidden = model.next_exit(inputs, before)
        if after is not None:
            after.y.copy_(states.y.detach())
            after.z.copy_(states.z.detach())
        loss = model.loss(hidden, targets)
        kept = (targets >= 0).sum()
        return LossSum(loss, kept, {f"train/exit_{exit_number}": Metric(loss, kept)})

    def describe(self, figures: Mapping[str, Any]) -> str:
        """Return the exit of the step, for its line."""
        exits = [name.removeprefix("train/exit_") for name in figures if name.startswith("train/exit_")]
        return f"exit: {', '.join(exits)}"
