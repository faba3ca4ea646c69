"""Scores that the machine stops: trials whose runs are made up."""

from pathlib import Path
from typing import Any

import pytest
from trials import Fake

from nanochat.log import Record
from nanochat.trial import arena
from nanochat.trial.arena import Killed, Late, Stopped
from nanochat.trial.decision import Plan
from nanochat.trial.sides import Side


@pytest.mark.parametrize(
    ("error", "calls", "reason"),
    [
        (Killed, [1], ""),
        (Late, [1], ""),
        (Late, [1, 2], "its model was not scored, twice"),
        (Killed, [1, 3], "its model was not scored, and another one was scored again before"),
    ],
)
def test_of_a_question_one_score_that_the_machine_stops_is_tried_once_more(
    error: type[Stopped], calls: list[int], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is not trained again. calls: of the candidate's scorings, those that are stopped."""
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001))
    own, called = fake.score, []

    def score(side: Side, *given: Any) -> Record:
        if side.name == "candidate":
            called.append(side)
            if len(called) in calls:
                raise error("its model was not scored", 7.0)
        return own(side, *given)

    monkeypatch.setattr(arena, "score", score)
    found = fake.record()
    assert found["answer"] == ("discard" if reason else "keep")
    repeated = 0 if reason else 1  # for a keep, the same weights
    assert len({*fake.trained}) == len(fake.trained) - repeated
    [again] = fake.series.ledger.of_kind("again")
    assert (again["reason"], again["cpu_seconds"], again["number"]) == ("its model was not scored", 7.0, 0)
    assert [crash["reason"] for crash in fake.series.ledger.of_kind("crash")] == ([reason] if reason else [])
    if reason:
        assert found["reason"] == reason
    else:
        assert found["note"] == "1 scoring was tried again"
        runs = [run for run in fake.series.ledger.of_kind("run") if run["side"] == again["side"]]
        assert [run["scoring_cpu_seconds"] for run in runs] == [8.0, 1.0]  # both tries count


@pytest.mark.parametrize(
    ("plan", "part", "before"), [(Plan(1, 0, 0, 0.001), "again", 0), (Plan(1, 6, 0, 0.001), "confirm", 2)]
)
def test_a_late_score_is_tried_again_beside_the_incumbents(
    plan: Plan, part: str, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds that a candidate has are those of the incumbent, in the hour of the second try.

    before: scorings of the candidate that are in time. The last one is the first of its pair, without the incumbent.
    """
    fake = Fake(tmp_path, monkeypatch, plan)
    own, given = fake.score, []

    def score(side: Side, *rest: Any) -> Record:
        if side.name == "incumbent":
            assert rest[-1] == arena.SCORING
            return own(side, *rest) | {"scoring": 1.0 if len(given) <= before else 100.0}
        given.append(rest[-1])
        if len(given) == before + 1:
            raise Late("its model was not scored within 123 seconds")
        return own(side, *rest)

    monkeypatch.setattr(arena, "score", score)
    assert fake.record()["note"] == "1 scoring was tried again"
    assert given[: before + 2] == [123.0] * (before + 1) + [420.0]
    runs = fake.series.ledger.of_kind("run")
    assert fake.parts()[3 : 3 + before + 3].count(part) >= 1
    assert all(run["scoring"] == 1.0 for run in runs[:3])
