"""The search for the best rate, on made curves with noise."""

import math
from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest

from tracks.lab.rates import MOST_MOVES, WIDE, Round, rounds, runs_ahead

SEEDS = 3
NOISE = 0.01  # deviation of the loss between seeds
# Loss above the lowest, by decades from the optimum.
CURVES = {
    "parabola": lambda x: 0.3 * x**2,
    "steeper above": lambda x: 0.3 * x**2 * (3 if x > 0 else 1),
    "flat below": lambda x: 0.3 * x**2 if x > 0 else 0.15 * math.log1p(2 * x**2),
    "diverges": lambda x: 0.3 * x**2 if x < 0.5 else math.nan,
    "diverges soon": lambda x: 0.3 * x**2 if x < 0.25 else math.nan,
}


def search(
    curve: Callable[[float], float], optimum: float, random: np.random.Generator, noise: float = NOISE
) -> tuple[list[Round], dict[float, list[float]]]:
    """Return the rounds, of which the last is the end, and the points."""
    points, found = {}, []
    for ahead in rounds(points, SEEDS):
        found.append(ahead)
        for rate in ahead.rates:
            losses = points.setdefault(rate, [])
            while len(losses) < ahead.seeds:
                losses.append(2 + curve(math.log10(rate / optimum)) + random.normal(0, noise))
        assert len(found) < 9
    return found, points


@pytest.mark.parametrize("decades", [(-0.7, 0.7), (1.1, 1.8), (-1.8, -1.1)])
@pytest.mark.parametrize("name", CURVES)
def test_it_ends_near_the_optimum(name, decades) -> None:
    seed = list(CURVES).index(name)
    random = np.random.default_rng(seed)
    near = runs = 0
    for _ in range(200):
        optimum = 10 ** random.uniform(*decades)
        found, points = search(CURVES[name], optimum, random)
        [best] = found[-1].rates
        near += max(best / optimum, optimum / best) <= 1.5
        taken = sum(map(len, points.values()))
        runs += taken
        usual, most = runs_ahead(SEEDS)
        assert taken <= (most if "moved" in found[1].sentence else usual)
        # Outside of the first range, nothing is fitted before the range is moved.
        if abs(math.log10(optimum)) > 1:
            assert "moved to where the runs get better" in found[1].sentence
    print(f"{name}, optimum in {decades}: {near} of 200 within a factor 1.5, {runs / 200:.1f} runs, seed {seed}")
    assert near >= 190


@pytest.mark.parametrize("losses", [[2.0, 2.2, 2.2], [2.0, math.nan, 1.0]])
def test_the_seeds_decide_between_two_rates(losses) -> None:
    """A rate with which a seed diverges has lost too."""
    points = {}
    for ahead in rounds(points, SEEDS):
        if ahead.seeds == SEEDS:
            best, other = ahead.rates
            points |= {best: losses, other: [2.1] * SEEDS}
        else:
            points |= {rate: [2 + math.log10(rate / 2) ** 2] for rate in ahead.rates}
    assert ahead.rates == [other]


def test_two_rates_that_both_lose_a_seed_are_not_called_the_best() -> None:
    points = {}
    for ahead in rounds(points, SEEDS):
        if ahead.seeds == SEEDS:
            one, other = ahead.rates
            points |= {one: [2.0, math.nan, 2.0], other: [2.1, 2.1, math.nan]}
        else:
            points |= {rate: [2 + math.log10(rate / 2) ** 2] for rate in ahead.rates}
    assert ahead == Round(
        [], 0, f"no best rate: {one:g} and {other:g}, the nearest to the best point, did not train with all 3 seeds"
    )


def test_runs_that_all_diverge_move_the_range_down_until_it_ends() -> None:
    found, points = search(lambda x: math.nan, 1.0, np.random.default_rng(0))
    assert [one.seeds for one in found] == [1] * (MOST_MOVES + 1) + [0]
    # Four of ten rates are new in each range.
    assert len(points) == WIDE + 4 * MOST_MOVES
    assert runs_ahead(1) == (WIDE + 5, WIDE + 5 + 4 * MOST_MOVES)
    assert found[-1].rates == []
    assert found[-1].sentence == "the optimum is beyond 0.000215, after 3 moves of the range"


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_rates_that_are_all_alike_have_no_best_one(share: float) -> None:
    """A model that answers no question at any rate, or the same ones: pass@1 is a share of few questions."""
    found, points = search(lambda x: -2 - share, 1.0, np.random.default_rng(0), noise=0)
    assert found[1:] == [Round([], 0, "no best rate: the validation loss is the same with all of them that train")]
    assert len(points) == WIDE


def test_of_rates_that_are_equally_good_the_middle_counts() -> None:
    """Shares of ten questions: a plateau between rates that learn nothing and rates that break the model."""
    found, _ = search(lambda x: -2 - (0.4 if abs(x) < 0.5 else 0.0), 1.0, np.random.default_rng(0), noise=0)
    [best] = found[-1].rates
    assert 0.6 < best < 1.7
    # On a slope, no rate is the lowest one because it came first.
    found, _ = search(lambda x: -2 - round(max(0.0, 0.5 - abs(x) / 2), 1), 3.0, np.random.default_rng(0), noise=0)
    [best] = found[-1].rates
    assert 2 < best < 4.5


def test_the_rounds_of_a_curve_without_noise() -> None:
    found, points = search(lambda x: x**2, 2.0, np.random.default_rng(0), noise=0)
    wide, narrow, two, best = (one.rates for one in found)
    assert [one.seeds for one in found] == [1, 1, SEEDS, 0]
    assert wide == [0.1, 0.167, 0.278, 0.464, 0.774, 1.29, 2.15, 3.59, 5.99, 10.0]
    assert narrow == [1.15, 1.52, 2.0, 2.64, 3.48]
    assert two[0] == best[0] == 2.0
    assert two[1] == 2.15
    assert sorted(map(len, points.values())) == [1] * (WIDE + 3) + [SEEDS, SEEDS]


def test_an_interrupted_search_goes_on() -> None:
    """Any part of the points leads to a round that is part of the search."""
    found, points = search(CURVES["diverges"], 1.5, np.random.default_rng(3))
    for count in range(len(points)):
        assert next(rounds(dict(list(points.items())[:count]), SEEDS)) in found[:2]
    once = {rate: losses[:1] for rate, losses in points.items()}
    assert found[2] in list(islice(rounds(once, SEEDS), 3))
