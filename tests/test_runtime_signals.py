"""A second signal, and handlers that are given back; tests/test_run.py has signals that wait for a step's end."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT

from nanochat.runtime import stop_requests

STEP = """
import time
from nanochat import runtime
runtime.ECHO_SECONDS = 0.3
with runtime.stop_requests():
    print("ready", flush=True)
    time.sleep(60)
"""


def test_an_echo_is_not_a_second_signal_but_a_later_one_is():
    child = subprocess.Popen([sys.executable, "-c", STEP], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)
    time.sleep(0.6)
    assert child.poll() is None
    end = time.monotonic() + 30
    while child.poll() is None and time.monotonic() < end:  # on a slow machine it may have heard the first just now
        child.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    assert child.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_signals_are_collected_and_handlers_given_back(name):
    number = signal.Signals[name]
    before = signal.getsignal(number)
    with contextlib.suppress(ZeroDivisionError), stop_requests() as asked:
        os.kill(os.getpid(), number)
        time.sleep(0.01)
        assert asked == [name]
        raise ZeroDivisionError
    assert signal.getsignal(number) is before


def test_nohup_keeps_its_promise():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_requests() as asked:
            os.kill(os.getpid(), signal.SIGHUP)
        assert asked == []
    finally:
        signal.signal(signal.SIGHUP, before)
