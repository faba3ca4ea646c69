"""Metrics and curves of a training stage."""

import json
from dataclasses import asdict, replace
from math import nan
from types import SimpleNamespace

import pytest
from loop_parts import ALONE

from nanochat import metrics as under_test
from nanochat import registry
from nanochat.environment import environment
from nanochat.hardware import find_accelerator
from nanochat.log import MetricLog, format_value, read_metrics
from nanochat.metrics import keep_figures, kept_figures, validation_metrics
from nanochat.paths import write_json, write_text
from nanochat.runtime import Runtime
from nanochat.statistics import Estimate
from nanochat.train import State

DATA = {"name": "letters", "files": 3, "bytes": 12345, "fingerprint": "f" * 64, "validation": "e" * 64}
CORPUS = SimpleNamespace(describe=lambda: DATA | {"world seed": None})


def facts(state: State, runtime=ALONE):
    metrics = under_test.pretraining_metrics(state, CORPUS, {"letters": 1.5}) | under_test.run_metrics(state, runtime)
    return {name: format_value(value) for name, value in metrics.items()}


def test_the_fields_of_the_reference_and_where_the_text_came_from() -> None:
    figures = {"last": {"val/bpb": [0.7654, 0.0012]}, "lowest": {"val/bpb": [0.75, 0.002]}}
    told = facts(State(step=4, tokens=4000, seconds=100.0, waited=1.0, flops=2e15, figures=figures))
    assert told["Final validation bpb"].startswith("0.7654")
    assert told["Minimum validation bpb"] == "0.7500 ± 0.0020"
    assert float(told["Peak memory usage"].removesuffix("MiB")) > 50
    assert told["Data"] == "letters (3 files, 12,345 bytes, ffffffffffff)"
    assert told["Tokens seen"] in {"4000", "4,000"}
    assert told["Epochs"] == "1.50"
    mix = under_test.pretraining_metrics(State(), CORPUS, {"letters": 0.25, "more": 2.0})
    assert mix["Epochs"] == "letters 0.25, more 2.00"
    assert told["Waited for data"].startswith("1.00")
    state = State(step=40, seconds=150.0, flops=1.2e15, steady_seconds=100.0, steady_flops=1e15)
    assert facts(state)["MFU %"] == "n/a"
    assert facts(replace(state, tokens=600))["Tokens per second"] == "5"  # of 500 in the steady 100 seconds
    ranks = replace(ALONE, accelerator=find_accelerator("H100"), world_size=2)
    assert float(facts(state, ranks)["MFU %"].rstrip("%")) == pytest.approx(1e15 / 100 / (2 * 494.7e12) * 100, abs=0.01)
    warming = facts(State(step=4, seconds=150.0, tokens=600, flops=1e15), ranks)
    assert (warming["MFU %"], warming["Tokens per second"]) == ("n/a", "n/a")


def test_a_run_in_which_no_step_taught_anything_has_its_figures() -> None:
    """RL earns no reward from a model that solves nothing: no step computes gradients."""
    told = facts(State(step=20, seconds=150.0, steady_seconds=100.0))
    assert (told["Tokens per second"], told["Tokens seen"], told["MFU %"]) == ("n/a", "0", "n/a")


def test_the_network_and_the_energy_of_a_run(tmp_path, monkeypatch) -> None:
    names = "NANOCHAT_BASE_DIR WORLD_SIZE LOCAL_WORLD_SIZE NANOCHAT_DOLLARS_AN_HOUR".split()
    for name, value in zip(names, [str(tmp_path), "16", "8", "98"], strict=True):
        monkeypatch.setenv(name, value)
    machine = environment()["Hardware"]
    assert (machine["Nodes"], machine["Hourly Rate"]) == (2, 98)
    ranks = replace(ALONE, world_size=16)
    places = [f"rank {rank} on {'ab'[rank // 8]}" for rank in range(16)]
    monkeypatch.setattr(Runtime, "all_gather", lambda self, place: places[: self.world_size])

    def shown(state: State, runtime=ranks):
        metrics = under_test.scale_metrics(state, runtime).values()
        return "|".join(map(format_value, metrics))

    state = State(seconds=200.0, communicating=3.0)
    assert shown(state) == "2|n/a|n/a|1.50%|n/a|n/a"
    record = {"places": places, "interconnect": "InfiniBand", "all_reduce_gb_s": 181.4}
    write_json(tmp_path / "preflight.json", record)
    used = replace(state, gpu_use=[7.2e6, 2400.0, 3200.0])  # joules, seconds computing, seconds
    assert shown(used) == "2|InfiniBand|181.40|1.50%|2.000 kWh|75.0%"
    assert shown(replace(state, gpu_use=None), ALONE) == "2|n/a|n/a|n/a|n/a|n/a"  # the record is of other ranks
    for name in names[1:3]:
        monkeypatch.delenv(name)
    assert "Nodes" not in environment()["Hardware"]
    monkeypatch.setenv("NANOCHAT_NODES_FOUND", "4")  # a step of the head alone
    assert environment()["Hardware"]["Nodes"] == 4


def test_the_first_the_lowest_and_the_last_of_a_figure_are_kept_over_a_resume(tmp_path, capsys) -> None:
    state = State()
    assert validation_metrics(state, "bpb", "Last") == {"Minimum validation bpb": "n/a", "Last": "n/a"}
    with MetricLog(tmp_path) as log:
        for step, value in ((0, 2.0), (5, 1.0), (10, 1.5)):
            state = State(**json.loads(json.dumps(asdict(state))) | {"step": step})
            found = {"val/bpb": Estimate(value, 0.1)}
            keep_figures(log, state, "validation", found, rows=3)
        first, *_ = read_metrics(log.path)
    assert first == {"kind": "validation", "step": 0, "val/bpb": 2.0, "val/bpb_stderr": 0.1, "rows": 3}
    assert "step 00005 | val/bpb: 1.0000 ± 0.1000\n" in capsys.readouterr().out
    assert {name: metric["value"] for name, metric in kept_figures(state, "first", "val/").items()} == {"bpb": 2.0}
    metrics = validation_metrics(state, "bpb", "Last")
    shown = {"Minimum validation bpb": 1.0, "Last": 1.5}
    assert {name: metric["value"] for name, metric in metrics.items()} == shown
    # A score like that of guessing is marked.
    for chance, marked in ((0.2, True), (0.4, True), (0.1, False), (0.5, False), (nan, False)):
        assert ("near chance" in format_value(Estimate(0.3, 0.06).metric(chance))) == marked


def test_curves_share_a_picture_and_those_of_tracks_come_before_the_gradient(tmp_path, monkeypatch) -> None:
    """A track that is not here has no curves."""
    monkeypatch.syspath_prepend(tmp_path)
    made = "from nanochat.metrics import Curve\n"
    made += "OWN = Curve('Own', 'step', 'things', 'train', 'own/things')\n"
    made += "CURVE_MAKERS = {'own/': lambda figures: [OWN]}\n"
    write_text(tmp_path / "planted_curves/whole/curves.py", made)
    modules = {"own/": "planted_curves.whole.curves", "gone/": "planted_curves.gone.curves"}
    monkeypatch.setattr(registry, "CURVES", registry.Door("curves of", "CURVE_MAKERS", modules))
    with MetricLog(tmp_path) as log:
        for step in (1, 2):
            figures = {"train/loss": 3.0 / step, "total_training_tokens": 10 * step, "train/grad_norm": 1.0}
            log.write("train", step, **figures, **{"own/things": 1.0, "gone/things": 2.0})
            log.write("validation", step, **{"val/bpb": 1.0, "val/loss": 2.0})
    pictures = {picture["title"]: picture for picture in under_test.training_curves(log.path)}
    assert list(pictures) == ["Loss", "Validation", "Own", "Gradient norm"]
    assert list(pictures["Loss"]["series"]) == ["train", "validation"]
    assert pictures["Loss"]["series"]["train"] == [[10, 20], [3.0, 1.5]]
    assert pictures["Own"]["series"] == {"train": [[1, 2], [1.0, 1.0]]}
