"""Doors for tracks: the names on command lines and in checkpoints that tracks provide, and the module of each.

All names are listed here, so `--help` knows them without importing a track, and a name that somebody types or that a
file has never decides what is imported: it is looked up in a table of this file. A module of a track has a mapping with
the table's name, like `TASKS` in tracks/benchmarks/sets.py, and `load` returns the entry. The trunk imports tracks in
no other way, so the folder of a track can be deleted.

To add a track: a folder in tracks/, and its names below.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Door:
    """A table of the trunk that tracks add entries to."""

    kind: str  # what an entry is, in a sentence: "the task KMMLU belongs to ..."
    table: str  # name of the mapping in the track's module: from name to entry
    modules: Mapping[str, str]  # name -> module tracks.NAME.MODULE


def load(door: Door, name: str) -> Any:
    """Return the entry for one of the door's names; ValueError, a sentence for the user, if its track is not here."""
    module = door.modules[name]
    try:
        table = getattr(import_module(module), door.table)
    except ModuleNotFoundError as error:
        # A library that the track needs is missing, and not the track.
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        track = module.split(".")[1]
        raise ValueError(f"the {door.kind} {name} belongs to tracks/{track}, which is not here") from None
    return table[name]


# ---- tasks: tasks/table.py ----

# Data sets with a verdict on each answer.
TASKS = Door(
    "task",
    "TASKS",
    {
        **dict.fromkeys(
            (
                "KMMLU",
                "HAE-RAE",
                "CLIcK",
                "KMMLU-Redux",
                "KMMLU-Pro",
                "KoBALT",
                "GPQA",
                "ClinicalQA",
                "HRM8K",
                "MT-MATH100",
                *(f"LiveCodeBench-v{release}" for release in range(1, 7)),
            ),
            "tracks.benchmarks.sets",
        ),
        "Sudoku-4": "tracks.recursion.puzzles",
    },
)
# Data sets of conversations, without a verdict.
CHATS = Door("task", "CHATS", dict.fromkeys(("KoAlpaca", "KoAlpaca-v1"), "tracks.benchmarks.sets"))
# The word after ~ in the name of a task.
AUGMENTATIONS = Door("augmentation", "AUGMENTATIONS", dict.fromkeys(("styles", "options"), "tracks.chatdata.augmented"))
