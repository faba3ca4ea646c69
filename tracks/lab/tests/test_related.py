"""Benchmarks with questions that a lab learns, or asks while it trains, under another name."""

from pathlib import Path

import pytest
from committed_cards import LABELS

from nanochat.paths import write_text
from nanochat.stages import MODELS
from tasks import TASKS
from tracks.lab.related import LEARNED, TESTS
from tracks.lab.sweep import mistakes
from tracks.lab.tests.made_labs import read_lab


@pytest.mark.parametrize(
    ("stage", "mix", "held_out", "named"),
    [
        ("chat_sft", "ARC-Easy%1,click-halves~styles%99", "CLIcK", "learned with CLIcK-Halves"),
        ("mid_train", "SmolTalk,no-task|CLIcK-Halves:2", "click~options:8", "learned with CLIcK-Halves"),
        ("chat_sft", "Alpaca-Part@100", "Alpaca-Constrained", "learned with Alpaca-Part"),
        ("chat_sft", "KMMLU", "KMMLU-Redux", "learned with KMMLU"),
        ("chat_rl", "CLIcK-Halves", "CLIcK", "learned with CLIcK-Halves"),
        ("chat_rl", "MATH", "MATH-500", "prompts of MATH"),
        ("chat_rl", "math", "HRM8K", "prompts of MATH"),
        ("chat_rl", "GSM8K", "HRM8K", "prompts of GSM8K"),
        ("chat_rl", "AQUA-Rationale", "AQUA", "prompts of AQUA-Rationale"),
        ("chat_rl", "ARC-Easy", "arc_easy", "prompts of ARC-Easy"),
        # Its own test split, test splits of others, and a file of that name.
        ("chat_sft", "CLIcK-Halves,GSM8K", "CLIcK-Halves", ""),
        ("chat_sft", "MATH,GSM8K,ARC-Easy", "MATH-500", ""),
        ("chat_sft", "json:CLIcK-Halves,AQUA", "CLIcK", ""),
        ("chat_dpo", "CLIcK-Halves", "CLIcK", ""),
        ("chat_rl", "GSM8K", "MATH-500", ""),
    ],
)
def test_a_benchmark_with_questions_that_are_learned_is_not_held_out(
    stage: str, mix: str, held_out: str, named: str, base: Path
) -> None:
    for tag in ("one", "two"):
        for source in ("base", "mid", "sft"):
            write_text(base / f"{MODELS[source]}/{tag}/step_000010/manifest.json", "{}")
    changes = {'"chat_sft"': f'"{stage}"', '"Chats,Facts"': f'"{mix}"', '["World-Talk"]': f'["{held_out}"]'}
    found = mistakes(read_lab(base, changes))
    assert len(found) == bool(named)
    assert all(line.startswith(f"{held_out} has ") and named in line for line in found)
    assert all(line.endswith(" and cannot be held_out") for line in found)


@pytest.mark.parametrize(
    ("dev", "held_out", "is_refused"),
    [
        ("MATH", "MATH-500", True),
        ("ARC-Easy", "arc_easy", True),
        ("hellaswag_zeroshot", "hellaswag", True),
        ("click~options:8", "CLIcK", True),
        ("ARC-Easy", "ARC-Challenge", False),
        ("MATH", "GSM8K", False),
    ],
)
def test_a_benchmark_with_questions_by_which_the_lab_decides_is_not_held_out(
    dev: str, held_out: str, is_refused: bool, base: Path
) -> None:
    for tag in ("one", "two"):
        write_text(base / f"{MODELS['mid']}/{tag}/step_000010/manifest.json", "{}")
        write_text(base / f"{MODELS['base']}/{tag}/step_000010/manifest.json", "{}")
    found = mistakes(read_lab(base, {'["World-Facts"]': f'["{dev}"]', '["World-Talk"]': f'["{held_out}"]'}))
    said = f"{held_out} has questions of {dev}, by which the lab decides, and cannot be held_out"
    assert found == is_refused * [said]


def test_the_table_of_related_data_sets_has_known_names() -> None:
    pairs = [*TESTS, *([name, *others] for name, others in LEARNED.items())]
    assert {name for names in pairs for name in names} <= {*TASKS, *LABELS}
