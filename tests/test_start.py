"""The start of a run: what is decided before the model is built."""

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
import torch
from loop_parts import ALONE
from starts import TINY, start_of
from tune_runs import Stages

from nanochat import runtime
from nanochat.checkpoint import Checkpoint
from nanochat.config import parse
from nanochat.models import weights_hash
from nanochat.param_groups import Rates
from nanochat.start import Parent, inherit, resume, start_from_parent
from scripts.chat_sft import Config as SFT


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    return Stages(tmp_path_factory.mktemp("stages"))


# ---- the start ----

HORIZONS = [
    # flags | FLOPs that pay for a compiler | does it pay?
    ({"num_iterations": 4}, 1e12, False),
    ({"num_iterations": 4}, 0.0, True),
    ({"target_seconds": runtime.COMPILING_SECONDS}, 0.0, False),
    ({"target_seconds": runtime.COMPILING_SECONDS + 1}, 1e12, True),
]


@pytest.mark.parametrize(("horizon", "flops", "pays"), HORIZONS)
def test_a_run_is_compiled_where_that_pays(horizon, flops, pays, base, monkeypatch) -> None:
    monkeypatch.setattr(runtime, "COMPILING_PAYS", flops)
    config = replace(TINY, **{"num_iterations": -1, "compile": True} | horizon)
    assert start_of(config).compiled is pays
    assert not start_of(replace(config, compile=False)).compiled


def test_the_start_of_a_new_model_is_complete_and_final(base) -> None:
    start = start_of(TINY)
    assert (start.batch, start.rows, start.steps, start.seconds) == (256, 8, 4, None)
    assert (start.weights, start.dtype, start.resumed, start.warm) == (TINY.seed, torch.float32, None, False)
    assert start.row_choices == [1, 2, 4, 8]
    assert start.rates["matrices"].lr == 0.25 * TINY.matrix_lr  # a small batch
    assert start.schedules.keys() == {"lr", "momentum", "weight_decay"}
    assert start.num_shards == 0  # no data set on the hub is named
    with pytest.raises(FrozenInstanceError):
        start.batch = 512


def test_the_rates_of_fine_tuning_have_every_factor(stages, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(stages.folder))
    config = parse(SFT, ["--source=base", "--model-tag=parent", "--tag=child", "--num-iterations=3"])
    start = start_from_parent(tmp_path, config, 0, None, ALONE)
    assert start.config.matrix_lr == 0.03  # the parent's
    assert None not in vars(start.config).values()
    assert start.rates["matrices"] == Rates(0.03 * 0.25 * 0.8, 0.0)
    assert start.rates["smear"].lr == 0.2 * 0.8
    assert start.parent == Parent("base_train", "parent", 6, weights_hash(start.weights.manifest))
    assert start.warm
    assert start.suggestions == start.weights.manifest["suggestions"] == start.record.get("suggestions", {})
    # The parent's context is 300 tokens; attention costs less in shorter rows.
    shorter = start_from_parent(tmp_path, replace(config, max_seq_len=100, total_batch_size=400), 0, None, ALONE)
    assert shorter.flops_per_token < start.flops_per_token


# ---- resuming ----


def saved_with(**settings) -> Checkpoint:
    config = vars(SFT(matrix_lr=0.02, warmup_steps=3)) | settings
    manifest = {"config": config, "loop": {"progress": 0.5, "tokens": 2560, "step": 10}, "model": {"max_seq_len": 64}}
    return Checkpoint(Path("run/step_000010"), 10, manifest)


def test_a_step_to_resume_from_lets_the_optimizers_settings_change() -> None:
    asked = SFT(matrix_lr=0.01, warmup_steps=9, grad_clip=1.0, resume=10)
    expected = {"matrix_lr": (0.02, 0.01), "warmup_steps": (3, 9), "grad_clip": (None, 1.0)}
    assert resume(saved_with(), asked).changes == expected
    assert resume(None, asked) is None
    with pytest.raises(ValueError, match=r"--matrix-lr was 0.02 and is 0.01; --warmup-steps was 3 and is 9"):
        resume(saved_with(), replace(asked, resume="auto", grad_clip=None))
    with pytest.raises(ValueError, match=r"holds another run: --seed was 42 and is 7\. "):
        resume(saved_with(), replace(asked, seed=7))


def test_a_flag_that_is_newer_than_a_checkpoint_had_its_default(capsys) -> None:
    before = saved_with(max_seq_len=64, total_batch_size=256, embedding_lr=0.1, unembedding_lr=0.1, grad_clip=0.0)
    for name in ("warmup_steps", "scalar_lr"):
        del before.manifest["config"][name]
    found = inherit(SFT(), before.manifest)
    assert (found.scalar_lr, found.embedding_lr) == (0.5, 0.1)  # a new flag has the default of all stages
    assert resume(before, SFT(matrix_lr=0.02)).changes == {}
    with pytest.raises(ValueError, match="--warmup-steps was 0 and is 9"):
        resume(before, SFT(matrix_lr=0.02, warmup_steps=9))
