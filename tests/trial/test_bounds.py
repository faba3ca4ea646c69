"""What a candidate may take to train and to be scored: trials whose runs are made up."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from trials import Fake

from nanochat.log import Record
from nanochat.trial import arena
from nanochat.trial.bounds import work_of
from nanochat.trial.decision import Plan
from nanochat.trial.sides import Side


@pytest.mark.parametrize(("used", "processes", "answer"), [(14.0, 3, "keep"), (16.0, 1, "keep"), (16.0, 3, "discard")])
def test_by_the_clock_a_candidate_may_not_work_in_more_processes(
    used: float, processes: int, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that use the cores better are none."""
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001), "seconds")
    own = fake.train

    def train(side: Side, *more: Any) -> Record:
        found = own(side, *more)
        return found | ({"cpu_seconds": used, "processes": processes} if side.name == "candidate" else {})

    monkeypatch.setattr(arena, "train", train)
    found = fake.record()
    assert found["answer"] == answer
    if answer == "discard":
        assert "1.61 times the incumbent's processor time in the same seconds: it works with more" in found["reason"]


@pytest.mark.parametrize(("again", "refused", "asked"), [(50.0, None, 2), (10.0, "budget", 2)])
def test_before_a_slow_score_is_refused_the_incumbent_is_scored_again(
    again: float, refused: str | None, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise floor may be of an hour when the machine was less busy."""
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001))
    own = fake.score

    def score(side: Side, *given: Any) -> Record:
        late = any(name == "candidate" for name, _ in fake.trained)
        seconds = 60.0 if side.name == "candidate" else again if late else 10.0
        return own(side, *given) | {"scoring_cpu_seconds": seconds}

    monkeypatch.setattr(arena, "score", score)
    assert fake.record().get("refused") == refused
    assert fake.parts().count("again") == asked  # once there are two pairs


@pytest.mark.parametrize(
    ("plan", "slow", "refused"),
    [(Plan(1, 6, 0, 0.001), 1, 0), (Plan(1, 6, 0, 0.001), 9, 2), (Plan(1, 0, 0, 0.001), 9, 1)],
)
def test_a_single_pair_refuses_nobody_by_scoring_before_the_confirmation(
    plan: Plan, slow: int, refused: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slow: the candidate's first scores. refused: pairs of the last part when it is; 0: it is kept."""
    fake = Fake(tmp_path, monkeypatch, plan)
    fake.question = dataclasses.replace(fake.question, metrics=["scoring_cpu_seconds"])
    own, late = fake.score, []

    def score(side: Side, *given: Any) -> Record:
        if side.name == "candidate" and len(late) < slow:
            late.append(side)
            return own(side, *given) | {"scoring_cpu_seconds": 900.0}
        return own(side, *given)

    monkeypatch.setattr(arena, "score", score)
    found = fake.record()
    if not refused:
        assert found["answer"] == "keep"
        assert found["metrics"]["scoring_cpu_seconds"]["candidate"] == 1.0  # of the confirmation
        return
    assert found["refused"] == "budget"
    assert fake.parts().count("confirm") == (2 * refused if plan.confirming else 0)


@pytest.mark.parametrize("slow", [1, 12])
@pytest.mark.parametrize("part", ["confirm", "depth"])
def test_one_slow_minute_refuses_nobody(part: str, slow: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the candidate's scores in a part, the first ones are slow, by the clock and by processor time."""
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 2, 0.001))
    own, late = fake.score, []

    def score(side: Side, *given: Any) -> Record:
        before = 5 if part == "confirm" else 17
        if side.name == "candidate" and len(fake.trained) > before and len(late) < slow:
            late.append(side)
            return own(side, *given) | {"scoring": 900.0, "scoring_cpu_seconds": 900.0}
        return own(side, *given) | {"scoring": 900.0}  # a busy hour for everybody

    monkeypatch.setattr(arena, "score", score)
    found = fake.record()
    assert len(late) == min(slow, 2)
    if slow == 1:
        assert found["answer"] == "keep"
        assert found["second"]["answer"] == "better"
    elif part == "confirm":
        assert found["refused"] == "budget"
    else:
        assert "at depth 2 refused, budget: it has 900.00 times the incumbent's processor time to be" in found["holds"]


@pytest.mark.parametrize(("times", "refused"), [(1.4, "budget"), (1.05, None)])
def test_by_the_clock_a_candidate_has_the_time_that_chance_explains(
    times: float, refused: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001), "seconds")
    fake.times = times
    assert fake.record().get("refused") == refused


def test_short_processes_count_as_what_they_may_hide() -> None:
    own = [{"cpu_seconds": 12.0, "processes": 9}, {"cpu_seconds": 12.0, "processes": 109}]
    assert work_of(own, [{"processes": 9}] * 2) == pytest.approx([12.0, 17.0])
    assert work_of(own, [{"processes": 109}] * 2) == [12.0, 12.0]
