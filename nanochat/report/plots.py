"""Plots for the report card as small SVG: the same bytes for the same numbers.

A plot is a dictionary {"title", "x", "y", "series": name -> [xs, ys]}; a short series has a mark at each point.
Colours are variables of STYLE, which a page contains once and a picture file has inside: both follow dark mode. They
are those of Okabe and Ito, darker where text needs it, and lines have dashes too: colour-blind eyes tell them apart.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDTH = 400  # pixels, as all sizes here
TOP = 44  # the plot area begins below title and legend
BOTTOM = 214  # the plot area ends above the axis labels
HEIGHT = 252
ROW = 20  # height of a bar with the room around it
NAMES = 170  # left of the bars
VALUES = 52  # right of the bars
CHARACTER = 7.4  # width per digit in the widest common font
MARGIN = 24  # right of the points, for half a label
SUFFIXES = ["", "k", "M", "G", "T"]  # of powers of 1000
MOST_MARKS = 40  # a longer series has no marks
COLORS = 6  # STYLE has so many; further series repeat them
STYLE = """
.plot { color: #4b5563; font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  font-variant-numeric: tabular-nums; }
.plot .s0 { --color: #0072b2; } .plot .s1 { --color: #d55e00; } .plot .s2 { --color: #009e73; }
.plot .s3 { --color: #b5568c; } .plot .s4 { --color: #a87300; } .plot .s5 { --color: #1f2937; }
@media (prefers-color-scheme: dark) { .plot { color: #a3adba; }
  .plot .s0 { --color: #56b4e9; } .plot .s1 { --color: #ff8c42; } .plot .s2 { --color: #2fc79a; }
  .plot .s3 { --color: #d68fb8; } .plot .s4 { --color: #f0c040; } .plot .s5 { --color: #ffffff; } }
.plot :is(text, tspan) { fill: var(--color, currentColor); }
.plot .title { font-size: 13px; font-weight: 600; }
.plot .end { text-anchor: end; }
.plot .middle { text-anchor: middle; }
.plot .grid { stroke: currentColor; opacity: .2; }
.plot rect { fill: var(--color); }
.plot .rest { fill: currentColor; opacity: .12; }
.plot .error { stroke: currentColor; stroke-width: 2; }
.plot circle { fill: var(--color); }
.plot .line { fill: none; stroke: var(--color); stroke-width: 1.5; stroke-linejoin: round; }
.plot .line:is(.s2, .s4) { stroke-dasharray: 6 3; } .plot .line:is(.s3, .s5) { stroke-dasharray: 2 3; }
"""

Plot = Mapping[str, Any]


class Bar(NamedTuple):
    """A score from 0 to 1 with its standard error."""

    name: str
    value: float
    stderr: float  # nan for a single item


def draw_plot(plot: Plot, head: str = '<svg class="plot"', style: str = "") -> str:
    """Return a plot as an SVG element for a page that contains STYLE."""
    head += f' viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(plot["title"])}">{style}'
    return "\n".join([head, _text(0, 14, plot["title"], "title"), *_lines(plot), "</svg>"])


def picture_file(plot: Plot) -> str:
    """Return a plot as the content of an SVG file."""
    # Markdown viewers show a picture at its own size: a third larger than drawn reads well.
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="520" class="plot"'
    return draw_plot(plot, head, f"<style>{STYLE}</style>") + "\n"


def draw_bars(title: str, bars: Sequence[Bar]) -> str:
    """Return scores as an SVG element for a page that contains STYLE: a bar from 0 to each, and a line of its error."""
    height = 32 + ROW * len(bars)
    elements = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        _text(0, 14, title, "title"),
    ]
    full = WIDTH - NAMES - VALUES  # width of a score of 1
    for number, bar in enumerate(bars):
        middle = 32 + ROW * (number + 0.5)
        value = min(max(bar.value, 0.0), 1.0)  # a score below guessing has no bar
        elements += [
            _text(NAMES - 8, middle + 4, bar.name, "end"),
            f'<rect class="rest" x="{NAMES}" y="{middle - 6:.1f}" width="{full}" height="12"/>',
            f'<rect class="s0" x="{NAMES}" y="{middle - 6:.1f}" width="{full * value:.1f}" height="12"/>',
            _text(WIDTH, middle + 4, f"{bar.value:.1%}", "end"),
        ]
        if math.isfinite(bar.stderr):
            ends = [NAMES + full * min(max(end, 0.0), 1.0) for end in (bar.value - bar.stderr, bar.value + bar.stderr)]
            elements.append(f'<path class="error" d="M{ends[0]:.1f} {middle:.1f}H{ends[1]:.1f}"/>')
    return "\n".join([*elements, "</svg>"])


# ---- axes ----


def ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers that include `low` and `high`: 1, 2 or 5 times a power of ten apart."""
    wanted = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(wanted))
    # Tolerances keep rounding errors from adding a tick.
    step = power * min(factor for factor in (1, 2, 5, 10) if factor >= wanted / power - 1e-9)
    return [number * step for number in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def label(value: float) -> str:
    """Return 1.2M for 1200000."""
    power = min(int(math.log10(max(value, 1)) // 3), len(SUFFIXES) - 1)
    return f"{value / 1000**power:g}{SUFFIXES[power]}"


def _spread(values: "NDArray[Any]") -> tuple[float, float]:
    """Return an axis's ends, apart even if all values are the same."""
    low, high = min(values), max(values)
    # Half the value on each side; half a unit around zero.
    margin = 0.0 if high > low else 0.5 * (abs(low) or 1)
    return low - margin, high + margin


# ---- lines ----


def _lines(plot: Plot) -> list[str]:
    """Return the elements below the title: axes, lines, names."""
    import numpy as np

    series = []  # (2, points) each
    for points in map(np.array, plot["series"].values()):
        # A diverged loss is NaN or infinite: only other points can be drawn.
        series.append(points[:, np.isfinite(points[1])])
    xs, ys = np.hstack(series) if any(points.size for points in series) else np.zeros((2, 1))
    rows = ticks(*_spread(ys))
    ends = _spread(xs)
    # The labels stand to the left, and need room for the longest.
    left = 10 + CHARACTER * max(len(label(row)) for row in rows)
    width = left, WIDTH - MARGIN
    # Pixels count from the top, values from the bottom.
    heights = np.linspace(BOTTOM, TOP, len(rows))
    elements = [_text(0, 31, plot["y"]), _text(WIDTH, HEIGHT - 6, plot["x"], "end")]
    for row, y in zip(rows, heights, strict=True):
        elements.append(f'<path class="grid" d="M{left:.1f} {y:.1f}H{WIDTH}"/>')
        # Four pixels lower: text stands on the baseline, and the label is centred.
        elements.append(_text(left - 6, y + 4, label(row), "end"))
    for column in ticks(*ends):
        # Round numbers beyond the data would lie outside the picture.
        if ends[0] <= column <= ends[1]:
            elements.append(_text(np.interp(column, ends, width), BOTTOM + 16, label(column), "middle"))
    names = []
    for number, (name, points) in enumerate(zip(plot["series"], series, strict=True)):
        color = f"s{number % COLORS}"
        names.append(f'<tspan class="{color}">{escape(name)}</tspan>')
        pixels = np.array([np.interp(points[0], ends, width), np.interp(points[1], rows, heights)]).T
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
        elements.append(f'<polyline class="line {color}" points="{path}"/>')
        # A short series has a mark at each point.
        if len(pixels) < MOST_MARKS:
            elements += [f'<circle class="{color}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in pixels]
    # A single series is explained by the title.
    if len(names) > 1:
        elements.append(f'<text class="end" x="{WIDTH}" y="31">{" &#160; ".join(names)}</text>')
    return elements


# ---- elements ----


def _text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
