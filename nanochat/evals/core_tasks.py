"""The tasks of the CORE metric: the list in an eval_bundle, the items, and their prompts as tokens, rendered once.

The order of items, the examples shown, and the text of prompts decide the score: they are those of the public nanochat.
"""

import csv
import hashlib
import json
import random
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml

from nanochat.data.hub import HubFile, fetch, sha256
from nanochat.log import Progress
from nanochat.nodes import once_a_node
from nanochat.paths import base_dir, whole_file

if TYPE_CHECKING:
    from nanochat.tokenizer import Tokenizer

BUNDLE = (HubFile("eval_bundle/core.yaml"), HubFile("eval_bundle/eval_meta_data.csv"))
VERSION = 2  # of cached prompts; raise it with every change to prompts or their layout
CHUNK = 256  # items tokenized at once
SHUFFLE_SEED, EXAMPLES_SEED = 1337, 1234
# The kinds of tasks, as the bundle calls them. A choice has one context and several continuations; a schema several
# contexts and one continuation; a completion one of each, and the model has to predict the continuation exactly.
CHOICE, SCHEMA, COMPLETION = "multiple_choice", "schema", "language_modeling"


@dataclass(frozen=True)
class BundleTask:
    """A task as the bundle lists it."""

    label: str
    kind: str
    shots: int  # examples shown before the question
    delimiter: str  # between a context and its continuation
    baseline: float  # accuracy of guessing
    path: Path

    def texts(self, item: dict) -> list[str]:
        """Return a text for each option; for a completion the text without and the text with the continuation."""
        if self.kind == CHOICE:
            return [item["query"] + self.delimiter + choice for choice in item["choices"]]
        if self.kind == SCHEMA:
            ending = self.delimiter + item["continuation"]
            return [context + ending for context in item["context_options"]]
        context = item["context"].strip() + self.delimiter
        return [context, context + item["continuation"]]

    def right(self, item: dict) -> int:
        """Return the number of the right text."""
        return 1 if self.kind == COMPLETION else item["gold"]

    def items(self, most: int) -> list[dict]:
        """Return the first `most` of the shuffled items (0: all)."""
        items = []
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    items.append(self._parse(line))
                except (ValueError, LookupError, TypeError, AttributeError):
                    fault = f"{self.path}:{number}: no {self.kind} item"
                    raise ValueError(f"{fault}, restore the bundle from a copy") from None
        random.Random(SHUFFLE_SEED).shuffle(items)
        if most:
            items = items[:most]
        if len(items) <= self.shots:
            need = f"{self.label} shows {self.shots} examples before a question and has {len(items)} items"
            raise ValueError(f"{need}: take a --max-per-task of {self.shots + 1} or more, or restore the bundle")
        return items

    def _parse(self, line: bytes) -> dict:
        item = json.loads(line)
        self.texts(item)[self.right(item)]  # fails if the item lacks the fields of its kind
        return item

    def prompts(self, items: Sequence[dict], index: int) -> list[str]:
        """Return the texts of an item, after examples drawn from all other items."""
        drawn = random.Random(EXAMPLES_SEED + index).sample(range(len(items) - 1), self.shots)
        # Numbers from the index on skip the item itself.
        examples = [items[other + (other >= index)] for other in drawn]
        head = "".join(f"{self.texts(item)[self.right(item)]}\n\n" for item in examples)
        prompts = [head + text for text in self.texts(items[index])]
        if self.kind == COMPLETION:
            # A space at the end would be a token of its own, but belongs to the first token of the continuation.
            prompts[0] = prompts[0].strip()
        return prompts


# ---- the bundle ----


def task_entries(path: Path) -> list[dict[str, Any]]:
    """Return the tasks that core.yaml lists."""
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))["icl_tasks"]
    except (yaml.YAMLError, KeyError, TypeError):
        entries = None
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path} has no list of tasks below icl_tasks, restore the bundle from a copy")
    return entries


def data_files(path: Path) -> list[HubFile]:
    """Return the files that the tasks in core.yaml read; some tasks share a file."""
    names = dict.fromkeys(entry["dataset_uri"] for entry in task_entries(path) if "dataset_uri" in entry)
    return [HubFile(f"eval_bundle/eval_data/{name}") for name in names]


def read_bundle() -> list[BundleTask]:
    """Return all tasks of the hub's bundle; ValueError if the bundle is missing or damaged."""
    core, meta = (found.path for found in fetch(BUNDLE))
    files = data_files(core)
    paths = [found.path for found in fetch(files)]
    path_of = {file.path: path for file, path in zip(files, paths, strict=True)}
    tasks = []
    try:
        with open(meta, encoding="utf-8", newline="") as file:
            percents = {row["Eval Task"]: row["Random baseline"] for row in csv.DictReader(file)}
        for entry in task_entries(core):
            label = entry["label"]
            shots = int(entry["num_fewshot"][0])
            delimiter = entry.get("continuation_delimiter", " ")
            baseline = float(percents[label]) / 100
            path = path_of[f"eval_bundle/eval_data/{entry['dataset_uri']}"]
            tasks.append(BundleTask(label, entry["icl_task_type"], shots, delimiter, baseline, path))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"{core.parent} is damaged ({error!r}), restore it from a copy") from None
    return tasks


# ---- prompts as tokens ----


class ItemTokens(NamedTuple):
    """The tokens of one item: all options begin with the prefix and end with scored tokens."""

    prefix: np.ndarray
    options: list[np.ndarray]
    scored: list[int]  # tokens at the end of each option that count for its score


@dataclass(frozen=True)
class Prompts:
    """The items of a task as tokens, in flat arrays."""

    ids: np.ndarray  # the prefix and the options of each item in turn
    lengths: np.ndarray  # tokens of each prefix and option
    options: np.ndarray  # (items,): number of options
    scored: np.ndarray  # (all options,): scored tokens of each
    gold: np.ndarray  # (items,): number of the right option
    questions: np.ndarray  # (items,): hash of the texts, the same for any tokenizer

    def __iter__(self) -> Iterator[ItemTokens]:
        parts = iter(np.split(self.ids, np.cumsum(self.lengths)[:-1]))
        scored = iter(self.scored.tolist())
        for count in self.options.tolist():
            prefix = next(parts)
            yield ItemTokens(prefix, [next(parts) for _ in range(count)], [next(scored) for _ in range(count)])


@dataclass(frozen=True)
class Prepared:
    """A task with its tokenized prompts in a file."""

    task: BundleTask
    path: Path
    key: str  # hash of everything that decides the prompts
    tokens: int  # in the whole file

    def load(self) -> Prompts:
        with np.load(self.path) as arrays:
            return Prompts(**arrays)


def prepare(tokenizer: "Tokenizer", max_per_task: int = 0) -> list[Prepared]:
    """Return the bundle's tasks with their prompts; one rank per node renders those that are not cached."""
    tasks = read_bundle()

    def render_missing() -> list[tuple[str, str, int]]:
        progress = Progress("CORE prompts", "tasks")
        found = []
        for task in tasks:
            facts = [VERSION, sha256(task.path), task.kind, task.shots, task.delimiter, max_per_task]
            key = hashlib.sha256(json.dumps([*facts, tokenizer.content_hash]).encode()).hexdigest()
            path = base_dir() / "core_prompts" / f"{task.label}-{key[:16]}.npz"
            tokens = _count_cached(path)
            if not tokens:
                items = task.items(max_per_task)
                tokens = _render(task, items, tokenizer, path)
            found.append((str(path), key, tokens))
            progress.update(len(found), len(tasks), task.label)
        return found

    label = f"CORE prompts, {max_per_task} a task, {tokenizer.content_hash[:16]}"
    found = once_a_node(label, render_missing)
    return [Prepared(task, Path(path), key, tokens) for task, (path, key, tokens) in zip(tasks, found, strict=True)]


def _count_cached(path: Path) -> int:
    """Return the number of tokens in a file of prompts; 0 if the file is absent or damaged."""
    try:
        with np.load(path) as arrays:
            return len(arrays["ids"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return 0


def _render(task: BundleTask, items: list[dict], tokenizer: "Tokenizer", path: Path) -> int:
    """Write the prompts of a task as tokens; return the number of tokens."""
    rendered: list[ItemTokens] = []
    questions: list[str] = []
    for start in range(0, len(items), CHUNK):
        stop = min(start + CHUNK, len(items))
        texts = [task.prompts(items, number) for number in range(start, stop)]
        for group, rows in zip(texts, _tokenize(texts, tokenizer), strict=True):
            if task.kind == COMPLETION and _common_length(rows) < len(rows[0]):
                fault = "the tokens of its context change when the continuation follows"
                name = f"{task.label}, item {len(rendered)}"
                raise ValueError(f"{name}: {fault}: end its delimiter with a space or a line break")
            rendered.append(_split(task.kind, rows))
            questions.append(hashlib.sha256("\0".join(group).encode()).hexdigest()[:16])
    parts = [part for item in rendered for part in (item.prefix, *item.options)]
    ids = np.concatenate(parts)
    with whole_file(path) as unfinished, open(unfinished, "wb") as file:
        np.savez(
            file,
            ids=ids,
            lengths=[len(part) for part in parts],
            options=[len(item.options) for item in rendered],
            scored=[count for item in rendered for count in item.scored],
            # A completion has a single option.
            gold=[0 if task.kind == COMPLETION else item["gold"] for item in items],
            questions=questions,
        )
    return len(ids)


def _tokenize(texts: list[list[str]], tokenizer: "Tokenizer") -> list[list[np.ndarray]]:
    """Return the tokens of each text, after <|bos|>, in the same groups."""
    import pyarrow as pa  # slow to import, and not needed where all prompts are cached

    flat = pa.array([text for group in texts for text in group], pa.large_string())
    ids, offsets = tokenizer.encode_arrow(flat, prepend=tokenizer.special_tokens["<|bos|>"])
    rows = iter(np.split(ids.astype(np.int32), offsets[1:-1]))
    return [[next(rows) for _ in group] for group in texts]


def _split(kind: str, rows: list[np.ndarray]) -> ItemTokens:
    """Split the prompts of an item into the prefix that all share, and the options."""
    prefix = _common_length(rows)
    scored = [len(row) - prefix for row in rows]
    if kind == COMPLETION:
        # The prompt without the continuation only marks the start of the scored tokens.
        rows, scored = rows[1:], scored[1:]
    elif kind == SCHEMA:
        # The contexts differ and the continuation, which all prompts end with, is scored; never <|bos|>.
        shortest = min(len(row) for row in rows)
        suffix = min(_common_length([row[::-1] for row in rows]), shortest - 1)
        prefix = min(prefix, shortest - suffix)
        scored = [suffix for _ in rows]
    return ItemTokens(rows[0][:prefix], [row[prefix:] for row in rows], scored)


def _common_length(rows: list[np.ndarray]) -> int:
    """Return the number of tokens that all rows begin with."""
    shortest = min(len(row) for row in rows)
    differs = np.any([row[:shortest] != rows[0][:shortest] for row in rows], axis=0)
    return int(differs.argmax()) if differs.any() else shortest
