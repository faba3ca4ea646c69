"""Base training as a user meets it: its ends, its refusals, what it leaves, W&B in all states."""

import json
import math
import re

import pytest
from base_runs import Base, FileLimit

from nanochat.checkpoint import steps


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Base:
    return Base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module", autouse=True)
def unreached(base, tmp_path_factory):
    """A run that is mirrored to where nothing listens: it waits for a while, so it is started before the others."""
    nowhere = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40, "WANDB_INIT_TIMEOUT": "2"}
    nowhere |= {"WANDB_DIR": str(tmp_path_factory.mktemp("wandb"))}
    return base.start("unreached", "--run=first", "--num-iterations=4", **nowhere)


@pytest.fixture(scope="module")
def whole(base):
    """What a run prints from its first step to its last, with a device batch it finds by itself."""
    return base.run("whole", "--device-batch-size=auto")


def outcome(base: Base, tag: str) -> dict:
    return json.loads((base.of(tag) / "outcome.json").read_text())


# ---- a whole run ----


def test_a_run_leaves_its_record(base, whole):
    record = outcome(base, "whole")
    fields = [
        *("Number of parameters", "Number of FLOPs per token", "Calculated number of iterations"),
        *("Number of training tokens", "Tokens : Params ratio", "DDP world size", "Minimum validation bpb"),
        *("Final validation bpb", "MFU %", "Total training flops", "Total training time", "Peak memory usage"),
    ]
    assert set(fields) <= record["metrics"].keys()
    assert record["metrics"]["MFU %"] == "n/a"
    config = ["run", "device_type", "depth", "max_seq_len", "num_iterations", "target_param_data_ratio"]
    assert {*config, "device_batch_size", "total_batch_size", "matrix_lr", "embedding_lr"} <= set(record["card"])
    titles = ["Loss", "Validation", "Learning rate", "Throughput"]
    assert [(curve["title"], curve["x"]) for curve in record["curves"]] == [(title, "tokens") for title in titles]
    assert record["artifacts"].keys() == {"manifest.json"}
    bpb = [line["val/bpb"] for line in base.metrics("whole") if "val/bpb" in line]
    assert len(bpb) == 5  # before the first step, and every five
    assert record["metrics"]["Final validation bpb"]["value"] == bpb[-1] < bpb[0]
    assert record["metrics"]["Minimum validation bpb"]["value"] == min(bpb)
    assert base.losses("whole")[-1] < base.losses("whole")[0]
    assert len(re.findall(r"^step \d+ \| validation bpb: ", whole, re.M)) == 5


def test_the_largest_device_batch_is_found_and_kept(base, whole):
    assert "device batch: 8 rows of 32 tokens, the most that fit; 1 of them make a step on each rank" in whole
    base.copy("whole", "kept")
    assert "device batch: 8 rows of 32 tokens, as before" in base.run("kept", "--device-batch-size=auto")
    assert "device batch: 4 rows of 32 tokens, the most that fit" in base.run(
        "two", "--device-batch-size=auto", ranks=2
    )
    assert base.losses("two") == pytest.approx(base.losses("whole"), abs=1e-4)


def test_a_horizon_of_seconds(base):
    for tag, ranks in (("timed", 1), ("timed-2", 2)):
        said = base.run(tag, "--num-iterations=-1", "--target-seconds=0.4", ranks=ranks)
        assert "num_iterations ? = as many as 0.4 seconds allow" in said
        record = outcome(base, tag)["metrics"]
        taken = [line["step"] for line in base.metrics(tag) if "train/loss" in line]
        assert taken == list(range(1, len(taken) + 1))
        assert record["Tokens seen"] == 256 * len(taken) > 0
        assert "Calculated number of iterations" not in record
        assert steps(base.of(tag))[-1] == len(taken)


def test_only_what_is_asked_is_kept(base):
    base.run("few", "--keep-last=2", "--keep-every=6", "--eval-every=-1")
    assert steps(base.of("few")) == [6, 12, 18, 20]
    assert outcome(base, "few")["metrics"]["Final validation bpb"] == "n/a"


# ---- what goes wrong ----


@pytest.mark.parametrize("ranks", [1, 2])
def test_divergence_ends_the_run_and_keeps_the_checkpoint(base, ranks):
    tag = f"wild-{ranks}"
    flags = ("--embedding-lr=1e30", "--matrix-lr=1e30", "--warmup-steps=0", "--save-every=1", "--eval-every=-1")
    said = base.refused(tag, *flags, code=1, ranks=ranks)
    match = re.match(r"step (\d+): (the loss is|the gradient's norm is) (nan|inf)", said)
    assert match, said
    last = int(match[1]) - 1
    assert last > 0
    assert said.endswith(f"; the checkpoint of step {last} is kept in {base.of(tag)}")
    assert steps(base.of(tag)) == list(range(1, last + 1))
    assert all(math.isfinite(loss) for loss in base.losses(tag))
    # The one save before it fails, which is not what ends the run.
    said = base.refused(f"{tag}-full", *flags, f"--save-every={last}", code=1, ranks=ranks, before=FileLimit(100_000))
    assert said.startswith(match[0])
    assert said.endswith(f"; no checkpoint was saved before in {base.of(f'{tag}-full')}")


def test_settings_that_cannot_be_are_one_sentence(base):
    for flag, sentence in {
        "--device-batch-size=3": "--device-batch-size=3 (x 32 tokens x 1 ranks) does not divide "
        "--total-batch-size=256: take --device-batch-size=1, 2 or 4, or --total-batch-size=192 or 288",
        "--device-batch-size=many": "--device-batch-size=many is no number of rows, take auto or a whole number",
        "--total-batch-size=100": "--total-batch-size=100 is no multiple of a row on every rank (32 tokens x 1 "
        "ranks): take --total-batch-size=96 or 128",
        "--target-flops=1e9": "--num-iterations=20 and --target-flops=1e+09 are 2 horizons: keep one of them",
        "--device-type=gpu": "--device-type=gpu is not on this machine, take one of ",
        "--attention=magic": "--attention=magic is not known, take one of auto, ",
        "--total-batch-size=0": "--total-batch-size has to be 1 or more, not 0",
        "--total-batch-size=-4096": "--total-batch-size has to be 1 or more, not -4096",
        "--eval-bytes=0": "--eval-bytes has to be 1 or more, not 0",
        "--eval-bytes=-7": "--eval-bytes has to be 1 or more, not -7",
        "--sample-every=-7": "--sample-every has to be -1 or more, not -7",
        "--dtype=fp12": "precision fp12 is not known, take one of auto, bf16, fp16, fp32",
    }.items():
        assert base.refused("never", flag).startswith(sentence)
    said = base.refused("never", "--total-batch-size=96", ranks=2)
    assert said.startswith("--total-batch-size=96 is no multiple of a row on every rank (32 tokens x 2 ranks)")
    assert steps(base.of("never")) == []


# ---- W&B ----


def test_wandb_offline(base, tmp_path):
    base.run("named", "--run=first", "--num-iterations=4", WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) == 1
    assert len(base.losses("named")) == 4


def test_wandb_out_of_reach(base, unreached):
    """Training goes on, and says that it goes without."""
    assert unreached.done().count("W&B is off for the rest of this run") == 1
    assert len(base.losses("unreached")) == 4
    assert outcome(base, "unreached")["metrics"]["Tokens seen"] == 4 * 256
