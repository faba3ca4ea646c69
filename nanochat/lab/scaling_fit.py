"""What runs of several sizes say together: a table, the best size of each budget of compute, and how it grows.

At a fixed budget C the final loss is a parabola in log N, whose lowest point is the best size (Chinchilla's second
approach, arXiv 2203.15556). Over budgets N = a x C^b, tokens likewise. N: matrices and head, as in nanochat/scaling.py.
FLOPs are those counted while training.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanochat.outcome import Outcome

LEAST = 3  # points that decide on a parabola, or on a power law and its error


class Run(NamedTuple):
    """A finished base model. budget: the FLOPs that it was given, -1 if something else decided on its length."""

    tag: str
    depth: int
    n: int
    tokens: int
    flops: float
    budget: float
    bpb: float
    stderr: float
    core: float | None


class Optimum(NamedTuple):
    """The best size of a budget."""

    flops: float
    n: float
    tokens: float
    bpb: float


@dataclass(frozen=True)
class PowerLaw:
    """y = e^height x^exponent. stderr: of the exponent; nan of two points."""

    height: float
    exponent: float
    stderr: float

    def __call__(self, x: float) -> float:
        return math.exp(self.height + self.exponent * math.log(x))


def read_runs(base: Path, prefix: str) -> tuple[list[Run], list[str]]:
    """Runs of base_train whose tag begins so, by depth and budget; and a line about each that tells nothing."""
    runs, left_out = [], []
    for folder in sorted(base.glob(f"base_train/{prefix}*/")):
        try:
            runs.append(_read_run(folder))
        except (OSError, KeyError, ValueError) as error:
            left_out.append(f"{folder.name} is left out: {getattr(error, 'strerror', None) or error}")
    return sorted(runs, key=lambda run: (run.depth, run.flops)), left_out


def _read_run(folder: Path) -> Run:
    if not (folder / "outcome.json").exists():
        raise ValueError("it has not come to its end")
    outcome = Outcome.load(folder / "outcome.json")
    facts, config = outcome.metrics, outcome.config
    bpb, core = facts["Final validation bpb"], facts["CORE metric estimate"]
    if not isinstance(bpb, dict):
        raise ValueError("it was not validated, which --eval-every=0 and more does")
    n = sum(facts[f"Number of parameters, {kind}"] for kind in ("matrices", "head"))
    spent = facts["Tokens seen"], facts["Total training flops"]["value"], config["target_flops"]
    return Run(
        folder.name, config["depth"], n, *spent, bpb["value"], bpb["stderr"], core["value"] if core != "n/a" else None
    )


def by_budget(runs: Sequence[Run]) -> dict[float, list[Run]]:
    """Those that were given one, by size."""
    budgets = sorted({run.budget for run in runs if run.budget > 0})
    return {budget: sorted((run for run in runs if run.budget == budget), key=lambda run: run.n) for budget in budgets}


def optimum(runs: Sequence[Run]) -> Optimum:
    """The best size of a budget, from its runs; ValueError with what to run where they do not tell."""
    flops = runs[0].budget
    what = f"the budget of {flops:.3g} FLOPs"
    if (sizes := len({run.n for run in runs})) < LEAST:
        raise ValueError(f"{what} has runs of {sizes} sizes, of which no lowest point follows: train {LEAST} and more")
    x, y = (np.log([run.n for run in runs]), [run.bpb for run in runs])
    middle = x.mean()  # numbers near zero, or the squares of large ones lose their digits
    square, slope, _ = curve = np.polyfit(x - middle, y, 2)
    if square <= 0:
        raise ValueError(f"{what} has no lowest point, its runs bend the other way: train other depths, or longer")
    best = -slope / (2 * square)
    for beyond, where, others in (
        (best < x.min() - middle, "below", "smaller"),
        (best > x.max() - middle, "above", "larger"),
    ):
        if beyond:
            raise ValueError(f"{what} has its lowest point {where} all sizes that were tried: train {others} depths")
    tokens = np.polyfit(x - middle, np.log([run.tokens for run in runs]), 1)  # at one budget a line, nearly
    return Optimum(flops, math.exp(best + middle), math.exp(np.polyval(tokens, best)), np.polyval(curve, best))


def power_law(xs: Sequence[float], ys: Sequence[float]) -> PowerLaw:
    """Through points of positive numbers, least squares of the logarithms."""
    if len(set(xs)) < 2:
        raise ValueError(f"a power law needs points at two places, not {len(set(xs))}: run another size or budget")
    x, y = np.log(xs), np.log(ys)
    middle = x.mean()
    exponent, height = np.polyfit(x - middle, y, 1)
    spread = ((y - np.polyval([exponent, height], x - middle)) ** 2).sum() / max(1, len(x) - 2)
    stderr = math.sqrt(spread / ((x - middle) ** 2).sum()) if len(x) >= LEAST else math.nan
    return PowerLaw(float(height - exponent * middle), float(exponent), stderr)
