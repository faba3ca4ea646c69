"""Estimates: every stage on any hardware, and the basis of each figure."""

import re

import pytest
from outcomes import leave

from nanochat.config import parse
from nanochat.jobs.estimate import WORK, BaseRun, base_run, dollars, estimate_step, finished_steps
from nanochat.jobs.plan import PLANNED_STAGES, STEPS, choose_setting, make_job, stage_flags
from nanochat.jobs.scales import CPU_SCALES
from nanochat.paths import write_json
from nanochat.tokenizer import Tokenizer
from scripts import chat_rl
from scripts.plan import NEEDS, READ, Config
from tasks import TASKS

RATE = 8 * 989.4e12 * 0.4
BASE = BaseRun(tokens=8 * 10**9, checkpoint=11 * 10**9, flops=6e9, rate=RATE, basis="assumed")


@pytest.fixture
def estimator(base, monkeypatch):
    """A function from flags to estimates, job and setting; with named hardware, nothing depends on this machine."""
    monkeypatch.setattr("nanochat.data.hub.is_here", lambda files: True)

    def make(**flags):
        config = Config(**flags)
        setting = choose_setting(config)
        tasks = {name: TASKS[name].files() for name in READ}
        job = make_job(setting, stage_flags(setting), BASE.tokens, tasks, NEEDS)
        finished = finished_steps(job, setting)
        estimates = {
            step.name: estimate_step(job, step, setting, BASE, finished) for step in job.steps if not step.skip
        }
        return estimates, job, setting

    return make


def test_estimates_follow_from_tokens_and_cost_and_name_their_basis(estimator, base) -> None:
    found, _, _ = estimator(on="8xH100")
    assert found["base_eval"].seconds == pytest.approx(30 + 48e6 * 0.33 * 6e9 / RATE)
    # A token at a time is slower than a whole row.
    assert found["chat_eval_rl"].seconds / found["chat_eval_rl"].tokens > found["base_eval"].seconds / 48e6
    assert found["tok_train"].seconds == 130
    assert found["download"].seconds == pytest.approx(30 + 8e9 * 2.5 / 5e7)
    whole, half = (estimator(scale="cpu", on="", seconds=seconds)[0]["chat_rl"] for seconds in (7200.0, 3600.0))
    assert half.tokens == whole.tokens / 2
    estimates, job, setting = estimator(on="8xH100")
    assert estimates["base_train"].basis == "assumed"
    assert estimates["base_train"].seconds == pytest.approx(48e18 / RATE + 30)
    assert "--fp8" in job.step("base_train").command
    assert dollars(3600, setting) == "24.00"
    assert dollars(1800, estimator(on="8xH100@98")[2]) == "49.00"
    assert dollars(3600, estimator(on="6xH100@98")[2]) == "98.00"  # two are idle and paid for
    assert estimator(on="8xH100", seconds=60.0)[0]["base_train"].basis == "as asked"
    whole = estimator(scale="embedded", on="H100")[0]["chat_rl"]
    assert whole.basis == "measured on 2 cores"
    half = estimator(scale="embedded", on="H100", depth=4)[0]["chat_rl"]
    assert half.seconds == whole.seconds / 2
    # The work of every scale and step is known.
    for kind in (*CPU_SCALES, "gpu"):
        steps = set(WORK[kind])
        # Base training is planned; a download follows from the tokens; on a CPU tuning has a clock.
        assert set(STEPS) - steps <= {
            "base_train",
            "download",
            "download_tasks",
            *(["mid_train", "chat_sft"] if kind == "cpu" else []),
        }
        assert steps <= {*STEPS, "preflight"}


def test_what_will_run_again_is_not_finished(estimator, base) -> None:
    flags = {"scale": "embedded", "data": "world", "seconds": 60.0}
    _, job, _ = estimator(**flags)
    for step in job.steps:
        write_json(job.record(step), {"command": step.command, "inputs": {}, "finished": True, "seconds": 7})
        if step.output:
            leave(base, *step.output.split("/"))

    def finished(**changed) -> list[str]:
        estimates, _, _ = estimator(**flags | changed)
        return [name for name, found in estimates.items() if found.basis == "finished"]

    stages = [step.name for step in job.steps if step.output]
    assert finished() == stages  # the report is written each time
    assert estimator(**flags)[0]["tok_train"].seconds == 7
    assert finished(depth=2) == ["tok_train", "tok_eval"]  # all others follow from the base model
    assert finished(fresh=True) == finished(on="H100") == []
    (base / "chat_sft/default/outcome.json").unlink()
    after = ("chat_sft", "chat_eval_sft", "chat_rl", "chat_eval_rl")
    assert finished() == [name for name in stages if name not in after]


def test_the_plan_for_eight_gpus_as_printed(here) -> None:
    done = here("scripts.plan", "--on=8xH100")
    row = r" *\| ([\d,.]+ M|-) *\| (\d+h\d\dm|\d+m\d\ds|[\d.]+s) *\| [\d,.]+ *\| \S"
    rows = re.findall(rf"^\| (\w+){row}", done.stdout, re.MULTILINE)
    assert {name for name, *_ in rows} >= set(PLANNED_STAGES) | {"download", "report"}
    assert re.search(r"^base_train: memory of a rank, GB: [\d.]+ ", done.stdout, re.MULTILINE)
    for stage in ("base_train", "mid_train", "chat_sft"):
        spent = re.search(rf"^{stage}: of the time: (.*)$", done.stdout, re.MULTILINE)[1]
        assert all(part in spent for part in ("training ", "start ", "compiling ", "saves ", "last checkpoint"))
    spent = re.search(r"^chat_rl: of the time: (.*)$", done.stdout, re.MULTILINE)[1]
    assert all(part in spent for part in ("training ", "sampling ", "start ", "test scores ", "saves "))
    assert "compiling" not in spent
    assert re.search(r"^in all: about \dh\d\dm, [\d.]+ GB of disk .*, dollars \d+", done.stdout, re.MULTILINE)
    # Without --dry-run nothing begins that is planned for other hardware.
    done = here("scripts.plan", "--on=8xH100", "--save=1", code=2)
    assert done.stderr == "error: --on is for a plan of other hardware: add --dry-run\n"
    for script in ("scripts.plan", "scripts.base_train"):
        done = here(script, "--on=8xH100@cheap", *(["--dry-run"] if "base" in script else []), code=2)
        assert done.stderr.startswith("error: --on=8xH100@cheap has no price: give the dollars")
        assert done.stderr.count("\n") == 1


def test_the_gain_by_fp8_is_that_of_base_training_alone(base, monkeypatch) -> None:
    monkeypatch.setattr("nanochat.data.hub.is_here", lambda files: True)
    setting = choose_setting(Config(on="8xH100"))
    flags = stage_flags(setting)["base_train"]
    fast = base_run(flags, setting)
    plain = base_run({name: value for name, value in flags.items() if name != "--fp8"}, setting)
    assert fast.rate == pytest.approx(1.12 * plain.rate)
    assert fast.seconds < plain.seconds
    assert fast.rate_after == pytest.approx(plain.rate_after)


def test_reinforcement_learning_is_estimated_with_the_flags_of_its_stage(estimator) -> None:
    _, job, _ = estimator(on="8xH100")
    config = parse(chat_rl.Config, job.step("chat_rl").command[1:])
    rollouts = WORK["gpu"]["chat_rl"].rollouts
    assert rollouts.answers == config.examples_per_step * config.num_samples
    assert (rollouts.longest, rollouts.tests) == (config.max_new_tokens, config.eval_examples * config.eval_samples)
    assert rollouts.every == config.eval_every == config.save_every


@pytest.mark.parametrize("on", ["8xH100", "1xH100"])  # with the scales 8xh100 and 1gpu
def test_the_plan_is_the_same_where_a_demo_has_left_its_tokenizer(on, here, base) -> None:
    def plan() -> str:
        printed = here("scripts.plan", f"--on={on}").stdout
        assert "GB of disk" in printed
        return re.sub(r"[\d.]+ are free", "", printed)

    fresh = plan()
    Tokenizer.train(["some text"], 300).save(base / "tok_train/default/tokenizer.json")
    assert plan() == fresh


@pytest.mark.parametrize("scale", ["1gpu", "8xh100"])
def test_no_stage_of_a_gpu_scale_has_few_steps(scale, estimator) -> None:
    found, job, _ = estimator(scale=scale, on="8xH100")
    for name in ("mid_train", "chat_sft"):
        flags = dict(word.partition("=")[::2] for word in job.step(name).command)
        assert found[name].tokens / int(flags.get("--total-batch-size", 2**20)) >= 100
