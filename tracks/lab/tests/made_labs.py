"""Folders of finished runs of a lab, with known truth, as the scripts leave them; and small labs of real runs."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from base_runs import Base
from bundles import world_tasks, write_bundle
from outcomes import leave

from nanochat.paths import write_jsonl, write_text
from tracks.lab.sweep import HELD_OUT, Spec, read_spec

QUESTIONS = 200


SPEC = """
question = "Which bucket helps?"
stage = "chat_sft"
bases = ["one", "two"]
seeds = [1, 2]
budget = { num_iterations = 1000 }
repeats = 2

[mixes]
plain = "Chats"
good = "Chats,Facts"
idle = "Chats,Spelling"
bad = "Chats,Poison"

[benchmarks]
dev = ["World-Facts"]
held_out = ["World-Talk"]
stable = ["World-Choices"]

[sampling]
temperature = 0.7
"""
# Mix -> share of right answers in the development benchmark, and in the one that is held out.
TRUTH = {"plain": (0.5, 0.5), "good": (0.8, 0.7), "idle": (0.5, 0.5), "bad": (0.2, 0.3)}


def read_lab(folder: Path, changes: Mapping[str, str] = {}):
    """Return a lab with lines of the spec replaced."""
    text = SPEC
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "lab.toml"
    write_text(path, text)
    return read_spec(path)


def answer(base: Path, stage: str, tag: str, shares: Mapping[str, float], repeats: int = 1, seed: int = 0):
    """Leave an evaluation of tasks, each with a share of right answers; the same questions are hard in all runs."""
    folder = leave(base, stage, tag, seconds=60.0).parent
    for name, share in shares.items():
        hard = np.random.default_rng(len(name)).random(QUESTIONS)
        luck = np.random.default_rng(seed).normal(0, 0.1, (repeats, QUESTIONS))
        rows = []
        for number, right in enumerate((hard + luck < share).T.tolist()):
            completions = [{"text": "", "reason": "stop", "right": verdict} for verdict in right]
            rows.append({"prompt": f"{name} {number}", "answer": "a", "completions": completions})
        write_jsonl(folder / f"{name}.jsonl", rows)


def train(base: Path, tag: str, scale: float = 1.0, stage: str = "chat_sft"):
    """Leave a training run. scale: of the loss at the end, relative to a healthy one."""
    steps = np.arange(1, 201)
    losses = 2 * np.exp(-steps / 50) + 1
    losses[100:] *= scale
    rows = []
    for step, loss in zip(steps.tolist(), losses.tolist(), strict=True):
        rows.append({"kind": "train", "step": step, "train/loss": loss, "train/grad_norm": 1.0})
    path = leave(base, stage, tag, metrics={"Total training flops": {"value": 1e15}}, seconds=240.0)
    rows.append({"kind": "validation", "step": 200, "val/loss": 0.5 + float(losses[-1])})
    write_jsonl(path.with_name("metrics.jsonl"), rows)


def make_lab(base: Path, spec: Spec, held_out: Sequence[str] = ()):
    """Leave all runs of a lab, evaluations of the bases, and those of some mixes on the held-out benchmark."""
    for name in spec.trainings:
        answer(base, "chat_eval_mid", f"{spec.name}-{name}", {"World-Choices": 0.6})
    for number, run in enumerate(spec.runs):
        tag, (share, other) = spec.tag_of(run), TRUTH[run.mix]
        train(base, tag)
        answer(base, "chat_eval_sft", tag, {"World-Facts": share, "World-Choices": 0.6}, spec.repeats, number)
        if run.mix in held_out:
            answer(base, "chat_eval_sft", tag + HELD_OUT, {"World-Talk": other}, spec.repeats, number)


BASE_SPEC = """
question = "Which rate?"
stage = "base_train"
bases = ["default"]
seeds = [1, 2, 3]
budget = { num_iterations = 4 }
flags = "--depth=1 --width=32 --head-dim=32 --max-seq-len=32 --total-batch-size=256 --data=TEXT --eval-bytes=2000"

[mixes]
plain = "--matrix-lr=0.01"
better = "--matrix-lr=0.02 --window-pattern=L"
same = "--matrix-lr=0.01 --weight-decay=0"

[benchmarks]
dev = ["bpb", "world_people"]
held_out = ["world_places"]

[sampling]
max_problems = 4
"""
# Slurm's array, one task after the other; its throttle and requeues are not played.
SBATCH = """#!/usr/bin/env bash
[ "$1" = --wait ] || exit 1
count=$(sed -n 's/.*--array=0-\\([0-9]*\\)%.*/\\1/p' "$2")
for number in $(seq 0 "$count"); do SLURM_ARRAY_TASK_ID=$number bash "$2"; done
"""


def write_sbatch(folder: Path) -> None:
    """Write the command `sbatch` into a folder for PATH."""
    write_text(folder / "sbatch", SBATCH)
    (folder / "sbatch").chmod(0o755)


class BaseLab(Base):
    """A tokenizer, a little text, a mirror with CORE's tasks, and real labs of base models."""

    def __init__(self, folder: Path, python: str, changes: Mapping[str, str]) -> None:
        super().__init__(folder)
        self.python, self.spec = python, folder / "lab.toml"
        write_bundle(folder / "hub", world_tasks(8))
        own = "--eval-bytes=2000 --dtype=fp32 --no-compile --save-every=-1 --sample-every=-1"
        text = BASE_SPEC.replace("TEXT", str(self.text)).replace("--eval-bytes=2000", own)
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        write_text(self.spec, text)

    def lab(self, *flags: str, **variables: str) -> tuple[int, str]:
        """Run a lab to its end; return the exit status, and what it has printed."""
        places = {"NANOCHAT_BASE_DIR": f"{self.folder}", "NANOCHAT_HUB": f"{self.folder}/hub", "OMP_NUM_THREADS": "1"}
        command = [self.python, "-m", "tracks.lab.run", f"--spec={self.spec}", *flags]
        environment = os.environ | places | variables
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
        return done.returncode, done.stdout + done.stderr
