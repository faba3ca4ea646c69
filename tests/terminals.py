"""A terminal that closes while a command runs in it: from then on each write there fails."""

import os
import pty
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

# The terminal is the command's own: as it closes, the kernel sends SIGHUP, which `nohup` ignores.
KINDS = {"hung up": 'exec "$@"', "nohup": 'trap "" HUP; exec "$@"'}


def start_in_terminal(command: Sequence[str], kind: str, cwd: Path, env: dict[str, str], seen: str):
    """Start a command in a terminal, and close that once the command has printed a text; returns the process."""
    ours, its = pty.openpty()
    words = ["setsid", "--ctty", "bash", "-c", KINDS[kind], "bash", *command]
    process = subprocess.Popen(words, stdin=its, stdout=its, stderr=its, cwd=cwd, env=env)
    os.close(its)
    text, end = b"", time.monotonic() + 120
    while seen.encode() not in text:
        assert time.monotonic() < end, text.decode()
        if select.select([ours], [], [], 1)[0]:
            text += os.read(ours, 65536)
    os.close(ours)
    return process
