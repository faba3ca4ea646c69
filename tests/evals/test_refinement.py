"""Alarms about a recursive run."""

import pytest

from nanochat.evals.refinement import find_alarms
from nanochat.lab.recursion import unmet_criteria


def validation(*bpb):
    return {"step": 1, "val/bpb": bpb[-1]} | {f"val/bpb at exit {i}": one for i, one in enumerate(bpb)}


# Averaged weights of a short run are worse.
AVERAGED = validation(3.0, 2.5, 2.0) | {f"val/bpb at exit {i} of the average": 4.0 + i for i in range(3)}
GOOD, INVERTED, FLAT = validation(3.0, 2.5, 2.0), validation(2.0, 2.5, 2.4), validation(2.0, 1.99, 1.98)
NORM = {"step": 7, "train/grad_norm": 1.0}


@pytest.mark.parametrize(
    ("records", "finished", "alarms"),
    [
        ([NORM, GOOD, GOOD, GOOD], True, []),
        ([AVERAGED, AVERAGED, AVERAGED], True, []),
        ([INVERTED, GOOD, INVERTED, INVERTED], False, []),
        ([GOOD, INVERTED, INVERTED, INVERTED], False, ["order"]),
        ([validation(2.0, 2.00001)] * 3, False, []),  # rounding
        ([INVERTED | {"step": 0}, INVERTED, INVERTED], False, []),  # before the first step
        ([FLAT], False, []),
        ([FLAT], True, ["refinement"]),
        ([NORM, {"step": 8, "train/grad_norm": 20.1}], False, ["gradient"]),
        ([], True, []),
    ],
)
def test_alarms(records, finished, alarms):
    assert list(find_alarms(records, finished)) == alarms


def steps(losses, norm=1.0):
    return [{"step": i, "train/loss": loss, "train/grad_norm": norm} for i, loss in enumerate(losses, 1)]


FALLING = [3.0 - 0.1 * step for step in range(10)]


@pytest.mark.parametrize(
    ("records", "unmet"),
    [
        ([*steps(FALLING), GOOD], []),
        (
            [*steps(FALLING), INVERTED],
            ["an exit is not better than the one before it", "the refinement is -20.0%, below 15%"],
        ),
        ([*steps(FALLING, 0.3), GOOD], ["the gradient's norm is 0.30 in the median, not 0.5 to 1.5"]),
        ([*steps([*FALLING[:8], 4.0, 4.0]), GOOD], ["the loss does not fall from each fifth of the run to the next"]),
        (steps(FALLING), ["it has no validation, or too few steps"]),
    ],
)
def test_criteria(records, unmet):
    assert unmet_criteria(records) == unmet
