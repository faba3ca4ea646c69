"""Plots of the report card as small SVG, without a library: the same bytes for the same numbers.

A plot is a dictionary with a title and one of these:
  {"x", "y", "series": name -> [xs, ys]}       lines; short series have a mark at each point
  {"bars": name -> [score, error, text]}       scores with standard errors
  {"parts": [[name, size, group], ...]}        one stacked bar, a colour for each group
Colours are variables of STYLE, which a page contains once and a picture file has inside: both follow dark mode.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, TOP = 400, 44  # pixels; the plot area begins below title and legend
LINES_BOTTOM, LINES_HEIGHT = 214, 252
CHARACTER = 7.4  # width of a digit in the widest common font
MOST_MARKS = 40  # a longer series has no marks
COLORS = 6
STYLE = """
.plot { --s0: #2a6fdb; --s1: #d1495b; --s2: #2e8b57; --s3: #8a5fbf; --s4: #b7791f; --s5: #64748b; color: #4b5563;
  font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; font-variant-numeric: tabular-nums; }
@media (prefers-color-scheme: dark) { .plot { --s0: #6aa5ff; --s1: #f08390; --s2: #5cc48d; --s3: #b792ea;
  --s4: #e0ac55; --s5: #94a3b8; color: #a3adba; } }
.plot text { fill: currentColor; }
.plot .title { font-size: 13px; font-weight: 600; }
.plot .end { text-anchor: end; }
.plot .middle { text-anchor: middle; }
.plot .grid { stroke: currentColor; opacity: .2; }
.plot .track { fill: currentColor; opacity: .12; }
.plot .whisker { stroke: currentColor; stroke-width: 1.5; }
.plot .line { stroke-width: 1.5; stroke-linejoin: round; }
"""
STYLE += "\n".join(
    f".plot .s{n} {{ fill: var(--s{n}); }} .plot .line.s{n} {{ stroke: var(--s{n}); }}" for n in range(COLORS)
)
STYLE += "\n.plot .line { fill: none; }\n"

Plot = Mapping[str, Any]
Points = list[tuple[float, float]]
Drawing = tuple[int, list[str]]  # height, SVG elements


def draw_plot(plot: Plot) -> str:
    """Return a plot as an SVG element for a page that contains STYLE."""
    kind = next(kind for kind in KINDS if kind in plot)
    height, elements = KINDS[kind](plot)
    title = escape(plot["title"])
    head = f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">'
    return "\n".join([head, _text(0, 14, plot["title"], "title"), *elements, "</svg>"])


def picture_file(element: str) -> str:
    """Return the content of an SVG file for the element of a plot."""
    size = element.partition('viewBox="0 0 ')[2].partition('"')[0]
    width, height = (round(1.3 * float(side)) for side in size.split())
    root = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    head, _, rest = element.partition(">")
    return f"{head.replace('<svg ', root)}><style>{STYLE}</style>{rest}\n"


# ---- axes ----


@dataclass(frozen=True)
class Axis:
    """A range of values on a range of pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers that include `low` and `high`: 1, 2 or 5 times a power of ten apart."""
    power = 10.0 ** math.floor(math.log10((high - low) / about))
    step = next(power * by for by in (1, 2, 5, 10) if power * by * about >= (high - low) * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def labels(values: Sequence[float]) -> list[str]:
    """Return ticks as text, in the unit of the largest: 0, 0.5M, 1M."""
    largest = max(map(abs, values))
    units = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    size, suffix = next((unit for unit in units if largest >= unit[0]), (1, ""))
    return [f"{value / size:g}{suffix if value else ''}" for value in values]


def _spread(low: float, high: float) -> tuple[float, float]:
    """Return the ends of an axis, apart also where all values are the same."""
    if high > low:
        return low, high
    return low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)


# ---- the kinds of plots ----


def _draw_lines(plot: Plot) -> Drawing:
    series = {name: _finite(*points) for name, points in plot["series"].items()}
    points = [point for some in series.values() for point in some] or [(0.0, 0.0)]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    rows = ticks(*_spread(min(ys), max(ys)))
    # From zero, unless that left most of the picture empty, as with logarithms.
    first = min(xs) if min(xs) > 0.2 * max(xs) else min(0.0, *xs)
    left = 10 + CHARACTER * max(map(len, labels(rows)))
    across = Axis(*_spread(first, max(xs)), left, WIDTH - 6)
    down = Axis(rows[0], rows[-1], LINES_BOTTOM, TOP)
    elements = [_text(0, 31, plot["y"])]
    for row, label in zip(rows, labels(rows), strict=True):
        elements.append(f'<path class="grid" d="M{left:.1f} {down(row):.1f}H{WIDTH}"/>')
        elements.append(_text(left - 6, down(row) + 4, label, "end"))
    columns = [x for x in ticks(across.low, across.high) if across.low <= x <= across.high]
    for column, label in zip(columns, labels(columns), strict=True):
        elements.append(_text(across(column), LINES_BOTTOM + 16, label, "middle"))
    elements.append(_text(WIDTH, LINES_HEIGHT - 6, plot["x"], "end"))
    for number, some in enumerate(series.values()):
        elements += _line([(across(x), down(y)) for x, y in some], _color(number))
    if len(series) > 1:
        elements += _legend(list(series))
    return LINES_HEIGHT, elements


def _line(points: Points, color: str) -> list[str]:
    """Return a line in pixels, with a mark at each point of a short one."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    marks = points if len(points) < MOST_MARKS else []
    circles = [f'<circle class="{color}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in marks]
    return [f'<polyline class="line {color}" points="{path}"/>', *circles]


def _legend(names: list[str]) -> list[str]:
    """Return the names of the series with their colours, from right to left, so that the last stands at the edge."""
    elements, place = [], float(WIDTH)
    for number in reversed(range(len(names))):
        elements.append(_text(place, 31, names[number], "end"))
        place -= CHARACTER * len(names[number]) + 14
        elements.append(f'<rect class="{_color(number)}" x="{place:.1f}" y="23" width="9" height="9" rx="2"/>')
        place -= 12
    return elements


def _draw_bars(plot: Plot) -> Drawing:
    """Return bars from 0 to 1, or as far as the scores and their errors reach."""
    ends = [end for score, error, _ in plot["bars"].values() for end in (score - error, score + error)]
    across = Axis(min(0.0, *ends), max(1.0, *ends), 0, WIDTH)
    elements, y = [], 24
    for name, (score, error, text) in plot["bars"].items():
        near, far = sorted((across(0), across(score)))
        elements += [
            _text(0, y + 11, name),
            _text(WIDTH, y + 11, text, "end"),
            f'<rect class="track" x="0" y="{y + 17}" width="{WIDTH}" height="6" rx="2"/>',
            f'<rect class="s0" x="{near:.1f}" y="{y + 17}" width="{far - near:.1f}" height="6" rx="2"/>',
        ]
        if error:
            span = f"M{across(score - error):.1f} {y + 20}H{across(score + error):.1f}"
            elements.append(f'<path class="whisker" d="{span}"/>')
        y += 30
    return y + 4, elements


def _draw_stack(plot: Plot) -> Drawing:
    """Return one bar of all parts, and below it their names in two columns. Parts of a group get paler."""
    parts = plot["parts"]
    total = sum(size for _, size, _ in parts) or 1.0
    groups = list(dict.fromkeys(group for *_, group in parts))
    half = math.ceil(len(parts) / 2)
    elements, x = [], 0.0
    for number, (name, size, group) in enumerate(parts):
        earlier = sum(other == group for *_, other in parts[:number])
        style = f'class="{_color(groups.index(group))}" opacity="{max(0.25, 1 - 0.3 * earlier):.2f}"'
        width = size / total * WIDTH
        column, row = divmod(number, half)
        left, y = column * WIDTH / 2, 60 + 18 * row
        elements += [
            f'<rect {style} x="{x:.2f}" y="26" width="{max(width - 1, 0.5):.2f}" height="22" rx="1"/>',
            f'<rect {style} x="{left:.0f}" y="{y}" width="9" height="9" rx="2"/>',
            _text(left + 15, y + 9, name),
        ]
        x += width
    return 64 + 18 * half, elements


KINDS: dict[str, Callable[[Plot], Drawing]] = {"series": _draw_lines, "bars": _draw_bars, "parts": _draw_stack}


def _color(number: int) -> str:
    return f"s{number % COLORS}"


def _finite(xs: Sequence[float], ys: Sequence[float]) -> Points:
    return [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and math.isfinite(y)]


def _text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
