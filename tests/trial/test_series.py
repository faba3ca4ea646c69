"""What a series keeps to, and the texts that it refuses."""

import dataclasses
from pathlib import Path

import pytest
from contain import NEEDS_SANDBOX
from trials import QUESTION, opened

from nanochat.data import corpus
from nanochat.errors import UserError
from nanochat.paths import hold_folder
from nanochat.trial.series import begin, pinned


def test_an_unknown_metric_begins_no_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    with pytest.raises(UserError, match="--metric=loss is not known, use seconds, cpu_seconds"):
        begin(dataclasses.replace(QUESTION, metrics=["loss"]))
    assert not (tmp_path / "trial").exists()


def test_two_questions_of_one_series_are_told_of_its_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    with hold_folder(tmp_path / "trial/default"), pytest.raises(UserError, match=r"or use another --series$"):
        begin(QUESTION)


@pytest.mark.parametrize("name", ["root", "commit", "secret"])
def test_what_a_series_keeps_to_is_in_its_ledger(name: str, tmp_path: Path) -> None:
    """Another secret would draw other seeds for the same question."""
    series = opened(tmp_path)
    series.ledger.add("series", **pinned(series.fixed), files={})
    series.check()
    assert series.fixed["secret"] not in series.ledger.of_kind("series")[0].values()
    series.fixed[name] = "another"
    with pytest.raises(UserError, match=f"referee.json has another {name} than the ledger"):
        series.check()


@pytest.mark.parametrize("name", ["root", "secret_sha256"])
def test_a_ledger_whose_first_line_lacks_what_was_fixed_takes_no_question(name: str, tmp_path: Path) -> None:
    """It was edited, or another copy of the code has begun it."""
    series = opened(tmp_path)
    first = pinned(series.fixed)
    del first[name]
    series.ledger.add("series", **first, files={})
    with pytest.raises(UserError, match=f"has no {name} in its first line, .*: begin another series with"):
        series.check()


@NEEDS_SANDBOX
@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("", "--data=auto finds no text on this machine but an embedded world"),  # of --scale=cpu
        ("world", "--data=world has an embedded world of a known seed"),
        ("climbmix:0.9,world-2:0.1", "has an embedded world of a known seed"),
    ],
)
def test_a_text_that_a_candidate_could_write_is_refused(
    data: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    monkeypatch.setattr(corpus, "text_here", lambda: "")
    with pytest.raises(UserError, match=sentence):
        begin(dataclasses.replace(QUESTION, scale="cpu", data=data))
    assert not (tmp_path / "trial/default/referee.json").exists()
