"""Objectives: (model, batch) -> (loss sum, count, metrics); the training loop divides the sums over a whole step.

Those for answers stand beside their sources: reinforcement learning in rollouts.py, preferences in preferences.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nanochat.dataloader import Batch

if TYPE_CHECKING:
    from nanochat.settings import RecursionSettings
    from tracks.recursion.model import RecursiveGPT

# From a model and a batch to a tuple: the loss sum, the count that divides the sum over all micro-batches and ranks,
# and further metrics: name -> sum and count, over a micro-batch.
Loss = tuple[Tensor, Tensor, dict[str, tuple[Tensor, Tensor]]]
Objective = Callable[[Any, Batch], Loss]


def next_token(model: nn.Module, batch: Batch) -> Loss:
    """Return the summed cross-entropy for the next tokens. batch: inputs and targets, (rows, seq_len) each.

    A target of -1 is not counted.
    """
    inputs, targets = batch
    return model(inputs, targets), (targets >= 0).sum(), {}


@dataclass
class DeepSupervision:
    """The loss of a recursive model (recursive.py): of every exit, later ones weighing more. batch: as in `next_token`.

    Exit i weighs base^i, divided by the sum over all exits; `reward` is for each exit's relative improvement on the one
    before, taken by row: a row is never divided, so micro-batches and ranks change nothing. The mean over the exits is
    the loss that is minimized; the metrics have each exit's own loss.
    """

    base: float
    reward: float

    def __call__(self, model: "RecursiveGPT", batch: Batch) -> Loss:
        inputs, targets = batch
        kept = (targets >= 0).sum(1, keepdim=True)  # (rows, 1)
        first = 1 - model.steps if self.base > 1 else 0  # powers above 1 could be too large for a float
        powers = [self.base ** (first + i) for i in range(model.steps)]
        total, before, sums = 0.0, None, []
        for power, hidden in zip(powers, model.exits(inputs), strict=True):
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
        metrics = {f"train/exit_{i}": (loss, kept.sum()) for i, loss in enumerate(sums)}
        metrics["train/refinement"] = (sums[0] - sums[-1], sums[0])
        return total / len(sums), kept.sum(), metrics


def pretraining(config: "RecursionSettings") -> Objective:
    """Return the objective for a new model."""
    if config.recursion == "off":
        return next_token
    return DeepSupervision(config.supervision_base, config.improvement_reward)
