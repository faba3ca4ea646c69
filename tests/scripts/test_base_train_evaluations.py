"""Evaluations during base training: as often as asked, in the log and in the card."""

import json

from base_runs import Base
from bundles import world_tasks, write_bundle

FLAGS = ("--core-metric-every=8", "--sample-every=8", "--max-seq-len=128")


def test_evaluations_run_as_often_as_asked(tmp_path):
    base = Base(tmp_path)
    write_bundle(tmp_path / "mirror", world_tasks(7))
    told = base.run(
        "evaluated", *FLAGS, "--num-iterations=10", "--total-batch-size=512", NANOCHAT_HUB=str(tmp_path / "mirror")
    )
    found = {row["step"]: row["core_metric"] for row in base.metrics("evaluated") if "core_metric" in row}
    assert sorted(found) == [8, 10]
    assert told.count("sample: The capital of France is ...") == 2
    card = json.loads((base.of("evaluated") / "outcome.json").read_text())["metrics"]
    assert card["CORE metric estimate"]["value"] == found[10]
    assert card["CORE metric estimate"]["stderr"] > 0


def test_no_evaluation_runs_unasked(tmp_path):
    base = Base(tmp_path)
    told = base.run("alone", "--eval-every=-1", "--num-iterations=2")
    assert "sample:" not in told
    assert "CORE" not in told
    card = json.loads((base.of("alone") / "outcome.json").read_text())["metrics"]
    assert card["Final validation bpb"] == "n/a"
    assert "CORE metric estimate" not in card
