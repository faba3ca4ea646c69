from itertools import pairwise

import pytest

from nanochat.optim import Group
from nanochat.schedules import apply, cosine, finetuning, momentum, pretraining, warmup_warmdown
from nanochat.settings import OptimizerSettings

STEPS = 1000


def over_a_run(schedule, **parameters):
    return [schedule(step / STEPS, step, **parameters) for step in range(STEPS + 1)]


def test_learning_rate_goes_up_stays_and_comes_down() -> None:
    values = over_a_run(warmup_warmdown, warmup_steps=40, warmdown=0.65, final=0.05)
    assert values[:40] == pytest.approx([(step + 1) / 40 for step in range(40)])
    assert set(values[40:350]) == {1.0}
    slopes = [before - after for before, after in pairwise(values[350:])]
    assert slopes == pytest.approx([0.95 / 650] * 650)
    first = {steps: pretraining(OptimizerSettings(), steps)["lr"](0.0, 0) for steps in (None, 1, 60, 400, 4000)}
    assert first == pytest.approx({None: 1 / 40, 1: 1.0, 60: 1 / 6, 400: 1 / 40, 4000: 1 / 40})  # at most a tenth
    # Of a run whose steps are not known, as one that ends by a clock, progress tells the tenth.
    unknown = pretraining(OptimizerSettings(warmup_steps=80), most=0.1)["lr"]
    assert [unknown(step / 100, step) for step in (0, 5, 10, 20)] == pytest.approx([1 / 80, 0.5, 1.0, 1.0])
    assert finetuning(OptimizerSettings(warmup_steps=80), 100)["lr"](0.05, 5) == pytest.approx(0.6)
    assert set(over_a_run(warmup_warmdown, warmup_steps=0, warmdown=0.0, final=0.0)) == {1.0}
    assert warmup_warmdown(1.2, 5, warmup_steps=0, warmdown=0.5, final=0.1) == pytest.approx(0.1)  # past the end


def test_a_short_run_has_no_jump() -> None:
    """Where the warmdown begins before the warmup is over, the lower of both holds."""
    run = [warmup_warmdown(step / 50, step, warmup_steps=40, warmdown=0.65, final=0.05) for step in range(51)]
    jumps = [abs(before - after) for before, after in pairwise(run)]
    assert max(run) < 1
    assert max(jumps) < 0.03
    peak = [momentum(step / 50, step, warmdown=0.65) for step in range(51)]
    assert max(abs(before - after) for before, after in pairwise(peak)) < 0.01
    values = over_a_run(momentum, warmdown=0.4)
    assert (values[0], values[200]) == pytest.approx((0.85, 0.91))
    assert values[400:601] == pytest.approx([0.97] * 201)
    assert (values[800], values[STEPS]) == pytest.approx((0.935, 0.90))


def test_apply_moves_groups_from_where_they_began() -> None:
    groups = [Group("rest", "adamw", [], 0.2, 0.8, 0.9, 0.3), Group("m", "muon", [], 0.04, 0.95, 0.9, 0.1)]
    table = pretraining(OptimizerSettings(warmup_steps=10, warmdown_ratio=0.5, final_lr_frac=0.0))
    for _ in range(2):  # nothing accumulates
        apply(groups, table, 0.75, 800)
    rest, muon = groups
    assert (rest.lr, rest.momentum, rest.beta2, rest.weight_decay) == pytest.approx((0.1, 0.8, 0.9, 0.3))
    assert (muon.lr, muon.momentum, muon.beta2) == pytest.approx((0.02, 0.935, 0.9))
    assert muon.weight_decay == pytest.approx(0.1 * cosine(0.75, 800))
    assert (rest.initial_lr, muon.initial_lr, muon.initial_weight_decay) == (0.2, 0.04, 0.1)
