"""The list of a series, from ledgers that are made up, and how long a question takes."""

import json
from pathlib import Path

import pytest
from trials import Asked, opened

from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.trial.decision import Plan, share
from nanochat.trial.ledger import Ledger
from nanochat.trial.listing import candidate_words, length_words, list_lines, listed, verify_series

DIFF = """diff --git a/nanochat/muon.py b/nanochat/muon.py
--- a/nanochat/muon.py
+++ b/nanochat/muon.py
@@ -1 +1 @@
-one
+two
diff --git a/nanochat/new.py b/nanochat/new.py
new file mode 100644
"""


def sides(name: str) -> Record:
    return {"incumbent": {"name": "0123abcd"}, "candidate": {"name": name}}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Four questions, of which one has no answer yet, and one had no number."""
    ledger = Ledger(tmp_path / "trial.jsonl")
    ledger.add("series", commit="0123abcd" * 5, scale="tiny", budget="flops")
    for number in range(3):
        ledger.add("run", seconds=50.0 + number, scoring=10.0)
    ledger.add("repeated", seconds=40.0, same=True)
    ledger.add("crash", reason="its run failed")
    ledger.add("again", reason="its model was not scored")  # no failed run
    figures = {"gain": 0.0123, "interval": 0.002, "p": 0.0001, "level": share(1)}
    for name, diff in (("the working tree", DIFF), ("--warmup-steps=9", ""), ("89abcdef", "")):
        ledger.add("asked", name=name, diff=diff, **sides(name))
    ledger.add("trial", name="the working tree", **sides("the working tree"), answer="keep", reason="sure", **figures)
    ledger.add("trial", name="--warmup-steps=9", **sides("--warmup-steps=9"), answer="discard", reason="its run failed")
    ledger.add("trial", name="", candidate="--seed=3", number=0, answer="discard", reason="--seed is the trial's")
    return ledger


def test_a_list_has_every_question_in_order_with_its_answer(ledger: Ledger) -> None:
    told = listed("night", ledger.records)
    trials = [(trial["number"], trial["answer"], trial["gain"]) for trial in told["trials"]]
    assert trials == [(1, "keep", 0.0123), (2, "discard", None), (3, "", None), (0, "discard", None)]
    assert [trial["candidate"] for trial in told["trials"]] == [
        "the working tree: nanochat/muon.py, nanochat/new.py",
        "--warmup-steps=9",
        "89abcdef",
        "--seed=3",
    ]
    assert told["trials"][2]["reason"] == "not answered: ask again to go on"
    assert (told["kept"], told["runs"], told["failed_runs"], told["seconds"]) == (1, 4, 1, 223.0)
    assert told["next_level"] == share(4)  # the one without a number spent nothing
    assert not told["holdout"]


def test_the_list_for_people(ledger: Ledger) -> None:
    ledger.add("holdout-opened", trials=[1])
    lines = "\n".join(list_lines(listed("night", ledger.records))).splitlines()
    assert lines[0] == "series night: commit 0123abcd, scale tiny, budget flops"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert cells[2] == [
        "1",
        "the working tree: nanochat/muon.py, nanochat/new.py",
        "keep",
        "+0.0123 ± 0.0020",
        "0.0001",
        "sure",
    ]
    assert cells[4] == ["3", "89abcdef", "-", "-", "-", "not answered: ask again to go on"]
    assert cells[5][0] == "-"
    assert lines[-4:] == [
        "4 runs, 4 minutes of training and scoring",
        "failed runs: 1",
        f"the next trial keeps at p = {share(4):.2g}",
        "the holdout was opened",
    ]


def test_a_series_that_has_not_begun_has_no_list() -> None:
    with pytest.raises(UserError, match=r"^the series night has asked nothing yet$"):
        listed("night", [])


def test_a_candidate_that_was_refused_before_it_was_a_side() -> None:
    assert candidate_words({"candidate": ""}) == "the working tree"


@pytest.mark.parametrize(
    ("plan", "budget", "words"),
    [
        # 2 of the candidate, 12 to confirm, 4 at twice the depth: 4 times the FLOPs. And one of those to confirm again.
        (Plan(2, 6, 2, 0.001), "flops", "runs take 60 s: the first part 2 of them, 2 minutes; a keep 19, 31 minutes"),
        (Plan(2, 6, 2, 0.001), "seconds", "runs take 60 s: the first part 4 of them, 4 minutes; a keep 20, 24 minutes"),
        # The noise floor has three runs of the incumbent.
        (Plan(5, 0, 0, 0.001), "flops", "runs take 60 s: the first part 7 of them, 7 minutes; a keep 8, 8 minutes"),
    ],
)
def test_how_long_a_question_takes(plan: Plan, budget: str, words: str) -> None:
    floor = [{"seconds": seconds, "scoring": 10.0} for seconds in (50.0, 40.0, 90.0)]
    assert length_words(plan, "tiny", budget, floor) == words


def test_a_check_of_the_ledger_has_the_form_of_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    last = opened(tmp_path / "trial/default").ledger.add("asked")["hash"]
    verify_series("default", last, False)
    metrics = {"lines": "1", "ledger": last, "answer": "unchanged"}
    assert Asked(0, capsys.readouterr().out.splitlines(), "").metrics == metrics
    verify_series("default", last, True)
    assert json.loads(capsys.readouterr().out) == {
        "series": "default",
        "lines": 1,
        "hash": last,
        "answer": "unchanged",
    }
