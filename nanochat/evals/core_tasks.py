"""The CORE tasks: the task list in an eval_bundle, the items, and the prompts as tokens.

Item order, examples and prompt texts determine the score: all are equal to the public nanochat's.
"""

import csv
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from nanochat.data.bundle import fetch_bundle
from nanochat.data.corpus import learned_world, world_folder
from nanochat.data.hub import HubFile
from nanochat.errors import UserError
from nanochat.paths import read_jsonl, text_sha256
from nanochat.tokenizer import FORMAT, Tokenizer

if TYPE_CHECKING:
    import numpy as np

BUNDLE = (HubFile("eval_bundle/core.yaml"), HubFile("eval_bundle/eval_meta_data.csv"))
Rows = list["np.ndarray"]  # token ids of several texts
# Kinds of tasks, as the bundle calls them. A choice has one context and several continuations. A schema has several
# contexts and one continuation. A completion has one of each, and the model has to predict the continuation exactly.
CHOICE = "multiple_choice"
SCHEMA = "schema"
COMPLETION = "language_modeling"


@dataclass(frozen=True)
class BundleTask:
    """A task as the bundle lists it."""

    label: str
    kind: str
    shots: int  # examples shown before the question
    delimiter: str  # between a context and its continuation
    baseline: float  # accuracy when guessing
    path: Path  # items, one JSON object per line

    def texts(self, item: dict[str, Any]) -> list[str]:
        """Return one text per option; for a completion the text without and the text with the continuation."""
        if self.kind == CHOICE:
            return [item["query"] + self.delimiter + choice for choice in item["choices"]]
        if self.kind == SCHEMA:
            return [context + self.delimiter + item["continuation"] for context in item["context_options"]]
        context = item["context"].strip() + self.delimiter
        return [context, context + item["continuation"]]

    def items(self, most: int) -> list[dict[str, Any]]:
        """Return the first `most` shuffled items (0: all), at least as many as a prompt shows."""
        items: list[dict[str, Any]] = list(read_jsonl(self.path, dict))
        random.Random(1337).shuffle(items)  # the seed of the public nanochat, as below
        # The examples shown before a question are other items.
        return items[: max(most, self.shots + 1)] if most else items

    def prompts(self, items: Sequence[dict[str, Any]], index: int) -> list[str]:
        """Return an item's texts, after examples drawn from all other items."""
        drawn = random.Random(1234 + index).sample(range(len(items) - 1), self.shots)
        # Numbers from the index on skip the item itself.
        examples = [items[other + 1 if other >= index else other] for other in drawn]
        # The right text of an item; a completion has no gold option: its second text has the continuation.
        head = "".join(f"{self.texts(item)[item.get('gold', 1)]}\n\n" for item in examples)
        prompts = [head + text for text in self.texts(items[index])]
        if self.kind == COMPLETION:
            # A space at the end would be a token by itself, but belongs to the continuation's first token.
            prompts[0] = prompts[0].strip()
        return prompts


# ---- the bundle ----


def open_core(tokenizer: str, names: Collection[str] = ()) -> tuple[str, list[BundleTask]]:
    """Return the metric's name and its tasks: those of the tokenizer's world, else the public ones.

    names: of the tasks to return (default: all).
    """
    seed = learned_world(tokenizer)
    metric = "CORE metric" if seed is None else "World CORE metric"
    tasks = read_bundle(None if seed is None else world_folder(seed) / "core")
    known = [task.label for task in tasks]
    for name in names:
        if name not in known:
            raise UserError(f"{name} is none of CORE's tasks, use {', '.join(known)}")
    chosen = [task for task in tasks if task.label in names or not names]
    if len(chosen) < len(tasks):
        metric += f" ({len(chosen)} of {len(tasks)} tasks)"
    return metric, chosen


def read_bundle(folder: Path | None = None) -> list[BundleTask]:
    """Return all tasks in a folder, or in the public bundle; UserError if files are missing."""

    def find(*names: str) -> list[Path]:
        return [folder / name for name in names] if folder else fetch_bundle(names)

    core, meta = find("core.yaml", "eval_meta_data.csv")
    entries = yaml.safe_load(core.read_text(encoding="utf-8"))["icl_tasks"]
    # A mirror may have some of the files, and the downloaded bundle the others.
    paths = find(*(f"eval_data/{entry['dataset_uri']}" for entry in entries))
    with open(meta, encoding="utf-8", newline="") as file:
        percents = {row["Eval Task"]: row["Random baseline"] for row in csv.DictReader(file)}
    return [
        BundleTask(
            label=entry["label"],
            kind=entry["icl_task_type"],
            shots=entry["num_fewshot"][0],
            delimiter=entry.get("continuation_delimiter", " "),
            baseline=float(percents[entry["label"]]) / 100,
            path=path,
        )
        for entry, path in zip(entries, paths, strict=True)
    ]


# ---- prompts as tokens ----


@dataclass(frozen=True)
class Item:
    """One item as tokens: a prefix that all prompts begin with, and the rest for each option."""

    number: int
    question: str  # hash over the texts, the same for any tokenizer
    gold: int  # the right option's number
    prefix: "np.ndarray"
    options: Rows
    scored: list[int]  # for each option: tokens at the end that count for the score


def tokenize_items(
    task: BundleTask, items: Sequence[dict[str, Any]], numbers: Sequence[int], tokenizer: Tokenizer
) -> list[Item]:
    """Return the items with these numbers as tokens."""
    import numpy as np  # slow

    texts = [task.prompts(items, number) for number in numbers]
    # All texts at once, in several threads; each begins with <|bos|>, where a model learned that.
    ids, offsets = tokenizer.core.encode_batch(list(chain(*texts)), *tokenizer.prefix)
    tokens = iter(np.split(ids.astype(np.int32), offsets[1:-1]))
    found = []
    for number, group in zip(numbers, texts, strict=True):
        rows = [next(tokens) for _ in group]
        prefix = _common_length(rows)
        scored = [len(row) - prefix for row in rows]
        if task.kind == COMPLETION:
            # The prompt without the continuation only marks where the scored tokens begin. A public vocabulary may join
            # its end with the continuation, and then the joint token is scored; ours does not.
            assert prefix == len(rows[0]) or tokenizer.format != FORMAT, (
                "the tokens of a context change with its continuation"
            )
            rows, scored = rows[1:], scored[1:]
        elif task.kind == SCHEMA:
            # The contexts differ; the continuation at the end is scored. <|bos|> is never scored.
            shortest = min(len(row) for row in rows)
            suffix = min(_common_length([row[::-1] for row in rows]), shortest - 1)
            prefix = min(prefix, shortest - suffix)
            scored = [suffix for _ in rows]
        if not prefix:  # a vocabulary without a first token: nothing predicts that of a text
            scored = [min(count, len(row) - 1) for count, row in zip(scored, rows, strict=True)]
        found.append(
            Item(
                number,
                question=text_sha256("\0".join(group))[:16],
                gold=items[number].get("gold", 0),  # a completion has a single option
                prefix=rows[0][:prefix],
                options=[row[prefix:] for row in rows],
                scored=scored,
            )
        )
    return found


def _common_length(rows: Rows) -> int:
    """Return how many tokens all rows begin with."""
    import numpy as np

    shortest = min(map(len, rows))
    differs = np.any([row[:shortest] != rows[0][:shortest] for row in rows], axis=0)
    return int(np.append(differs, True).argmax())
