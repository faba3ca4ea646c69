"""Augmented multiple choice: the rows of another task in several styles, or with more choices.

A new augmentation is a class and a row in AUGMENTATIONS, and in the table of this name in nanochat/registry.py.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import cast

import numpy as np

from nanochat.errors import UserError
from nanochat.protocols import Conversation
from tasks.common import DataSet
from tasks.multiple_choice import MultipleChoice
from tracks.chatdata.augment import HANGUL, MOST_CHOICES, STYLES, Question, remix
from tracks.chatdata.bm25 import BM25


class Augmented(MultipleChoice):
    """The rows of another task, changed. number: the N of ~styles:N, by default the class's own."""

    number: int
    adds_choices = False

    @classmethod
    def augment(cls, key: str, data: DataSet, number: str) -> DataSet:
        """Return a data set with the rows of another one, changed: `tasks.table.Augmentation`."""
        name = key.partition("~")[0]
        if not issubclass(data.task, MultipleChoice):
            raise UserError(f"{key}: {name} is not answered by a choice alone, so it cannot be augmented")
        number = number or str(cls.number)
        if not number.isdecimal() or not 1 <= int(number) <= MOST_CHOICES:
            raise UserError(f"{key}: the number is from 1 to {MOST_CHOICES}; epochs come after it")
        # Prompt and verdict are those of the data set's own class where the augmentation has none.
        both = type(cls.__name__, (cls, data.task), {"number": int(number)})
        # About: a question keeps fewer choices if no more fit.
        chance = 1 / int(number) if cls.adds_choices else 1.0
        # What is learned has the form that is asked for, and no other one that the data set has for training.
        return replace(data, task=both, learned=None, baseline=min(data.baseline, chance))


class StyledConversation(Conversation):
    """A question in one of the styles, with what reads an answer in this style."""

    style: str  # a key of STYLES
    choices: Sequence[str]
    right: int | None  # index of the right choice


class Styled(Augmented):
    """Each row in `number` different styles."""

    kind = "generative"
    number = 1

    @property
    def copies(self) -> int:
        return self.number

    def build(self, row: int, copy: int) -> StyledConversation:
        question, choices, right = self.data.convert(*self.rows[row])
        # A question without Korean gets no instruction in Korean.
        names = [name for name in STYLES if HANGUL.search(question) or "Korean" not in name]
        name = str(np.random.default_rng((self.seed, row)).permutation(names)[copy])
        conversation = self.conversation(question, choices, right, STYLES[name])
        return {**conversation, "style": name, "choices": choices, "right": right}

    def evaluate(self, conversation: Conversation, completion: str) -> bool:
        styled = cast("StyledConversation", conversation)  # `build` made it
        return STYLES[styled["style"]].read(completion, styled["choices"]) == styled["right"]


class MoreChoices(Augmented):
    """Each row with wrong choices of similar rows, up to `number` choices."""

    number = MOST_CHOICES
    adds_choices = True

    @cached_property
    def _pool(self) -> tuple[list[Question], BM25]:
        questions: list[Question] = [("", (), 0)] * len(self.rows)  # a faulty row stays empty: no search finds it
        for row in range(len(self.rows)):
            with suppress(ValueError):
                question = self.data.convert(*self.rows[row])
                self.conversation(*question)  # finds a right answer that is not a choice
                questions[row] = question
        return questions, BM25(question for question, *_ in questions)

    def build(self, row: int, copy: int) -> Conversation:
        super().build(row, copy)  # finds faults of the row
        questions, index = self._pool
        return self.conversation(*remix(row, questions, index, self.number, self.seed))


AUGMENTATIONS = {"styles": Styled.augment, "options": MoreChoices.augment}
