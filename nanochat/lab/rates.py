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


def next_rates(points: Points, seeds: int = 2, centre: float = 1.0, moves: int = MOST_MOVES) -> Round:
    """Return the first round that is not complete. moves: times that the range may still be moved."""
    wide = _rates(centre, np.linspace(-1, 1, WIDE))
    sentence = "rates over two decades"
    if moves < MOST_MOVES:
        sentence += ", moved since the optimum lay at an end of the range"
    if not _is_complete(points, wide, 1):
        return Round(1, wide, 1, sentence)
    vertex, *_ = _lowest(points, wide)
    side = int(vertex > wide[-2]) - int(vertex < wide[1])
    if side and moves:
        return next_rates(points, seeds, centre * 10 ** (side * MOVE), moves - 1)
    if side:
        return Round(0, [], 0, f"the optimum lies beyond {vertex:.3g}, after {MOST_MOVES} moves of the range")
    narrow = _rates(vertex, NARROW)
    if not _is_complete(points, narrow, 1):
        return Round(2, narrow, 1, "rates around the lowest point of a parabola")
    _, *nearest = _lowest(points, wide + narrow)
    # Wide rates may lie close to others. They stand in if all of the narrow ones have diverged.
    two = [rate for rate in nearest if rate in narrow][:2] or nearest[:2]
    if not _is_complete(points, two, seeds):
        return Round(3, two, seeds, "the rates nearest to the lowest point of all")
    # A rate with a diverged seed has no mean.
    best = min(two, key=lambda rate: np.nan_to_num(np.mean(points[rate]), nan=math.inf))
    return Round(0, [best], 0, f"the best rate is {best:g}, with the lower mean loss over {seeds} seeds")


def _rates(centre: float, decades: Sequence[float]) -> list[float]:
    return [float(f"{centre * 10**distance:.3g}") for distance in decades]


def _is_complete(points: Points, rates: Sequence[float], seeds: int) -> bool:
    return all(len(points.get(rate, ())) >= seeds for rate in rates)


def _lowest(points: Points, rates: Sequence[float]) -> list[float]:
    """Return the lowest point of a parabola near the lowest loss, then the finite rates by their distance from it."""
    losses = {rate: points[rate][0] for rate in rates if math.isfinite(points[rate][0])}
    # If all runs have diverged, the optimum lies below.
    vertex = min(losses, key=losses.get, default=rates[0])
    near = [rate for rate in losses if abs(math.log(rate / vertex)) <= WINDOW]
    if len(near) >= LEAST_POINTS:
        square, slope, _ = np.polyfit(np.log(near), [losses[rate] for rate in near], 2)
        # Downwards, a curve has no lowest point. It is never extrapolated.
        if square > 0:
            vertex = math.exp(np.clip(-slope / (2 * square), np.log(min(losses)), np.log(max(losses))))
    return [vertex, *sorted(losses, key=lambda rate: abs(math.log(rate / vertex)))]
