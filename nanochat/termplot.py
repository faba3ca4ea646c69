"""Curves as text: dense series in braille dots, sparse ones as marks, with axes, in the room that is given."""

import math
import re
from collections.abc import Sequence

DENSE = 40  # points: those of a longer series run together
MARKS = "●◆■"
COLORS = (
    "\x1b[34m",
    "\x1b[31m",
    "\x1b[32m",
    "\x1b[35m",
)  # blue, red, green, purple: as nanochat/report/plots.py has them
PLAIN = "\x1b[0m"
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # bits of a braille letter, by column and row of its dots
AXIS = 10  # columns of the numbers at the left, and their line


def draw(curve: dict, rows: int, columns: int, colored: bool = False) -> list[str]:
    """The lines of {"title", "x", "y", "series": name -> [xs, ys]}, as nanochat/report/plots.py takes it.

    A point that is not finite is left out. Of the y axis the least and the greatest are shown, of series their last.
    """
    series = {name: _finite(*points) for name, points in curve["series"].items()}
    series = {name: points for name, points in series.items() if points}
    if not series:
        return [f"{curve['title']}: no points yet"]
    styles = dict(zip(series, _styles(series, colored), strict=True))
    height, width = max(2, rows - 3), max(10, columns - AXIS)
    xs, ys = zip(*(point for points in series.values() for point in points), strict=True)
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    across, down = (right - left) or 1, (high - low) or 1
    cells = [[" "] * width for _ in range(height)]
    for name, points in series.items():
        mark, color = styles[name]
        # Places in dots: two columns and four rows of them in a letter.
        places = [((x - left) / across * (2 * width - 1), (high - y) / down * (4 * height - 1)) for x, y in points]
        if mark:
            for x, y in places:
                cells[round(y) // 4][round(x) // 2] = color + mark + PLAIN * bool(color)
        else:
            _join(cells, places, color)
    legend = "   ".join(
        f"{color}{mark or '⠒'} {name} {points[-1][1]:.4g}{PLAIN * bool(color)}"
        for (name, points), (mark, color) in zip(series.items(), styles.values(), strict=True)
    )
    numbers = {0: high, height - 1: low} | (
        {height // 2: high - down * (height // 2) / (height - 1)} if height > 4 else {}
    )
    body = [f"{numbers[row]:>{AXIS - 2}.4g} ┤" if row in numbers else " " * (AXIS - 1) + "│" for row in range(height)]
    ends = f"{left:,.6g}", f"{curve['x']} {right:,.6g}"
    head = f"{curve['title']}, {curve['y']}   {legend}"
    return [
        head if len(plain := re.sub("\x1b.*?m", "", head)) <= columns else plain[:columns],
        *(axis + "".join(line) for axis, line in zip(body, cells, strict=True)),
        " " * (AXIS - 1) + "└" + "─" * (width - 1),
        " " * AXIS + ends[0] + ends[1].rjust(width - len(ends[0]) - 1),
    ]


def _finite(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and math.isfinite(y)]


def _styles(series: dict[str, list], colored: bool) -> list[tuple[str, str]]:
    """Mark and colour of each. Without colours no two series are lines."""
    dense = [len(points) >= DENSE for points in series.values()]
    marks = iter(MARKS * len(series))
    lines = [many and (colored or not any(dense[:place])) for place, many in enumerate(dense)]
    colors = COLORS * len(series) if colored else [""] * len(series)
    return [("" if line else next(marks), color) for line, color in zip(lines, colors, strict=False)]


def _join(cells: list[list[str]], places: list[tuple[float, float]], color: str) -> None:
    """Draw lines from place to place, in dots."""
    bits: dict[tuple[int, int], int] = {}
    for (x0, y0), (x1, y1) in zip(places, places[1:] or places, strict=False):
        steps = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
        for step in range(steps + 1):
            x, y = round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps)
            bits[y // 4, x // 2] = bits.get((y // 4, x // 2), 0) | DOTS[x % 2][y % 4]
    for (row, column), dots in bits.items():
        cells[row][column] = color + chr(0x2800 + dots) + PLAIN * bool(color)
