"""The tries of entries from elsewhere: each has its verdict, and the same files are known under another tag."""

from pathlib import Path

import pytest

from nanochat.trial.judging import Limits
from nanochat.trial.ledger import Ledger
from nanochat.trial.scorer import Refused
from tracks.golf.tries import LEDGER, files_hash, tries_elsewhere, tries_table, verdict


def ledger_of(folder: Path, *tries: tuple[str, str, str]) -> Ledger:
    """A ledger with tries: when, the hash of the files, and the verdict, "" for one that was stopped."""
    folder.mkdir()
    ledger = Ledger(folder / LEDGER)
    for at, entry, said in tries:
        ledger.add("try", at=at, tag=folder.name, entry=entry)
        if said:
            ledger.add("verdict", verdict=said)
    return ledger


def test_each_try_has_its_verdict(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path / "one", ("1", "a" * 64, "refused"), ("3", "b" * 64, ""), ("4", "b" * 64, "0.9"))
    ledger_of(tmp_path / "two", ("2", "b" * 64, "refused, causal: it"), ("5", "c" * 64, "0.8"))
    table = tries_table(ledger, tries_elsewhere(ledger.path.parent, "b" * 64))
    assert table["rows"] == [
        ["1", "one", "a" * 12, "refused"],
        ["2", "two", "b" * 12, "refused, causal: it"],
        ["3", "one", "b" * 12, "no verdict: it was stopped"],
        ["4", "one", "b" * 12, "0.9"],
    ]
    assert table["note"] == f"The last line of tries.jsonl has the hash {ledger.head}."


def test_one_hash_for_names_and_content(tmp_path: Path) -> None:
    names = ["scorer.py", "weights"]
    for name in names:
        (tmp_path / name).write_text("1")
    before = files_hash(tmp_path, names)
    assert files_hash(tmp_path, reversed(names)) == before
    (tmp_path / "weights").write_text("2")
    changed = files_hash(tmp_path, names)
    (tmp_path / "weights").rename(tmp_path / "other")
    assert len({before, changed, files_hash(tmp_path, ["scorer.py", "other"]), files_hash(tmp_path, names[:1])}) == 4


def test_over_the_budget_is_a_rule(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^refused, bytes: 12 bytes are 2 over the budget of 10; the largest: a 12$"):
        verdict(tmp_path, {"a": 12}, 10, ["text"], Limits(1))
