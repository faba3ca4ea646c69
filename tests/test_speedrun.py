"""What speedrun.sh asks of its stages on other machines than this one; tests/test_end_to_end.py runs it in earnest."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYTHON = """#!/bin/sh
case "$*" in
  *device_count*) echo $GPUS ;;
  *"scripts.prepare"*"$LACKS"*) exit 2 ;;
esac
echo "$*" >> asked
"""


@pytest.fixture
def asked(tmp_path):
    """The command lines of a machine with so many GPUs that lacks a task."""
    shutil.copy(ROOT / "speedrun.sh", tmp_path)
    for name, text in [("runs/setup.sh", "exit 0"), (".venv/bin/python", PYTHON)]:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(gpus: int, lacks: str = "nothing") -> dict[str, str]:
        variables = {"GPUS": str(gpus), "LACKS": lacks, "NANOCHAT_HUB": str(tmp_path)}
        words = ("bash", str(tmp_path / "speedrun.sh"))
        done = subprocess.run(words, env=os.environ | variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / "asked").read_text().splitlines()
        (tmp_path / "asked").unlink()
        return {word: line for line in lines for word in line.split() if word.startswith("scripts.")}

    return run


@pytest.mark.parametrize(("gpus", "examples"), [(1, 16), (3, 18), (8, 16), (6, 18)])
def test_every_gpu_has_as_many_questions(gpus, examples, asked):
    assert f"--examples-per-step={examples}" in asked(gpus)["scripts.chat_rl"].split()


def test_what_a_stage_needs_is_asked_for_before_it(asked):
    assert {"scripts.mid_train", "scripts.chat_sft", "scripts.chat_rl"} <= asked(0).keys()
    without_questions = asked(0, lacks="--tasks=gsm8k").keys()
    assert {"scripts.mid_train", "scripts.chat_sft"} <= without_questions
    assert "scripts.chat_rl" not in without_questions
    assert not {"scripts.mid_train", "scripts.chat_rl"} & asked(0, lacks="--tasks=arc-easy").keys()
