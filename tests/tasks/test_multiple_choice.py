"""Multiple choice: the prompt, the verdict, layouts of columns, letters read from prose."""

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from chat_files import contents

from tasks import TASKS
from tasks.multiple_choice import NamedChoice, read_letter


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


# A text, / for a new line, and the letter that is read from it, if one is.
LETTERS_IN_PROSE = r"""
B => B
(b) => B
B) 600 => B
The answer is B. => B
Correct answer - A => A
the correct option is C) 12 km => C
Therefore \boxed{D}. => D
The answer is \boxed{\text{C}}. => C
The answer is **option D** => D
4 + 4 = 8/Option B is correct => B
4 + 4 = 8/Hence (A) is the correct answer => A
The answer is/E => E
The answer is A or B? No: the answer is C, not 5. => C
The answer is a number. =>
What is the answer?/A train is late. =>
Answer: F =>
b =>
the answer is 5 =>
The answer is A bit larger than 5, so 6. (C) => C
The answer is A bit larger than 5, so 6. (C)/Or not. =>
So it is f(B) =>
The answer is (b) 12 km => B
The answer is A **bit** larger =>
The answer is A $5 book =>
The answer is A_1 =>
The answer is \(C\) 12 km => C
The answer is A train that is late. The answer is D. => D
The answer: A + 5 = 9 =>
The answer is A-level work =>
The answer is A's age =>
Answer: A lot of 12 (of 20) =>
Choice A lot of work =>
The answer is A, not B => A
The answer is A/It is small. => A
The answer is A because 4 is even => A
Answer A is correct/4 is even. => A
The answer is B (12 km) => B
The answer is $C$ => C
"The answer is D" => D
The answer is E] => E
Answer: B - 12 km => B
Answer: B — 12 km => B
The answer is **A** (12) => A
 =>
"""


@pytest.mark.parametrize("line", LETTERS_IN_PROSE.strip("\n").split("\n"))
def test_letters_in_prose(line) -> None:
    text, _, letter = line.replace("/", "\n").partition(" =>")
    assert read_letter(text, "ABCDE") == (letter.strip() or None)


def test_a_rationale_comes_before_the_letter(write_rows) -> None:
    row = {"question": "2+2?", "options": ["A)3", "B)4"], "correct": "B"}
    rationales = ("Count on.", "Count on.\nThe answer is B.", "  ", None)
    write_rows("AQUA", [row | {"rationale": rationale} for rationale in rationales])
    task = TASKS["AQUA-Rationale"]()
    answers = sorted(contents(conversation)[1] for conversation in task)
    assert answers == ["Count on.\nThe answer is B."] * 2 + ["The answer is B."] * 2
    assert contents(task[0])[0] == (
        "2+2?\n\n- 3=A\n- 4=B\n\n"
        "Think it through, then end with the letter of the right choice, like this: The answer is X."
    )
    right, wrong = ("Four.\nThe answer is B.", "It is 4, so B is correct"), ("The answer is A.", "4", "B, or A", "")
    assert all(task.evaluate(task[0], text) for text in right)
    assert not any(task.evaluate(task[0], text) for text in wrong)


def test_real_rationales_are_read_right(mirror) -> None:
    """One rationale of AQUA that names a letter is misread: it ends with "(B) must be true" after another letter."""
    rows = []
    for file in TASKS["AQUA"].files("validation", "test"):
        rows += pq.read_table(mirror / str(file)).to_pylist()
    found = [(read_letter(row["rationale"], "ABCDE"), row["correct"]) for row in rows]
    assert len(rows) == 508
    assert sum(letter not in (None, right) for letter, right in found) <= 1
    assert sum(letter == right for letter, right in found) >= 470


OUTSIDE = """
MMLU {"choices": ["x", "y"], "answer": 2}
ARC-Easy {"choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "C"}
AQUA {"options": ["A)x", "B)y"], "correct": "C"}
AQUA-Rationale {"options": ["A)x", "B)y"], "correct": "C", "rationale": "So it is."}
"""


@pytest.mark.parametrize("case", OUTSIDE.strip().splitlines())
def test_a_right_answer_outside_the_choices_is_named(case, write_rows) -> None:
    name, row = case.split(" ", 1)
    write_rows(name, [{"question": "?", **json.loads(row)}])
    with pytest.raises(ValueError, match=r"split test, row \d+: the right answer is none of its 2 choices"):
        TASKS[name]()[0]
