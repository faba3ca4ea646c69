"""The CORE tasks: the task list in an eval_bundle, the items, and the prompts as tokens, rendered once.

Item order, examples and prompt texts determine the score: all are equal to the public nanochat's.
"""

import csv
import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml

from nanochat.data.hub import HubFile, fetch, once_a_node, sha256
from nanochat.log import Progress
from nanochat.paths import base_dir, whole_file

if TYPE_CHECKING:
    from nanochat.tokenizer import Tokenizer

BUNDLE = (HubFile("eval_bundle/core.yaml"), HubFile("eval_bundle/eval_meta_data.csv"))
VERSION = 2  # raise this with every change to prompts or to the layout in the cache
CHUNK = 256  # items tokenized at once
# Seeds for the item order and for the examples, the same as in the public nanochat.
SHUFFLE_SEED, EXAMPLES_SEED = 1337, 1234
# Kinds of tasks, as the bundle calls them. A choice has one context and several continuations. A schema has several
# contexts and one continuation. A completion has one of each, and the model has to predict the continuation exactly.
CHOICE, SCHEMA, COMPLETION = "multiple_choice", "schema", "language_modeling"


@dataclass(frozen=True)
class BundleTask:
    """A task as the bundle lists it."""

    label: str
    kind: str
    shots: int  # examples shown before the question
    delimiter: str  # between a context and its continuation
    baseline: float  # accuracy when guessing
    path: Path  # items, one JSON object per line

    def texts(self, item: dict) -> list[str]:
        """Return one text per option; for a completion the text without and the text with the continuation."""
        if self.kind == CHOICE:
            return [item["query"] + self.delimiter + choice for choice in item["choices"]]
        if self.kind == SCHEMA:
            ending = self.delimiter + item["continuation"]
            return [context + ending for context in item["context_options"]]
        context = item["context"].strip() + self.delimiter
        return [context, context + item["continuation"]]

    def right(self, item: dict) -> int:
        """Return the right text's number."""
        return 1 if self.kind == COMPLETION else item["gold"]

    def items(self, most: int) -> list[dict]:
        """Return the first `most` shuffled items (0: all)."""
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
        self.texts(item)[self.right(item)]  # fails if the item lacks a field
        return item

    def prompts(self, items: Sequence[dict], index: int) -> list[str]:
        """Return an item's texts, after examples drawn from all other items."""
        drawn = random.Random(EXAMPLES_SEED + index).sample(range(len(items) - 1), self.shots)
        # Numbers from the index on skip the item itself.
        examples = [items[other + (other >= index)] for other in drawn]
        head = "".join(f"{self.texts(item)[self.right(item)]}\n\n" for item in examples)
        prompts = [head + text for text in self.texts(items[index])]
        if self.kind == COMPLETION:
            # A space at the end would be a token by itself, but belongs to the continuation's first token.
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
        raise ValueError(f"{path} has no task list below icl_tasks, restore the bundle from a copy")
    return entries


def data_files(path: Path) -> list[HubFile]:
    """Return the files that the tasks in core.yaml read; some tasks share a file."""
    names = dict.fromkeys(entry["dataset_uri"] for entry in task_entries(path) if "dataset_uri" in entry)
    return [HubFile(f"eval_bundle/eval_data/{name}") for name in names]


def read_bundle() -> list[BundleTask]:
    """Return all tasks in the hub's bundle; ValueError if the bundle is missing or damaged."""
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
    """One item as tokens: a prefix that all prompts begin with, and the rest for each option."""

    prefix: np.ndarray
    options: list[np.ndarray]
    scored: list[int]  # for each option: tokens at the end that count for the score


@dataclass(frozen=True)
class Prompts:
    """A task's items as tokens, in flat arrays."""

    ids: np.ndarray  # for each item in turn the prefix and the options
    lengths: np.ndarray  # tokens in each prefix and option
    options: np.ndarray  # (items,): options per item
    scored: np.ndarray  # (all options,): scored tokens per option
    gold: np.ndarray  # (items,): the right option's number
    questions: np.ndarray  # (items,): hash over the texts, the same for any tokenizer

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
    key: str  # hash over everything that determines the prompts
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
            if not path.exists():
                _render(task, task.items(max_per_task), tokenizer, path)
            with np.load(path) as arrays:
                tokens = len(arrays["ids"])
            found.append((str(path), key, tokens))
            progress.update(len(found), len(tasks), task.label)
        return found

    label = f"CORE prompts, {max_per_task} a task, {tokenizer.content_hash[:16]}"
    found = once_a_node(label, render_missing)
    return [Prepared(task, Path(path), key, tokens) for task, (path, key, tokens) in zip(tasks, found, strict=True)]


def _render(task: BundleTask, items: list[dict], tokenizer: "Tokenizer", path: Path) -> None:
    """Write a task's prompts as tokens."""
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
    # The file appears under its name when it is complete.
    with whole_file(path) as unfinished, open(unfinished, "wb") as file:
        np.savez(
            file,
            ids=np.concatenate(parts),
            lengths=[len(part) for part in parts],
            options=[len(item.options) for item in rendered],
            scored=[count for item in rendered for count in item.scored],
            # A completion has a single option.
            gold=[0 if task.kind == COMPLETION else item["gold"] for item in items],
            questions=questions,
        )


def _tokenize(texts: list[list[str]], tokenizer: "Tokenizer") -> list[list[np.ndarray]]:
    """Return each text as tokens, after <|bos|>, in the same groups."""
    import pyarrow as pa  # slow to import, and not needed where all prompts are cached

    flat = pa.array([text for group in texts for text in group], pa.large_string())
    ids, offsets = tokenizer.encode_arrow(flat, prepend=tokenizer.special_tokens["<|bos|>"])
    rows = iter(np.split(ids.astype(np.int32), offsets[1:-1]))
    return [[next(rows) for _ in group] for group in texts]


def _split(kind: str, rows: list[np.ndarray]) -> ItemTokens:
    """Split an item's prompts into the shared prefix and the options."""
    prefix = _common_length(rows)
    scored = [len(row) - prefix for row in rows]
    if kind == COMPLETION:
        # The prompt without the continuation only marks where the scored tokens begin.
        rows, scored = rows[1:], scored[1:]
    elif kind == SCHEMA:
        # The contexts differ; the continuation at the end is scored. <|bos|> is never scored.
        shortest = min(len(row) for row in rows)
        suffix = min(_common_length([row[::-1] for row in rows]), shortest - 1)
        prefix = min(prefix, shortest - suffix)
        scored = [suffix for _ in rows]
    return ItemTokens(rows[0][:prefix], [row[prefix:] for row in rows], scored)


def _common_length(rows: list[np.ndarray]) -> int:
    """Return how many tokens all rows begin with."""
    shortest = min(len(row) for row in rows)
    differs = np.any([row[:shortest] != rows[0][:shortest] for row in rows], axis=0)
    return int(differs.argmax()) if differs.any() else shortest
