"""A talk with small models, whose answers are those that the engine gives to the whole conversation."""

import io
import json
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from engines import ID, TOKENIZER
from models import leave_model

from nanochat.chat import Reply, check_conversation, fitted_prompt
from nanochat.engine import Engine, Request
from nanochat.restore import trained
from nanochat.runtime import Runtime
from nanochat.serve.talk import COMMANDS, SAVED, Talk
from tasks.chats import json_lines

TOKENS, CONTEXT, SEED = 6, 96, 3


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Engine:
    """Of the model that all stages of `base` have."""
    folder = tmp_path_factory.mktemp("talk")
    for stage, tag in (("base_train", "mine"), ("chat_sft", "mine"), ("chat_sft", "theirs"), ("chat_rl", "mine")):
        model = leave_model(folder, stage, tag, TOKENIZER, max_seq_len=CONTEXT)
    for order, tag in enumerate(("theirs", "mine")):
        os.utime(folder / "chat_sft" / tag, (order, order))
    (folder / "chat_rl/empty").mkdir()
    made = Engine(model.eval().requires_grad_(False), TOKENIZER, 1)
    made.base = folder
    return made


@pytest.fixture
def talk(engine, monkeypatch, tmp_path):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(engine.base))

    def begin(source: str = "sft", attended: bool = False, **settings) -> Talk:
        config = {"source": source, "tag": "mine", "step": -1, "max_new_tokens": TOKENS, "temperature": 0.0}
        config |= {"top_k": 0, "top_p": 1.0, "seed": SEED} | settings
        runtime = Runtime(torch.device("cpu"), torch.float32, "sdpa")
        return Talk(SimpleNamespace(**config), runtime, io.StringIO(), attended)

    return begin


def said(engine: Engine, tokens: list[int], count: int = TOKENS, **settings) -> str:
    """What is said behind a prompt."""
    [[completion]] = engine.generate([Request(tokens, count, **settings)])
    reply = Reply(TOKENIZER)
    pieces = [piece for token in completion.tokens for piece in reply.add(token)] + reply.close()
    return "".join(piece.text for piece in pieces if piece.kind == "text")


def fitted(*messages: str, system: str = "") -> list[int]:
    """What is read of user's and assistant's messages in turn."""
    listed = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(messages)]
    listed = [{"role": "system", "content": system}] * bool(system) + listed
    return fitted_prompt({"messages": listed}, TOKENIZER, CONTEXT, TOKENS)[0]


def text(talk: Talk) -> str:
    """What was shown since it was last looked at."""
    shown = talk.out.getvalue()
    talk.out.seek(0)
    talk.out.truncate()
    return shown.removesuffix("\n")


def test_an_answer_is_the_engines_to_the_whole_conversation(talk, engine, capsys):
    ours = talk()
    ours.hear("/system 간단히")
    ours.ask("hello")
    first = said(engine, fitted("hello", system="간단히"))
    assert text(ours) == first
    ours.hear(" /and more")
    assert text(ours) == said(engine, fitted("hello", first, " /and more", system="간단히"))
    assert "too long" not in capsys.readouterr().err
    question = "a long one " * 3
    ours.ask(question)
    messages = [message["content"] for message in ours.messages]
    assert text(ours) == said(engine, fitted(*messages[:5], system="간단히")) == messages[5]
    assert "too long for 96 tokens: its 2 oldest messages are left out" in capsys.readouterr().err
    ours.ask("x" * CONTEXT)
    assert "all but the end of the last message is left out" in capsys.readouterr().err
    assert len(ours.messages) == 8  # all the same
    check_conversation(ours.conversation(ours.messages))


def test_each_answer_is_drawn_from_the_next_seed(talk, engine):
    ours, drawn = talk(temperature=1.0, top_k=50, top_p=0.9), {"temperature": 1.0, "top_k": 50, "top_p": 0.9}
    ours.ask("hello")
    found = [text(ours)]
    for _ in range(2):
        ours.hear("/again")
        found.append(text(ours))
    assert found == [said(engine, fitted("hello"), seed=SEED + number, **drawn) for number in range(3)]
    assert len(set(found)) == 3
    assert [message["content"] for message in ours.messages] == ["hello", found[2]]


def test_a_base_model_goes_on_with_a_text(talk, engine, capsys):
    ours, bos = talk("base"), ID["<|bos|>"]
    for beginning in ("Once upon", "a " * CONTEXT):
        ours.ask(beginning)
        read = [bos, *TOKENIZER.encode(beginning)[-(CONTEXT - TOKENS - 1) :]]
        assert text(ours) == said(engine, read, stop=frozenset([bos]))
        assert len(ours.messages) == 2
    assert "all but the end" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no conversation to save"):
        ours.hear("/save")


def test_a_saved_conversation_can_be_learned_from(talk, engine, tmp_path):
    ours, path = talk(temperature=1.0, max_new_tokens=60), tmp_path / "a folder/my chats.jsonl"
    with pytest.raises(ValueError, match="no conversation to save"):
        ours.hear(f"/save {path}")
    ours.ask("12 + 34?")
    while isinstance(ours.messages[-1]["content"], str):  # until it calls its calculator
        assert ours.answers < 100
        ours.hear("/again")
    ours.hear(f"/save {path}")
    ours.hear("/system be brief")
    ours.ask("half \ud800")
    ours.hear(f"/save {path}")
    ours.hear("/save")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert (engine.base / SAVED).read_text(encoding="utf-8") == lines[1]
    calling, second = (json.loads(line)["messages"] for line in lines)
    assert "python" in [part["type"] for part in calling[1]["content"]]
    assert second == ours.conversation(ours.messages)["messages"]
    assert second[0] == {"role": "system", "content": "be brief"}
    learned = [row["messages"] for row in json_lines(str(path))("train")]  # json:PATH
    assert sorted(learned, key=len) == [calling, second]


def test_commands_change_the_conversation(talk, capsys):
    ours = talk()
    for command in ("/clear", "/undo", "/system be brief", "/system"):
        assert ours.hear(command)
    for nothing in ("/again", "/agian", "/"):
        with pytest.raises(ValueError, match=r"nothing has been asked|there is no command"):
            ours.hear(nothing)
    for question in ("one", "two", "three"):
        ours.hear(question)
    ours.hear("/undo")
    assert [message["content"] for message in ours.messages[::2]] == ["one", "two"]
    ours.hear("/clear")
    assert ours.messages == []
    ours.hear("/help")
    told = capsys.readouterr().err
    assert all(f"\n{name}" in f"\n{told}".replace("(", "") for name in COMMANDS)
    assert not ours.hear("/quit")


def test_another_model_goes_on(talk, capsys):
    ours = talk()
    ours.ask("hello")
    for wrong, why in (
        ("sft none", "no sft model of --tag=none below"),
        ("mid", "no mid model of --tag=mine below .*: python -m scripts.mid_train trains one"),
        ("best", "best is not one of base, mid, sft, rl"),
        ("sft mine x", "a source, a tag and a step's number"),
        ("sft mine 1 2", "a source, a tag and a step's number"),
        ("sft mine 8", "cannot be read"),
    ):
        with pytest.raises(ValueError, match=why):
            ours.hear(f"/model {wrong}")
        assert (ours.source, ours.tag, ours.step) == ("sft", "mine", 7)
    ours.hear("/model rl mine 7")
    assert (ours.source, len(ours.messages)) == ("rl", 2)
    ours.hear("/model")
    told = "the model is rl mine, step 7; trained are base mine, sft theirs, sft mine, rl mine"
    assert told in capsys.readouterr().err
    ours.hear("/model base")
    assert (ours.source, ours.tag, ours.messages) == ("base", "mine", [])


def test_the_model_that_is_furthest_on_is_taken(talk, monkeypatch, tmp_path):
    assert (talk("").source, talk("", tag="").tag, talk("", tag="theirs").source) == ("rl", "mine", "sft")
    assert trained("sft")[-1] == ("sft", "mine")  # the newest
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    with pytest.raises(ValueError, match=f"there is no model below {tmp_path}: bash speedrun.sh trains one"):
        talk("", tag="")


class Interrupting(io.StringIO):
    """Ctrl-C comes when so many pieces have been shown."""

    def __init__(self, pieces: int):
        super().__init__()
        self.pieces = pieces

    def write(self, text: str) -> int:
        self.pieces -= 1
        if self.pieces == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def test_ctrl_c_ends_an_answer_and_keeps_what_came(talk, capsys):
    ours = talk(attended=True, max_new_tokens=60)
    ours.out = Interrupting(3)
    ours.ask("hello")
    assert capsys.readouterr().err.endswith("interrupted\n")
    whole = talk(max_new_tokens=60)
    whole.ask("hello")
    kept = ours.messages[-1]["content"]
    assert 0 < len(kept) < len(whole.messages[-1]["content"])
    assert whole.messages[-1]["content"].startswith(kept)
    ours.ask("and now?")
    assert len(ours.messages) == 4
    ours = talk(attended=False)
    ours.out = Interrupting(1)
    with pytest.raises(KeyboardInterrupt):
        ours.ask("hello")
    assert ours.messages == []
