"""scripts.mid_train on a small mirror of the hub: its tasks, that all tokens are learned, its section."""

import json

import pytest
from tune_runs import Stages

from nanochat.report.card import markdown, read_card
from nanochat.stages import STAGES


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Stages:
    return Stages(tmp_path_factory.mktemp("stages"))


@pytest.fixture(scope="module")
def said(base) -> str:
    """What it prints, with a mixture of which one task has no files here."""
    (base.folder / "hub/identity_conversations.jsonl").unlink()
    return base.stage("mid_train").done()


def test_the_section_has_the_fields_of_the_reference(base, said):
    record = base.record("mid_train")
    shown = {"run", "device_type", "dtype", "num_iterations", "max_seq_len", "device_batch_size", "unembedding_lr"}
    shown |= {"embedding_lr", "matrix_lr", "init_lr_frac", "weight_decay", "eval_every", "eval_tokens"}
    assert shown | {"total_batch_size"} <= set(record["card"])
    found = {"Number of iterations", "DDP world size", "Minimum validation bpb", "Training rows", "Training loss"}
    assert found <= record["metrics"].keys()
    assert {"ARC-Easy", "ARC-Challenge", "MMLU", "AQUA", "ChatCORE (4 of 6 tasks)"} <= record["metrics"].keys()
    assert "ChatCORE" not in record["metrics"]
    assert "GSM8K" not in record["metrics"]  # it is not answered by a letter
    [stage] = [stage for stage in STAGES if stage.name == "mid_train"]
    assert f"\n## {stage.section}\n" in markdown(read_card(base.folder), "report")


def test_all_tokens_are_learned(base, said):
    manifest = json.loads((base.folder / "mid_train/parent/step_000004/manifest.json").read_text(encoding="utf-8"))
    assert manifest["data"]["supervise"] == "all"
    # For the chat with this model.
    assert len(manifest["suggestions"]) == 4
    assert manifest["config"]["chat_temperature"] == 0.6
    assert manifest["parent"] == {"stage": "base_train", "tag": "parent", "step": 6}
