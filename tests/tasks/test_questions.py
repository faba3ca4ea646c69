"""Free questions about an embedded world, judged by a word."""

from nanochat.chat import check_conversation
from tasks import TASKS


def test_an_answer_has_to_contain_the_word(world_hub):
    task = TASKS["Questions"]()
    assert len(task) == 10
    for conversation in task:
        check_conversation(conversation)
        word = conversation["messages"][-1]["content"]
        assert task.evaluate(conversation, f"I think that it is {word}.")
        assert not task.evaluate(conversation, f"It is {word}ish.")
        assert not task.evaluate(conversation, "It is the other one.")
