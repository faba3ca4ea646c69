import io
import json
import os
import pty
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanochat.log import MetricLog, PhaseProgress, Progress, duration, metric_curve, print0, read_metrics

ROOT = Path(__file__).parent.parent


def test_only_rank_0_speaks(monkeypatch, capsys, tmp_path):
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        print0(f"rank {rank}")
        with MetricLog(tmp_path / rank) as log:
            log.write("train", 1)
        progress = Progress(f"count on {rank}", "words")
        progress.close()
    out, err = capsys.readouterr()
    assert out == "rank 0\n"
    assert err.startswith("count on 0: 0 words in ")
    assert "count on 1" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0s"),
        (4.21, "4.2s"),
        (59.4, "59.4s"),
        (59.9, "1m00s"),
        (725, "12m05s"),
        (3600, "1h00m"),
        (12_345, "3h25m"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


# ---- metrics ----


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_metrics_are_one_object_a_line_and_go_on_after_a_restart(tmp_path):
    with MetricLog(tmp_path / "run") as log:
        log.write("train", 1, loss=2.5)
        first = {"kind": "train", "step": 1, "loss": 2.5}
        assert records(tmp_path / "run") == [first]  # there at once, not at the end
    with MetricLog(tmp_path / "run") as log:
        log.write("notes", 2, text="한글")
    assert records(tmp_path / "run") == [first, {"kind": "notes", "step": 2, "text": "한글"}]


WANDB = """
import pathlib, sys
CALLS = pathlib.Path(__file__).with_name("calls")
def note(text):
    with open(CALLS, "a") as file: file.write(text + "\\n")
note("import")
class Settings(dict): pass
def init(project, name, config, settings): note(f"init {project} {name} {config}"); FAIL_INIT
def log(metrics): note(f"log {metrics}"); FAIL_LOG
def finish(): note("finish")
class init_result: pass
"""
USE = """
import sys; from pathlib import Path; from nanochat.log import MetricLog
with MetricLog(Path(sys.argv[1]) / "run", sys.argv[2], {"depth": 2}) as log:
    for step in range(3): log.write("train", step)
print("trained")
"""
TIMED = "import time; start = time.monotonic()" + USE.replace(
    "print(", "    print('trained after', time.monotonic() - start)\nprint("
)


def with_wandb(tmp_path: Path, run: str, fail_init: str = "return sys.modules[__name__]", fail_log: str = "pass"):
    """A process that logs three records for `run` beside a W&B that does as told; its output and the calls W&B saw."""
    (tmp_path / "wandb.py").write_text(WANDB.replace("FAIL_INIT", fail_init).replace("FAIL_LOG", fail_log))
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-c", USE, str(tmp_path), run]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [record["step"] for record in records(tmp_path / "run")] == [0, 1, 2]
    calls = tmp_path / "calls"
    return done.stdout.splitlines(), calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.parametrize("run", ["", "dummy"])
def test_without_a_name_wandb_is_not_imported(tmp_path, run):
    assert with_wandb(tmp_path, run) == (["trained"], [])


def test_a_named_run_is_mirrored(tmp_path):
    output, calls = with_wandb(tmp_path, "first")
    assert output == ["trained"]
    assert calls == [
        "import",
        "init nanochat first {'depth': 2}",
        *[f"log {{'step': {step}}}" for step in range(3)],
        "finish",
    ]


@pytest.mark.parametrize(
    ("failure", "calls_seen"),
    [({"fail_init": "raise TimeoutError('no server')"}, 2), ({"fail_log": "raise TimeoutError('no server')"}, 3)],
)
def test_wandb_never_stops_a_run_and_says_so_once(tmp_path, failure, calls_seen):
    output, calls = with_wandb(tmp_path, "first", **failure)
    assert output[0].startswith("W&B is off for the rest of this run (TimeoutError: no server)")
    assert output[1:] == ["trained"]
    assert len(calls) == calls_seen


def test_a_wandb_that_is_not_installed(tmp_path):
    output, _ = with_wandb(tmp_path, "first", fail_init="pass\nraise ImportError('broken installation')")
    assert "broken installation" in output[0]
    assert output[1:] == ["trained"]


def test_a_server_that_never_answers_does_not_hold_a_run_up(tmp_path):
    pytest.importorskip("wandb")
    impatient = "import nanochat.log; nanochat.log.PATIENCE = 1.0"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        env = os.environ | {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40, "WANDB_MODE": "online"}
        env |= {"WANDB_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-c", f"{impatient}\n{TIMED}", str(tmp_path), "first"]
        start = time.monotonic()
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
        try:
            seconds = float(process.stdout.readline().removeprefix("trained after "))
            silent.settimeout(60)
            silent.accept()  # W&B does want to talk to it
            process.communicate(timeout=90)
            whole = time.monotonic() - start
        finally:
            process.kill()
            process.wait()
    assert whole < 50  # of which W&B waits some thirty whatever it is told
    assert seconds < 10  # its first question alone would take 5, and in the end 90 and more
    assert [record["step"] for record in records(tmp_path / "run")] == [0, 1, 2]


# ---- progress ----


def run_on_a_terminal(code: str, term: str = "xterm") -> str:
    """What a process writes to a terminal of 80 columns."""
    leader, follower = pty.openpty()
    env = os.environ | {"PYTHONPATH": str(ROOT), "TERM": term, "COLUMNS": "80"}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=follower, env=env)
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:  # how Linux tells that the other end is closed
            part = b""
        if not part:
            break
        seen += part
    os.close(leader)
    assert process.wait() == 0
    return seen.decode()


COUNT = """
import time
from nanochat.log import Progress
progress = Progress("count", "characters")
for done in range(0, 1_000_001, 100_000):
    time.sleep(0.05)
    progress.update(done, 1_000_000, note="a note that is too long for the rest of the line")
progress.close()
"""


def test_a_terminal_has_one_live_line():
    text = run_on_a_terminal(COUNT)
    assert text.count("\n") == 1  # the closing line's
    shown = [part.removesuffix("\x1b[K") for part in text.split("\r") if part.endswith("\x1b[K")]
    assert len(shown) >= 3
    assert all(len(line) < 80 for line in shown)
    for line in shown[:-1]:
        assert re.match(r"count: \[#*\.*\] +\d+% of 1\.0M characters \| \S+/s \| \S+ left", line), line
    assert re.search(r"\rcount: 1,000,000 characters in \d\.\ds \| \d+\.\dM/s\x1b\[K\r?\n$", text)


def test_a_dumb_terminal_has_plain_lines():
    text = run_on_a_terminal(COUNT, term="dumb")
    assert "\x1b" not in text
    assert "[#" not in text


def test_a_file_has_plain_lines_now_and_then():
    stream = io.StringIO()
    progress = Progress("count", "words", stream, plain_every=0.05)
    start = time.monotonic()
    done = 0
    while time.monotonic() - start < 0.5:
        done += 1
        progress.update(done, 0)
        time.sleep(0.001)
    progress.close()
    *lines, last = stream.getvalue().splitlines()
    assert 3 <= len(lines) <= 10
    assert all(re.fullmatch(r"count: \d+ words \| \d+/s", line) for line in lines)
    assert last.startswith(f"count: {done:,} words in 0.5s | ")


def test_time_left_follows_the_rate(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    progress = Progress("step", "steps", stream)
    clock[0] += 10
    progress.update(0, 400)
    clock[0] += 10
    progress.update(100, 400, "loss 2.5")
    clock[0] += 10
    progress.update(500, 400)  # a total that was too low
    assert stream.getvalue().splitlines() == [
        "step:   0% of 400 steps | 0/s | ? left",
        "step:  25% of 400 steps | 5/s | 1m00s left | loss 2.5",
        "step: 100% of 500 steps | 17/s | 0.0s left",
    ]


def test_phases_close_one_after_the_other(capsys):
    with PhaseProgress(count=("characters", 50), merge=("merges", 0)) as progress:
        progress("count", 20, 90)
        progress("count", 40, 90)
        progress("merge", 7, 7)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" in ")[0] for line in lines] == ["count: 40 characters", "merge: 7 merges"]


def numbers(log: MetricLog) -> list[tuple]:
    return [(record["kind"], record["step"], record["loss"]) for record in read_metrics(log.path)]


def test_a_resumed_run_replaces_the_records_after_its_step(tmp_path):
    log = MetricLog(tmp_path)
    log.resume(-1)  # a run from its beginning in a new folder
    assert read_metrics(log.path) == []
    for step in range(6):
        log.write("train", step, loss=float(step))
    log.write("validation", 3, loss=30.0)
    with open(log.path, "a") as file:
        file.write('{"kind": "train", "step": 6, "lo')  # the process was killed while it wrote
    assert len(numbers(log)) == 7
    again = MetricLog(tmp_path)
    again.resume(3)
    assert len(numbers(log)) == 7  # a run that has nothing left to do leaves its log alone
    kept = [("train", step, float(step)) for step in range(4)] + [("validation", 3, 30.0)]
    again.write("validation", 3, loss=31.0)  # evaluated again: the last record counts
    assert numbers(log) == [*kept[:-1], ("validation", 3, 31.0)]
    again.write("train", 4, loss=9.0)
    assert numbers(log) == [*kept[:-1], ("validation", 3, 31.0), ("train", 4, 9.0)]
    anew = MetricLog(tmp_path)
    anew.resume(-1)
    anew.write("train", 1, loss=0.5)
    assert numbers(log) == [("train", 1, 0.5)]


def test_records_of_the_older_format_are_read(tmp_path):
    """They have no kind; a step may have several."""
    lines = ['{"step": 0, "val/bpb": 3.0}', *(f'{{"step": {step}, "train/loss": 1.0}}' for step in (1, 2, 3))]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 3, "val/bpb": 2.0}', '{"ratio": 1.5}']) + "\n")
    log = MetricLog(tmp_path)
    assert metric_curve(read_metrics(log.path), "val/bpb") == [[0, 3], [3.0, 2.0]]
    log.resume(2)
    log.write("train", 3, loss=1.0)
    assert [record.get("step") for record in read_metrics(log.path)] == [0, 1, 2, None, 3]


def test_a_curve_keeps_few_points_that_are_averages(tmp_path):
    records = [{"step": step, "loss": float(step)} for step in range(1, 8)]
    records = [{"step": 0, "other": 1.0}, *records, {"step": 8, "loss": None}]
    assert metric_curve(records, "loss", 100) == [[1, 2, 3, 4, 5, 6, 7], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]
    assert metric_curve(records, "loss", 3) == [[3, 6, 7], [2.0, 5.0, 7.0]]
    assert metric_curve(records, "absent") == [[], []]


def test_a_curve_over_tokens_places_validations_between_steps():
    records = [{"step": 0, "val": 9.0}]
    for step in (1, 2):
        records += [{"step": step, "loss": 1.0, "tokens": 100 * step}, {"step": step, "val": float(step)}]
    assert metric_curve(records, "val", over="tokens") == [[0, 100, 200], [9.0, 1.0, 2.0]]
