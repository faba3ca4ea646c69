"""A process on a terminal of its own."""

import codecs
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Iterator

from conftest import ROOT


class OnTerminal:
    """A process whose standard streams are a terminal; `rows` and `columns` are its size."""

    def __init__(self, *command: str, rows: int = 24, columns: int = 80, **variables: str):
        self.leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        env |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", **variables}
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
        self.process = subprocess.Popen(command, env=env, **streams)
        os.close(follower)

    def output(self) -> Iterator[str]:
        """What it writes, as it comes, to its end."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        while True:
            try:
                part = os.read(self.leader, 1 << 16)
            except OSError:  # how Linux tells that the other end is closed
                part = b""
            if not part:
                os.close(self.leader)
                return
            yield decoder.decode(part)
