"""Mixtures: several tasks as one shuffled sequence.

A specification names tasks, separated by commas: `smoltalk,mmlu:3,gsm8k:2,aqua@20000,json:my.jsonl`. A name may be
followed by `@` and a sample size in rows, and by `:` and the epochs (1 by default).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanochat.log import print0
from tasks.chats import json_lines
from tasks.common import DataSet, Task, TaskError, find_task

# NAME, NAME@ROWS, NAME:EPOCHS or NAME@ROWS:EPOCHS; the path after json: may have any characters.
MEMBER = re.compile(r"(json:.+?|[^:@]+)(?:@(\d+))?(?::(\d*\.?\d+))?")
HELD_OUT = 20  # a data set with a train split alone keeps one row in this many for validation


@dataclass(frozen=True)
class Member:
    """A task in a specification."""

    word: str  # the name as the user wrote it
    name: str
    data: DataSet
    rows: int | None  # sample size, None: all
    epochs: float


class Mixture:
    """Several tasks' conversations in a seed's random order. parts: name -> (task, row numbers)."""

    def __init__(self, parts: dict[str, tuple[Task, np.ndarray]], seed: int):
        self._tasks = {name: task for name, (task, _) in parts.items()}
        # Counts with every epoch, by task name.
        self.rows = {name: len(numbers) for name, (_, numbers) in parts.items()}
        # Different conversations: a row that is in several epochs counts once.
        self.examples = {name: len(np.unique(numbers)) for name, (_, numbers) in parts.items()}
        # The rows of all tasks one after the other, and then shuffled.
        tasks = np.repeat(np.arange(len(parts)), list(self.rows.values()))
        numbers = np.concatenate([numbers for _, numbers in parts.values()])
        self._order = np.stack([tasks, numbers], axis=1)  # (rows, 2): task number, row number in the task
        np.random.default_rng(seed).shuffle(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> dict:
        task, number = self._order[index]
        return list(self._tasks.values())[task][int(number)]

    def origin(self) -> dict[str, dict]:
        """Return for each task the row count, and the source files with their hashes."""
        return {name: {"rows": self.rows[name], "files": task.hashes()} for name, task in self._tasks.items()}


def mix(
    spec: str,
    known: Mapping[str, DataSet],
    split: str,
    seed: int,
    tokenizer: str,
    available_only: bool = False,
) -> Mixture:
    """Open the mixture that a specification names; epochs and samples apply to the split train alone.

    available_only: leave out tasks without files on this machine, with a printed line, and take all rows where a task
    has fewer than the specification asks for.
    """
    parts: dict[str, tuple[Task, np.ndarray]] = {}
    missing = []
    for number, member in enumerate(_parse(spec, known)):
        try:
            task, rows = _open_split(member, split, tokenizer)
        except ValueError as error:
            # Damaged files are an error in any case; absent files only if the user named the task.
            if isinstance(error, TaskError) or not available_only:
                raise
            missing.append(member.name)
            continue
        if split == "train":
            count = len(rows) if member.rows is None else member.rows
            if available_only:
                count = min(count, len(rows))
            # The number keeps samples of several tasks independent.
            rows = _sample(member, rows, count, (seed, number))
        # A second file with the same name goes by its whole path.
        parts[member.word if member.name in parts else member.name] = task, rows
    if missing and not parts:
        raise ValueError(f"of {', '.join(missing)} none is here: set NANOCHAT_HUB, or name others with --mixture")
    if missing:
        print0(f"{split} mixture: {', '.join(parts)}; not here, so left out: {', '.join(missing)}")
    return Mixture(parts, seed)


def _parse(spec: str, known: Mapping[str, DataSet]) -> list[Member]:
    """Return the tasks in a specification; ValueError names the wrong word."""
    members: list[Member] = []
    for word in filter(None, map(str.strip, spec.split(","))):
        match = MEMBER.fullmatch(word)
        if not match:
            raise ValueError(f"{spec}: {word} is not like NAME, NAME:EPOCHS or NAME@ROWS:EPOCHS")
        source, rows, epochs = match.groups()
        if source.startswith("json:"):
            path = source.removeprefix("json:")
            name, data = f"json:{Path(path).name}", json_lines(path)
        else:
            name = find_task(source, known, spec)
            data = known[name]
        # Equal data sets, also under two names or paths.
        if any(member.data == data for member in members):
            raise ValueError(f"{spec}: {name} is named twice, give it epochs instead: {name}:2")
        members.append(
            Member(
                source,
                name,
                data,
                None if rows is None else int(rows),  # no sample: all rows
                float(epochs or 1),  # may be a fraction
            )
        )
    if not members:
        raise ValueError(f"{spec!r} names no task, choose from {', '.join(known)}, json:PATH")
    return members


def _open_split(member: Member, split: str, tokenizer: str) -> tuple[Task, np.ndarray]:
    """Return a task and its row numbers for a split.

    Validation takes the validation split, or else the test split, or else a part that training leaves out.
    """
    names = list(member.data.split_names)  # ours, as in `DataSet.splits`
    if split == "validation" and split not in names and "test" in names:
        split = "test"
    shared = names == ["train"] and split != "test"  # training and validation share the train split
    if not shared and split not in names:
        raise TaskError(f"{member.name} has no rows for {split}, only for {', '.join(names)}")
    task = member.data("train" if shared else split, tokenizer=tokenizer)
    rows = np.arange(len(task))
    if not shared:
        return task, rows
    # At least one row is held out, unless there is only one.
    held_out = max(1, len(rows) // HELD_OUT) if len(rows) > 1 else 0
    if split == "train":
        return task, rows[: len(rows) - held_out]
    if not held_out:
        raise TaskError(f"{member.name} has a single row, none is left to validate with: add rows")
    return task, rows[-held_out:]


def _sample(member: Member, rows: np.ndarray, count: int, seed: tuple[int, int]) -> np.ndarray:
    """Return `count` random rows, repeated for the epochs; a part epoch takes the first rows in the sample."""
    if not 0 < count <= len(rows):
        few = f"{member.name} has {len(rows):,} rows to train on"
        raise TaskError(f"{few}, {count:,} cannot be sampled: ask for fewer")
    total = round(count * member.epochs)
    if not total:
        few = f"{member.epochs} epochs of the {count:,} rows of {member.name} are none"
        raise TaskError(f"{few}: take more, or leave it out")
    # resize repeats the sample until it has as many rows as asked for.
    return np.resize(np.random.default_rng(seed).permutation(rows)[:count], total)
