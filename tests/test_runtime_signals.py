"""Signals that wait for a step's end, and the garbage collector that waits for its turn; real processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from nanochat.runtime import stop_requests

ROOT = Path(__file__).parent.parent
STEPS = """
import time
from nanochat import runtime
runtime.ECHO_SECONDS = 0.3
with runtime.stop_requests() as asked:
    print("ready", flush=True)
    time.sleep(SLEEP)  # a step: it is not cut short
    while not asked:
        time.sleep(0.01)
    print("asked", asked[0], flush=True)
"""


def start(program: str) -> subprocess.Popen:
    child = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    return child


def test_a_signal_waits_for_the_end_of_the_step():
    children = {
        name: start(STEPS.replace("SLEEP", "1")) for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP", "SIGQUIT")
    }
    for name, child in children.items():
        child.send_signal(signal.Signals[name])
    for name, child in children.items():
        assert child.stdout.read().endswith(f"asked {name}\n")
        assert child.wait(30) == 0


def test_an_echo_is_not_a_second_signal_but_a_later_one_is():
    child = start(STEPS.replace("SLEEP", "60"))
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)
    time.sleep(0.6)
    assert child.poll() is None
    end = time.monotonic() + 30
    while child.poll() is None and time.monotonic() < end:  # on a slow machine it may have heard the first just now
        child.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    assert child.returncode == 128 + signal.SIGTERM


def test_handlers_are_given_back():
    before = signal.getsignal(signal.SIGINT)
    with contextlib.suppress(ZeroDivisionError), stop_requests() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert asked == ["SIGINT"]
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before
