"""HRM8K: mathematics in Korean, from school to olympiads. Most answers are numbers."""

import re
from fractions import Fraction

from nanochat.protocols import Conversation
from tasks.common import Task, exchange

# Announcements of an answer, the most reliable first. The answer ends with its line or its brace.
ANNOUNCEMENTS = (
    re.compile(r"####\s*(.+)"),
    re.compile(r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*)\}"),  # with braces inside, three deep
    re.compile(r"(?i:answer(?:\s+is)?|정답은|정답|답은|답)\s*[:=]?\s*(.+)"),
)
NUMBER = re.compile(r"(?<![\d.])-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/[1-9]\d*)?")
LONGER = re.compile(r"\w*\s*[+*^/\\=-]")  # after a number: the number is part of an expression, such as 3x + 2
BEFORE_NUMBER = " \t$₩*(:"  # characters allowed between an announcement and a number


def _parse_number(text: str) -> Fraction:
    numerator, _, denominator = text.replace(",", "").partition("/")
    return Fraction(numerator) / Fraction(denominator or 1)


class HRM8K(Task):
    @staticmethod
    def read(text: str) -> Fraction | str | None:
        """Return the announced answer as a number, or else as text; without an announcement the last number."""
        for pattern in ANNOUNCEMENTS:
            found = pattern.findall(text)
            if not found:
                continue
            answer = found[-1]  # the last announcement of a kind counts
            number = NUMBER.match(answer.lstrip(BEFORE_NUMBER))
            if number and not LONGER.match(number.string, number.end()):
                return _parse_number(number[0])
            # The word "answer" also occurs in prose; the other announcements do not.
            if pattern is not ANNOUNCEMENTS[-1]:
                return answer.strip(" .$*")
        numbers = NUMBER.findall(text)
        return _parse_number(numbers[-1]) if numbers else None

    def conversation(self, question: str, answer: float | str) -> Conversation:
        return exchange(question, f"#### {answer}")
