"""Compare base models at several sizes: a table, a plot, power laws; for sweeps at fixed FLOPs the best size.

python -m scripts.scaling --kind=miniseries --prefix=miniseries-d
python -m scripts.scaling --kind=laws --prefix=scaling-
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nanochat.config import option, run
from nanochat.log import print0
from nanochat.paths import base_dir, write_text

if TYPE_CHECKING:
    from nanochat.lab.scaling_fit import Optimum, ScalingRun
    from nanochat.report.plots import Plot

CURVE_POINTS = 50  # enough for a smooth line
COLUMNS = ["Run", "Depth", "N", "Tokens", "Tokens : N", "FLOPs", "Bits per byte", "CORE"]


@dataclass(frozen=True)
class Config:
    """Compare finished base models, as runs/miniseries.sh and runs/scaling_laws.sh train them."""

    kind: str = option("miniseries", "miniseries: one run a depth; laws: sweeps of fixed FLOPs", group="runs")
    prefix: str = option("", "prefix of the runs' tags (default: all of base_train)", group="runs")
    base_dir: str = option("", "folder of the runs (default: NANOCHAT_BASE_DIR)", group="place")
    out: str = option("", "file to write, with the plot beside it (default: KIND.md)", group="place")


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    # Cells are padded, so that the source reads as a table too.
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    lines = []
    for cells in (columns, rule, *rows):
        padded = map(str.rjust, cells, widths)
        lines.append("| " + " | ".join(padded) + " |")
    return "\n".join(lines)


def run_row(one: "ScalingRun") -> list[str]:
    # In the order given by COLUMNS.
    return [
        one.tag,
        f"{one.depth}",
        f"{one.n:,}",
        f"{one.tokens:,}",
        f"{one.tokens / one.n:.2f}",
        f"{one.flops:.3e}",
        f"{one.bpb:.4f} ± {one.stderr:.4f}",
        "-" if one.core is None else f"{one.core:.4f}",
    ]


def miniseries(runs: Sequence["ScalingRun"]) -> tuple[list[str], "Plot"]:
    """Return parts of the page, and the plot: bits per byte against compute, with their power law."""
    from nanochat.lab.scaling_fit import power_law

    flops = [one.flops for one in runs]
    # FLOPs span several powers of ten: the axis is logarithmic.
    log_flops = [math.log10(count) for count in flops]
    losses = [one.bpb for one in runs]
    series = {"runs": (log_flops, losses)}
    try:
        law = power_law(flops, losses)
        text = (
            f"With ten times the FLOPs, bits per byte are {10**law.exponent:.3f} times as many: they scale as "
            f"FLOPs^{law.exponent:.4f}, exponent ± {law.stderr:.4f}."
        )
        low = min(log_flops)
        high = max(log_flops)
        # A curve, because only the loss axis is linear.
        xs = [low + (high - low) * place / (CURVE_POINTS - 1) for place in range(CURVE_POINTS)]
        series["power law"] = (xs, [law(10**x) for x in xs])
    except ValueError as error:  # too few sizes: the page gives the reason, and the plot shows the points alone
        text = f"{error}."
    plot = {
        "title": "Bits per byte against compute",
        "x": "log10 FLOPs",
        "y": "bits per byte",
        "series": series,
    }
    table = markdown_table(COLUMNS, [run_row(one) for one in runs])
    return [table, text], plot


def laws(runs: Sequence["ScalingRun"]) -> tuple[list[str], "Plot"]:
    """Return parts of the page, and the plot: each budget's best size, the growth, and tokens per parameter."""
    from nanochat.lab.scaling_fit import by_budget, optimum

    budgets = by_budget(runs)
    if not budgets:
        raise ValueError("no run has --target-flops, the budget: take another --prefix")
    rows = []
    found = []  # best sizes, for budgets that have one
    notes = []  # reasons, for all other budgets
    series = {}
    for budget, group in budgets.items():
        rows += [run_row(one) for one in group]
        sizes = [math.log10(one.n) for one in group]
        series[f"{budget:.3g} FLOPs"] = (sizes, [one.bpb for one in group])
        try:
            found.append(optimum(group))
        except ValueError as error:  # names the depths to train
            notes.append(f"- {error}.")
    parts = [markdown_table(COLUMNS, rows), "## The best size of each budget"]
    # A table without rows would be no Markdown table.
    if found:
        columns = ["FLOPs", "N", "Tokens", "Tokens : N", "Bits per byte"]
        parts.append(markdown_table(columns, [optimum_row(best) for best in found]))
    if notes:
        parts.append("\n".join(notes))
    parts += ["## Growth", growth(found)]
    plot = {
        "title": "Bits per byte at fixed compute",
        "x": "log10 N",
        "y": "bits per byte",
        "series": series,
    }
    return parts, plot


def optimum_row(best: "Optimum") -> list[str]:
    ratio = best.tokens / best.n
    return [
        f"{best.flops:.3g}",
        f"{best.n:,.0f}",
        f"{best.tokens:,.0f}",
        f"{ratio:.2f}",
        f"{best.bpb:.4f}",
    ]


def growth(found: Sequence["Optimum"]) -> str:
    """Return the growth laws for N and tokens as a list, and the tokens per parameter at the largest budget."""
    from nanochat.lab.scaling_fit import LEAST_POINTS, power_law

    flops = [best.flops for best in found]
    try:
        # With a single budget there is no growth.
        sizes = power_law(flops, [best.n for best in found])
        tokens = power_law(flops, [best.tokens for best in found])
    except ValueError as error:
        return f"{error}."
    # Read from the fitted lines: the noise in a single budget averages out.
    most = max(flops)
    ratio = tokens(most) / sizes(most)
    lines = []
    for name, law in (("N grows", sizes), ("tokens grow", tokens)):
        exponent = f"FLOPs^{law.exponent:.3f}, exponent ± {law.stderr:.3f}"
        lines.append(f"- {name} as {exponent}; at {most:.3g} FLOPs {law(most):,.0f}")
    lines.append(
        f"- at {most:.3g} FLOPs this suggests {ratio:.1f} tokens for each parameter: "
        f"`--target-param-data-ratio={ratio:.1f}`"
    )
    # Two points fit exactly.
    if len(found) < LEAST_POINTS:
        lines.append(f"- {len(found)} budgets give no error, take {LEAST_POINTS}")
    return "\n".join(lines)


KINDS = {"miniseries": miniseries, "laws": laws}  # --kind -> function


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.lab.scaling_fit import read_runs
    from nanochat.report.plots import draw_plot, picture_file

    if config.kind not in KINDS:
        raise ValueError(f"--kind={config.kind} is not one of {', '.join(KINDS)}")
    base = Path(config.base_dir).expanduser() if config.base_dir else base_dir()
    out = Path(config.out or f"{config.kind}.md").expanduser()
    runs, left_out = read_runs(base, config.prefix)
    if not runs:
        raise ValueError(f"no run has finished below {base / 'base_train'} / {config.prefix}*; {'; '.join(left_out)}")
    parts, plot = KINDS[config.kind](runs)
    # Failed and unfinished runs are named at the end.
    parts += [f"- {line}" for line in left_out]
    picture = out.with_suffix(".svg")
    write_text(picture, picture_file(draw_plot(plot)))
    # The link is relative, so that both files can move together.
    title = plot["title"]
    page = [f"# {title}", *parts, f"![{title}]({picture.name})"]
    write_text(out, "\n\n".join(page) + "\n")
    print0(*parts, f"{config.kind}: {out.resolve()}", sep="\n\n")


if __name__ == "__main__":
    run(main, Config)
