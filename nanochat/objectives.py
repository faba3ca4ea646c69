"""Objectives: (model, batch) -> (loss sum, count, metrics); the training loop divides the sums over a whole step.

Those for answers stand beside their sources: reinforcement learning in rollouts.py, preferences in preferences.py.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from nanochat.dataloader import Batch

# From a model and a batch to a tuple: the loss sum, the count that divides the sum over all micro-batches and ranks,
# and further metrics: name -> sum and count, over a micro-batch.
Loss = tuple[Tensor, Tensor, dict[str, tuple[Tensor, Tensor]]]
Objective = Callable[[Any, Any], Loss]  # from a model and a batch, of the class that the source makes


def next_token(model: nn.Module, batch: Batch) -> Loss:
    """Return the summed cross-entropy for the next tokens. batch: inputs and targets, (rows, seq_len) each.

    A target of -1 is not counted.
    """
    inputs, targets = batch
    return model(inputs, targets), (targets >= 0).sum(), {}
