"""Printed lines, progress on a terminal and in a file, text tables, and the metric log with its mirror."""

import io
import json
import os
import re
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest
from base_runs import Base
from screens import OnTerminal, Screen

from nanochat import log as under_test
from nanochat.log import (
    MetricLog,
    PhaseProgress,
    Progress,
    StepProgress,
    duration,
    metric_curve,
    print0,
    print_line,
    read_metrics,
    terminal_table,
)

ROOT = Path(__file__).parent.parent


def test_only_rank_0_prints(monkeypatch, capsys, tmp_path):
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


def test_durations():
    seconds = [0.04, 4.21, 59.4, 59.9, 725, 3600, 12_345]
    assert list(map(duration, seconds)) == ["0.0s", "4.2s", "59.4s", "1m00s", "12m05s", "1h00m", "3h25m"]


def test_a_table_is_aligned_and_remarks_are_not():
    rows = [["first", 1.5, None], ["longer name", 20.25, 3], ["a remark that is longer than any column", None, None]]
    table = {"title": "Title", "columns": [["name", ""], ["score", ".2f"], ["count", "d"]], "rows": rows}
    assert terminal_table(table).splitlines() == [
        "Title",
        "name         score  count",
        "first         1.50      -",
        "longer name  20.25      3",
        "a remark that is longer than any column",
    ]


# ---- the metric log ----


def numbers(log: MetricLog) -> list[tuple]:
    return [(record["kind"], record["step"], record["loss"]) for record in read_metrics(log.path)]


def test_records_are_lines_that_are_there_at_once(tmp_path):
    with MetricLog(tmp_path / "run") as log:
        assert read_metrics(log.path) == []
        log.write("train", 1, loss=2.5)
        assert json.loads(log.path.read_text()) == {"kind": "train", "step": 1, "loss": 2.5}
    with MetricLog(tmp_path / "run") as log:  # another process appends
        log.write("notes", 2, text="한글")
    assert len(read_metrics(log.path)) == 2
    assert "한글" in log.path.read_text(encoding="utf-8")


def test_a_resumed_run_replaces_the_records_after_its_step(tmp_path):
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


def test_records_of_the_older_format_are_read(tmp_path):
    """They have no kind; a step may have several."""
    lines = ['{"step": 0, "val/bpb": 3.0}', *(f'{{"step": {step}, "train/loss": 1.0}}' for step in (1, 2, 3))]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 3, "val/bpb": 2.0}', '{"ratio": 1.5}']) + "\n")
    log = MetricLog(tmp_path)
    assert metric_curve(read_metrics(log.path), "val/bpb") == [[0, 3], [3.0, 2.0]]
    log.resume(2)
    log.write("train", 3, loss=1.0)
    assert [record.get("step") for record in read_metrics(log.path)] == [0, 1, 2, None, 3]


def test_a_curve_keeps_few_points_that_are_averages():
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


# ---- the mirror in W&B ----


@pytest.fixture
def wandb(monkeypatch) -> types.SimpleNamespace:
    """A library that notes its calls, and raises `fail` from the function of that name."""
    module = types.ModuleType("wandb")
    module.calls, module.fail = [], ""

    def call(name: str, *about: object) -> types.ModuleType:
        module.calls.append((name, *about))
        if module.fail == name:
            raise TimeoutError("no server")
        return module

    module.Settings = dict
    module.init = lambda project, name, config, settings: call("init", project, name, config)
    module.log = lambda metrics: call("log", metrics)
    module.finish = lambda: call("finish")
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def three_steps(folder: Path, run: str) -> None:
    with MetricLog(folder, run, {"depth": 2}) as log:
        for step in range(3):
            log.write("train", step)
    assert [record["step"] for record in read_metrics(log.path)] == [0, 1, 2]


def test_a_named_run_is_mirrored_and_no_other(tmp_path, wandb):
    three_steps(tmp_path, "")
    three_steps(tmp_path, "dummy")
    assert wandb.calls == []
    three_steps(tmp_path, "first")
    steps = [("log", {"step": step}) for step in range(3)]
    assert wandb.calls == [("init", "nanochat", "first", {"depth": 2}), *steps, ("finish",)]


@pytest.mark.parametrize(("fail", "calls"), [("init", 1), ("log", 2)])
def test_a_broken_mirror_never_stops_a_run_and_is_reported_once(tmp_path, wandb, capsys, fail, calls):
    wandb.fail = fail
    three_steps(tmp_path, "first")
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("W&B is off for the rest of this run (TimeoutError: no server)")
    assert len(wandb.calls) == calls


def test_a_library_that_is_not_installed(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    three_steps(tmp_path, "first")
    assert "W&B is off for the rest of this run (ModuleNotFoundError" in capsys.readouterr().out


SLOW_SERVER = """
import sys, time
from pathlib import Path
from nanochat import log
log.WANDB_SECONDS = 1.0
start = time.monotonic()
with log.MetricLog(Path(sys.argv[1]), "first", {"depth": 2}) as metrics:
    for step in range(3):
        metrics.write("train", step)
    print(time.monotonic() - start)
"""


def test_a_server_that_never_answers_does_not_delay_training(tmp_path):
    pytest.importorskip("wandb")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        env = os.environ | {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40, "WANDB_MODE": "online"}
        env |= {"WANDB_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-c", SLOW_SERVER, str(tmp_path / "run")]
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
        try:
            trained_after = float(process.stdout.readline())
            silent.settimeout(60)
            silent.accept()  # W&B does ask it
            process.communicate(timeout=90)
        finally:
            process.kill()
            process.wait()
    assert trained_after < 10  # the first request alone would take 5 seconds and more, all of them 90
    assert [record["step"] for record in read_metrics(tmp_path / "run/metrics.jsonl")] == [0, 1, 2]


# ---- progress of a job ----


class Clock:
    """A stream, a terminal or a file, and the time, at our command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, terminal: bool):
        self.now = 100.0
        self.stream = io.StringIO()
        self.stream.isatty = lambda: terminal
        monkeypatch.setattr(under_test.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(sys, "stdout", self.stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "80")

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


def test_a_terminal_has_one_line_that_changes_below_whole_lines(monkeypatch):
    clock, screen = Clock(monkeypatch, terminal=True), Screen()
    progress = Progress("count", "characters", clock.stream)
    for done in range(0, 1_000_001, 100_000):
        clock.now += 0.2
        progress.update(done, 1_000_000, note="a note that is too long for the rest of the line")
        if done == 500_000:
            print_line("an event", file=clock.stream)
    progress.close()
    screen.feed(clock.stream.getvalue())
    assert screen.rows == ["an event", "count: 1,000,000 characters in 2.2s | 454.5k/s", ""]
    states = [state for state in screen.states if state]
    assert len(states) >= 11
    assert all(len(state) < 80 for state in states)
    assert all(re.match(r"count: \[#*\.*\] +\d+% of 1\.0M characters \| \S+/s \| \S+ left", one) for one in states)


def test_a_dumb_terminal_is_a_file(monkeypatch):
    clock = Clock(monkeypatch, terminal=True)
    monkeypatch.setenv("TERM", "dumb")
    progress = Progress("count", "words", clock.stream)
    clock.now += 10
    progress.update(50, 0)
    progress.close()
    assert clock.lines == ["count: 50 words | 5/s", "count: 50 words in 10.0s | 5/s"]


def test_a_file_has_plain_lines_now_and_then_with_the_time_left(monkeypatch):
    clock = Clock(monkeypatch, terminal=False)
    progress = Progress("step", "steps", clock.stream)
    for done in range(0, 401, 25):
        clock.now += 2.5
        progress.update(done, 400, "loss 2.5" if done == 75 else "")
    assert len(clock.lines) == 8  # 17 updates in 42 seconds, a line every five
    assert clock.lines[:2] == [
        "step:   6% of 400 steps | 5/s | 1m15s left",
        "step:  19% of 400 steps | 8/s | 43.3s left | loss 2.5",
    ]
    clock.now += 10
    progress.update(500, 400)  # the total was too low
    assert clock.lines[-1] == "step: 100% of 500 steps | 10/s | 0.0s left"


def test_phases_close_one_after_the_other(capsys):
    progress = PhaseProgress(count=("characters", 50), merge=("merges", 0))
    progress("count", 20, 90)
    progress("count", 40, 90)
    progress("merge", 7, 7)
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" in ")[0] for line in lines] == ["count: 40 characters", "merge: 7 merges"]


# ---- progress of training steps ----


def update(clock: Clock, steps: StepProgress, step: int, progress: float, wall: float) -> str:
    """Take a step of one second, which ends `wall` seconds after the one before; return the text it shows."""
    clock.now += wall
    before = len(clock.stream.getvalue())
    figures = dict.fromkeys(("train/lrm", "train/dt", "train/tok_per_sec", "train/wait"), 1.0)
    figures |= {"step": step, "progress": progress, "train/mfu": None, "total_training_time": float(step)}
    steps.update(figures, 2.5, 100 * step, "reward 0.500")
    return clock.stream.getvalue()[before:]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("total", [1_000, None])
def test_time_left_follows_progress_and_the_wall_clock(monkeypatch, terminal, total):
    """A step is a thousandth of the horizon, whatever that is, and a tenth of the time goes to evaluations."""
    clock, steps = Clock(monkeypatch, terminal), StepProgress(total)
    first = update(clock, steps, 1, 0.001, wall=60)  # it compiles
    assert ("? left" if terminal else "eta: ?") in first
    for step in range(2, 501):
        shown = update(clock, steps, step, step / 1_000, wall=1.0 + (step % 10 == 0))
    left = duration(500 * 549 / 499)  # after 499 steps in 549 seconds, without the first
    steps.close()
    shown = shown if terminal else clock.lines[-1]
    assert (f"{left} left" if terminal else f"eta: {left}") in shown
    assert ("step 00500/01000" if total else "step 00500") in shown
    if terminal:
        assert "| reward 0.500 | 100 tokens/s |" in shown


def test_lines_of_a_long_run_become_rare_but_its_last_step_has_one(monkeypatch):
    clock, steps = Clock(monkeypatch, terminal=False), StepProgress(10_000)
    for step in range(1, 10_000):
        update(clock, steps, step, step / 10_000, wall=0.25)
    lines = clock.lines
    assert lines[0].startswith("step 00001/10000 ")
    assert 2_500 / 10 < len(lines) < 600
    steps.close()
    steps.close()
    assert clock.lines[len(lines)].startswith("step 09999/10000 ")
    assert len(clock.lines) == len(lines) + 1
    assert not re.search(r"[\r\x1b]", clock.stream.getvalue())


STATUS = r"step \d{5}: \[#*\.*\] +\d+% \| loss \d\.\d{4} \| \S+ tokens/s \| \S+ left"
PLAIN = r"step \d{5} \(\d+\.\d\d%\) \| loss: .* \| total time: \S+( \| eta: \S+)?"
EVENTS = [r"step \d{5} \| validation bpb: \d\.\d{4} ± \d\.\d{4}", r"sample: The opposite of hot is \.\.\. .*"]


def test_base_training_on_a_terminal(tmp_path):
    base = Base(tmp_path)
    flags = ["--sample-every=6", "--eval-every=4", "--save-every=8", "--num-iterations=-1", "--target-seconds=2"]
    words = (sys.executable, "-m", "scripts.base_train", *base.flags("live", *flags))
    terminal, screen = OnTerminal(*words, NANOCHAT_BASE_DIR=str(base.folder), OMP_NUM_THREADS="1"), Screen()
    text = terminal.read()
    assert terminal.process.returncode == 0, text
    screen.feed(text)
    states = [state for state in screen.states if re.fullmatch(STATUS, state)]
    assert len(set(states)) > 3, screen.states
    assert max(map(len, states)) < 80
    # Only whole events and the last step stay.
    steps = [row for row in screen.rows if row.startswith("step ")]
    assert all(re.fullmatch(f"{EVENTS[0]}|{PLAIN}", row) for row in steps), steps
    assert len([row for row in steps if re.fullmatch(PLAIN, row)]) == 1
    for event in EVENTS:
        assert len([row for row in screen.rows if re.fullmatch(event, row)]) >= 1, screen.rows


FAILING = """
import dataclasses, sys
from nanochat import config, log
@dataclasses.dataclass(frozen=True)
class Config: ...
def main(config):
    log.show_status("CORE", 0.5, "50%", sys.stderr)
    open("/no/such/file")
config.run(main, Config)
"""


def test_an_error_has_a_line_of_its_own():
    screen = Screen()
    screen.feed(OnTerminal(sys.executable, "-c", FAILING).read())
    assert screen.rows == ["error: /no/such/file: No such file or directory", ""]
    assert "CORE: [##########..........] 50%" in screen.states
