"""The chat of the terminal: messages in, answers out, and a conversation that the engine sees whole."""

import io
import os
import signal

import pytest
from engines import ID, TOKENIZER, model_of, text_of

from nanochat.chat import Piece, check_conversation, fitted_prompt
from nanochat.engine import Engine, Request
from nanochat.serve.cli import TerminalChat, piped_messages, print_pieces

TOKENS, CONTEXT, SEED = 6, 96, 3
BOS = ID["<|bos|>"]
CALL = [*map(Piece, ["text", "python", "python"], ["It is ", "", "12+"]), Piece("python", "34"), Piece("text", "")]
CALL += [Piece("python_output", ""), Piece("python_output", "46"), Piece("text", ""), Piece("text", " apples")]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def printed(stream: io.StringIO, *pieces: Piece):
    print_pieces(pieces, stream)
    return stream.getvalue()


def test_a_terminal_shows_the_calculators_turns_and_gets_no_control_characters() -> None:
    assert printed(io.StringIO(), *CALL) == "It is  apples"
    assert printed(Terminal(), *CALL) == "It is [12+34][= 46] apples"
    codes = "".join(map(chr, range(160)))
    seen = printed(Terminal(), Piece("text", f"{codes}é\n"), Piece("python", "\x1b[2J\x9b2J"))
    assert not [code for code in seen if (ord(code) < 32 and code not in "\t\n") or 127 <= ord(code) < 160]
    assert "é" in seen
    assert printed(io.StringIO(), Piece("text", codes)) == codes  # a pipe gets the text as it is


@pytest.fixture(scope="module")
def engine():
    return Engine(model_of(max_seq_len=CONTEXT), TOKENIZER, 1)


@pytest.fixture
def new_chat(engine):
    def start(is_base: bool = False, interactive: bool = False, **settings):
        settings = Request(**{"tokens": (), "max_new_tokens": TOKENS, "seed": SEED} | settings)
        return TerminalChat(engine, is_base, settings, io.StringIO(), interactive)

    return start


def answer_to(engine: Engine, tokens: list[int], **settings):
    """Return the text that the engine generates after a prompt."""
    [[completion]] = engine.generate([Request(tokens, TOKENS, **settings)])
    return text_of(completion.tokens)


def prompt_of(messages: list[dict], system: str = ""):
    before = [{"role": "system", "content": system}] if system else []
    return fitted_prompt({"messages": [*before, *messages]}, TOKENIZER, CONTEXT, TOKENS)[0]


def new_output(chat: TerminalChat):
    """Return the text that was printed since the last call."""
    text = chat.out.getvalue()
    chat.out.seek(0)
    chat.out.truncate()
    return text.removesuffix("\n")


def test_an_answer_is_the_engines_to_the_whole_conversation(new_chat, engine, capsys) -> None:
    settings = {"temperature": 1.0, "top_k": 50, "top_p": 0.9}
    chat = new_chat(**settings)
    chat.handle("/system 간단히")
    for number, question in enumerate(("hello", " /and more", "half \ud800")):
        chat.handle(question)
        # Each answer has the next seed.
        expected = answer_to(engine, prompt_of(chat.messages[:-1], "간단히"), seed=SEED + number, **settings)
        assert new_output(chat) == expected
    assert "too long" not in capsys.readouterr().err
    chat.ask("x" * CONTEXT)
    assert "too long for 96 tokens, its beginning is left out" in capsys.readouterr().err
    assert len(chat.messages) == 8  # all the same
    check_conversation({"messages": chat.messages})
    # A base model continues a text.
    stop = frozenset([BOS])
    chat = new_chat(is_base=True, stop=stop)
    for start in ("Once upon", "a time"):
        chat.ask(start)
        assert new_output(chat) == answer_to(engine, [BOS, *TOKENIZER.encode(start)], stop=stop)
    with pytest.raises(ValueError, match="the context holds 1 to 95"):
        chat.ask("a" * CONTEXT)


def test_why_an_answer_was_cut(new_chat, capsys) -> None:
    for limit, reason in (
        (3, "the answer reached --max-new-tokens"),
        (500, f"the context of {CONTEXT} tokens is full"),
    ):
        new_chat(is_base=True, stop=frozenset(), max_new_tokens=limit).ask("Once upon")
        assert reason in capsys.readouterr().err


def test_commands_and_errors(new_chat, capsys) -> None:
    chat = new_chat(interactive=True)
    chat.converse(iter(["one", "/agian", "", "  ", "two", "/quit", "never read"]))
    assert [message["content"] for message in chat.messages[::2]] == ["one", "two"]
    assert "there is no command /agian: /clear starts a new conversation" in capsys.readouterr().err
    chat.converse(iter(["/clear", "/system be brief", "/system"]))
    assert (chat.messages, chat.system) == ([], "")
    with pytest.raises(ValueError, match="there is no command"):  # ends a pipe
        new_chat().converse(iter(["/agian"]))


QUOTED = '"' * 3

# Lines | messages, both joined by "/".
MESSAGES = [
    ("one/two", "one|two"),
    ("one\\/two\\/three/four", "one/two/three|four"),
    ("one\\", "one"),  # the input ends
    ("one\\\\/two", "one\\/two"),
    ("C:\\ /x", "C:\\ |x"),  # a backslash within a line is a backslash
    (f"{QUOTED}one/two{QUOTED}/three", "one/two|three"),
    (f"{QUOTED}/one\\// two /{QUOTED} /three", "one\\// two |three"),
    (f"{QUOTED}one{QUOTED}/{QUOTED}{QUOTED}", "one|"),
    (f"{QUOTED}one/two", "one/two"),
    (f"say {QUOTED}x/y", f"say {QUOTED}x|y"),  # they have to begin the message
    ("", ""),
]


@pytest.mark.parametrize(("lines", "messages"), MESSAGES)
def test_lines_become_messages(lines, messages) -> None:
    found = list(piped_messages(f"{line}\n" for line in lines.split("/")))
    assert found == [message.replace("/", "\n") for message in messages.split("|")]


class Interrupting(io.StringIO):
    """A stream at which Ctrl-C comes with a certain write."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.writes = writes

    def write(self, text: str):
        self.writes -= 1
        if self.writes == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def test_ctrl_c_ends_an_answer_and_keeps_its_beginning(new_chat) -> None:
    chat = new_chat(interactive=True, max_new_tokens=60)
    chat.out = Interrupting(3)
    chat.ask("hello")
    whole = new_chat(max_new_tokens=60)
    whole.ask("hello")
    assert 0 < len(chat.out.getvalue()) < len(whole.out.getvalue())
    assert whole.out.getvalue().startswith(chat.out.getvalue().removesuffix("\n"))
    chat.ask("and now?")
    assert len(chat.messages) == 4
    chat = new_chat(interactive=False)
    chat.out = Interrupting(1)
    with pytest.raises(KeyboardInterrupt):
        chat.ask("hello")
    assert chat.messages == []
