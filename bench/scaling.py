"""Compare base models at several sizes: tables, a plot, power laws; for sweeps at fixed FLOPs the best size.

python -m bench.scaling --kind=miniseries --tag=miniseries --prefix=miniseries-d
python -m bench.scaling --kind=laws --tag=scaling --prefix=scaling-
python -m bench.scaling --kind=miniseries --tag=two --runs=d8,d12

At a fixed budget C the final loss is a parabola in log N, with the best size at the lowest point (Chinchilla's second
approach, arXiv 2203.15556). Over budgets, the best N and the best token count grow as powers of C. N: parameters in
matrices and head (or the embedding that is the head too), as in nanochat/scaling.py. FLOPs are counted during training.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Literal

import numpy as np

from bench.findings import Findings, JsonFile
from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.ladder import counts_of
from nanochat.log import table_of
from nanochat.outcome import Outcome, readable_outcomes
from nanochat.paths import base_dir
from nanochat.settings import TagSettings

LEAST_POINTS = 3  # for a parabola, and for the error of a power law
# Columns of the table of runs, which has a row for each.
COLUMNS = "Run | Depth | N:,d | Tokens:,d | Tokens : N:.2f | FLOPs:.3e | --target-flops:g | Bits per byte:.4f | ±:.4f"
BEST_TITLE = "The best size of each budget (-: not among these sizes, train more depths)"
BEST_COLUMNS = "FLOPs:.3g | N:,.0f | Tokens:,.0f | Tokens : N:.2f | Bits per byte:.4f"


@options("runs")
class Config(TagSettings):
    """Compare finished base models, as runs/miniseries.sh and runs/scaling_laws.sh train them."""

    tag = option("scaling", "name of the comparison, and of its folder")
    kind: Literal["miniseries", "laws"] = option(
        "miniseries", "miniseries: one run a depth; laws: sweeps of fixed FLOPs"
    )
    prefix: str = option("", "prefix of the runs' tags (default: all of base_train)")
    runs: str = option("", "tags of the runs, separated by commas, in place of a prefix")
    json: JsonFile = option(
        "", "also write the rows, machine, date and commit as JSON; without a file, print that alone", in_card=False
    )

    def __post_init__(self) -> None:
        if self.prefix and self.runs:
            raise UserError("--prefix and --runs both choose the runs: keep one")


@dataclass(frozen=True)
class ScalingRun:
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


@dataclass(frozen=True)
class Optimum:
    """The best size for a budget; None: the sizes do not include one."""

    flops: float  # the budget
    n: float | None = None
    tokens: float | None = None
    ratio: float | None = None  # tokens : n
    bpb: float | None = None  # bits per byte at that size


# ---- finished runs ----


def read_runs(base: Path, prefix: str, tags: Sequence[str] = ()) -> list[ScalingRun]:
    """Return the finished base runs with a tag prefix and a validation loss, by depth and FLOPs.

    tags: these runs, in place of those with the prefix; a UserError if one of them has no such loss.
    """
    found = [run_of(outcome) for outcome in readable_outcomes(base, "base_train")]
    runs = [run for run in found if run and (run.tag in tags if tags else run.tag.startswith(prefix))]
    missing = set(tags) - {run.tag for run in runs}
    if missing:
        raise UserError(f"{', '.join(sorted(missing))}: no such run has finished with a validation loss in {base}")
    return sorted(runs, key=attrgetter("depth", "flops"))


def run_of(outcome: Outcome) -> ScalingRun | None:
    """Return a base run's figures; None if its validation loss was not measured."""
    from nanochat.scaling import scaled_size  # slow

    metrics = outcome.metrics
    bpb = metrics.get("Final validation bpb")
    if not isinstance(bpb, dict):  # a text if it was not measured
        return None
    n = scaled_size(counts_of(outcome))
    return ScalingRun(
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


def by_budget(runs: Sequence[ScalingRun]):
    """Return budget -> runs, in order."""
    # Runs with another horizon have no budget.
    groups = groupby(sorted(runs, key=attrgetter("budget")), attrgetter("budget"))
    return {budget: list(group) for budget, group in groups if budget > 0}


# ---- fits ----


def optimum(runs: Sequence[ScalingRun]):
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
    n = math.exp(best)
    tokens = math.exp(np.polyval(line, best))
    return Optimum(runs[0].budget, n, tokens, tokens / n, bpb=np.polyval(curve, best))


def power_law(xs: Sequence[float], ys: Sequence[float]):
    """Return the power law through points at two places or more: exponent, its standard error, y at the largest x.

    Least squares of the logarithms. Two points have no standard error (NaN).
    """
    from scipy.stats import linregress  # not at the top: the import takes a second

    line = linregress(np.log(xs), np.log(ys))
    # Two degrees of freedom go into the line.
    stderr = line.stderr if len(xs) >= LEAST_POINTS else math.nan
    # Read from the line: the noise in a single budget averages out.
    return line.slope, stderr, math.exp(line.intercept + line.slope * math.log(max(xs)))


# ---- the report ----


def laws_table(points: Sequence[ScalingRun | Optimum], quantities: Mapping[str, str]):
    """Return the table of power laws over FLOPs, empty for a single number of FLOPs. quantities: title -> field."""
    columns = "Quantity | Exponent:.4f | ±:.4f | FLOPs:.3g | Value there:.4g"
    rows = []
    flops = [point.flops for point in points]
    if len(set(flops)) > 1:
        for title, name in quantities.items():
            exponent, stderr, there = power_law(flops, [getattr(point, name) for point in points])
            rows.append([title, exponent, stderr, max(flops), there])
    return table_of("Power laws of the FLOPs", columns, rows)


def plot(title: str, x: str, groups: Mapping[str, Sequence[ScalingRun]]):
    """Return the plot of bits per byte, with a line for each group. x: a field that spans several powers of ten."""
    series = {}
    for name, runs in groups.items():
        series[name] = [[math.log10(getattr(one, x)) for one in runs], [one.bpb for one in runs]]
    return {"title": title, "x": f"log10 {x}", "y": "bits per byte", "series": series}


def main(config: Config) -> None:
    findings = Findings("scaling", config.json)
    outcome = Outcome.begin("scaling", config.tag, config)
    runs = read_runs(base_dir(), config.prefix, [tag.strip() for tag in config.runs.split(",") if tag.strip()])
    if not runs:
        raise UserError(f"--prefix={config.prefix}: no such run has finished with a validation loss in {base_dir()}")
    outcome.tables = [table_of("Runs", COLUMNS, [astuple(run) for run in runs])]
    if config.kind == "miniseries":
        outcome.tables.append(laws_table(runs, {"Bits per byte": "bpb"}))
        outcome.curves = [plot("Bits per byte against compute", "flops", {"runs": runs})]
    else:
        sweeps = by_budget(runs)
        found = [optimum(group) for group in sweeps.values()]
        outcome.tables.append(table_of(BEST_TITLE, BEST_COLUMNS, [astuple(best) for best in found]))
        growth = {"N": "n", "Tokens": "tokens", "Tokens : N, for --target-param-data-ratio": "ratio"}
        outcome.tables.append(laws_table([best for best in found if best.n], growth))
        lines = {f"{budget:.3g} FLOPs": group for budget, group in sweeps.items()}
        outcome.curves = [plot("Bits per byte at fixed compute", "n", lines)]
    for table in outcome.tables:
        findings.keep(table)
    outcome.finish()
    findings.write()


if __name__ == "__main__":
    run_script(main)
