"""GSM8K: the authors' rule for answers, calls of the calculator, rewards. HRM8K: numbers from prose in any spelling."""

from fractions import Fraction

import pyarrow.parquet as pq
import pytest
from chat_files import contents

from tasks import TASKS
from tasks.gsm8k import GSM8K
from tasks.hrm8k import HRM8K

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


# A text, and its answer: a number, a text in quotes, or none. A / at the end of a word begins a line.
IN_PROSE = r"""
#### 18 => 18
#### 1,234,567 dollars => 1234567
#### -5 => -5
#### $1,000.50. => 1000.5
so \boxed{12} => 12
\boxed{-0.25} => -0.25
\boxed{\frac{1}{2}} => "\frac{1}{2}"
#### \frac{1}{2} => "\frac{1}{2}"
\boxed{3} or rather #### 4 => 4
The answer is 18 apples. => 18
The answer is:/ / nine. No, 9 => 9
정답은 18명입니다. => 18
답: 0.25 => 0.25
따라서 총 18개 => 18
16-3=13 => 13
x = -7 => -7
1/2 => 1/2
#### 3x+2 => "3x+2"
none =>
 =>
"""


@pytest.mark.parametrize("line", IN_PROSE.strip("\n").split("\n"))
def test_numbers_in_prose(line):
    text, _, cell = line.replace("/ ", "\n").partition(" =>")
    answer = cell.strip()
    expected = answer.strip('"') if answer.startswith('"') else Fraction(answer or -999)
    assert HRM8K.read(text) == (expected if answer else None)


def test_answers_have_several_types(write_rows):
    number = {"question": "몇 개?", "answer": 18.0, "original": "?"}
    write_rows("HRM8K", [number], [{"question": "값?", "answer": "1,200"}])
    task = TASKS["HRM8K"]()
    assert len(task) == 5
    for conversation in task:
        number = {"몇 개?": "18", "값?": "1200"}[conversation["messages"][0]["content"]]
        for text in (f"#### {number}", f"정답은 {number}.", rf"\boxed{{{number}.0}}"):
            assert task.evaluate(conversation, text)
        assert not task.evaluate(conversation, "#### 17")
        assert not task.evaluate(conversation, "모름")
