"""Several tasks as one sequence of conversations: `smoltalk,mmlu:3,gsm8k:2,aqua@20000,json:my.jsonl`.

A name may be followed by @, how many rows to sample, and by a colon and how many epochs to take of them, 1 by default.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nanochat.log import print0
from tasks.chats import json_lines
from tasks.common import DataSet, TaskError, spelled

MEMBER = re.compile(r"(json:.+?|[^:@]+)(?:@(\d+))?(?::(\d*\.?\d+))?")
HELD_OUT = 20  # a set that has rows to train on and no others keeps one of so many for validation


class Sequence:
    """The chosen rows of some tasks, one task after the other. parts: name -> (task, numbers of its rows)."""

    def __init__(self, parts: dict[str, tuple[Any, np.ndarray]]):
        self._tasks = [task for task, _ in parts.values()]
        self.rows = {name: len(rows) for name, (_, rows) in parts.items()}
        self.examples = {name: len(np.unique(rows)) for name, (_, rows) in parts.items()}  # each once
        tasks = np.repeat(np.arange(len(parts)), list(self.rows.values()))
        self._order = np.stack([tasks, np.concatenate([rows for _, rows in parts.values()])], axis=1)

    def __len__(self) -> int:
        return len(self._order)

    def origin(self) -> dict[str, dict]:
        """Of each task how many rows are here, and the hash of each file they are from."""
        tasks = zip(self.rows.items(), self._tasks, strict=True)
        return {name: {"rows": rows, "files": task.hashes()} for (name, rows), task in tasks}

    def __getitem__(self, index: int) -> dict:
        task, row = self._order[index]
        return self._tasks[task][int(row)]


class Mixture(Sequence):
    """The same in a shuffled order, which the seed gives."""

    def __init__(self, parts: dict[str, tuple[Any, np.ndarray]], seed: int):
        super().__init__(parts)
        np.random.default_rng(seed).shuffle(self._order)


def mix(spec: str, known: Mapping[str, DataSet], split: str, seed: int, tokenizer: str, as_here=False) -> Mixture:
    """What a user names; for another split than train each of its rows once, whatever the spec says of epochs.

    as_here: what has no files here is left out, and told, and of fewer rows than asked for all are taken.
    """
    parts: dict[str, tuple[Any, np.ndarray]] = {}
    lost = []
    for number, word in enumerate(filter(None, map(str.strip, spec.split(",")))):
        member = MEMBER.fullmatch(word)
        if not member:
            raise ValueError(f"{spec}: {word} is not like NAME, NAME:EPOCHS or NAME@ROWS:EPOCHS")
        name, data = _named(member[1], known, spec)
        if any(task.data == data for task, _ in parts.values()):
            raise ValueError(f"{spec}: {name} is named twice, give it epochs instead: {name}:2")
        try:
            task, rows = _rows(name, data, split, tokenizer)
        except ValueError as error:
            if isinstance(error, TaskError) or not as_here:
                raise
            lost.append(name)
            continue
        if split == "train":
            count = int(member[2] or len(rows))
            count = min(count, len(rows)) if as_here else count
            rows = _taken(name, rows, count, float(member[3] or 1), (seed, number))
        parts[member[1] if name in parts else name] = task, rows  # the whole path of a second file of one name
    if lost and parts:
        print0(f"{split} mixture: {', '.join(parts)}; not here, so left out: {', '.join(lost)}")
    if not parts and lost:
        raise ValueError(f"of {', '.join(lost)} none is here: set NANOCHAT_HUB, or name others with --mixture")
    if not parts:
        raise ValueError(f"{spec!r} names no task, take some of {', '.join(known)}, json:PATH")
    return Mixture(parts, seed)


def _named(word: str, known: Mapping[str, DataSet], spec: str) -> tuple[str, DataSet]:
    kind, _, path = word.partition(":")
    if kind == "json":
        return f"json:{Path(path).name}", json_lines(path)
    name = spelled(word, known, spec)
    return name, known[name]


def _rows(name: str, data: DataSet, split: str, tokenizer: str) -> tuple[Any, np.ndarray]:
    """A task that has rows for a split, and their numbers in it."""
    names = list(data.split_names)
    if split not in names and "test" in names and split == "validation":
        split = "test"
    if names != ["train"] or split == "test":
        if split not in names:
            raise TaskError(f"{name} has no rows for {split}, only for {', '.join(names)}")
        task = data(split, tokenizer=tokenizer)
        return task, np.arange(len(task))
    task = data("train", tokenizer=tokenizer)
    kept = max(1, len(task) // HELD_OUT) if len(task) > 1 else 0
    if split == "validation" and not kept:
        raise TaskError(f"{name} has a single row, none is left to validate with: add rows")
    return task, np.arange(len(task))[: -kept or None] if split == "train" else np.arange(len(task))[-kept:]


def _taken(name: str, rows: np.ndarray, count: int, epochs: float, seed: tuple[int, int]) -> np.ndarray:
    """A sample of `count`, as often as there are epochs; of a last part of an epoch the first rows of the shuffle."""
    if not 0 < count <= len(rows):
        raise TaskError(f"{name} has {len(rows):,} rows to train on, {count:,} cannot be sampled: ask for fewer")
    taken = round(count * epochs)
    if not taken:
        raise TaskError(f"{epochs} epochs of the {count:,} rows of {name} are none: take more, or leave it out")
    return np.resize(np.random.default_rng(seed).permutation(rows)[:count], taken)
