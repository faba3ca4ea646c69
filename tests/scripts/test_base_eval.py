"""scripts.base_eval: its record and its errors."""

import pytest
from bundles import HARD, vocabulary, world_tasks, write_bundle
from models import leave_model

from nanochat.config import parse
from nanochat.errors import UserError
from nanochat.log import format_value, read_metrics
from nanochat.paths import read_json
from nanochat.report.card import markdown, read_card
from scripts.base_eval import Config, main

LABELS = [task.label for task in [*world_tasks(7), *HARD]]


@pytest.fixture
def base(base, tmp_path, monkeypatch):
    """A base folder with a model at two steps, and a bundle in a mirror."""
    for step in (2, 4):
        leave_model(base, "base_train", "small", vocabulary(), step, max_seq_len=128)
    write_bundle(tmp_path / "mirror", [*world_tasks(7), *HARD])
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "mirror"))
    return base


def evaluate(*flags: str) -> None:
    main(parse(Config, ["--tag=small", "--dtype=fp32", "--device-type=cpu", *flags]))


def test_an_evaluation_leaves_its_record(base, capsys) -> None:
    evaluate()
    output = capsys.readouterr().out
    home = base / "base_eval/small"
    record = read_json(home / "outcome.json")
    metrics = record["metrics"]
    assert list(metrics) == ["Model", "CORE metric", *LABELS]
    assert metrics["Model"] == "base_train small (step 4)"
    assert "max_per_task" in record["card"]
    centered = [metrics[label]["value"] for label in LABELS]
    assert metrics["CORE metric"]["value"] == pytest.approx(sum(centered) / len(LABELS))
    shown = format_value(metrics["CORE metric"])
    assert f"\nCORE metric: {shown}\n" in output
    assert record["artifacts"].keys() == {f"{label}.jsonl" for label in LABELS}
    judged = {one["task"]: one for one in read_card(base)["decisions"]}
    assert sorted(judged) == sorted(LABELS)
    assert all(one["questions"] and one["samples"] == 1 for one in judged.values())
    [logged] = read_metrics(home / "metrics.jsonl")
    assert logged["CORE metric"] == metrics["CORE metric"]["value"]
    with pytest.raises(ValueError, match=r"base_train/.* has no checkpoint of step 99, only \["):
        evaluate("--step=99")


def test_some_tasks_of_a_model_of_a_later_stage(base, capsys) -> None:
    leave_model(base, "chat_sft", "small", vocabulary(), 4, max_seq_len=128)
    evaluate()
    evaluate("--source=sft", f"--tasks={LABELS[2]},{LABELS[0]}", "--quant=int8-row")
    record = read_json(base / "base_eval_sft/small-int8-row/outcome.json")
    assert list(record["metrics"]) == ["Model", f"CORE metric (2 of {len(LABELS)} tasks)", LABELS[0], LABELS[2]]
    assert record["metrics"]["Model"] == "chat_sft small (step 4)"
    evaluate("--source=sft", f"--tasks={LABELS[0]}")
    before, after = (read_json(base / place / "small/outcome.json") for place in ("base_eval", "base_eval_sft"))
    assert after["metrics"][LABELS[0]] == before["metrics"][LABELS[0]]  # both stages have the same weights
    assert "\n## CORE after SFT\n" in markdown(read_card(base, "small"), "report")
    with pytest.raises(UserError, match=f"chess is none of CORE's tasks, use {LABELS[0]}, "):
        evaluate("--tasks=chess")
