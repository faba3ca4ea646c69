"""scripts.mid_train and scripts.chat_sft on a small mirror of the hub, and on conversations of one's own."""

import hashlib
from pathlib import Path

import pytest
from chat_files import write_lines
from tune_runs import Stages

from nanochat.checkpoint import load_manifest
from nanochat.models import weights_hash
from nanochat.paths import read_json
from nanochat.report.card import markdown, read_card
from nanochat.stages import STAGES


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """With runs of both; a task of the default mixture of the first has no files."""
    base = Stages(tmp_path_factory.mktemp("stages"))
    (base.folder / "hub/identity_conversations.jsonl").unlink()
    base.stage("mid_train").done()
    base.stage("chat_sft", "--source=base", "--eval-metrics-tasks=gsm8k").done()
    return base


def write_chats(path: Path, answer: str):
    """Write conversations as a user does; return the flag that names them."""
    chat = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": answer}]
    return f"--mixture={write_lines(path, *[chat] * 60)}"


def test_the_sections_have_the_fields_of_the_reference_and_mid_training_learns_all_tokens(base) -> None:
    mid, sft = (base.record(stage) for stage in ("mid_train", "chat_sft"))
    shown = {"run", "device_type", "dtype", "device_batch_size", "num_iterations", "matrix_lr", "unembedding_lr"}
    shown |= {"embedding_lr", "weight_decay", "init_lr_frac", "eval_every"}
    assert shown | {"max_seq_len", "eval_tokens", "total_batch_size"} <= set(mid["card"])
    shown |= {"source", "num_epochs", "eval_metrics_every", "eval_metrics_max_problems", "mixture"}
    assert shown <= set(sft["card"])
    found = {"Training rows", "Number of iterations", "Training loss"}
    assert found | {"DDP world size", "Minimum validation bpb"} <= mid["metrics"].keys()
    assert found | {"Validation loss", "GSM8K"} <= sft["metrics"].keys()
    assert {"ARC-Easy", "ARC-Challenge", "MMLU", "AQUA", "ChatCORE (4 of 6 tasks)"} <= mid["metrics"].keys()
    assert not {"ChatCORE", "GSM8K"} & mid["metrics"].keys()  # the latter is not answered by a letter
    assert [sft["metrics"][f"aqua_{split}_examples"] for split in ("train", "val")] == [100, 20]  # all that is there
    card = markdown(read_card(base.folder), "report")
    for stage in STAGES:
        assert (f"\n## {stage.section}\n" in card) == (stage.name in ("base_train", "mid_train", "chat_sft"))
    assert "| Validation loss " in card.partition("## Summary")[2]
    manifest = read_json(base.folder / "mid_train/parent/step_000004/manifest.json")
    assert manifest["data"]["supervise"] == "all"
    # For the chat with this model.
    assert manifest["config"]["chat_temperature"] == 0.6
    sha256 = weights_hash(load_manifest(base.folder / "base_train/parent", 6).manifest)
    assert manifest["parent"] == {"stage": "base_train", "tag": "parent", "step": 6, "sha256": sha256}


def test_it_is_recorded_what_was_learned_from(base) -> None:
    path = base.folder / "changing.jsonl"
    flags = ("--source=base", "--tag=record", "--model-tag=parent", write_chats(path, "The fox.") + ",aqua@20:2")
    base.stage("chat_sft", *flags).done()
    metrics = base.record("chat_sft", "record")["metrics"]
    assert metrics["aqua_train_examples"] == 20
    hashed = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest = read_json(base.folder / "chat_sft/record/step_000004/manifest.json")
    assert manifest["data"]["tasks"]["json:changing.jsonl"] == {"rows": 57, "files": {"changing.jsonl": hashed}}
    write_chats(path, "The cow.")
    said = base.stage("chat_sft", *flags).refused()
    assert "chat_sft/record: the data is not what the run began with" in said
