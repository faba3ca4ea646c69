"""Means over seeds with 95 % intervals, by Student's t distribution."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# The t value of a two-sided 95 % interval, for 1, 2, … degrees of freedom.
T_VALUES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)


class Interval(NamedTuple):
    """A mean with the ends of its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        ends = f" [{self.low:.4f}, {self.high:.4f}]" if math.isfinite(self.low) else ""
        return f"{self.mean:.4f}{ends}"


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of a sample; that of a single value has infinite ends."""
    mean, freedom = statistics.fmean(values), len(values) - 1
    half = math.inf
    if freedom:
        t = T_VALUES[min(freedom, len(T_VALUES)) - 1]  # beyond the table a little too wide
        half = t * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)
