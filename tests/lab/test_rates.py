"""The search for the best rate, on made curves with noise."""

import math

import numpy as np
import pytest

from nanochat.lab.rates import MOST_MOVES, WIDE, next_rates

NAN = math.nan
SEEDS = 3
FACTOR = 1.5
# Loss above the lowest one, by decades from the optimum; 0.3 is a loss of 2 % at a third of the best rate or so.
CURVES = {
    "parabola": lambda x: 0.3 * x**2,
    "steeper above": lambda x: 0.3 * x**2 * (3 if x > 0 else 1),
    "flat below": lambda x: 0.3 * x**2 if x > 0 else 0.15 * math.log1p(2 * x**2),
    "diverges": lambda x: 0.3 * x**2 if x < 0.5 else NAN,
    "diverges soon": lambda x: 0.3 * x**2 if x < 0.25 else NAN,
}
NOISE = 0.01  # between seeds


def search(curve, optimum, random, noise=NOISE):
    """Return the rounds, the last of which is the end, and the points; one seed's loss has a deviation of noise."""
    points, rounds = {}, []
    while not rounds or rounds[-1].number:
        rounds.append(next_rates(points, SEEDS))
        for rate in rounds[-1].rates:
            losses = points.setdefault(rate, [])
            while len(losses) < rounds[-1].seeds:
                losses.append(2 + curve(math.log10(rate / optimum)) + random.normal(0, noise))
        assert len(rounds) < 9
    return rounds, points


@pytest.mark.parametrize("name", CURVES)
def test_it_ends_near_the_optimum(name):
    random = np.random.default_rng(list(CURVES).index(name))
    near = 0
    for _ in range(200):
        optimum = 10 ** random.uniform(-0.8, 0.8)
        rounds, points = search(CURVES[name], optimum, random)
        [best] = rounds[-1].rates
        near += max(best / optimum, optimum / best) <= FACTOR
        # Ten, five, and two further seeds for two of them; a third of the range has an end within a step.
        assert sum(map(len, points.values())) <= 15 + 4 + 4
    print(f"{name}: {near} of 200 within a factor {FACTOR}, seed {list(CURVES).index(name)}")
    assert near >= 190


@pytest.mark.parametrize("name", ["parabola", "diverges"])
@pytest.mark.parametrize("side", [-1, 1])
def test_an_optimum_outside_moves_the_range(name, side):
    random = np.random.default_rng(7)
    near = 0
    for _ in range(100):
        optimum = 10 ** (side * random.uniform(1.1, 1.8))
        rounds, points = search(CURVES[name], optimum, random)
        [best] = rounds[-1].rates
        near += max(best / optimum, optimum / best) <= FACTOR
        # Said, with the further rates in the first round, and nothing fitted before.
        assert [one.number for one in rounds[:2]] == [1, 1]
        assert "an end of the range, or beyond" in rounds[1].sentence
        assert len(rounds[1].rates) > WIDE
    assert near >= 95


def test_the_rounds_of_a_curve_without_noise():
    rounds, points = search(lambda x: x**2, 2.0, np.random.default_rng(0), noise=0)
    assert [one.number for one in rounds] == [1, 2, 3, 0]
    wide, narrow, two, best = (one.rates for one in rounds)
    assert len(wide) == WIDE and wide[0] == pytest.approx(0.1) and wide[-1] == pytest.approx(10)
    assert np.diff(np.log(wide)) == pytest.approx(math.log(100) / 9, rel=0.02)
    assert narrow == [1.15, 1.52, 2.0, 2.64, 3.48]
    assert two[0] == best[0] == 2.0 and two[1] in narrow
    assert [len(points[rate]) for rate in two] == [SEEDS, SEEDS]
    assert [len(points[rate]) for rate in wide] == [1] * WIDE
    assert rounds[-1].sentence == "the best rate is 2, with the lower mean loss over 3 seeds"


def test_an_interrupted_search_goes_on():
    """Any part of the points leads to a round that was part of the search."""
    rounds, points = search(CURVES["diverges"], 1.5, np.random.default_rng(3))
    for count in range(len(points)):
        some = dict(list(points.items())[:count])
        assert next_rates(some, SEEDS) in [one for one in rounds if one.number < 3]
    first_seeds = {rate: losses[:1] for rate, losses in points.items()}
    assert next_rates(first_seeds, SEEDS) == rounds[-2]


def test_the_seeds_decide_between_two_rates():
    rounds, points = search(lambda x: x**2, 2.0, np.random.default_rng(0), noise=0)
    best, other = rounds[-2].rates
    points[best] = [2.0, 2.2, 2.2]
    assert next_rates(points, SEEDS).rates == [other]
    # A rate with which a seed diverges has lost.
    points[best] = [2.0, NAN, 1.0]
    assert next_rates(points, SEEDS).rates == [other]


def test_runs_that_all_diverge_move_the_range_down_until_it_ends():
    rounds, points = search(lambda x: NAN, 1.0, np.random.default_rng(0))
    assert [one.number for one in rounds] == [1] * (MOST_MOVES + 1) + [0]
    assert rounds[-1].rates == []
    assert min(points) < 1e-3
    assert rounds[-1].sentence.startswith("the optimum lies at an end of the range, or beyond: near 0.0002")


def test_a_few_finite_runs_are_enough():
    """All but the lowest two rates diverge: nothing is fitted, and the range moves towards them."""
    rounds, _ = search(lambda x: 0.3 * x**2 if x < 0.2 else NAN, 0.15, np.random.default_rng(1), noise=0)
    assert rounds[-1].rates[0] == pytest.approx(0.15, rel=FACTOR - 1)


def test_the_centre_is_the_rate_of_the_stage():
    assert next_rates({}, centre=0.02).rates[0] == pytest.approx(0.002)
    assert next_rates({}, centre=0.02).rates[-1] == pytest.approx(0.2)
