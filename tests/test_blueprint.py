"""A run on paper: the reference's figures, what overrides them, what it takes, and the model that is built from it."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nanochat.blueprint import draw, estimate
from nanochat.hardware import Accelerator, find_accelerator, parse_hardware
from nanochat.log import duration
from nanochat.outcome import Outcome
from scripts.base_train import Config, main

TOKENIZER = SimpleNamespace(vocab_size=32768, special_tokens={"<|bos|>": 32759})
D24 = Config(depth=24, target_param_data_ratio=8.0)


def test_depth_24_at_ratio_8_is_the_reference():
    plan = draw(D24, TOKENIZER)
    counts = plan.counts
    assert counts["matrices"] == pytest.approx(679.5e6, abs=5e4)
    assert counts["head"] == counts["embed"] == 32768 * 1536
    assert counts["value_embeds"] == 12 * 32768 * 1536
    assert plan.scaled == counts["matrices"] + counts["head"] == pytest.approx(729.8e6, abs=5e4)
    assert counts["total"] == pytest.approx(1.38e9, rel=5e-3)
    assert (plan.scale.total_batch_size, plan.scale.steps) == (2**20, 5568)
    assert plan.tokens == 2**20 * 5568 == pytest.approx(5.84e9, rel=1e-3)
    assert 0.02 * plan.scale.rates == pytest.approx(0.0283, abs=5e-5)
    assert 0.28 * plan.scale.weight_decay == pytest.approx(0.060, abs=5e-4)
    assert plan.rows == 512
    assert plan.model.bos_id == 32759
    assert list(plan.summary) == [
        *("Number of parameters", *(f"Number of parameters, {kind}" for kind in counts if kind != "total")),
        *("Total batch size", "Number of FLOPs per token", "Calculated number of iterations"),
        *("Number of training tokens", "Tokens : Params ratio"),
    ]
    assert plan.summary["Tokens : Params ratio"]["value"] == pytest.approx(8, rel=1e-4)


def test_every_derived_value_is_told_and_its_flag_overrides_it():
    plan = draw(D24, TOKENIZER)
    told = {note.split()[0]: note for note in plan.notes}
    assert told["width"] == "width 1,536 = depth 24 x aspect_ratio 64, up to a multiple of head_dim 128"
    assert told.keys() == {"width", "heads", "kv_heads", "total_batch_size", "learning", "weight", "num_iterations"}
    other = draw(replace(D24, aspect_ratio=48, kv_heads=3, total_batch_size=2**19, model="october-2025"), TOKENIZER)
    assert (other.model.width, other.model.kv_heads, other.scale.total_batch_size) == (1152, 3, 2**19)
    assert not other.model.smear
    assert other.counts["value_embeds"] == 0
    assert "total_batch_size 524,288 = given" in other.notes
    by_flops = draw(replace(D24, target_param_data_ratio=-1.0, target_flops=1e18), TOKENIZER)
    assert by_flops.scale.steps == pytest.approx(
        1e18 / (by_flops.flops_per_token * by_flops.scale.total_batch_size), abs=1
    )
    by_time = draw(replace(D24, target_param_data_ratio=-1.0, target_seconds=60.0), TOKENIZER)
    assert (by_time.scale.steps, by_time.scale.seconds, by_time.tokens) == (None, 60, None)
    assert "Number of training tokens" not in by_time.summary
    assert draw(replace(D24, window_pattern="L"), TOKENIZER).flops_per_token > plan.flops_per_token
    with pytest.raises(ValueError, match=r"--model=gpt is not known, take one of reference, .*induction, portable"):
        draw(replace(D24, model="gpt"), TOKENIZER)
    with pytest.raises(ValueError, match=r"are 2 horizons: keep one of them"):
        draw(replace(D24, num_iterations=5), TOKENIZER)


def test_without_a_tokenizer_its_size_is_assumed_and_that_is_told():
    plan = draw(D24, None)
    assert plan.notes[0] == "vocabulary 65,536 = assumed, no tokenizer is trained yet"
    assert plan.counts["head"] == 65536 * 1536


# ---- what it takes ----


def test_what_a_run_takes(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    plan = draw(D24, TOKENIZER)
    ranks, h100 = parse_hardware("8xH100")
    needs, time = estimate(plan, D24, ranks, h100)
    total, rows = re.match(r"memory of a rank, GB: ([\d.]+) with (\d+) rows at once \(weights", needs).groups()
    assert float(total) < 0.9 * h100.memory
    seconds = plan.flops_per_token * plan.tokens / (8 * 989.4e12 * 0.4)
    assert time.startswith(f"time {duration(seconds)} on 8xH100, 40% MFU (assumed) of 989 TFLOP/s each;")
    assert time.endswith(f"dollars {8 * 3 * seconds / 3600:.2f} at 3.00 an hour each")
    more = estimate(plan, replace(D24, checkpointing=True), ranks, h100)[0]
    assert int(re.search(r"with (\d+) rows", more)[1]) > int(rows)
    assert "with 2 rows at once" in estimate(plan, replace(D24, device_batch_size="2"), ranks, h100)[0]


def test_what_is_not_known_of_hardware_is_not_available(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    plan = draw(D24, TOKENIZER)
    lines = estimate(plan, D24, *parse_hardware("8xQ9000"))
    assert lines[-1] == "time n/a, dollars n/a: no bf16 peak rate is known of 8xQ9000"
    assert "dollars n/a" in estimate(plan, D24, 1, find_accelerator("L40S"))[-1]
    small = estimate(plan, D24, 1, Accelerator("small", memory=4))
    assert small[1] == "that is more than 4 GB: take --checkpointing, or more ranks"


def test_what_a_clock_ends_has_a_price():
    timed = replace(D24, target_param_data_ratio=-1.0, target_seconds=90.0)
    plan, h100 = draw(timed, TOKENIZER), find_accelerator("H100")
    told = f"time 90 s on 8xH100, as asked; dollars {8 * 3 * 90 / 3600:.2f} at 3.00 an hour each"
    assert estimate(plan, timed, 8, h100)[-1] == told
    assert estimate(plan, timed, 1, find_accelerator("T4"))[-1] == "time 90 s on 1xT4, as asked; dollars n/a"


def test_the_precision_of_a_plan_is_that_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    monkeypatch.delenv("NANOCHAT_DTYPE", raising=False)
    plan = draw(D24, TOKENIZER)

    def of(accelerator: str, dtype: str = "auto") -> str:
        return estimate(plan, replace(D24, dtype=dtype), 8, find_accelerator(accelerator))[-1]

    assert "(assumed) of 989 TFLOP/s each" in of("H100")
    assert of("H100", "bfloat16") == of("H100", "bf16") == of("H100")
    assert "(assumed) of 495 TFLOP/s each" in of("H100", "float32")
    assert "(assumed) of 8 TFLOP/s each" in of("T4")  # without bf16 it trains in fp32
    assert "(assumed) of 65 TFLOP/s each" in of("T4", "fp16")
    assert "no bf16 peak rate is known of 8xT4" in of("T4", "bf16")
    for wrong in ("fp12", "memory", "dollars"):
        with pytest.raises(ValueError, match=rf"^precision {wrong} is not known, take one of auto, bf16, fp16, fp32$"):
            of("H100", wrong)
    monkeypatch.setenv("NANOCHAT_DTYPE", "float16")
    assert of("T4") == of("T4", "fp16")
    assert of("T4", "fp32") != of("T4")


def left_by_a_run(tag: str, depth: int, gpus: str, speed: float | str, **config) -> None:
    """The record of a finished run: a token costs 1e9 FLOPs, the ranks are 8."""
    run = Outcome.begin("base_train", tag, replace(Config(), depth=depth, **config))
    run.environment["Hardware"] |= {"GPUs": gpus} if gpus else {}
    run.metrics = {"Number of FLOPs per token": {"value": 1e9, "format": ".4e"}, "DDP world size": 8}
    run.metrics["Tokens per second"] = speed if isinstance(speed, str) else {"value": speed, "format": ",.0f"}
    run.write()


def test_the_rate_is_that_of_the_run_nearest_in_depth_on_such_hardware(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    plan, h100 = draw(D24, TOKENIZER), find_accelerator("H100")
    left_by_a_run("d8", 8, "8x NVIDIA H100 80GB HBM3", 3e6)  # 3e6 x 1e9 / 8 = 375 TFLOP/s of a rank
    left_by_a_run("d26", 26, "8x NVIDIA H200", 4e6)
    left_by_a_run("d25", 25, "8x NVIDIA H100 80GB HBM3", "n/a")
    left_by_a_run("d24", 24, "8x NVIDIA H100 80GB HBM3", 5e6, fp8=True)
    left_by_a_run("d4", 4, "1x NVIDIA H100 80GB HBM3", 9e6)
    time = estimate(plan, D24, 8, h100)[-1]
    seconds = plan.flops_per_token * plan.tokens / (8 * 375e12)
    assert time.startswith(f"time {duration(seconds)} on 8xH100, 37.9% MFU (measured: run d8) of 989 TFLOP/s each;")
    assert "(measured: run d24)" in estimate(plan, replace(D24, fp8=True), 8, h100)[-1]
    assert "(assumed)" in estimate(plan, D24, 8, find_accelerator("A100"))[-1]


def test_unknown_hardware_has_a_time_if_it_is_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    plan, unknown = draw(D24, TOKENIZER), Accelerator("CPU")
    left_by_a_run("d2", 2, "", 8.0)
    assert "1 GFLOP/s each (measured: run d2), MFU n/a; dollars n/a" in estimate(plan, D24, 1, unknown)[-1]
    assert estimate(plan, replace(D24, on="CPU"), 1, unknown)[-1].startswith("time n/a")
    left_by_a_run("d2", 2, "1x Q9000", 8.0)
    assert estimate(plan, D24, 1, unknown)[-1].startswith("time n/a")


def test_impossible_batches_are_refused_on_paper_too():
    plan = draw(D24, TOKENIZER)
    with pytest.raises(ValueError, match=r"--device-batch-size=3 .* take --device-batch-size=1, 2 or 4, or --total"):
        estimate(plan, replace(D24, device_batch_size="3"), 8, find_accelerator("H100"))
    with pytest.raises(ValueError, match=r"--device-batch-size=some is no number of rows, take auto or a whole number"):
        estimate(plan, replace(D24, device_batch_size="some"), 8, find_accelerator("H100"))
    with pytest.raises(ValueError, match=r"--total-batch-size=1048576 is no multiple of a row on every rank"):
        estimate(plan, D24, 7, find_accelerator("H100"))


@pytest.mark.parametrize("has_tokenizer", [False, True])
def test_a_dry_run(has_tokenizer, tmp_path, monkeypatch, capsys):
    from nanochat.tokenizer import Tokenizer

    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    if has_tokenizer:
        (tmp_path / "tok_train/default").mkdir(parents=True)
        Tokenizer.train(["some text"], 300).save(tmp_path / "tok_train/default/tokenizer.json")
    main(replace(D24, dry_run=True, on="8xH100"))
    said = capsys.readouterr().out
    assert ("vocabulary 65,536 = assumed" in said) is not has_tokenizer
    for part in (
        "width 1,536 = depth 24",
        "Number of parameters: ",
        "Number of FLOPs per token: ",
        "memory of a rank, GB",
    ):
        assert part in said
    assert re.search(r"^time \d+h\d\dm on 8xH100, .*; dollars [\d.]+ at 3\.00 an hour each$", said, re.M)
    assert not (tmp_path / "base_train").exists()
    main(replace(D24, depth=4, dry_run=True))  # for this machine
    if not torch.cuda.is_available():
        assert "time n/a, dollars n/a: no bf16 peak rate is known of 1xCPU" in capsys.readouterr().out
