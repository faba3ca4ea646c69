"""Data sets of questions with a few choices each: a row of the table SETS is all that one more of them takes."""

import ast
import re
from collections.abc import Sequence
from string import ascii_uppercase as LETTERS
from typing import Any

from tasks.common import CONVERTED, FILE, REVISION, DataSet, Task, TaskError

_LETTER = r"(?:\(([a-z])\)|([A-Z])(?![A-Za-z0-9]))"
# Where a letter is announced: "The answer is (b).", "Correct option - C", "\boxed{D}"; and how a last line may name it.
ANNOUNCED = re.compile(
    r"(?i:answer|correct (?:option|choice)|boxed)(?i: is| was| (?:will|should|must) be)?[^A-Za-z0-9?\n]*"
    rf"(?i:(?:option|choice|letter|boxed|text)[^A-Za-z0-9?\n]*)*{_LETTER}"
)
AT_THE_END = re.compile(
    rf"(?i:option|choice|ans(?: is)?)[^A-Za-z0-9]*{_LETTER}|"
    rf"{_LETTER}[^A-Za-z0-9]*(?i:is|must be)(?i: the)?(?i: correct| right| answer| true)|"
    rf"^[^A-Za-z0-9(]*\(?{_LETTER}[\s*]*(?:[).:]|$)"
)


def extract_letter(text: str, letters: str) -> str | None:
    """The choice that prose ends up with: the last that it announces, or else that its last line names."""
    for pattern, part in ((ANNOUNCED, text), (AT_THE_END, text.strip().rpartition("\n")[2])):
        found = ["".join(groups).upper() for groups in pattern.findall(part)]
        if named := [letter for letter in found if letter in letters]:
            return named[-1]
    return None


class MultipleChoice(Task):
    """Questions answered with a letter."""

    kind = "categorical"
    closing = "Reply with nothing but the letter of the right choice."

    def conversation(self, question: str, choices: Sequence[str], right: Any, rationale: str = "") -> dict:
        """right: the number of the right choice, from 0."""
        if right not in range(len(choices)):
            raise TaskError(f"the right answer is none of its {len(choices)} choices")
        # The letter stands behind the text that it means: small models bind the two better so.
        listed = [f"- {text}={letter}" for text, letter in zip(choices, LETTERS, strict=False)]
        asked = {"role": "user", "content": "\n".join([question, "", *listed, "", self.closing])}
        answer = {"role": "assistant", "content": self.answer(LETTERS[right], choices[right], rationale)}
        return {"messages": [asked, answer], "letters": LETTERS[: len(choices)]}

    def answer(self, letter: str, choice: str, rationale: str) -> str:
        return letter

    def evaluate(self, conversation: dict, completion: str) -> bool:
        return completion.strip() == conversation["messages"][-1]["content"]


class Rationale(MultipleChoice):
    """The same questions, answered with a chain of thought that ends in a letter."""

    kind = "generative"
    closing = "Think it through, then end with the letter of the right choice, like this: The answer is X."

    def answer(self, letter: str, choice: str, rationale: str) -> str:
        end = f"The answer is {letter}."
        return f"{rationale.strip().removesuffix(end).strip()}\n{end}"

    def evaluate(self, conversation: dict, completion: str) -> bool:
        letters = conversation["letters"]
        right = extract_letter(conversation["messages"][-1]["content"], letters)
        return extract_letter(completion, letters) == right


class Named(MultipleChoice):
    """The same questions, answered with a choice and its letter, for models that cannot yet tell one by the other."""

    kind = "generative"
    closing = "Name the right choice, then its letter, like this: It is choice=X."

    def answer(self, letter: str, choice: str, rationale: str) -> str:
        return f"It is {choice}={letter}."  # behind a blank a name is the token that it is among the choices

    def evaluate(self, conversation: dict, completion: str) -> bool:
        """By the letter, which is what others go by."""
        named = (text.strip()[-3:] for text in (completion, conversation["messages"][-1]["content"]))
        return len(set(named)) == 1


def _index(answer: str, labels: Sequence[str]) -> int | None:
    return dict(zip(labels, range(len(labels)), strict=True)).get(answer)


# ---- what data sets have in their columns -> (question, choices, number of the right one, None: it is none of them)


def _label(question: str, choices: dict, answer: str) -> tuple:
    return question, choices["text"], _index(answer, choices["label"])


def _number(question: str, choices: list[str], answer: int) -> tuple:
    return question, choices, answer


def _letter(question: str, choices: list[str], answer: str, *rationale: str) -> tuple:
    """Each choice begins with its letter and a bracket."""
    return question, [choice.partition(")")[2].strip() for choice in choices], _index(answer, LETTERS), *rationale


def _columns(question: str, *cells: Any) -> tuple:
    """A column for each choice, then the number of the right one, from 1."""
    return question, cells[:-1], cells[-1] - 1


def _text(question: str, passage: str, choices: list[str], answer: str) -> tuple:
    """The right choice is written out; some questions are about a passage."""
    return f"{passage}\n\n{question}".strip(), choices, _index(answer, choices)


def _query(query: str, options: str, answer: str) -> tuple:
    """The choices are a Python list as text, or joined by |, and once more in the last but one part of the query."""
    question, *rest = re.split(r"\s*###", query)
    question = "\n".join([question, *rest[:-2]])
    choices = ast.literal_eval(options) if options.startswith("[") else options.split("|")
    return question, choices, _index(answer.strip("() "), LETTERS)


_ARC = ("train validation test", "question choices answerKey", _label, 0.25)
_MMLU = (
    *("cais/mmlu", "all/" + FILE, "train=auxiliary_train dev validation test"),
    *("question choices answer", _number, 0.25),
)
_AQUA = ("deepmind/aqua_rat", "raw/" + FILE, "train validation test")
_KMMLU = """Accounting Agricultural-Sciences Aviation-Engineering-and-Maintenance Biology Chemical-Engineering Chemistry
Civil-Engineering Computer-Science Construction Criminal-Law Ecology Economics Education Electrical-Engineering
Electronics-Engineering Energy-Management Environmental-Science Fashion Food-Processing Gas-Technology-and-Engineering
Geomatics Health Industrial-Engineer Information-Technology Interior-Architecture-and-Design Korean-History Law
Machine-Design-and-Manufacturing Management Maritime-Engineering Marketing Materials-Engineering Math
Mechanical-Engineering Nondestructive-Testing Patent Political-Science-and-Sociology Psychology Public-Safety
Railway-and-Automotive-Engineering Real-Estate Refrigerating-Machinery Social-Welfare Taxation
Telecommunications-and-Wireless-Technology"""
_HAERAE = "general_knowledge history loan_words rare_words standard_nomenclature"
SETS = {  # name: repository, files, splits, columns, their form, score by chance
    "ARC-Easy": DataSet(MultipleChoice, "allenai/ai2_arc", "ARC-Easy/" + FILE, *_ARC),
    "ARC-Challenge": DataSet(MultipleChoice, "allenai/ai2_arc", "ARC-Challenge/" + FILE, *_ARC),
    "MMLU": DataSet(MultipleChoice, *_MMLU),
    "ARC-Easy-Named": DataSet(Named, "allenai/ai2_arc", "ARC-Easy/" + FILE, *_ARC),
    "ARC-Challenge-Named": DataSet(Named, "allenai/ai2_arc", "ARC-Challenge/" + FILE, *_ARC),
    "MMLU-Named": DataSet(Named, *_MMLU),
    "AQUA": DataSet(MultipleChoice, *_AQUA, "question options correct", _letter, 0.2),
    "AQUA-Rationale": DataSet(Rationale, *_AQUA, "question options correct rationale", _letter, 0.2),
    "KMMLU": DataSet(
        *(MultipleChoice, "HAERAE-HUB/KMMLU", CONVERTED, "train dev test", "question A B C D answer", _columns, 0.25),
        *(_KMMLU, REVISION),
    ),
    "HAE-RAE": DataSet(
        *(MultipleChoice, "HAERAE-HUB/HAE_RAE_BENCH_1.1", CONVERTED, "test", "query options answer", _query, 0.2),
        *(_HAERAE, REVISION),
    ),
    # All 1,695 questions are to test with, though its one split is called train; some have five choices.
    "CLIcK": DataSet(
        *(MultipleChoice, "EunsuKim/CLIcK", CONVERTED, "test=train", "question paragraph choices answer", _text, 0.243),
        revision=REVISION,
    ),
}
