"""From flags to a run plan: the reference's figures, and flags that override them."""

import itertools
import re
from dataclasses import replace

import pytest

from nanochat.errors import UserError
from nanochat.gpt import GPT
from nanochat.optim import Optimizer
from nanochat.param_groups import Rates, build_groups, parameter_counts
from nanochat.scaling import plan_run, rate_scale, row_choices, scaled_size
from scripts.base_train import Config

D24 = Config(depth=24, target_param_data_ratio=8.0)


def plan_of(config: Config = D24, vocab_size: int = 32768, **flags):
    return plan_run(replace(config, **flags), vocab_size, 32759)


def test_depth_24_at_ratio_8_is_the_reference_and_sizes_follow_from_depth() -> None:
    plan = plan_of()
    counts = plan.counts
    assert counts["matrices"] == pytest.approx(679.5e6, abs=5e4)
    assert counts["head"] == counts["embed"] == 32768 * 1536
    assert scaled_size(plan.counts) == counts["matrices"] + counts["head"] == pytest.approx(729.8e6, abs=5e4)
    assert counts["total"] == pytest.approx(1.38e9, rel=5e-3)
    assert (plan.total_batch_size, plan.steps, plan.seconds) == (2**20, 5568, None)
    assert plan.tokens == 2**20 * 5568 == pytest.approx(5.84e9, rel=1e-3)
    assert plan.rates["matrices"].lr == pytest.approx(0.0283, abs=5e-5)
    assert plan.rates["matrices"].weight_decay == pytest.approx(0.060, abs=5e-4)
    assert plan.model.bos_id == 32759
    plan = plan_of(depth=12)
    assert (plan.model.width, plan.model.heads, plan.model.kv_heads, plan.total_batch_size) == (768, 6, 6, 2**19)
    assert plan.rates["matrices"] == Rates(0.02, 0.28)  # the reference has those of the flags
    assert (plan_of(depth=1).model.width, plan_of(depth=32).total_batch_size) == (128, 2**21)
    assert [rate_scale(2**power) for power in (11, 15, 17)] == [0.25, 0.25, 0.5]
    small, large = (plan_of(total_batch_size=2**power).rates["matrices"] for power in (13, 15))
    assert small.weight_decay == pytest.approx(large.weight_decay / 2)


def test_every_derived_value_has_a_note_and_a_flag_overrides_it() -> None:
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
        ({"kv_heads": 5}, r"--kv-heads=5 does not divide 12 heads: use one of \[1, 2, 3, 4, 6, 12\]"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            plan_of(**flags)


def test_a_plan_counts_the_real_model() -> None:
    plan = plan_of(depth=2, max_seq_len=256)
    model = GPT(plan.model)
    assert plan.counts == parameter_counts(model)
    assert plan.counts["total"] == sum(parameter.numel() for parameter in model.parameters())
    groups = build_groups(model, plan.rates)
    states = [state for _, saved in Optimizer(groups).state_tensors() for state in saved.values()]
    assert plan.state_bytes == pytest.approx(sum(state.nbytes for state in states), rel=0.01)


def test_horizons() -> None:
    config = replace(D24, depth=8, target_param_data_ratio=-1.0)
    plan = plan_of(config)
    assert plan.steps == 12 * scaled_size(plan.counts) // plan.total_batch_size
    assert plan_of(config, num_iterations=7).steps == 7
    step = plan.flops_per_token * plan.total_batch_size
    assert plan_of(config, target_flops=step * 100.4).steps == 100
    assert plan_of(config, target_flops=step * 1.4).steps == 1
    with pytest.raises(
        UserError, match=r"^--target-flops=\S+ is below a step, which has \S+ FLOPs: use more, or a smaller"
    ):
        plan_of(config, target_flops=step * 0.9)
    assert plan_of(config, target_param_data_ratio=1e-9).steps == 1
    timed = plan_of(config, target_seconds=60.0)
    assert (timed.steps, timed.seconds, timed.tokens) == (None, 60, None)
    assert "Number of training tokens" not in timed.summary


def choices(total: int, length: int, ranks: int, asked: str = "auto"):
    return row_choices(asked, total, length, ranks)


def test_legal_batches_against_a_plain_search() -> None:
    for total, length, ranks in itertools.product(range(1, 50), range(1, 4), range(1, 4)):
        legal = [rows for rows in range(1, 50) if total % (rows * length * ranks) == 0]
        if not legal:
            more = (total // (length * ranks) + 1) * length * ranks
            with pytest.raises(ValueError, match=f"is not a multiple .*: use --total-batch-size={more}$"):
                choices(total, length, ranks)
            continue
        assert choices(total, length, ranks) == legal
        for rows in range(6):
            if rows in legal:
                assert choices(total, length, ranks, str(rows)) == [rows]
            else:
                with pytest.raises(ValueError, match=re.escape(f": use auto or one of {legal}")):
                    choices(total, length, ranks, str(rows))
