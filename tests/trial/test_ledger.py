"""The ledger: nothing in it can be changed unseen, and a crash costs no more than the line that it cut."""

import json
from pathlib import Path

import pytest

from nanochat.errors import UserError
from nanochat.trial.ledger import GENESIS, Ledger, line_hash, verify


def three(path: Path) -> Ledger:
    ledger = Ledger(path)
    for number in range(3):
        ledger.add("run", number=number, text="여우")
    return ledger


def test_lines_are_read_back(tmp_path: Path) -> None:
    ledger = three(tmp_path / "trial.jsonl")
    again = Ledger(tmp_path / "trial.jsonl")
    assert again.records == ledger.records
    assert again.head == ledger.head
    assert [record["number"] for record in again.of_kind("run")] == [0, 1, 2]
    assert not again.of_kind("trial")
    assert again.records[0]["previous"] == GENESIS
    assert verify(tmp_path / "trial.jsonl", ledger.head) == 3


@pytest.mark.parametrize("line", [0, 1, 2])
@pytest.mark.parametrize("change", ["edit", "remove", "repeat"])
def test_a_changed_line_is_seen(line: int, change: str, tmp_path: Path) -> None:
    path = tmp_path / "trial.jsonl"
    head = three(path).head
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if change == "edit":
        lines[line] = lines[line].replace(f'"number": {line}', '"number": 9')
    elif change == "remove":
        del lines[line]
    else:
        lines.insert(line, lines[line])
    path.write_text("".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match=r"was changed|was written anew"):
        verify(path, head)


def test_a_ledger_that_is_written_anew_has_not_the_hash_of_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "trial.jsonl"
    head = three(path).head
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    records[1]["number"] = 7
    for before, record in zip([{"hash": GENESIS}, *records], records, strict=False):
        record["previous"] = before["hash"]
        record["hash"] = line_hash(record)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    assert verify(path) == 3
    with pytest.raises(UserError, match="it was written anew after that answer"):
        verify(path, head)


def test_a_line_that_a_crash_has_cut_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "trial.jsonl"
    ledger = three(path)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"kind": "run", "num')
    again = Ledger(path)
    assert again.records == ledger.records
    again.add("run", number=3)
    assert len(Ledger(path).records) == 4
