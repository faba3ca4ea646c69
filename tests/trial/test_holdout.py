"""The holdout of a series, which is opened once: trials whose runs are made up."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from contain import NEEDS_SANDBOX
from trials import Asked, Fake

from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.trial import arena, holdout
from nanochat.trial.answers import holdout_lines
from nanochat.trial.arena import Failure, Killed, Late
from nanochat.trial.decision import Plan
from nanochat.trial.holdout import open_holdout
from nanochat.trial.scorer import Refused
from nanochat.trial.sides import Side

pytestmark = NEEDS_SANDBOX


def test_a_score_that_is_stopped_on_the_holdout_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 0, 0.001))
    record = fake.record()
    own, called = fake.score, []

    def score(*given: Any) -> Record:
        called.append(given)
        if len(called) == 1:
            raise Killed("the scoring of its model was killed", 7.0)
        return own(*given)

    monkeypatch.setattr(arena, "score", score)
    found = holdout._held(fake.series, record)
    assert found["again"] == "1 scoring was tried again"
    lines = holdout_lines({"trials": [found], "later": 0, "hash": "h", "answer": "held"})
    assert lines[0].endswith("; 1 scoring was tried again")


def test_other_weights_than_a_run_left_are_not_scored_on_the_holdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 0, 0.001))
    record = fake.record()
    monkeypatch.setattr(arena, "weights_hash", lambda _: "others")
    with pytest.raises(UserError, match="has other weights than its run left"):
        holdout._on_holdout(fake.series, record)


def test_the_holdout_says_whether_a_gain_held_in_the_form_of_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    fake = Fake(tmp_path / "trial/default", monkeypatch, Plan(2, 6, 0, 0.001))
    fake.record()
    monkeypatch.setattr(holdout, "open_series", lambda _: fake.series)
    capsys.readouterr()  # of how far it was
    scores = iter([score for number in range(6) for score in (2.5 + 0.001 * number, 2.0)])
    monkeypatch.setattr(arena, "score", lambda *_: {"bpb": next(scores), "scoring": 1.0})
    open_holdout("default", False)
    lines = capsys.readouterr().out.splitlines()
    assert all(re.fullmatch(r"METRIC [a-z0-9_]+=\S+", line) for line in lines[1:])
    assert re.fullmatch(r"trial 1: candidate: .* on the holdout over 6 pairs, p = \S+: it held", lines[0])
    metrics = Asked(0, lines, "").metrics
    assert (metrics["trial_1_answer"], metrics["trial_1_pairs"], lines[-1]) == ("held", "6", "METRIC answer=held")
    assert float(metrics["trial_1_gain_bpb"]) == pytest.approx(0.5025)
    assert float(metrics["trial_1_p"]) < 0.001
    open_holdout("default", True)
    told = json.loads(capsys.readouterr().out)
    assert (told["answer"], told["trials"][0]["answer"], told["hash"]) == ("held", "held", metrics["ledger"])


def two_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """A series that has kept two trials, of which the first one's runs come first when they are scored."""
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    fake = Fake(tmp_path / "trial/default", monkeypatch, Plan(2, 6, 0, 0.001))
    kept = fake.record()
    other = {name: value for name, value in kept.items() if name not in ("kind", "previous", "hash")}
    other["confirmed"] = [["one", "two"] for _ in range(6)]
    for key in ("one", "two"):
        fake.series.ledger.add("run", key=key, weights=key)
    fake.series.ledger.add("trial", **other | {"name": "other", "number": 2})
    monkeypatch.setattr(holdout, "open_series", lambda _: fake.series)
    return fake


@pytest.mark.parametrize(
    "error", [Refused("normalised", "a token of the text has no probability"), Failure("its model could not be scored")]
)
def test_a_keep_that_cannot_be_scored_closes_the_holdout_for_no_other(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = two_kept(tmp_path, monkeypatch)
    capsys.readouterr()
    scores = iter([score for number in range(6) for score in (2.5 + 0.001 * number, 2.0)])

    def score(side: Side, home: Path, place: Path, *_: object) -> Record:
        if place.name == "two":
            raise error
        return {"scoring": 1.0, "bpb": 2.5 if place.name == "one" else next(scores)}

    monkeypatch.setattr(arena, "score", score)
    open_holdout("default", False)
    lines = capsys.readouterr().out.splitlines()
    metrics = Asked(0, lines, "").metrics
    assert (metrics["trial_1_answer"], metrics["trial_2_answer"], metrics["answer"]) == ("held", "failed", "failed")
    assert f", and it cannot be scored on the holdout: {error}" in lines[1]
    assert [one["answer"] for one in fake.series.ledger.of_kind("holdout")[0]["trials"]] == ["held", "failed"]


@pytest.mark.parametrize("fault", ["killed", "late", "incumbent", "weights", "code"])
def test_a_fault_of_the_machine_decides_nothing_on_the_holdout(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other trials are scored all the same, and only what is left when it is asked again."""
    fake = two_kept(tmp_path, monkeypatch)
    scored = []
    mended = False
    own = fake.weights_hash

    def score(side: Side, home: Path, place: Path, *_: object) -> Record:
        scored.append((side.name, place.name in ("one", "two")))
        if place.name not in ("one", "two") and not mended:
            if fault in ("killed", "late") and side.name == "candidate":
                raise (Killed if fault == "killed" else Late)("its model was not scored")
            if fault == "incumbent" and side.name == "incumbent":
                raise Failure("its model could not be scored")
        return {"scoring": 1.0, "bpb": (2.5 if side.name == "incumbent" else 2.0) + 0.001 * len(scored)}

    def weights_hash(folder: Path) -> str:
        if fault == "weights" and folder.name not in ("one", "two") and not mended:
            raise Failure("its run left no model")
        return own(folder)

    def check(home: Path) -> None:
        if fault == "code" and not scored and not mended:
            scored.append(("code", False))
            raise UserError(f"{home} was changed after it was copied")

    monkeypatch.setattr(arena, "score", score)
    monkeypatch.setattr(arena, "weights_hash", weights_hash)
    monkeypatch.setattr(holdout, "check_unchanged", check)
    with pytest.raises(UserError, match=r"^trial 1 could not be scored .* nothing is decided by that: .*; mend it and"):
        open_holdout("default", False)
    assert not fake.series.ledger.of_kind("holdout")
    assert [line["trial"]["number"] for line in fake.series.ledger.of_kind("holdout-trial")] == [2]
    mended = True
    scored.clear()
    capsys.readouterr()
    open_holdout("default", False)
    metrics = Asked(0, capsys.readouterr().out.splitlines(), "").metrics
    assert (metrics["trial_1_answer"], metrics["trial_2_answer"], metrics["answer"]) == ("held", "held", "held")
    assert scored == [("incumbent", False), ("candidate", False)] * 6
    assert len(fake.series.ledger.of_kind("holdout-opened")) == 1


@pytest.mark.parametrize(
    ("answers", "together"),
    [
        (["held", "held"], "held"),
        (["held", "undecided"], "undecided"),
        (["undecided", "failed", "held"], "failed"),
        (["failed", "lost", "undecided", "held"], "lost"),
    ],
)
def test_the_worst_answer_of_the_holdout_is_that_of_all(answers: list[str], together: str) -> None:
    assert holdout._all_held(answers) == together


@pytest.mark.parametrize(("gains", "answer"), [([0.001, -0.001], "undecided"), ([-0.5, -0.5], "lost")])
def test_a_gain_that_the_holdout_does_not_show_is_said(
    gains: list[float], answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 0, 0.001))
    record = fake.record()
    scores = iter(
        [score for number, gain in enumerate(3 * gains) for score in (2 + number / 1000, 2 + number / 1000 - gain)]
    )
    monkeypatch.setattr(arena, "score", lambda *_: {"bpb": next(scores), "scoring": 1.0})
    assert holdout._on_holdout(fake.series, record)["answer"] == answer
