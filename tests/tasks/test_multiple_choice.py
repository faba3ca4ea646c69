"""Multiple choice: the prompt, the verdict, layouts of columns."""

import json
from dataclasses import replace

import pytest

from tasks import TASKS
from tasks.multiple_choice import NamedChoice


def test_the_prompt_and_the_verdict(write_rows) -> None:
    choices = {"text": ["red", "blue", "green"], "label": ["1", "2", "3"]}
    write_rows("ARC-Easy", [{"question": "Which colour has the sky?", "choices": choices, "answerKey": "2"}])
    task = TASKS["ARC-Easy"]()
    [conversation] = task
    question, answer = conversation["messages"]
    assert question["content"] == (
        "Which colour has the sky?\n\n- red=A\n- blue=B\n- green=C\n\n"
        "Reply with nothing but the letter of the right choice."
    )
    assert answer == {"role": "assistant", "content": "B"}
    assert list(conversation["letters"]) == ["A", "B", "C"]
    assert [text for text in "B| B\n|b|A|B.|AB|".split("|") if task.evaluate(conversation, text)] == ["B", " B\n"]


def test_named_choices_are_judged_by_the_letter(write_rows) -> None:
    write_rows("MMLU", [{"question": "?", "choices": ["salt", "tea"], "answer": 1}])
    task = replace(TASKS["MMLU"], task=NamedChoice)()
    assert task[0]["messages"][1]["content"] == "It is tea=B."
    assert all(task.evaluate(task[0], text) for text in ("It is tea=B.", "It is salt=B.\n"))
    assert not any(task.evaluate(task[0], text) for text in ("It is tea=A.", "It is tea=B", "B", ""))


OUTSIDE = """
MMLU {"choices": ["x", "y"], "answer": 2}
ARC-Easy {"choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "C"}
AQUA {"options": ["A)x", "B)y"], "correct": "C"}
"""


@pytest.mark.parametrize("case", OUTSIDE.strip().splitlines())
def test_a_right_answer_outside_the_choices_is_named(case, write_rows) -> None:
    name, row = case.split(" ", 1)
    write_rows(name, [{"question": "?", **json.loads(row)}])
    with pytest.raises(ValueError, match=r"split test, row \d+: the right answer is none of its 2 choices"):
        TASKS[name]()[0]
