"""HRM8K: numbers read from prose, in any spelling."""

from fractions import Fraction

import pytest

from tasks import TASKS
from tasks.hrm8k import final_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 18", 18),
        ("#### 1,234,567 dollars", 1234567),
        ("#### -5", -5),
        ("#### $1,000.50.", Fraction("1000.5")),
        (r"so \boxed{12}", 12),
        (r"\boxed{-0.25}", Fraction("-0.25")),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"#### \frac{1}{2}", r"\frac{1}{2}"),
        (r"\boxed{3} or rather #### 4", 4),
        ("The answer is 18 apples.", 18),
        ("The answer is:\n\nnine. No, 9", 9),
        ("정답은 18명입니다.", 18),
        ("답: 0.25", Fraction("0.25")),
        ("따라서 총 18개", 18),
        ("16-3=13", 13),
        ("x = -7", -7),
        ("1/2", Fraction(1, 2)),
        ("#### 3x+2", "3x+2"),
        ("none", None),
        ("", None),
    ],
)
def test_numbers_in_prose(text, answer):
    assert final_answer(text) == answer


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
