"""Plots for the report card as small SVG: the same bytes for the same numbers.

A plot is a dictionary {"title", "x", "y", "series": name -> [xs, ys]}; a short series has a mark at each point.
Colours are variables of STYLE, which a page contains once and a picture file has inside: both follow dark mode. They
are those of Okabe and Ito, darker where text needs it, and lines have dashes too: colour-blind eyes tell them apart.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH = 400  # pixels, as all sizes here
TOP = 44  # the plot area begins below title and legend
BOTTOM = 214  # the plot area ends above the axis labels
HEIGHT = 252
CHARACTER = 7.4  # width per digit in the widest common font
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
.plot text { fill: var(--color, currentColor); }
.plot .title { font-size: 13px; font-weight: 600; }
.plot .end { text-anchor: end; }
.plot .middle { text-anchor: middle; }
.plot .grid { stroke: currentColor; opacity: .2; }
.plot circle { fill: var(--color); }
.plot .line { fill: none; stroke: var(--color); stroke-width: 1.5; stroke-linejoin: round; }
.plot .line:is(.s2, .s4) { stroke-dasharray: 6 3; } .plot .line:is(.s3, .s5) { stroke-dasharray: 2 3; }
"""

Plot = Mapping[str, Any]


def draw_plot(plot: Plot):
    """Return a plot as an SVG element for a page that contains STYLE."""
    head = f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(plot["title"])}">'
    return "\n".join([head, _text(0, 14, plot["title"], "title"), *_lines(plot), "</svg>"])


def picture_file(plot: Plot):
    """Return a plot as the content of an SVG file."""
    head, _, rest = draw_plot(plot).removeprefix("<svg ").partition(">")
    # Markdown viewers show a picture at its own size: a third larger than drawn reads well.
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="520" {head}><style>{STYLE}</style>{rest}\n'


# ---- axes ----


def axis(low: float, high: float, start: float, end: float):
    """Return a linear map from values to pixels: `low` to `start`, `high` to `end`."""
    pixels = (end - start) / (high - low)
    return lambda value: start + (value - low) * pixels


def ticks(low: float, high: float):
    """Return about five round numbers that include `low` and `high`: 1, 2 or 5 times a power of ten apart."""
    wanted = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(wanted))
    # Tolerances keep rounding errors from adding a tick.
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= wanted * (1 - 1e-9))
    return [number * step for number in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def label(value: float):
    """Return 1.2M for 1234567."""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{suffix}".replace(".0", "")
    return f"{value:g}"


def _spread(values: Sequence[float]):
    """Return an axis's ends, apart even if all values are the same."""
    low, high = min(values), max(values)
    if high > low:
        return low, high
    # Half the value on each side; half a unit around zero.
    margin = 0.5 * (abs(low) or 1)
    return low - margin, high + margin


# ---- lines ----


def _lines(plot: Plot):
    """Return the elements below the title: axes, lines, names."""
    series = []
    for xs, ys in plot["series"].values():
        # A diverged loss is NaN or infinite: only other points can be drawn.
        series.append([(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)])
    points = [point for some in series for point in some]
    xs, ys = zip(*points or [(0.0, 0.0)], strict=True)  # an empty plot has axes too
    rows = ticks(*_spread(ys))
    first, last = _spread(xs)
    # The labels stand to the left, and need room for the longest.
    longest = max(len(label(row)) for row in rows)
    left = 10 + CHARACTER * longest
    across = axis(first, last, left, WIDTH - 6)
    # Pixels count from the top, values from the bottom.
    down = axis(rows[0], rows[-1], BOTTOM, TOP)
    elements = [_text(0, 31, plot["y"])]
    for row in rows:
        y = down(row)
        elements.append(f'<path class="grid" d="M{left:.1f} {y:.1f}H{WIDTH}"/>')
        # Four pixels lower: text stands on the baseline, and the label is centred.
        elements.append(_text(left - 6, y + 4, label(row), "end"))
    for column in ticks(first, last):
        # Round numbers beyond the data would lie outside the picture.
        if first <= column <= last:
            x = min(across(column), WIDTH - CHARACTER * len(label(column)) / 2)  # the last one is not cut
            elements.append(_text(x, BOTTOM + 16, label(column), "middle"))
    elements.append(_text(WIDTH, HEIGHT - 6, plot["x"], "end"))
    for number, some in enumerate(series):
        color = f"s{number % COLORS}"
        pixels = [(across(x), down(y)) for x, y in some]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
        elements.append(f'<polyline class="line {color}" points="{path}"/>')
        # A short series has a mark at each point.
        if len(pixels) < MOST_MARKS:
            elements += [f'<circle class="{color}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in pixels]
    # The names in their colours, from right to left; a single series is explained by the title.
    place = float(WIDTH)  # right end for the next name
    if len(series) > 1:
        for number, name in reversed(list(enumerate(plot["series"]))):
            style = f"end s{number % COLORS}"
            elements.append(_text(place, 31, name, style))
            place -= CHARACTER * len(name) + 14
    return elements


# ---- elements ----


def _text(x: float, y: float, words: str, style: str = ""):
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
