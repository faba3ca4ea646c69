"""scripts.lab on a tiny base model: four runs of three steps, killed midway, and looks at a held-out benchmark."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chat_files import write_lines
from tune_runs import Stages, sums

from nanochat.paths import read_json

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 400  # seconds
SPEC = """
question = "Do letters help?"
stage = "chat_sft"
source = "base"
bases = ["parent"]
seeds = [1, 2]
budget = { num_iterations = 3 }
flags = { eval-every = 0, eval-metrics-every = -1, eval-tokens = 600, dtype = "fp32", compile = false }
[mixes]
plain = "json:FOLDER/chats.jsonl"
letters = "json:FOLDER/chats.jsonl,ARC-Easy@50"
[benchmarks]
dev = ["ARC-Easy"]
stable = ["MMLU"]
held_out = ["ARC-Challenge"]
"""


class Lab:
    """A base model, a spec, and the command."""

    def __init__(self, folder: Path):
        self.folder = Stages(folder).folder
        write_lines(folder / "chats.jsonl", *(row["messages"] for row in sums(60)))
        self.spec = folder / "mix.toml"
        self.spec.write_text(SPEC.replace("FOLDER", str(folder)))
        self.ledger = folder / "mix.looks.jsonl"

    def start(self, *flags: str, spec: Path | None = None) -> subprocess.Popen:
        command = [sys.executable, "-m", "scripts.lab", f"--spec={spec or self.spec}", *flags]
        places = {"NANOCHAT_BASE_DIR": str(self.folder), "NANOCHAT_HUB": str(self.folder / "hub")}
        variables = os.environ | places | {"OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=pipe, stderr=pipe, text=True)

    def run(self, *flags: str, spec: Path | None = None) -> tuple[int, str]:
        process = self.start(*flags, spec=spec)
        out, error = process.communicate(timeout=LIMIT)
        return process.returncode, out + error

    def records(self) -> list[dict]:
        return [read_json(path) for path in sorted(self.folder.glob("lab/mix/*-train.json"))]


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
    """All runs have ended; the lab was killed after the first. The held-out task cannot be opened."""
    lab = Lab(tmp_path_factory.mktemp("lab"))
    for path in lab.folder.glob("hub/**/*ARC-Challenge*/**/*.parquet"):
        path.rename(path.with_suffix(".whole"))
        path.write_bytes(b"this raises when it is opened")
    end = time.monotonic() + LIMIT
    killed = lab.start("--jobs=2")
    while not any(record["finished"] for record in lab.records()):
        assert time.monotonic() < end, "no run has finished"
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=LIMIT)
    finished = [record for record in lab.records() if record["finished"]]
    code, text = 2, "another process runs in"
    # Steps that were at work end by themselves.
    while code == 2 and "another process runs in" in text:
        assert time.monotonic() < end
        code, text = lab.run("--jobs=2")
    assert code == 0, text
    assert text.count("already finished") >= len(finished) > 0
    return lab


def test_a_killed_lab_loses_no_run(lab):
    records = lab.records()
    assert len(records) == 4
    assert all(record["finished"] for record in records)
    outcome = read_json(lab.folder / "lab/mix/outcome.json")
    assert outcome["metrics"]["Runs"] == "4, 0 of them left out"
    # Nothing learned in three steps can be shown.
    verdicts = read_json(lab.folder / "lab/mix/recommendation.json")["recommendation"]
    assert [one["verdict"] for one in verdicts] == ["scale up"]


def test_a_finished_lab_runs_nothing_again(lab):
    code, text = lab.run()
    assert code == 0, text
    # Four runs of two steps, and the base's evaluation.
    assert text.count("already finished") == 9
    assert ": done in" not in text


def test_held_out_benchmarks_are_opened_by_final_alone_and_looks_count(lab):
    assert not lab.ledger.exists()
    for path in lab.folder.glob("hub/**/*.whole"):
        path.rename(path.with_suffix(".parquet"))
    code, text = lab.run("--final")
    assert code == 0, text
    assert "Scores, held out, look 1" in text
    # The reference alone: nothing is recommended.
    assert len(list(lab.folder.glob("chat_eval_sft/*-held-out"))) == 2
    assert len(lab.ledger.read_text().splitlines()) == 1
    assert "look 1" in lab.run("--final")[1]  # the same models again

    lab.spec.write_text(lab.spec.read_text() + "\n# another hash\n")
    assert "look 2, no longer held out" in lab.run("--final")[1]
    first, second = map(json.loads, lab.ledger.read_text().splitlines())
    assert second["before"] == first["hash"]
    lab.ledger.write_text(json.dumps(second) + "\n")
    code, text = lab.run()
    assert (code, text.count("\n")) == (2, 1)
    assert "mix.looks.jsonl:1 was edited" in text
    lab.ledger.unlink()


def test_the_plan_says_what_can_be_shown(lab):
    code, text = lab.run("--plan")
    assert code == 0, text
    assert "4 runs: 1 bases x 2 mixes x 1 rates x 2 seeds" in text
    assert "9 of 9 steps are finished" in text
    assert "ARC-Easy: " in text
    assert "smallest difference that can be shown" in text


def test_all_mistakes_at_once(lab, tmp_path):
    wrong = SPEC.replace('"parent"', '"nobody"').replace("ARC-Easy@50", "ARC-Esy@50").replace('["MMLU"]', '["MLU"]')
    path = tmp_path / "wrong.toml"
    path.write_text(wrong.replace("FOLDER", str(lab.folder)))
    code, text = lab.run(spec=path)
    assert code == 2
    for part in ("the base nobody has no checkpoint", "the mix letters: ", "ARC-Esy", "MLU"):
        assert part in text
