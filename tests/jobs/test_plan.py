"""Plan of the main job: steps, flags, reasons to leave a step out; `scripts.plan` is called in this process."""

import json
import os
import shlex
import sys
from typing import get_args

import pytest
from conftest import plant_world

from nanochat.data.bundle import URL as BUNDLE_URL
from nanochat.errors import UserError
from nanochat.hardware import find_accelerator
from nanochat.jobs import plan
from nanochat.jobs.estimate import BaseRun
from nanochat.jobs.plan import PLANNED_STAGES, STEPS
from nanochat.jobs.runner import Step, difference, load_job
from scripts.plan import Config, main, plan_job


@pytest.fixture
def planned(base, monkeypatch, capsys, tiny_world):
    """A function that plans with some flags and no network; returns the saved job and the printed plan."""
    plant_world(base, tiny_world)
    monkeypatch.delenv("NANOCHAT_HUB", raising=False)
    run = BaseRun(tokens=10**9, flops=1e9, rate=1e15)  # test_estimate.py plans a real model
    monkeypatch.setattr("scripts.plan.base_run", lambda *_: run)

    def make(**flags):
        if "on" in flags:  # speedrun.sh starts no plan of other hardware
            job = plan_job(Config(**flags))
            job.save()
            return load_job(job.folder), capsys.readouterr().out
        read_fd, write_fd = os.pipe()
        main(Config(**flags, save=write_fd))
        os.close(write_fd)
        with open(read_fd) as folder:
            return load_job(base.__class__(folder.read())), capsys.readouterr().out

    return make


def test_a_job_keeps_the_scale_that_it_started_with_and_a_fresh_start_archives_results(planned, base) -> None:
    assert planned()[0].settings["scale"] == "embedded"
    saved = base / "speedrun/default/plan.json"
    saved.write_text(json.dumps({"settings": {"scale": "cpu", "depth": 4}}))
    job, text = planned(data="world")
    assert job.settings == {"scale": "cpu", "depth": 4, "data": ""}
    assert "as this run started" in text
    assert planned(data="world")[0].settings["scale"] == "cpu"
    (base / "base_train/default").mkdir(parents=True)
    job, text = planned(fresh=True)
    assert job.settings["scale"] == "embedded"
    assert f"earlier results of base_train are in {job.folder}/archive/base_train-" in text
    assert not (base / "base_train/default").exists()
    assert planned(scale="embedded")[0].settings["scale"] == "embedded"


def test_a_job_keeps_the_text_that_it_has_found(planned, base, monkeypatch) -> None:
    is_here = plan.hub.is_here
    monkeypatch.setattr(plan.hub, "is_here", lambda files: is_here(files) or any("shard" in one.path for one in files))
    monkeypatch.setattr(plan, "text_here", lambda: "mixed-text")
    assert planned(scale="cpu")[0].step("tok_train").data == "mixed-text"
    monkeypatch.setattr(plan, "text_here", lambda: "climbmix")  # it has come meanwhile
    assert planned(scale="cpu")[0].step("tok_train").data == "mixed-text"
    monkeypatch.setattr(plan.hub, "is_here", is_here)  # nothing is
    with pytest.raises(
        UserError, match=r"^this run began with mixed-text, which is not here: set NANOCHAT_HUB, or name"
    ):
        planned(scale="cpu")
    with pytest.raises(UserError, match=r"^--scale=cpu needs real text, and this machine has none: name a folder"):
        planned(scale="cpu", tag="other")
    monkeypatch.setattr(plan.hub, "is_here", lambda files: True)
    assert planned(scale="cpu", fresh=True)[0].step("tok_train").data == "climbmix"
    assert planned(scale="embedded")[0].step("tok_train").data == "world"


def test_eight_gpus_are_planned_alike_in_a_fresh_home_and_after_a_demo(planned, base) -> None:
    flags = {"on": "8xH100", "seconds": 60.0}
    fresh = planned(**flags)
    (base / "speedrun/default/plan.json").unlink()
    demo, _ = planned()
    assert demo.settings["scale"] == "embedded"
    assert (base / "speedrun/default/plan.json").exists()
    assert planned(**flags) == fresh


def test_the_seed_reaches_world_weights_and_data(planned, base) -> None:
    for seed, world in ((1, "world"), (2, "world-2")):
        job, text = planned(seed=seed)
        reads = [step.name for step in job.steps if f"--data={world}" in step.command]
        assert reads == ["tok_train", "tok_eval", "base_train"]
        seeded = [step.name for step in job.steps if f"--seed={seed}" in step.command]
        assert seeded == ["base_train", "mid_train", "chat_sft", "chat_rl"]
        assert [step.name for step in job.steps if step.skip] == ["download", "download_tasks"]
        assert (
            job.step("chat_rl").files == job.step("base_eval").files == [[f"{world}/world.json", "", None, "dataset"]]
        )
    assert f"text: the embedded world in {base / world}" in text
    assert "--chat-temperature=0.2" in job.step("mid_train").command


def test_what_does_not_change_the_result_repeats_no_stage(planned, monkeypatch) -> None:
    plain, _ = planned(data="world", scale="cpu")
    monkeypatch.setattr(plan, "find_hardware", lambda named, nodes: (8, find_accelerator("H100")))
    other, _ = planned(data="world", scale="cpu", wandb="name")
    changed = []
    for before, step in zip(plain.steps, other.steps, strict=True):
        assert difference({"command": before.command, "inputs": {}}, step, {}) == ""
        changed += [step.name] if before.words != step.words else []
    assert {"base_train", "base_eval", "chat_rl"} <= set(changed)  # torchrun, and a name for W&B
    assert "tok_train" not in changed


def test_every_stage_names_its_inputs(planned, text_folder) -> None:
    steps = {step.name: step for step in planned(data=str(text_folder))[0].steps}
    assert steps["chat_eval_rl"].parent == "chat_rl/default"
    assert steps["base_train"].parent == "tok_train/default"
    assert [name for name, step in steps.items() if step.data] == ["tok_train", "tok_eval", "base_train", "base_loss"]
    assert [entry[0] for entry in steps["base_eval"].files] == [
        "eval_bundle/core.yaml",
        "eval_bundle/eval_meta_data.csv",
    ]
    assert steps["mid_train"].files == steps["chat_eval_rl"].files != []
    assert not steps["report"].output


@pytest.mark.parametrize(("named", "at_work"), [("H100", 1), ("6xH100", 4)])
def test_several_gpus_work_under_torchrun(named, at_work, planned) -> None:
    job, text = planned(on=named, seconds=60.0)
    assert ("2 more are idle" in text) == named.startswith("6")
    launched = [step.name for step in job.steps if f"--nproc_per_node={at_work}" in step.launch]
    expected = [name for name in PLANNED_STAGES if not name.startswith("tok")]
    assert launched == (expected if at_work > 1 else [])
    assert not any(step.skip for step in job.steps)
    assert "--core-metric-every=2000" in job.step("base_train").command  # CORE comes from its archive


def test_the_server_of_the_core_tasks_is_asked_and_not_the_hub(planned, text_folder, monkeypatch) -> None:
    monkeypatch.setattr(plan, "find_hardware", lambda *_: (1, find_accelerator("H100")))
    servers = {"": "", BUNDLE_URL: f"{BUNDLE_URL} cannot be reached"}  # the hub answers, the other one does not
    monkeypatch.setattr(plan.hub, "refusal", servers.__getitem__)
    job, text = planned(scale="1gpu", data=str(text_folder))
    assert "left out: base_eval (no eval_bundle is here or can be downloaded" in text
    # The run leaves out its estimates by itself: the same command, so that nothing is repeated when the server is back.
    assert "--core-metric-every=2000" in job.step("base_train").words
    without = job
    servers[BUNDLE_URL] = ""
    job, text = planned(scale="1gpu", data=str(text_folder))
    assert job.step("base_train") == without.step("base_train")
    # The server may still refuse the file itself.
    assert not job.step("base_eval").skip
    left_out = [step.name for step in job.steps if step.skip_without_files]
    assert left_out == ["base_eval"]
    assert {path for path, *_ in job.step("base_eval").files} == {file.path for file in plan.BUNDLE}


def test_what_chat_stages_read_is_downloaded_beside_base_training(planned) -> None:
    assert get_args(plan.StepName) == plan.STEPS
    assert {*plan.STEPS} == {"download", *PLANNED_STAGES, "download_tasks", "report"}
    job, _ = planned(on="8xH100", seconds=60.0)
    names = [step.name for step in job.steps]
    assert names == list(plan.STEPS)
    assert job.step("download").words[-3:] == ["--data=climbmix", "--tokens=1000000000", "--optional-tasks=core"]
    [tasks] = [word for word in job.step("download_tasks").words if word.startswith("--tasks=")]
    assert {"SmolTalk", "MMLU", "GSM8K", "ARC-Easy"} <= set(tasks.removeprefix("--tasks=").split(","))
    assert "Multi-Turn" not in tasks  # only mirrors have it
    assert job.step("download_tasks").words[-1] == "--optional-tasks=core"  # a second attempt
    job, _ = planned(on="8xH100", seconds=60.0, until="base_train")
    assert job.step("download_tasks").skip == "after --until=base_train"


def test_two_nodes_share_the_ranks_and_save_now_and_then(planned, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_NODES", "1:2")
    monkeypatch.setattr(plan, "find_hardware", lambda *_: (8, find_accelerator("NVIDIA H100")))
    monkeypatch.setattr(plan, "PREFLIGHT", "scripts.plan")  # a module that is here
    job, text = planned(scale="8xh100", data="climbmix")
    assert "cores, 8 x NVIDIA H100" in text
    launch = ["-m", "torch.distributed.run", "--nproc_per_node=4"]
    assert job.step("base_train").launch == launch
    assert job.step("base_train").options == ["--save-every=100"]
    assert job.step("base_eval").options == job.step("tok_train").launch == []
    assert job.step("preflight").launch == [*launch, "--max-restarts=0"]
    # A step of RL has 16 questions, and one of SFT 32 rows: more ranks could not share it.
    monkeypatch.setenv("NANOCHAT_NODES", "1:8")
    monkeypatch.setattr(plan, "find_hardware", lambda *_: (64, find_accelerator("NVIDIA H100")))
    job, _ = planned(scale="8xh100", data="climbmix", tag="large")
    ranks = {
        name: job.step(name).launch[-1] for name in ("base_train", "mid_train", "chat_sft", "chat_rl", "chat_eval_rl")
    }
    assert [words.removeprefix("--nproc_per_node=") for words in ranks.values()] == ["8", "8", "4", "2", "8"]
    monkeypatch.setenv("NANOCHAT_NODES", "1:2")
    monkeypatch.setattr(plan, "find_hardware", lambda *_: (0, None))
    assert planned(tag="cpu")[0].step("chat_rl").launch == launch[:2]
    sentence = "NANOCHAT_NODES=1:2: a job on several nodes belongs to tracks/gone, which is not here"
    monkeypatch.setattr(plan, "PREFLIGHT", "tracks.gone.preflight")
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        planned(tag="cpu")


def test_a_gpu_that_torch_cannot_use_stops_the_plan_unless_a_cpu_scale_was_asked_for(planned, monkeypatch) -> None:
    monkeypatch.setattr(plan, "GPU_DEVICES", [os.devnull])
    monkeypatch.setattr("nanochat.runtime.unusable_gpu", lambda: "the driver is too old (driver 535.104.05)")
    sentence = (
        r"an NVIDIA GPU that cannot be used: the driver is too old \(driver 535.104.05\)\. Install a newer driver, or"
    )
    for flags in ({}, {"scale": "1gpu"}):
        with pytest.raises(UserError, match=f"{sentence} train on the CPU with --scale=embedded"):
            planned(**flags)
    job, text = planned(scale="embedded")
    assert "cores, no GPU" in text
    on_cpu = [step.name for step in job.steps if "--device-type=cpu" in step.options]
    assert on_cpu == [name for name in PLANNED_STAGES if not name.startswith("tok")]
    assert planned(on="8xH100")[0].settings["scale"] == "8xh100"  # a plan for another machine


def test_a_missing_data_set_leaves_out_its_stages(planned, text_folder, base, monkeypatch) -> None:
    monkeypatch.chdir(base.parent)  # restored after --cwd
    monkeypatch.setattr(sys, "argv", ["plan", f"--data={text_folder.name}", "--fresh", "--cwd=/", "--save=3"])
    job, text = planned(data=text_folder.name, scale="1gpu", cwd=str(text_folder.parent), wandb="mine")
    assert job.step("tok_train").data == f"folder:{text_folder}"
    reasons = {step.name: step.skip for step in job.steps if step.skip}
    assert reasons["mid_train"] == "no files of SmolTalk or Multi-Turn are here or can be downloaded"
    assert reasons["chat_sft"] == "mid_train is left out"
    assert set(STEPS) - reasons.keys() == {"tok_train", "tok_eval", "base_train", "base_loss", "report"}
    assert "left out: chat_sft (mid_train is left out)" in text
    assert job.step("base_train").options == ["--run=mine"]
    assert job.resume == shlex.join(["bash", f"{plan.ROOT}/speedrun.sh", f"--data={text_folder.name}"])
    job, _ = planned(data=text_folder.name, scale="1gpu", cwd=str(text_folder.parent), trackio="mine")
    assert job.step("base_train").options == ["--run=mine", "--tracker=trackio"]
    with pytest.raises(UserError, match="--wandb and --trackio both name a tracker: keep one"):
        planned(data=text_folder.name, cwd=str(text_folder.parent), wandb="mine", trackio="mine")


@pytest.mark.parametrize("scale", ["embedded", "cpu"])
def test_on_a_cpu_a_model_of_a_folder_talks_like_the_folder(scale, planned, text_folder) -> None:
    job, _ = planned(data=str(text_folder), scale=scale)
    for stage in ("mid_train", "chat_sft"):
        assert {"--mixture=passages", "--chat-temperature=0.6"} <= set(job.step(stage).command)
    reasons = {step.name: step.skip for step in job.steps if step.skip}
    runs = {"tok_train", "tok_eval", "base_train", "base_loss", "mid_train", "chat_sft", "report"}
    assert set(STEPS) - reasons.keys() == runs
    assert reasons["chat_eval_sft"].startswith("no files of ARC-Easy or ARC-Challenge or MMLU or AQUA or GSM8K or ")
    job, _ = planned(data=f"{text_folder}:0.5,world:0.5", scale=scale)
    assert "--mixture=passages" not in job.step("mid_train").command


def test_the_closing_lines_name_the_last_model(tmp_path, monkeypatch) -> None:
    """tests/test_end_to_end.py runs these commands."""
    trained = {"base_train": "", "mid_train": "", "chat_sft": "after --until=mid_train", "chat_rl": "same"}
    steps = [Step(name, [], skip=reason) for name, reason in trained.items()]
    monkeypatch.setattr(plan, "ROOT", tmp_path / "the house")
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path / "my runs"))
    python = f"cd '{tmp_path}/the house' && NANOCHAT_BASE_DIR='{tmp_path}/my runs' .venv/bin/python"
    assert plan.talk_lines(steps, "d8") == [
        f"talk to it: {python} -m scripts.chat_cli -i mid -g d8",
        f"in a browser: {python} -m scripts.chat_web -i mid -g d8",
    ]
    assert plan.talk_lines([Step("base_train", [], skip="no")], "d8") == []
