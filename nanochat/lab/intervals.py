"""Means over seeds with 95 % intervals, and p values, by Student's t distribution."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# The t value of a two-sided 95 % interval, for 1, 2, … degrees of freedom.
T_VALUES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)


class Interval(NamedTuple):
    """A mean, and half the width of its 95 % interval; None for a single value."""

    mean: float
    half: float | None

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
    larger = max(values, others, key=len)
    if min(len(values), len(others)) == 1:
        error, freedom = statistics.variance(larger) * (1 + 1 / len(larger)), len(larger) - 1
    else:
        parts = [(statistics.variance(some) / len(some), len(some) - 1) for some in (values, others)]
        error = sum(part for part, _ in parts)
        freedom = error and error**2 / sum(part**2 / divisor for part, divisor in parts)
    return t_tail(distance / math.sqrt(error), freedom) if error else float(distance == 0)


def t_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t lies beyond ±t."""

    def integral(first: float) -> float:
        """Return the integral over the angles from the first one whose tangent is t / √freedom."""
        angles = np.linspace(first, np.pi / 2, 100_001)
        return np.trapezoid(np.cos(angles).clip(0) ** (freedom - 1), angles)

    return float(integral(math.atan(t / math.sqrt(freedom))) / integral(0))
