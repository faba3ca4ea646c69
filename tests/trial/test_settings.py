"""Scales of trials: flags that scripts.base_train has, and budgets in proportion."""

import pytest

from nanochat.trial.settings import SCALES
from scripts.base_train import Config


@pytest.mark.parametrize("name", SCALES)
def test_flags_are_those_of_base_train(name: str) -> None:
    fields = {f"--{field.replace('_', '-')}" for field in Config.__dataclass_fields__}
    assert SCALES[name].flags.keys() <= fields


def test_budgets() -> None:
    scale = SCALES["embedded"]
    first, second = scale.depths
    assert scale.budget("flops", first) == f"--target-flops={scale.flops:g}"
    assert scale.budget("steps", second) == f"--num-iterations={scale.steps}"
    assert float(scale.budget("flops", second).partition("=")[2]) == pytest.approx(scale.flops * (second / first) ** 2)
    assert float(scale.budget("seconds", second).partition("=")[2]) == pytest.approx(scale.seconds * second / first)
