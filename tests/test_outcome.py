import hashlib
import json
import subprocess
from dataclasses import asdict, replace
from math import nan
from types import SimpleNamespace

import pytest
import torch
from loop_parts import ALONE

from nanochat import outcome as under_test
from nanochat.config import option, options
from nanochat.hardware import find_accelerator
from nanochat.log import MetricLog, format_value, read_metrics
from nanochat.outcome import Estimate, Outcome, bloat, environment, keep_figures, kept_figures, validation_metrics
from nanochat.paths import write_json
from nanochat.runtime import Runtime
from nanochat.train import State


@options("cake")
class Config:
    depth: int = option(2, "layers")
    data: str = option("/home/somebody/text", "where from", in_card=False)


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    outcome = Outcome.begin("bake", "d2", Config(depth=3))
    artifact = tmp_path / "cake.bin"
    artifact.write_bytes(b"cake")
    outcome.metrics["loss"] = {"value": 2.5, "stderr": 0.1}
    outcome.tables.append({"title": "Layers", "columns": [["Name", ""]], "rows": [["first"]]})
    outcome.add_artifact(artifact)
    outcome.write()
    return outcome, tmp_path / "bake/d2/outcome.json"


def test_a_record_comes_back_as_it_was_written(written, tmp_path):
    outcome, path = written
    assert path == tmp_path / "bake/d2/outcome.json"
    assert Outcome.load(path) == outcome
    assert outcome.config == {"depth": 3, "data": "/home/somebody/text"}
    assert outcome.card == ["depth"]
    assert outcome.artifacts == {"cake.bin": hashlib.sha256(b"cake").hexdigest()}
    assert outcome.command.startswith("python ")
    assert outcome.versions["pyarrow"]
    assert outcome.environment["Bloat"] == bloat()
    assert 0 <= outcome.seconds < 60
    assert outcome.started <= outcome.timestamp
    for text in ('{"stage": "bake"}', '{"sta', "[]"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"outcome\.json is no record of this version: move it away"):
            Outcome.load(path)


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=trunk"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_where_it_ran(tmp_path, monkeypatch):
    monkeypatch.setattr("nanochat.outcome.ROOT", tmp_path)

    def commit():
        return environment()["Git Information"]["Commit"]

    assert commit() == "unknown (not a git checkout)"
    git(tmp_path, "init")
    for name in ("report.md", "code.py"):
        (tmp_path / name).write_text("old")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "First words")
    (tmp_path / "report.md").write_text("a new card")  # every run rewrites it
    assert commit().endswith(" (clean)")
    (tmp_path / "code.py").write_text("new")
    assert commit().endswith(" (dirty)")


GPUS = r"""printf 'NVIDIA H100 80GB HBM3\n%.0s' 1 2 | 2x NVIDIA H100 80GB HBM3
printf 'NVIDIA L4\nNVIDIA T4\n' | 1x NVIDIA L4, 1x NVIDIA T4
echo no devices; exit 9 | none"""


@pytest.mark.parametrize("case", GPUS.splitlines())
def test_gpus(tmp_path, monkeypatch, case):
    smi, names = case.split(" | ")
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    hardware = environment()["Hardware"]
    assert hardware["GPUs"] == names
    # Without a GPU, nothing is said about CUDA.
    cuda = torch.version.cuda or "n/a"
    assert hardware.get("CUDA Version") == (None if names == "none" else cuda)


DATA = {"name": "letters", "files": 3, "bytes": 12345, "fingerprint": "f" * 64, "validation": "e" * 64}
CORPUS = SimpleNamespace(describe=lambda: DATA | {"world seed": None})


def facts(state: State, runtime=ALONE):
    metrics = under_test.pretraining_metrics(state, CORPUS) | under_test.run_metrics(state, runtime)
    return {name: format_value(value) for name, value in metrics.items()}


def test_the_fields_of_the_reference_and_where_the_text_came_from():
    figures = {"last": {"val/bpb": [0.7654, 0.0012]}, "lowest": {"val/bpb": [0.75, 0.002]}}
    told = facts(State(step=4, tokens=4000, seconds=100.0, waited=1.0, flops=2e15, figures=figures))
    assert told["Final validation bpb"].startswith("0.7654")
    assert told["Minimum validation bpb"] == "0.7500 ± 0.0020"
    assert float(told["Peak memory usage"].removesuffix("MiB")) > 50
    assert told["Data"] == "letters (3 files, 12,345 bytes, ffffffffffff)"
    assert told["Tokens seen"] in {"4000", "4,000"}
    assert told["Waited for data"].startswith("1.00")
    state = State(step=40, seconds=150.0, flops=1.2e15, steady_seconds=100.0, steady_flops=1e15)
    assert facts(state)["MFU %"] == "n/a"
    assert facts(replace(state, tokens=600))["Tokens per second"] == "5"  # of 500 in the steady 100 seconds
    ranks = replace(ALONE, accelerator=find_accelerator("H100"), world_size=2)
    assert float(facts(state, ranks)["MFU %"].rstrip("%")) == pytest.approx(1e15 / 100 / (2 * 494.7e12) * 100, abs=0.01)
    warming = facts(State(step=4, seconds=150.0, tokens=600, flops=1e15), ranks)
    assert (warming["MFU %"], warming["Tokens per second"]) == ("n/a", "n/a")


def test_the_network_and_the_energy_of_a_run(tmp_path, monkeypatch):
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


def test_the_first_the_lowest_and_the_last_of_a_figure_are_kept_over_a_resume(tmp_path, capsys):
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
