"""Base training as a user meets it: its ends, its refusals, what it leaves; and scripts.base_loss of its models."""

import math
import re
import shutil
import sys
from types import SimpleNamespace

import pytest
from base_runs import Base, change_manifest
from bundles import world_tasks, write_bundle
from corpora import write_letters

from nanochat.checkpoint import load_manifest
from nanochat.errors import UserError
from nanochat.models import weights_hash
from nanochat.paths import read_json, saved_steps
from nanochat.report.card import markdown, read_card
from nanochat.stages import loss_stage
from scripts import base_loss
from scripts.base_loss import Config

BPB = ("train bpb", "val bpb")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return Base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def whole(base):
    """What a run prints from its first step to its last, with a device batch it finds by itself."""
    return base.run("whole", "--device-batch-size=auto")


def test_a_run_leaves_its_record(base, whole) -> None:
    record = base.outcome("whole")
    fields = [
        *("Number of parameters", "Number of FLOPs per token", "Calculated number of iterations"),
        *("Number of training tokens", "Tokens : Params ratio", "DDP world size", "Minimum validation bpb"),
        *("Final validation bpb", "MFU %", "Total training flops", "Total training time", "Peak memory usage"),
    ]
    assert set(fields) <= record["metrics"].keys()
    assert record["metrics"]["MFU %"] == "n/a"
    config = ["run", "device_type", "depth", "max_seq_len", "num_iterations", "target_param_data_ratio"]
    assert {*config, "device_batch_size", "total_batch_size", "matrix_lr", "embedding_lr"} <= set(record["card"])
    titles = ["Loss", "Validation", "Gradient norm", "Learning rate", "Throughput"]
    assert [(curve["title"], curve["x"]) for curve in record["curves"]] == [(title, "tokens") for title in titles]
    assert record["artifacts"].keys() == {"manifest.json"}
    bpb = [*base.series("whole", "val/bpb").values()]
    assert len(bpb) == 5  # before the first step, and every five
    assert record["metrics"]["Final validation bpb"]["value"] == bpb[-1] < bpb[0]
    assert record["metrics"]["Minimum validation bpb"]["value"] == min(bpb)
    assert base.losses("whole")[-1] < base.losses("whole")[0]
    assert len(re.findall(r"^step \d+ \| val/bpb: ", whole, re.M)) == 5


class BrokenTracker:
    """What is done to a process before its run: a function of trackio raises this error."""

    def __init__(self, function: str, error: type[BaseException]) -> None:
        self.function, self.error = function, error

    def __call__(self) -> None:
        def call(name: str) -> None:
            if name == self.function:
                raise self.error("the disk\nis full")

        run = SimpleNamespace(log=lambda figures, step: call("log"), finish=lambda: call("finish"))
        sys.modules["trackio"] = SimpleNamespace(init=lambda **options: call("init") or run)


@pytest.mark.parametrize(
    ("function", "error"), [("init", RuntimeError), ("log", SystemExit), ("finish", OSError), ("none", OSError)]
)
def test_a_tracker_that_fails_stops_no_run(base, whole, function, error) -> None:
    """The weights and the log are those of a run without one."""
    tag = f"tracked-{function}"
    said = base.run(tag, "--run=mine", "--tracker=trackio", before=BrokenTracker(function, error))
    lines = [line for line in said.splitlines() if "trackio" in line]
    path = base.of(tag) / "metrics.jsonl"
    reason = f"({error.__name__}: the disk is full); see {path}"
    assert lines == ([] if function == "none" else [f"trackio is off for the rest of this run {reason}"])
    assert base.losses(tag) == pytest.approx(base.losses("whole"), abs=1e-5)
    assert base.outcome(tag)["config"]["tracker"] == "trackio"


def test_the_largest_device_batch_is_found_and_kept(base, whole) -> None:
    assert "device batch: 8 rows of 32 tokens, 1 of them in a step on each rank" in whole
    said = base.run("two", "--device-batch-size=auto", ranks=2)
    assert "device batch: 4 rows of 32 tokens, 1 of them in a step on each rank" in said
    assert base.losses("two") == pytest.approx(base.losses("whole"), abs=1e-4)
    assert base.series("two", "val/bpb") == pytest.approx(base.series("whole", "val/bpb"), abs=1e-4)


def test_divergence_ends_the_run_and_keeps_the_checkpoint(base) -> None:
    flags = ("--embedding-lr=1e30", "--matrix-lr=1e30", "--warmup-steps=0", "--save-every=1", "--eval-every=-1")
    said = base.refused("wild", *flags, code=1, ranks=2)
    last = int(re.match(r"step (\d+): the loss is .*(nan|inf)", said)[1]) - 1
    assert last > 0
    assert saved_steps(base.of("wild")) == list(range(1, last + 1))
    assert all(math.isfinite(loss) for loss in base.losses("wild"))


def test_a_horizon_of_seconds(base) -> None:
    said = base.run("timed", "--num-iterations=-1", "--target-seconds=0.4", "--eval-every=-1", ranks=2)
    assert "num_iterations ? = as many as 0.4 seconds allow" in said
    assert "sample:" not in said
    assert "CORE" not in said
    record = base.outcome("timed")["metrics"]
    taken = [*base.series("timed", "train/loss")]
    assert taken == list(range(1, len(taken) + 1))
    assert record["Tokens seen"] == 256 * len(taken) > 0
    assert not {"Calculated number of iterations", "CORE metric estimate"} & record.keys()
    assert record["Final validation bpb"] == "n/a"
    assert saved_steps(base.of("timed"))[-1] == len(taken)


def test_evaluations_run_as_often_as_asked(base, tmp_path) -> None:
    write_bundle(tmp_path / "mirror", world_tasks(7))
    flags = ("--core-metric-every=8", "--sample-every=8", "--max-seq-len=128", "--num-iterations=10")
    told = base.run("evaluated", *flags, "--total-batch-size=512", NANOCHAT_HUB=str(tmp_path / "mirror"))
    found = base.series("evaluated", "core_metric")
    assert sorted(found) == [8, 10]
    assert told.count("sample: The capital of France is ...") == 2
    estimate = base.outcome("evaluated")["metrics"]["CORE metric estimate"]
    assert estimate["value"] == found[10]
    assert estimate["stderr"] > 0


@pytest.fixture
def loss(base, whole, monkeypatch, capsys):
    """scripts.base_loss in this process: the metrics that it leaves, and what it prints."""
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base.folder))

    def run(**options):
        options = {"tag": "whole"} | options
        config = Config(eval_bytes=3000, dtype="fp32", **options)
        base_loss.main(config)
        record = read_json(base.folder / loss_stage(config.source) / config.evaluation_tag() / "outcome.json")
        return record["metrics"], capsys.readouterr().out

    return run


def test_with_a_stride_there_are_figures_of_overlapping_rows(loss) -> None:
    plain, _ = loss()
    both, said = loss(stride=8)
    for split in ("train", "val"):
        assert both[f"{split} bpb"] == plain[f"{split} bpb"]
        assert both[f"{split} bpb (stride 8)"]["value"] != both[f"{split} bpb"]["value"]
        assert re.search(rf"^{split} bpb \(stride 8\): \d\.\d{{4}} ± ", said, re.MULTILINE)
    assert not any("stride" in name for name in plain)


def test_a_whole_text_is_scored_where_none_of_it_was_learned(loss, base, tmp_path) -> None:
    """Of a folder one document in a hundred is for validation: too few of a small text in another language."""
    text = write_letters(tmp_path / "more", 3, 20)
    size = sum(path.stat().st_size for path in text.iterdir())
    both, said = loss(data=str(text), splits="val,all")
    assert {name for name in both if name.endswith("bpb")} == {"val bpb", "all bpb"}
    assert both["Bytes"] == min(size, 3000)
    assert re.search(r"^val: [\d,]+ bytes are all that more has$", said, re.MULTILINE)
    short, _ = loss(data=str(text), splits="all", max_seq_len=16)
    assert short["all bpb"] != both["all bpb"]  # tokens are predicted from less
    with pytest.raises(UserError, match=r"--max-seq-len=999 is more than the context of \d+ tokens"):
        loss(data=str(text), max_seq_len=999)
    with pytest.raises(UserError, match="the split test is not known, choose from train, val, all"):
        loss(splits="test")


def test_the_loss_on_another_text_is_not_the_models_own(loss, base, monkeypatch, tmp_path) -> None:
    """The folder that --data names has changed since the run."""
    text = base.text.rename(tmp_path / "put away")
    try:
        write_letters(base.text, 40, 40)
        with pytest.raises(
            UserError,
            match=r"the text has changed since whole was trained: put it back, or name a text with --data\. It learned"
            r" from letters with the fingerprint [0-9a-f]{12}; --data=.*/letters is letters with [0-9a-f]{12}$",
        ):
            loss()
        with pytest.raises(UserError, match="the text has changed"):  # the held-out text counts with other shards too
            loss(num_shards=1)
        assert "val bpb" in loss(data=str(base.text))[0]
    finally:
        shutil.rmtree(base.text)
        text.rename(base.text)
    assert "val bpb" in loss(num_shards=1)[0]


def test_the_loss_of_a_later_stage_is_that_of_its_weights_on_the_text_of_its_base(loss, base) -> None:
    plain, _ = loss()
    # As an SFT without a step would leave it.
    shutil.copytree(base.folder / "base_train/whole", base.folder / "chat_sft/tuned")

    def set_parent(parent) -> None:
        def change(manifest) -> None:
            manifest["parent"] = parent
            manifest.pop("num_shards", None)

        for path in (base.folder / "chat_sft/tuned").glob("step_*/manifest.json"):
            change_manifest(path, change)

    whole = {"stage": "base_train", "tag": "whole", "step": 20}
    manifest = load_manifest(base.folder / "base_train/whole", 20).manifest
    set_parent(whole | {"sha256": ""})  # of a run that an earlier version began
    loss(source="sft", tag="tuned")
    set_parent(whole | {"sha256": weights_hash(manifest)})
    shutil.copytree(base.folder / "chat_sft/tuned", base.folder / "chat_sft/between")
    set_parent({"stage": "chat_sft", "tag": "between", "step": 20})  # the text is that of a parent's parent
    for data in ("", str(base.text)):
        found, _ = loss(source="sft", tag="tuned", data=data)
        assert {name: found[name] for name in BPB} == {name: plain[name] for name in BPB}
    rounded, _ = loss(source="sft", tag="tuned", quant="int5-row")
    assert rounded["val bpb"] != plain["val bpb"]
    assert "\n## Loss after SFT\n" in markdown(read_card(base.folder, "tuned"), "report")
    set_parent(whole | {"sha256": "0" * 64})
    with pytest.raises(UserError, match=r"whole/step_000020 was made again since, perhaps from another text: name"):
        loss(source="sft", tag="tuned")
    set_parent({"stage": "base_train", "tag": "whole", "step": 19})
    with pytest.raises(UserError, match=r"the text is that of .*whole/step_000019, which is not there: name one with"):
        loss(source="sft", tag="tuned")
    set_parent(None)
    with pytest.raises(UserError, match="the model was imported, and nobody knows its text: name one with --data"):
        loss(source="sft", tag="tuned")


def test_flags_of_recursion_are_answered_by_the_name_of_the_command(here) -> None:
    for flag in ("--recursion=aggressive", "--loops=3", "--supervision_base=2"):
        refused = here("scripts.base_train", "--depth=1", flag, code=2)
        name = flag.partition("=")[0]
        assert (
            refused.stderr
            == f"error: {name} is a flag of python -m tracks.recursion.train: run that, with the same flags\n"
        )
