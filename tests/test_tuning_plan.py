"""The dry run of fine-tuning: steps, memory, time and price, with all data or with the parent's manifest alone."""

import importlib
import json
import re
import shutil
from pathlib import Path

import pytest
from base_runs import change_manifest
from tune_runs import LONG, Stages

from nanochat.chat import render_conversation
from nanochat.config import parse
from nanochat.jobs.estimate import base_run, estimate_step
from nanochat.jobs.plan import choose_setting, make_job, stage_flags
from nanochat.jobs.scales import flag_words
from nanochat.timing import GSM8K_PROMPTS, MID_TOKENS
from nanochat.tokenizer import Tokenizer
from scripts import base_train
from scripts.plan import NEEDS, READ
from scripts.plan import Config as JobConfig
from tasks import TASKS, open_tasks, scored_kinds
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


def test_steps_follow_from_the_length_of_the_conversations(stages, plan) -> None:
    lines = plan("mid_train", "--mixture=gsm8k:2", "--num-epochs=3", *LONG).splitlines()
    rows = mix(TASKS, "gsm8k:2", seed=42)
    tokenizer = Tokenizer.load(stages.folder / "tok_train/default/tokenizer.json")
    lengths = [min(300, len(render_conversation(rows[number], tokenizer)[0])) for number in range(200)]
    steps = int(3 * len(rows) * sum(lengths) / 200 / 1200)
    assert "Parent: base_train parent, step 6" in lines
    assert f"Training rows: {len(rows)}" in lines
    assert f"Steps: about {steps}" in lines
    assert "Learning rates: x 0.8 at the start, x 0 of that at the end" in lines


def test_a_horizon_a_missing_parent_and_prompts(plan) -> None:
    assert "Steps: about 7\n" in plan("chat_sft", "--source=base", "--num-iterations=7", *LONG)
    assert "Steps: as many as 90 seconds allow\n" in plan("chat_sft", "--source=base", "--target-seconds=90", *LONG)
    # A tenth of the tokens of GSM8K's conversations is the prompt's, or more; in midtraining it is learned too.
    supervised = ["--source=base", "--mixture=gsm8k", "--target-supervised-tokens=12000", *LONG]
    steps = {
        script: int(re.search(r"Steps: about ([\d,]+)", plan(script, *supervised))[1].replace(",", ""))
        for script in ("mid_train", "chat_sft")
    }
    assert steps["mid_train"] == 10
    assert 11 <= steps["chat_sft"] <= 30
    with pytest.raises(ValueError, match=r"there is no model in .*: python -m scripts\.mid_train makes one"):
        plan("chat_sft")
    # A plan of reinforcement learning counts prompts.
    flags = ["--source=base", "--examples-per-step=8", "--num-samples=2", "--max-seq-len=300"]
    said = plan("chat_rl", *flags)
    steps = len(TASKS["GSM8K"]("train")) // 8
    assert f"Steps: about {steps}\n" in said


@pytest.fixture
def manifest_alone(plan, stages, tmp_path, monkeypatch) -> Path:
    """A base folder that has a parent's manifest, and nothing else; there is no mirror and no network."""
    [step] = (stages.folder / "base_train/parent").glob("step_*")
    folder = tmp_path / "base_train/parent" / step.name
    folder.mkdir(parents=True)
    shutil.copy(step / "manifest.json", folder)
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    monkeypatch.delenv("NANOCHAT_HUB")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.mark.parametrize("script", ["mid_train", "chat_sft"])
def test_memory_time_and_price_on_named_hardware(script, plan) -> None:
    said = plan(script, "--source=base", "--on=4xH100@12", "--num-iterations=400", *LONG)
    assert re.search(r"^memory of a rank, GB: [\d.]+ with \d rows? at once \(weights ", said, re.MULTILINE)
    assert re.search(r"^of the time: training .*start 20\.0s, compiling ", said, re.MULTILINE)
    time, dollars = re.search(r"^time ([\d.]+)s on 4xH100, bf16, .*; dollars ([\d.]+)$", said, re.MULTILINE).groups()
    assert float(dollars) == pytest.approx(12 * float(time) / 3600, abs=0.01)


@pytest.mark.parametrize("script", ["mid_train", "chat_sft", "chat_rl"])
def test_json_is_all_that_a_program_reads(script, plan) -> None:
    record = json.loads(
        plan(script, "--source=base", "--on=2xH100", "--num-iterations=40", "--max-seq-len=300", "--json")
    )
    assert record["plan"]["steps"] == 40
    estimate = record["estimate"]
    assert (estimate["ranks"], estimate["source"][:7]) == (2, "assumed")
    names = [part["name"] for part in estimate["parts"]]
    assert names[0] == "training"
    assert ("sampling" in names) is (script == "chat_rl")
    assert sum(part["seconds"] for part in estimate["parts"]) == pytest.approx(estimate["seconds"])
    assert record["lines"][-1].startswith("time ")


def test_the_time_of_reinforcement_learning_has_sampling_tests_and_a_frozen_parent(plan) -> None:
    def estimate(*flags: str):
        record = json.loads(plan("chat_rl", "--source=base", "--on=H100", "--max-seq-len=300", "--json", *flags))
        seconds = {part["name"]: part["seconds"] for part in record["estimate"]["parts"]}
        return record["plan"]["steps"], seconds, record["estimate"]["memory"]

    steps, seconds, memory = estimate("--num-iterations=10", "--max-new-tokens=100")
    _, longer, _ = estimate("--num-iterations=10", "--max-new-tokens=200")
    assert longer["sampling"] == pytest.approx(2 * seconds["sampling"])
    assert longer["test scores"] > seconds["test scores"]
    assert "test scores" not in estimate("--num-iterations=10", "--eval-every=-1")[1]
    assert "frozen parent" not in memory
    assert {"keys and values", "weights for sampling"} <= memory.keys()
    assert "frozen parent" in estimate("--num-iterations=10", "--kl=0.1")[2]
    # The clock of a run counts sampling too.
    steps, timed, _ = estimate("--target-seconds=600")
    assert steps is None
    assert timed["training"] + timed["sampling"] == pytest.approx(600)


def test_the_manifest_of_the_parent_is_enough(plan, manifest_alone) -> None:
    said = plan("mid_train", "--on=8xH100", "--total-batch-size=2400", "--max-seq-len=300")
    missing = f"Training rows: not counted: no tokenizer is at {manifest_alone}/tok_train/default/tokenizer.json; "
    assert missing in said
    assert "Tokens: about 440 M in a pass, assumed: those of the public data sets" in said
    assert f"Steps: about {int(MID_TOKENS / 2400):,}\n" in said
    assert re.search(r"^time \S+ on 8xH100, .*; dollars [\d.]+$", said, re.MULTILINE)
    said = plan("chat_rl", "--source=base", "--on=8xH100", "--max-seq-len=300")
    assert f"Prompts: {GSM8K_PROMPTS:,} in a pass, assumed" in said
    assert f"Steps: about {GSM8K_PROMPTS // 16}\n" in said
    # Nothing is known of other data.
    said = plan("chat_sft", "--source=base", "--mixture=gsm8k", "--on=H100", *LONG)
    unknown = "\nSteps: not known: the data cannot be counted here, and --num-iterations is not given\n"
    assert unknown in said
    said = plan("chat_sft", "--source=base", "--target-supervised-tokens=9000", "--on=H100", *LONG)
    assert unknown in said
    assert "\nTokens: " not in said
    assert "\ntime n/a on 1xH100, " in said
    with pytest.raises(ValueError, match=r"^gsm9k is not a task, choose from "):
        plan("chat_rl", "--source=base", "--task=gsm9k")


def test_data_that_is_missing_is_named(plan, stages, monkeypatch) -> None:
    monkeypatch.delenv("NANOCHAT_HUB")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = plan("chat_sft", "--source=base", "--mixture=gsm8k", "--num-iterations=7", "--on=H100", *LONG)
    assert re.search(r"^Training rows: not counted: .*GSM8K|gsm8k", said, re.MULTILINE)
    assert "\nSteps: about 7\n" in said
    assert re.search(r"^time [\d.]+s on 1xH100", said, re.MULTILINE)


def test_hardware_is_for_a_plan(plan) -> None:
    for flag in ("--on=H100", "--json"):
        with pytest.raises(ValueError, match=r"^--on and --json are for a plan: add --dry-run$"):
            parse(importlib.import_module("scripts.chat_sft").Config, [flag])


@pytest.mark.parametrize("names", ["", "GSM8K", "GSM8K|MMLU"])
def test_the_tasks_that_are_scored_are_known_without_their_files(names, plan) -> None:
    kinds = [task.kind for task in open_tasks(names).values() if names or task.kind == "categorical"]
    assert set(kinds) <= set(scored_kinds(names, "default"))
    if names:
        assert kinds == scored_kinds(names, "default")


@pytest.mark.parametrize("on", ["8xH100", "1xH100"])
@pytest.mark.parametrize("name", ["mid_train", "chat_sft", "chat_rl"])
def test_the_plan_of_the_job_and_that_of_the_stage_agree(name, on, plan, manifest_alone, monkeypatch, capsys) -> None:
    """Both have the same work: one from a table for all of the public data, the other from the flags of the stage."""
    monkeypatch.setattr("nanochat.data.hub.is_here", lambda files: True)
    setting = choose_setting(JobConfig(on=on))
    flags = stage_flags(setting)
    base = base_run(flags["base_train"], setting)
    job = make_job(setting, flags, base.tokens, {task: TASKS[task].files() for task in READ}, NEEDS)
    step = job.step(name)
    of_job = estimate_step(job, step, setting, base)
    # A parent of the size that the job trains.
    vocabulary = setting.scale.flags["tok_train"]["--vocab-size"]
    words = ["--dry-run", "--json", f"--on={on}", f"--vocab-size={vocabulary}", *flag_words(flags["base_train"])]
    base_train.main(parse(base_train.Config, words))
    model = json.loads(capsys.readouterr().out)["plan"]["model"]
    [path] = manifest_alone.glob("base_train/parent/step_*/manifest.json")
    sizes = {"max_seq_len": model["max_seq_len"], "total_batch_size": 2**19}
    change_manifest(path, lambda manifest: manifest.update(model=model, config=manifest["config"] | sizes))
    words = ["--source=base", f"--on={on}", "--json", *step.command[1:], "--tag=parent"]
    of_stage = json.loads(plan(name, *words))["estimate"]
    assert of_job.seconds == pytest.approx(of_stage["seconds"], rel=0.03)
    trained = {part["name"]: part["seconds"] for part in of_stage["parts"]}
    assert of_job.parts[0].name == "training"
    assert of_job.parts[0].seconds == pytest.approx(trained["training"], rel=0.01)
