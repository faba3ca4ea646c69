"""A golf entry is trained: late fake quantization, through stops and resumes, and into the artifact."""

import signal
from functools import partial

import pytest
import torch
from base_runs import STEPS, Base, SignalAfter, files_of
from contain import NEEDS_SANDBOX

from nanochat import train
from nanochat.checkpoint import load
from nanochat.paths import saved_steps
from tracks.golf import eval as golf_eval
from tracks.golf import pack as golf_pack

GOLF = ("--model=golf", "--qat=embed=int8-row,blocks=int5-row+clip-1", "--qat-share=0.5")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Base:
    base = Base(tmp_path_factory.mktemp("golf"))
    base.run("straight", *GOLF, script="tracks.golf.train")
    return base


@pytest.fixture(autouse=True)
def base_dir(base, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base.folder))


def test_seven_and_six_and_seven_steps_through_the_switch_are_twenty(base) -> None:
    for last in (7, 13):
        base.run("parts", *GOLF, script="tracks.golf.train", before=SignalAfter(last - 1, signal.SIGTERM))
        assert saved_steps(base.of("parts"))[-1] == last
        with pytest.raises(ValueError, match=r"the run parts has not ended: run tracks\.golf\.train again"):
            golf_pack.main(golf_pack.Config(tag="parts", eval_bytes=2000))
    base.run("parts", *GOLF, script="tracks.golf.train")
    assert files_of(base.of("parts")) == files_of(base.of("straight"))
    assert base.metrics("parts") == base.metrics("straight")


def test_the_switch_is_at_its_share_of_the_run(base) -> None:
    base.run("plain", "--model=golf", script="tracks.golf.train")
    soon = [load(base.of(tag), 12).model_tensors() for tag in ("plain", "straight")]
    assert not torch.equal(soon[0]["embed.weight"], soon[1]["embed.weight"])
    halfway, end = ([load(base.of(tag), step).model_tensors() for tag in ("plain", "straight")] for step in (9, STEPS))
    assert all(torch.equal(halfway[0][name], halfway[1][name]) for name in halfway[0])
    # The checkpoint holds the weights before rounding.
    assert end[1]["blocks.0.mlp.up.weight"].unique().numel() > 1000


@NEEDS_SANDBOX
def test_validation_with_fake_quantization_is_that_of_the_artifact(base) -> None:
    plan = GOLF[1].removeprefix("--qat=")
    golf_pack.main(golf_pack.Config(tag="straight", plan=plan, model_bytes=0, eval_bytes=2000))
    golf_eval.main(golf_eval.Config(tag="straight", stride=0))
    validated = [record["val/bpb"] for record in base.metrics("straight") if "val/bpb" in record][-1]
    score = golf_eval.Outcome.load(base.folder / "golf_eval/straight/outcome.json").metrics
    assert score["bpb"]["value"] == pytest.approx(validated, rel=1e-6)  # small tensors are fp16 in the file
    assert abs(score["Quantization gap"]["value"]) > 1e-4  # rounding is seen


def warm_up_with(count: int) -> None:
    """Let the steps before the clock be another number."""
    real = train.warm_up
    train.warm_up = lambda *given: real(*given[:-1], count)


@pytest.mark.slow
def test_compiled_the_warm_up_leaves_no_trace(base) -> None:
    """Both layers of each matrix are compiled before the first step, whatever number of steps that takes."""
    flags = (*GOLF, "--compile", "--dtype=bf16", "--num-iterations=6")
    for count in (1, 3):
        base.start(f"compiled-{count}", *flags, before=partial(warm_up_with, count), script="tracks.golf.train").done(
            200
        )
    assert base.losses("compiled-1") == base.losses("compiled-3")
    assert files_of(base.of("compiled-1"), 6) == files_of(base.of("compiled-3"), 6)


# flag | beginning of the sentence
MISTAKES = """
--qat=int6-row+gptq | --qat=int6-row+gptq: gptq cannot be used in training, leave it out
--fp8 | --fp8 and --qat cannot be combined
--shard-weights | --shard-weights and --qat cannot be combined
--model=golf,sweeps=2 | golf artifacts hold plain models: train without sweeps
--qat=int7-row | the recipe int7-row is not known: write
--qat-share=2 | --qat-share has to be 0 or more and below 1, not 2.0
--tokenizer-tag=nobody | no tokenizer is at
"""


@pytest.mark.parametrize("case", MISTAKES.strip().splitlines())
def test_bad_input_is_refused(base, here, case) -> None:
    flag, sentence = case.split(" | ")
    flags = base.flags("refused", *GOLF[:2], flag)
    refused = here("tracks.golf.train", *flags, code=2, NANOCHAT_BASE_DIR=str(base.folder))
    assert refused.stderr.startswith(f"error: {sentence}")
