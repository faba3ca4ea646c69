"""A person's terminal, or a pipe in its place: messages of one line or several come in, answers go out as they come."""

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from nanochat.chat import Piece
from nanochat.log import is_terminal

FENCE, BLOCK = "```", '"""'
PROMPT, MORE = "> ", ". "  # before a message, and before its further lines
PASTED = 0.05  # seconds: a line that comes so soon after another was not typed but pasted with it
REMEMBERED = 1000  # lines of the history
CALL, NOTE, PLAIN = "\x1b[36m", "\x1b[2m", "\x1b[0m"  # colours: the calculator's turns, what no model says, the rest
# What a terminal would obey becomes a picture of itself, but for ends of lines and tabs.
OBEYED = [code for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"]
HARMLESS = {code: 0x2400 + code if code < 32 else 0xFFFD for code in OBEYED}

# ---- what comes in ----


def piped(stream: TextIO) -> Iterator[str]:
    """The messages of a text."""

    def read(prompt: str) -> str:
        if line := stream.readline():
            return line.removesuffix("\n")
        raise EOFError

    return _messages(read, lambda: False, lambda: False)


def typed(history: Path) -> Iterator[str]:
    """The messages of a person, until Ctrl-D, or Ctrl-C where nothing has been typed; lines are kept in the history."""
    try:
        import readline
    except ImportError:  # Windows: its console has a history of its own
        readline = None
    history.parent.mkdir(parents=True, exist_ok=True)
    history.touch()
    history.chmod(0o600)  # for one's own eyes
    lines = history.read_text(encoding="utf-8", errors="replace").split("\n")[-REMEMBERED - 1 :]
    history.write_text("\n".join(lines), encoding="utf-8")
    for line in lines[:-1] if readline else ():
        readline.add_history(line)

    def read(prompt: str) -> str:
        line = input(prompt)
        with open(history, "a", encoding="utf-8") as file:
            file.write(f"{line}\n" if line.strip() else "")
        return line

    def more() -> bool:
        return bool(select.select([sys.stdin], [], [], PASTED)[0])

    return _messages(read, more, lambda: bool(readline and readline.get_line_buffer()))


def _messages(read: Callable[[str], str], more: Callable[[], bool], begun: Callable[[], bool]) -> Iterator[str]:
    """read: a line, or EOFError. more: whether there is one already. begun: whether Ctrl-C left a part of one."""
    lines: list[str] = []

    def keep(prompt: str) -> str:
        lines.append(read(prompt))
        return lines[-1]

    while True:
        lines.clear()
        try:
            message = _message(keep, more)
        except EOFError:
            return
        except KeyboardInterrupt:
            print()
            if not lines and not begun():
                return
            message = ""  # given up
        if message.strip():
            yield message


def _message(read: Callable[[str], str], more: Callable[[], bool]) -> str:
    """All lines of a message; where lines end, so does it."""
    text = read(PROMPT)
    if text.startswith("/"):
        return text
    in_block = text.startswith(BLOCK)
    text = text.removeprefix(BLOCK)
    try:
        while True:
            if in_block and text.rstrip().endswith(BLOCK):
                return text.rstrip().removesuffix(BLOCK).strip("\n")
            if in_block or text.count(FENCE) % 2:
                text += "\n" + read(MORE)
            elif text.endswith("\\"):
                text = text[:-1] + "\n" + read(MORE)
            elif more():
                text += "\n" + read(MORE)
            else:
                return text
    except EOFError:
        return text


@contextmanager
def heeding(attended: bool) -> Iterator[list[int]]:
    """Where somebody attends, Ctrl-C ends nothing at once: that it came is in the list."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number)) if attended else None
    try:
        yield came
    finally:
        if attended:
            signal.signal(signal.SIGINT, before)


# ---- what goes out ----


def colored(color: str, text: str, stream: TextIO) -> str:
    """The same text where the stream shows no colours."""
    return f"{color}{text}{PLAIN}" if is_terminal(stream) and not os.environ.get("NO_COLOR") else text


class Shown:
    """An answer on a stream, piece by piece: on a terminal with the calculator's turns, else what is said alone."""

    def __init__(self, stream: TextIO):
        self._stream, self._to_see = stream, stream.isatty()
        self._calling, self._newest = False, ""

    def add(self, pieces: list[Piece]) -> None:
        for kind, text in pieces:
            if kind == "text" and text:
                self._end_call()
                self._write(text)
            elif kind != "text" and self._to_see:
                begins = "" if text else {"python": "[", "python_output": " = "}[kind]
                if begins == "[":
                    self._end_call()
                self._calling = True
                self._write(begins + text, CALL)
        self._stream.flush()

    def close(self) -> None:
        """The answer ends, and with it its last line."""
        self._end_call()
        if self._newest != "\n":
            self._write("\n")
        self._stream.flush()

    def _end_call(self) -> None:
        if self._calling:
            self._write("]", CALL)
        self._calling = False

    def _write(self, text: str, color: str = "") -> None:
        text = text.translate(HARMLESS) if self._to_see else text
        self._stream.write(colored(color, text, self._stream) if color else text)
        self._newest = text[-1:] or self._newest
