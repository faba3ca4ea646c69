"""The card of an exported model: its shape, where it comes from, and what came of its own training alone."""

from exports import ODD
from models import CONFIGS, lively
from outcomes import leave

from nanochat.export.model_card import model_card, results

MANIFEST = {"stage": "chat_sft", "step": 7, "tokenizer": {"hash": "abc"}, "versions": {"torch": "2.11"}}


def test_results_are_those_of_the_model_and_its_evaluations(tmp_path):
    for stage in ("base_train", "base_eval", "mid_train", "chat_sft", "chat_eval_sft", "chat_rl"):
        leave(tmp_path, stage, "mine", metrics={stage: 1})
    leave(tmp_path, "base_train", "other")
    assert results(tmp_path, "base_train", "mine", 7) == {
        "Base model training": {"base_train": 1},
        "Base model evaluation": {"base_eval": 1},
    }
    assert list(results(tmp_path, "chat_sft", "mine", 7)) == ["Chat SFT", "Chat evaluation sft"]
    assert results(tmp_path, "chat_sft", "none", 7) == {}


def test_the_card_says_what_is_known():
    model = lively(CONFIGS["portable"] | ODD)
    came = {"Chat SFT": {"GSM8K": {"value": 0.25, "stderr": 0.01, "format": ".4f"}}}
    card = model_card("d8-sft", "Qwen3ForCausalLM", model, MANIFEST, came, ["greedy: the same 64 tokens"])
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "\n- nanochat\n- qwen3\n---\n\n# d8-sft\n" in card
    total = sum(parameter.numel() for parameter in model.parameters())
    for line in (
        f"Parameters: {total:,}",
        "Vocabulary: 701",
        "Heads of keys and values: 1",
        "Stage: chat_sft",
        "torch: 2.11",
    ):
        assert f"\n- {line}\n" in card
    assert "## Chat SFT\n\n- GSM8K: 0.2500 ± 0.0100\n" in card
    assert card.endswith("- greedy: the same 64 tokens\n")
