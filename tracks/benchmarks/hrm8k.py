"""HRM8K: mathematics in Korean, from school to olympiads. Most answers are numbers."""

import re
from fractions import Fraction

from nanochat.protocols import Conversation
from tasks.common import Task, exchange

# Announcements of an answer, which ends with its line or its brace.
HASHES = re.compile(r"(?<!#)####(?!#)\s*(.+)")  # as GSM8K has them; in Markdown it is a heading too
# With braces inside, three deep.
BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*)\}")
# Perhaps as a heading above a sentence with them.
WORDS = re.compile(r"(?i:(?:(?:the\s+)?(?:answer(?:\s+is)?|정답은|정답|답은|답)\s*[:=]?\s*)+)(.+)")
NUMBER = re.compile(r"(?<![\d.])-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/[1-9]\d*)?")
LONGER = re.compile(r"\w*\s*[+*^/\\=-]")  # after a number: the number is part of an expression, such as 3x + 2
BEFORE_NUMBER = " \t$₩*(:"  # characters allowed between an announcement and a number
HEADING = re.compile(r"\s*(?:[.):]\s*\S|단계)")  # after a number: it counts the steps of a solution, as in 1. Find x


def _parse_number(text: str) -> Fraction:
    numerator, _, denominator = text.replace(",", "").partition("/")
    return Fraction(numerator) / Fraction(denominator or 1)


def _find_number(answer: str) -> re.Match[str] | None:
    """Return the number that an announced answer begins with, unless it is a part of an expression."""
    number = NUMBER.match(answer.lstrip(BEFORE_NUMBER))
    return number if number and not LONGER.match(number.string, number.end()) else None


def after_hashes(text: str) -> tuple[str, str]:
    """Return what #### announces: the last line that begins with a number and is no heading, and the last line of all.

    Each may be empty. Another line is a heading, as more follows below.
    """
    number = end = ""
    for found in HASHES.finditer(text):
        words = WORDS.search(found[1])  # #### Answer: 4
        answer = words[1] if words else found[1]
        begins = _find_number(answer)
        if begins and not HEADING.match(begins.string, begins.end()):
            number = answer
        if found.end() == len(text.rstrip()):
            end = answer
    return number, end


class HRM8K(Task):
    @staticmethod
    def read(text: str) -> Fraction | str | None:
        """Return the announced answer as a number, or else as text; without an announcement the last number.

        The surest announcement counts, and the last of its kind.
        """
        number, end = after_hashes(text)
        for answer in filter(None, (number, *BOXED.findall(text)[-1:], end)):
            found = _find_number(answer)
            return _parse_number(found[0]) if found else answer.strip(" .$*")
        # The word "answer" also occurs in prose, without a number.
        numbers = [found[0] for found in map(_find_number, WORDS.findall(text)[-1:]) if found] or NUMBER.findall(text)
        return _parse_number(numbers[-1]) if numbers else None

    def conversation(self, question: str, answer: float | str) -> Conversation:
        return exchange(question, f"#### {answer}")
