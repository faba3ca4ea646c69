"""Curves as text: where each point has its dot or mark, and that the picture stays in its room."""

import math
import random
import re
from itertools import pairwise

import pytest

from nanochat.termplot import AXIS, DOTS, draw


def picture(series: dict, rows: int = 14, columns: int = 60, colored: bool = False) -> list[str]:
    return draw({"title": "loss", "x": "step", "y": "nats", "series": series}, rows, columns, colored)


def dots(lines: list[str]) -> set[tuple[int, int]]:
    """Where a dot stands: column from the left, row from the top."""
    return {
        (2 * column + x, 4 * row + y)
        for row, line in enumerate(lines[1:-2])
        for column, letter in enumerate(line[AXIS:])
        for x in range(2)
        for y in range(4)
        if 0x2800 <= ord(letter) < 0x2900 and (ord(letter) - 0x2800) & DOTS[x][y]
    }


def test_a_rising_line_is_a_diagonal_from_corner_to_corner():
    lines = picture({"up": [range(100), range(100)]}, rows=13, columns=AXIS + 20)
    found = dots(lines)
    assert {(0, 39), (39, 0)} <= found
    assert found == {(x, 39 - x) for x in range(40)}
    assert lines[0] == "loss, nats   ⠒ up 99"
    assert lines[1].startswith("      99 ┤")
    assert lines[10].startswith("       0 ┤")
    assert lines[-1].split() == ["0", "step", "99"]
    assert len(lines) == 13


@pytest.mark.parametrize("seed", range(5))
def test_every_point_has_its_dot_and_no_dot_is_off_the_line(seed):
    print(f"seed {seed}")
    draws = random.Random(seed)
    rows, columns = draws.randint(8, 40), draws.randint(40, 150)
    xs = sorted(draws.sample(range(10_000), 200))
    ys = [draws.gauss(0, 1) for _ in xs]
    lines = picture({"any": [xs, ys]}, rows, columns)
    assert len(lines) == rows
    assert max(map(len, lines)) <= columns
    width, height, found = 2 * (columns - AXIS) - 1, 4 * (rows - 3) - 1, dots(lines)
    across, down = width / (xs[-1] - xs[0]), height / (max(ys) - min(ys))
    places = [((x - xs[0]) * across, (max(ys) - y) * down) for x, y in zip(xs, ys, strict=True)]
    assert {(round(x), round(y)) for x, y in places} <= found
    for x, y in found:  # between two neighbours
        near = [b for (a, b), (c, d) in pairwise(places) if a - 1 <= x <= c + 1 for b in (b, d)]
        assert min(near) - 1 <= y <= max(near) + 1


def test_few_points_are_marks_and_two_series_differ_without_colours():
    few, many = [[0, 50, 99], [1.0, 3.0, 2.0]], [range(100), [2.0] * 100]
    lines = picture({"train": many, "validation": few})
    assert lines[0] == "loss, nats   ⠒ train 2   ● validation 2"
    assert sum(line.count("●") for line in lines[1:]) == 3
    assert "●" in lines[1]
    both = picture({"one": many, "other": [range(100), range(100)]})
    assert "⠒ one" in both[0]
    assert "● other" in both[0]


def test_colours_part_lines_and_cost_no_room():
    series = {"one": [range(100), range(100)], "other": [range(100), range(99, -1, -1)]}
    lines = picture(series, colored=True)
    assert "\x1b[34m⠒ one 99\x1b[0m" in lines[0]
    assert "\x1b[31m⠒ other 0\x1b[0m" in lines[0]
    plain = [re.sub(r"\x1b\[\d+m", "", line) for line in lines]
    assert max(map(len, plain)) <= 60
    assert {len(line) for line in plain[1:-2]} == {60}
    assert len(picture(series, columns=24, colored=True)[0]) == 24  # a head that is too long is cut, and has none


def test_what_is_hardly_a_curve():
    assert picture({}) == ["loss: no points yet"]
    assert picture({"nan": [[1, 2], [math.nan, math.inf]]}) == ["loss: no points yet"]
    for points in ([[5], [1.5]], [[1, 2, 3], [7.0, 7.0, 7.0]], [[1, 2, 3], [1.0, math.nan, 2.0]]):
        lines = picture({"one": points})
        assert sum(line.count("●") for line in lines[1:]) == len([y for y in points[1] if y == y])
