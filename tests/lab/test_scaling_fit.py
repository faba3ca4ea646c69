"""The fits, on data of known laws with noise, and on what does not decide."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from nanochat.lab.scaling_fit import ScalingRun, by_budget, optimum, power_law, read_runs
from nanochat.outcome import Outcome
from scripts.scaling import laws

ALPHA, BETA = 0.34, 0.28  # of L = 1.69 + 406 / N^ALPHA + 411 / D^BETA, with which N grows as C^(BETA / (ALPHA + BETA))
SHARE = BETA / (ALPHA + BETA)


def sweep(budget: float, sizes: list[float], noise: float = 0.0, seed: int = 0) -> list[ScalingRun]:
    """What training would give by that law, at 6 FLOPs a parameter and token."""
    draws, runs = np.random.default_rng((seed, int(budget))), []
    for depth, n in enumerate(sizes):
        tokens = budget / (6 * n)
        loss = 1.69 + 406 / n**ALPHA + 411 / tokens**BETA + noise * draws.standard_normal()
        runs.append(
            ScalingRun(f"{budget:g}-d{depth}", depth, round(n), round(tokens), budget, budget, loss, 0.01, None)
        )
    return runs


def best_size(budget: float) -> float:
    return (ALPHA * 406 / (BETA * 411)) ** (1 / (ALPHA + BETA)) * (budget / 6) ** SHARE


@pytest.mark.parametrize("seed", range(5))
def test_the_exponents_of_a_known_law_are_found(seed):
    print(f"seed {seed}")
    budgets = [1e18, 2.15e18, 4.64e18, 1e19, 1e20]
    runs = [
        run for c in budgets for run in sweep(c, [best_size(c) * 2**x for x in (-1.5, -0.9, 0, 0.8, 1.5)], 5e-4, seed)
    ]
    np.random.default_rng(seed).shuffle(runs)
    found = [optimum(group) for group in by_budget(runs).values()]
    assert [best.flops for best in found] == budgets
    for best in found:
        assert math.log(best.n / best_size(best.flops)) == pytest.approx(0, abs=0.25)
        assert best.tokens == pytest.approx(best.flops / (6 * best.n), rel=0.02)
    sizes, tokens = (power_law(budgets, [getattr(best, what) for best in found]) for what in ("n", "tokens"))
    for law, exponent in ((sizes, SHARE), (tokens, 1 - SHARE)):
        assert law.exponent == pytest.approx(exponent, abs=0.05)
        assert 0 < law.stderr < 0.05


def test_the_ratio_that_is_suggested_is_that_of_the_law():
    sizes = [2**x for x in (-1.0, -0.5, 0, 0.5, 1.0)]
    parts, curve = laws([run for c in (1e18, 3e18, 1e19) for run in sweep(c, [best_size(c) * x for x in sizes])])
    ratio = float(re.search(r"at 1e\+19 FLOPs this suggests (\S+) tokens for each parameter", parts[-1])[1])
    assert ratio == pytest.approx(1e19 / 6 / best_size(1e19) ** 2, rel=0.1)
    assert list(curve["series"]) == ["1e+18 FLOPs", "3e+18 FLOPs", "1e+19 FLOPs"]


def test_without_noise_a_power_law_is_exact():
    law = power_law([1e18, 1e19, 1e20], [3 * x**-0.05 for x in (1e18, 1e19, 1e20)])
    assert (law(1.0), law.exponent) == pytest.approx((3, -0.05), rel=1e-6)
    assert law.stderr < 1e-9
    assert law(1e21) == pytest.approx(3 * 1e21**-0.05)
    assert math.isnan(power_law([1.0, 2.0], [1.0, 2.0]).stderr)
    with pytest.raises(
        ValueError, match=r"^a power law needs points at two places, not 1: run another size or budget$"
    ):
        power_law([5.0, 5.0], [1.0, 2.0])


def test_what_does_not_decide_is_told():
    near = best_size(1e18)
    with pytest.raises(ValueError, match=r"^the budget of 1e\+18 FLOPs has runs of 2 sizes, .*: train 3 or more$"):
        optimum(sweep(1e18, [near, 2 * near]))
    bent = [run._replace(bpb=-run.bpb) for run in sweep(1e18, [near / 2, near, 2 * near])]
    with pytest.raises(ValueError, match=r"^the budget of 1e\+18 FLOPs has no lowest point, .*: train other depths"):
        optimum(bent)
    for factor, where in ((9, "below all sizes: train smaller"), (1 / 9, "above all sizes: train larger")):
        with pytest.raises(ValueError, match=rf"^the budget of 1e\+18 FLOPs has its lowest point {where} depths$"):
            optimum(sweep(1e18, [factor * near * x for x in (0.8, 1, 1.2)]))


# ---- finished runs ----


def write_run(base: Path, tag: str, **changes) -> None:
    """An outcome of base_train, with what is read of it."""
    metrics = {"Number of parameters": 90, "Number of parameters, matrices": 50, "Number of parameters, head": 20}
    metrics |= {"Tokens seen": 840, "Total training flops": {"value": 4e5, "format": ".4e"}}
    metrics |= {"Final validation bpb": {"value": 1.5, "stderr": 0.1}, "CORE metric estimate": "n/a"}
    config = {"depth": 2, "target_flops": -1.0}
    moment = "2026-11-20T12:00:00+00:00"
    about = {"stage": "base_train", "tag": tag, "started": moment, "timestamp": moment, "command": "", "card": []}
    record = Outcome(**about, config=config, metrics=metrics | changes, versions={}, environment={})
    path = base / "base_train" / tag / "outcome.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(vars(record)))


def test_finished_runs_are_read_and_others_are_named(tmp_path):
    core = {"value": 0.2, "stderr": 0.01}
    for tag, changes in {
        "mine-d2": {},
        "mine-d4": {"CORE metric estimate": core, "Total training flops": {"value": 9e5}},
        "mine-d6": {"Final validation bpb": "n/a"},
        "other-d2": {},
    }.items():
        write_run(tmp_path, tag, **changes)
    (tmp_path / "base_train/mine-d8").mkdir()
    (tmp_path / "base_train/mine-d9").mkdir()
    (tmp_path / "base_train/mine-d9/outcome.json").write_text("{}")
    runs, left_out = read_runs(tmp_path, "mine-d")
    assert runs[0] == ("mine-d2", 2, 70, 840, 4e5, -1.0, 1.5, 0.1, None)
    assert [(run.tag, run.core) for run in runs] == [("mine-d2", None), ("mine-d4", 0.2)]
    assert left_out == [
        "mine-d6 is left out: the run has no validation, take --eval-every=0 or more",
        "mine-d8 is left out: the run has not finished",
        "mine-d9 is left out: it has no `stage` of type str",
    ]
    assert by_budget(runs) == {}
