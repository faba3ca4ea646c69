"""From flags to a run plan: the reference's figures, flags that override them, and the cost on paper."""

import itertools
import json
import re
from dataclasses import replace

import pytest

from nanochat.gpt import GPT
from nanochat.hardware import Accelerator, find_accelerator, parse_hardware
from nanochat.log import duration
from nanochat.optim import Optimizer
from nanochat.outcome import Outcome
from nanochat.param_groups import build_groups, parameter_counts
from nanochat.scaling import estimate, memory, plan_run, rate_scale, row_choices, scaled_size
from nanochat.settings import OptimizerSettings
from scripts.base_train import Config, main

D24 = Config(depth=24, target_param_data_ratio=8.0)
H100 = find_accelerator("H100")


def plan_of(config: Config = D24, vocab_size: int = 32768, **flags):
    return plan_run(replace(config, **flags), vocab_size, 32759)


def test_depth_24_at_ratio_8_is_the_reference_and_sizes_follow_from_depth():
    plan = plan_of()
    counts = plan.counts
    assert counts["matrices"] == pytest.approx(679.5e6, abs=5e4)
    assert counts["head"] == counts["embed"] == 32768 * 1536
    assert scaled_size(plan.counts) == counts["matrices"] + counts["head"] == pytest.approx(729.8e6, abs=5e4)
    assert counts["total"] == pytest.approx(1.38e9, rel=5e-3)
    assert (plan.total_batch_size, plan.steps, plan.seconds) == (2**20, 5568, None)
    assert plan.tokens == 2**20 * 5568 == pytest.approx(5.84e9, rel=1e-3)
    assert 0.02 * rate_scale(plan.total_batch_size) == pytest.approx(0.0283, abs=5e-5)
    assert 0.28 * plan.decay_scale == pytest.approx(0.060, abs=5e-4)
    assert plan.model.bos_id == 32759
    plan = plan_of(depth=12)
    assert (plan.model.width, plan.model.heads, plan.model.kv_heads, plan.total_batch_size) == (768, 6, 6, 2**19)
    assert (rate_scale(plan.total_batch_size), plan.decay_scale) == (1, 1)  # the reference
    assert (plan_of(depth=1).model.width, plan_of(depth=32).total_batch_size) == (128, 2**21)
    assert [rate_scale(2**power) for power in (11, 15, 17)] == [0.25, 0.25, 0.5]
    assert plan_of(total_batch_size=2**13).decay_scale == plan_of(total_batch_size=2**15).decay_scale / 2


def test_every_derived_value_has_a_note_and_a_flag_overrides_it():
    notes = {note.split()[0]: note for note in plan_of().notes}
    assert notes["width"] == "width 1,536 = depth 24 x aspect_ratio 64, up to a multiple of head_dim 128"
    assert notes["num_iterations"] == "num_iterations 5,568 = 8 x N / total_batch_size"
    assert notes.keys() == {"width", "heads", "total_batch_size", "learning", "weight", "num_iterations"}
    other = plan_of(aspect_ratio=48, kv_heads=3, total_batch_size=2**19, model="october-2025")
    assert (other.model.width, other.model.kv_heads, other.total_batch_size) == (1152, 3, 2**19)
    assert not other.model.smear
    assert other.counts["value_embeds"] == 0
    assert "total_batch_size 524,288 = given" in other.notes
    assert plan_of(depth=4, head_dim=64, width=320).model.heads == 5
    assert plan_of(window_pattern="L").flops_per_token > plan_of().flops_per_token
    for flags, sentence in [
        ({"depth": 4, "head_dim": 64, "width": 300}, r"--width=300 is not a multiple of --head-dim=64"),
        ({"kv_heads": 5}, r"--kv-heads=5 does not divide 12 heads: take one of \[1, 2, 3, 4, 6, 12\]"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            plan_of(**flags)


def test_a_plan_counts_the_real_model():
    plan = plan_of(depth=2, max_seq_len=256)
    model = GPT(plan.model)
    assert plan.counts == parameter_counts(model)
    assert plan.counts["total"] == sum(parameter.numel() for parameter in model.parameters())
    groups = build_groups(model, OptimizerSettings(), 1.0, 0.0)
    states = [state for _, saved in Optimizer(groups).state_tensors() for state in saved.values()]
    assert plan.state_bytes == pytest.approx(sum(state.nbytes for state in states), rel=0.01)


def test_horizons():
    config = replace(D24, depth=8, target_param_data_ratio=-1.0)
    plan = plan_of(config)
    assert plan.steps == 12 * scaled_size(plan.counts) // plan.total_batch_size
    assert plan_of(config, num_iterations=7).steps == 7
    step = plan.flops_per_token * plan.total_batch_size
    assert plan_of(config, target_flops=step * 100.4).steps == 100
    assert plan_of(config, target_param_data_ratio=1e-9).steps == 1
    timed = plan_of(config, target_seconds=60.0)
    assert (timed.steps, timed.seconds, timed.tokens) == (None, 60, None)
    assert "Number of training tokens" not in timed.summary


def choices(total: int, length: int, ranks: int, asked: str = "auto"):
    return row_choices(replace(D24, max_seq_len=length, device_batch_size=asked), total, ranks)


def test_legal_batches_against_a_plain_search():
    for total, length, ranks in itertools.product(range(1, 50), range(1, 4), range(1, 4)):
        legal = [rows for rows in range(1, 50) if total % (rows * length * ranks) == 0]
        if not legal:
            more = (total // (length * ranks) + 1) * length * ranks
            with pytest.raises(ValueError, match=f"is no multiple .*: take --total-batch-size={more}$"):
                choices(total, length, ranks)
            continue
        assert choices(total, length, ranks) == legal
        for rows in range(6):
            if rows in legal:
                assert choices(total, length, ranks, str(rows)) == [rows]
            else:
                with pytest.raises(ValueError, match=re.escape(f": take auto or one of {legal}")):
                    choices(total, length, ranks, str(rows))


@pytest.fixture(autouse=True)
def no_runs(base, monkeypatch):
    monkeypatch.delenv("NANOCHAT_DTYPE", raising=False)


def last_line(accelerator: Accelerator, ranks: int = 8, config: Config = D24, **flags):
    config = replace(config, **flags)
    return estimate(plan_of(config), config, ranks, accelerator)[1][-1]


def test_memory():
    """tests/test_bench.py compares the sum with a step's, also of fp8 and with checkpointing."""
    plain, single = memory(plan_of(), 16, 8), memory(plan_of(), 16, 8, itemsize=4)
    assert single["activations"] == 2 * plain["activations"]
    assert single["weights in the compute dtype"] == 0


def test_an_estimate_for_people_and_for_programs():
    plan, (ranks, h100) = plan_of(), parse_hardware("8xH100")
    found, (needs, time) = estimate(plan, D24, ranks, h100)
    seconds = plan.flops_per_token * plan.tokens / (8 * 989.4e12 * 0.5)
    assert found["seconds"] == pytest.approx(seconds)
    price = f"dollars {24 * seconds / 3600:.2f}"
    assert (
        time == f"time {duration(seconds)} on 8xH100, bf16, 495 TFLOP/s each (assumed: 50% of the bf16 peak); {price}"
    )
    assert needs.startswith(f"memory of a rank, GB: {sum(found['memory'].values()) / 1e9:.2f} with ")
    assert sum(found["memory"].values()) < 0.9e9 * h100.memory
    saving, _ = estimate(plan, replace(D24, checkpointing=True), ranks, h100)
    assert saving["device_batch_size"] > found["device_batch_size"]
    assert estimate(plan, replace(D24, device_batch_size="2"), ranks, h100)[0]["device_batch_size"] == 2


def test_unknown_figures_are_not_available_unless_it_is_this_machine():
    assert last_line(Accelerator("Q9000")) == "time n/a on 8xQ9000, bf16, n/a; dollars n/a"
    assert last_line(find_accelerator("L40S")).endswith("; dollars n/a")
    _, lines = estimate(plan_of(), D24, 1, Accelerator("small", memory=4))
    assert lines[1] == "that is more than 90% of 4 GB: take --checkpointing, or more ranks"
    timed = replace(D24, target_param_data_ratio=-1.0, target_seconds=90.0)
    assert last_line(H100, 8, timed).startswith("time 1m30s on 8xH100, ")
    assert last_line(H100, 8, timed).endswith(f"; dollars {8 * 3 * 90 / 3600:.2f}")
    unknown = Accelerator("MPS")
    leave_a_run("d2", 2, "", 8.0)
    assert "0.001 TFLOP/s each (measured: run d2); dollars n/a" in last_line(unknown, 1)
    assert last_line(unknown, 1, on="MPS", dry_run=True).startswith("time n/a")
    assert "(assumed: 25 GFLOP/s a core)" in last_line(Accelerator("CPU"), 1, on="CPU", dry_run=True)


@pytest.mark.parametrize(("hours", "dollars"), [(0.5, 49), (1, 98), (2, 196), (4, 392)])
def test_the_given_price_of_a_machine(hours, dollars):
    """As a public guide counts them for eight H100s at 98 dollars an hour."""
    timed = replace(D24, target_param_data_ratio=-1.0, target_seconds=3600.0 * hours)
    record, lines = estimate(plan_of(timed), timed, *parse_hardware("8xH100@98"))
    assert (record["dollars"], lines[-1].rpartition("; ")[2]) == (dollars, f"dollars {dollars}.00")
    assert estimate(plan_of(timed), timed, *parse_hardware("16xH100@0"))[0]["dollars"] == 0


def test_the_precision_of_a_plan_is_that_of_the_run(monkeypatch):
    t4 = find_accelerator("T4")
    # A T4 has no bf16.
    for case in """H100 auto bf16, 495 TFLOP/s | H100 bf16 bf16, 495 TFLOP/s | H100 fp32 fp32, 247 TFLOP/s
        | T4 auto fp32, 3.24 TFLOP/s | T4 fp16 fp16, 26 TFLOP/s | T4 bf16 bf16, n/a""".split("|"):
        name, dtype, words = case.strip().split(" ", 2)
        assert words in last_line(find_accelerator(name), dtype=dtype)
    with pytest.raises(ValueError, match=r"^precision fp12 is not known, take one of auto, bf16, fp16, fp32$"):
        last_line(H100, dtype="fp12")
    monkeypatch.setenv("NANOCHAT_DTYPE", "fp16")
    assert last_line(t4) == last_line(t4, dtype="fp16") != last_line(t4, dtype="fp32")


def leave_a_run(tag: str, depth: int, gpus: str, speed: float | str, **config):
    """Write the outcome of a run on 8 ranks, whose tokens cost 1e9 FLOPs each."""
    run = Outcome.begin("base_train", tag, replace(Config(), depth=depth, **config))
    if gpus:
        run.environment["Hardware"]["GPUs"] = gpus
    run.metrics = {"Number of FLOPs per token": {"value": 1e9, "format": ".4e"}, "DDP world size": 8}
    run.metrics["Tokens per second"] = speed if isinstance(speed, str) else {"value": speed, "format": ",.0f"}
    run.write()


def test_the_speed_is_that_of_the_run_nearest_in_depth_on_such_hardware():
    leave_a_run("d8", 8, "8x NVIDIA H100 80GB HBM3", 3e6)  # 3e6 x 1e9 / 8 = 375 TFLOP/s of a rank
    leave_a_run("d26", 26, "8x NVIDIA H200", 4e6)
    leave_a_run("d25", 25, "8x NVIDIA H100 80GB HBM3", "n/a")
    leave_a_run("d24", 24, "8x NVIDIA H100 80GB HBM3", 5e6, fp8=True)
    leave_a_run("d4", 4, "1x NVIDIA H100 80GB HBM3", 9e6)
    found, _ = estimate(plan_of(), D24, 8, H100)
    assert (found["source"], found["rate"]) == ("measured: run d8", 375e12)
    assert "(measured: run d24)" in last_line(H100, fp8=True)
    assert "(assumed" in last_line(find_accelerator("A100"))


@pytest.mark.parametrize("has_tokenizer", [False, True])
def test_a_dry_run(has_tokenizer, base, capsys):
    from nanochat.tokenizer import Tokenizer

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
