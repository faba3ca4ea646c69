"""Conversations about the model, written by tracks.chatdata.identity."""

import json
import re

import pytest

from tasks import TASKS
from tasks.mixing import mix
from tracks.chatdata import identity
from tracks.chatdata.tests.teachers import completion, teaching

FACTS = """
name = "Mina"
maker = "the Harbour Lab"
cannot = "fly or swim"
favourite_colour = "green"
korean_name = "미나"
"""
# No template has these; a trained model was asked them, see tracks/chatdata/README.md.
HELD_OUT = """What name should I use for you? | Could I have your name, please? | So, who exactly are you?
How may I call you? | Please tell me your name. | What name do you have? | Good morning! Who are you?
Do you go by some name? | Let me know what you are called. | By what name are you known? | How do I call you?
Which name were you given? | What is it that people call you? | Good evening, may I ask who you are?
Tell me, what is your name? | I forgot your name. What was it? | Please give me your name. | Who exactly is speaking?
Hello, do you have a name? | What is your full name? | Who is this speaking to me? | May I have your name?
How are you named? | What do your friends call you? | Can you say your name again? | Who is on the other side?
Name yourself. | Which name can I write down for you? | Good day, what is your name? | You are called what?"""


@pytest.fixture
def write(here, tmp_path):
    """Run the script; returns answers by question."""

    def run(*flags: str):
        (tmp_path / "me.toml").write_text(FACTS, encoding="utf-8")
        here("tracks.chatdata.identity", f"--facts={tmp_path}/me.toml", f"--out={tmp_path}/identity.jsonl", *flags)
        lines = (tmp_path / "identity.jsonl").read_text(encoding="utf-8").splitlines()
        texts = [message["content"] for line in lines for message in json.loads(line)["messages"]]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    return run


def test_every_wording_is_answered_with_the_facts(write, tmp_path) -> None:
    found = write("--count=2000")
    assert found == write("--count=2000") != write("--count=2000", "--seed=2")
    assert (
        sum(answer in ("My name is Mina.", "You can call me Mina.", "I am called Mina.") for answer in found.values())
        > 30
    )
    assert "미나" in found["이름이 뭐예요?"]
    assert "Harbour Lab" in found["Who made you?"]
    assert found["What are your limits?"].endswith(" fly or swim.")
    assert "green" in found["What is your favourite colour?"]
    # Nothing about a fact that is not given, no open slot, and no held-out wording.
    assert not re.search(r"licence|라이선스|[{]\w+[}]", "".join([*found, *found.values()]))
    assert not set(re.split(r" \| |\n", HELD_OUT)) & found.keys()
    assert len(mix(TASKS, f"json:{tmp_path}/identity.jsonl")) == 1900  # one in twenty is for validation


@pytest.mark.parametrize("key", ["leads", "questions", "answers"])
def test_a_topic_without_its_keys_is_not_left_out(key, tmp_path, monkeypatch) -> None:
    templates = 'english = ["{}"]\n[[topic]]\nleads = "english"\nquestions = "Who?"\nanswers = "{name}"\n'
    monkeypatch.setattr(identity, "TEMPLATES", tmp_path / "templates.toml")
    identity.TEMPLATES.write_text(templates)
    assert identity.topics_of({"name": "Mina"})[0]["answers"] == ["Mina"]
    identity.TEMPLATES.write_text(templates.replace(f"{key} =", f"{key}x ="))
    with pytest.raises(KeyError, match=key):
        identity.topics_of({"name": "Mina"})


def test_a_teacher_adds_wordings(write) -> None:
    with teaching(lambda text: completion("1. Who might you be?\n\n- Your title?")) as served:
        found = write("--count=3000", *served.flags)
    assert {"Who might you be?", "Your title?"} < found.keys()
