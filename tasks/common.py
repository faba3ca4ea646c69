"""The base for all tasks: a data set read as conversations, and a verdict on each answer.

`sets.py` has a row for each `DataSet`. Calling it with a split opens a `Task`, which reads the split's rows.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nanochat.chat import messages, text_of
from nanochat.config import check_names
from nanochat.data.corpus import learned_world, world_folder
from nanochat.data.hub import HubFile, fetch, sha256
from nanochat.errors import UserError
from nanochat.paths import text_sha256
from nanochat.protocols import Conversation, Part

# A split's files where the hub converts CSV or JSON, in another git revision.
CONVERTED = "{part}/{split}/0000.parquet"
REVISION = "refs/convert/parquet"

EVALUATION_SPLIT = "test"  # the split that every evaluation asks for
SHUFFLE_SEED = 42  # the same as in the public nanochat, so that the first problems are the same too


Answered = list[tuple[Conversation, str]]  # conversations, each with a completion to judge


@dataclass(frozen=True)
class Split:
    """A split under our name, and what the data set has for it: `Split("test", own="validation")`."""

    name: str
    own: str = ""  # the data set's name for it, by default ours
    files: int = 1  # Parquet files, where the path has {file}


TRAIN = Split("train")
VALIDATION = Split("validation")
TEST = Split("test")


def unchanged(*cells: Any) -> tuple[Any, ...]:
    """Return the cells of a row that are arguments for `Task.conversation` already."""
    return cells


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """One data set: the rows' location on the hub, and the class and function that use them."""

    task: "type[Task]"
    splits: tuple[Split, ...]  # `test` is needed to evaluate a task, and `train` to learn from it
    repo: str = ""  # empty for files that are on no hub
    path: str = ""  # with {split}, {part} and {file}, a split's file as the hub names it; empty where no file is read
    table: str = ""  # in place of a path: a file in the embedded world's folder `tasks`, without the split in its name
    columns: tuple[str, ...] = ()  # "name?": a cell may be None
    # A row's cells -> arguments for task.conversation. No precise type: data sets differ in their columns.
    convert: Callable[..., tuple[Any, ...]] = unchanged
    baseline: float = 0.0  # score when guessing
    parts: tuple[str, ...] = ("default",)  # values for {part} in the path
    learned: "DataSet | None" = None  # the same rows in the form in which training reads them, if it is another one

    def __call__(self, split: str = EVALUATION_SPLIT, tokenizer: str = "default", unsafe_exec: bool = False) -> "Task":
        """Open a split; `Task` describes the other arguments."""
        check_names(f"{self.name}: the split", [split], self.split_names)
        return self.task(self, split, tokenizer, unsafe_exec)

    @property
    def to_learn(self) -> "DataSet":
        """The data set that mixtures and reinforcement learning open in place of this one, or this one."""
        return self.learned or self

    @property
    def name(self) -> str:
        return self.repo or self.path or self.table or self.task.__name__

    @property
    def split_names(self) -> tuple[str, ...]:
        return tuple(split.name for split in self.splits)

    def files(self, *names: str) -> list[HubFile]:
        """Return the files for the splits with these names, by default for all."""
        if not self.path:
            return []
        revision = REVISION if self.path == CONVERTED else None
        by_name = {split.name: split for split in self.splits}
        found = []
        for split in map(by_name.__getitem__, names or by_name):
            own = split.own or split.name
            for part in self.parts:
                for number in range(split.files):
                    file = f"{own}-{number:05d}-of-{split.files:05d}.parquet"
                    found.append(HubFile(self.path.format(split=own, part=part, file=file), self.repo, revision))
        return found


DataSets = Mapping[str, DataSet]  # by name


# ---- tasks ----


class Rows(Protocol):
    """Rows by number; a row is its cells."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Sequence[Any]: ...


class ParquetRows:
    """Rows in Parquet files, one file after the other; a row is a list with its cells."""

    def __init__(self, paths: list[Path], columns: Iterable[str]) -> None:
        import pyarrow.parquet as pq  # slow to import; scripts that only list tasks do without

        names = [name.rstrip("?") for name in columns]
        self._required = set(columns)  # no name of a cell has a "?"
        # read_table leaves out unknown columns, select complains about them.
        self._tables = [pq.read_table(path, columns=names).select(names) for path in paths]

    def __len__(self) -> int:
        return sum(table.num_rows for table in self._tables)

    def __getitem__(self, number: int) -> list[Any]:
        for table in self._tables:
            if number < table.num_rows:
                [row] = table.slice(number, 1).to_pylist()  # only this row leaves Arrow
                if any(cell is None and name in self._required for name, cell in row.items()):
                    raise UserError("a cell is empty")
                return list(row.values())
            number -= table.num_rows
        raise IndexError(number)


@dataclass(eq=False)
class Task:
    """One split's conversations in a fixed random order; `task[n]` is a conversation.

    kind: `categorical`: answered with one of the conversation's "letters"; `generative`: with a text that `evaluate`
    reads; `program`: with a program that `evaluate_all` runs; `chat`: no right answer, only text to learn.
    tokenizer: tag of the tokenizer whose training text gives the words to spell, and the embedded world to ask about.
    unsafe_exec: run programs even where the sandbox cannot contain them.
    """

    data: DataSet
    split: str
    tokenizer: str = "default"
    unsafe_exec: bool = False

    kind = "generative"
    has_answers = True  # to learn from; else an answer is only judged
    copies = 1  # conversations of each row, one after the other
    seed = 0  # for augmentation, set by a mixture

    def __post_init__(self) -> None:
        import numpy as np  # slow

        self.files: dict[str, Path] = {}  # name on the hub -> file that the rows come from
        self.rows = self.open_rows()
        self._order = np.random.default_rng(SHUFFLE_SEED).permutation(len(self.rows)).repeat(self.copies)

    def open_rows(self) -> Rows:
        """Return the split's rows; tasks without Parquet files override this."""
        return ParquetRows(self.fetch_files(), self.data.columns)

    def fetch_files(self) -> list[Path]:
        """Return the split's files; missing ones are downloaded, and a missing world is written."""
        if self.data.table:
            seed = learned_world(self.tokenizer)
            folder = world_folder(1 if seed is None else seed)
            file = f"tasks/{self.data.table}-{self.split}.parquet"
            self.files = {f"{folder.name}/{file}": folder / file}
        else:
            files = self.data.files(self.split)
            self.files = {str(file): path for file, path in zip(files, fetch(files), strict=True)}
        return list(self.files.values())

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Conversation:
        number = int(self._order[index])
        try:
            # Rows become conversations when they are used: most data sets are much larger than a run needs.
            return self.build(number, index % self.copies)
        except ValueError as error:
            raise UserError(f"{self.data.name}, split {self.split}, row {number}: {error}") from None

    def forms(self, prompt: str) -> tuple[str, ...]:
        """Return the forms in which another text may have the question of a prompt, as without its instructions."""
        return (prompt,)

    def build(self, row: int, copy: int) -> Conversation:
        """Return a row as a conversation. row: number in the files; copy: number among the conversations of the row."""
        return self.conversation(*self.data.convert(*self.rows[row]))

    def hashes(self) -> dict[str, str]:
        """Return the files that the rows come from, with their SHA-256; that of the rows if there are no files."""
        return {name: sha256(path) for name, path in self.files.items()} or {"rows": text_sha256(repr(self.rows))}

    def conversation(self, *cells: Any, **named: Any) -> Conversation:
        """Return a converted row as a conversation whose last message is the right answer.

        Here a row is a question and its answer. Other tasks name the cells that theirs have.
        """
        return exchange(*cells, **named)

    def evaluate(self, conversation: Conversation, completion: str) -> bool:
        """Return True if `read` finds the same answer in a completion and in the last message, which is right."""
        return self.read(completion) == self.read(text_of(conversation["messages"][-1]))

    def read(self, text: str) -> Hashable:
        """Return the answer in a text, equal for equal answers: here all of it."""
        return text.strip()

    def evaluate_all(self, answers: Answered) -> list[bool]:
        """Return the verdicts on several (conversation, completion)."""
        return [self.evaluate(conversation, completion) for conversation, completion in answers]

    def reward(self, conversation: Conversation, completion: str) -> float:
        """Return a completion's reward for reinforcement learning."""
        return float(self.evaluate(conversation, completion))


def exchange(question: str, answer: str | list[Part]) -> Conversation:
    """Return a conversation with one question and one answer; the answer may be a list of parts."""
    return {"messages": messages([question, answer])}


# ---- names that users type ----


def pick(names: str, known: Iterable[str]) -> list[str]:
    """Return the tasks that --tasks names, separated by | or commas, in upper or lower case, each once."""
    words = re.findall(r"[^|,\s]+", names)
    # A dict drops repeats and keeps the user's order.
    return list(dict.fromkeys(find_task(word, known) for word in words))


def find_task(word: str, known: Iterable[str]) -> str:
    """Return the known name that a user's word means, with its augmentation."""
    names = {name.lower(): name for name in known}
    plain, mark, augmentation = word.partition("~")
    if plain.lower() not in names:
        raise UserError(f"{word} is not a task, choose from {', '.join(names.values())}")
    return names[plain.lower()] + mark + augmentation.lower()
