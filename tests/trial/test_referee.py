"""Trials whose runs are made up; tests/scripts/test_trial.py has real ones."""

import dataclasses
import errno
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from contain import NEEDS_SANDBOX
from trials import QUESTION, Fake, opened

from nanochat import cores
from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.paths import read_sha256
from nanochat.trial import arena, decision, holdout, referee, series
from nanochat.trial.answers import answer_lines
from nanochat.trial.arena import Failure
from nanochat.trial.decision import Plan
from nanochat.trial.holdout import open_holdout
from nanochat.trial.referee import Trial, machine_name, run_trial
from nanochat.trial.scorer import Refused
from nanochat.trial.series import Series, begin
from nanochat.trial.sides import Side, _kept

pytestmark = NEEDS_SANDBOX


def test_a_fault_of_this_side_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is on the record, so the question can be asked again."""
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    empty = opened(tmp_path / "trial/default")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    sentence = r"trial/default: No space left on device; nothing is decided by that"
    with monkeypatch.context() as patch:
        patch.setattr(series, "_fix", full)
        with pytest.raises(UserError, match=sentence):
            begin(QUESTION)
        for place in (referee, holdout):
            patch.setattr(place, "open_series", full)
        with pytest.raises(UserError, match=sentence):
            run_trial(QUESTION)
        with pytest.raises(UserError, match=sentence):
            open_holdout("default", False)
    monkeypatch.setattr(referee, "open_series", lambda _: empty)
    monkeypatch.setattr(referee, "Trial", full)
    with pytest.raises(UserError, match=sentence):
        run_trial(QUESTION)
    assert not empty.ledger.records


def test_a_candidate_that_is_refused_in_its_confirmation_leaves_no_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 2, 0.001))
    fake.same = 5  # two in the first part
    found = fake.record()
    assert (found["answer"], found["refused"]) == ("discard", "seed")
    assert fake.parts().count("confirm") == 8
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("killed", "answer", "tries", "reason"),
    [
        ({5}, "keep", 8, ""),  # and one that repeats
        ({5, 6}, "discard", 6, "its run was killed, twice"),
        ({4, 6}, "discard", 6, "its run was killed, and another one was trained again before"),
        ({2}, "keep", 9, ""),  # of the incumbent, which repeats too
    ],
)
def test_a_run_that_the_machine_kills_is_tried_once_more(
    killed: set[int], answer: str, tries: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each side once: a candidate that kills its bad runs draws them anew."""
    fake = Fake(tmp_path, monkeypatch, Plan(3, 0, 0, 0.001))
    fake.killed = killed
    found = fake.record()
    assert (found["answer"], found.get("failed", False)) == (answer, answer == "discard")
    assert len(fake.trained) == tries
    assert [line["reason"] for line in fake.series.ledger.of_kind("crash")] == ([reason] if reason else [])
    assert len(fake.series.ledger.of_kind("killed")) == 1
    if answer == "keep":
        assert found["note"] == "1 run was trained again after a kill"
        [line] = fake.series.ledger.of_kind("killed")
        assert line["key"] in [one["of"] for one in fake.series.ledger.of_kind("repeated")]


@pytest.mark.parametrize("confirming", [0, 6])
@pytest.mark.parametrize(
    ("drawn", "answer", "note"),
    [
        (set(), "keep", ""),
        ({"candidate"}, "discard", ""),
        ({"candidate", "incumbent"}, "keep", "runs of both sides ended with other weights when trained again"),
    ],
)
def test_a_keep_repeats_with_its_seed(
    drawn: set[str], answer: str, note: str, confirming: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, confirming, 0, 0.001))
    fake.drawn = drawn
    found = fake.record()
    assert found["answer"] == answer
    if answer == "keep":
        assert found["note"].startswith(note)
        assert bool(found["note"]) == bool(note)
        assert fake.record() == found
    else:
        assert found["refused"] == "seed"
        assert "seed: a run, trained again with its seed, ends with other weights" in found["reason"]
    [*_, last] = fake.series.ledger.of_kind("repeated")
    [first] = [run for run in fake.series.ledger.of_kind("run") if run["key"] == last["of"]]
    assert first["part"] == ("confirm" if confirming else "screen")
    assert not list((tmp_path / "runs").glob("*-again"))
    # By the clock no run is like another one.
    clock = Fake(tmp_path / "clock", monkeypatch, Plan(2, 0, 0, 0.001), "seconds")
    clock.drawn = drawn
    assert clock.record()["answer"] == "keep"
    assert not clock.series.ledger.of_kind("repeated")


def test_the_run_that_was_begun_again_is_the_one_that_has_to_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stops a trial in a bad run would draw it anew."""
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 0, 0.001))
    own, stopped = fake.train, []

    def stop(side: Side, flags: Sequence[str], *more: Any) -> Record:
        if side.name == "candidate" and not stopped and fake.parts().count("confirm") >= 5:
            stopped.append(flags)
            raise KeyboardInterrupt
        return own(side, flags, *more)

    monkeypatch.setattr(arena, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        fake.record()
    found = fake.record()
    assert found["note"] == "1 run was begun again"
    [repeated] = fake.series.ledger.of_kind("repeated")
    keys = [line["key"] for line in fake.series.ledger.of_kind("begun")]
    assert keys.count(repeated["of"]) == 2


def test_a_run_that_failed_is_not_drawn_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The referee is killed between the line of the run and that of the answer."""
    for error in (Failure("its run failed: none"), Refused("bytes", "it is too large")):
        fake = Fake(tmp_path / type(error).__name__, monkeypatch, Plan(2, 0, 0, 0.001))
        own = fake.train

        def fail(side: Side, *more: Any, error: Exception = error, own: Any = own) -> Record:
            if side.name == "candidate":
                raise error
            return own(side, *more)

        monkeypatch.setattr(arena, "train", fail)
        with monkeypatch.context() as patch:
            patch.setattr(Series, "check", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                fake.record()
        monkeypatch.setattr(arena, "train", own)
        trained = len(fake.trained)
        found = fake.record()
        assert (found["answer"], found["reason"]) == ("discard", str(error))
        assert len(fake.trained) == trained


@pytest.mark.parametrize("killed", [{6, 7}, {6}])
def test_a_repeat_that_is_killed_is_tried_once_more(
    killed: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor has three runs and the candidate two; the sixth is the one that repeats."""
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001))
    fake.killed = killed
    (tmp_path / "runs/left-again").mkdir(parents=True)  # of a referee that was killed
    found = fake.record()
    assert found["answer"] == ("keep" if len(killed) == 1 else "discard")
    assert found["reason"] == ("on seeds that it was found by" if len(killed) == 1 else "its run was killed, twice")
    assert not list((tmp_path / "runs").glob("*-again*"))


def test_flags_of_both_sides_have_to_do_at_both_depths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate's may be kept at the first one alone."""
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 2, 0.001))
    asked = []
    monkeypatch.setattr(arena, "complaint", lambda code, words, *more: asked.append((words[0], words[-2])) or "")
    trial = Trial.__new__(Trial)
    trial.series, trial.question = fake.series, dataclasses.replace(fake.question, candidate="--c=1", flags="--b=1")
    trial.incumbent = Side("incumbent", "HEAD", fake.code["incumbent"], ["--b=1"])
    trial.candidate = Side("candidate", "HEAD", fake.code["incumbent"], ["--b=1", "--c=1"])
    trial._check_flags()
    assert asked == [("--depth=1", "--b=1"), ("--depth=2", "--b=1"), ("--depth=1", "--c=1")]


def test_an_order_of_the_text_that_does_not_follow_the_seed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001))
    fake.rows = "the same"
    found = fake.record()
    assert (found["refused"], "the same first rows of text" in found["reason"]) == ("seed", True)


def test_what_both_sides_take_has_an_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001), "seconds")
    fake.question = dataclasses.replace(fake.question, metrics=["seconds", "bytes", "memory"])
    fake.memory = 0.0  # which a candidate can say
    fake.times = 1.05
    found = fake.record()
    seconds = found["metrics"]["seconds"]
    # The incumbent's runs are of 10.1 and 10.1 s, the candidate's 1.05 times 10.2 and 10 s, in turns.
    assert seconds["change"] == pytest.approx(100 * (1.05 * math.sqrt(10.2 * 10.0) / 10.1 - 1))
    t = 12.706  # of one degree of freedom, for 95 %: the incumbent's do not spread
    half = t * math.sqrt(math.log(10.2 / 10.0) ** 2 / 2 / 2)
    assert seconds["interval"] == pytest.approx(100 * math.expm1(half), rel=1e-3)
    assert found["metrics"]["bytes"] == {"incumbent": 10, "candidate": 10, "change": 0, "interval": 0}
    assert found["metrics"]["memory"] == {"incumbent": 0, "candidate": 0}
    lines = answer_lines({**found, "hash": "h"})
    assert "seconds: 10.1 incumbent, 10.61 candidate, +5.0 ± 13.4 %" in lines
    assert f"METRIC seconds_change={seconds['change']:.6g}" in lines


def test_times_are_compared_where_both_sides_ran_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of the noise floor may be of an hour when the machine was slower."""
    metrics = ["seconds", "bytes"]
    for confirming in (0, 6):
        fake = Fake(tmp_path / str(confirming), monkeypatch, Plan(2, confirming, 0, 0.001))
        fake.question = dataclasses.replace(fake.question, metrics=metrics)
        own = fake.train

        def train(*given: Any, own: Any = own, fake: Fake = fake) -> Record:
            found = own(*given)
            return found | {"seconds": 2 * found["seconds"]} if len(fake.trained) <= 3 else found  # the floor

        monkeypatch.setattr(arena, "train", train)
        found = fake.record()
        lines = "\n".join(answer_lines({**found, "hash": "h"}))
        assert found["metrics"]["bytes"]["change"] == 0
        if confirming:
            assert abs(found["metrics"]["seconds"]["change"]) < 2
            assert "ran earlier" not in lines
        else:
            assert found["metrics"]["seconds"].keys() == {"incumbent", "candidate"}
            assert "candidate; the incumbent ran earlier" in lines


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (Failure("its run failed"), "keep"),
        (Refused("budget", "it has 1.60 times the incumbent's bytes of files"), "keep"),
        (Refused("seed", "two seeds give the candidate the same weights"), "discard"),
    ],
)
def test_what_fails_at_the_second_depth_is_kept_at_the_first(
    error: Exception, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 2, 0.001))
    own = fake.train

    def train(side: Side, flags: Sequence[str], *given: Any) -> Record:
        if side.name == "candidate" and "--depth=2" in flags:
            raise error
        return own(side, flags, *given)

    monkeypatch.setattr(arena, "train", train)
    found = fake.record()
    assert found["answer"] == answer
    if answer == "keep":
        assert found["holds"] == f"at depth 1 only: at depth 2 {error}"
        assert len(found["confirmed"]) == 6
        lines = answer_lines({**found, "hash": "h"})
        assert "METRIC second_depth=failed" in lines
        assert f"holds: {found['holds']}" in lines


@pytest.mark.parametrize(
    ("most", "words"), [(256, "256 pairs would not show 0.0001"), (2, "2 pairs have not shown 0.0001")]
)
def test_no_command_is_advised_that_would_show_nothing(
    most: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """most: pairs that an answer advises."""
    monkeypatch.setattr(decision, "MOST_PAIRS", most)
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 1e-6))
    own = fake.score

    def score(side: Side, *given: Any) -> Record:
        base = 2.5009 if side.name == "candidate" else 2.5
        return own(side, *given) | {"bpb": base + 0.001 * (len(fake.trained) % 4)}

    monkeypatch.setattr(arena, "score", score)
    found = fake.record()
    assert found["answer"] == "undecided"
    assert "--pairs" not in found["reason"]
    assert found["reason"] == words
    # What the question can show is said before its pairs are trained.
    said = capsys.readouterr().out
    assert said.index(f"this question shows gains of {found['smallest']:.4f}") < said.index("screen 1: candidate")


def test_a_candidate_that_changes_how_a_run_is_counted_has_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001))
    assert not fake.record()["note"]
    again = Fake(tmp_path / "again", monkeypatch, Plan(2, 0, 0, 0.001))
    (tmp_path / "again/candidate/nanochat/scaling.py").write_text("# longer\n", encoding="utf-8")
    again.code["candidate"] = _kept(tmp_path / "again/candidate", tmp_path / "again/code")
    assert "the candidate changes nanochat/scaling.py, by which" in again.record()["note"]


@pytest.mark.parametrize("name", ["sealed/validation.json", "code", "referee", "referee.json"])
def test_what_was_changed_during_a_question_leaves_it_without_an_answer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 0, 0, 0.001))
    path = tmp_path / name if name != "code" else fake.code["incumbent"] / "nanochat/gpt.py"
    [first] = fake.series.ledger.of_kind("series")
    if name == "referee":  # a series has kept other code since
        (tmp_path / "first/nanochat").mkdir(parents=True)
        (tmp_path / "first/nanochat/gpt.py").write_text("# first\n", encoding="utf-8")
        first_copy = _kept(tmp_path / "first", tmp_path / "code")
        fake.series.fixed["referee"] = first["referee"] = first_copy.name
        path = first_copy / "nanochat/gpt.py"
    first["files"] = {"sealed/validation.json": read_sha256(tmp_path / "sealed/validation.json")}
    own = fake.score

    def score(side: Side, *given: Any) -> Record:
        if name == "referee.json":
            fake.series.fixed["scale"] = "embedded"
        else:
            path.write_text("[]", encoding="utf-8")
        return own(side, *given)

    monkeypatch.setattr(arena, "score", score)
    sentence = "begin another series with --series=NAME"
    with pytest.raises(UserError, match=rf"was changed after it was .*{sentence}" if name == "referee" else sentence):
        fake.record()
    assert not fake.series.ledger.of_kind("trial")


def test_a_machine_is_its_processor_and_what_that_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for text in ("model name\t: A\nflags\t\t: avx2\n", "model name\t: A\nflags\t\t: avx2 amx\n", "Features : neon\n"):
        (tmp_path / "cpuinfo").write_text(text * 2, encoding="utf-8")
        monkeypatch.setattr(cores, "CPU_INFO", tmp_path / "cpuinfo")
        found.add(machine_name())
    assert len(found) == 3


def test_what_is_kept_has_its_checkpoints_for_the_holdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, Plan(2, 6, 2, 0.001))
    found = fake.record()
    assert found["answer"] == "keep"
    assert {key for pair in found["confirmed"] for key in pair} == {path.name for path in (tmp_path / "runs").iterdir()}


def test_by_the_clock_the_incumbent_is_trained_beside_each_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow hour hits both: the noise floor may be hours old. A run that is there is not trained again."""
    fake = Fake(tmp_path / "seconds", monkeypatch, Plan(2, 0, 0, 0.001), "seconds")
    own, calls = fake.train, []

    def stopped(*given: Any) -> Record:
        calls.append(given)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return own(*given)

    monkeypatch.setattr(arena, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        fake.record()
    assert fake.record()["pairs"] == 2
    assert fake.parts() == ["screen"] * 3 + ["beside"] * 4
    sides = [name for name, _ in fake.trained[3:]]
    assert sides == ["incumbent", "candidate", "candidate", "incumbent"]
    seeds = [seed for _, seed in fake.trained]
    assert (seeds[3], seeds[5]) == (seeds[4], seeds[6])
    assert len(set(seeds)) == 3 + 2
    flops = Fake(tmp_path / "flops", monkeypatch, Plan(2, 0, 0, 0.001))
    flops.record()
    assert flops.parts() == ["screen"] * 5  # there the noise floor's runs are the pairs'


def test_a_run_does_not_begin_without_room_for_its_files(tmp_path: Path) -> None:
    trial = Trial.__new__(Trial)
    trial.series = opened(tmp_path)
    trial._check_space()
    trial.series.ledger.add("run", bytes=2**60)
    with pytest.raises(OSError, match="has no room for the checkpoints of this run"):
        trial._check_space()
