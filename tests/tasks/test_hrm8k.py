"""HRM8K: numbers read from prose, in any spelling."""

from fractions import Fraction

import pytest

from tasks import TASKS
from tasks.hrm8k import HRM8K

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
