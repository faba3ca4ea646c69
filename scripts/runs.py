"""List the runs on disk with their sizes, or delete one.

python -m scripts.runs --list
python -m scripts.runs --delete=chat_sft/mix-d20-plain-1-1
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.log import print0, table_of, terminal_table
from nanochat.outcome import Outcome
from nanochat.paths import base_dir, hold_folder, saved_steps

# A folder STAGE/TAG with one of these is a run.
SIGNS = ("outcome.json", "metrics.jsonl", "step_*")


@options("runs")
class Config:
    """List runs, or delete one."""

    list: bool = option(True, "list the runs on disk: stage and tag, state, checkpoints, size")
    delete: str = option("", "run to delete, as STAGE/TAG in the list")


def main(config: Config) -> None:
    if config.delete:
        delete(config.delete)
    if config.list:
        rows = [row_of(folder) for folder in runs_on_disk()]
        print0(terminal_table(table_of("Runs", "Run | State | Checkpoints:d | GB:.3f", rows)))
        print0(f"{sum(row[-1] for row in rows):.3f} GB in {base_dir()}")


def runs_on_disk() -> list[Path]:
    """Return the folders of all runs."""
    return sorted({path.parent for sign in SIGNS for path in base_dir().glob(f"*/*/{sign}")})


def row_of(folder: Path) -> list[Any]:
    """Return a row of the list: run, state, number of checkpoints, size."""
    path = folder / "outcome.json"
    state = "no outcome"  # it has not finished, or is a merge
    if path.exists():
        try:
            state = f"finished {Outcome.load(path).timestamp[:16]}"
        except UserError:  # of another version
            state = "unreadable outcome"
    size = 0
    for place, _, names in os.walk(folder):  # which leaves out folders that a run renames meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                size += os.lstat(os.path.join(place, name)).st_size
    return [f"{folder.parent.name}/{folder.name}", state, len(saved_steps(folder)), size / 1e9]


def delete(name: str) -> None:
    """Delete the folder of a run, unless a process works in it."""
    folder = base_dir() / name
    if folder not in runs_on_disk():
        raise UserError(f"{name} is not a run in {base_dir()}: --list shows them all")
    # A running stage holds the lock.
    with hold_folder(folder):
        shutil.rmtree(folder)
    print0(f"{name} is deleted")


if __name__ == "__main__":
    run_script(main)
