"""Means over seeds with 95 % intervals, and p values, by Student's t distribution."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


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
    mean = statistics.fmean(values)
    freedom = len(values) - 1
    if not freedom:
        return Interval(mean, None)
    from scipy import stats

    # 2.5 % on either side.
    return Interval(mean, float(stats.t.ppf(0.975, freedom) * stats.sem(values)))


def p_value(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the p value of two samples' equal means, two-sided, with variances of their own (Welch's test).

    A sample with a single value is assumed to have the variance of the other one. One of them has different values.
    """
    from scipy import stats

    has_single = min(len(values), len(others)) == 1
    return float(stats.ttest_ind(values, others, equal_var=has_single).pvalue)
