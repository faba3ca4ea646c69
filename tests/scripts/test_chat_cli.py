"""scripts.chat_cli as a user runs it: at a terminal, with one prompt, through a pipe, and without a model."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engines import TOKENIZER
from models import leave_model
from screens import ROOT, OnTerminal

from nanochat.config import parse
from scripts.chat_cli import HISTORY, Config

CHAT = (sys.executable, "-m", "scripts.chat_cli")
FLAGS = ("--device-type=cpu", "--dtype=fp32", "--max-new-tokens=40", "-t", "1", "-k=30")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    for stage in ("base_train", "chat_sft"):
        leave_model(folder, stage, "mine", TOKENIZER, max_seq_len=192)
    return folder


def run_chat(base: Path, *flags: str, stdin: bytes = b"") -> subprocess.CompletedProcess:
    env = os.environ | {"PYTHONPATH": str(ROOT), "NANOCHAT_BASE_DIR": str(base), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*CHAT, *flags], env=env, input=stdin, capture_output=True, timeout=120)
    return subprocess.CompletedProcess(flags, done.returncode, done.stdout.decode(), done.stderr.decode())


class Person:
    """A person at a terminal, who types and reads."""

    def __init__(self, base: Path):
        variables = {"NANOCHAT_BASE_DIR": str(base), "OMP_NUM_THREADS": "1"}
        self.terminal = OnTerminal(*CHAT, *FLAGS, rows=40, columns=100, **variables)
        self.output, self.text = self.terminal.output(), ""
        self.read_until("> ")

    def read_until(self, end: str, seconds: float = 200.0) -> str:
        """Return the text up to a certain end."""
        seen, limit = "", time.monotonic() + seconds
        while not seen.endswith(end):
            ready, _, _ = select.select([self.terminal.leader], [], [], max(0.0, limit - time.monotonic()))
            assert ready, f"{seen!r} is all that came"
            seen += next(self.output)
        self.text += seen
        return seen

    def type(self, text: str, end: str = "> ") -> str:
        os.write(self.terminal.leader, text.encode())
        return self.read_until(end)

    def interrupt(self, end: str = "> ") -> str:
        """Press Ctrl-C. A signal just before readline waits for a key is noticed with the next one only."""
        for _ in range(10):
            self.terminal.process.send_signal(signal.SIGINT)
            if select.select([self.terminal.leader], [], [], 3)[0]:
                break
        return self.read_until(end)


def control_characters(text: str) -> list[str]:
    """Return control characters except for ends of lines, colors and bracketed paste."""
    text = re.sub(r"\x1b\[(\d*m|\?2004[hl])", "", text)
    return [code for code in text if (ord(code) < 32 and code not in "\t\r\n") or 127 <= ord(code) < 160]


def test_a_chat_at_a_terminal(base, tmp_path):
    chats, history = tmp_path / "chats.jsonl", base / HISTORY
    history.parent.mkdir()
    history.write_text("/save nowhere\n", encoding="utf-8")
    person = Person(base)
    assert "model: chat_sft mine, step 7\r\n" in person.text
    assert person.text.endswith("\r\n/help lists the commands, Ctrl-D leaves\r\n> ")
    assert not control_characters(person.type("hello 한국\r").split("\r\n", 1)[1])
    assert "```\r\n. two\r\n. ```\r\n" in person.type("```\rtwo\r```\r")
    assert "there is no command /sav" in person.type("/sav\r")
    assert "nowhere" in person.type("\x1b[A\x1b[A\x1b[A\x1b[A\x1b[A\x1b[A", "nowhere")  # the up arrow
    person.type(f"\x15/save {chats}\r")
    person.type("/clear\r")
    person.type("\x1b[200~one\rtwo\x1b[201~\r")  # pasted lines are one message
    person.type(f"/save {chats}\r")
    conversations = [json.loads(line)["messages"] for line in chats.read_text(encoding="utf-8").splitlines()]
    questions = [[message["content"] for message in messages[::2]] for messages in conversations]
    assert questions == [["hello 한국", "```\ntwo\n```"], ["one\ntwo"]]
    # Ctrl-D ends a message of several lines. Ctrl-C gives one up, and leaves if there is none.
    person.type('"""\r', ". ")
    person.type("three\r", ". ")
    person.type("\x04")
    person.type("half a line", "half a line")
    person.interrupt()
    person.type("four\\\r", ". ")
    person.interrupt()
    person.interrupt("\r\n")
    assert person.terminal.process.wait(60) == 0
    kept = history.read_text(encoding="utf-8").splitlines()
    assert kept[:2] == ["/save nowhere", "hello 한국"]
    assert kept[-3:] == ['"""', "three", "four\\"]
    assert history.stat().st_mode & 0o077 == 0
    assert "\x1b[2m" in person.text


def test_stdout_has_the_answers_only(base, tmp_path):
    saved = tmp_path / "chats.jsonl"
    stdin = f"hello\n\nand \\\nmore\n/save {saved}\n/quit\nnever read\n".encode() + b"\xff"
    done = run_chat(base, *FLAGS, stdin=stdin)
    assert done.returncode == 0, done.stderr
    [conversation] = map(json.loads, saved.read_text(encoding="utf-8").splitlines())
    assert [message["content"] for message in conversation["messages"][::2]] == ["hello", "and \nmore"]
    assert done.stdout == "".join(f"{text_of(message)}\n" for message in conversation["messages"][1::2])
    one = run_chat(base, *FLAGS, "--seed=0", "-i", "sft", "-g=mine", "-s", "7", "-p", "-", stdin=b"hello")
    assert one.stdout == f"{text_of(conversation['messages'][1])}\n"
    assert "model: chat_sft mine, step 7" in one.stderr.splitlines()


def text_of(message: dict) -> str:
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return "".join(part["text"] for part in parts if part["type"] == "text").removesuffix("\n")


def test_without_a_model_the_error_names_the_command_that_trains_one(tmp_path):
    done = run_chat(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: there is no model below {tmp_path}: bash speedrun.sh trains one\n"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--source=best"], "--source=best is not one of base, mid, sft, rl"),
        (["-p", ""], "--prompt is empty: give a message, or leave the option out to chat"),
        (["--top-p=0"], "--top-p=0.0 has to be above 0 and at most 1"),
        (["-s", "-2"], "--step has to be 0 or more, not -2"),
    ],
)
def test_mistakes_are_one_sentence(flags, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse(Config, flags)
