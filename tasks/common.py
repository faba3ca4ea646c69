"""The base for all tasks: a data set read as conversations, and a verdict on each answer.

A table of tasks has a `DataSet` in each row. Calling it with a split opens a `Task`, which reads the split's rows.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nanochat.data.hub import HubFile, fetch, sha256

if TYPE_CHECKING:
    import pyarrow

# A split's files as the hub names them: as uploaded, and as the hub converts CSV or JSON, in another git revision.
FILE = "{split}-{file:05d}-of-{files:05d}.parquet"
CONVERTED = "{part}/{split}/0000.parquet"
REVISION = "refs/convert/parquet"

EVALUATION_SPLIT = "test"  # the split that every evaluation asks for
SPLIT = re.compile(r"(?:(\w+)=)?(\w+)(?:\*(\d+))?")  # train=auxiliary_train*4
SHUFFLE_SEED = 42  # the same as in the public nanochat, so that the first problems are the same too


class TaskError(ValueError):
    """Rows that cannot be used; the message names the file and the fault."""


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """One data set: the rows' location on the hub, and the class and function that use them.

    splits: a task needs `test` to be evaluated and `train` to be learned from. `test=train` means that our split `test`
    is the data set's split `train`, and `train*4` that it has four files.
    """

    task: "type[Task]"
    splits: str  # names, separated by spaces
    repo: str = ""  # empty for files that are on no hub
    path: str = ""  # with placeholders as in FILE or CONVERTED; empty where no file is read
    columns: str = ""  # names, separated by spaces
    convert: Callable[..., tuple] = lambda *cells: cells  # a row's cells -> arguments for task.conversation
    baseline: float = 0.0  # score when guessing
    parts: str = "default"  # values for {part} in the path, separated by spaces
    reward: Callable[[bool, str], float] = lambda right, answer: float(right)  # for reinforcement learning

    def __call__(self, split: str = EVALUATION_SPLIT, tokenizer: str = "default", unsafe_exec: bool = False) -> "Task":
        """Open a split; `Task` describes the other arguments."""
        if split not in self.split_names:
            name = self.repo or self.path or self.task.__name__
            raise TaskError(f"{name} has no split {split}, only {', '.join(self.split_names)}")
        return self.task(self, split, tokenizer, unsafe_exec)

    @property
    def split_names(self) -> dict[str, tuple[str, int]]:
        """Our split names -> the data set's name for the split, and its file count."""
        found = {}
        for word in self.splits.split():
            ours, own, count = SPLIT.fullmatch(word).groups()
            found[ours or own] = own, int(count or 1)  # one file by default
        return found

    def files(self, *splits: str) -> list[HubFile]:
        """Return the files for some splits, by default for all."""
        if not self.path:
            return []
        revision = REVISION if self.path == CONVERTED else None
        found = []
        for split in splits or self.split_names:
            own, count = self.split_names[split]
            for part in self.parts.split():
                for number in range(count):
                    path = self.path.format(split=own, part=part, file=number, files=count)
                    found.append(HubFile(path, self.repo, revision))
        return found


# ---- rows ----


@dataclass(frozen=True)
class ListRows:
    """Rows held in memory."""

    source: str  # for error messages
    cells: list[list]  # one list per row
    digests: dict[str, str]  # source -> SHA-256

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, number: int) -> list:
        return self.cells[number]

    def location(self, number: int) -> str:
        return f"{self.source}, row {number}"


class ParquetRows:
    """Rows in Parquet files on the hub, one file after the other; a row is a list with its cells."""

    def __init__(self, files: list[HubFile], columns: list[str]):
        paths = [found.path for found in fetch(files)]  # downloads what is missing
        self._files = files
        self._tables = [_read_table(file, path, columns) for file, path in zip(files, paths, strict=True)]
        self._ends = np.cumsum([table.num_rows for table in self._tables])  # for each file: rows up to its end
        self._paths = paths
        self.source = str(files[0])

    @property
    def digests(self) -> dict[str, str]:
        return {str(file): sha256(path) for file, path in zip(self._files, self._paths, strict=True)}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, number: int) -> list:
        file, row = self._find(number)
        cells = self._tables[file].slice(row, 1).to_pylist()[0]  # only this row leaves Arrow
        empty = [column for column, cell in cells.items() if cell is None]
        if empty:
            raise TaskError(f"{', '.join(empty)} is empty")
        return list(cells.values())

    def location(self, number: int) -> str:
        file, row = self._find(number)
        return f"{self._files[file]}, row {row}"

    def _find(self, number: int) -> tuple[int, int]:
        """Return the file that has a row, and the row's number in that file."""
        file = int(np.searchsorted(self._ends, number, side="right"))
        before = int(self._ends[file - 1]) if file else 0
        return file, number - before


def _read_table(file: HubFile, path: Path, columns: list[str]) -> "pyarrow.Table":
    import pyarrow as pa  # slow to import; scripts that only list tasks do without
    import pyarrow.parquet as pq

    try:
        # read_table leaves out unknown columns, select complains about them.
        return pq.read_table(path, columns=columns).select(columns)
    except (pa.ArrowException, KeyError) as error:
        raise TaskError(f"{file} is damaged, or has other columns: {error}") from None


# ---- tasks ----


class Task:
    """One split's conversations in a fixed random order; `task[n]` is a conversation.

    kind: `categorical`: answered with one of the conversation's "letters"; `generative`: with a text that `evaluate`
    reads; `program`: with a program that `evaluate_all` runs; `chat`: no right answer, only text to learn.
    tokenizer: tag of the tokenizer whose training text gives the words to spell.
    unsafe_exec: run programs even where the sandbox cannot contain them.
    """

    kind = "generative"

    def __init__(self, data: DataSet, split: str, tokenizer: str = "default", unsafe_exec: bool = False):
        self.data = data
        self.split = split
        self.baseline = data.baseline
        self.tokenizer = tokenizer
        self.unsafe_exec = unsafe_exec
        self.rows = self.open_rows()
        if not len(self.rows):
            raise TaskError(f"{self.rows.source} has no rows: the split {split} is empty")
        self._order = np.random.default_rng(SHUFFLE_SEED).permutation(len(self.rows))

    def open_rows(self) -> ListRows | ParquetRows:
        """Read the split's rows; tasks without Parquet files override this."""
        return ParquetRows(self.data.files(self.split), self.data.columns.split())

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> dict:
        number = int(self._order[index])
        try:
            # Rows become conversations when they are used: most data sets are much larger than a run needs.
            return self.conversation(*self.data.convert(*self.rows[number]))
        except ValueError as error:
            raise TaskError(f"{self.rows.location(number)}: {error}") from None

    def hashes(self) -> dict[str, str]:
        """Return the files that the rows come from, with their SHA-256."""
        return self.rows.digests

    def conversation(self, *parts: Any) -> dict:
        """Return a converted row as a conversation whose last message is the right answer."""
        raise NotImplementedError

    def evaluate(self, conversation: dict, completion: str) -> bool:
        """Return True if a model's completion, in place of the last message, is right."""
        raise NotImplementedError

    def evaluate_all(self, answers: list[tuple[dict, str]]) -> list[bool]:
        """Return the verdicts on several (conversation, completion)."""
        return [self.evaluate(conversation, completion) for conversation, completion in answers]

    def reward(self, conversation: dict, completion: str) -> float:
        """Return a completion's reward for reinforcement learning."""
        return self.data.reward(self.evaluate(conversation, completion), completion)


def exchange(question: str, answer: str | list[dict]) -> dict:
    """Return a conversation with one question and one answer; the answer may be a list of parts."""
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


# ---- names that users type ----


def pick(names: str, known: Iterable[str]) -> list[str]:
    """Return the tasks that --tasks names, separated by | or commas, in upper or lower case, each once."""
    words = [word for word in re.split(r"[|,\s]+", names) if word]
    # A dict drops repeats and keeps the user's order.
    return list(dict.fromkeys(find_task(word, known, f"--tasks={names}") for word in words))


def find_task(word: str, known: Iterable[str], source: str) -> str:
    """Return the known name that a user's word means. source: how the error message starts."""
    names = {name.lower(): name for name in known}
    if word.lower() in names:
        return names[word.lower()]
    close = difflib.get_close_matches(word.lower(), names, n=1)  # for typing errors
    hint = f"did you mean {names[close[0]]}?" if close else f"choose from {', '.join(names.values())}"
    raise ValueError(f"{source}: {word} is no task, {hint}")
