"""Training on a real terminal and into a file, by the very script; what is shown, line by line."""

import io
import re
import sys

import pytest
from base_runs import Base
from screens import OnTerminal, Screen

from nanochat import console
from nanochat.console import Steps
from nanochat.log import duration

FLAGS = ["--sample-every=10", "--eval-every=6", "--save-every=8", "--num-iterations=-1", "--target-seconds=3"]
LIVE = r"step \d{5}: \[#*\.*\] +\d+% \| loss \d\.\d{4} \| \S+ tokens/s \| \S+ left"
PLAIN = r"step \d{5} \(\d+\.\d\d%\) \| loss: .* \| total time: \S+( \| eta: \S+)?"
EVENTS = [r"step \d{5} \| validation bpb: \d\.\d{4} ± \d\.\d{4}", r"sample: The opposite of hot is \.\.\. .*"]


BROKEN = """
import dataclasses, sys
from nanochat import config, log
@dataclasses.dataclass(frozen=True)
class Config: ...
def main(config):
    log.show_live("CORE", 0.5, "50%", sys.stderr)
    open("/no/such/file")
config.run(main, Config)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Base:
    return Base(tmp_path_factory.mktemp("console"))


def test_a_terminal_shows_one_live_line_below_whole_events(base):
    words = (sys.executable, "-m", "scripts.base_train", *base.flags("live", *FLAGS))
    terminal = OnTerminal(*words, NANOCHAT_BASE_DIR=str(base.folder), OMP_NUM_THREADS="1")
    text, screen = terminal.read(), Screen()
    assert terminal.process.returncode == 0, text
    screen.feed(text)
    live = [state for state in screen.states if re.fullmatch(LIVE, state)]
    assert len(live) > 3, screen.states
    assert len(set(live)) > 3
    assert max(map(len, live)) < 80
    # What stays: whole events, and of steps the last one alone.
    assert not [row for row in screen.rows if "[" in row and "left" in row]
    steps = [row for row in screen.rows if row.startswith("step ")]
    assert all(re.fullmatch(f"{EVENTS[0]}|{PLAIN}", row) for row in steps), steps
    assert len([row for row in steps if re.fullmatch(PLAIN, row)]) == 1
    for event in EVENTS:
        assert len([row for row in screen.rows if re.fullmatch(event, row)]) > 2, screen.rows


def test_a_file_has_plain_lines_alone(base):
    done = base.start("file", *FLAGS)
    text = done.done() + done.err()
    assert "\r" not in text
    assert "\x1b" not in text
    lines = [line for line in text.splitlines() if line.startswith("step ")]
    assert all(re.fullmatch(f"{EVENTS[0]}|{PLAIN}", line) for line in lines), lines
    plain = [line for line in lines if re.fullmatch(PLAIN, line)]
    last = int(re.search(r"step (\d+)", plain[-1])[1])
    assert 2 <= len(plain) < last / 2, f"{len(plain)} lines of {last} steps"
    assert "(100.00%)" in plain[-1]


def test_what_a_user_can_mend_stands_on_a_line_of_its_own(base):
    screen = Screen()
    screen.feed(OnTerminal(sys.executable, "-c", BROKEN).read())
    assert screen.rows == ["error: /no/such/file: No such file or directory", ""]
    assert "CORE: [##########..........] 50%" in screen.states


# ---- the time left ----


class Clock:
    """The wall's clock and a terminal, or a file, at our command."""

    def __init__(self, monkeypatch, terminal: bool):
        self.now, self.stream = 100.0, io.StringIO()
        self.stream.isatty = lambda: terminal
        monkeypatch.setattr(console.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(sys, "stdout", self.stream)
        monkeypatch.setenv("TERM", "xterm")

    def tell(self, steps: Steps, step: int, progress: float, wall: float) -> str:
        """A step of a second, which ends `wall` seconds after the one before; what was shown of it."""
        self.now += wall
        before = len(self.stream.getvalue())
        names = "train/lrm train/dt train/tok_per_sec train/wait".split()
        figures = {"step": step, "progress": progress, **dict.fromkeys(names, 1.0), "train/mfu": None}
        steps.tell(figures | {"total_training_time": float(step)}, 2.5, 100 * step, "reward 0.500")
        return self.stream.getvalue()[before:]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("total", [1_000, None])
def test_time_left_follows_progress_and_the_wall(monkeypatch, terminal, total):
    """Of any horizon: a step is a thousandth of it, and a tenth of the time goes to what is not training."""
    clock, steps = Clock(monkeypatch, terminal), Steps(total)
    first = clock.tell(steps, 1, 0.001, wall=60)  # it compiles
    assert ("? left" if terminal else "eta: ?") in first
    shown = [clock.tell(steps, step, step / 1_000, wall=1.0 + (step % 10 == 0)) for step in range(2, 501)][-1]
    assert clock.now == 100 + 60 + 499 + 50
    left = duration(500 * 549 / 499)  # of the last step: half of the way, without the first
    steps.close()
    told = shown if terminal else clock.stream.getvalue().splitlines()[-1]
    assert (f"{left} left" if terminal else f"eta: {left}") in told
    assert ("step 00500/01000" if total else "step 00500") in told
    if terminal:
        assert "| reward 0.500 | 100 tokens/s |" in told


def test_lines_of_a_long_run_become_rare_but_its_last_step_has_one(monkeypatch):
    clock, steps = Clock(monkeypatch, False), Steps(10_000)
    for step in range(1, 10_000):
        clock.tell(steps, step, step / 10_000, wall=0.25)
    lines = clock.stream.getvalue().splitlines()
    assert lines[0].startswith("step 00001/10000 ")
    assert 2_500 / 10 < len(lines) < 600
    steps.close()
    steps.close()
    assert clock.stream.getvalue().splitlines()[len(lines) :][0].startswith("step 09999/10000 ")
    assert len(clock.stream.getvalue().splitlines()) == len(lines) + 1
