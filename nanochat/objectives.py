"""Objectives: (model, batch) -> (sum of losses, count, metrics); the loop divides the sums of the whole step.

Reinforcement learning takes log-probabilities, the model's as the sampler's, of the distribution at temperature 1 over
all tokens. What draws at another temperature, or from the likeliest tokens alone, draws from another distribution; that
difference is left uncorrected, as is usual.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from nanochat.decoder import Prefix

Batch = tuple[Tensor, ...]  # the first axis of each tensor: rows of this rank
Metrics = dict[str, tuple[Tensor, Tensor]]  # name -> sum and count, over a micro-batch
# Returns the sum of losses, the count that divides the sum of all micro-batches and ranks, and further metrics.
Objective = Callable[[nn.Module, Batch], tuple[Tensor, Tensor, Metrics]]

CLIP = 0.2  # of the ratio between the model's chance of a token and the sampler's, to either side of 1


class BatchSource(Protocol):
    """An iterator of batches that knows its place."""

    wait_seconds: float  # spent in `next`
    idle: bool  # the last batch teaches nothing, on any rank: no update is made
    progress: float  # 0..1, may go beyond 1
    metrics: Mapping[str, float]  # figures of the last batch, for the log

    def __next__(self) -> Batch: ...

    def place(self) -> list[str]:
        """Return where the last batch was read, for the message about a loss that is not finite."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def next_token(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Metrics]:
    """Return the cross-entropy of each next token, summed. batch: inputs and targets, (rows, seq_len) each.

    A target of -1 does not count.
    """
    inputs, targets = batch
    return model(inputs, targets), (targets >= 0).sum(), {}


def _clipped(chosen: Tensor, sampled: Tensor, advantages: Tensor) -> Tensor:
    """With one update for each sample the ratio is 1 but for rounding, and this the gradient of "plain"."""
    ratio = (chosen - sampled).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)


# Name → the loss of each token, from the model's log-probability of it, the sampler's, and its advantage.
POLICY_LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "plain": lambda chosen, sampled, advantages: -chosen * advantages,
    "clip": _clipped,
}


def by_tokens(context: int) -> Callable[[tuple[Tensor, ...], int], list[tuple[Tensor, ...]]]:
    """How a batch of `Rollouts` is split: into parts that are no larger than so many rows of the context's length."""

    def split(batch: tuple[Tensor, ...], full_rows: int) -> list[tuple[Tensor, ...]]:
        rows = max(1, full_rows * context // int(batch[-1][:, :2].sum(1).max()))
        return list(zip(*(part.split(rows) for part in batch), strict=True))

    return split


class PolicyGradient:
    """Raises the probability of what did better than its group. batch: as `Rollouts` gives it.

    reference, kl: another model, and how much straying from it costs, which is estimated from the drawn tokens. A
    prompt is computed once for all its answers.
    """

    def __init__(self, loss: str = "plain", kl: float = 0.0, reference: Any = None):
        if loss not in POLICY_LOSSES:
            raise ValueError(f"--policy-loss={loss} is not known, take one of {', '.join(POLICY_LOSSES)}")
        self._loss, self._kl, self._reference = POLICY_LOSSES[loss], kl, reference

    def __call__(self, model: Any, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Metrics]:
        *columns, prompts, sizes = batch
        lengths, given, questions = sizes.T
        inputs, targets, advantages, sampled = (column[:, : int(lengths.max())] for column in columns)
        _, texts, answers = questions.unique_consecutive(return_inverse=True, return_counts=True)
        firsts = answers.cumsum(0) - answers
        prompts, given = prompts[firsts.to(prompts.device), : int(given.max())], given[firsts]

        def logprobs(model: Any) -> Tensor:
            cache = Prefix(model, prompts, given).rows(texts, lengths)
            return -model(inputs, targets, reduction="none", cache=cache)

        kept, chosen = targets >= 0, logprobs(model)
        losses = self._loss(chosen, sampled, advantages)
        if self._kl:
            with torch.no_grad():
                before = logprobs(self._reference)
            apart = before - chosen
            losses = losses + self._kl * (apart.exp() - apart - 1)  # never negative; on average KL if drawn at T = 1
        # The gap between the model's log-probabilities and the sampler's.
        gap = ((chosen.detach() - sampled).abs() * kept).sum()
        return (losses * kept).sum(), kept.sum(), {"rl/logprob_gap": (gap, kept.sum())}
