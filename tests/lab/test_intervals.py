"""Intervals over seeds."""

import math

import numpy as np
import pytest

from nanochat.lab.intervals import interval, p_value, t_tail


def test_the_interval_of_three_values():
    found = interval([1.0, 2.0, 6.0])
    half = 4.303 * math.sqrt((4 + 1 + 9) / 2 / 3)  # t for two degrees of freedom
    assert found == pytest.approx((3, half))
    assert [interval(values).is_positive for values in ([1, 2, 6], [5, 5.5, 6], [-1, -1.1])] == [False, True, False]


def test_a_single_value_says_nothing_about_the_spread():
    assert interval([2.0]) == (2.0, None)
    assert not interval([2.0]).is_positive


@pytest.mark.parametrize("count", [2, 3, 5, 12, 40])
def test_in_95_of_100_samples_the_interval_holds_the_mean(count):
    draws = np.random.default_rng(count).normal(7, 3, (2000, count))
    held = [abs(mean - 7) <= half for mean, half in map(interval, draws)]
    assert 0.93 < sum(held) / len(held) < 0.975


@pytest.mark.parametrize(
    ("t", "freedom", "p"), [(12.706, 1, 0.05), (4.303, 2, 0.05), (9.925, 2, 0.01), (2.262, 9, 0.05)]
)
def test_tails_are_those_of_the_printed_tables(t, freedom, p):
    assert t_tail(t, freedom) == pytest.approx(p, rel=1e-3)


def test_welch_compares_two_samples():
    assert p_value([1.0, 1.1, 1.2], [1.0, 1.1, 1.2]) == pytest.approx(1.0)
    assert p_value([1.0, 1.1, 1.2], [1.5, 1.6, 1.4]) == pytest.approx(0.00805, abs=1e-5)
    assert p_value([1.0, 1.0], [2.0, 2.0]) == 0.0
    # With two degrees of freedom the tail is 1 - t / √(2 + t²); here t = 0.5 / (0.1 √(1 + 1/3)).
    assert p_value([1.0], [1.5, 1.6, 1.4]) == p_value([1.5, 1.6, 1.4], [1.0]) == pytest.approx(0.04942, abs=1e-5)
