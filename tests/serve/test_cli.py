"""The chat of the terminal: messages in, answers out, and a conversation that the engine sees whole."""

import io
import json
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from engines import ID, TOKENIZER
from models import leave_model

from nanochat.chat import Piece, Reply, check_conversation, fitted_prompt
from nanochat.checkpoint import trained
from nanochat.engine import Engine, Request
from nanochat.runtime import Runtime
from nanochat.serve.cli import (
    COMMANDS,
    NOTE_COLOR,
    SAVED,
    AnswerPrinter,
    TerminalChat,
    catch_interrupts,
    colored,
    piped_messages,
)
from tasks.chats import json_lines

TOKENS, CONTEXT, SEED = 6, 96, 3

# ---- messages in ----


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
    assert list(piped_messages(io.StringIO(lines))) == messages


def test_interrupts_are_collected_in_an_interactive_chat_only():
    with catch_interrupts(True) as caught:
        os.kill(os.getpid(), signal.SIGINT)
        assert caught == [signal.SIGINT]
    with pytest.raises(KeyboardInterrupt), catch_interrupts(False):
        os.kill(os.getpid(), signal.SIGINT)


# ---- answers out ----

CALL = [*map(Piece, ["text", "python", "python"], ["It is ", "", "12+"]), Piece("python", "34"), Piece("text", "")]
CALL += [Piece("python_output", ""), Piece("python_output", "46"), Piece("text", ""), Piece("text", " apples")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(stream: io.StringIO, *pieces: Piece) -> str:
    printer = AnswerPrinter(stream)
    for piece in pieces:
        printer.add([piece])
    printer.close()
    return stream.getvalue()


def test_the_calculators_turns_are_printed_on_a_terminal_only(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert printed(io.StringIO(), *CALL) == "It is  apples\n"
    in_color = printed(Terminal(), *CALL)
    assert in_color.startswith("It is \x1b[36m[\x1b[0m\x1b[36m12+\x1b[0m")
    assert in_color.endswith("\x1b[36m]\x1b[0m apples\n")
    for variable, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as changed:
            changed.setenv(variable, value)
            assert printed(Terminal(), *CALL) == "It is [12+34 = 46] apples\n"
            assert colored(NOTE_COLOR, "so", Terminal()) == "so"
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(Terminal(), *CALL[:3]) == "It is [12+]\n"  # ended within the call
    assert printed(Terminal(), *CALL[1:5], *CALL[1:5]) == "[12+34][12+34]\n"  # refused twice


def test_an_answer_ends_its_last_line():
    assert printed(io.StringIO()) == "\n"
    assert printed(io.StringIO(), Piece("text", "one\n")) == "one\n"
    assert printed(io.StringIO(), Piece("text", "one\n"), Piece("text", "two")) == "one\ntwo\n"


def test_a_terminal_gets_no_control_characters():
    codes = "".join(map(chr, range(160)))
    seen = printed(Terminal(), Piece("text", f"{codes}é\n"), Piece("python", "\x1b[2J\x9b2J"))
    plain = seen.replace("\x1b[36m", "").replace("\x1b[0m", "")
    assert not [code for code in plain if (ord(code) < 32 and code not in "\t\n") or 127 <= ord(code) < 160]
    assert "␛[2J" in plain
    assert printed(io.StringIO(), Piece("text", codes)) == codes + "\n"  # a pipe gets the text as it is


# ---- the conversation ----


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Engine:
    """The engine of one model that several stages below `base` have."""
    folder = tmp_path_factory.mktemp("chat")
    for stage, tag in (("base_train", "mine"), ("chat_sft", "mine"), ("chat_sft", "theirs"), ("chat_rl", "mine")):
        model = leave_model(folder, stage, tag, TOKENIZER, max_seq_len=CONTEXT)
    for order, tag in enumerate(("theirs", "mine")):
        os.utime(folder / "chat_sft" / tag, (order, order))
    (folder / "chat_rl/empty").mkdir()
    made = Engine(model.eval().requires_grad_(False), TOKENIZER, 1)
    made.base = folder
    return made


@pytest.fixture
def new_chat(engine, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(engine.base))

    def start(source: str = "sft", interactive: bool = False, **settings) -> TerminalChat:
        config = {"source": source, "tag": "mine", "step": -1, "max_new_tokens": TOKENS, "temperature": 0.0}
        config |= {"top_k": 0, "top_p": 1.0, "seed": SEED} | settings
        runtime = Runtime(torch.device("cpu"), torch.float32, "sdpa")
        return TerminalChat(SimpleNamespace(**config), runtime, io.StringIO(), interactive)

    return start


def answer_to(engine: Engine, tokens: list[int], count: int = TOKENS, **settings) -> str:
    """Return the text that the engine generates after a prompt."""
    [[completion]] = engine.generate([Request(tokens, count, **settings)])
    reply = Reply(TOKENIZER)
    pieces = [piece for token in completion.tokens for piece in reply.add(token)] + reply.close()
    return "".join(piece.text for piece in pieces if piece.kind == "text")


def prompt_of(*messages: str, system: str = "") -> list[int]:
    """Return the prompt of user's and assistant's messages in turn."""
    listed = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(messages)]
    if system:
        listed.insert(0, {"role": "system", "content": system})
    return fitted_prompt({"messages": listed}, TOKENIZER, CONTEXT, TOKENS)[0]


def new_output(chat: TerminalChat) -> str:
    """Return the text that was printed since the last call."""
    text = chat.out.getvalue()
    chat.out.seek(0)
    chat.out.truncate()
    return text.removesuffix("\n")


def test_an_answer_is_the_engines_to_the_whole_conversation(new_chat, engine, capsys):
    chat = new_chat()
    chat.handle("/system 간단히")
    chat.ask("hello")
    first = answer_to(engine, prompt_of("hello", system="간단히"))
    assert new_output(chat) == first
    chat.handle(" /and more")
    assert new_output(chat) == answer_to(engine, prompt_of("hello", first, " /and more", system="간단히"))
    assert "too long" not in capsys.readouterr().err
    chat.ask("a long one " * 3)
    messages = [message["content"] for message in chat.messages]
    assert new_output(chat) == answer_to(engine, prompt_of(*messages[:5], system="간단히")) == messages[5]
    assert "too long for 96 tokens: the 2 oldest messages are left out" in capsys.readouterr().err
    chat.ask("x" * CONTEXT)
    assert "the start of the last message is left out" in capsys.readouterr().err
    assert len(chat.messages) == 8  # all the same
    check_conversation(chat.conversation(chat.messages))


def test_each_answer_has_the_next_seed(new_chat, engine):
    settings = {"temperature": 1.0, "top_k": 50, "top_p": 0.9}
    chat = new_chat(**settings)
    chat.ask("hello")
    found = [new_output(chat)]
    for _ in range(2):
        chat.handle("/again")
        found.append(new_output(chat))
    assert found == [answer_to(engine, prompt_of("hello"), seed=SEED + number, **settings) for number in range(3)]
    assert len(set(found)) == 3
    assert [message["content"] for message in chat.messages] == ["hello", found[2]]


def test_a_base_model_continues_a_text(new_chat, engine, capsys):
    chat, bos = new_chat("base"), ID["<|bos|>"]
    for start in ("Once upon", "a " * CONTEXT):
        chat.ask(start)
        prompt = [bos, *TOKENIZER.encode(start)[-(CONTEXT - TOKENS - 1) :]]
        assert new_output(chat) == answer_to(engine, prompt, stop=frozenset([bos]))
        assert len(chat.messages) == 2
    assert "the start of the last message" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no conversation to save"):
        chat.handle("/save")


def test_a_saved_conversation_can_be_trained_on(new_chat, engine, tmp_path):
    chat, path = new_chat(temperature=1.0, max_new_tokens=60), tmp_path / "a folder/my chats.jsonl"
    with pytest.raises(ValueError, match="no conversation to save"):
        chat.handle(f"/save {path}")
    chat.ask("12 + 34?")
    while isinstance(chat.messages[-1]["content"], str):  # until the model calls its calculator
        assert chat.answers < 100
        chat.handle("/again")
    chat.handle(f"/save {path}")
    chat.handle("/system be brief")
    chat.ask("half \ud800")
    chat.handle(f"/save {path}")
    chat.handle("/save")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert (engine.base / SAVED).read_text(encoding="utf-8") == lines[1]
    calling, second = (json.loads(line)["messages"] for line in lines)
    assert "python" in [part["type"] for part in calling[1]["content"]]
    assert second == chat.conversation(chat.messages)["messages"]
    assert second[0] == {"role": "system", "content": "be brief"}
    trained_on = [row["messages"] for row in json_lines(str(path))("train")]  # json:PATH
    assert sorted(trained_on, key=len) == [calling, second]


def test_commands_change_the_conversation(new_chat, capsys):
    chat = new_chat()
    for command in ("/clear", "/undo", "/system be brief", "/system"):
        assert chat.handle(command)
    for wrong in ("/again", "/agian", "/"):
        with pytest.raises(ValueError, match=r"no question to answer again|there is no command"):
            chat.handle(wrong)
    for question in ("one", "two", "three"):
        chat.handle(question)
    chat.handle("/undo")
    assert [message["content"] for message in chat.messages[::2]] == ["one", "two"]
    chat.handle("/clear")
    assert chat.messages == []
    chat.handle("/help")
    listed = capsys.readouterr().err
    assert all(f"\n{name}" in f"\n{listed}" for name in COMMANDS)
    assert not chat.handle("/quit")


def test_another_model_continues_the_conversation(new_chat, capsys):
    chat = new_chat()
    chat.ask("hello")
    for wrong, why in (
        ("sft none", "no sft model of --tag=none below"),
        ("mid", "no mid model of --tag=mine below .*: python -m scripts.mid_train trains one"),
        ("best", "best is not one of base, mid, sft, rl"),
        ("sft mine x", "expected a source, a tag and a step's number"),
        ("sft mine 1 2", "expected a source, a tag and a step's number"),
        ("sft mine 8", "cannot be read"),
    ):
        with pytest.raises(ValueError, match=why):
            chat.handle(f"/model {wrong}")
        assert (chat.source, chat.tag, chat.step) == ("sft", "mine", 7)
    chat.handle("/model rl mine 7")
    assert (chat.source, len(chat.messages)) == ("rl", 2)
    chat.handle("/model")
    note = "model: rl mine, step 7; trained models: base mine, sft theirs, sft mine, rl mine"
    assert note in capsys.readouterr().err
    chat.handle("/model base")
    assert (chat.source, chat.tag, chat.messages) == ("base", "mine", [])


def test_the_default_is_the_newest_model_of_the_last_stage(new_chat, monkeypatch, tmp_path):
    assert (new_chat("").source, new_chat("", tag="").tag, new_chat("", tag="theirs").source) == ("rl", "mine", "sft")
    assert trained("sft")[-1] == ("sft", "mine")  # the newest
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    with pytest.raises(ValueError, match=f"there is no model below {tmp_path}: bash speedrun.sh trains one"):
        new_chat("", tag="")


class Interrupting(io.StringIO):
    """A stream at which Ctrl-C comes with a certain write."""

    def __init__(self, writes: int):
        super().__init__()
        self.writes = writes

    def write(self, text: str) -> int:
        self.writes -= 1
        if self.writes == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def test_ctrl_c_ends_an_answer_and_keeps_its_beginning(new_chat, capsys):
    chat = new_chat(interactive=True, max_new_tokens=60)
    chat.out = Interrupting(3)
    chat.ask("hello")
    assert capsys.readouterr().err.endswith("interrupted\n")
    whole = new_chat(max_new_tokens=60)
    whole.ask("hello")
    kept = chat.messages[-1]["content"]
    assert 0 < len(kept) < len(whole.messages[-1]["content"])
    assert whole.messages[-1]["content"].startswith(kept)
    chat.ask("and now?")
    assert len(chat.messages) == 4
    chat = new_chat(interactive=False)
    chat.out = Interrupting(1)
    with pytest.raises(KeyboardInterrupt):
        chat.ask("hello")
    assert chat.messages == []
