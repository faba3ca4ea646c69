"""scripts.chat_sft on a small mirror of the hub, and on conversations of one's own."""

import hashlib
import json
from pathlib import Path

import pytest
from chat_files import write_lines
from tune_runs import Stages

from nanochat.report.card import markdown, read_card


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Stages:
    return Stages(tmp_path_factory.mktemp("stages"))


def write_chats(path: Path, answer: str) -> str:
    """Write conversations as a user does; return the flag that names them."""
    chat = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": answer}]
    return f"--mixture={write_lines(path, *[chat] * 60)}"


def test_the_section_has_the_fields_of_the_reference(base):
    base.stage("chat_sft", "--source=base", "--eval-metrics-tasks=gsm8k").done()
    record = base.record("chat_sft")
    shown = {"run", "source", "device_type", "dtype", "device_batch_size", "num_epochs", "num_iterations", "matrix_lr"}
    shown |= {"unembedding_lr", "embedding_lr", "weight_decay", "init_lr_frac", "eval_every", "eval_metrics_every"}
    assert shown | {"eval_metrics_max_problems", "mixture"} <= set(record["card"])
    metrics = record["metrics"]
    assert {"Training rows", "Number of iterations", "Training loss", "Validation loss"} <= metrics.keys()
    assert (metrics["aqua_train_examples"], metrics["aqua_val_examples"]) == (100, 20)  # all that the mirror has
    assert "GSM8K" in metrics
    assert "\n## Chat SFT\n" in markdown(read_card(base.folder), "report")
    assert "| Validation loss |" in markdown(read_card(base.folder), "report")  # of the summary


def test_it_is_recorded_what_was_learned_from(base):
    path = base.folder / "changing.jsonl"
    flags = ("--source=base", "--tag=record", "--model-tag=parent", write_chats(path, "The fox.") + ",aqua@20:2")
    base.stage("chat_sft", *flags).done()
    record = base.record("chat_sft", "record")
    assert record["metrics"]["aqua_train_examples"] == 20
    hashed = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest = json.loads((base.folder / "chat_sft/record/step_000004/manifest.json").read_text(encoding="utf-8"))
    assert manifest["data"]["tasks"]["json:changing.jsonl"] == {"rows": 57, "files": {"changing.jsonl": hashed}}
    write_chats(path, "The cow.")
    job = base.stage("chat_sft", *flags)
    assert job.codes() == [2]
    assert "chat_sft/record: the data is not what the run began with" in job.err()
