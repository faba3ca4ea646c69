"""Objectives: (model, batch) -> (loss sum, count, metrics); the training loop divides the sums over a whole step.

Reinforcement learning compares log-probabilities under the model and under the sampler. Both belong to the
distribution at temperature 1 over all tokens. Sampling at another temperature, or with top-k or top-p, draws from
another distribution; as usual, no correction is made for this difference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nanochat.dataloader import Batch
from nanochat.decoder import Prefix
from nanochat.gpt import GPT

if TYPE_CHECKING:
    from nanochat.recursive import RecursiveGPT
    from nanochat.settings import RecursionSettings

Metrics = dict[str, tuple[Tensor, Tensor]]  # name -> sum and count, over a micro-batch
# The loss sum, the count that divides the sum over all micro-batches and ranks, and further metrics.
Loss = tuple[Tensor, Tensor, Metrics]
Objective = Callable[[nn.Module, Batch], Loss]

LEAST_LOSS = 0.1  # in nats: an exit with a lower loss counts as if it had this one when the next is compared with it
CLIP = 0.2  # the ratio model probability / sampler probability counts within 1 ± CLIP


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
                mean = (before / kept.clamp(min=1)).clamp(min=LEAST_LOSS)
                factors = factors + self.reward / mean
                total = total - self.reward * kept.sum()
            loss, losses = model.weighted_loss(hidden, targets, factors.expand_as(targets))
            total = total + loss
            before = losses.sum(1, keepdim=True)
            sums.append(before.sum())
        metrics = {f"train/exit_{i}": (loss, kept.sum()) for i, loss in enumerate(sums)}
        metrics["train/refinement"] = (sums[0] - sums[-1], sums[0])
        return total / len(sums), kept.sum(), metrics


class CarriedSupervision:
    """The loss of one exit of a recursive model; the next update goes on from its states, without a gradient.

    batch: inputs, targets, and for each row its number and the exit (rows, 2), on the host. The source gives each batch
    once for each exit. A step that starts again, perhaps with other micro-batches, starts from the same states.
    """

    def __init__(self):
        self.exit = -1  # of the last micro-batch
        self.before = {}  # number of a row -> y and z at the exit before
        self.after = {}

    def __call__(self, model: "RecursiveGPT", batch: Batch) -> Loss:
        inputs, targets, places = batch
        rows, [number, *_] = places[:, 0].tolist(), places[:, 1].tolist()
        if number != self.exit:
            self.exit, self.before, self.after = number, self.after, {}
        states = None
        if number:
            states = [torch.stack(parts) for parts in zip(*(self.before[row] for row in rows), strict=True)]
        y, z, hidden = model.next_exit(inputs, states)
        self.after |= zip(rows, zip(y.detach(), z.detach(), strict=True), strict=True)
        return model.loss(hidden, targets), (targets >= 0).sum(), {}


def pretraining(config: "RecursionSettings") -> Objective:
    """Return the objective for a new model."""
    if config.recursion == "off":
        return next_token
    if config.carry:
        return CarriedSupervision()
    return DeepSupervision(config.supervision_base, config.improvement_reward)


def _clipped(chosen: Tensor, sampled: Tensor, advantages: Tensor) -> Tensor:
    """Return the clipped loss. With one update per sample the ratio is about 1 and the gradient equals "plain"."""
    ratio = (chosen - sampled).exp()
    limited = ratio.clamp(1 - CLIP, 1 + CLIP)
    return -torch.minimum(
        ratio * advantages,
        limited * advantages,  # no gain from moving further than the limit
    )


# Name → token loss, given (log-probability under the model, under the sampler, advantage).
POLICY_LOSSES = {
    "plain": lambda chosen, sampled, advantages: -chosen * advantages,
    "clip": _clipped,
}


@dataclass
class PolicyGradient:
    """Raises the probability of answers that did better than their group. batch: the columns from `Rollouts`.

    loss: a key of POLICY_LOSSES. kl: the penalty for moving away from the model `reference`, estimated on the drawn
    tokens; 0 for none. Each prompt is computed once for all answers.
    """

    loss: str = "plain"
    kl: float = 0.0
    reference: GPT | None = None

    def __call__(self, model: GPT, batch: Batch) -> Loss:
        *columns, prompts, sizes = batch  # sizes (rows, 3), on the host
        lengths, given, questions = sizes.T  # answer length, prompt length, question
        longest = int(lengths.max())
        inputs, targets, advantages, sampled = (column[:, :longest] for column in columns)
        # Answers to one question lie together and share the first row's prompt.
        _, texts, answers = questions.unique_consecutive(
            return_inverse=True,
            return_counts=True,
        )
        firsts = answers.cumsum(0) - answers
        longest_prompt = int(given.max())
        prompts = prompts[firsts.to(prompts.device), :longest_prompt]
        given = given[firsts]

        def logprobs(model: GPT) -> Tensor:
            cache = Prefix(model, prompts, given).rows(texts, lengths)
            # The loss for each target is minus the log-probability.
            return -model(
                inputs,
                targets,
                reduction="none",
                cache=cache,
            )

        kept = targets >= 0
        chosen = logprobs(model)  # (rows, longest)
        losses = POLICY_LOSSES[self.loss](chosen, sampled, advantages)
        if self.kl:
            with torch.no_grad():
                before = logprobs(self.reference)
            apart = before - chosen  # log of the ratio reference / model
            # Never negative; the expected value is the KL divergence if tokens are drawn at temperature 1.
            losses = losses + self.kl * (apart.exp() - apart - 1)
        count = kept.sum()
        # Summed distance between log-probabilities under model and sampler, for the log.
        gap = ((chosen.detach() - sampled).abs() * kept).sum()
        return (losses * kept).sum(), count, {"rl/logprob_gap": (gap, count)}
