"""scripts.chat_cli as a user runs it: at a terminal, with one prompt, through a pipe, and without a model."""

import codecs
import fcntl
import io
import os
import pty
import select
import shutil
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import ROOT
from engines import TOKENIZER
from models import leave_model

from scripts.chat_cli import HISTORY

CHAT = (sys.executable, "-m", "scripts.chat_cli")
FLAGS = ("--device-type=cpu", "--dtype=fp32", "--max-new-tokens=40", "-t", "1", "-k=30")
GREEDY = ("--device-type=cpu", "--dtype=fp32", "--max-new-tokens=40", "-t", "0")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    for stage in ("base_train", "chat_sft"):
        more = {"config": {"chat_temperature": 0.0}, "suggestions": {"questions": list("abcd")}}
        leave_model(folder, stage, "mine", TOKENIZER, max_seq_len=192, more=more)
    return folder


class Person:
    """A person at a terminal, who types and reads."""

    def __init__(self, base: Path, flags: tuple[str, ...] = FLAGS, **variables: str) -> None:
        self.terminal, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        env |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", "NANOCHAT_BASE_DIR": str(base), "OMP_NUM_THREADS": "1"}
        env |= variables
        self.process = subprocess.Popen(
            [*CHAT, *flags],
            env=env,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            # The terminal is the process's own: its Ctrl-C is a signal.
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(follower)
        self.decoder, self.text = codecs.getincrementaldecoder("utf-8")(), ""
        self.read_until("> ")

    def read_until(self, end: str):
        seen, limit = "", time.monotonic() + 200
        while not seen.endswith(end):
            ready, _, _ = select.select([self.terminal], [], [], max(0.0, limit - time.monotonic()))
            assert ready, f"{seen!r} is all that came"
            seen += self.decoder.decode(os.read(self.terminal, 1 << 16))
        self.text += seen
        return seen

    def leave(self) -> None:
        os.write(self.terminal, b"\x15\x04")  # Ctrl-U, Ctrl-D
        assert self.process.wait(60) == 0

    def type(self, text: str, end: str = "> "):
        os.write(self.terminal, text.encode())
        return self.read_until(end)


def test_a_chat_at_a_terminal(base) -> None:
    person = Person(base)
    assert "model: chat_sft mine, step 7\r\n" in person.text
    assert "/clear starts a new conversation" in person.text
    assert "ask, for example:\r\n  a\r\n  b\r\n  c\r\n> " in person.text
    person.type("hello 한국\r")
    assert "there is no command /sav" in person.type("/sav\r")
    person.type("\x1b[A\x1b[A", "hello 한국")  # the up arrow
    person.type("\x15one\r")
    person.type("\x1b[200~two\rthree\x1b[201~\r")  # lines pasted together are one message
    assert "two" in person.type("\x1b[A", "three")
    person.leave()


def test_lines_of_earlier_chats_come_back(base) -> None:
    history = base / HISTORY
    history.unlink(missing_ok=True)
    first = Person(base)
    first.type("hello 한국\r")
    first.type("\r")
    first.type("hello 한국\r")  # the same again is one entry
    first.type("more\r")
    # Each line is there at once: this chat is killed.
    assert history.read_text(encoding="utf-8").splitlines() == ["hello 한국", "more"]
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    os.kill(first.process.pid, signal.SIGKILL)
    history.chmod(0o644)
    second, third = Person(base), Person(base)
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "more" in second.type("\x1b[A", "more")
    second.type("\x1b[A", "hello 한국")
    second.type("!\r")
    third.type("of another chat\r")
    second.leave()
    third.leave()
    assert history.read_text(encoding="utf-8").splitlines() == ["hello 한국", "more", "hello 한국!", "of another chat"]


def test_messages_of_several_lines_at_a_terminal(base) -> None:
    person = Person(base, GREEDY)
    assert "of several lines, end a line with \\, or put" in person.text
    person.type("one\\\r", "... ")
    person.type("two\\\r", "... ")
    # Ctrl-C gives the message up, and does not leave. One that comes while readline takes over the terminal is lost.
    for _ in range(6):
        os.write(person.terminal, b"\x03")
        if select.select([person.terminal], [], [], 20)[0]:
            break
    person.read_until("> ")
    person.type("one\\\r", "... ")
    backslash = person.type("two\r")
    person.type("/clear\r")
    person.type('"""one\r', "... ")
    quoted = person.type('two"""\r')
    person.type("/clear\r")
    pasted = person.type("\x1b[200~one\rtwo\x1b[201~\r")

    def answer(text: str):
        return text.partition("two")[2].partition("\n")[2]

    # These were the same messages.
    assert answer(backslash) == answer(quoted)
    assert answer(pasted).endswith(answer(quoted))
    # Ctrl-C at the prompt leaves; one in an answer, which may not have ended yet, ends the answer.
    for _ in range(20):
        os.write(person.terminal, b"\x03")
        with suppress(subprocess.TimeoutExpired):
            assert person.process.wait(3) == 0
            break
    assert person.process.returncode == 0


def test_a_chat_without_readline_or_a_place_for_the_history(base, tmp_path) -> None:
    (tmp_path / "readline.py").write_text("raise ImportError('Python was built without it')", encoding="utf-8")
    person = Person(base, PYTHONPATH=f"{tmp_path}:{ROOT}")
    person.type("hello\r")
    person.leave()
    blocked = tmp_path / "base"
    shutil.copytree(base, blocked)
    shutil.rmtree(blocked / "chat_cli", ignore_errors=True)
    (blocked / "chat_cli").write_text("no folder", encoding="utf-8")
    person = Person(blocked)
    assert "the lines of this chat are not kept" in person.text
    person.type("hello\r")
    person.leave()
    (blocked / "chat_cli").unlink()
    person = Person(blocked)
    (blocked / HISTORY).unlink()
    (blocked / HISTORY).mkdir()  # as bad as a full disk
    assert "this line is not kept" in person.type("hello\r")
    person.leave()


def test_stdout_has_the_answers_only(base, here, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base))
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    lines = b"hello\n\nand more\\\nof it\n/quit\nnever read\n\xff"
    done = subprocess.run([*CHAT, *FLAGS], env=env, input=lines, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello")))
    one = here("scripts.chat_cli", *FLAGS, "--seed=0", "-i", "sft", "-g=mine", "-s", "7", "-p", "-")
    assert done.stdout.decode().startswith(one.stdout)
    assert len(done.stdout.decode()) > len(one.stdout) > 1
    assert "model: chat_sft mine, step 7" in one.stderr.splitlines()
    # The temperature is the model's own unless one is given. The checkpoint says 0, greedy.
    plain = ("--device-type=cpu", "--dtype=fp32", "--max-new-tokens=40", "-i", "sft", "-p", "hello")
    own, greedy, sampled = (here("scripts.chat_cli", *plain, *words).stdout for words in ((), ("-t=0",), ("-t=1",)))
    assert own == greedy != sampled
    assert len(own) > 1


def test_bf16_on_a_cpu_without_avx512(base) -> None:
    """There oneDNN has no bf16; the variables take its instructions and torch's away on other machines too."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "NANOCHAT_BASE_DIR": str(base), "OMP_NUM_THREADS": "1"}
    env |= {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    flags = ("--device-type=cpu", "--dtype=bf16", "--max-new-tokens=40", "-p", "hello")
    done = subprocess.run([*CHAT, *flags], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "precision: bf16" in done.stderr
    assert len(done.stdout) > 1
