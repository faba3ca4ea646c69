"""Runs side by side: statistics against plain twins, equal questions, notes."""

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
from outcomes import leave

from nanochat.paths import read_sha256
from nanochat.report.__main__ import read_record
from nanochat.report.card import read_card
from nanochat.report.compare import compare
from nanochat.statistics import sign_test


def test_the_sign_test_is_the_share_of_coins_that_fall_so_or_worse() -> None:
    for only_one, only_other in itertools.product(range(6), range(6)):
        tosses, fewer = only_one + only_other, min(only_one, only_other)
        falls = [sum(coins) for coins in itertools.product((0, 1), repeat=tosses)]
        worse = sum(fall <= fewer or fall >= tosses - fewer for fall in falls)
        assert sign_test(only_one, only_other) == pytest.approx(float(Fraction(worse, len(falls))))
    assert sign_test(0, 10_000) == pytest.approx(0.0, abs=1e-300)
    assert sign_test(5000, 5000) == 1.0


def evaluated(base: Path, right: str, stage="base_eval", first=0, **changes):
    """A run with an evaluation on one task, like base_eval's or chat_eval's; right: 1 or 0, of each question."""
    path = base / stage / "default" / "step_000001-abc" / "task.jsonl"
    path.parent.mkdir(parents=True)
    lines = []
    for number, verdict in enumerate(right, first):
        line = {"item": number, "correct": verdict == "1", "question": f"q{number}"}
        if stage.startswith("chat"):
            line = {"prompt": f"q{number}", "answer": "a", "completions": [{"right": int(verdict) > k} for k in (0, 1)]}
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n")
    accuracy = right.count("1") / len(right)
    metrics = {"CORE metric": {"value": accuracy, "stderr": 0.03, "format": ".4f"}, "Model": "m"} | changes
    path.parent.parent.joinpath("task.jsonl").write_text("an older one of the same name")
    outcome = leave(base / "t", stage, metrics=metrics, artifacts={"task.jsonl": read_sha256(path)})
    outcome.rename(path.parent.parent / "outcome.json")
    return base


def row(a: Path, b: Path, name: str):
    lines = compare([read_record(a), read_record(b)], ["a", "b"]).splitlines()
    [found] = [line for line in lines if line.startswith(f"| {name}")]
    return found.replace("|", " ").split()


def test_the_same_questions_are_paired_and_no_others(tmp_path) -> None:
    a, b = evaluated(tmp_path / "a", "1100110000"), evaluated(tmp_path / "b", "1111110001")
    assert row(a, b, "task ") == "task 10 0.4000 0.7000 +0.3000 0.1528 0 3 0.25".split()
    assert row(a, b, "CORE metric") == "CORE metric 0.4000 ± 0.0300 0.7000 ± 0.0300 +0.3000 0.0424".split()
    assert "Model" not in compare([read_record(a), read_record(b)], "ab")  # a text that is the same
    assert row(a, a, "task ") == "task 10 0.4000 0.4000 +0.0000 0.0000 0 0 1".split()
    for name, right, first in [("c", "1111110001", 3), ("d", "11111100010", 0)]:
        other = evaluated(tmp_path / name, right, first=first)
        assert "\n| task " not in compare([read_record(a), read_record(other)], "ab")


def test_several_answers_and_what_is_no_number(tmp_path) -> None:
    a, b = (evaluated(tmp_path / name, right, "chat_eval_sft") for name, right in [("a", "0122"), ("b", "1222")])
    [found] = read_card(a)["decisions"]
    assert (found["samples"], found["right"]) == (2, "0 1 2 2")
    assert row(a, b, "task ") == "task 4 0.6250 0.8750 +0.2500 0.1443 0 2 0.5".split()
    loss = {"value": math.nan, "stderr": math.nan, "format": ".4f"}
    a, b = (evaluated(tmp_path / name, "10", Loss=loss | more) for name, more in [("a", {}), ("b", {"value": 0.5})])
    assert row(a, b, "Loss ") == "Loss - 0.5000 - -".split()


def test_what_differs(tmp_path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    leave(a, metrics={"train_time": 2.0, "data": "x" * 99, "new": True})
    leave(a, "tok_eval")
    config = {"max_chars": 5, "doc_cap": 10_000, "vocab_size": 65_536}
    leave(b, metrics={"train_time": 3.5, "data": "y", "size": 7}, config=config)
    leave(b, tag="older", metrics={"train_time": 9.0}, timestamp="2025-10-23T23:00:00.000+00:00")
    text = compare([read_record(a), read_record(b)], ["a", "b"])
    rows = {line.strip("| ").split("  ")[0]: line.replace("|", " ").split() for line in text.splitlines()}
    assert rows["max_chars"][1:] == ["10,000,000,000", "5", "-", "-"]
    assert rows["train_time"][1:] == ["2.0000", "3.5000", "+1.5000", "-"]
    assert rows["data"][1:] == ["x" * 99, "y", "-", "-"]
    assert rows["size"][1:] == ["-", "7", "-", "-"]
    assert not {"doc_cap", "Tokenizer evaluation"} & rows.keys()


def test_the_command_takes_folders_and_records(tmp_path, here, monkeypatch) -> None:
    a, b = evaluated(tmp_path / "a", "1100"), evaluated(tmp_path / "b", "1111")
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(b))
    here("nanochat.report", f"--out={tmp_path}/b.md")
    outputs = [here("nanochat.report", "--compare", str(a), str(other)) for other in (b, tmp_path / "b.json")]
    texts = [done.stdout.partition("\nB: ")[2].partition("\n")[2] for done in outputs]
    assert texts[0] == texts[1] != ""
    assert "| +0.5000 | 0.2887 | 0        | 2        | 0.5 |\n" in texts[0]
    (tmp_path / "other.json").write_text('{"format": 0}')
    refused = here("nanochat.report", "--compare", str(a), f"{tmp_path}/other.json", code=2)
    assert "other.json is not a report.json of this version" in refused.stderr
    refused = here("nanochat.report", "--compare", str(a), f"{tmp_path}/b.md", code=2)
    assert refused.stderr == f"error: {tmp_path}/b.md is the card for readers, name b.json beside it\n"
    for text in ("[]", "words"):
        (tmp_path / "other.json").write_text(text)
        refused = here("nanochat.report", "--compare", str(a), f"{tmp_path}/other.json", code=2)
        assert "other.json is not a report.json of this version" in refused.stderr
