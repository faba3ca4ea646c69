"""--dry-run of fine-tuning: what the stage would do, and nothing is trained."""

import importlib

import pytest
from tune_runs import LONG, Stages

from nanochat.chat import render_conversation
from nanochat.config import parse
from nanochat.tokenizer import Tokenizer
from tasks import TASKS
from tasks.mixing import mix


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    return Stages(tmp_path_factory.mktemp("stages"))


@pytest.fixture
def plan(stages, monkeypatch, capsys):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(stages.folder))
    monkeypatch.setenv("NANOCHAT_HUB", str(stages.folder / "hub"))

    def print_plan(script: str, *flags: str):
        module = importlib.import_module(f"scripts.{script}")
        before = sorted(stages.folder.rglob("*"))
        module.main(parse(module.Config, ["--tag=parent", "--dry-run", *flags]))
        assert sorted(stages.folder.rglob("*")) == before
        return capsys.readouterr().out

    return print_plan


def test_steps_follow_from_the_length_of_the_conversations(stages, plan):
    lines = plan("mid_train", "--mixture=gsm8k:2", "--num-epochs=3", *LONG).splitlines()
    rows = mix(TASKS, "gsm8k:2", seed=42)
    tokenizer = Tokenizer.load(stages.folder / "tok_train/default/tokenizer.json")
    lengths = [min(300, len(render_conversation(rows[number], tokenizer)[0])) for number in range(200)]
    steps = int(3 * len(rows) * sum(lengths) / 200 / 1200)
    assert "Parent: base_train parent, step 6" in lines
    assert f"Training rows: {len(rows)}" in lines
    assert f"Steps: about {steps}" in lines
    assert "Learning rates: x 0.8 at the start, x 0 of that at the end" in lines


def test_a_horizon_a_missing_parent_and_prompts(plan):
    assert "Steps: about 7\n" in plan("chat_sft", "--source=base", "--num-iterations=7", *LONG)
    assert "Steps: as many as 90 seconds allow\n" in plan("chat_sft", "--source=base", "--target-seconds=90", *LONG)
    with pytest.raises(ValueError, match=r"there is no model in .*: python -m scripts\.mid_train makes one"):
        plan("chat_sft")
    # A plan of reinforcement learning counts prompts.
    flags = ["--source=base", "--examples-per-step=8", "--num-samples=2", "--max-seq-len=300"]
    said = plan("chat_rl", *flags)
    steps = len(TASKS["GSM8K"]("train")) // 8
    assert f"Steps: about {steps}\n" in said
