"""The objective of a recursive model: the loss of every exit."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from nanochat.dataloader import Batch
from nanochat.objectives import LossSum, Metric, Moment
from tracks.recursion.model import RecursiveGPT


@dataclass(frozen=True)
class DeepSupervision:
    """The loss of every exit, later ones weighing more. batch: as in `objectives.next_token`.

    Exit i weighs base^i, divided by the sum over all exits; `reward` is for each exit's relative improvement on the one
    before, taken by row: a row is never divided, so micro-batches and ranks change nothing. The mean over the exits is
    the loss that is minimized; the metrics have each exit's own loss.
    """

    base: float
    reward: float
    exits: int | None = None  # trained ones, from the first on; None: all that the model runs

    def __call__(self, model: RecursiveGPT, batch: Batch) -> LossSum:
        inputs, targets = batch
        kept = (targets >= 0).sum(1, keepdim=True)  # (rows, 1)
        exits = model.steps if self.exits is None else self.exits
        first = 1 - exits if self.base > 1 else 0  # powers above 1 could be too large for a float
        powers = [self.base ** (first + i) for i in range(exits)]
        total = 0.0
        before = None
        sums = []
        for power, hidden in zip(powers, islice(model.exits(inputs), exits), strict=True):
            factors = torch.full((len(inputs), 1), power / sum(powers), device=inputs.device)
            if before is not None:
                # An exit with a loss below 0.1 nats counts as if it had this one when the next is compared with it.
                mean = (before / kept.clamp(min=1)).clamp(min=0.1)
                factors = factors + self.reward / mean
                total = total - self.reward * kept.sum()
            loss, losses = model.loss(hidden, targets, factors=factors.expand_as(targets))
            total = total + loss
            before = losses.sum(1, keepdim=True)
            sums.append(before.sum())
        assert isinstance(total, Tensor)  # there is an exit
        metrics = {f"train/exit_{i}": Metric(loss, kept.sum()) for i, loss in enumerate(sums)}
        metrics["train/refinement"] = Metric(sums[0] - sums[-1], sums[0])
        if self.exits is not None:
            one = kept.new_ones(())
            metrics["train/exits"] = Metric(exits * one, one)
        return LossSum(total / len(sums), kept.sum(), metrics)

    def describe(self, figures: Mapping[str, Any]) -> str:
        """Return the losses of the exits, and the refinement, for the line of a step."""
        exits = " ".join(f"{value:.3f}" for name, value in figures.items() if name.startswith("train/exit_"))
        return f"exits: {exits} | refinement: {figures['train/refinement']:.1%}"


@dataclass(frozen=True)
class Curriculum:
    """Deep supervision with more and more exits: each equal part of the run trains its own number of them."""

    objective: DeepSupervision
    exits: tuple[int, ...]  # by part

    def at(self, moment: Moment) -> DeepSupervision:
        part = min(int(moment.progress * len(self.exits)), len(self.exits) - 1)
        return replace(self.objective, exits=self.exits[part])

    def describe(self, figures: Mapping[str, Any]) -> str:
        return self.objective.describe(figures)
