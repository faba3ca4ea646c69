"""Layouts of columns in multiple choice: functions from cells to question, choices, index of the right one or None.

tasks/multiple_choice.py has those of the report card's data sets.
"""

import ast
import random
import re
from typing import Any

from nanochat.errors import UserError
from tasks.multiple_choice import LETTERS, Converted, index_of

# Begins of choices in a text, each on a line of its own: "B: tea", "B. tea" or "B) tea".
FIRST_CHOICE = re.compile(r"\s*\n(?=A[:.)]\s)")
NEXT_CHOICE = re.compile(r"\s*\n(?=[B-J][:.)]\s)")


def answer_text(question: str, passage: str, choices: list[str], answer: str) -> Converted:
    """The answer is the right choice's text: ["salt", "tea"], "tea". The passage may be empty."""
    return f"{passage}\n\n{question}".strip(), choices, index_of(answer, choices)


def choice_columns(question: str, *cells: Any) -> Converted:
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
    return question, choices, index_of(answer.strip("() "), LETTERS)


def answer_from_one(question: str, choices: list[str], answer: str) -> Converted:
    """The answer is the right choice's number as text, from 1: ["salt", "tea"], "2"."""
    return question, choices, int(answer) - 1


def choices_in_lines(text: str, answer: str) -> Converted:
    """The question ends with a line for each choice: "Which?\\nA: salt\\nB: tea", "B"."""
    # The last A begins the choices: in a dialogue the speakers may be A and B too.
    *question, listed = FIRST_CHOICE.split(text.strip())
    if not question:
        raise UserError("no line begins with A, the first choice")
    return "\n".join(question), [line[2:].strip() for line in NEXT_CHOICE.split(listed)], index_of(answer, LETTERS)


def option_fields(question: str, findings: str | None, options: dict[str, str | None], answer: str) -> Converted:
    """Each choice is a field, perhaps empty: {"option_A": "salt", "option_B": "tea"}, "B". Findings may be None."""
    texts = [text for _, text in sorted(options.items()) if text]
    right = index_of(options.get(f"option_{answer}"), texts)
    return f"{question}\n\n{findings or ''}".strip(), texts, right


def inference(premise: str, hypothesis: str, label: int) -> Converted:
    """Does the second sentence follow from the first? 0: yes, 1: cannot be known, 2: it contradicts it."""
    question = f"앞 문장이 사실이라면, 뒤 문장은 어떠한가?\n\n앞 문장: {premise}\n뒤 문장: {hypothesis}"
    return question, ["참이다", "알 수 없다", "거짓이다"], label


def right_first(question: str, *choices: str) -> Converted:
    """Each choice has a column, the right one the first: "tea", "salt". The question decides about their order."""
    texts = [choice.strip() for choice in choices]
    shuffled = random.Random(question).sample(texts, len(texts))
    return question.strip(), shuffled, shuffled.index(texts[0])
