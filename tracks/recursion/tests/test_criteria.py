"""The criteria for a second phase, from a metric log. Its command is tested in test_phases.py."""

import pytest

from nanochat.log import Record
from tracks.recursion.criteria import criteria


def steps(losses: list[float], norm: float) -> list[Record]:
    return [{"step": i, "train/loss": loss, "train/grad_norm": norm} for i, loss in enumerate(losses, 1)]


def validation(*exits: float) -> Record:
    return {"step": 9, **{f"val/bpb at exit {i}": bpb for i, bpb in enumerate(exits)}}


@pytest.mark.parametrize(
    ("norm", "exits", "losses", "met"),
    [
        (1.0, (2.0, 1.8, 1.6), [5.0, 4.0, 3.0, 2.0, 1.0], [True, True, True, True]),
        (1.6, (2.0, 1.8, 1.6), [5.0, 4.0, 3.0, 2.0, 1.0], [True, True, False, True]),
        (0.5, (2.0, 2.0, 1.6), [5.0, 4.0, 3.0, 2.0, 1.0], [False, True, True, True]),
        (1.0, (2.0, 1.9, 1.8), [5.0, 4.0, 4.0, 2.0, 1.0], [True, False, True, False]),
    ],
)
def test_each_criterion(norm: float, exits: tuple[float, ...], losses: list[float], met: list[bool]) -> None:
    found = criteria([*steps(losses, norm), validation(2.0, 2.5, 3.0), validation(*exits)])
    assert [one.is_met for one in found] == met


def test_a_run_without_validation_meets_nothing() -> None:
    [one] = criteria(steps([3.0, 2.0, 1.0, 0.9, 0.8], 1.0))
    assert not one.is_met
