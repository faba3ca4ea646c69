"""Search for the best rate: wide, then narrow, then with seeds.

`next_rates(points)` returns the next Round of runs; points: rate -> losses of its finished runs, one for each seed in
the order of the seeds, nan for a run that diverged. The rounds follow from the points alone, so a search goes on where
it was interrupted.

1. WIDE rates over two decades around `centre`, one seed. Where the lowest loss lies at an edge of the range, the range
   is moved by STEPS_MOVED further rates, at most MOST_MOVES times, before anything is fitted.
2. NARROW rates around the lowest point of a parabola in log rate, one seed.
3. The best two, with all seeds.

`best_rate(points, seeds)` returns the Best of a finished search, or of one that stopped early. Rates have three digits,
so that they are the same as keys, in tags and on a command line. Pure functions: nothing is run.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

WIDE = 10  # rates of the first round
DECADES = 2.0  # that they span
STEP = DECADES / (WIDE - 1)  # decades between neighbours
STEPS_MOVED = 4  # further rates beyond an edge
MOST_MOVES = 3
NARROW = 5
NARROW_STEP = 0.12  # decades

Points = Mapping[float, Sequence[float]]  # rate -> losses, one for each seed; nan: diverged


class Round(NamedTuple):
    """Runs that come next."""

    number: int  # 1 wide, 2 narrow, 3 seeds; 0: the search has ended
    rates: tuple[float, ...]
    seeds: int  # for each of the rates, the first of them may have been run
    sentence: str


class Best(NamedTuple):
    """The result of a search."""

    rate: float  # nan if no run has a finite loss
    is_edge: bool  # the optimum lies beyond the range
    sentence: str


def next_rates(points: Points, seeds: int = 2, centre: float = 1.0) -> Round:
    """Return the next round of a search; rates that are in the points already, with enough seeds, are left out."""
    raise NotImplementedError


def best_rate(points: Points, seeds: int = 2, centre: float = 1.0) -> Best:
    """Return the best rate that the points show, with a sentence for the report."""
    raise NotImplementedError
