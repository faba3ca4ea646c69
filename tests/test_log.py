"""Printed lines, progress on a terminal and in a file, text tables, and the metric log with its mirror."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT
from terminals import NEEDS_SETSID, start_in_terminal

from nanochat import log as under_test
from nanochat.log import MetricLog, Progress, duration, metric_curve, print0, read_metrics


def test_only_rank_0_prints(monkeypatch, capsys, tmp_path) -> None:
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        print0(f"rank {rank}")
        with MetricLog(tmp_path / rank) as log:
            log.write("train", 1)
        progress = Progress()
        progress.update(f"count on {rank}", 0.5)
        progress.close()
    assert capsys.readouterr().out == "rank 0\ncount on 0 | eta: ?\n"
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    # Control characters are shown and not obeyed.
    print0("a\x1b[31mb\tc\x07\x9b\x7f\nd")
    assert capsys.readouterr().out == "a�[31mb\tc���\nd\n"


PRINTS = """
import sys, time
from pathlib import Path
from nanochat.log import print0
print0("ready")
time.sleep(1)
for stream in (sys.stdout, sys.stderr):
    print0("a line", file=stream)
    print0("a second line", file=stream)
Path(sys.argv[1]).write_text("saved")
"""


@NEEDS_SETSID
def test_a_run_outlives_its_terminal_and_the_pipe_that_it_prints_into(tmp_path) -> None:
    command = [sys.executable, "-c", PRINTS, str(tmp_path / "terminal")]
    assert start_in_terminal(command, "nohup", ROOT, dict(os.environ), "ready").wait(60) == 0
    assert (tmp_path / "terminal").read_text() == "saved"
    piped = subprocess.Popen([*command[:-1], str(tmp_path / "pipe")], cwd=ROOT, stdout=subprocess.PIPE)
    assert piped.stdout.readline() == b"ready\n"
    piped.stdout.close()
    assert piped.wait(60) == 0
    assert (tmp_path / "pipe").read_text() == "saved"


def test_a_full_disk_is_named_with_what_is_needed(tmp_path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with (
        MetricLog(tmp_path) as log,
        pytest.raises(OSError, match="No space left on device, 29 bytes are needed") as caught,
    ):
        log.write("train", 1)
    assert caught.value.filename == str(tmp_path / "metrics.jsonl")


def test_durations_and_tables_are_aligned() -> None:
    seconds = [0.04, 4.21, 59.4, 59.9, 725, 3600, 12_345]
    assert list(map(duration, seconds)) == ["0.0s", "4.2s", "59.4s", "1m00s", "12m05s", "1h00m", "3h25m"]
    rows = [["first", 1.5, None], ["longer name", 20.25, 3]]
    table = {"title": "Title", "columns": [["name", ""], ["score", ".2f"], ["count", "d"]], "rows": rows}
    assert under_test.terminal_table(table).splitlines() == [
        "Title",
        "| name        | score | count |",
        "| ----------- | ----- | ----- |",
        "| first       | 1.50  | -     |",
        "| longer name | 20.25 | 3     |",
    ]


def numbers(log: MetricLog):
    return [(record["kind"], record["step"], record["loss"]) for record in read_metrics(log.path)]


def test_a_resumed_run_replaces_the_records_after_its_step(tmp_path) -> None:
    log = MetricLog(tmp_path)
    log.resume(-1)  # a run from its beginning in a new folder
    for step in range(6):
        log.write("train", step, loss=float(step))
    log.write("validation", 3, loss=30.0)
    with open(log.path, "a") as file:
        file.write('{"kind": "train", "step": 6, "lo')  # the process was killed while it wrote
    resumed = MetricLog(tmp_path)
    resumed.resume(3)
    assert len(numbers(log)) == 7  # a run that has nothing left to do leaves its log alone
    resumed.write("validation", 3, loss=31.0)  # evaluated again: the last record counts
    kept = [*[("train", step, float(step)) for step in range(4)], ("validation", 3, 31.0)]
    assert numbers(log) == kept
    resumed.write("train", 4, loss=9.0)
    assert numbers(log) == [*kept, ("train", 4, 9.0)]
    restarted = MetricLog(tmp_path)
    restarted.resume(-1)
    restarted.write("train", 1, loss=0.5)
    assert numbers(log) == [("train", 1, 0.5)]


def test_curves_keep_few_points_and_place_validations_between_steps() -> None:
    records = [{"step": step, "loss": float(step)} for step in range(1, 8)]
    records = [{"step": 0, "other": 1.0}, *records, {"step": 8, "loss": None}]
    assert metric_curve(records, "loss", 100) == [[1, 2, 3, 4, 5, 6, 7], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]
    assert metric_curve(records, "loss", 3) == [[3, 6, 7], [2.0, 5.0, 7.0]]
    assert metric_curve(records, "absent") == [[], []]
    records = [{"step": 0, "val": 9.0}]
    for step in (1, 2):
        records += [{"step": step, "loss": 1.0, "tokens": 100 * step}, {"step": step, "val": float(step)}]
    assert metric_curve(records, "val", over="tokens") == [[0, 100, 200], [9.0, 1.0, 2.0]]


@pytest.fixture
def wandb(monkeypatch):
    """A library that notes its calls, and raises `fail` from the function of that name."""

    def call(name: str, *about: object):
        module.calls.append((name, *about))
        if module.fail == name:
            raise TimeoutError("no server")
        return module

    module = SimpleNamespace(
        calls=[],
        fail="",
        Settings=dict,
        init=lambda project, name, config, settings: call("init", project, name, config),
        log=lambda metrics: call("log", metrics),
        finish=lambda: call("finish"),
    )
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def three_steps(folder: Path, run: str) -> None:
    with MetricLog(folder, run, {"depth": 2}) as log:
        for step in range(3):
            log.write("train", step)
    assert [record["step"] for record in read_metrics(log.path)] == [0, 1, 2]


def test_a_named_run_is_mirrored_and_no_other(tmp_path, wandb) -> None:
    three_steps(tmp_path, "")
    three_steps(tmp_path, "dummy")
    assert wandb.calls == []
    three_steps(tmp_path, "first")
    steps = [("log", {"step": step}) for step in range(3)]
    assert wandb.calls == [("init", "nanochat", "first", {"depth": 2}), *steps, ("finish",)]


@pytest.mark.parametrize(("fail", "calls"), [("init", 1), ("log", 2)])
def test_a_broken_mirror_never_stops_a_run_and_is_reported_once(tmp_path, wandb, capsys, fail, calls) -> None:
    wandb.fail = fail
    three_steps(tmp_path, "first")
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("W&B is off for the rest of this run (TimeoutError: no server)")
    assert len(wandb.calls) == calls


def test_a_tracker_that_is_not_installed_is_named_in_a_line(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with MetricLog(tmp_path, "first", {"depth": 2}, tracker="trackio") as log:
        log.write("train", 1, loss=2.0)
    [line] = capsys.readouterr().out.splitlines()
    reason = "(trackio is not installed: add the extra trackio, by `uv sync --extra=trackio` or "
    assert line.startswith(f"trackio is off for the rest of this run {reason}")
    assert line.endswith(f"; see {log.path}")
    assert [record["loss"] for record in read_metrics(log.path)] == [2.0]


TRACKED = """
import sys
from pathlib import Path
from nanochat.log import MetricLog

with MetricLog(Path(sys.argv[1]), "first", {"depth": 2}, tracker="trackio") as log:
    for step in map(int, sys.argv[2:]):
        log.write("train", step, **{"train/loss": 1 / (1 + step), "train/mfu": None, "val/bpb": float("nan")})
"""


def test_trackio_has_the_figures_of_a_run_and_of_its_resumption(tmp_path, python) -> None:
    """The real package, without a network; it is not among the locked ones."""
    pytest.importorskip("trackio")
    folder = tmp_path / "trackio"
    off = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY"), "http://127.0.0.1:9")
    for steps in (("0", "1", "2"), ("3",)):
        done = python("-c", TRACKED, str(tmp_path / "base_train/d2"), *steps, TRACKIO_DIR=str(folder), **off)
        assert "is off for the rest" not in done.stdout + done.stderr
    with closing(sqlite3.connect(folder / "nanochat.db")) as database:
        found = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step").fetchall()
    assert [(name, step) for name, step, _ in found] == [("first-base_train", step) for step in range(4)]
    assert [json.loads(figures)["train/loss"] for *_, figures in found] == [1, 1 / 2, 1 / 3, 1 / 4]


EVALUATED = """
from dataclasses import dataclass
from nanochat.config import options
from nanochat.outcome import Outcome
from nanochat.settings import LogSettings, TagSettings

@options("evaluation")
class Config(LogSettings, TagSettings):
    pass

record = Outcome.begin("chat_eval_sft", "d2", Config(run="first", tracker="trackio"))
record.metrics = {"GSM8K": {"value": 0.5}}
record.write_evaluation("eval", 7)
"""

# A package in the place of trackio: it appends each call to a file.
NOTES = """
import json, os
def note(*call):
    with open(os.environ["NOTES"], "a") as file:
        print(json.dumps(call), file=file)
class Run:
    def __init__(self, name):
        self.name = name
    def log(self, figures, step):
        note("log", self.name, step)
    def finish(self):
        note("finish", self.name)
def init(project, name, config, resume, **own):
    note("init", name, resume)
    return Run(name)
"""


def test_each_stage_is_a_run_of_its_own_in_trackio(tmp_path, python) -> None:
    """All stages of a job have one --run, evaluations too; a resumed stage goes on in its own run."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/trackio.py").write_text(NOTES)
    notes = tmp_path / "notes.jsonl"
    variables = {
        "NOTES": str(notes),
        "PYTHONPATH": f"{tmp_path / 'packages'}:{ROOT}",
        "NANOCHAT_BASE_DIR": str(tmp_path),
    }
    trained = ("-c", TRACKED, str(tmp_path / "base_train/d2"))
    for words in ((*trained, "0"), ("-c", EVALUATED), (*trained, "1")):
        assert "is off for the rest" not in python(*words, **variables).stdout
    assert [json.loads(line) for line in notes.read_text().splitlines()] == [
        *(["init", "first-base_train", "allow"], ["log", "first-base_train", 0], ["finish", "first-base_train"]),
        *(
            ["init", "first-chat_eval_sft", "allow"],
            ["log", "first-chat_eval_sft", 7],
            ["finish", "first-chat_eval_sft"],
        ),
        *(["init", "first-base_train", "allow"], ["log", "first-base_train", 1], ["finish", "first-base_train"]),
    ]


class Clock:
    """Time at our command, on a machine that does nothing else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(under_test.time, "monotonic", lambda: self.now)
        self.note = ""
        monkeypatch.setattr(under_test, "OtherWork", lambda: SimpleNamespace(note=lambda: self.note))


def test_a_line_now_and_then_with_the_time_left(monkeypatch, capsys) -> None:
    clock = Clock(monkeypatch)
    progress = Progress()
    for done in range(0, 401, 25):
        clock.now += 2.5
        progress.update(f"{done} of 400", done / 400)
    for _ in range(2):
        progress.close()  # the last update has a line
    clock.now += 10
    progress.update("more", 0)  # of an unknown number
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8 + 2  # 17 updates in 42 seconds, a line every five
    assert lines[:2] == ["25 of 400 | eta: 37.5s", "75 of 400 | eta: 32.5s"]
    assert lines[-3:] == ["375 of 400 | eta: 2.5s", "400 of 400 | eta: 0.0s", "more | eta: ?"]


def test_other_work_has_a_line_after_that_of_the_progress(monkeypatch, capsys) -> None:
    clock = Clock(monkeypatch)
    progress = Progress()
    for done, note in ((0, ""), (1, "the machine is busy: …"), (2, "")):
        clock.now, clock.note = clock.now + 6, note
        progress.update(f"{done} of 4", done / 4)
    lines = [line.partition(" | ")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["0 of 4", "1 of 4", "the machine is busy: …", "2 of 4"]


def test_time_left_follows_progress_and_the_wall_clock(monkeypatch, capsys) -> None:
    """A step is a thousandth of the horizon, whatever that is, and a tenth of the time goes to evaluations."""
    clock, steps = Clock(monkeypatch), Progress()
    clock.now += 60  # it compiles
    steps.update("step 1", 0.001)
    assert "eta: ?" in capsys.readouterr().out
    for step in range(2, 501):
        clock.now += 1.0 + (step % 10 == 0)
        steps.update(f"step {step}", step / 1_000)
    steps.close()
    # After 499 steps in 549 seconds, without the first.
    assert capsys.readouterr().out.splitlines()[-1] == f"step 500 | eta: {duration(500 * 549 / 499)}"
