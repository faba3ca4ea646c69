"""Scaling fits: the best model size for each compute budget, and power laws over budgets.

At a fixed budget C the final loss is a parabola in log N, with the best size at the lowest point (Chinchilla's second
approach, arXiv 2203.15556). Over budgets, the best N and the best token count grow as powers of C. N: parameters in
matrices and head, as in nanochat/scaling.py. FLOPs are counted during training.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanochat.outcome import read_outcomes

LEAST_POINTS = 3  # for a parabola, and for the error of a power law


class ScalingRun(NamedTuple):
    """A finished base model."""

    tag: str
    depth: int
    n: int  # parameters in matrices and head
    tokens: int
    ratio: float  # tokens : n
    flops: float  # counted during training
    budget: float  # FLOPs by --target-flops; -1 for another horizon
    bpb: float  # bits per byte on validation text
    stderr: float  # standard error, in bits per byte


class Optimum(NamedTuple):
    """The best size for a budget; None: the sizes do not include one."""

    flops: float  # the budget
    n: float | None = None
    tokens: float | None = None
    ratio: float | None = None  # tokens : n
    bpb: float | None = None  # bits per byte at that size


# ---- finished runs ----


def read_runs(base: Path, prefix: str) -> list[ScalingRun]:
    """Return the finished base runs with a tag prefix and a validation loss, by depth and FLOPs."""
    runs = []
    for outcome in read_outcomes(base):
        metrics = outcome.metrics
        bpb = metrics.get("Final validation bpb")
        # A text if it was not measured; other stages have none.
        if isinstance(bpb, dict) and outcome.stage == "base_train" and outcome.tag.startswith(prefix):
            n = metrics["Number of parameters, matrices"] + metrics["Number of parameters, head"]
            run = ScalingRun(
                tag=outcome.tag,
                depth=outcome.config["depth"],
                n=n,
                tokens=metrics["Tokens seen"],
                ratio=metrics["Tokens seen"] / n,
                flops=outcome.figure("Total training flops"),
                budget=outcome.config["target_flops"],
                bpb=bpb["value"],
                stderr=bpb["stderr"],
            )
            runs.append(run)
    return sorted(runs, key=attrgetter("depth", "flops"))


def by_budget(runs: Sequence[ScalingRun]) -> dict[float, list[ScalingRun]]:
    """Return budget -> runs, in order."""
    # Runs with another horizon have no budget.
    groups = groupby(sorted(runs, key=attrgetter("budget")), attrgetter("budget"))
    return {budget: list(group) for budget, group in groups if budget > 0}


# ---- fits ----


def optimum(runs: Sequence[ScalingRun]) -> Optimum:
    """Return the best size for a budget. runs: all with this budget."""
    unknown = Optimum(runs[0].budget)
    if len(runs) < LEAST_POINTS:
        return unknown
    x = np.log([run.n for run in runs])
    curve = np.polyfit(x, [run.bpb for run in runs], 2)
    best = -curve[1] / (2 * curve[0])
    # A noisy or far too short sweep may bend downwards. An extrapolated minimum is not trusted.
    if curve[0] <= 0 or not x.min() <= best <= x.max():
        return unknown
    # At one budget, log tokens are nearly a line in log N.
    line = np.polyfit(x, np.log([run.tokens for run in runs]), 1)
    n, tokens = math.exp(best), math.exp(np.polyval(line, best))
    return Optimum(runs[0].budget, n, tokens, tokens / n, bpb=np.polyval(curve, best))


def power_law(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float, float]:
    """Return the power law through points at two places or more: exponent, its standard error, y at the largest x.

    Least squares of the logarithms. Two points have no standard error (NaN).
    """
    from scipy.stats import linregress  # not at the top: the import takes a second

    line = linregress(np.log(xs), np.log(ys))
    # Two degrees of freedom go into the line.
    stderr = line.stderr if len(xs) >= LEAST_POINTS else math.nan
    # Read from the line: the noise in a single budget averages out.
    return line.slope, stderr, math.exp(line.intercept + line.slope * math.log(max(xs)))
