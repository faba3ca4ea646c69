"""Runs side by side: statistics against plain twins, equal questions, notes."""

import itertools
import json
import math
import random
import statistics
from fractions import Fraction
from pathlib import Path

import pytest
from outcomes import ENVIRONMENT, leave

from nanochat.paths import read_sha256
from nanochat.report.__main__ import read_record
from nanochat.report.card import read_card
from nanochat.report.compare import compare, decisions, mcnemar, paired, unpaired


def test_mcnemar_is_the_share_of_coins_that_fall_so_or_worse():
    for only_one, only_other in itertools.product(range(6), range(6)):
        tosses, fewer = only_one + only_other, min(only_one, only_other)
        falls = [sum(coins) for coins in itertools.product((0, 1), repeat=tosses)]
        worse = sum(fall <= fewer or fall >= tosses - fewer for fall in falls)
        assert mcnemar(only_one, only_other) == pytest.approx(float(Fraction(worse, len(falls))))
    assert mcnemar(0, 10_000) == pytest.approx(0.0, abs=1e-300)
    assert mcnemar(5000, 5000) == 1.0


def test_pairs_are_compared_more_sharply():
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draws = random.Random(seed)
    one = [draws.random() for _ in range(400)]
    other = [value + draws.gauss(0.1, 0.1) for value in one]
    difference, error = paired(one, other)
    assert difference == pytest.approx(unpaired(one, other)[0])
    assert error == pytest.approx(statistics.stdev(b - a for a, b in zip(one, other, strict=True)) / 20)
    variances = statistics.variance(one) + statistics.variance(other)
    assert unpaired(one, other)[1] == pytest.approx(math.sqrt(variances / 400))
    assert unpaired(one, other)[1] > 2 * error
    assert math.isnan(paired([1.0], [0.0])[1])


def evaluated(base: Path, right: str, stage: str = "base_eval", first: int = 0, **changes) -> Path:
    """A run with an evaluation on one task, like base_eval's or chat_eval's; right: 1 or 0, of each question."""
    path = base / stage / "default" / "step_000001-abc" / "task.jsonl"
    path.parent.mkdir(parents=True)
    lines = []
    for number, verdict in enumerate(right, first):
        line = {"item": number, "question": f"q{number}", "correct": verdict == "1"}
        if stage.startswith("chat"):
            line = {"prompt": f"q{number}", "answer": "a", "completions": [{"right": int(verdict) > k} for k in (0, 1)]}
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n")
    accuracy = right.count("1") / len(right)
    metrics = {"CORE metric": {"value": accuracy, "stderr": 0.03, "format": ".4f"}, "Model": "m"} | changes
    path.parent.parent.joinpath("task.jsonl").write_text("an older one of the same name")
    leave(base / "t", stage, metrics=metrics, artifacts={"task.jsonl": read_sha256(path)}).rename(
        path.parent.parent / "outcome.json"
    )
    return base


def row(a: Path, b: Path, name: str) -> list[str]:
    [found] = [
        line.split()
        for line in compare([read_record(a), read_record(b)], ["a", "b"]).splitlines()
        if line.startswith(name)
    ]
    return found


def test_the_same_questions_are_paired(tmp_path):
    a, b = evaluated(tmp_path / "a", "1100110000"), evaluated(tmp_path / "b", "1111110001")
    assert row(a, b, "task ") == "task 10 0.4000 0.7000 +0.3000 0.1528 0 3 0.25".split()
    assert row(a, b, "CORE metric") == "CORE metric 0.4000 ± 0.0300 0.7000 ± 0.0300 +0.3000 0.0424".split()
    assert "Model" not in compare([read_record(a), read_record(b)], "ab")  # a text that is the same
    assert row(a, a, "task ") == "task 10 0.4000 0.4000 +0.0000 0.0000 0 0 1".split()


def test_other_questions_are_told_and_not_paired(tmp_path):
    a = evaluated(tmp_path / "a", "1100110000")
    others = evaluated(tmp_path / "b", "1111110001", first=3)
    more = evaluated(tmp_path / "c", "11111100010")
    assert row(a, others, "task ") == "task 10, 10 0.4000 0.7000 +0.3000 0.2236 - - other questions".split()
    assert row(a, more, "task ")[:4] == "task 10, 11 0.4000".split()
    old = evaluated(tmp_path / "d", "11")
    path = old / "base_eval/default/step_000001-abc/task.jsonl"
    path.write_text('{"item": 0, "correct": true}\n{"item": 1, "correct": true}\n')
    record = json.loads((old / "base_eval/default/outcome.json").read_text())
    record["artifacts"]["task.jsonl"] = read_sha256(path)
    (old / "base_eval/default/outcome.json").write_text(json.dumps(record))
    assert row(old, old, "task ")[-3:] == "questions not known".split()


def test_several_answers_to_a_question(tmp_path):
    a, b = (evaluated(tmp_path / name, right, "chat_eval_sft") for name, right in [("a", "0122"), ("b", "1222")])
    [found] = decisions(a, read_card(a).outcomes)
    assert (found["samples"], found["right"]) == (2, "0 1 2 2")
    assert row(a, b, "task ") == "task 4 0.6250 0.8750 +0.2500 0.1443 - - -".split()


def test_verdicts_that_are_gone_are_told(tmp_path):
    a, b = evaluated(tmp_path / "a", "10"), evaluated(tmp_path / "b", "11")
    (b / "base_eval/default/step_000001-abc/task.jsonl").write_text("{}\n")
    assert "task: B: task.jsonl is missing or was changed" in compare([read_record(a), read_record(b)], "ab")


def test_what_only_one_has_and_what_differs(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    leave(a, metrics={"train_time": 2.0, "data": "x" * 99, "new": True})
    leave(a, "tok_eval")
    config = {"max_chars": 5, "doc_cap": 10_000, "vocab_size": 65_536}
    machine = ENVIRONMENT | {"Software": {"Python": "3.13.0", "PyTorch": "2.8.0+cu128"}}
    leave(b, metrics={"train_time": 3.5, "data": "y", "size": 7}, config=config, environment=machine)
    leave(b, tag="older", timestamp="2025-10-23T23:00:00.000+00:00")
    leave(b, "zebra").write_text("")
    text = compare([read_record(a), read_record(b)], ["a", "b"])
    assert "B has tok_train of older too: the newer, default, is shown" in text
    assert "B: zebra/default/outcome.json is damaged: Expecting value" in text
    assert "\nTokenizer evaluation: only A has it" in text
    rows = {line.split("  ")[0].strip(): line.split() for line in text.splitlines()}
    assert rows["Python"][1:] == ["3.10.12", "3.13.0"]
    assert "PyTorch" not in rows
    assert rows["max_chars"][1:] == ["10,000,000,000", "5", "-", "-"]
    assert rows["train_time"][1:] == ["2.0000", "3.5000", "+1.5000", "-"]
    assert rows["data"][1:] == ["x" * 48, "y", "-", "-"]
    assert rows["size"][1:] == ["-", "7", "-", "-"]
    assert "doc_cap" not in rows


def test_the_command_takes_folders_and_records(tmp_path, here):
    a, b = evaluated(tmp_path / "a", "1100"), evaluated(tmp_path / "b", "1111")
    assert here("nanochat.report", f"--base-dir={b}", f"--out={tmp_path}/b.md").returncode == 0
    outputs = [here("nanochat.report", "--compare", str(a), str(other)) for other in (b, tmp_path / "b.json")]
    assert [done.returncode for done in outputs] == [0, 0], outputs
    texts = [done.stdout.partition("\nB: ")[2].partition("\n")[2] for done in outputs]
    assert texts[0] == texts[1] != ""
    assert "+0.5000  0.2887       0       2  0.5\n" in texts[0]
    done = here("nanochat.report", "--compare", str(a), str(tmp_path / "none.json"))
    assert (done.returncode, done.stderr) == (1, f"error: {tmp_path}/none.json: No such file or directory\n")


def test_what_is_no_number_is_a_dash(tmp_path):
    loss = {"value": math.nan, "stderr": math.nan, "format": ".4f"}
    a, b = (evaluated(tmp_path / name, "10", Loss=loss | more) for name, more in [("a", {}), ("b", {"value": 0.5})])
    assert row(a, b, "Loss ") == "Loss - 0.5000 - -".split()


def test_three_runs_are_compared_with_the_first(tmp_path):
    runs = [evaluated(tmp_path / name, right) for name, right in [("a", "1100"), ("b", "1110"), ("c", "1111")]]
    text = compare([read_record(run) for run in runs], "abc")
    [metric] = [line.split() for line in text.splitlines() if line.startswith("CORE metric")]
    assert metric[-4:] == ["+0.2500", "0.0424", "+0.5000", "0.0424"]
    assert [line.split()[4] for line in text.splitlines() if line.startswith("task ")] == ["+0.2500", "+0.5000"]
