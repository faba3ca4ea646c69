"""Means over seeds with 95 % intervals, and p values, by Student's t distribution."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# The t value of a two-sided 95 % interval, for 1, 2, … degrees of freedom.
T_VALUES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)


class Interval(NamedTuple):
    """A mean, and half the width of its 95 % interval; None for a single value."""

    mean: float
    half: float | None

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + ("" if self.half is None else f" ± {self.half:.4f}")

    @property
    def is_positive(self) -> bool:
        """Return True if the whole interval lies above 0."""
        return self.half is not None and self.mean > self.half


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of a sample with its interval."""
    mean, freedom = statistics.fmean(values), len(values) - 1
    if not freedom:
        return Interval(mean, None)
    t = T_VALUES[min(freedom, len(T_VALUES)) - 1]  # beyond the table a little too wide
    return Interval(mean, t * statistics.stdev(values) / math.sqrt(len(values)))


def p_value(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the p value of two samples' equal means, two-sided, with variances of their own (Welch's test).

    A sample with a single value is assumed to have the variance of the other one.
    """
    distance = abs(statistics.fmean(values) - statistics.fmean(others))
    if min(len(values), len(others)) == 1:
        larger = max(values, others, key=len)
        error = statistics.stdev(larger) * math.sqrt(1 + 1 / len(larger))
        return t_tail(distance / error, len(larger) - 1) if error else float(distance == 0)
    parts = [statistics.variance(some) / len(some) for some in (values, others)]
    if not sum(parts):
        return float(distance == 0)
    divisors = (len(values) - 1, len(others) - 1)
    freedom = sum(parts) ** 2 / sum(part**2 / divisor for part, divisor in zip(parts, divisors, strict=True))
    return t_tail(distance / math.sqrt(sum(parts)), freedom)


def t_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t lies beyond ±t."""
    # An integral over the angle whose tangent is t / √freedom, by Simpson's rule.
    steps, angle = 2000, math.atan(t / math.sqrt(freedom))

    def simpson(low: float, high: float) -> float:
        width = (high - low) / steps
        weights = (1, *(4, 2) * (steps // 2 - 1), 4, 1)
        heights = (max(math.cos(low + number * width), 0.0) ** (freedom - 1) for number in range(steps + 1))
        return width / 3 * sum(map(math.prod, zip(weights, heights, strict=True)))

    return simpson(angle, math.pi / 2) / simpson(0, math.pi / 2)
