"""Data sets of questions with a few choices each: a row of the table SETS is all that one more of them takes."""

from collections.abc import Sequence
from string import ascii_uppercase as LETTERS
from typing import Any

from tasks.common import FILE, DataSet, Task, TaskError


class MultipleChoice(Task):
    """Questions answered with a letter."""

    kind = "categorical"

    def conversation(self, question: str, choices: Sequence[str], right: Any) -> dict:
        """right: the number of the right choice, from 0."""
        if right not in range(len(choices)):
            raise TaskError(f"the right answer is none of its {len(choices)} choices")
        # The letter stands behind the text that it means: small models bind the two better so. And it begins a part of
        # its own, which is encoded alone: many a vocabulary has "=A" as one token, which is not the "A" of the answer.
        parts = [f"{question}\n\n"]
        for text, letter in zip(choices, LETTERS, strict=False):
            parts[-1] += f"- {text}="
            parts.append(f"{letter}\n")
        parts[-1] += "\nReply with nothing but the letter of the right choice."
        asked = {"role": "user", "content": [{"type": "text", "text": part} for part in parts]}
        answer = {"role": "assistant", "content": LETTERS[right]}
        return {"messages": [asked, answer], "letters": LETTERS[: len(choices)]}

    def evaluate(self, conversation: dict, completion: str) -> bool:
        return completion.strip() == conversation["messages"][-1]["content"]


def _index(answer: str, labels: Sequence[str]) -> int | None:
    return dict(zip(labels, range(len(labels)), strict=True)).get(answer)


# ---- what data sets have in their columns -> (question, choices, number of the right one, None: it is none of them)


def _label(question: str, choices: dict, answer: str) -> tuple:
    return question, choices["text"], _index(answer, choices["label"])


def _number(question: str, choices: list[str], answer: int) -> tuple:
    return question, choices, answer


def _letter(question: str, choices: list[str], answer: str) -> tuple:
    """Each choice begins with its letter and a bracket."""
    return question, [choice.partition(")")[2].strip() for choice in choices], _index(answer, LETTERS)


_ARC = ("train validation test", "question choices answerKey", _label, 0.25)
SETS = {  # name: repository, files, splits, columns, their form, score by chance
    "ARC-Easy": DataSet(MultipleChoice, "allenai/ai2_arc", "ARC-Easy/" + FILE, *_ARC),
    "ARC-Challenge": DataSet(MultipleChoice, "allenai/ai2_arc", "ARC-Challenge/" + FILE, *_ARC),
    "MMLU": DataSet(
        MultipleChoice, "cais/mmlu", "all/" + FILE, "dev validation test", "question choices answer", _number, 0.25
    ),
    "AQUA": DataSet(
        MultipleChoice, "deepmind/aqua_rat", "raw/" + FILE, "validation test", "question options correct", _letter, 0.2
    ),
}
