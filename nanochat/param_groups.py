"""Which optimizer steps which parameter, and how: one table of rules over the model's names."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch.nn import Parameter

from nanochat.optim import Group

TUNED_WIDTH = 768  # for which the learning rates were found


@dataclass(frozen=True)
class Rule:
    """Parameters whose whole name `pattern` matches are the group `name`.

    The learning rate is `share` of `rate`, a flag of the command line, or of 1 where that is empty. scaled_by: some of
    "batch" and "width". weight_decay: None is the model's own, which `build_groups` is given. eps: of AdamW.
    """

    name: str
    pattern: str
    kind: str
    rate: str
    share: float
    scaled_by: tuple[str, ...]
    betas: tuple[float, float]
    weight_decay: float | None = 0.0
    eps: float = 1e-10


BOTH, BATCH = ("batch", "width"), ("batch",)
# In the first step of a new model the gradient of a factor of the residual stream is zero but for rounding, 1e-10 as
# measured, and soon 1e-4 and more: without this, noise would move it by its full rate, another way on each machine.
NOISE = 1e-6
RULES = (
    Rule("unembedding", r"head\.weight", "adamw", "unembedding_lr", 1.0, BOTH, (0.8, 0.96), 0.01),
    Rule("embedding", r"embed\.weight", "adamw", "embedding_lr", 1.0, BOTH, (0.8, 0.995), 0.001),
    Rule("value_embeds", r"value_embeds\.\d+\.weight", "adamw", "embedding_lr", 0.5, BOTH, (0.8, 0.995), 0.01),
    Rule("residual_lambdas", r"residual_lambdas", "adamw", "scalar_lr", 0.01, BATCH, (0.8, 0.95), 0.05, NOISE),
    # They need a longer memory than the rest.
    Rule("x0_lambdas", r"x0_lambdas", "adamw", "scalar_lr", 1.0, BATCH, (0.96, 0.95), 0.0, NOISE),
    # A gain multiplies like a residual lambda, but has no reason to decay to 0.
    Rule("gains", r"blocks\.\d+\.attn\.qk_gain", "adamw", "scalar_lr", 0.01, BATCH, (0.8, 0.95)),
    Rule("smear", r"smear_gate\.weight|smear_lambda|backout_lambda", "adamw", "", 0.2, (), (0.8, 0.95), 0.0, NOISE),
    Rule("matrices", r"blocks\.\d+\.(attn|mlp)\.\w+\.weight", "muon", "matrix_lr", 1.0, BATCH, (0.95, 0.9), None),
)
LEARNING_RATES = sorted({rule.rate for rule in RULES if rule.rate})  # the flags


def build_groups(
    named_parameters: Iterable[tuple[str, Parameter]],
    *,
    learning_rates: Mapping[str, float],
    batch_scale: float,
    width: int,
    matrix_weight_decay: float,
) -> list[Group]:
    """The groups that have parameters, in the table's order; learning_rates: of LEARNING_RATES, each.

    An embedding that is the head as well is stepped as the head.
    """
    scales = {"batch": batch_scale, "width": (width / TUNED_WIDTH) ** -0.5}
    members: dict[str, list[tuple[str, Parameter]]] = {rule.name: [] for rule in RULES}
    named_parameters = list(named_parameters)
    tied = "head.weight" not in dict(named_parameters)
    for name, parameter in named_parameters:
        role = "head.weight" if tied and name == "embed.weight" else name
        found = [rule.name for rule in RULES if re.fullmatch(rule.pattern, role)]
        assert len(found) == 1, f"{name} is in {' and '.join(found) or 'no group'}: mend RULES, each is in exactly one"
        members[found[0]].append((name, parameter))
    groups = []
    for rule in RULES:
        lr = rule.share * (learning_rates[rule.rate] if rule.rate else 1.0)
        for scale in rule.scaled_by:
            lr *= scales[scale]
        decay = matrix_weight_decay if rule.weight_decay is None else rule.weight_decay
        if members[rule.name]:
            groups.append(Group(rule.name, rule.kind, members[rule.name], lr, *rule.betas, decay, rule.eps))
    return groups
