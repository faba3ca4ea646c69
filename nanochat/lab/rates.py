"""Search for the best rate: wide, then narrow, then with seeds.

`next_rates(points, seeds, centre)` returns the Round of runs that is not complete yet: each of its `rates` needs
losses of `seeds` seeds, some of which may be in the points already. The rounds follow from the points alone, so that an
interrupted search goes on. At the end the round's number is 0, and `rates` holds the best rate, or none.

1. WIDE rates over two decades around `centre`, with the first seed. While the lowest loss lies at an end of the range,
   nothing is fitted, and the range grows by MOVE further rates there, at most MOST_MOVES times.
2. NARROW: rates around the lowest point of a parabola in log rate, with the first seed.
3. The two of them nearest to the lowest point of all, with all seeds. The lower mean loss wins.

Rates have three digits, and are the same as keys, in tags and on a command line. Pure functions: nothing is run.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

WIDE = 10  # rates of the first round
STEP = 2 / (WIDE - 1)  # decades between them
MOVE = 4
MOST_MOVES = 3
NARROW = (-0.24, -0.12, 0.0, 0.12, 0.24)  # decades from the lowest point
WINDOW = 0.5  # decades on either side of the lowest loss: far from it the curve is no parabola
LEAST_POINTS = 3  # of a parabola

Points = Mapping[float, Sequence[float]]  # rate -> losses by seed, in their order; nan: diverged, or failed for good


class Round(NamedTuple):
    """Runs that come next, or the end of the search."""

    number: int  # 1 wide, 2 narrow, 3 seeds; 0: the end
    rates: list[float]
    seeds: int
    sentence: str


def next_rates(points: Points, seeds: int = 2, centre: float = 1.0) -> Round:
    """Return the first round that is not complete."""
    low, high = 0, WIDE  # of a grid in log rate
    sentence = f"{WIDE} rates over two decades around {centre:g}"
    for _ in range(MOST_MOVES + 1):
        wide = _rates(centre, [STEP * (place - (WIDE - 1) / 2) for place in range(low, high)])
        if not _is_complete(points, wide, 1):
            return Round(1, wide, 1, sentence)
        # In order; they differ, since the parabola lies between points.
        ends = sorted(_lowest(points, wide))
        is_low = ends[0] <= wide[0]
        if not is_low and ends[1] < wide[-1]:
            break
        sentence = f"the optimum lies at an end of the range, or beyond it: {wide[0 if is_low else -1]:g}"
        low, high = (low - MOVE, high) if is_low else (low, high + MOVE)
    else:
        return Round(0, [], 0, sentence)
    _, vertex = _lowest(points, wide)
    narrow = _rates(vertex, NARROW)
    if not _is_complete(points, narrow, 1):
        return Round(2, narrow, 1, f"rates around {vertex:.3g}, the lowest point of a parabola")
    _, vertex = _lowest(points, wide + narrow)
    finite = [rate for rate in narrow if math.isfinite(points[rate][0])]
    two = sorted(finite, key=lambda rate: abs(math.log(rate / vertex)))[:2]
    if not _is_complete(points, two, seeds):
        return Round(3, two, seeds, f"the rates nearest to {vertex:.3g}, the lowest point of all")
    best = min(two, key=lambda rate: np.mean(points[rate]))
    return Round(0, [best], 0, f"the best rate is {best:g}, with the lower mean loss over {seeds} seeds")


def _rates(centre: float, decades: Sequence[float]) -> list[float]:
    return [float(f"{centre * 10**distance:.3g}") for distance in decades]


def _is_complete(points: Points, rates: Sequence[float], seeds: int) -> bool:
    return all(len(points.get(rate, ())) >= seeds for rate in rates)


def _lowest(points: Points, rates: Sequence[float]) -> tuple[float, float]:
    """Return the rate with the lowest loss, and the lowest point of a parabola near it, within the finite rates.

    If all runs have diverged, both are the lowest rate: better ones lie below.
    """
    finite = [rate for rate in rates if math.isfinite(points[rate][0])]
    if not finite:
        return rates[0], rates[0]
    x, losses = np.log10(finite), np.array([points[rate][0] for rate in finite])
    middle = vertex = x[losses.argmin()]
    near = abs(x - middle) <= WINDOW
    if near.sum() >= LEAST_POINTS:
        square, slope, _ = np.polyfit(x[near], losses[near], 2)
        # A curve that bends down has no lowest point.
        vertex = -slope / (2 * square) if square > 0 else middle
    return 10**middle, 10 ** np.clip(vertex, x.min(), x.max())
