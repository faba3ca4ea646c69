"""Where artifacts live, how a file gets there whole or not at all, and the hash of what is in it."""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def base_dir() -> Path:
    """Where every artifact of every run lives: NANOCHAT_BASE_DIR, read now."""
    return Path(os.environ.get("NANOCHAT_BASE_DIR") or "~/.cache/nanochat").expanduser()


def stage_dir(stage: str, tag: str, base: Path | None = None) -> Path:
    """The folder of one stage of one run, which may not exist yet."""
    if not re.fullmatch(r"[\w][\w.+-]*", tag):
        raise ValueError(f"--tag={tag} cannot name a folder, use letters, digits, '-', '_' and '.'")
    return (base or base_dir()) / stage / tag


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write to: a reader of `path`, or a crash at any moment, meets the old content or the new, no part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.tmp-{os.getpid()}")  # two processes writing one path share no part
    try:
        yield part
        _sync(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    _sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, whole or not at all."""
    with whole_file(path) as part, open(part, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def write_json(path: Path, value: Any) -> None:
    """The same for a JSON document; a value JSON does not know is a TypeError before anything is written."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def publish_folder(part: Path, home: Path) -> None:
    """Give a folder of files its final name: after a crash it has all of them in full, or is not there."""
    for path in (*part.iterdir(), part):
        _sync(path)
    os.rename(part, home)
    _sync(home.parent)


def read_sha256(path: Path) -> str:
    """The hash of a file, read to its end, in hexadecimal."""
    digest, block = hashlib.sha256(), memoryview(bytearray(1 << 20))
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(block):
            digest.update(block[:size])
    return digest.hexdigest()


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, outlive a power cut; a no-op where folders cannot be opened (Windows)."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
