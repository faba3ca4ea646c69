"""Multiple-choice questions, their form in a conversation, and the layouts of their columns."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase as LETTERS

from nanochat.chat import text_of
from nanochat.errors import UserError
from nanochat.protocols import Conversation
from tasks.common import Task, exchange


@dataclass(frozen=True)
class Style:
    """A form of question and answer. {letter}, {number} and {text} stand for those of a choice."""

    listing: str  # one choice in the question
    instruction: str
    answer: str

    def prompt(self, question: str, choices: Sequence[str]) -> str:
        """Return a question with its choices, one per line, and the instruction."""
        return "\n".join([question, "", *answers_in(self.listing, choices), "", self.instruction])


def answers_in(form: str, choices: Sequence[str]) -> list[str]:
    """Return a form, such as the answer of a style, filled in for each choice."""
    marked = enumerate(zip(LETTERS, choices, strict=False), 1)  # there are more letters than choices
    return [form.format(number=number, letter=letter, text=text) for number, (letter, text) in marked]


# The letter follows its choice: small models bind the two better this way.
LETTER = Style("- {text}={letter}", "Reply with nothing but the letter of the right choice.", "{letter}")


def forms_of_choices(prompt: str, style: Style) -> tuple[str, ...]:
    """Return a question alone, and with its choices, both without instructions."""
    return prompt.partition("\n\n- ")[0], prompt.removesuffix(style.instruction)


class MultipleChoice(Task):
    """Questions answered with a letter."""

    kind = "categorical"
    style = LETTER

    def conversation(
        self, question: str, choices: Sequence[str], right: int | None, style: Style | None = None
    ) -> Conversation:
        """right: the right choice's index, from 0; None if the data set's answer is not a choice."""
        if right not in range(len(choices)):
            raise UserError(f"the right answer is none of its {len(choices)} choices")
        style = style or self.style
        answer = answers_in(style.answer, choices)[right]
        return exchange(style.prompt(question, choices), answer) | {"letters": LETTERS[: len(choices)]}

    def forms(self, prompt: str) -> tuple[str, ...]:
        return forms_of_choices(prompt, self.style)


class NamedChoice(MultipleChoice):
    """Questions answered with a choice and its letter: for models that cannot yet choose by letter alone."""

    kind = "generative"
    style = Style(
        "- {text}={letter}",
        "Name the right choice, then its letter, like this: It is choice=X.",
        "It is {text}={letter}.",  # after a space the choice has the same tokens as in the question
    )

    def read(self, text: str) -> str:
        """Return only the letter, which the other tasks compare too, in its place: "=X."."""
        return text.strip()[-3:]


# ---- an answer with its reasons ----

# What follows a bare letter that is a choice: a stop, a bracket, a closing mark, a dash, a reason or the end of a line.
# Else it may be a word, or a part of a name or formula: "A bit larger", "A-level", "A + 5".
_STOP = r"""(?=[ \t]*(?:$|\n|[.,:;!?(|]|[-–—](?![A-Za-z0-9])|(?:because|since)\b)|[)\]}\\<]|[*_`$"'/](?![A-Za-z0-9]))"""
_BRACKETED, _BARE = r"\(([a-z])\)", r"([A-Z])(?![A-Za-z0-9])"
_LETTER = rf"(?:{_BRACKETED}|{_BARE}{_STOP})"  # (b) or B.
_VERDICT = r"[^A-Za-z0-9]*(?i:is|must be)(?i: the)?(?i: correct| right| answer| true)"
# An announced letter: "The answer is (b).", "Correct option - C", "\boxed{D}".
ANNOUNCED = re.compile(
    r"(?i:answer|correct (?:option|choice)|boxed)(?i: is| was| (?:will|should|must) be)?[^A-Za-z0-9?\n]*"
    rf"(?i:(?:option|choice|letter|boxed|text)[^A-Za-z0-9?\n]*)*(?:{_BRACKETED}|{_BARE}(?:{_STOP}|{_VERDICT}))"
)
# A letter named by the last line: "Option B", "(A) is the correct answer", "C) 12 km", "so 12 km (C)".
AT_THE_END = re.compile(
    rf"(?i:option|choice|ans(?: is)?)[^A-Za-z0-9]*{_LETTER}|"
    rf"(?:{_BRACKETED}|{_BARE}){_VERDICT}|"
    rf"^[^A-Za-z0-9(]*\(?{_LETTER}[\s*]*(?:[).:]|$)|"
    rf"(?:^|\s)\({_BARE}\)[\s.*]*$"
)


def read_letter(text: str, letters: str) -> str | None:
    """Return the last letter that a text announces, or else the last one that its last line names."""
    last_line = text.strip().rpartition("\n")[2]
    # An announcement anywhere is surer than a letter in the last line.
    for pattern, part in ((ANNOUNCED, text), (AT_THE_END, last_line)):
        found = ["".join(groups).upper() for groups in pattern.findall(part)]
        # Letters beyond the choices, as in "Answer: F", do not count.
        valid = [letter for letter in found if letter in letters]
        if valid:
            return valid[-1]
    return None


class Rationale(Task):
    """Multiple-choice questions answered with a solution in words, and the letter in the last line."""

    style = Style(
        LETTER.listing,
        "Think it through, then end with the letter of the right choice, like this: The answer is X.",
        "The answer is {letter}.",
    )

    def forms(self, prompt: str) -> tuple[str, ...]:
        return forms_of_choices(prompt, self.style)

    def conversation(
        self, question: str, choices: Sequence[str], right: int | None, rationale: str | None = None
    ) -> Conversation:
        """rationale: the solution in words, which the answer begins with; without one it is the last line alone."""
        if right not in range(len(choices)):
            raise UserError(f"the right answer is none of its {len(choices)} choices")
        closing = answers_in(self.style.answer, choices)[right]
        # Some rationales end with the same sentence.
        reasons = (rationale or "").strip().removesuffix(closing).strip()
        answer = f"{reasons}\n{closing}" if reasons else closing
        return exchange(self.style.prompt(question, choices), answer) | {"letters": LETTERS[: len(choices)]}

    def evaluate(self, conversation: Conversation, completion: str) -> bool:
        """Return True if the completion names the letter with which the right answer ends."""
        right = text_of(conversation["messages"][-1])[-2]  # "X."
        return read_letter(completion, conversation["letters"]) == right


# ---- column layouts: cells -> (question, choices, index of the right choice or None, perhaps a rationale) ----
# Columns that are these already need no function.

Converted = tuple[str, Sequence[str], int | None]


def index_of(answer: str | None, labels: Sequence[str]) -> int | None:
    """Return the place of a label, None for an answer that is not one."""
    return {label: number for number, label in enumerate(labels)}.get(answer)


def answer_label(question: str, choices: dict[str, list[str]], answer: str) -> Converted:
    """The choices have labels, and the answer is a label: {"text": ["salt", "tea"], "label": ["1", "2"]}, "2"."""
    return question, choices["text"], index_of(answer, choices["label"])


def answer_letter(question: str, choices: list[str], answer: str) -> Converted:
    """Each choice begins with its letter and a bracket: ["A)salt", "B)tea"], "B"."""
    texts = [choice.partition(")")[2].strip() for choice in choices]
    return question, texts, index_of(answer, LETTERS)


def letter_and_rationale(
    question: str, choices: list[str], answer: str, rationale: str | None
) -> tuple[str, Sequence[str], int | None, str | None]:
    """The columns of `answer_letter`, and a solution in words."""
    return *answer_letter(question, choices, answer), rationale
