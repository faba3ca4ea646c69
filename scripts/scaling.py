"""Compare base models of several sizes: a table, a plot, power laws; for sweeps of fixed FLOPs the best size.

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

CURVE_POINTS = 50
COLUMNS = ["Run", "Depth", "N", "Tokens", "Tokens : N", "FLOPs", "Bits per byte", "CORE"]


@dataclass(frozen=True)
class Config:
    """Compare finished base models, as runs/miniseries.sh and runs/scaling_laws.sh train them."""

    kind: str = option("miniseries", "miniseries: one run a depth; laws: sweeps of fixed FLOPs", group="runs")
    prefix: str = option("", "prefix of the runs' tags; empty: all of base_train", group="runs")
    base_dir: str = option("", "folder of the runs; empty: NANOCHAT_BASE_DIR", group="place", unit="FOLDER")
    out: str = option("", "file to write, with the plot beside it; empty: KIND.md", group="place", unit="FILE")


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join("| " + " | ".join(map(str.rjust, line, widths)) + " |" for line in (columns, rule, *rows))


def run_row(one: "ScalingRun") -> list[str]:
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

    log_flops = [math.log10(one.flops) for one in runs]
    losses = [one.bpb for one in runs]
    series = {"runs": (log_flops, losses)}
    try:
        law = power_law([one.flops for one in runs], losses)
        text = (
            f"With ten times the FLOPs, bits per byte are {10**law.exponent:.3f} times as many: they scale as "
            f"FLOPs^{law.exponent:.4f}, exponent ± {law.stderr:.4f}."
        )
        low, high = min(log_flops), max(log_flops)
        xs = [low + (high - low) * place / (CURVE_POINTS - 1) for place in range(CURVE_POINTS)]
        series["power law"] = (xs, [law(10**x) for x in xs])
    except ValueError as error:  # too few sizes
        text = f"{error}."
    plot = {"title": "Bits per byte against compute", "x": "log10 FLOPs", "y": "bits per byte", "series": series}
    return [markdown_table(COLUMNS, [run_row(one) for one in runs]), text], plot


def laws(runs: Sequence["ScalingRun"]) -> tuple[list[str], "Plot"]:
    """Return parts of the page, and the plot: the best size of each budget, its growth, and tokens per parameter."""
    from nanochat.lab.scaling_fit import by_budget, optimum

    budgets = by_budget(runs)
    if not budgets:
        raise ValueError("no run has --target-flops, the budget: take another --prefix")
    found, notes = [], []
    for group in budgets.values():
        try:
            found.append(optimum(group))
        except ValueError as error:
            notes.append(f"- {error}.")
    parts = [
        markdown_table(COLUMNS, [run_row(one) for group in budgets.values() for one in group]),
        "## The best size of each budget",
    ]
    if found:
        columns = ["FLOPs", "N", "Tokens", "Tokens : N", "Bits per byte"]
        parts.append(markdown_table(columns, [optimum_row(best) for best in found]))
    if notes:
        parts.append("\n".join(notes))
    parts += ["## Growth", growth(found)]
    series = {
        f"{budget:.3g} FLOPs": ([math.log10(one.n) for one in group], [one.bpb for one in group])
        for budget, group in budgets.items()
    }
    return parts, {"title": "Bits per byte at fixed compute", "x": "log10 N", "y": "bits per byte", "series": series}


def optimum_row(best: "Optimum") -> list[str]:
    ratio = best.tokens / best.n
    return [f"{best.flops:.3g}", f"{best.n:,.0f}", f"{best.tokens:,.0f}", f"{ratio:.2f}", f"{best.bpb:.4f}"]


def growth(found: Sequence["Optimum"]) -> str:
    """Return the growth of the best N and of its tokens, and the tokens per parameter at the largest budget."""
    from nanochat.lab.scaling_fit import LEAST_POINTS, power_law

    flops = [best.flops for best in found]
    try:
        sizes = power_law(flops, [best.n for best in found])
        tokens = power_law(flops, [best.tokens for best in found])
    except ValueError as error:
        return f"{error}."
    most = max(flops)
    ratio = tokens(most) / sizes(most)
    lines = [
        f"- {name} as FLOPs^{law.exponent:.3f}, exponent ± {law.stderr:.3f}; at {most:.3g} FLOPs {law(most):,.0f}"
        for name, law in (("N grows", sizes), ("tokens grow", tokens))
    ]
    lines.append(
        f"- at {most:.3g} FLOPs this suggests {ratio:.1f} tokens for each parameter: "
        f"`--target-param-data-ratio={ratio:.1f}`"
    )
    if len(found) < LEAST_POINTS:
        lines.append(f"- {len(found)} budgets give no error, take {LEAST_POINTS}")
    return "\n".join(lines)


KINDS = {"miniseries": miniseries, "laws": laws}


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
    parts += [f"- {line}" for line in left_out]
    picture = out.with_suffix(".svg")
    write_text(picture, picture_file(draw_plot(plot)))
    page = [f"# {plot['title']}", *parts, f"![{plot['title']}]({picture.name})"]
    write_text(out, "\n\n".join(page) + "\n")
    print0(*parts, f"{config.kind}: {out.resolve()}", sep="\n\n")


if __name__ == "__main__":
    run(main, Config)
