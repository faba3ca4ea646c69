"""GSM8K: the authors' rule for answers, calls of the calculator, rewards."""

import pyarrow.parquet as pq
import pytest
from chat_files import contents

from tasks import TASKS
from tasks.gsm8k import GSM8K

# The authors' rule keeps a full stop.
ANSWERS = """
So it is #### 18 => 18
#### 1,234,567 => 1234567
#### -5 => -5
#### 0.25 => 0.25
#### 72 apples in all #### 13 => 72
#### 18. => 18.
####18 =>
#### $18 =>
the answer is 18 =>
"""


@pytest.mark.parametrize("line", ANSWERS.strip().split("\n"))
def test_answers_are_read_by_the_authors_rule(line):
    text, answer = line.split(" =>")
    assert GSM8K.read(text) == (answer.strip() or None)


def test_annotations_become_calls_of_the_calculator(write_rows):
    solution = "Eggs: <<16-3-4=9>>9 are left.\n9 * 2 = $<<9*2=18>>18 a day\n#### 18"
    write_rows("GSM8K", [{"question": "How much?", "answer": solution}])
    task = TASKS["GSM8K"]()
    [conversation] = task
    assert [tuple(part.values()) for part in conversation["messages"][1]["content"]] == [
        ("text", "Eggs: "),
        ("python", "16-3-4"),
        ("python_output", "9"),
        ("text", "9 are left.\n9 * 2 = $"),
        ("python", "9*2"),
        ("python_output", "18"),
        ("text", "18 a day\n#### 18"),
    ]
    assert all(task.evaluate(conversation, text) for text in ("#### 18", "#### 18 dollars", "#### 1,8"))
    assert not any(task.evaluate(conversation, text) for text in ("18", "#### 19"))


def test_no_part_of_a_solution_is_lost(hub):
    table = pq.read_table(hub / str(TASKS["GSM8K"].files("train")[0]))
    answers = dict(zip(table["question"].to_pylist(), table["answer"].to_pylist(), strict=True))
    forms = {"text": "{}", "python": "<<{}=", "python_output": "{}>>"}
    for conversation in TASKS["GSM8K"]("train"):
        question, answer = contents(conversation)
        parts = [(part["type"], part["text"]) for part in answer]
        assert "".join(forms[kind].format(text) for kind, text in parts) == answers[question]
        assert not any("<<" in text or not text for _, text in parts)
