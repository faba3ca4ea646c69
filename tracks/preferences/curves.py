"""Curves of a training on pairs, for the report card."""

from collections.abc import Collection

from nanochat.metrics import Curve

CURVES = [
    Curve("Pair accuracy", "step", "share of pairs", "train", "dpo/accuracy"),
    Curve("Pair accuracy", "step", "share of pairs", "held out", "eval/Pair accuracy"),
    Curve("Margin", "step", "nats", "train", "dpo/margin"),
    Curve("Margin", "step", "nats", "held out", "eval/Margin"),
    Curve("KL to the parent", "step", "nats per token", "train", "dpo/kl"),
    Curve("KL to the parent", "step", "nats per token", "held out", "eval/KL to the parent"),
]


def pair_curves(figures: Collection[str]) -> list[Curve]:
    """Return the curves; figures: the names in the metric log."""
    return CURVES


CURVE_MAKERS = {"dpo/": pair_curves}
