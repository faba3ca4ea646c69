"""What training minimises: (model, batch) -> (sum of losses, how many), which the loop divides over the whole step."""

from typing import Any

import torch


def next_token(model: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of each next token. batch: inputs and targets, (rows, seq_len) both; target -1 is not learned."""
    inputs, targets = batch
    return model(inputs, targets), (targets >= 0).sum()
