"""What the plan says of machines and flags, and what it hands to the driver: the script as a user runs it."""

import json
import os
import re
import subprocess
import sys

import pytest

from nanochat.jobs.plan import STAGED, STEPS, read

OFFLINE = {"HF_HUB_OFFLINE": "1"}


def test_eight_gpus_are_planned_for_with_time_memory_and_dollars(python):
    done = python("-m", "scripts.plan", "--on=8xH100")
    assert done.returncode == 0, done.stderr
    assert "scale: 8xh100" in done.stdout
    assert "text: climbmix" in done.stdout
    assert re.search(r"^download +- +- ", done.stdout, re.MULTILINE)
    assert re.search(r"^base_train +[\d,]+\.\d M +\dh\d\dm ", done.stdout, re.MULTILINE)
    assert re.search(r"^base_train: memory of a rank, GB: [\d.]+ ", done.stdout, re.MULTILINE)
    assert re.search(
        r"^in all: about \dh\d\dm and \d+ steps of unknown length, [\d.]+ GB.*dollars \d+", done.stdout, re.M
    )
    slower = python("-m", "scripts.plan", "--on=8xA100", "--until=base_train").stdout
    assert "base_train: time" in slower  # without --fp8, which it has not
    assert "(after --until=base_train)" in slower


@pytest.fixture
def planned(base, tmp_path):
    """Keep a plan, as speedrun.sh does; the process and the plan."""

    def plan(*words: str, **variables: str):
        ear, mouth = os.pipe()
        command = [sys.executable, "-m", "scripts.plan", *words, f"--start={mouth}"]
        env = {name: value for name, value in os.environ.items() if name != "NANOCHAT_HUB"}
        env |= {"NANOCHAT_BASE_DIR": str(base), "HF_HOME": str(tmp_path / "cache"), **OFFLINE, **variables}
        done = subprocess.run(command, env=env, pass_fds=[mouth], capture_output=True, text=True)
        os.close(mouth)
        with open(ear) as heard:
            folder = heard.read()
        return done, read(base.__class__(folder)) if folder else None

    return plan


def mixtures(plan, step: str) -> list[str]:
    return [word for word in plan.step(step).words if word.startswith("--mixture=")]


def test_a_run_keeps_the_scale_that_it_began_with(planned, base):
    assert planned()[1].scale == "embedded"
    path = base / "speedrun/default/plan.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"embedded"', '"cpu"'), encoding="utf-8")
    done, plan = planned("--data=world")
    assert plan.scale == "cpu"
    assert "as this run began" in done.stdout
    assert planned("--fresh")[1].scale == "embedded"
    assert planned("--scale=embedded")[1].scale == "embedded"


def test_the_seed_reaches_world_weights_and_data(planned, base):
    for seed, world in ((1, "world"), (2, "world-2")):
        done, plan = planned(f"--seed={seed}")
        assert done.returncode == 0, done.stderr
        assert plan.environment == {"NANOCHAT_HUB": str(base / world)}
        assert plan.step("world").words == ["nanochat.world", f"--out={base / world}", f"--seed={seed}"]
        seeded = [step.name for step in plan.steps if f"--seed={seed}" in step.words]
        assert seeded == ["world", "base_train", "mid_train", "chat_sft", "chat_rl"]
        assert [step.name for step in plan.steps if step.left_out] == ["download"]
        assert [step for step in STAGED if mixtures(plan, step)] == ["mid_train", "chat_sft"]
    assert f"text: the embedded world in {base / world}" in done.stdout


@pytest.mark.parametrize(("named", "at_work"), [("H100", 1), ("2xRTX-4090", 2), ("6xH100", 4), ("8xH100", 8)])
def test_several_gpus_work_under_torchrun(named, at_work, planned):
    done, plan = planned(f"--on={named}", "--seconds=60")
    assert done.returncode == 0, done.stderr
    assert ("2 more are idle" in done.stdout) == named.startswith("6")
    launched = [step.name for step in plan.steps if f"--nproc_per_node={at_work}" in step.launch]
    assert launched == ([step for step in STAGED if not step.startswith("tok")] if at_work > 1 else [])


def test_what_cannot_be_had_is_left_out_with_what_goes_on_from_it(planned, text_folder, base):
    done, plan = planned(f"--data={text_folder.name}", f"--cwd={text_folder.parent}", "--wandb=mine")
    assert done.returncode == 0, done.stderr
    assert plan.data == f"folder:{text_folder}"
    reasons = {step.name: step.left_out for step in plan.steps if step.left_out}
    assert reasons["mid_train"] == "the files of ARC-Easy are not here, and not to be fetched"
    assert reasons["chat_eval_mid"] == reasons["chat_sft"] == "mid_train is left out"
    assert set(STEPS) - reasons.keys() == {"tok_train", "tok_eval", "base_train", "base_loss", "report"}
    assert "left out: chat_eval_mid, chat_sft (mid_train is left out)" in done.stdout
    assert plan.step("base_train").side == ["--run=mine"]
    assert not mixtures(plan, "mid_train")  # of the world's tasks, of which a hub lacks some
    assert "--tag" not in plan.again
    assert f"--data=folder:{text_folder}" in plan.again
    assert json.loads((base / "speedrun/default/plan.json").read_text()) == plan.save()
