import json
import subprocess

import pytest
from conftest import ROOT

from nanochat.registry import PREFLIGHT
from tracks.scale import preflight
from tracks.scale.checks import RankRow


def test_a_single_process_has_no_network(base, quick) -> None:
    command = [quick, "-m", PREFLIGHT]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
    record = json.loads((base / "preflight.json").read_text())
    assert (len(record["places"]), record["all_reduce_gb_s"]) == (1, None)
    assert f"| {record['places'][0]} " in said


def test_an_error_of_a_gpu_says_nothing_about_ranks(monkeypatch) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: out of memory")

    row = RankRow("rank 0 on a", 1.0, 1.0, 1.0, 0.0)
    monkeypatch.setattr(preflight.faulthandler, "dump_traceback_later", lambda *_, **__: None)
    monkeypatch.setattr(preflight, "join", lambda: None)
    monkeypatch.setattr(preflight, "check", lambda *_: ({}, row))
    monkeypatch.setattr(preflight, "measure", fail)
    with pytest.raises(RuntimeError, match=r"^CUDA error"):
        preflight.main(preflight.Config())
