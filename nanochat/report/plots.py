"""Pictures of the report card: small SVG of our own, the same bytes for the same numbers.

A plot is a dict with a title and what is drawn: {"x", "y", "series": name -> [xs, ys]} as lines, dense ones, or with
marks; {"bars": name -> [score, standard error, what is written]}; {"parts": [[name, size, group], …]} as one bar, a
colour for each group. Colours are variables of STYLE, which a page has once and a file of its own has in it: both
follow light and dark mode.
"""

import math
from collections.abc import Callable
from html import escape
from typing import Any

WIDTH, TOP = 400, 44  # what is drawn begins below the title and the legend
LINES_BOTTOM, LINES_HEIGHT = 214, 252
CHARACTER = 7.4  # width of a digit in the widest of common fonts
MARKS = 40  # points of a series that has them
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


def draw(plot: dict[str, Any]) -> str:
    """The picture as an element for a page that has STYLE."""
    kind = next(kind for kind in KINDS if kind in plot)
    height, parts = KINDS[kind](plot)
    title = escape(plot["title"])
    head = f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">'
    return "\n".join([head, _text(0, 14, plot["title"], "title"), *parts, "</svg>"])


def picture(element: str) -> str:
    """The content of a file of its own."""
    size = element.partition('viewBox="0 0 ')[2].partition('"')[0].split()
    width, height = (round(1.3 * float(side)) for side in size)
    root = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    head, _, rest = element.partition(">")
    return f"{head.replace('<svg ', root)}><style>{STYLE}</style>{rest}\n"


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, both rounded outwards: 1, 2 or 5 times a power of ten apart."""
    power = 10.0 ** math.floor(math.log10((high - low) / about))
    step = next(power * by for by in (1, 2, 5, 10) if power * by * about >= (high - low) * (1 - 1e-9))
    return [n * step for n in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def labels(values: list[float]) -> list[str]:
    """Ticks as text, in the unit of the largest: 0, 0.5M, 1M."""
    most = max(map(abs, values))
    size, suffix = next(
        (pair for pair in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")) if most >= pair[0]), (1, "")
    )
    return [f"{value / size:g}{suffix if value else ''}" for value in values]


# ---- the kinds of plots: height, and elements ----


def _lines(plot: dict) -> tuple[int, list[str]]:
    series = {name: _finite(*points) for name, points in plot["series"].items()}
    xs, ys = ([point[axis] for points in series.values() for point in points] or [0.0] for axis in (0, 1))
    rows = ticks(*_apart(min(ys), max(ys)))
    # From zero, unless that left most of the picture empty, as with logarithms.
    first, last = _apart(min(xs) if min(xs) > 0.2 * max(xs) else min(0.0, *xs), max(xs))
    left = 10 + CHARACTER * max(map(len, labels(rows)))
    across = lambda x: left + (x - first) / (last - first) * (WIDTH - 6 - left)  # noqa: E731
    down = lambda y: LINES_BOTTOM - (y - rows[0]) / (rows[-1] - rows[0]) * (LINES_BOTTOM - TOP)  # noqa: E731
    parts = [_text(0, 31, plot["y"])]
    for row, label in zip(rows, labels(rows), strict=True):
        parts.append(f'<path class="grid" d="M{left:.1f} {down(row):.1f}H{WIDTH}"/>')
        parts.append(_text(left - 6, down(row) + 4, label, "end"))
    columns = [x for x in ticks(first, last) if first <= x <= last]
    for column, label in zip(columns, labels(columns), strict=True):
        parts.append(_text(across(column), LINES_BOTTOM + 16, label, "middle"))
    parts.append(_text(WIDTH, LINES_HEIGHT - 6, plot["x"], "end"))
    place = float(WIDTH)
    for number, (name, points) in reversed(list(enumerate(series.items()))):
        color = f"s{number % COLORS}"
        dots = [(across(x), down(y)) for x, y in points]
        parts.append(f'<polyline class="line {color}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in dots)}"/>')
        parts += [f'<circle class="{color}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in dots if len(dots) < MARKS]
        if len(series) > 1:
            parts.append(_text(place, 31, name, "end"))
            place -= CHARACTER * len(name) + 14
            parts.append(f'<rect class="{color}" x="{place:.1f}" y="23" width="9" height="9" rx="2"/>')
            place -= 12
    return LINES_HEIGHT, parts


def _bars(plot: dict) -> tuple[int, list[str]]:
    """From 0 to 1, or as far as they reach."""
    ends = [score + side * error for score, error, _ in plot["bars"].values() for side in (-1, 1)]
    low, high = min(0.0, *ends), max(1.0, *ends)
    across = lambda score: (score - low) / (high - low) * WIDTH  # noqa: E731
    parts, y = [], 24
    for name, (score, error, told) in plot["bars"].items():
        parts += [_text(0, y + 11, name), _text(WIDTH, y + 11, told, "end")]
        parts.append(f'<rect class="track" x="0" y="{y + 17}" width="{WIDTH}" height="6" rx="2"/>')
        near, far = sorted((across(0), across(score)))
        parts.append(f'<rect class="s0" x="{near:.1f}" y="{y + 17}" width="{far - near:.1f}" height="6" rx="2"/>')
        if error:
            span = f"M{across(score - error):.1f} {y + 20}H{across(score + error):.1f}"
            parts.append(f'<path class="whisker" d="{span}"/>')
        y += 30
    return y + 4, parts


def _stack(plot: dict) -> tuple[int, list[str]]:
    """The parts of a group are of one colour, each paler than the one before."""
    total = sum(size for _, size, _ in plot["parts"]) or 1.0
    groups = list(dict.fromkeys(group for *_, group in plot["parts"]))
    parts, seen, x, half = [], [], 0.0, -(-len(plot["parts"]) // 2)
    for number, (name, size, group) in enumerate(plot["parts"]):
        look = f'class="s{groups.index(group) % COLORS}" opacity="{max(0.25, 1 - 0.3 * seen.count(group)):.2f}"'
        seen.append(group)
        width = size / total * WIDTH
        parts.append(f'<rect {look} x="{x:.2f}" y="26" width="{max(width - 1, 0.5):.2f}" height="22" rx="1"/>')
        x += width
        column, row = divmod(number, half)
        left, y = column * WIDTH / 2, 60 + 18 * row
        parts += [f'<rect {look} x="{left:.0f}" y="{y}" width="9" height="9" rx="2"/>', _text(left + 15, y + 9, name)]
    return 64 + 18 * half, parts


KINDS: dict[str, Callable[[dict], tuple[int, list[str]]]] = {"series": _lines, "bars": _bars, "parts": _stack}


def _finite(xs: list[float], ys: list[float]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and math.isfinite(y)]


def _apart(low: float, high: float) -> tuple[float, float]:
    """Ends of an axis, which one value alone does not have."""
    return (low, high) if high > low else (low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1))


def _text(x: float, y: float, words: str, look: str = "") -> str:
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
