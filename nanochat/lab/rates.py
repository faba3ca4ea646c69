"""Search for the best rate: wide, then narrow, then with seeds.

`next_rates(points, seeds, centre)` returns the Round of runs that is not complete yet: each of its `rates` needs
losses of `seeds` seeds, some of which may be in the points already. The rounds follow from the points alone, so that an
interrupted search goes on. At the end the round's number is 0, and `rates` holds the best rate, or none.

1. WIDE rates over two decades around `centre`, with the first seed. If the optimum lies at an end of the range, it is
   not trusted: the range is moved there, at most MOST_MOVES times, so that only a few of its rates are new.
2. NARROW: rates around the lowest point of a parabola in log rate, with the first seed.
3. The two of the narrow rates nearest to the lowest point of all, with all seeds. The lower mean loss wins.

Rates have three digits, and are the same as keys, in tags and on a command line. Pure functions: nothing is run.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

WIDE = 10  # rates of the first round
MOVE = 8 / 9  # decades: four of its nine steps
MOST_MOVES = 3
NARROW = (-0.24, -0.12, 0.0, 0.12, 0.24)  # decades from the lowest point
WINDOW = 1.2  # of log rate on either side of the lowest loss: far from it the curve is no parabola
LEAST_POINTS = 3  # of a parabola

Points = Mapping[float, Sequence[float]]  # rate -> losses by seed, in their order; nan: diverged, or failed for good


class Round(NamedTuple):
    """Runs that come next, or the end of the search."""

    number: int  # 1 wide, 2 narrow, 3 seeds; 0: the end
    rates: list[float]
    seeds: int
    sentence: str


def next_rates(
    points: Points,
    seeds: int = 2,
    centre: float = 1.0,
    moves: int = MOST_MOVES,
) -> Round:
    """Return the first round that is not complete. moves: times that the range may still be moved."""
    wide = _rates(centre, np.linspace(-1, 1, WIDE))
    if not _is_complete(points, wide, 1):
        sentence = "rates over two decades"
        if moves < MOST_MOVES:
            sentence += ", moved since the optimum lay at an end of the range"
        return Round(1, wide, 1, sentence)
    vertex, *_ = _lowest(points, wide)
    side = 0  # of the range that the optimum lies on
    if vertex < wide[1]:
        side = -1
    elif vertex > wide[-2]:
        side = 1
    if side and moves:
        centre *= 10 ** (side * MOVE)
        return next_rates(points, seeds, centre, moves - 1)
    if side:
        return Round(0, [], 0, f"the optimum lies beyond {vertex:.3g}, after {MOST_MOVES} moves of the range")

    narrow = _rates(vertex, NARROW)
    if not _is_complete(points, narrow, 1):
        return Round(2, narrow, 1, "rates around the lowest point of a parabola")
    _, *nearest = _lowest(points, wide + narrow)
    # Wide rates may lie close to others. They stand in if all of the narrow ones have diverged.
    two = [rate for rate in nearest if rate in narrow] or nearest
    two = two[:2]
    if not _is_complete(points, two, seeds):
        return Round(3, two, seeds, "the rates nearest to the lowest point of all")
    means = [np.mean(points[rate]) for rate in two]
    # A rate with a diverged seed has no mean: nan is taken last.
    best = two[np.argsort(means)[0]]
    return Round(0, [best], 0, f"the best rate is {best:g}, with the lower mean loss over {seeds} seeds")


def _rates(centre: float, decades: Sequence[float]) -> list[float]:
    rates = [centre * 10**distance for distance in decades]
    return [float(f"{rate:.3g}") for rate in rates]


def _is_complete(points: Points, rates: Sequence[float], seeds: int) -> bool:
    return all(len(points.get(rate, ())) >= seeds for rate in rates)


def _lowest(points: Points, rates: Sequence[float]) -> list[float]:
    """Return the lowest point of a parabola near the lowest loss, then the finite rates by their distance from it."""
    first = {rate: points[rate][0] for rate in rates}
    losses = {rate: loss for rate, loss in first.items() if math.isfinite(loss)}
    if not losses:
        # All runs have diverged: the optimum lies below.
        return [rates[0]]
    vertex = min(losses, key=losses.get)
    near = [rate for rate in losses if _distance(rate, vertex) <= WINDOW]
    if len(near) >= LEAST_POINTS:
        y = [losses[rate] for rate in near]
        square, slope, _ = np.polyfit(np.log(near), y, 2)
        # Downwards, a curve has no lowest point.
        if square > 0:
            lowest = -slope / (2 * square)
            # Never extrapolated.
            low, high = np.log(min(losses)), np.log(max(losses))
            vertex = math.exp(np.clip(lowest, low, high))
    nearest = sorted(losses, key=lambda rate: _distance(rate, vertex))
    return [vertex, *nearest]


def _distance(rate: float, other: float) -> float:
    return abs(math.log(rate / other))
