"""Intervals over seeds."""

import math

import numpy as np
import pytest

from nanochat.statistics import holm, interval, p_value

# Degrees of freedom -> t of a two-sided 95 % interval, from printed tables.
T_VALUES = {1: 12.706, 2: 4.303, 9: 2.262, 30: 2.042}


@pytest.mark.parametrize("freedom", T_VALUES)
def test_the_interval_is_that_of_the_printed_tables(freedom) -> None:
    values = np.random.default_rng(freedom).normal(7, 3, freedom + 1)
    error = math.sqrt(((values - values.mean()) ** 2).sum() / freedom / len(values))
    assert interval(list(values)) == pytest.approx((values.mean(), T_VALUES[freedom] * error), rel=5e-4)


def test_an_interval_is_positive_if_it_lies_above_zero() -> None:
    assert [interval(values).is_positive for values in ([1, 2, 6], [5, 5.5, 6], [-1, -1.1])] == [False, True, False]
    assert interval([2.0]) == (2.0, None)
    assert not interval([2.0]).is_positive


def test_welch_compares_two_samples() -> None:
    assert p_value([1.0, 1.1, 1.2], [1.0, 1.1, 1.2]) == pytest.approx(1.0)
    assert p_value([1.0, 1.1, 1.2], [1.5, 1.6, 1.4]) == pytest.approx(0.00805, abs=1e-5)
    # Variances of their own leave fewer degrees of freedom than a common one.
    assert p_value([1.0, 1.1, 1.2], [0.0, 2.0, 4.0]) == pytest.approx(0.51743, abs=1e-5)
    # With two degrees of freedom the tail is 1 - t / √(2 + t²); here t = 0.5 / (0.1 √(1 + 1/3)).
    assert p_value([1.0], [1.5, 1.6, 1.4]) == p_value([1.5, 1.6, 1.4], [1.0]) == pytest.approx(0.04942, abs=1e-5)


def test_many_p_values_are_corrected() -> None:
    # 5 × 0.005, 4 × 0.01, 3 × 0.03, then no less than that, and 0.9.
    assert holm([0.01, 0.04, 0.03, 0.005, 0.9]) == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.9])
    assert holm([0.01, 0.3], rounds=2) == pytest.approx([0.04, 0.6])
    assert holm([]) == []
