"""What comes in from a pipe or a person, line by line, and what goes out to a terminal that obeys escape sequences."""

import io
import os
import signal

import pytest

from nanochat.chat import Piece
from nanochat.serve import terminal
from nanochat.serve.terminal import Shown, colored, heeding, piped

CALL = [*map(Piece, ["text", "python", "python"], ["It is ", "", "12+"]), Piece("python", "34"), Piece("text", "")]
CALL += [Piece("python_output", ""), Piece("python_output", "46"), Piece("text", ""), Piece("text", " apples")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("lines", "messages"),
    [
        ("one\n\n  \ntwo", ["one", "two"]),
        ("one \\\ntwo\\\n\nthree\n", ["one \ntwo\n", "three"]),
        ("Why?\n```c\n#define A \\\n\n\tB\n```\nnext\n", ["Why?", "```c\n#define A \\\n\n\tB\n```", "next"]),
        ("a ```b``` c\nnext\n", ["a ```b``` c", "next"]),
        ('"""\none\n\n```\n"""\n"""one"""\n"""one\ntwo"""\n', ["one\n\n```", "one", "one\ntwo"]),
        ('"""\none\ntwo', ["\none\ntwo"]),
        ("```\none", ["```\none"]),
        ("one\\", ["one\\"]),
        ('/system \\\n/help ```\n"\n', ["/system \\", "/help ```", '"']),
        ("한국어\n", ["한국어"]),
        ("", []),
    ],
)
def test_messages_of_one_line_and_of_several(lines, messages):
    assert list(piped(io.StringIO(lines))) == messages


def shown(stream: io.StringIO, *pieces: Piece) -> str:
    answer = Shown(stream)
    for piece in pieces:
        answer.add([piece])
    answer.close()
    return stream.getvalue()


def test_the_calculators_turns_are_seen_on_a_terminal_alone(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert shown(io.StringIO(), *CALL) == "It is  apples\n"
    in_color = shown(Terminal(), *CALL)
    assert in_color.startswith("It is \x1b[36m[\x1b[0m\x1b[36m12+\x1b[0m")
    assert in_color.endswith("\x1b[36m]\x1b[0m apples\n")
    for variable, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as changed:
            changed.setenv(variable, value)
            assert shown(Terminal(), *CALL) == "It is [12+34 = 46] apples\n"
            assert colored(terminal.NOTE, "so", Terminal()) == "so"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(Terminal(), *CALL[:3]) == "It is [12+]\n"  # ended within it
    assert shown(Terminal(), *CALL[1:5], *CALL[1:5]) == "[12+34][12+34]\n"  # refused twice


def test_an_answer_ends_its_line():
    assert shown(io.StringIO()) == "\n"
    assert shown(io.StringIO(), Piece("text", "one\n")) == "one\n"
    assert shown(io.StringIO(), Piece("text", "one\n"), Piece("text", "two")) == "one\ntwo\n"


def test_nothing_that_a_terminal_obeys_reaches_it():
    codes = "".join(map(chr, range(160)))
    seen = shown(Terminal(), Piece("text", f"{codes}é\n"), Piece("python", "\x1b[2J\x9b2J"))
    plain = seen.replace("\x1b[36m", "").replace("\x1b[0m", "")
    assert not [code for code in plain if (ord(code) < 32 and code not in "\t\n") or 127 <= ord(code) < 160]
    assert "␛[2J" in plain
    assert shown(io.StringIO(), Piece("text", codes)) == codes + "\n"  # a pipe has what the model says


def test_who_attends_is_heeded():
    with heeding(True) as came:
        os.kill(os.getpid(), signal.SIGINT)
        assert came == [signal.SIGINT]
    with pytest.raises(KeyboardInterrupt), heeding(False):
        os.kill(os.getpid(), signal.SIGINT)
