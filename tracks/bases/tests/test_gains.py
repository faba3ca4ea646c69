"""Gains: each stage beside the base model, by the questions that both have answered."""

import pytest

from nanochat.stages import source_of
from tracks.bases.gains import gain_rows


def answered(stage: str, right: str, task: str = "GSM8K", questions: str = "same", samples: int = 1) -> dict:
    return {"stage": stage, "task": task, "questions": questions, "samples": samples, "right": right}


def test_the_stage_of_an_evaluation() -> None:
    stages = ("base_eval", "base_eval_sft", "chat_eval_base", "chat_eval_rl", "base_loss", "base_loss_dpo")
    assert [source_of(stage) for stage in stages] == ["base", "sft", "base", "rl", "base", "dpo"]


def test_a_difference_is_taken_question_by_question() -> None:
    found = [
        answered("chat_eval_base", "0 0 0 1"),
        answered("chat_eval_sft", "1 1 0 0"),
        answered("base_eval", "1 0 1 0", task="copa"),
        answered("base_eval_sft", "1 0 1 0", task="copa"),
        answered("chat_eval_base", "0 1", task="MMLU", questions="some"),
        answered("chat_eval_sft", "0 1", task="MMLU", questions="others"),
        answered("chat_eval_rl", "2 2 2 0", samples=2),
    ]
    first, second = gain_rows(found, "base", "sft")
    # Differences 1, 1, 0, -1: mean 1/4, deviation 0.957, error 0.479.
    assert first == [
        "GSM8K",
        4,
        0.25,
        0.5,
        0.25,
        pytest.approx(0.4787, abs=1e-4),
        pytest.approx(0.522, abs=1e-3),
        2,
        1,
        1,
    ]
    assert second == ["copa", 4, 0.5, 0.5, 0.0, 0.0, None, 0, 0, 1]
    [last] = gain_rows(found, "sft", "rl")
    assert last[2:5] == [0.5, 0.75, 0.25]
    assert gain_rows(found, "sft", "dpo") == []
