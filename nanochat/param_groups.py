"""Optimizer settings for each parameter group; a kind of model (gpt.PARAMETERS) names the group of its parameters."""

from collections.abc import Mapping
from dataclasses import dataclass

from nanochat.gpt import GPT
from nanochat.optim import KINDS, Group
from nanochat.settings import OptimizerSettings
from nanochat.tables import parse_table

TUNED_WIDTH = 768  # the width at which the learning rates were found


@dataclass(frozen=True)
class Rule:
    """Settings for one group. The learning rate is `factor` times the flag `rate`, or `factor` if there is no flag.

    A flag's rate is scaled by the batch too.
    """

    name: str
    kind: str  # optimizer: a key in optim.KINDS
    factor: float
    momentum: float  # Muon's, or AdamW's beta1
    beta2: float
    rate: str = ""
    width_power: float = 0.0  # the learning rate is multiplied by this power of the model's width / TUNED_WIDTH
    weight_decay: float | None = None  # None: the run's own
    eps: float = 1e-10  # for AdamW only: added to the root in the divisor


# eps: in a new model's first steps the gradients of residual factors and of backout are zero but for rounding: 1e-10
# and 1e-9 as measured, and soon 1e-4 and more. Without an eps of 1e-6 rounding would move them by the full rate,
# differently on each machine; backout needs three times as much. The gradients of smear are 1e-5 from the start: a
# larger eps than 1e-8 would slow its gate. beta1: x0_lambdas need a longer memory.
RULES = parse_table(
    Rule,
    """
    name              kind   rate            factor  width_power  momentum  beta2  weight_decay  eps
    unembedding       adamw  unembedding_lr  1       -0.5         0.8       0.96   0.01          -
    embedding         adamw  embedding_lr    1       -0.5         0.8       0.995  0.001         -
    value_embeds      adamw  embedding_lr    0.5     -0.5         0.8       0.995  0.01          -
    residual_lambdas  adamw  scalar_lr       0.01    -            0.8       0.95   0.05          1e-6
    x0_lambdas        adamw  scalar_lr       1       -            0.96      0.95   0             1e-6
    gains             adamw  scalar_lr       0.1     -            0.8       0.95   0             1e-6
    smear             adamw  -               0.2     -            0.8       0.95   0             1e-8
    backout           adamw  -               0.2     -            0.8       0.95   0             3e-6
    matrices          muon   matrix_lr       1       -            0.95      0.9    -             -
    """,
)


@dataclass(frozen=True)
class Rates:
    """A group's initial learning rate and weight decay, to be multiplied by schedules alone."""

    lr: float
    weight_decay: float


def group_rates(
    config: OptimizerSettings, width: int, batch_scale: float, matrix_decay: float, fraction: float = 1.0
) -> dict[str, Rates]:
    """Return the final rates of each group in RULES.

    config: has the learning rates, none of them None. width: the model's. batch_scale: for the rates that are flags.
    matrix_decay: the weight decay of a group without its own. fraction: for all learning rates.
    """
    rates = {}
    for rule in RULES:
        lr = rule.factor
        if rule.rate:
            lr *= getattr(config, rule.rate)
            lr *= batch_scale
        lr *= (width / TUNED_WIDTH) ** rule.width_power
        decay = matrix_decay if rule.weight_decay is None else rule.weight_decay
        rates[rule.name] = Rates(lr * fraction, decay)
    return rates


def build_groups(model: GPT, rates: Mapping[str, Rates]) -> list[Group]:
    """Return the groups that have parameters, in RULES order. rates: by the group's name, as `group_rates` has them."""
    parameters = dict(model.named_parameters())
    group_of = {name: model.parameter_row(name).group for name in parameters}
    if model.config.tie_embeddings:
        group_of["embed.weight"] = "unembedding"  # a tied embedding has the head's settings
    groups = []
    for rule in RULES:
        members = [(name, parameter) for name, parameter in parameters.items() if group_of[name] == rule.name]
        if members:
            final = rates[rule.name]
            groups.append(
                Group(
                    name=rule.name,
                    kind=rule.kind,
                    params=members,
                    lr=final.lr,
                    momentum=rule.momentum,
                    beta2=rule.beta2,
                    weight_decay=final.weight_decay,
                    eps=rule.eps,
                )
            )
    return groups


# Optimizer group → kind in parameter_counts; all other groups are "scalars".
COUNTED = {"matrices": "matrices", "embedding": "embed", "unembedding": "head", "value_embeds": "value_embeds"}


def parameter_counts(model: GPT) -> dict[str, int]:
    """Return the numbers by kind, and the total; vocabulary padding is counted."""
    counts = dict.fromkeys((*COUNTED.values(), "scalars"), 0)
    for name, parameter in model.named_parameters():
        counts[COUNTED.get(model.parameter_row(name).group, "scalars")] += parameter.numel()
    return counts | {"total": sum(counts.values())}


def state_bytes(model: GPT) -> int:
    """Return the size of the optimizer's states for a model, over all ranks."""
    kinds = {rule.name: KINDS[rule.kind] for rule in RULES}
    parameters = model.named_parameters()
    return sum(kinds[model.parameter_row(name).group].state_bytes * parameter.numel() for name, parameter in parameters)
