"""What a task is: a data set read as conversations, and a verdict on each answer."""

import copy
import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nanochat.data.hub import HubFile, fetch, sha256

FILE = "{split}-{file:05d}-of-{files:05d}.parquet"  # as the hub names the files of a split
CONVERTED = (
    "{part}/{split}/0000.parquet"  # as it names those that it made of a data set's CSV or JSON, in this revision:
)
REVISION = "refs/convert/parquet"
SPLIT = re.compile(r"(?:(\w+)=)?(\w+)(?:\*(\d+))?")  # train=auxiliary_train*4
SHUFFLE_SEED = 42  # the public reference's: with it the first problems of a task are the same ones


class TaskError(ValueError):
    """Rows that no task can be made of: in which file, and what is wrong with them."""


@dataclass(frozen=True)
class DataSet:
    """A row of the table of tasks: where the rows are and what is made of them. Called, it opens a split.

    path: in the repository, with {split} in it; empty: no file. splits, columns, parts: names with blanks between.
    splits: "train=auxiliary_train" is called train here, "train*4" has four files. form: makes of a row's cells, in the
    order of columns, what the task's `conversation` takes. baseline: the score of guessing. parts: what {part} of the
    path stands for, one after the other. reward: of whether an answer is right, and the answer.
    """

    task: Callable[..., "Task"]
    repo: str
    path: str
    splits: str
    columns: str = ""
    form: Callable[..., tuple] = lambda *cells: cells
    baseline: float = 0.0
    parts: str = "default"
    revision: str | None = None
    reward: Callable[[bool, str], float] = lambda right, answer: float(right)

    def __call__(self, split: str = "test", **options: Any) -> "Task":
        if split not in (names := self.split_names):
            name = self.repo or self.path or self.task.__name__
            raise TaskError(f"{name} has no split {split}, only {', '.join(names)}")
        return self.task(self, split, **options)

    @property
    def split_names(self) -> dict[str, tuple[str, int]]:
        """Ours -> the data set's own, and how many files it has."""
        found = map(SPLIT.fullmatch, self.splits.split())
        return {ours or own: (own, int(count or 1)) for ours, own, count in (match.groups() for match in found)}

    def files(self, *splits: str) -> list[HubFile]:
        """Of these splits, or of all."""
        if not self.path:
            return []
        names, found = self.split_names, []
        for split in splits or names:
            own, count = names[split]
            slots = [(part, file) for part in self.parts.split() for file in range(count)]
            paths = [self.path.format(split=own, part=part, file=file, files=count) for part, file in slots]
            found += [HubFile(path, self.repo, self.revision) for path in paths]
        return found


class Task:
    """The conversations of a split, shuffled once and for all, then cut to [start:stop:step].

    kind: how it is answered. categorical: by one of the conversation's "letters"; generative: by a text that
    `evaluate` reads; program: by a text that it runs; chat: there is no right answer, only one to learn.
    tokenizer: tag of the run whose text gives the words, where a task has no files.
    """

    kind = "generative"

    def __init__(self, data: DataSet, split="test", start=0, stop: int | None = None, step=1, tokenizer="default"):
        self.data, self.split, self.baseline, self.tokenizer = data, split, data.baseline, tokenizer
        rows = self.open()
        if not rows:
            raise TaskError(f"{self.place(0)} has no rows: the split {split} is empty")
        self._chosen = np.random.default_rng(SHUFFLE_SEED).permutation(rows)[start:stop:step]
        if (stop or 0) > rows or not len(self._chosen):
            last = f"{stop or rows:,}"
            raise TaskError(f"{self.place(0)} has {rows:,} rows, too few for those from {start:,} to {last}")

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int | slice) -> Any:
        """A conversation, or a task of some of them."""
        if isinstance(index, slice):
            part = copy.copy(self)
            part._chosen = self._chosen[index]
            return part
        number = int(self._chosen[index])
        try:
            return self.conversation(*self.data.form(*self.cells(number)))
        except ValueError as error:
            raise TaskError(f"{self.place(number)}, row {self._within(number)[1]}: {error}") from None

    def open(self) -> int:
        """Find the rows, and count them."""
        self._files, columns = self.data.files(self.split), self.data.columns.split()
        self._paths = [found.path for found in fetch(self._files)]
        self._tables = [_read(*pair, columns) for pair in zip(self._files, self._paths, strict=True)]
        self._ends = np.cumsum([table.num_rows for table in self._tables])
        return int(self._ends[-1])

    def hashes(self) -> dict[str, str]:
        """The SHA-256 of each file that the rows are in."""
        return {str(file): sha256(path) for file, path in zip(self._files, self._paths, strict=True)}

    def place(self, number: int) -> str:
        """The file of a row."""
        return str(self._files[self._within(number)[0]])

    def cells(self, number: int) -> list:
        """What the data set has in the columns of a row."""
        file, row = self._within(number)
        cells = self._tables[file].slice(row, 1).to_pylist()[0]
        if empty := [column for column, cell in cells.items() if cell is None]:
            raise TaskError(f"{', '.join(empty)} is empty")
        return list(cells.values())

    def _within(self, number: int) -> tuple[int, int]:
        """(file, row in it)."""
        file = min(int(np.searchsorted(self._ends, number, side="right")), len(self._ends) - 1)
        return file, number - int(self._ends[file - 1] if file else 0)

    def conversation(self, *parts: Any) -> dict:
        """What the form made of a row as a conversation whose last message is the right answer."""
        raise NotImplementedError

    def evaluate(self, conversation: dict, completion: str) -> bool:
        """Whether what a model wrote in place of the last message is right."""
        raise NotImplementedError

    def evaluate_all(self, answers: list[tuple[dict, str]]) -> list[bool]:
        """The same for many (conversation, completion)."""
        return [self.evaluate(*answer) for answer in answers]

    def reward(self, conversation: dict, completion: str) -> float:
        """What reinforcement learning gives for it."""
        return self.data.reward(self.evaluate(conversation, completion), completion)


def _read(file: HubFile, path: Path, columns: list[str]) -> Any:
    import pyarrow as pa  # takes a while, and only names are needed where no task is opened
    import pyarrow.parquet as pq

    try:
        there = pq.read_schema(path).names
        if lost := [column for column in columns if column not in there]:
            raise TaskError(f"{file} has no column {', '.join(lost)}, it has {', '.join(there)}")
        return pq.read_table(path, columns=columns).select(columns)
    except pa.ArrowException as error:
        raise TaskError(f"{file} is damaged: {error}") from None


def pick(names: str, known: Iterable[str]) -> list[str]:
    """The tasks that --tasks names, joined by | or commas; small letters will do."""
    words = [word for word in re.split(r"[|,\s]+", names) if word]
    return list(dict.fromkeys(spelled(word, known, f"--tasks={names}") for word in words))


def spelled(word: str, known: Iterable[str], where: str) -> str:
    """The name among those known that a user's word means; or ValueError with a guess."""
    names = {name.lower(): name for name in known}
    if word.lower() not in names:
        near = difflib.get_close_matches(word.lower(), names, n=1)
        hint = f"did you mean {names[near[0]]}?" if near else f"take of {', '.join(known)}"
        raise ValueError(f"{where}: {word} is no task, {hint}")
    return names[word.lower()]
