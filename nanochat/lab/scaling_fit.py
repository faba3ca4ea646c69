"""Scaling fits: the best model size for each compute budget, and power laws over budgets.

At a fixed budget C the final loss is a parabola in log N, with the best size at the lowest point (Chinchilla's second
approach, arXiv 2203.15556). Over budgets, the best N and the best token count grow as powers of C. N: parameters in
matrices and head, as in nanochat/scaling.py. FLOPs are counted during training.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanochat.outcome import Outcome

LEAST_POINTS = 3  # for a parabola, and for the error of a power law


class ScalingRun(NamedTuple):
    """A finished base model."""

    tag: str
    depth: int
    n: int  # parameters in matrices and head
    tokens: int
    flops: float  # counted during training
    budget: float  # FLOPs by --target-flops; -1 for another horizon
    bpb: float  # bits per byte on validation text
    stderr: float  # standard error, in bits per byte
    core: float | None  # CORE metric; None if not measured


class Optimum(NamedTuple):
    """The best size for a budget."""

    flops: float  # the budget
    n: float
    tokens: float
    bpb: float  # bits per byte at that size


@dataclass(frozen=True)
class PowerLaw:
    """y = e^height x^exponent."""

    height: float
    exponent: float
    stderr: float  # standard error for the exponent; NaN for two points

    def __call__(self, x: float) -> float:
        return math.exp(self.height + self.exponent * math.log(x))


# ---- finished runs ----


def read_runs(base: Path, prefix: str) -> tuple[list[ScalingRun], list[str]]:
    """Return the base runs with a tag prefix, by depth and FLOPs, and a line about each unusable one."""
    runs, left_out = [], []
    for folder in sorted(base.glob(f"base_train/{prefix}*/")):
        # A failed run must not hide the others.
        try:
            runs.append(_read_run(folder))
        except OSError as error:
            left_out.append(f"{folder.name} is left out: {error.strerror}")
        except (KeyError, ValueError) as error:
            left_out.append(f"{folder.name} is left out: {error}")
    runs.sort(key=lambda run: (run.depth, run.flops))
    return runs, left_out


def _read_run(folder: Path) -> ScalingRun:
    path = folder / "outcome.json"
    if not path.exists():
        raise ValueError("the run has not finished")
    outcome = Outcome.load(path)
    metrics = outcome.metrics
    bpb = metrics["Final validation bpb"]
    core = metrics["CORE metric estimate"]
    # A metric that was not measured is text.
    if not isinstance(bpb, dict):
        raise ValueError("the run has no validation, take --eval-every=0 or more")
    return ScalingRun(
        tag=folder.name,
        depth=outcome.config["depth"],
        n=metrics["Number of parameters, matrices"] + metrics["Number of parameters, head"],
        tokens=metrics["Tokens seen"],
        flops=metrics["Total training flops"]["value"],
        budget=outcome.config["target_flops"],
        bpb=bpb["value"],
        stderr=bpb["stderr"],
        core=core["value"] if isinstance(core, dict) else None,
    )


def by_budget(runs: Sequence[ScalingRun]) -> dict[float, list[ScalingRun]]:
    """Return budget -> runs, by size."""
    budgets: dict[float, list[ScalingRun]] = {}
    for run in sorted(runs, key=lambda run: (run.budget, run.n)):
        # Runs with another horizon have no budget.
        if run.budget > 0:
            budgets.setdefault(run.budget, []).append(run)
    return budgets


# ---- fits ----


def optimum(runs: Sequence[ScalingRun]) -> Optimum:
    """Return the best size for a budget; a ValueError names the missing runs. runs: all with this budget."""
    flops = runs[0].budget
    budget = f"the budget of {flops:.3g} FLOPs"
    sizes = len({run.n for run in runs})
    if sizes < LEAST_POINTS:
        raise ValueError(
            f"{budget} has runs of {sizes} sizes, too few for a lowest point: train {LEAST_POINTS} or more"
        )
    log_n = np.log([run.n for run in runs])
    # Centred, because the squares of large numbers lose digits.
    middle = log_n.mean()
    x = log_n - middle
    curve = np.polyfit(x, [run.bpb for run in runs], 2)
    square, slope, _ = curve
    # A noisy or far too short sweep may bend downwards.
    if square <= 0:
        raise ValueError(f"{budget} has no lowest point, its runs bend the other way: train other depths, or longer")
    best = -slope / (2 * square)
    # An extrapolated minimum is not trusted.
    if best < x.min():
        raise ValueError(f"{budget} has its lowest point below all sizes: train smaller depths")
    if best > x.max():
        raise ValueError(f"{budget} has its lowest point above all sizes: train larger depths")
    # At one budget, log tokens are nearly a line in log N.
    line = np.polyfit(x, np.log([run.tokens for run in runs]), 1)
    return Optimum(
        flops=flops,
        n=math.exp(best + middle),
        tokens=math.exp(np.polyval(line, best)),
        bpb=np.polyval(curve, best),
    )


def power_law(xs: Sequence[float], ys: Sequence[float]) -> PowerLaw:
    """Return the power law through positive points: least squares of the logarithms."""
    places = len(set(xs))
    if places < 2:
        raise ValueError(f"a power law needs points at two places, not {places}: run another size or budget")
    x, y = np.log(xs), np.log(ys)
    middle = x.mean()
    centred = x - middle
    exponent, height = np.polyfit(centred, y, 1)
    residuals = y - np.polyval([exponent, height], centred)
    # Two degrees of freedom go into the line; two points leave none for an error.
    variance = (residuals**2).sum() / max(1, len(x) - 2)
    stderr = math.sqrt(variance / (centred**2).sum()) if len(x) >= LEAST_POINTS else math.nan
    return PowerLaw(
        height=float(height - exponent * middle),  # at x = 1, not at the middle
        exponent=float(exponent),
        stderr=stderr,
    )
