"""What base models of several sizes say together: a table and a plot, and for sweeps of fixed FLOPs the best size.

python -m scripts.scaling --kind=miniseries --prefix=miniseries-d
python -m scripts.scaling --kind=laws --prefix=scaling-
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nanochat.config import option, run
from nanochat.lab.scaling_fit import LEAST, Run, by_budget, optimum, power_law, read_runs
from nanochat.log import print0
from nanochat.paths import base_dir, write_text

CURVE_POINTS = 50
COLUMNS = ["Run", "Depth", "N", "Tokens", "Tokens : N", "FLOPs", "Bits per byte", "CORE"]


@dataclass(frozen=True)
class Config:
    """Lay finished base models side by side, as runs/miniseries.sh and runs/scaling_laws.sh train them."""

    kind: str = option("miniseries", "miniseries: one for each depth; laws: sweeps of fixed FLOPs", group="runs")
    prefix: str = option("", "what their tags begin with; empty: all of base_train", group="runs")
    base_dir: str = option("", "folder of the runs, NANOCHAT_BASE_DIR if empty", group="place", unit="FOLDER")
    out: str = option(
        "", "the file to write, its plot beside it; empty: the kind's name, .md", group="place", unit="FILE"
    )


def table(columns: list[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = [columns, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(map(str.rjust, line, widths)) + " |" for line in lines)


def cells(one: Run) -> list[str]:
    core = "-" if one.core is None else f"{one.core:.4f}"
    sizes = [f"{one.depth}", f"{one.n:,}", f"{one.tokens:,}", f"{one.tokens / one.n:.2f}", f"{one.flops:.3e}"]
    return [one.tag, *sizes, f"{one.bpb:.4f} ± {one.stderr:.4f}", core]


def miniseries(runs: Sequence[Run]) -> tuple[list[str], dict]:
    """Bits per byte against compute, and the power law through them."""
    log_flops = [math.log10(one.flops) for one in runs]
    series = {"runs": (log_flops, [one.bpb for one in runs])}
    try:
        law = power_law([one.flops for one in runs], [one.bpb for one in runs])
        said = f"Ten times the FLOPs make of the bits per byte {10**law.exponent:.3f} times as many: they go as "
        said += f"FLOPs^{law.exponent:.4f}, exponent ± {law.stderr:.4f}."
        low, high = min(log_flops), max(log_flops)
        xs = [low + (high - low) * place / (CURVE_POINTS - 1) for place in range(CURVE_POINTS)]
        series["power law"] = (xs, [law(10**x) for x in xs])
    except ValueError as error:
        said = f"{error}."
    curve = {"title": "Bits per byte against compute", "x": "log10 FLOPs", "y": "bits per byte", "series": series}
    return [table(COLUMNS, [cells(one) for one in runs]), said], curve


def laws(runs: Sequence[Run]) -> tuple[list[str], dict]:
    """The best size of each budget, how it grows, and the tokens for each parameter that this suggests."""
    budgets, found, notes = by_budget(runs), [], []
    if not budgets:
        raise ValueError("none of the runs was given --target-flops, the budget: is it another --prefix?")
    for group in budgets.values():
        try:
            found.append(optimum(group))
        except ValueError as error:
            notes.append(f"- {error}.")
    rows = [
        [f"{best.flops:.3g}", f"{best.n:,.0f}", f"{best.tokens:,.0f}", f"{best.tokens / best.n:.2f}", f"{best.bpb:.4f}"]
        for best in found
    ]
    parts = [table(COLUMNS, [cells(one) for group in budgets.values() for one in group])]
    parts.append("## The best size of each budget")
    parts += [table(["FLOPs", "N", "Tokens", "Tokens : N", "Bits per byte"], rows)] * bool(rows)
    parts += ["\n".join(notes)] * bool(notes) + ["## How it grows", growth(found)]
    series = {
        f"{budget:.3g} FLOPs": ([math.log10(one.n) for one in group], [one.bpb for one in group])
        for budget, group in budgets.items()
    }
    curve = {"title": "Bits per byte at fixed compute", "x": "log10 N", "y": "bits per byte", "series": series}
    return parts, curve


def growth(found: Sequence) -> str:
    flops = [best.flops for best in found]
    try:
        sizes, tokens = (power_law(flops, [getattr(best, what) for best in found]) for what in ("n", "tokens"))
    except ValueError as error:
        return f"{error}."
    most = max(flops)
    ratio = tokens(most) / sizes(most)
    lines = [
        f"- {what} as FLOPs^{law.exponent:.3f}, exponent ± {law.stderr:.3f}; at {most:.3g} FLOPs {law(most):,.0f}"
        for what, law in (("N grows", sizes), ("tokens grow", tokens))
    ]
    lines += [
        f"- at {most:.3g} FLOPs this suggests {ratio:.1f} tokens for each parameter: "
        f"`--target-param-data-ratio={ratio:.1f}`",
    ]
    return "\n".join(lines + [f"- of {len(found)} budgets no error follows, take {LEAST}"] * (len(found) < LEAST))


KINDS = {"miniseries": miniseries, "laws": laws}


def main(config: Config) -> None:
    # Slow imports stay out of --help.
    from nanochat.report import plots

    if config.kind not in KINDS:
        raise ValueError(f"--kind={config.kind} is not one of {', '.join(KINDS)}")
    base = Path(config.base_dir).expanduser() if config.base_dir else base_dir()
    out = Path(config.out or f"{config.kind}.md").expanduser()
    runs, left_out = read_runs(base, config.prefix)
    if not runs:
        raise ValueError(f"no run has ended below {base / 'base_train'} / {config.prefix}*; {'; '.join(left_out)}")
    parts, curve = KINDS[config.kind](runs)
    picture = out.with_suffix(".svg")
    write_text(picture, plots.picture(plots.draw(curve)))
    parts = [f"# {curve['title']}", *parts, *(f"- {line}" for line in left_out), f"![{curve['title']}]({picture.name})"]
    write_text(out, "\n\n".join(parts) + "\n")
    print0(*parts[1:-1], sep="\n\n")
    print0(f"{config.kind}: {out.resolve()}")


if __name__ == "__main__":
    run(main, Config)
