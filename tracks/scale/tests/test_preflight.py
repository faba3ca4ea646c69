import json
import subprocess

from conftest import ROOT

from nanochat.registry import PREFLIGHT


def test_a_single_process_has_no_network(base, quick) -> None:
    command = [quick, "-m", PREFLIGHT]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
    record = json.loads((base / "preflight.json").read_text())
    assert (len(record["places"]), record["all_reduce_gb_s"]) == (1, None)
    assert f"| {record['places'][0]} " in said
