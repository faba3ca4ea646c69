"""HRM8K: Korean problems, from school mathematics to olympiads, whose answers are mostly numbers."""

import re
from fractions import Fraction
from typing import Any

from tasks.common import CONVERTED, REVISION, DataSet, Task

# How an answer is announced, the surest first; of each the last counts, to the end of its line or its brace.
ANNOUNCED = (
    re.compile(r"####\s*(.+)"),
    re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}"),
    re.compile(r"(?i:answer(?:\s+is)?|정답은|정답|답은|답)\s*[:=]?\s*(.+)"),
)
NUMBER = re.compile(r"(?<![\d.])-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/[1-9]\d*)?")
GOES_ON = re.compile(r"\w*\s*[+*^/\\=-]")  # behind a number: it is part of something longer, as in 3x + 2
AROUND = " \t$₩*(:"  # what may stand before a number


def final_answer(text: str) -> Fraction | str | None:
    """The answer that a text announces, as a number or as it is written; without an announcement its last number."""
    for pattern in ANNOUNCED:
        for said in pattern.findall(text)[-1:]:
            number = NUMBER.match(said.lstrip(AROUND))
            if number and not GOES_ON.match(number.string, number.end()):
                return _value(number[0])
            if pattern is not ANNOUNCED[-1]:  # prose has more behind "answer" than an answer
                return said.strip(" .$*")
    numbers = NUMBER.findall(text)
    return _value(numbers[-1]) if numbers else None


def _value(number: str) -> Fraction:
    above, _, below = number.replace(",", "").partition("/")
    return Fraction(above) / Fraction(below or 1)


class HRM8K(Task):
    def conversation(self, question: str, answer: Any) -> dict:
        """answer: a number or a text, as the parts of the data set have it."""
        asked = {"role": "user", "content": question}
        return {"messages": [asked, {"role": "assistant", "content": f"#### {answer}"}]}

    def evaluate(self, conversation: dict, completion: str) -> bool:
        return final_answer(completion) == final_answer(conversation["messages"][-1]["content"])


_PARTS = "GSM8K KSM MATH MMMLU OMNI_MATH"
SETS = {
    "HRM8K": DataSet(HRM8K, "HAERAE-HUB/HRM8K", CONVERTED, "test", "question answer", parts=_PARTS, revision=REVISION)
}
