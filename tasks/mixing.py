"""Mixtures: several tasks as one shuffled sequence.

A specification names tasks, separated by commas: `smoltalk,mmlu~options:8@5000,json:my.jsonl:3`. A word is

    NAME[~AUGMENTATION[:N]][@ROWS][%SHARE][:EPOCHS]

AUGMENTATION is a word of `nanochat.registry.AUGMENTATIONS`; the first `:` after it is for its own number N. ROWS is a
sample size, in conversations; where a question makes several, as in `mmlu~styles:2@5000`, they are sampled together.
EPOCHS are 1 by default, and may be a fraction. SHARE is the part of the mixture's supervised tokens, which the
assistant writes, in percent; all tasks have one, or none has. With shares the mixture is as large as it can be while no
task is read for more than its EPOCHS.

`smoltalk|multi-turn` is the first of the two whose files are here or can be downloaded; what follows the last name
applies to whichever it is.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanochat.chat import render_conversation
from nanochat.data.hub import HubError
from nanochat.errors import TemplateError, UserError
from nanochat.log import print0
from nanochat.paths import stage_dir
from nanochat.protocols import Conversation
from nanochat.statistics import Metrics
from nanochat.tokenizer import Tokenizer
from tasks.chats import JsonLines, chat_files, json_lines
from tasks.common import DataSet, DataSets, Task, find_task

if TYPE_CHECKING:
    import numpy as np

# The path after json: may have any characters, and after ~ the first : is that of the augmentation.
MEMBER = re.compile(
    r"(json:.+?|[^:@%~]+)(~\w+(?:(?!:)|:\d+(?![\d.])))?(?:@([1-9]\d*))?(?:%(\d*\.?\d+))?(?::(\d*\.?\d+))?"
)
HELD_OUT = 20  # a data set with a train split alone keeps one row in this many for validation


Parts = dict[str, tuple[Task, "np.ndarray"]]  # name -> (task, row numbers)


@dataclass(frozen=True)
class Member:
    """A task in a specification."""

    sources: dict[str, DataSet]  # by name, with the augmentation; the first whose files can be had is read
    rows: int  # sample size, 0: all
    share: float  # of the supervised tokens, in percent; 0: not given
    epochs: float  # may be a fraction


class Mixture:
    """Several tasks' conversations in a seed's random order."""

    def __init__(self, parts: Parts, seed: int) -> None:
        import numpy as np  # slow

        self._parts = parts
        self._tasks = [task for task, _ in parts.values()]
        # Counts with every epoch, by task name.
        self.rows = {name: len(numbers) for name, (_, numbers) in parts.items()}
        # Different conversations: a row that is in several epochs counts once.
        self.examples = {name: len(np.unique(numbers)) for name, (_, numbers) in parts.items()}
        # The rows of all tasks one after the other, and then shuffled.
        tasks = np.repeat(np.arange(len(parts)), list(self.rows.values()))
        numbers = np.concatenate([numbers for _, numbers in parts.values()])
        rows = np.stack([tasks, numbers], axis=1)  # (rows, 2): task number, row number in the task
        # The order of `shuffle`, which is several times slower for the rows of a matrix.
        self._order = rows[np.random.default_rng(seed).permutation(len(rows))]

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Conversation:
        task, number = self._order[index]
        return self._tasks[task][int(number)]

    def origin(self) -> dict[str, dict[str, Any]]:
        """Return for each task the row count, and the source files with their hashes."""
        return {name: {"rows": len(rows), "files": task.hashes()} for name, (task, rows) in self._parts.items()}


def row_counts(chats: Mixture, new_chats: Mixture) -> Metrics:
    """Return the metrics about a stage's conversations, and those for its validation."""
    metrics: Metrics = {
        "Rows by task": ", ".join(f"{name} {rows:,}" for name, rows in chats.rows.items()),
        "Training rows": len(chats),
        "Validation rows": len(new_chats),
    }
    for split, mixture in (("train", chats), ("val", new_chats)):
        # Augmented ones too, such as AQUA~styles:2.
        aqua = sum(count for name, count in mixture.examples.items() if name.startswith("AQUA"))
        if aqua:
            metrics[f"aqua_{split}_examples"] = aqua
    return metrics


def mix(
    known: DataSets,
    spec: str,
    split: str = "train",
    seed: int = 0,
    default: str = "",
    tokenizer: str = "default",
) -> Mixture:
    """Open the mixture that a specification names; samples, shares and epochs apply to the split train alone.

    default: used where the specification is empty, without the tasks that have no files on this machine, and with all
    rows where a task has fewer than asked for. tokenizer: see `Task`; it counts tokens for shares.
    """
    import numpy as np

    available_only = spec in ("", default)
    spec = spec or default
    parts: Parts = {}
    shares = {}  # by the names in parts
    for number, member in enumerate(parse_mixture(spec, known)):
        found = _open_first(member, split, tokenizer, available_only)
        if not found:
            continue
        name, task, rows = found
        task.seed = seed
        if name in parts:
            if parts[name][0].data.path != task.data.path:
                raise UserError(f"two files of the mixture are called {name}: rename one")
            raise UserError(f"{name} is named twice, give it epochs instead: {name}:2")
        if split == "train":
            count = member.rows or len(rows)
            if available_only:
                count = min(count, len(rows))
            total = round(count * member.epochs)  # a part epoch takes the first rows in the sample
            if count > len(rows) or not total:
                raise UserError(
                    f"{name} has {len(rows):,} rows to train on: "
                    f"{member.epochs:g} epochs of {count:,} rows cannot be taken from them"
                )
            # Copies of a question stay together. The number keeps samples of several tasks independent.
            shuffled = np.random.default_rng((seed, number)).permutation(rows.reshape(-1, task.copies))
            # resize repeats the sample until it has as many rows as asked for.
            rows = np.resize(shuffled.ravel()[:count], total)
        parts[name] = task, rows
        shares[name] = member.share
    if not parts:
        raise HubError(f"no task of {spec} is here: set NANOCHAT_HUB, or name others with --mixture")
    if split == "train" and any(shares.values()):
        _cut_to_shares(parts, shares, tokenizer)
    return Mixture(parts, seed)


def parse_mixture(spec: str, known: DataSets) -> list[Member]:
    """Return the tasks of a specification; UserError names the wrong word."""
    members = []
    for word in filter(None, map(str.strip, spec.split(","))):
        match = MEMBER.fullmatch(word)
        if not match or "" in map(str.strip, match[1].split("|")):
            raise UserError(f"{word} is not like NAME[~AUGMENTATION[:N]][@ROWS][%SHARE][:EPOCHS], or NAME|NAME")
        names, augmentation, rows, share, epochs = match.groups("")
        # The path after json: may have a | of its own.
        choices = [names] if names.startswith("json:") else map(str.strip, names.split("|"))
        sources = dict(find_set(name + augmentation, known) for name in choices)
        members.append(Member(sources, int(rows or 0), float(share or 0), float(epochs or 1)))
    shares = [member.share for member in members]
    total = sum(shares)
    is_whole = all(shares) and abs(total - 100) < 0.01
    if total and not is_whole:
        raise UserError(f"{spec}: all tasks need shares, which add up to 100 %, not to {total:g} %")
    return members


def local_files(members: Sequence[Member]) -> list[str]:
    """Return the files of conversations that are read from this machine, not from the hub."""
    sets = chain.from_iterable(member.sources.values() for member in members)
    places = [Path(data.path) for data in sets if data.task is JsonLines]
    # The hub's files have no absolute paths.
    return [str(file) for place in places if place.is_absolute() for file in chat_files(place)]


def absolute_mixture(spec: str) -> str:
    """Return a specification with the whole paths of files: commands that read it may run in another folder.

    Other words stay as they are, to the last blank.
    """
    words = spec.split(",")
    for number, word in enumerate(words):
        before, mark, path = word.partition("json:")
        if mark and not before.strip() and not os.path.isabs(path):
            words[number] = f"{mark}{os.path.abspath(os.path.expanduser(path.rstrip()))}"
    return ",".join(words)


def find_set(word: str, known: DataSets) -> tuple[str, DataSet]:
    """Return name and data set for a task, in the form that is learned, or for json: and the path of files."""
    if word.startswith("json:"):
        path = word.removeprefix("json:")
        return f"json:{Path(path).name}", json_lines(path)
    name = find_task(word, known)
    return name, known[name].to_learn


def _open_first(
    member: Member, split: str, tokenizer: str, available_only: bool
) -> tuple[str, Task, "np.ndarray"] | None:
    """Return name, task and row numbers for the first of a member's data sets whose files can be had.

    Each one that is left out is named in a line. Without files for any: HubError, or None with available_only.
    """
    *_, last = member.sources
    for name, data in member.sources.items():
        if not data.task.has_answers:
            raise UserError(f"{name} has no answers to learn from: use it with scripts.chat_rl")
        try:
            if split != "train" and len(member.sources) > 1:
                _open_split(data, "train", tokenizer)  # validation is of the data set that is trained on
            return name, *_open_split(data, split, tokenizer)
        except HubError as error:
            if name == last and not available_only:
                raise
            print0(f"{split} mixture: {name} is left out: {error}")
    return None


def _open_split(data: DataSet, split: str, tokenizer: str) -> "tuple[Task, np.ndarray]":
    """Return a task and its row numbers for a split.

    Validation takes the validation split, or else the test split, or else a part that training leaves out.
    """
    import numpy as np

    names = data.split_names
    own = split
    if split == "validation" and split not in names:
        own = "test" if "test" in names else "train"
    task = data(own, tokenizer=tokenizer)
    rows = np.arange(len(task))
    if names != ("train",):
        return task, rows
    # Training and validation share the train split, and all copies of a row belong to one of them.
    first_held_out = len(rows) - task.copies * max(1, len(rows) // task.copies // HELD_OUT)
    return task, rows[:first_held_out] if split == "train" else rows[first_held_out:]


def _count_learned(conversation: Conversation, tokenizer: "Tokenizer") -> int:
    """Return the tokens that the assistant writes; none where the template refuses, which the loader leaves out."""
    try:
        return sum(render_conversation(conversation, tokenizer)[1])
    except TemplateError:
        return 0


def _cut_to_shares(parts: Parts, shares: dict[str, float], tokenizer: str) -> None:
    """Leave each task the first rows, as many as the share of the supervised tokens needs; one task keeps all."""
    import numpy as np

    encoder = Tokenizer.load(stage_dir("tok_train", tokenizer) / "tokenizer.json")
    reached = {}  # name -> supervised tokens in the first row, the first two rows, and so on
    for name, (task, rows) in parts.items():
        once, places = np.unique(rows, return_inverse=True)  # a row of several epochs is counted once
        counts = np.array([_count_learned(task[number], encoder) for number in once.tolist()])
        reached[name] = counts[places].cumsum()
    # Tokens for one percent, as the task with too little for more allows.
    percent = min(reached[name][-1] / share for name, share in shares.items())
    for name, (task, rows) in parts.items():
        tokens = reached[name]
        last = np.abs(tokens - shares[name] * percent).argmin()  # the row that comes closest
        print0(f"train mixture: {name}: {tokens[last]:,} supervised tokens in {last + 1:,} rows")
        parts[name] = task, rows[: last + 1]
