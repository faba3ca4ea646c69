"""Scaling fits: the best model size of each compute budget, and power laws over budgets.

At a fixed budget C the final loss is a parabola in log N, with the best size at the lowest point (Chinchilla's second
approach, arXiv 2203.15556). Over budgets, the best N and its tokens grow as powers of C. N: parameters of matrices and
head, as in nanochat/scaling.py. FLOPs are counted during training.
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
    n: int  # parameters of matrices and head
    tokens: int
    flops: float  # counted during training
    budget: float  # FLOPs of --target-flops; -1 for another horizon
    bpb: float  # bits per byte of the validation text
    stderr: float  # standard error of bpb
    core: float | None  # CORE metric; None if it was not measured


class Optimum(NamedTuple):
    """The best size of a budget."""

    flops: float  # the budget
    n: float
    tokens: float
    bpb: float  # bits per byte at that size


@dataclass(frozen=True)
class PowerLaw:
    """y = e^height x^exponent."""

    height: float
    exponent: float
    stderr: float  # standard error of the exponent; NaN for two points

    def __call__(self, x: float) -> float:
        return math.exp(self.height + self.exponent * math.log(x))


# ---- finished runs ----


def read_runs(base: Path, prefix: str) -> tuple[list[ScalingRun], list[str]]:
    """Return the runs of base_train with a tag prefix, by depth and FLOPs, and a line about each unusable one."""
    runs, left_out = [], []
    for folder in sorted(base.glob(f"base_train/{prefix}*/")):
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
    bpb, core = metrics["Final validation bpb"], metrics["CORE metric estimate"]
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
    """Return budget -> its runs, by size."""
    budgets: dict[float, list[ScalingRun]] = {}
    for run in sorted(runs, key=lambda run: (run.budget, run.n)):
        if run.budget > 0:
            budgets.setdefault(run.budget, []).append(run)
    return budgets


# ---- fits ----


def optimum(runs: Sequence[ScalingRun]) -> Optimum:
    """Return the best size of a budget from its runs; a ValueError says which runs are missing."""
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
    if square <= 0:
        raise ValueError(f"{budget} has no lowest point, its runs bend the other way: train other depths, or longer")
    best = -slope / (2 * square)
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
    exponent, height = np.polyfit(x - middle, y, 1)
    residuals = y - np.polyval([exponent, height], x - middle)
    variance = (residuals**2).sum() / max(1, len(x) - 2)
    stderr = math.sqrt(variance / ((x - middle) ** 2).sum()) if len(x) >= LEAST_POINTS else math.nan
    return PowerLaw(float(height - exponent * middle), float(exponent), stderr)
