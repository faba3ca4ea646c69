"""GSM8K: grade school mathematics, solved in words and with the calculator."""

import re

from nanochat.protocols import Conversation, Part
from tasks.common import Task, exchange

CALL = re.compile(r"<<([^<>=]*)=([^<>]*)>>")  # the calculator's input and output: <<16-3-4=9>>
ANSWER = re.compile(r"#### (-?[0-9.,]+)")  # the authors' rule


def with_calls(answer: str) -> list[Part]:
    """Return an answer as parts: each `<<16-3-4=9>>` in the text is a call of the calculator and its result."""
    pieces = CALL.split(answer)  # text, expression, result, text, expression, …
    kinds = ("text", "python", "python_output")
    parts: list[Part] = [{"type": kinds[number % 3], "text": piece} for number, piece in enumerate(pieces)]
    # Text between two calculations may be empty.
    return [part for part in parts if part["text"]]


class GSM8K(Task):
    """Word problems; a solution is a list of parts: text, a calculation, the result, text, …"""

    @staticmethod
    def read(text: str) -> str | None:
        """Return the first number after ####, without commas."""
        found = ANSWER.search(text)
        return found[1].replace(",", "") if found else None

    def conversation(self, question: str, answer: str) -> Conversation:
        return exchange(question, with_calls(answer))
