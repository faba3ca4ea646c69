"""Compare base models at several sizes: a table, a plot, power laws; for sweeps at fixed FLOPs the best size.

python -m scripts.scaling --kind=miniseries --prefix=miniseries-d
python -m scripts.scaling --kind=laws --prefix=scaling-
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from nanochat.config import option, options, run
from nanochat.lab.scaling_fit import Optimum, ScalingRun, by_budget, optimum, power_law, read_runs
from nanochat.log import print0
from nanochat.paths import base_dir, write_text
from nanochat.report.card import markdown_table
from nanochat.report.plots import Plot, draw_plot, picture_file


@options("runs")
class Config:
    """Compare finished base models, as runs/miniseries.sh and runs/scaling_laws.sh train them."""

    kind: Literal["miniseries", "laws"] = option(
        "miniseries", "miniseries: one run a depth; laws: sweeps of fixed FLOPs"
    )
    prefix: str = option("", "prefix of the runs' tags (default: all of base_train)")
    out: str = option("", "file to write, with the plot beside it (default: KIND.md)", group="place")


# Cells of a table, for a run and for the best size of a budget.
RUN = "{0.tag}|{0.depth}|{0.n:,}|{0.tokens:,}|{ratio:.2f}|{0.flops:.3e}|{0.bpb:.4f} ± {0.stderr:.4f}"
BEST = "{0.n:,.0f}|{0.tokens:,.0f}|{ratio:.2f}|{0.bpb:.4f}"
GROWTH = """\
- N grows as FLOPs^{sizes.exponent:.3f}, exponent ± {sizes.stderr:.3f}; at {flops:.3g} FLOPs {best_n:,.0f}
- tokens grow as FLOPs^{tokens.exponent:.3f}, exponent ± {tokens.stderr:.3f}; at {flops:.3g} FLOPs {best_tokens:,.0f}
- at {flops:.3g} FLOPs this suggests {ratio:.1f} tokens for each parameter: `--target-param-data-ratio={ratio:.1f}`"""
NO_BEST = "not among these sizes: train more depths|-|-|-"


def table(lines: Sequence[str]) -> str:
    """Return a table in Markdown; | separates the cells of a line."""
    return markdown_table([line.split("|") for line in lines])


def runs_table(runs: Sequence[ScalingRun]) -> str:
    header = "Run|Depth|N|Tokens|Tokens : N|FLOPs|Bits per byte"
    return table([header, *(RUN.format(one, ratio=one.tokens / one.n) for one in runs)])


def miniseries(runs: Sequence[ScalingRun]) -> tuple[list[str], Plot]:
    """Return parts of the page, and the plot: bits per byte against compute, with their power law."""
    flops = [one.flops for one in runs]
    losses = [one.bpb for one in runs]
    # FLOPs span several powers of ten: the axis is logarithmic.
    log_flops = [math.log10(count) for count in flops]
    series = {"runs": (log_flops, losses)}
    parts = [runs_table(runs)]
    if len(set(flops)) > 1:
        law = power_law(flops, losses)
        parts.append(
            f"With ten times the FLOPs, bits per byte are {10**law.exponent:.3f} times as many: they scale as "
            f"FLOPs^{law.exponent:.4f}, exponent ± {law.stderr:.4f}."
        )
        series["power law"] = (log_flops, list(map(law, flops)))
    return parts, {
        "title": "Bits per byte against compute",
        "x": "log10 FLOPs",
        "y": "bits per byte",
        "series": series,
    }


def laws(runs: Sequence[ScalingRun]) -> tuple[list[str], Plot]:
    """Return parts of the page, and the plot: each budget's best size, the growth, and tokens per parameter."""
    found = []  # best sizes, for budgets that have one
    lines = ["FLOPs|N|Tokens|Tokens : N|Bits per byte"]
    series = {}
    for budget, group in by_budget(runs).items():
        series[f"{budget:.3g} FLOPs"] = ([math.log10(one.n) for one in group], [one.bpb for one in group])
        best = optimum(group)
        cells = NO_BEST
        if best:
            found.append(best)
            cells = BEST.format(best, ratio=best.tokens / best.n)
        lines.append(f"{budget:.3g}|{cells}")
    parts = [runs_table(runs), "## The best size of each budget", table(lines)]
    # With a single budget there is no growth.
    if len(found) > 1:
        parts += ["## Growth", growth(found)]
    return parts, {
        "title": "Bits per byte at fixed compute",
        "x": "log10 N",
        "y": "bits per byte",
        "series": series,
    }


def growth(found: Sequence[Optimum]) -> str:
    """Return the growth laws for N and tokens as a list, and the tokens per parameter at the largest budget."""
    flops = [best.flops for best in found]
    sizes = power_law(flops, [best.n for best in found])
    tokens = power_law(flops, [best.tokens for best in found])
    # Read from the fitted lines: the noise in a single budget averages out.
    most = max(flops)
    return GROWTH.format(
        flops=most,
        sizes=sizes,
        best_n=sizes(most),
        tokens=tokens,
        best_tokens=tokens(most),
        ratio=tokens(most) / sizes(most),
    )


KINDS = {"miniseries": miniseries, "laws": laws}  # --kind -> function


def main(config: Config) -> None:
    out = Path(config.out or f"{config.kind}.md").expanduser()
    runs = read_runs(base_dir(), config.prefix)
    if not runs:
        raise ValueError(f"--prefix={config.prefix}: no such run has finished with a validation loss in {base_dir()}")
    parts, plot = KINDS[config.kind](runs)
    picture = out.with_suffix(".svg")
    write_text(picture, picture_file(draw_plot(plot)))
    # The link is relative, so that both files can move together.
    title = plot["title"]
    page = [f"# {title}", *parts, f"![{title}]({picture.name})"]
    write_text(out, "\n\n".join(page) + "\n")
    print0(*parts, f"{config.kind}: {out.resolve()}", sep="\n\n")


if __name__ == "__main__":
    run(main, Config)
