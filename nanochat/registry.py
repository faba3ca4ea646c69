"""Doors for tracks: the names on command lines and in checkpoints that tracks provide, and the module of each.

All names are listed here, so `--help` knows them without importing a track, and a name that somebody types or that a
file has never decides what is imported: it is looked up in a table of this file. A module of a track has a mapping with
the table's name, like `TASKS` in tracks/benchmarks/sets.py, and `load` returns the entry. The trunk imports tracks in
no other way, so the folder of a track can be deleted.

To add a track: a folder in tracks/, and its names below.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nanochat.errors import UserError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch

    from nanochat.evals.bpb import EvalText
    from nanochat.gpt import GPT
    from nanochat.log import Record
    from nanochat.metrics import Curve
    from nanochat.models import Fields
    from nanochat.runtime import Runtime
    from nanochat.tokenizer import Tokenizer

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Door(Generic[Entry]):
    """A table of the trunk that tracks add entries to, all of one type. The trunk uses an entry as of this type."""

    kind: str  # what an entry is, in a sentence: "the task KMMLU belongs to ..."
    table: str  # name of the mapping in the track's module: from name to entry
    modules: Mapping[str, str]  # name -> module tracks.NAME.MODULE


def load(door: Door[Entry], name: str) -> Entry:
    """Return the entry for one of the door's names; UserError if its track is not here."""
    module = module_of(f"the {door.kind} {name}", door.modules[name])
    return getattr(import_module(module), door.table)[name]


def is_here(door: Door[Any], name: str) -> bool:
    """Return True if the track that has this name is here."""
    return _is_found(door.modules[name])


def absent(what: str, module: str) -> UserError:
    """Return the error for something in a track that is not here."""
    return UserError(f"{what} belongs to tracks/{module.split('.')[1]}, which is not here")


def module_of(what: str, module: str) -> str:
    """Return the name of a track's module, for a process that runs it; UserError if the track is not here."""
    if not _is_found(module):
        raise absent(what, module)
    return module


def _is_found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


# ---- tasks: tasks/table.py, which has the types of the entries: nanochat/ does not import tasks/ ----

# Data sets with a verdict on each answer.
TASKS: Door[Any] = Door(
    "task",
    "TASKS",
    {
        **dict.fromkeys(
            (
                "KMMLU",
                "HAE-RAE",
                "CLIcK",
                "CLIcK-Halves",
                "KLUE-NLI",
                "KMMLU-Redux",
                "KMMLU-Pro",
                "KoBALT",
                "GPQA",
                "ClinicalQA",
                "HRM8K",
                "MT-MATH100",
                "MATH",
                "MATH-500",
                "IFEval",
                "Alpaca-Constrained",
                "Alpaca-Part-Constrained",
                *(f"LiveCodeBench-v{release}" for release in range(1, 7)),
            ),
            "tracks.benchmarks.sets",
        ),
        "Sudoku-4": "tracks.recursion.puzzles",
    },
)
# Data sets of conversations, without a verdict.
CHATS: Door[Any] = Door(
    "task",
    "CHATS",
    dict.fromkeys(("Alpaca", "Alpaca-Part", "KoAlpaca", "KoAlpaca-v1"), "tracks.benchmarks.sets"),
)
# The word after ~ in the name of a task.
AUGMENTATIONS: Door[Any] = Door(
    "augmentation", "AUGMENTATIONS", dict.fromkeys(("styles", "options"), "tracks.chatdata.augmented")
)

# ---- models: nanochat/models.py ----

# The name is "kind" in a manifest; an entry is a class derived from gpt.GPT.
MODELS: "Door[type[GPT]]" = Door(
    "kind of model",
    "MODELS",
    {
        "golf": "tracks.golf.model",
        "recursive": "tracks.recursion.model",
        "looped": "tracks.recursion.model",
        "public": "tracks.bases.model",
    },
)
# The fields of each kind's config beside those of InductionGPT's, with the value that changes nothing. A field with
# another value leads to the kind of model that has it, in --model and in a manifest from before there were kinds. A
# kind without an entry is made by its track alone.
MODEL_FIELDS: Mapping[str, Mapping[str, bool | int | float]] = {
    "golf": {"rope_dims": 0, "query_gain": 0.0, "qk_eps": 2**-23, "exclusive_last": 0, "orthogonal": False},
    "recursive": {"supervision": 0, "loops": 2, "passes": 1, "detached": 0, "residual_power": 0.0},
    "looped": {"sweeps": 1},
}
# Names for --model; an entry maps fields of a config to values.
CONFIGURATIONS: "Door[Fields]" = Door(
    "configuration", "CONFIGURATIONS", dict.fromkeys(("golf", "golf-seed"), "tracks.golf.model")
)
# By kind of model: a function that adds a table to the outcome of scripts.base_loss.
LOSS_TABLES: "Door[Callable[[GPT, EvalText, int, int, Runtime], Record]]" = Door(
    "kind of model", "LOSS_TABLES", {"recursive": "tracks.recursion.exits"}
)

# ---- tokenizers: nanochat/tokenizer.py ----

# By "format" in the file: a function that makes the tokenizer from what the file has.
TOKENIZERS: "Door[Callable[[Record], Tokenizer]]" = Door(
    "format of a tokenizer", "TOKENIZERS", {"nanochat-public-tokenizer-1": "tracks.bases.tokenizer"}
)

# ---- exports: tracks/export/export.py ----

# By kind of model, and by --format: a function that fills a new folder from model, tokenizer and manifest, and returns
# sentences on comparisons. tracks/export itself writes the kinds that are not here.
EXPORTERS: "Door[Mapping[str, Callable[[GPT, Tokenizer, Record, Path], list[str]]]]" = Door(
    "kind of model", "EXPORTERS", {"public": "tracks.bases.export"}
)

# ---- commands: nanochat/config.py ----

# Flags that left a script for another command: script -> flag -> the command.
MOVED_FLAGS = {
    "scripts.base_train": dict.fromkeys(
        (
            "--recursion",
            "--supervision",
            "--loops",
            "--passes",
            "--detached",
            "--supervision-base",
            "--improvement-reward",
        ),
        "tracks.recursion.train",
    )
}

# ---- options of scripts ----

# scripts.rollouts: the function that makes pairs of answers.
OPTIONS: "Door[Callable[[Iterable[Record], int], list[Record]]]" = Door(
    "option", "OPTIONS", {"--pairs": "tracks.preferences.pairs"}
)

# ---- training: nanochat/run.py ----

# Measures what a run uses beside its clock; a run without the track goes without.
METERS: "Door[Callable[[torch.device], AbstractContextManager[Callable[[], list[float] | None]]]]" = Door(
    "meter", "METERS", {"gpu": "tracks.scale.energy"}
)

# ---- stages and the report card: nanochat/stages.py, nanochat/metrics.py ----

# Stages of the main line of models that a track trains: the module that runs each.
STAGES = {"chat_dpo": "tracks.preferences.train"}
# Titles of the sections that commands of tracks write.
SECTIONS = {
    "bases": "Public model",
    "practice": "Practice",
    "recursion_eval": "Recursion",
    "recursion_depth": "Recursion, test-time depth",
    "recursion_pairs": "Recursion, two ways to train the exits",
    "golf_eval": "Golf",
    "golf_judge": "Golf, an entry from elsewhere",
    "golf_claims": "Golf, the claims of its seed",
    "chats": "Chat data",
    "agreement": "Topics of conversations",
    "judge": "Judge",
    "lab": "Lab",
    "leaderboard": "Leaderboard",
    "merge": "Merge",
}
# By the beginning of a figure's name in the metric log: a function that returns curves for the names found there.
CURVES: "Door[Callable[[Collection[str]], list[Curve]]]" = Door(
    "curves of", "CURVE_MAKERS", {"val/bpb at exit ": "tracks.recursion.curves", "dpo/": "tracks.preferences.curves"}
)

# ---- the main job: nanochat/jobs/plan.py ----

# Checks before a job on several nodes.
PREFLIGHT = "tracks.scale.preflight"
