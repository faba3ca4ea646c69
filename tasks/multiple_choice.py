"""Multiple-choice questions, their form in a conversation, and the layouts of their columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase as LETTERS

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


# ---- column layouts: cells -> (question, choices, index of the right choice or None) ----
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
