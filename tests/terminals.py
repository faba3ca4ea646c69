"""A terminal that closes while a command runs in it: from then on each write there fails."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

NEEDS_SETSID = pytest.mark.skipif(sys.platform != "linux", reason="setsid --ctty")
# The terminal is the command's own: as it closes, the kernel sends SIGHUP, which `nohup` ignores, as the tests may too.
KINDS = {"hung up": 'exec env --default-signal=HUP "$@"', "nohup": 'trap "" HUP; exec "$@"'}


def start_in_terminal(
    command: Sequence[str], kind: str, cwd: Path, env: dict[str, str], seen: str
) -> subprocess.Popen[bytes]:
    """Start a command in a terminal, and close that once the command has printed a text; returns the process."""
    ours, its = pty.openpty()
    words = ["setsid", "--ctty", "bash", "-c", KINDS[kind], "bash", *command]
    process = subprocess.Popen(words, stdin=its, stdout=its, stderr=its, cwd=cwd, env=env)
    os.close(its)
    text, end = b"", time.monotonic() + 120
    while seen.encode() not in text:
        assert time.monotonic() < end, text.decode()
        if select.select([ours], [], [], 1)[0]:
            try:
                text += os.read(ours, 65536)
            except OSError as error:  # the command has ended
                raise AssertionError(text.decode()) from error
    os.close(ours)
    return process
