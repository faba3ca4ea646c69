"""The benchmark of the server: that it notices what it is there to notice."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

from bench.serve import FASTER, goals

GOOD = {"errors": 0, "leaked slots": 0.0, "memory": 500.0, "growth": 2.0, "health worst": 40.0}


def missed(ratio: float = FASTER, abused: dict | None = None, **figures) -> list[str]:
    return [goal for goal, kept in goals(GOOD | figures, GOOD | (abused or {}), ratio).items() if not kept]


def test_each_goal_can_be_missed():
    assert missed() == []
    for figures, goal in [
        ({"ratio": FASTER - 0.1}, "times the tokens"),
        ({"growth": 100.0}, "memory grows"),
        ({"abused": {"leaked slots": 2.0}}, "after abuse"),
    ]:
        [found] = missed(**figures)
        assert goal in found


@pytest.mark.slow
def test_it_serves_measures_and_says(tmp_path):
    words = ["--seconds=3", "--clients=6", "--depth=1", f"--json={tmp_path / 'figures.json'}"]
    done = subprocess.run([sys.executable, "-m", "bench.serve", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    assert ("goals missed" in done.stdout) == bool(done.returncode)
    figures = {row["case"]: row["ours"] for row in json.loads((tmp_path / "figures.json").read_text())}
    assert figures["serve: errors"] == figures["serve: leaked slots"] == 0
    assert figures["abuse: errors"] == figures["abuse: leaked slots"] == 0
    assert figures["serve: rate"] > 0
