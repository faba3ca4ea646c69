"""Compare base models at several sizes: tables, a plot, power laws; for sweeps at fixed FLOPs the best size.

python -m scripts.scaling --kind=miniseries --tag=miniseries --prefix=miniseries-d
python -m scripts.scaling --kind=laws --tag=scaling --prefix=scaling-
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from nanochat.config import changed, option, options, run
from nanochat.lab.scaling_fit import Optimum, ScalingRun, by_budget, optimum, power_law, read_runs
from nanochat.log import Record, table_of
from nanochat.outcome import Outcome
from nanochat.paths import base_dir
from nanochat.settings import TagSettings


@options("runs")
class Config(TagSettings):
    """Compare finished base models, as runs/miniseries.sh and runs/scaling_laws.sh train them."""

    tag = changed("scaling", text="name of the comparison, and of its folder")
    kind: Literal["miniseries", "laws"] = option(
        "miniseries", "miniseries: one run a depth; laws: sweeps of fixed FLOPs"
    )
    prefix: str = option("", "prefix of the runs' tags (default: all of base_train)")


# Columns of the table of runs, which has a row for each.
COLUMNS = "Run | Depth | N:,d | Tokens:,d | Tokens : N:.2f | FLOPs:.3e | --target-flops:g | Bits per byte:.4f | ±:.4f"
BEST_TITLE = "The best size of each budget (-: not among these sizes, train more depths)"
BEST_COLUMNS = "FLOPs:.3g | N:,.0f | Tokens:,.0f | Tokens : N:.2f | Bits per byte:.4f"


def laws_table(points: Sequence[ScalingRun | Optimum], quantities: Mapping[str, str]) -> Record:
    """Return the table of power laws over FLOPs, empty for a single number of FLOPs. quantities: title -> field."""
    columns = "Quantity | Exponent:.4f | ±:.4f | FLOPs:.3g | Value there:.4g"
    rows = []
    flops = [point.flops for point in points]
    if len(set(flops)) > 1:
        for title, name in quantities.items():
            exponent, stderr, there = power_law(flops, [getattr(point, name) for point in points])
            rows.append([title, exponent, stderr, max(flops), there])
    return table_of("Power laws of the FLOPs", columns, rows)


def plot(title: str, x: str, groups: Mapping[str, Sequence[ScalingRun]]) -> Record:
    """Return the plot of bits per byte, with a line for each group. x: a field that spans several powers of ten."""
    series = {}
    for name, runs in groups.items():
        series[name] = [[math.log10(getattr(one, x)) for one in runs], [one.bpb for one in runs]]
    return {"title": title, "x": f"log10 {x}", "y": "bits per byte", "series": series}


def main(config: Config) -> None:
    outcome = Outcome.begin("scaling", config.tag, config)
    runs = read_runs(base_dir(), config.prefix)
    if not runs:
        raise ValueError(f"--prefix={config.prefix}: no such run has finished with a validation loss in {base_dir()}")
    outcome.tables = [table_of("Runs", COLUMNS, runs)]
    if config.kind == "miniseries":
        outcome.tables.append(laws_table(runs, {"Bits per byte": "bpb"}))
        outcome.curves = [plot("Bits per byte against compute", "flops", {"runs": runs})]
    else:
        sweeps = by_budget(runs)
        found = [optimum(group) for group in sweeps.values()]
        outcome.tables.append(table_of(BEST_TITLE, BEST_COLUMNS, found))
        growth = {"N": "n", "Tokens": "tokens", "Tokens : N, for --target-param-data-ratio": "ratio"}
        outcome.tables.append(laws_table([best for best in found if best.n], growth))
        lines = {f"{budget:.3g} FLOPs": group for budget, group in sweeps.items()}
        outcome.curves = [plot("Bits per byte at fixed compute", "n", lines)]
    outcome.finish()


if __name__ == "__main__":
    run(main, Config)
