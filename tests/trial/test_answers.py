"""Answers in words and figures."""

from pathlib import Path
from typing import Any

import pytest
from trials import Fake

from nanochat.evals import sandbox
from nanochat.log import Record
from nanochat.trial import arena
from nanochat.trial.answers import answer_lines
from nanochat.trial.decision import Plan
from nanochat.trial.sides import Side


@pytest.mark.parametrize(("missing", "contained"), [("", True), ("no namespaces", False)])
def test_where_the_sandbox_works_runs_are_contained(
    missing: str, contained: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with --unsafe-exec, which is for where it does not."""
    monkeypatch.setattr(sandbox, "missing", lambda: missing)
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001))
    fake.series.fixed["unsafe"] = True
    fake.series.ledger.of_kind("series")[0]["unsafe"] = True
    found = fake.record()
    assert found["contained"] == contained
    lines = answer_lines({**found, "hash": "h"})
    assert f"METRIC contained={'yes' if contained else 'no'}" in lines


def test_an_answer_names_its_part_and_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stopped by the filter has not come to the level at which a candidate is kept."""
    for bpb, words, part, level in ((2.5, "goes on", "filter", 0.15), (2.0, "is kept", "confirmation", 0.05 / 64)):
        fake = Fake(tmp_path / part, monkeypatch, Plan(2, 6, 0, 0.001))
        own = fake.score

        def score(side: Side, *given: Any, own: Any = own, bpb: float = bpb) -> Record:
            found = own(side, *given)
            return found | {"bpb": found["bpb"] - 2.0 + bpb} if side.name == "candidate" else found

        monkeypatch.setattr(arena, "score", score)
        lines = answer_lines({**fake.record(), "hash": "h"})
        assert f"; it {words} at {level:.2g}" in next(line for line in lines if line.startswith("gain: "))
        assert {f"METRIC part={part}", f"METRIC level={level:.6g}"} <= {*lines}
