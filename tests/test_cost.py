"""The cost of a plan on paper: memory, speed, time and price, and the dry run that prints them."""

import json
import re
from dataclasses import replace

import pytest
import torch

from nanochat import runtime
from nanochat.cores import usable_cores
from nanochat.cost import Cost, Work, estimate, memory
from nanochat.hardware import Accelerator, find_accelerator, parse_hardware
from nanochat.log import duration
from nanochat.outcome import Outcome
from nanochat.paths import base_dir, write_json
from nanochat.scaling import RunPlan, plan_run
from nanochat.timing import Part, core_pause, text_pause
from nanochat.tokenizer import Tokenizer
from scripts.base_train import Config, main

D24 = Config(depth=24, target_param_data_ratio=8.0)
H100 = find_accelerator("H100")


def plan_of(config: Config = D24) -> RunPlan:
    return plan_run(config, 32768, 32759)


@pytest.fixture(autouse=True)
def no_runs(base, monkeypatch) -> None:
    monkeypatch.delenv("NANOCHAT_DTYPE", raising=False)


def last_line(accelerator: Accelerator, ranks: int = 8, config: Config = D24, **flags):
    config = replace(config, **flags)
    return estimate(plan_of(config), config, ranks, accelerator)[1][-1]


def test_memory() -> None:
    """tests/test_bench.py compares the sum with a step's, also of fp8 and with checkpointing."""
    plain, single = memory(plan_of(), 16, 8), memory(plan_of(), 16, 8, itemsize=4)
    assert single["activations"] == 2 * plain["activations"]
    assert single["weights in the compute dtype"] == 0


def test_an_estimate_for_people_and_for_programs() -> None:
    plan, (ranks, h100) = plan_of(), parse_hardware("8xH100")
    found, (needs, spent, time) = estimate(plan, D24, ranks, h100)
    seconds = plan.flops_per_token * plan.tokens / (8 * 989.4e12 * 0.5)
    assert found.parts[0] == Part("training", pytest.approx(seconds))
    assert found.seconds == sum(part.seconds for part in found.parts)
    assert spent == f"of the time: {', '.join(map(str, found.parts))}"
    price = f"dollars {24 * found.seconds / 3600:.2f}"
    whole = duration(found.seconds)
    assert time == f"time {whole} on 8xH100, bf16, 495 TFLOP/s each (assumed: 50% of the bf16 peak); {price}"
    assert needs.startswith(f"memory of a rank, GB: {sum(found.memory.values()) / 1e9:.2f} with ")
    assert sum(found.memory.values()) < 0.9e9 * h100.memory
    saving, _ = estimate(plan, replace(D24, checkpointing=True), ranks, h100)
    assert saving.device_batch_size > found.device_batch_size
    assert estimate(plan, replace(D24, device_batch_size="2"), ranks, h100)[0].device_batch_size == 2


def test_unknown_figures_are_not_available_unless_it_is_this_machine() -> None:
    assert last_line(Accelerator("Q9000")) == "time n/a on 8xQ9000, bf16, n/a; dollars n/a"
    assert last_line(find_accelerator("L40S")).endswith("; dollars n/a")
    _, lines = estimate(plan_of(), D24, 1, Accelerator("small", memory=4))
    assert lines[1] == "that is more than 90% of 4 GB: use --checkpointing, or more ranks"
    timed = replace(D24, target_param_data_ratio=-1.0, target_seconds=90.0)
    cost, lines = estimate(plan_of(timed), timed, 8, H100)
    assert "training 1m30s, " in lines[-2]
    assert cost.dollars == pytest.approx(8 * 3 * cost.seconds / 3600)
    # Without a speed, the clock alone is known.
    assert last_line(Accelerator("Q9000"), 8, timed).startswith("time 1m30s on 8xQ9000, ")
    unknown = Accelerator("MPS")
    leave_a_run("d2", 2, "", 8.0)
    assert "0.001 TFLOP/s each (measured: run d2); dollars n/a" in last_line(unknown, 1)
    assert last_line(unknown, 1, on="MPS", dry_run=True).startswith("time n/a")
    there = last_line(Accelerator("CPU"), 1, on="CPU", dry_run=True)
    assert "on 1xCPU, bf16, " in there
    assert "(assumed: 100 GFLOP/s a core)" in there


def test_a_plan_for_this_cpu_has_the_precision_that_it_computes_in(monkeypatch, tmp_path) -> None:
    flags = tmp_path / "cpuinfo"
    monkeypatch.setattr(runtime, "CPU_INFO", flags)
    monkeypatch.setattr(runtime, "_device", lambda asked: torch.device("cpu"))
    monkeypatch.setattr(runtime.rustbpe, "amx_is_broken", lambda: False)
    flags.write_text("vendor_id : GenuineIntel\nflags : avx2 avx512_bf16\n")
    cores = usable_cores()
    assert f"on 1xCPU, fp32, {50 * cores / 1000:.3g} TFLOP/s each (assumed: 50 GFLOP/s a core)" in last_line(
        Accelerator("CPU"), 1
    )
    assert "on 1xCPU, bf16, " in last_line(Accelerator("CPU"), 1, dtype="bf16")
    flags.write_text("vendor_id : GenuineIntel\nflags : avx2 avx512_bf16 amx_bf16\n")
    assert f"on 1xCPU, bf16, {100 * cores / 1000:.3g} TFLOP/s each (assumed: 100 GFLOP/s a core)" in last_line(
        Accelerator("CPU"), 1
    )


@pytest.mark.parametrize(("hours", "dollars"), [(0.5, 49), (1, 98), (2, 196), (4, 392)])
def test_the_given_price_of_a_machine(hours, dollars) -> None:
    """As a public guide counts them for eight H100s at 98 dollars an hour."""
    timed = replace(D24, target_param_data_ratio=-1.0, target_seconds=3600.0 * hours)
    cost, _ = estimate(plan_of(timed), timed, *parse_hardware("8xH100@98"))
    beside = sum(part.seconds for part in cost.parts[1:])  # not on the clock
    assert cost.dollars == pytest.approx(dollars + 98 * beside / 3600)
    assert estimate(plan_of(timed), timed, *parse_hardware("16xH100@0"))[0].dollars == 0


def test_the_precision_of_a_plan_is_that_of_the_run(monkeypatch) -> None:
    t4 = find_accelerator("T4")
    # A T4 has no bf16.
    for case in """H100 auto bf16, 495 TFLOP/s | H100 bf16 bf16, 495 TFLOP/s | H100 fp32 fp32, 247 TFLOP/s
        | T4 auto fp32, 3.24 TFLOP/s | T4 fp16 fp16, 26 TFLOP/s | T4 bf16 bf16, n/a""".split("|"):
        name, dtype, words = case.strip().split(" ", 2)
        assert words in last_line(find_accelerator(name), dtype=dtype)
    with pytest.raises(ValueError, match=r"^precision fp12 is not known, use one of auto, bf16, fp16, fp32$"):
        last_line(H100, dtype="fp12")
    monkeypatch.setenv("NANOCHAT_DTYPE", "fp16")
    assert last_line(t4) == last_line(t4, dtype="fp16") != last_line(t4, dtype="fp32")


def leave_a_run(tag: str, depth: int, gpus: str, speed: float | str, **config) -> None:
    """Write the outcome of a run on 8 ranks, whose tokens cost 1e9 FLOPs each."""
    run = Outcome.begin("base_train", tag, replace(Config(), depth=depth, **config))
    if gpus:
        run.environment["Hardware"]["GPUs"] = gpus
    run.metrics = {"Number of FLOPs per token": {"value": 1e9, "format": ".4e"}, "DDP world size": 8}
    run.metrics["Tokens per second"] = speed if isinstance(speed, str) else {"value": speed, "format": ",.0f"}
    run.write()


def test_the_speed_is_that_of_the_run_nearest_in_depth_on_such_hardware() -> None:
    leave_a_run("d8", 8, "8x NVIDIA H100 80GB HBM3", 3e6)  # 3e6 x 1e9 / 8 = 375 TFLOP/s of a rank
    leave_a_run("d26", 26, "8x NVIDIA H200", 4e6)
    leave_a_run("d25", 25, "8x NVIDIA H100 80GB HBM3", "n/a")
    leave_a_run("d24", 24, "8x NVIDIA H100 80GB HBM3", 5e6, fp8=True)
    leave_a_run("d4", 4, "1x NVIDIA H100 80GB HBM3", 9e6)
    for stage in ("base_train", "chat_sft"):  # records of other versions
        write_json(base_dir() / stage / "old/outcome.json", {"version": 99})
    found, _ = estimate(plan_of(), D24, 8, H100)
    assert (found.source, found.rate) == ("measured: run d8", 375e12)
    assert "(measured: run d24)" in last_line(H100, fp8=True)
    assert "(assumed" in last_line(find_accelerator("A100"))


def test_the_assumed_speed_in_fp8_is_the_one_measured_near_this_depth() -> None:
    assert "554 TFLOP/s each (assumed: 56% of the bf16 peak, as the public nanochat's pull request 830" in last_line(
        H100, depth=20, fp8=True
    )
    assert "(assumed: 59% of the bf16 peak, as the public nanochat, 99.0 min)" in last_line(H100, depth=28, fp8=True)
    # On other hardware: the smaller gain. In small models, or without fp8: none.
    assert "(assumed: 54% of the bf16 peak, fp8 gains 12%, as on H100: " in last_line(
        find_accelerator("H200"), fp8=True
    )
    assert "(assumed: 50% of the bf16 peak, no gain by fp8 is known at depth 12)" in last_line(H100, depth=12, fp8=True)
    assert "(assumed: 40% of the bf16 peak, it has no fp8)" in last_line(find_accelerator("A100"), fp8=True)


@pytest.mark.parametrize("depth", [18, 22, 24, 32])
@pytest.mark.parametrize("on", ["H100", "H200", "RTX-4090"])
def test_fp8_changes_time_and_price(depth, on) -> None:
    config = replace(D24, depth=depth)
    accelerator = replace(find_accelerator(on), dollars=2.0)
    plain, faster = (estimate(plan_of(config), replace(config, fp8=fp8), 8, accelerator)[0] for fp8 in (False, True))
    assert 1.1 < plain.parts[0].seconds / faster.parts[0].seconds < 1.2
    assert faster.seconds < plain.seconds
    assert faster.dollars < plain.dollars


def part(cost: Cost, name: str) -> Part:
    return next(one for one in cost.parts if one.name == name)


def test_what_a_run_does_beside_its_steps_is_in_the_estimate() -> None:
    short = Config(depth=8, num_iterations=1000, eval_every=250, save_every=400)
    core = core_pause(500, 500)
    cost, lines = estimate(plan_of(short), short, 8, H100, Work([text_pause(250, 20_000_000), core]))
    assert [(one.name, one.times) for one in cost.parts] == [
        ("training", 1),
        ("start", 1),
        ("compiling", 1),
        ("validation", 5),  # 0, 250, 500, 750, 1000
        ("CORE estimate", 2),
        ("saves", 3),
        ("last checkpoint on disk", 1),
    ]
    assert "validation " in lines[-2]
    # As measured: 40 s for the first step at depth 12, 63 s at depth 20; a search and validation compile more.
    given = replace(short, device_batch_size="16", eval_every=-1)
    for depth, seconds in ((12, 40), (20, 63)):
        config = replace(given, depth=depth, total_batch_size=2**19)
        assert part(estimate(plan_of(config), config, 8, H100)[0], "compiling").seconds == pytest.approx(seconds, abs=1)
    plain = replace(given, compile=False)
    assert "compiling" not in [one.name for one in estimate(plan_of(plain), plain, 8, H100)[0].parts]
    # A short run on a CPU is not compiled.
    tiny = Config(depth=1, max_seq_len=64, total_batch_size=512, num_iterations=4)
    assert "compiling" not in [one.name for one in estimate(plan_of(tiny), tiny, 1, Accelerator("CPU"))[0].parts]


@pytest.mark.parametrize("has_tokenizer", [False, True])
def test_a_dry_run(has_tokenizer, base, capsys) -> None:
    if has_tokenizer:
        Tokenizer.train(["some text"], 300).save(base / "tok_train/default/tokenizer.json")
    main(replace(D24, dry_run=True, on="8xH100"))
    text = capsys.readouterr().out
    assert ("vocabulary 49,152 = assumed" in text) is not has_tokenizer
    assert re.search(r"^time \d+h\d\dm on 8xH100, .*; dollars [\d.]+$", text, re.M)
    main(replace(D24, dry_run=True, on="8xH100", json=True))
    record = json.loads(capsys.readouterr().out)
    assert record["plan"]["tokens"] == record["plan"]["steps"] * record["plan"]["total_batch_size"]
    assert record["estimate"]["source"].startswith("assumed")
    main(replace(D24, dry_run=True, on="8xH100@0"))
    assert capsys.readouterr().out.endswith("; dollars 0.00\n")
    assert not (base / "base_train").exists()
