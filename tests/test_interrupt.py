"""Signals that wait for a step's end, and the garbage collector that waits for its turn; real processes."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from nanochat.interrupt import signals, without_garbage_collection

ROOT = Path(__file__).parent.parent
STEPS = """
import time
from nanochat import interrupt
interrupt.ECHO_SECONDS = 0.3
with interrupt.signals() as asked:
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


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_waits_for_the_end_of_the_step(name):
    child = start(STEPS.replace("SLEEP", "1"))
    child.send_signal(signal.Signals[name])
    said = child.stdout.read()
    assert child.wait(30) == 0
    assert said.endswith(f"asked {name}\n")


def test_an_echo_is_not_a_second_signal_but_a_later_one_is():
    child = start(STEPS.replace("SLEEP", "60"))
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)
    time.sleep(0.6)
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 128 + signal.SIGTERM


def test_a_second_signal_ends_the_last_save_too():
    """The loop has heard the first one and is left; who saves its checkpoint listens as well."""
    loop = textwrap.indent(STEPS.partition("0.3\n")[2].replace("SLEEP", "0"), "    ")
    child = start(f"{STEPS.partition('with')[0]}with interrupt.signals():\n{loop}    time.sleep(60)  # saving")
    child.send_signal(signal.SIGTERM)
    assert "asked SIGTERM\n" in [
        child.stdout.readline() for _ in range(2)
    ]  # beside what the handler says, in any order
    time.sleep(0.6)
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 128 + signal.SIGTERM


def test_a_signal_may_come_while_the_process_prints():
    program = (
        STEPS[: STEPS.index("    time.sleep(SLEEP)")]
        + """
    while not asked:
        print("x" * 5000, flush=True)
    print("asked", asked[0], flush=True)
"""
    )
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    child = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=buffered, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.5)  # by then the pipe is full, and print waits in it
    child.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert "\nasked SIGTERM\n" in child.communicate(timeout=30)[0]
    assert child.returncode == 0


def test_handlers_are_given_back():
    before = signal.getsignal(signal.SIGINT)
    with contextlib.suppress(ZeroDivisionError), signals() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert asked == ["SIGINT"]
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_garbage_is_collected_when_told_and_normally_afterwards():
    with without_garbage_collection() as collect:
        assert gc.isenabled()
        collect()
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
