"""What the report card is told of a training run: the reference's fields, n/a for what is not known, its curves."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from loop_parts import ALONE, train

from nanochat.card import curves, training_facts
from nanochat.hardware import find_accelerator
from nanochat.log import MetricLog, format_value, read_metrics
from nanochat.train import State

CORPUS = SimpleNamespace(
    describe=lambda: {"name": "letters", "files": 3, "bytes": 12345, "fingerprint": "f" * 64, "validation": "e" * 64}
)
SOURCE = SimpleNamespace(epochs={"letters": 1.5}, dropped_share=0.25)


def facts(state: State, runtime=ALONE) -> dict[str, str]:
    return {name: format_value(value) for name, value in training_facts(state, SOURCE, CORPUS, runtime).items()}


def test_the_fields_of_the_reference_and_where_the_text_came_from():
    notes = {"val bpb": 0.7654, "val bpb stderr": 0.0012, "lowest val bpb": 0.75, "lowest val bpb stderr": 0.002}
    told = facts(State(step=4, tokens=4000, seconds=100.0, waited=1.0, flops=2e15, notes=notes))
    assert told["DDP world size"] == "1"
    assert told["Final validation bpb"].startswith("0.7654")
    assert told["Minimum validation bpb"] == "0.7500 ± 0.0020"
    assert told["Total training flops"] == "2.0000e+15"
    assert told["Total training time"] == "1m40s"
    assert float(told["Peak memory usage"].removesuffix("MiB")) > 50
    assert told["Data"] == "letters (3 files, 12,345 bytes, ffffffffffff)"
    assert (told["Tokens seen"], told["Epochs"]) in {("4000", "letters 1.50"), ("4,000", "letters 1.50")}
    assert told["Waited for data"].startswith("1.00")
    assert told["Share of tokens dropped"].startswith("25.00")


def test_mfu_is_never_wrong():
    state = State(step=40, seconds=150.0, flops=1.2e15, steady_seconds=100.0, steady_flops=1e15)
    assert facts(state)["MFU %"] == "n/a"
    assert facts(replace(state, tokens=600))["Tokens per second"] == "5"  # of 500 in the steady 100 seconds
    ranks = replace(ALONE, accelerator=find_accelerator("H100"), world_size=2)
    assert float(facts(state, ranks)["MFU %"].rstrip("%")) == pytest.approx(1e15 / 100 / (2 * 494.7e12) * 100, abs=0.01)
    warming = facts(State(step=4, seconds=150.0, tokens=600, flops=1e15), ranks)
    assert (warming["MFU %"], warming["Tokens per second"]) == ("n/a", "n/a")


def test_without_validation_there_is_no_figure_of_it():
    told = facts(State(step=4, seconds=1.0))
    assert (told["Minimum validation bpb"], told["Final validation bpb"]) == ("n/a", "n/a")


def test_curves_are_of_what_was_measured(tmp_path):
    train(tmp_path, steps=4)
    with MetricLog(tmp_path) as log:
        tokens = [record["total_training_tokens"] for record in read_metrics(log.path)]
        assert len(set(tokens)) == 4
        assert [(curve["title"], curve["x"]) for curve in curves(log)] == [
            ("Loss", "tokens"),
            ("Learning rate", "tokens"),
            ("Throughput", "tokens"),
        ]
        for curve in curves(log):
            [[xs, ys]] = curve["series"].values()
            assert xs == tokens
            assert len(ys) == 4
        log.write("validation", 4, **{"val/bpb": 0.5, "rl/reward": 0.25})
        found = {curve["title"]: curve for curve in curves(log)}
        assert found["Validation"]["series"] == {"validation": [[tokens[-1]], [0.5]]}
        assert found["Reward"]["x"] == "step"
        assert found["Reward"]["series"] == {"train": [[4], [0.25]]}
