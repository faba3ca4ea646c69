"""Rotation by position at the rates of public models: plain ones, or scaled for a longer context.

Rates and angles are rounded to fp32 in the places where `transformers` rounds them: the models learned with those, and
exact ones would move gradients by a thousandth.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nanochat.attention import RotaryTable


@dataclass(frozen=True)
class Scaling:
    """How the rates change. The fields are those of `rope_parameters` in a config of `transformers`."""

    kind: str = "default"  # a key in SCALINGS
    factor: float = 1.0
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    context: int = 0  # original_max_position_embeddings


def _plain(rates: Tensor, scaling: Scaling) -> Tensor:
    return rates


def _linear(rates: Tensor, scaling: Scaling) -> Tensor:
    """All positions lie closer together by the factor."""
    return rates / scaling.factor


def _llama3(rates: Tensor, scaling: Scaling) -> Tensor:
    """Slow rotations are slower by the factor, fast ones stay, and those between change smoothly."""
    turns = scaling.context / (2 * math.pi / rates)  # in the context that the model saw first
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return kept * rates + (1 - kept) * rates / scaling.factor


@dataclass(frozen=True)
class Formula:
    """A way to scale rates, in radians per position, and the fields of Scaling that it reads."""

    rates: Callable[[Tensor, Scaling], Tensor]
    fields: tuple[str, ...] = ()


SCALINGS = {
    "default": Formula(_plain),
    "linear": Formula(_linear, ("factor",)),
    "llama3": Formula(_llama3, ("factor", "low_freq_factor", "high_freq_factor", "context")),
}


def rates_of(pairs: int, base: float, scaling: Scaling) -> Tensor:
    """Return the radians per position of each pair of channels, in fp32 on the CPU."""
    channel = torch.arange(0, 2 * pairs, 2, device="cpu", dtype=torch.float32)
    return SCALINGS[scaling.kind].rates(1 / base ** (channel / (2 * pairs)), scaling)


class ScaledRotary(RotaryTable):
    """The table with scaled rates."""

    def __init__(self, positions: int, channels: int, base: float, scaling: Scaling) -> None:
        self.scaling = scaling  # first: RotaryTable fills the table
        super().__init__(positions, channels, base)

    def fill(self) -> None:
        if self.cos.is_meta:  # a model without memory
            return
        positions, pairs = self.cos.shape
        position = torch.arange(positions, device="cpu", dtype=torch.float32)
        angles = torch.outer(position, rates_of(pairs, self.base, self.scaling))
        self.cos.copy_(angles.cos())
        self.sin.copy_(angles.sin())
