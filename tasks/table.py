"""The table of all data sets by name: those of the report card (sets.py), those of tracks, and augmented ones."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from nanochat import registry
from nanochat.config import check_names
from nanochat.registry import Door
from tasks.common import DataSet

DOORS: tuple[Door[DataSet], ...] = (registry.TASKS, registry.CHATS)


class Augmentation(Protocol):
    """A word after ~ in the name of a task: makes a data set whose rows are those of another one, changed."""

    def __call__(self, key: str, data: DataSet, number: str) -> DataSet:
        """Return the data set. key: its name, for messages. number: the text after the colon, perhaps empty."""
        ...


class TaskTable(Mapping[str, DataSet]):
    """Data sets by name. CLIcK~styles and MMLU~options:8 are names too, though iteration leaves them out.

    A data set of a track is imported when it is asked for: `name in table` and iteration import nothing, `items` and
    `values` import all.
    """

    def __init__(self, rows: Mapping[str, DataSet]) -> None:
        self._rows = rows
        self._names = [*rows, *(name for door in DOORS for name in door.modules)]

    def __getitem__(self, key: str) -> DataSet:
        name, mark, augmentation = key.partition("~")
        if mark:
            word, _, number = augmentation.partition(":")
            check_names(f"{key}: the augmentation", [word], registry.AUGMENTATIONS.modules)
            augment: Augmentation = registry.load(registry.AUGMENTATIONS, word)
            return augment(key, self[name], number)
        if name in self._rows:
            return self._rows[name]
        for door in DOORS:
            if name in door.modules:
                return registry.load(door, name)
        raise KeyError(key)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
