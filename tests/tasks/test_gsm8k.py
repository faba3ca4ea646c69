"""Answers of GSM8K: the authors' rule, and calls of the calculator."""

import pyarrow.parquet as pq
from chat_files import contents
from conftest import each_row

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


@each_row("text answer", ANSWERS, " =>")
def test_answers_are_read_by_the_authors_rule(text, answer) -> None:
    assert GSM8K.read(text) == (answer.strip() or None)


def test_annotations_become_calls_of_the_calculator(write_rows) -> None:
    solution = "Eggs: <<16-3-4=9>>9 are left.\n9 * 2 = $<<9*2=18>>18 a day\n#### 18"
    write_rows("GSM8K", [{"question": "How much?", "answer": solution}])
    task = TASKS["GSM8K"]()
    [conversation] = task
    kinds, texts = zip(*(part.values() for part in contents(conversation)[1]), strict=True)
    assert " ".join(kinds) == "text python python_output text python python_output text"
    assert "|".join(texts) == "Eggs: |16-3-4|9|9 are left.\n9 * 2 = $|9*2|18|18 a day\n#### 18"
    assert all(task.evaluate(conversation, text) for text in ("#### 18", "#### 18 dollars", "#### 1,8"))
    assert not any(task.evaluate(conversation, text) for text in ("18", "#### 19"))


def test_no_part_of_a_solution_is_lost(hub) -> None:
    table = pq.read_table(hub / str(TASKS["GSM8K"].files("train")[0]))
    answers = dict(zip(table["question"].to_pylist(), table["answer"].to_pylist(), strict=True))
    forms = {"text": "{}", "python": "<<{}=", "python_output": "{}>>"}
    for conversation in TASKS["GSM8K"]("train"):
        question, answer = contents(conversation)
        parts = [(part["type"], part["text"]) for part in answer]
        assert "".join(forms[kind].format(text) for kind, text in parts) == answers[question]
        assert not any("<<" in text or not text for _, text in parts)
