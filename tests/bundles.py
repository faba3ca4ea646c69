"""Bundles of CORE tasks: those of the embedded world and hard cases, in a mirror of the hub."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
from models import learn, model_for

from nanochat.tokenizer import Tokenizer
from nanochat.world import writer
from nanochat.world.chats import core_bundle
from nanochat.world.facts import World

CHOICE, SCHEMA, COMPLETION = "multiple_choice", "schema", "language_modeling"


class CoreTask(NamedTuple):
    label: str
    category: str
    kind: str
    shots: int
    baseline: int  # percent right by chance
    rows: list[dict]
    delimiter: str = " "


def choices(query: str, *options: str, gold: int = 0):
    return {"query": query, "choices": list(options), "gold": gold}


# Ties, options that others begin with, options of one token, nothing in common, everything in common.
HARD_CHOICES = json.loads("""[
    {"query": "Which? ", "choices": ["the same", "the same", "the same"], "gold": 1},
    {"query": "Which? ", "choices": ["the same", "the same", "the other"], "gold": 1},
    {"query": "Which? ", "choices": ["a far worse 1x!? other", "the same", "the same"], "gold": 1},
    {"query": "Is water wet or is it rather a long way of saying so?", "choices": ["A", "B", "C", "D"], "gold": 3},
    {"query": "Is it?", "choices": ["no", "no way", "no way and more"], "gold": 0},
    {"query": "Is it?", "choices": ["no way and more", "no", "no way"], "gold": 0},
    {"query": "Is it?", "choices": ["yes"], "gold": 0},
    {"query": "Is it — 여우?", "choices": ["빠른", "빠르다", "느린 여우"], "gold": 1}
]""")
HARD_CONTEXTS = json.loads("""[
    {"context_options": ["The one here", "The one here"], "continuation": "it goes on.", "gold": 1},
    {"context_options": ["A", "A on and on"], "continuation": "on and on and on", "gold": 1},
    {"context_options": ["They said the men", "They said the demonstrators"],
        "continuation": "feared violence.", "gold": 0},
    {"context_options": ["Ann thinks that Bob", "Sue", "No"], "continuation": "was late", "gold": 2}
]""")
HARD_COMPLETIONS = json.loads("""[
    {"context": "  a b a b a ", "continuation": "b a b"},
    {"context": "the cat the cat the", "continuation": "cat"},
    {"context": "1 2 3 4\\n", "continuation": "5 6 7 8 9 10 11 12 13"}
]""")
HARD = [
    CoreTask("hard_choices", "hard", CHOICE, 2, 25, HARD_CHOICES),
    CoreTask("hard_schema", "hard", SCHEMA, 1, 50, HARD_CONTEXTS),
    CoreTask("hard_completion", "hard", COMPLETION, 1, 0, HARD_COMPLETIONS, "\nAnswer: "),
]


def write_bundle(mirror: Path, tasks: list[CoreTask]) -> None:
    """Write an eval_bundle with these tasks into a mirror of the hub."""
    listed = []
    for task in tasks:
        listed.append([*map(str, task[:5])])
        if task.delimiter != " ":
            listed[-1].append(json.dumps(task.delimiter))
    writer.write_bundle(mirror / "eval_bundle", listed, {task.label: task.rows for task in tasks})


def world_tasks(rows: int):
    """Return all tasks of the world's bundle, each with at most `rows` items."""
    world = World(1, 16)
    items = core_bundle(world)
    tasks = []
    for label, category, kind, shots, baseline, *delimiter in world.rows("core tasks"):
        task = CoreTask(label, category, kind, int(shots), int(baseline), items[label][:rows])
        tasks.append(task._replace(delimiter=json.loads(delimiter[0])) if delimiter else task)
    return tasks


def vocabulary():
    return Tokenizer.train([str(task.rows) for task in world_tasks(9)], 300)


def one_process(**other):
    """Return a runtime of a single process on the CPU; `other` replaces fields."""
    alone = {"rank": 0, "world_size": 1, "device": torch.device("cpu"), "all_gather": lambda value: [value]}
    return SimpleNamespace(**alone | other)


def memorized(tokenizer: Tokenizer, text: str, name: str = "reference", steps: int = 80, lr: float = 0.01, **fields):
    """Return a small model that has memorized a short text, so that some of its answers are right."""
    model = model_for(tokenizer, name, **fields)
    ids = torch.tensor([[tokenizer.bos, *tokenizer.encode(text)]])[:, : model.config.max_seq_len]
    return learn(model, ids, steps, lr)
