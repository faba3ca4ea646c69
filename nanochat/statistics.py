"""Estimates with standard errors, intervals over seeds, and tests of paired and unpaired scores."""

import math
import statistics
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from nanochat.log import Record

NOT_KNOWN = "n/a"

Metrics = dict[str, Any]  # name -> a number, a text, or {"value", "stderr", "format", "unit"}


class Estimate(NamedTuple):
    """A mean with the standard error."""

    value: float
    stderr: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.stderr:.4f}"

    def centered(self, baseline: float) -> "Estimate":
        """Return the estimate on a scale where `baseline`, the score of guessing, is 0 and a perfect score is 1."""
        span = 1 - baseline
        return Estimate((self.value - baseline) / span, self.stderr / span)  # a shift leaves errors alone

    def metric(self, chance: float = math.nan) -> Record | str:
        """Return the estimate as an outcome's metric. chance: the score of guessing, nan if not known."""
        near = abs(self.value - chance) <= 2 * self.stderr  # False for nan
        return measured(self.value, self.stderr, unit=" (near chance)" if near else "")


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of a sample; the standard error of a single value is nan."""
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return Estimate(statistics.fmean(values), spread / math.sqrt(len(values)))


def average(estimates: Collection[Estimate]) -> Estimate:
    """Return the mean over independent estimates."""
    count = len(estimates)
    value = sum(one.value for one in estimates) / count
    return Estimate(value, math.hypot(*(one.stderr for one in estimates)) / count)  # errors add as squares


def measured(value: float | None, stderr: float | None = None, spec: str = ".4f", unit: str = "") -> Metrics | str:
    """Return a metric for an outcome."""
    if value is None:
        return NOT_KNOWN
    metric = {"value": value, "format": spec}
    if stderr is not None:
        metric["stderr"] = stderr
    if unit:
        metric["unit"] = unit
    return metric


# ---- over seeds ----


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
    """Return the p value of two samples' equal means, two-sided, with a variance for each (Welch's test).

    A sample with a single value is assumed to have the variance of the other one. One of them has different values.
    """
    from scipy import stats

    has_single = min(len(values), len(others)) == 1
    return float(stats.ttest_ind(values, others, equal_var=has_single).pvalue)


# ---- pairs of answers ----


def sign_test(one: int, other: int) -> float:
    """Return the two-sided probability that a fair coin falls so, or more unevenly."""
    from scipy import stats

    return float(stats.binomtest(one, one + other).pvalue) if one + other else 1.0


# ---- many tests ----


def holm(chances: Sequence[float], rounds: int = 1) -> list[float]:
    """Return p values corrected for their number (Holm's method), and for so many rounds of them (Bonferroni)."""
    found = [0.0] * len(chances)
    largest = 0.0
    for rank, number in enumerate(sorted(range(len(chances)), key=lambda one: chances[one])):
        # A larger p never gets a smaller correction.
        largest = max(largest, min(1.0, rounds * (len(chances) - rank) * chances[number]))
        found[number] = largest
    return found
