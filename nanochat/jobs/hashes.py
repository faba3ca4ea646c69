"""Hashes of files that jobs read, remembered between steps: text of several GB takes seconds to read again.

`hashes.json` in the base folder has path -> size, times and hash. All jobs share it.
"""

import time
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock

from nanochat.data import hub
from nanochat.paths import base_dir, read_json, write_json

SETTLED = 2_000_000_000  # ns: a file that changes twice within a tick of the file system's clock keeps its times

Entry = list[int | str]  # size, mtime and ctime in ns, hash


def file_hashes(paths: Iterable[Path]) -> list[str]:
    """Return the SHA-256 of files. A file is read only if its size or its times differ from those remembered."""
    memory = base_dir() / "hashes.json"
    known = _load(memory)
    new: dict[str, Entry] = {}
    digests = []
    for path in paths:
        # The file behind a link: a link's own times do not change with the content.
        path = path.resolve()
        before = _state(path)
        *state, digest = known.get(str(path), [""])
        if state != before:
            digest = hub.sha256(path)
            # Not if somebody wrote to it meanwhile, or might have within the same tick.
            if _state(path) == before and time.time_ns() - max(before[1:]) > SETTLED:
                new[str(path)] = [*before, digest]
        digests.append(str(digest))
    if new:
        _save(memory, new)
    return digests


def _state(path: Path) -> list[int]:
    """Return size, mtime and ctime. Copying with times kept sets mtime; ctime is the kernel's alone."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _load(memory: Path) -> dict[str, Entry]:
    """Return what is remembered: nothing without a file, or with a damaged one."""
    try:
        known = read_json(memory)
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _save(memory: Path, new: dict[str, Entry]) -> None:
    """Add to what is remembered, and forget files that are gone. Writers wait for each other; readers need not."""
    memory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(memory.with_suffix(".lock")):
        kept = {path: entry for path, entry in _load(memory).items() if Path(path).exists()}
        write_json(memory, kept | new)
