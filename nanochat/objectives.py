"""Objectives: from a model and a batch to a loss, which training minimizes, and quantities measured on the way.

An objective is a function of the two; `next_token` is the simplest. It returns sums over a micro-batch, not means: the
loop adds them up over micro-batches and ranks and divides once. An objective that changes while the run goes on (a term
that fades in, a curriculum) has a method `at`, which gets the step and the progress and returns the objective for that
step. Those for answers are beside their sources: reinforcement learning in rollouts.py.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from nanochat.dataloader import Batch

# ---- measured quantities ----

Reduction = Literal["mean", "sum", "root mean square", "maximum"]

# From a total and a count over the whole step to the figure in the log. The total of a maximum is the largest value.
REDUCTIONS: dict[Reduction, Callable[[float, float], float]] = {
    "mean": lambda total, count: total / max(count, 1),
    "sum": lambda total, count: total,
    "root mean square": lambda total, count: math.sqrt(total / max(count, 1)),
    "maximum": lambda total, count: total,
}


class Metric(NamedTuple):
    """A quantity that an objective measures in a micro-batch, with the way in which parts of a step are joined.

    For a mean, `total` is the sum over the micro-batch and `count` divides it; for a root mean square, `total` is the
    sum of squares; for a maximum it is the largest value. Every micro-batch of a run has the same metrics.
    """

    total: Tensor  # 0-d, as is the count; a gradient is ignored
    count: Tensor
    reduction: Reduction = "mean"

    def detached(self) -> "Metric":
        """Return the metric in fp32, without a gradient; it stays on its device, and nothing waits for it."""
        return self._replace(total=self.total.detach().float(), count=self.count.float())

    def joined(self, other: "Metric") -> "Metric":
        """Return the metric of both parts."""
        if self.reduction == "maximum":
            return self._replace(total=self.total.maximum(other.total))
        return self._replace(total=self.total + other.total, count=self.count + other.count)


def maximum(value: Tensor) -> Metric:
    """Return the metric for a largest value, 0-d."""
    return Metric(value, value.new_ones(()), "maximum")


# ---- losses ----


class LossSum(NamedTuple):
    """The loss of a micro-batch, summed, and what divides the sum over all micro-batches and ranks."""

    total: Tensor  # 0-d; its gradient is that of the sum
    count: Tensor  # 0-d
    metrics: Mapping[str, Metric] = MappingProxyType({})  # by name in the log, like "train/exit_0"


class Objective(Protocol):
    """What is minimized. model: the one in training. batch: as the run's source makes them."""

    def __call__(self, model: Any, batch: Any, /) -> LossSum: ...


@dataclass(frozen=True)
class Moment:
    """How far a run has come when a step begins."""

    step: int  # steps before this one
    progress: float  # 0..1


@runtime_checkable
class ChangingObjective(Protocol):
    """An objective that depends on how far the run has come."""

    def at(self, moment: Moment, /) -> Objective:
        """Return the objective for the step that begins now."""
        ...


@runtime_checkable
class DescribingObjective(Protocol):
    """An objective that puts its metrics into words for the line of a step."""

    def describe(self, figures: Mapping[str, Any], /) -> str: ...


def objective_at(objective: Objective | ChangingObjective, moment: Moment) -> Objective:
    """Return what is minimized in a step."""
    return objective.at(moment) if isinstance(objective, ChangingObjective) else objective


def next_token(model: nn.Module, batch: Batch) -> LossSum:
    """Return the summed cross-entropy for the next tokens. batch: inputs and targets, (rows, seq_len) each.

    A target of -1 is not counted.
    """
    inputs, targets = batch
    return LossSum(model(inputs, targets), (targets >= 0).sum())
