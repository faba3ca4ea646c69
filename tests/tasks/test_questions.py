"""Free questions about an embedded world, judged by a word."""

import pytest

from nanochat.chat import check_conversation
from tasks import TASKS
from tasks.common import TaskError


def test_an_answer_has_to_contain_the_word(world_hub):
    task = TASKS["Questions"]()
    assert len(task) == 10
    for conversation in task:
        check_conversation(conversation)
        word = conversation["messages"][-1]["content"]
        assert task.evaluate(conversation, f"I think that it is {word}.")
        assert not task.evaluate(conversation, f"It is {word}ish.")
        assert not task.evaluate(conversation, "It is the other one.")


@pytest.mark.parametrize("line", ["{", "[]", '{"question": "Who?"}'])
def test_a_malformed_file_is_named(line, tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))
    (tmp_path / "questions.jsonl").write_text(line)
    with pytest.raises(TaskError, match=r"questions\.jsonl is not made of lines"):
        TASKS["Questions"]()
