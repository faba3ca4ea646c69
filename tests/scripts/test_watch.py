"""scripts.watch beside a run that trains, on a terminal and through a pipe."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from base_runs import After, Base
from screens import ROOT, OnTerminal, Screen

from nanochat.log import MetricLog

WATCH = (sys.executable, "-m", "scripts.watch")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Base:
    return Base(tmp_path_factory.mktemp("watch"))


def piped(folder: Path, *flags: str) -> subprocess.CompletedProcess:
    env = os.environ | {"PYTHONPATH": str(ROOT), "NANOCHAT_BASE_DIR": str(folder), "COLUMNS": "80", "LINES": "24"}
    return subprocess.run([*WATCH, *flags], env=env, capture_output=True, text=True, timeout=60)


def test_a_stage_is_watched_to_its_end(base):
    """The picture is drawn again while a real run grows, in place, and the last one stays."""
    terminal = OnTerminal(*WATCH, "--stage=base_train", "--every=0.2", NANOCHAT_BASE_DIR=str(base.folder))
    output, text = terminal.output(), ""
    while "no stage has begun to train below" not in text:  # it waits for the run
        text += next(output)
    run = base.start("seen", "--num-iterations=60", "--eval-every=20", before=After(None, time.sleep, 0.1))
    text += "".join(output)
    assert terminal.process.wait() == 0
    run.done()
    pictures = text.split("\x1b[H")[1:]
    steps = [int(found[1].replace(",", "")) for one in pictures if (found := re.search(r"\| step ([\d,]+) \(", one))]
    assert len(steps) > 4
    assert steps == sorted(steps)
    assert len(set(steps)) > 3
    under_way = r"seen \| step \S+ \(\d+%\) \| \S+ left \| loss \d\.\d{4}"
    assert any(re.search(under_way, one) for one in pictures)
    screen = Screen()
    screen.feed(text)
    assert len(screen.rows) <= 24
    assert max(map(len, screen.rows)) < 80
    # However fast the machine: the rate is left out where the line has no room for it.
    ended = rf"base_train seen \| step {steps[-1]:,} \(100%\) \| ended after \S+ \| loss \d+\.\d+"
    assert re.fullmatch(rf"{ended}( \| \S+ tok/s)?", screen.rows[0])
    heads = [row for row in screen.rows if re.match(r"loss, nats a token   ⠒ train \d|validation, bits a byte   ", row)]
    assert len(heads) == 2
    assert sum(bool(re.search("[⠁-⣿]", row)) for row in screen.rows) > 5


def test_through_a_pipe_there_is_one_plain_picture(base, tmp_path):
    if not base.of("seen").exists():
        base.run("seen")
    done = piped(base.folder)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert done.stdout.count("base_train seen | ") == 1
    assert piped(base.folder, f"--base-dir={base.folder}", "--tag=seen", "--once").stdout == done.stdout
    done = piped(tmp_path, "--tag=none")
    assert done.returncode == 2
    assert (
        done.stderr
        == f"error: no stage has begun to train below {tmp_path / 'none'}: start one, or name another --base-dir\n"
    )


def record(folder: Path, stage: str, step: int, **figures: float) -> None:
    common = {"progress": step / 10, "train/tok_per_sec": 100.0, "total_training_time": float(step)}
    log = MetricLog(folder / stage / "default")
    log.write(step=step, **common, **{"train/loss": 1.0 / step})
    if figures:
        log.write(step=step, **figures)


def test_the_next_stage_is_followed_and_ctrl_c_leaves(tmp_path):
    for step in (1, 2, 3):
        record(tmp_path, "chat_sft", step)
    (tmp_path / "tok_eval/default").mkdir(parents=True)
    (tmp_path / "tok_eval/default/metrics.jsonl").write_text('{"ratio": 1.0}\n')  # newer, and no curve
    terminal = OnTerminal(*WATCH, "--every=0.1", NANOCHAT_BASE_DIR=str(tmp_path))
    output, text, end = terminal.output(), "", time.monotonic() + 60
    while "chat_sft default | step 3 (30%) | 7.0s left | loss 0.3333 | 100 tok/s" not in text:
        text += next(output)
        assert time.monotonic() < end, text
    for step in (1, 2):
        record(tmp_path, "chat_rl", step, **{"rl/reward": step / 4, "eval/pass@1": 0.5})
    while "chat_rl default | step 2 (20%)" not in text:
        text += next(output)
        assert time.monotonic() < end, text
    terminal.process.send_signal(signal.SIGINT)
    text += "".join(output)
    assert terminal.process.wait() == 0
    screen = Screen()
    screen.feed(text)
    assert screen.rows[1] == "reward, of an answer   ● train 0.5   ◆ test, pass@1 0.5"


def test_a_run_that_stands_still_is_told(tmp_path):
    record(tmp_path, "base_train", 2)
    metrics = tmp_path / "base_train/default/metrics.jsonl"
    os.utime(metrics, (time.time() - 300, time.time() - 300))
    assert re.search(r"\| no step for 5m\d\ds \| loss", piped(tmp_path).stdout.splitlines()[0])
