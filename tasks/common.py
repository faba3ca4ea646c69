"""What a task is: a data set read as conversations, and a verdict on each answer."""

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanochat.hub import HubFile, fetch

FILE = "{split}-00000-of-00001.parquet"  # as the hub names the one file of a split
SHUFFLE_SEED = 42  # the public reference's: with it the first problems of a task are the same ones


class TaskError(ValueError):
    """Rows that no task can be made of: in which file, and what is wrong with them."""


@dataclass(frozen=True)
class DataSet:
    """A row of the table of tasks: where the rows are and what is made of them. Called, it opens a split.

    path: in the repository, with {split} in it. splits, columns: names with blanks between; of the splits, those that
    scripts.prepare fetches. form: makes of a row's cells, in the order of columns, what the task's `conversation`
    takes. baseline: the score of guessing.
    """

    task: Callable[..., "Task"]
    repo: str
    path: str
    splits: str
    columns: str
    form: Callable[..., tuple] = lambda *cells: cells
    baseline: float = 0.0

    def __call__(self, split: str = "test", **part: Any) -> "Task":
        return self.task(self, split, **part)

    def file(self, split: str) -> HubFile:
        return HubFile(self.path.format(split=split), self.repo)

    @property
    def files(self) -> list[HubFile]:
        return [self.file(split) for split in self.splits.split()]


class Task:
    """The conversations of a split, shuffled once and for all, then cut to [start:stop:step].

    kind: how it is answered. categorical: by one of the conversation's "letters"; generative: by a text that
    `evaluate` reads; program: by a text that it runs.
    """

    kind = "generative"

    def __init__(self, data: DataSet, split: str = "test", start: int = 0, stop: int | None = None, step: int = 1):
        self.data, self.file, self.baseline = data, data.file(split), data.baseline
        self._columns = data.columns.split()
        self._table = _read(self.file, self._columns)
        rows = self._table.num_rows
        if not rows:
            raise TaskError(f"{self.file} has no rows: the split {split} is empty")
        self._chosen = np.random.default_rng(SHUFFLE_SEED).permutation(rows)[start:stop:step]
        if (stop or 0) > rows or not len(self._chosen):
            raise TaskError(f"{self.file} has {rows:,} rows, too few for those from {start:,} to {stop or rows:,}")

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> dict:
        number = int(self._chosen[index])
        cells = self._table.slice(number, 1).to_pylist()[0]
        try:
            if empty := [column for column in self._columns if cells[column] is None]:
                raise TaskError(f"{', '.join(empty)} is empty")
            return self.conversation(*self.data.form(*map(cells.get, self._columns)))
        except TaskError as error:
            raise TaskError(f"{self.file}, row {number}: {error}") from None

    def conversation(self, *parts: Any) -> dict:
        """What the form made of a row as a conversation whose last message is the right answer."""
        raise NotImplementedError

    def evaluate(self, conversation: dict, completion: str) -> bool:
        """Whether what a model wrote in place of the last message is right."""
        raise NotImplementedError


def _read(file: HubFile, columns: list[str]) -> Any:
    import pyarrow as pa  # takes a while, and only names are needed where no task is opened
    import pyarrow.parquet as pq

    try:
        [found] = fetch([file])
        there = pq.read_schema(found.path).names
        if lost := [column for column in columns if column not in there]:
            raise TaskError(f"{file} has no column {', '.join(lost)}, it has {', '.join(there)}")
        return pq.read_table(found.path, columns=columns)
    except pa.ArrowException as error:
        raise TaskError(f"{file} is damaged: {error}") from None


def pick(names: str, known: Iterable[str]) -> list[str]:
    """The tasks that --tasks names, joined by | or commas; small letters will do."""
    spelled = {name.lower(): name for name in known}
    words = [word for word in re.split(r"[|,\s]+", names.lower()) if word]
    for word in words:
        if word not in spelled:
            near = difflib.get_close_matches(word, spelled, n=1)
            hint = f"did you mean {spelled[near[0]]}?" if near else f"take of {', '.join(known)}"
            raise ValueError(f"--tasks={names}: {word} is no task, {hint}")
    return list(dict.fromkeys(spelled[word] for word in words))
