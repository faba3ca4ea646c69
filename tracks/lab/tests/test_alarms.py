"""Alarms: planted faults are found, and healthy runs raise none."""

from typing import Any

import numpy as np
import pytest

from nanochat.log import Record
from nanochat.statistics import Estimate
from tracks.lab.alarms import alarms, has_collapsed, staircase

SEED = 22


def log(losses: np.ndarray, norms: np.ndarray, epochs: float = 0.0) -> list[Record]:
    """Records as training writes them, over so many epochs."""
    records = [{"kind": "val", "step": 0, "val/loss": 3.0}]
    for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), 1):
        records.append({"kind": "train", "step": step, "train/loss": float(loss), "train/grad_norm": float(norm)})
        if epochs:
            records[-1]["train/epoch"] = epochs * step / len(losses)
    return records


def healthy(random: np.random.Generator, steps: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """A loss that falls, with noise, and a gradient norm."""
    curve = 1 + 2 * np.exp(-np.arange(steps) / 60)
    return curve * np.exp(0.05 * random.standard_normal(steps)), np.exp(0.3 * random.standard_normal(steps))


def kinds(*arguments: Any) -> list[str]:
    return [alarm.kind for alarm in alarms(*arguments)]


def test_healthy_runs_raise_no_alarm() -> None:
    random = np.random.default_rng(SEED)
    found = [alarms(log(*healthy(random), epochs=5), {}, {}) for _ in range(200)]
    assert sum(map(bool, found)) <= 2, SEED
    assert alarms([], {}, {}) == []
    assert alarms(log(*healthy(random, 20)), {}, {}) == []


@pytest.mark.parametrize(
    ("before", "after", "questions", "is_broken"),
    [
        (142 / 150, 143 / 150, 150, False),  # one answer more, of a base that gives A nearly always
        (0.90, 0.96, 150, False),
        (0.90, 1.0, 50, False),  # five answers of 50
        (0.90, 1.0, 150, True),
        (0.80, 1.0, 100, True),
        (0.75, 1.0, 60, True),
        (0.25, 0.94, 150, False),
        (0.25, 0.96, 150, True),
        (0.25, 1.0, 20, True),
        (0.70, 1.0, 150, True),
    ],
)
def test_a_collapse_is_more_than_one_answer(before: float, after: float, questions: int, is_broken: bool) -> None:
    assert has_collapsed(before, after, questions) == is_broken


def test_faults_are_found() -> None:
    random = np.random.default_rng(SEED)
    for _ in range(20):
        loss, norm = healthy(random)
        loss[150] *= 2
        (found,) = alarms(log(loss, norm), {}, {})
        assert (found.kind, found.breaks) == ("loss", False)  # one step
        assert found.sentence.startswith("the loss of step 151 is ")
        loss[151:156] *= 2
        (found,) = alarms(log(loss, norm), {}, {})
        assert found.breaks
        loss[250] *= 9  # a larger spike, of one step, does not hide it
        assert [alarm.breaks for alarm in alarms(log(loss, norm), {}, {})] == [True]
        loss, norm = healthy(random)
        norm[200] *= 100
        assert kinds(log(loss, norm), {}, {}) == ["gradient norm"]
        # Diverged within the first steps, before a window is full.
        loss, norm = healthy(random)
        loss[4:] = 6 * np.exp(0.05 * random.standard_normal(296))
        norm[4:] *= 30
        assert {*kinds(log(loss, norm), {}, {})} == {"loss", "gradient norm"}
    # The loss of reinforcement learning may be below 0, and idle steps have none.
    assert alarms(log(random.standard_normal(300), np.zeros(300)), {}, {}) == []


def test_shares_beside_the_parent() -> None:
    before = {"MMLU": Estimate(0.50, 0.01), "stops": Estimate(0.9, 0.01), "few": Estimate(0.5, 0.1)}
    after = {"MMLU": Estimate(0.38, 0.01), "stops": Estimate(0.2, 0.01), "few": Estimate(0.3, 0.1)}
    found = alarms([], after | {"new": Estimate(0, 0)}, before)
    sentences = ["MMLU: 38.0%, and 50.0% before training", "stops: 20.0%, and 90.0% before training"]
    assert [alarm.sentence for alarm in found] == sentences
    assert all(alarm.breaks for alarm in found)
    assert alarms([], {"MMLU": Estimate(0.41, 0.001)}, before) == []  # 9 points


def test_a_staircase_has_a_step_and_its_error() -> None:
    """The estimate covers the planted step, with a trend and a curvature that are no step."""
    random = np.random.default_rng(SEED)
    z = []
    for _ in range(400):
        loss, norm = healthy(random)
        loss -= 0.2 * np.minimum(np.arange(300) // 60, 4)
        stair = staircase(log(loss, norm, epochs=5))
        z.append((stair.value + 0.2) / stair.stderr)
    assert abs(np.mean(z)) < 0.5, SEED
    assert 0.8 < np.std(z) < 1.25, SEED
    (found,) = alarms(log(loss, norm, epochs=5), {}, {})
    assert (found.kind, found.breaks) == ("staircase", False)
    assert staircase(log(loss, norm, epochs=1)) is None
    assert staircase(log(loss, norm, epochs=200)) is None
