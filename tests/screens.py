"""A process on a terminal of its own, and what a person sees there: lines, once all moving and clearing is done."""

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODES = re.compile(r"\x1b\[\??([\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Screen:
    """rows: what stands there. Knows what we send: \\r, \\n, \\x1b[K, [H, [J, and colours, which it drops."""

    def __init__(self):
        self.rows, self.row, self.column, self.states = [""], 0, 0, []

    def feed(self, text: str) -> None:
        """states: each text that an unfinished line has shown, in order."""
        end = 0
        for match in CODES.finditer(text):
            assert match.start() == end, f"{text[end : match.start()]!r} is nothing that this screen knows"
            end = match.end()
            number, code, control, plain = match.groups()
            here = self.rows[self.row]
            if plain:
                self.rows[self.row] = here[: self.column].ljust(self.column) + plain + here[self.column + len(plain) :]
                self.column += len(plain)
            elif control == "\r":
                self.column = 0
            elif control == "\n":
                self.row += 1
                self.rows += [""] * (self.row == len(self.rows))
            elif code == "K":
                self.rows[self.row] = here[: self.column]
                self.states.append(self.rows[self.row])
            elif code == "H":
                self.row = self.column = 0
            elif code == "J":
                self.rows = [] if number == "2" else [*self.rows[: self.row], here[: self.column]]
                self.rows += [""] * (self.row + 1 - len(self.rows))
            else:
                assert code in "mhl", match[0]
        assert end == len(text), text[end:]


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

    def read(self) -> str:
        """All of it, once the process has ended."""
        text = "".join(self.output())
        self.process.wait()
        return text
