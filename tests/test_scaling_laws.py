"""The fits, on data of known laws with noise, and on what does not decide."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from outcomes import leave

from bench.scaling import Optimum, ScalingRun, by_budget, laws_table, optimum, power_law, read_runs
from nanochat.errors import UserError

ALPHA, BETA = 0.34, 0.28  # of L = 1.69 + 406 / N^ALPHA + 411 / D^BETA, with which N grows as C^(BETA / (ALPHA + BETA))
SHARE = BETA / (ALPHA + BETA)


def sweep(budget: float, sizes: list[float], noise: float = 0.0, seed: int = 0):
    """What training would give by that law, at 6 FLOPs a parameter and token."""
    draws, runs = np.random.default_rng((seed, int(budget))), []
    for depth, n in enumerate(sizes):
        tokens = budget / (6 * n)
        loss = 1.69 + 406 / n**ALPHA + 411 / tokens**BETA + noise * draws.standard_normal()
        runs.append(
            ScalingRun(f"{budget:g}-d{depth}", depth, round(n), round(tokens), tokens / n, budget, budget, loss, 0.01)
        )
    return runs


def best_size(budget: float):
    return (ALPHA * 406 / (BETA * 411)) ** (1 / (ALPHA + BETA)) * (budget / 6) ** SHARE


def optima(budgets: list[float], doublings: list[float], noise: float = 0.0, seed: int = 0):
    """The best run of each budget, over sizes so many doublings from the best one."""
    runs = [run for c in budgets for run in sweep(c, [best_size(c) * 2**x for x in doublings], noise, seed)]
    np.random.default_rng(seed).shuffle(runs)
    return [optimum(group) for group in by_budget(runs).values()]


@pytest.mark.parametrize("seed", range(3))
def test_the_exponents_of_a_known_law_are_found(seed) -> None:
    budgets = [1e18, 2.15e18, 4.64e18, 1e19, 1e20]
    found = optima(budgets, [-1.5, -0.9, 0, 0.8, 1.5], 5e-4, seed)
    assert [best.flops for best in found] == budgets
    for best in found:
        assert math.log(best.n / best_size(best.flops)) == pytest.approx(0, abs=0.25)
        assert best.tokens == pytest.approx(best.flops / (6 * best.n), rel=0.02)
    sizes, tokens = (power_law(budgets, [getattr(best, what) for best in found]) for what in ("n", "tokens"))
    for (exponent, stderr, _), expected in ((sizes, SHARE), (tokens, 1 - SHARE)):
        assert exponent == pytest.approx(expected, abs=0.05)
        assert 0 < stderr < 0.05


def test_a_power_law_without_noise_is_exact_and_sizes_without_a_lowest_point_have_no_best() -> None:
    exponent, _, there = power_law([1e18, 1e20, 1e19], [3 * x**-0.05 for x in (1e18, 1e20, 1e19)])
    assert (there, exponent) == pytest.approx((3 * 1e20**-0.05, -0.05), rel=1e-6)
    assert math.isnan(power_law([1.0, 2.0], [1.0, 2.0])[1])
    near = best_size(1e18)
    around = [near / 2, near, 2 * near]
    assert optimum(sweep(1e18, around)).n == pytest.approx(near, rel=0.1)
    unknown = Optimum(1e18)
    assert optimum(sweep(1e18, around[:2])) == unknown
    assert optimum([replace(run, bpb=-run.bpb) for run in sweep(1e18, around)]) == unknown
    for factor in (9, 1 / 9):
        assert optimum(sweep(1e18, [factor * n for n in around])) == unknown


def write_run(base: Path, tag: str, **changes) -> None:
    """An outcome of base_train, with what is read of it."""
    metrics = {"Number of parameters, matrices": 50, "Number of parameters, head": 20, "Tokens seen": 840}
    metrics |= {"Total training flops": {"value": 4e5}, "Final validation bpb": {"value": 1.5, "stderr": 0.1}}
    leave(base, "base_train", tag, config={"depth": 2, "target_flops": -1.0}, metrics=metrics | changes)


def test_finished_runs_are_read(tmp_path) -> None:
    write_run(tmp_path, "mine-d2")
    write_run(tmp_path, "mine-d4", **{"Total training flops": {"value": 9e5}})
    write_run(tmp_path, "mine-d6", **{"Final validation bpb": "n/a"})
    write_run(tmp_path, "other-d2")
    leave(tmp_path, "tok_train", "mine-d2")
    runs = read_runs(tmp_path, "mine-d")
    assert runs[0] == ScalingRun("mine-d2", 2, 70, 840, 12.0, 4e5, -1.0, 1.5, 0.1)
    assert [run.tag for run in runs] == ["mine-d2", "mine-d4"]
    assert by_budget(runs) == {}
    # A series names its runs: one of another recipe may have the same prefix.
    assert [run.tag for run in read_runs(tmp_path, "", ["mine-d2", "other-d2"])] == ["mine-d2", "other-d2"]
    with pytest.raises(UserError, match=r"^mine-d6, mine-d8: no such run has finished with a validation loss"):
        read_runs(tmp_path, "", ["mine-d2", "mine-d6", "mine-d8"])
    # An embedding that is the head as well.
    write_run(tmp_path, "tied-d2", **{"Number of parameters, head": 0, "Number of parameters, embed": 30})
    [tied] = read_runs(tmp_path, "tied-d")
    assert (tied.n, tied.ratio) == (80, 10.5)


def test_the_ratio_that_is_suggested_is_that_of_the_law() -> None:
    found = optima([1e18, 3e18, 1e19], [-1.0, -0.5, 0, 0.5, 1.0])
    [[_, exponent, _, most, ratio]] = laws_table(found, {"Tokens : N": "ratio"})["rows"]
    assert (exponent, most) == (pytest.approx(1 - 2 * SHARE, abs=0.05), 1e19)
    assert ratio == pytest.approx(1e19 / 6 / best_size(1e19) ** 2, rel=0.1)
    assert laws_table(found[:1], {"N": "n"})["rows"] == []
