"""Multiple-choice questions, and the layouts of their columns."""

import ast
import random
import re
from collections.abc import Sequence
from string import ascii_uppercase as LETTERS
from typing import Any

from tasks.common import Task, exchange
from tracks.chatdata.augment import STYLES, Style, answers_in

# Begins of choices in a text, each on a line of its own: "B: tea", "B. tea" or "B) tea".
FIRST_CHOICE = re.compile(r"\s*\n(?=A[:.)]\s)")
NEXT_CHOICE = re.compile(r"\s*\n(?=[B-J][:.)]\s)")


class MultipleChoice(Task):
    """Questions answered with a letter."""

    kind = "categorical"
    style = STYLES["letter"]

    def conversation(
        self, question: str, choices: Sequence[str], right: int | None, style: Style | None = None
    ) -> dict[str, Any]:
        """right: the right choice's index, from 0; None if the data set's answer is no choice."""
        if right not in range(len(choices)):
            raise ValueError(f"the right answer is none of its {len(choices)} choices")
        style = style or self.style
        answer = answers_in(style.answer, choices)[right]
        return exchange(style.prompt(question, choices), answer) | {"letters": LETTERS[: len(choices)]}


class NamedChoice(MultipleChoice):
    """Questions answered with a choice and its letter: for models that cannot yet choose by letter alone."""

    kind = "generative"
    style = Style(
        "- {text}={letter}",
        "Name the right choice, then its letter, like this: It is choice=X.",
        "It is {text}={letter}.",  # after a space the choice has the same tokens as in the question
        "sentence",
    )

    def read(self, text: str) -> str:
        """Return only the letter, which the other tasks compare too, in its place: "=X."."""
        return text.strip()[-3:]


# ---- column layouts: cells -> (question, choices, index of the right choice or None) ----
# Columns that are these already need no function.

Converted = tuple[str, Sequence[str], int | None]


def _index(answer: str | None, labels: Sequence[str]) -> int | None:
    # None for an answer that is no label.
    return {label: number for number, label in enumerate(labels)}.get(answer)


def answer_label(question: str, choices: dict[str, list[str]], answer: str) -> Converted:
    """The choices have labels, and the answer is a label: {"text": ["salt", "tea"], "label": ["1", "2"]}, "2"."""
    return question, choices["text"], _index(answer, choices["label"])


def answer_letter(question: str, choices: list[str], answer: str) -> Converted:
    """Each choice begins with its letter and a bracket: ["A)salt", "B)tea"], "B"."""
    texts = [choice.partition(")")[2].strip() for choice in choices]
    return question, texts, _index(answer, LETTERS)


def answer_text(question: str, passage: str, choices: list[str], answer: str) -> Converted:
    """The answer is the right choice's text: ["salt", "tea"], "tea". The passage may be empty."""
    return f"{passage}\n\n{question}".strip(), choices, _index(answer, choices)


def choice_columns(question: str, *cells: str | int) -> Converted:
    """Each choice has a column; the last column is the right choice's number, from 1: "salt", "tea", 2."""
    *choices, answer = cells
    return question, choices, answer - 1


def choices_in_query(query: str, options: str, answer: str) -> Converted:
    """The choices are a Python list as text, or joined by |; the answer is "(B)".

    The query's parts are separated by ###; the last but one repeats the choices, and the last asks for the answer.
    """
    question, *parts = re.split(r"\s*###", query)
    question = "\n".join([question, *parts[:-2]])
    choices = ast.literal_eval(options) if options.startswith("[") else options.split("|")
    return question, choices, _index(answer.strip("() "), LETTERS)


def answer_from_one(question: str, choices: list[str], answer: str) -> Converted:
    """The answer is the right choice's number as text, from 1: ["salt", "tea"], "2"."""
    return question, choices, int(answer) - 1


def choices_in_lines(text: str, answer: str) -> Converted:
    """The question ends with a line for each choice: "Which?\\nA: salt\\nB: tea", "B"."""
    # The last A begins the choices: in a dialogue the speakers may be A and B too.
    *question, listed = FIRST_CHOICE.split(text.strip())
    if not question:
        raise ValueError("no line begins with A, the first choice")
    return "\n".join(question), [line[2:].strip() for line in NEXT_CHOICE.split(listed)], _index(answer, LETTERS)


def option_fields(question: str, findings: str | None, options: dict[str, str | None], answer: str) -> Converted:
    """Each choice is a field, perhaps empty: {"option_A": "salt", "option_B": "tea"}, "B". Findings may be None."""
    texts = [text for _, text in sorted(options.items()) if text]
    right = _index(options.get(f"option_{answer}"), texts)
    return f"{question}\n\n{findings or ''}".strip(), texts, right


def right_first(question: str, *choices: str) -> Converted:
    """Each choice has a column, the right one the first: "tea", "salt". The question decides about their order."""
    texts = [choice.strip() for choice in choices]
    shuffled = random.Random(question).sample(texts, len(texts))
    return question.strip(), shuffled, shuffled.index(texts[0])
