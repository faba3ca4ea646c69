"""The tasks of the CORE metric: the list in an eval_bundle, its items, and their prompts as tokens, made once.

Order, examples shown and spelling of the prompts decide the score: they are those of the public reference.
"""

import csv
import hashlib
import json
import random
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nanochat.data.hub import HubFile, fetch, sha256
from nanochat.log import Progress
from nanochat.nodes import once_a_node
from nanochat.paths import base_dir, whole_file

BUNDLE = (HubFile("eval_bundle/core.yaml"), HubFile("eval_bundle/eval_meta_data.csv"))
VERSION = 2  # of what is in the cache; to be raised with every change to prompts or their layout
CHUNK = 256  # items that are tokenized at once
DELIMITER = "continuation_delimiter"  # of a task that has another than a blank
CHOICE, SCHEMA, COMPLETION = "multiple_choice", "schema", "language_modeling"

# Kind of task → (item, delimiter) → texts: one a choice; of a completion, without the continuation and with it.
TEXTS: dict[str, Callable[[dict, str], list[str]]] = {
    CHOICE: lambda item, between: [f"{item['query']}{between}{choice}" for choice in item["choices"]],
    SCHEMA: lambda item, between: [f"{context}{between}{item['continuation']}" for context in item["context_options"]],
    COMPLETION: lambda item, between: [
        f"{item['context'].strip()}{between}{end}" for end in ("", item["continuation"])
    ],
}


@dataclass(frozen=True)
class BundleTask:
    """A task as the bundle lists it. shots: examples shown before the question; baseline: share right by chance."""

    label: str
    kind: str
    shots: int
    delimiter: str
    baseline: float
    path: Path

    def texts(self, item: dict) -> list[str]:
        return TEXTS[self.kind](item, self.delimiter)

    def right(self, item: dict) -> int:
        """The number of the text that is true."""
        return 1 if self.kind == COMPLETION else item["gold"]

    def items(self, most: int) -> list[dict]:
        """Shuffled, and cut to so many (0: all)."""
        items = []
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    items.append(item := json.loads(line))
                    sound = self.right(item) in range(len(self.texts(item))) and item.get("continuation") != ""
                except (ValueError, KeyError, TypeError, AttributeError):  # no JSON, or not what its kind has
                    sound = False
                if not sound:
                    raise ValueError(f"{self.path}:{number}: no {self.kind} item, restore the bundle from a copy")
        random.Random(1337).shuffle(items)
        items = items[: most or None]
        if len(items) <= self.shots:
            need = f"{self.label} shows {self.shots} examples before a question and has {len(items)} items"
            raise ValueError(f"{need}: take a --max-per-task of {self.shots + 1} or more, or restore the bundle")
        return items

    def prompts(self, items: Sequence[dict], index: int) -> list[str]:
        """The texts of an item behind those of the examples drawn for it from all others."""
        drawn = random.Random(1234 + index).sample(range(len(items) - 1), self.shots)
        shown = [items[other + (other >= index)] for other in drawn]
        head = "".join(f"{self.texts(item)[self.right(item)]}\n\n" for item in shown)
        texts = [head + text for text in self.texts(items[index])]
        # A blank at the end would be a token of its own, and is part of the continuation's first one.
        return [texts[0].strip(), texts[1]] if self.kind == COMPLETION else texts


def listed(path: Path) -> list[dict[str, Any]]:
    """The tasks in core.yaml, of which lines `key: value` and `- key: value` are read; values are JSON or plain."""
    entries: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").partition("icl_tasks:")[2].splitlines():
        if line.lstrip().startswith("#"):
            continue
        found = re.fullmatch(r"\s*(-?)\s*(?:(\w+):\s*(.*?))?\s*", line)
        if not found or (found[2] and not entries and not found[1]):
            raise ValueError(f"{path}: {line.strip()!r} is no line of a list of tasks, restore the bundle from a copy")
        entries += [{}] * bool(found[1])
        if found[2]:
            try:
                entries[-1][found[2]] = json.loads(found[3])
            except ValueError:
                entries[-1][found[2]] = found[3]
    return entries


def data_files(path: Path) -> list[HubFile]:
    """What the tasks in core.yaml read; some share a file."""
    named = dict.fromkeys(task["dataset_uri"] for task in listed(path) if "dataset_uri" in task)
    return [HubFile(f"eval_bundle/eval_data/{name}") for name in named]


def read_bundle() -> list[BundleTask]:
    """All tasks of the hub's bundle; ValueError where it is missing or damaged."""
    core, meta = (found.path for found in fetch(BUNDLE))
    files = data_files(core)
    places = {file.path: found.path for file, found in zip(files, fetch(files), strict=True)}
    tasks = []
    try:
        with open(meta, encoding="utf-8", newline="") as file:
            chance = {row["Eval Task"]: row["Random baseline"] for row in csv.DictReader(file)}
        for entry in listed(core):
            label, kind, shots = entry["label"], entry["icl_task_type"], int(entry["num_fewshot"][0])
            path, between = places[f"eval_bundle/eval_data/{entry['dataset_uri']}"], entry.get(DELIMITER, " ")
            tasks.append(BundleTask(label, kind, shots, between, float(chance[label]) / 100, path))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"{core.parent} is damaged ({error!r}), restore it from a copy") from None
    seen = [task.label for task in tasks]
    sound = {task.label for task in tasks if task.kind in TEXTS and 0 <= task.baseline < 1 == seen.count(task.label)}
    if not sound or sound != set(seen):
        what = ", ".join(sorted(set(seen) - sound)) or "no tasks"
        raise ValueError(f"{core} lists {what}: twice, always right, or of no kind in {', '.join(TEXTS)}; restore it")
    return tasks


@dataclass(frozen=True)
class Prompts:
    """The items of a task as tokens: a trunk that all options begin with, and how each goes on.

    lengths: of trunk and options in turn; options: how many an item has; scored: tokens at the end of each option that
    its score is of; gold: the option that is right; questions: a hash of the texts, the same for any tokenizer.
    """

    ids: np.ndarray
    lengths: np.ndarray
    options: np.ndarray
    scored: np.ndarray
    gold: np.ndarray
    questions: np.ndarray

    def __iter__(self) -> Iterator[tuple[np.ndarray, list[np.ndarray], list[int]]]:
        """Of each item: trunk, options, how many tokens of these are scored."""
        parts = iter(np.split(self.ids, np.cumsum(self.lengths)[:-1]))
        scored = iter(self.scored.tolist())
        for count in self.options.tolist():
            yield next(parts), [next(parts) for _ in range(count)], [next(scored) for _ in range(count)]


@dataclass(frozen=True)
class Prepared:
    """A task whose prompts lie tokenized in a file. key: hash of all they follow from; tokens: how many there are."""

    task: BundleTask
    path: Path
    key: str
    tokens: int

    def load(self) -> Prompts:
        with np.load(self.path) as arrays:
            return Prompts(**arrays)


def prepare(tokenizer: Any, max_per_task: int = 0) -> list[Prepared]:
    """The bundle's tasks with their prompts, rendered by one rank of each node where the cache has them not."""
    tasks = read_bundle()

    def work() -> list:
        progress, done = Progress("CORE prompts", "tasks"), []
        for task in tasks:
            facts = [VERSION, sha256(task.path), task.kind, task.shots, task.delimiter, max_per_task]
            key = hashlib.sha256(json.dumps([*facts, tokenizer.content_hash]).encode()).hexdigest()
            path = base_dir() / "core_prompts" / f"{task.label}-{key[:16]}.npz"
            done.append((str(path), key, _cached(path) or _render(task, tokenizer, max_per_task, path)))
            progress.update(len(done), len(tasks), task.label)
        return done

    answers = once_a_node(f"CORE prompts, {max_per_task} a task, {tokenizer.content_hash[:16]}", work)
    return [Prepared(task, Path(path), key, size) for task, (path, key, size) in zip(tasks, answers, strict=True)]


def _cached(path: Path) -> int:
    """How many tokens are in a file that is whole, else 0."""
    try:
        with np.load(path) as arrays:
            return len(arrays["ids"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # absent, or damaged: it is written anew
        return 0


def _render(task: BundleTask, tokenizer: Any, most: int, path: Path) -> int:
    """Write a task's prompts as tokens; how many."""
    import pyarrow as pa  # slow, and not needed where the cache has them

    items, bos = task.items(most), tokenizer.special_tokens["<|bos|>"]
    parts: list[np.ndarray] = []
    options, scored, questions = [], [], []
    for first in range(0, len(items), CHUNK):
        numbers = range(first, min(first + CHUNK, len(items)))
        texts = [task.prompts(items, number) for number in numbers]
        questions += [hashlib.sha256("\0".join(group).encode()).hexdigest()[:16] for group in texts]
        flat = pa.array([text for group in texts for text in group], pa.large_string())
        ids, offsets = tokenizer.encode_arrow(flat, prepend=bos)
        rows = iter(np.split(ids.astype(np.int32), offsets[1:-1]))
        for group in texts:
            found = [next(rows) for _ in group]
            if task.kind == COMPLETION and _common(found) < len(found[0]):
                number = len(options)
                why = "the tokens of what stands before its continuation are no beginning of the whole's"
                raise ValueError(f"{task.label}, item {number}: {why}: end its delimiter with a blank or a line break")
            trunk, ends, counts = _split(task.kind, found)
            parts += [trunk, *ends]
            options.append(len(ends))
            scored += counts
    lengths = np.array([len(part) for part in parts])
    gold = np.array([0 if task.kind == COMPLETION else item["gold"] for item in items])
    with whole_file(path) as part, open(part, "wb") as file:
        arrays = {"ids": np.concatenate(parts), "lengths": lengths, "options": np.array(options)}
        np.savez(file, **arrays, scored=np.array(scored), gold=gold, questions=np.array(questions))
    return int(lengths.sum())


def _split(kind: str, rows: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray], list[int]]:
    """Trunk, options, and how many tokens at the end of each are scored."""
    trunk, shortest = _common(rows), min(map(len, rows))
    if kind == COMPLETION:
        rows = rows[1:]  # of the one without the continuation only the length matters
    scored = [len(row) - trunk for row in rows]
    if kind == SCHEMA:  # what differs is the beginning; <|bos|> is never scored
        suffix = min(_common([row[::-1] for row in rows]), shortest - 1)
        trunk, scored = min(trunk, shortest - suffix), [suffix] * len(rows)
    return rows[0][:trunk], [row[trunk:] for row in rows], scored


def _common(rows: list[np.ndarray]) -> int:
    """How many tokens all rows begin with."""
    shortest = min(map(len, rows))
    differs = np.any([row[:shortest] != rows[0][:shortest] for row in rows], axis=0)
    return int(differs.argmax()) if differs.any() else shortest
