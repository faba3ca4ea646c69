"""Augmented multiple choice: the rows of another task in several styles, or with more choices.

A new augmentation is a class and a row in AUGMENTATIONS.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np

from nanochat.curate.augment import HANGUL, MOST_CHOICES, STYLES, answers_in, list_choices, remix
from nanochat.curate.bm25 import BM25
from tasks.common import DataSet, exchange, find_task
from tasks.multiple_choice import MultipleChoice, Rationale


class Styled(MultipleChoice):
    """Each row in `number` different styles."""

    kind = "generative"
    number = 1  # by default

    @property
    def copies(self) -> int:
        return self.number

    def build(self, row: int, copy: int) -> dict:
        question, choices, right = self.data.convert(*self.rows[row])
        # A question without Korean gets no instruction in Korean.
        names = [name for name in STYLES if HANGUL.search(question) or not HANGUL.search(STYLES[name].instruction)]
        name = names[np.random.default_rng((self.seed, row)).permutation(len(names))[copy]]
        style = STYLES[name]
        prompt = list_choices(question, choices, style.listing, style.instruction)
        # The row is checked as in the plain task.
        found = self.conversation(question, choices, right) | {"style": name, "choices": choices}
        return found | exchange(prompt, answers_in(style.answer, choices)[right])

    def evaluate(self, conversation: dict, completion: str) -> bool:
        style, choices = STYLES[conversation["style"]], conversation["choices"]
        return style.read(completion, choices) == style.read(conversation["messages"][-1]["content"], choices)


class MoreChoices(MultipleChoice):
    """Each row with wrong choices of similar rows, up to `number` choices."""

    number = MOST_CHOICES

    @cached_property
    def _pool(self) -> tuple[list[tuple], BM25]:
        questions = [self.data.convert(*self.rows[row]) for row in range(len(self.rows))]
        return questions, BM25(question for question, *_ in questions)

    def build(self, row: int, copy: int) -> dict:
        return self.conversation(*remix(row, *self._pool, self.number, self.seed))


AUGMENTATIONS = {"styles": Styled, "options": MoreChoices}


def augmented(name: str, data: DataSet, word: str, number: str | None, seed: int) -> tuple[str, DataSet]:
    """Return an augmented data set with its name; word: key of AUGMENTATIONS, number: behind it, None: the default."""
    kind = find_task(word, AUGMENTATIONS, "augmentation")
    count = int(number or AUGMENTATIONS[kind].number)
    # The letters in a rationale are those of the choices as they were.
    if not issubclass(data.task, MultipleChoice) or issubclass(data.task, Rationale):
        raise ValueError(f"{name}~{kind}: {name} is not answered by a choice alone, so it cannot be augmented")
    if not 1 <= count <= MOST_CHOICES:
        raise ValueError(f"{name}~{kind}:{count}: the number is at most {MOST_CHOICES}; epochs stand after it")
    # Where the augmentation has no own prompt or verdict, that of the data set's class stays.
    both = type(kind, (AUGMENTATIONS[kind], data.task), {"number": count, "seed": seed})
    return f"{name}~{kind}:{count}", replace(data, task=both)
