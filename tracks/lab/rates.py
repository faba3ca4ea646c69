"""Search for the best learning rate: wide, then narrow, then with several seeds.

`rounds(losses, seeds, measure)` yields the runs that come next, and the result at the end. Rates are factors of the
stage's own learning rates. Nothing is run here: the caller trains, and skips runs that are finished, so an interrupted
search goes on. `runs_ahead(seeds)`: how many runs it takes.

1. Ten rates over two decades, with the first seed. If the optimum lies at an end of the range, the range moves there.
   If all rates end alike, there is no best one.
2. Five rates around the lowest point of a parabola in log rate, with the first seed.
3. The two rates of all that are nearest to the lowest point, with all seeds. The lower mean loss wins.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

WIDE = 10  # rates, one decade to either side of the centre
MOVE = 8 / 9  # decades: four of the nine steps of the wide range
NARROW = (-0.24, -0.12, 0.0, 0.12, 0.24)  # decades from the lowest point
MOST_MOVES = 3
WINDOW = 1.2  # of log rate on either side of the lowest loss; the curve is not a parabola far from it

Losses = Mapping[float, Sequence[float]]  # rate -> losses by seed, in their order; nan: diverged, or failed


@dataclass(frozen=True)
class Round:
    """Runs that come next, or the result of the search."""

    rates: list[float]
    seeds: int  # of each rate; 0: the search has ended, and `rates` holds the best one or none
    sentence: str


def rounds(losses: Losses, seeds: int, measure: str = "validation loss") -> Iterator[Round]:
    """Yield the rounds of a search; the last one is the result. The caller adds the losses of each round.

    measure: what the losses are, or the negatives of, in words.
    """
    centre = 1.0
    for moves in range(MOST_MOVES + 1):
        wide = _rates(centre, np.linspace(-1, 1, WIDE))
        moved = ", moved to where the runs get better" if moves else ""
        yield Round(wide, 1, f"rates over two decades{moved}")
        lowest, finite = _lowest(losses, wide)
        if len(finite) > 1 and len({losses[rate][0] for rate in finite}) == 1:
            yield Round([], 0, f"no best rate: the {measure} is the same with all of them that train")
            return
        if wide[1] <= lowest <= wide[-2]:
            break
        centre *= 10 ** (MOVE if lowest > wide[-2] else -MOVE)
    else:
        yield Round([], 0, f"the optimum is beyond {lowest:.3g}, after {MOST_MOVES} moves of the range")
        return

    narrow = _rates(lowest, NARROW)
    yield Round(narrow, 1, "rates around the best point of a parabola")
    _, finite = _lowest(losses, wide + narrow)
    two = finite[:2]
    yield Round(two, seeds, "the rates nearest to the best point of all, with all seeds")
    means = {rate: float(np.mean(losses[rate])) for rate in two}
    trained = [rate for rate in two if math.isfinite(means[rate])]  # a rate with a diverged seed has no mean
    if not trained:
        names = " and ".join(f"{rate:g}" for rate in two)
        yield Round(
            [], 0, f"no best rate: {names}, the nearest to the best point, did not train with all {seeds} seeds"
        )
        return
    best = min(trained, key=means.__getitem__)
    yield Round([best], 0, f"the best rate is {best:g}, by the mean {measure}, seeds: {seeds}")


def runs_ahead(seeds: int) -> tuple[int, int]:
    """Return the runs of a search whose range is not moved, and the most that it can take."""
    usual = WIDE + len(NARROW) + 2 * (seeds - 1)  # the first seed of the last two rates is there by then
    moved = round(MOVE * (WIDE - 1) / 2)  # rates of a range of two decades that the one before has not
    return usual, usual + MOST_MOVES * moved


def _rates(centre: float, decades: Iterable[float]) -> list[float]:
    # Three digits are the same as keys, in tags and on a command line.
    return [float(f"{centre * 10**distance:.3g}") for distance in decades]


def _lowest(losses: Losses, rates: Sequence[float]) -> tuple[float, list[float]]:
    """Return the lowest point of a parabola near the lowest loss, and the finite rates by their distance from it."""
    finite = {rate: losses[rate][0] for rate in rates if math.isfinite(losses[rate][0])}
    if not finite:
        return rates[0], []  # all runs have diverged: the optimum lies below
    # Of rates that are equally good, the one in the middle: shares of a few answers are often the same.
    best = sorted(rate for rate, loss in finite.items() if loss == min(finite.values()))
    lowest = math.log(best[len(best) // 2])
    x = np.log(list(finite))
    y = np.array(list(finite.values()))
    near = abs(x - lowest) <= WINDOW
    if near.sum() >= 3:
        square, slope, _ = np.polyfit(x[near], y[near], 2)
        # A parabola that opens downwards has no lowest point. Beyond the range there is no measurement.
        if square > 0:
            lowest = float(np.clip(-slope / (2 * square), x.min(), x.max()))
    return math.exp(lowest), sorted(finite, key=lambda rate: abs(math.log(rate) - lowest))
