"""Artifact folders and their locks, files that are written whole or not at all, and file hashes."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from nanochat.errors import UserError

Parsed = TypeVar("Parsed")

# In JSON: half of a surrogate pair, mostly with the other half behind it.
ESCAPED_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def base_dir() -> Path:
    """Return the folder for all artifacts: NANOCHAT_BASE_DIR, read at each call, so that tests can change it."""
    return Path(os.environ.get("NANOCHAT_BASE_DIR") or "~/.cache/nanochat").expanduser()


def fix_folders() -> None:
    """Make the folders in variables absolute: commands that this process starts may run in another folder."""
    for name in ("NANOCHAT_BASE_DIR", "NANOCHAT_HUB"):
        folder = os.environ.get(name)
        if folder:
            os.environ[name] = str(Path(folder).expanduser().absolute())


def world_dir(seed: int) -> Path:
    """Return the folder of the embedded world of this seed."""
    return base_dir() / ("world" if seed == 1 else f"world-{seed}")


def stage_dir(stage: str, tag: str) -> Path:
    """Return a stage's folder for a tag, which may not exist yet."""
    if not re.fullmatch(r"[\w][\w.+-]*", tag):
        raise UserError(f"the tag {tag} cannot name a folder, use letters, digits, '-', '_', '+' and '.'")
    return base_dir() / stage / tag


def tokenizer_file(tag: str) -> Path:
    """Return the file of the tokenizer that the run `tag` of scripts.tok_train trains."""
    return stage_dir("tok_train", tag) / "tokenizer.json"


def step_dir(folder: Path, step: int) -> Path:
    """Return the folder of a checkpoint, in that of its run."""
    return folder / f"step_{step:06d}"


def saved_steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint in a run's folder, in order; nothing is verified."""
    names = (re.fullmatch(r"step_(\d{6,})", path.name) for path in folder.glob("step_*"))
    return sorted(int(name[1]) for name in names if name)  # by number: text order fails at 1,000,000


def newest_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run's last checkpoint as it is, for programs that need no weights."""
    return read_json(step_dir(folder, saved_steps(folder)[-1]) / "manifest.json")


@contextmanager
def hold_folder(folder: Path, flag: str = "--tag") -> Iterator[int]:
    """Hold a folder's lock; yields the file descriptor. A UserError if another process holds the lock.

    flag: the one that names the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a") as lock:
        take_lock(lock.fileno(), folder, flag)
        yield lock.fileno()


def take_lock(lock: int, folder: Path, flag: str = "--tag") -> None:
    """Lock an open file. The lock lasts until every process with an inherited descriptor has ended."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"another process runs in {folder}: wait until it ends, or use another {flag}") from None


def read_json(path: Path) -> Any:
    """Return the JSON document in a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_lines(path: Path, parse: Callable[[bytes], Parsed]) -> Iterator[Parsed]:
    """Yield `parse` of each line, bytes with their end.

    A UserError names file, line and fault: what a line of another form makes `parse` raise is one too.
    """
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield parse(line)
            except (ValueError, TypeError, LookupError, RecursionError) as error:  # the last of JSON nested too deep
                raise UserError(f"{path}:{number}: {error}") from None


def read_jsonl(path: Path, parse: Callable[[Any], Parsed]) -> Iterator[Parsed]:
    """Yield `parse` of the JSON document in each line, with the errors of `read_lines`; blank lines are skipped."""
    return chain.from_iterable(read_lines(path, lambda line: () if line.isspace() else (parse(_json_of(line)),)))


def _json_of(line: bytes) -> Any:
    """Return a JSON document; a UserError if it has half of a surrogate pair, which no file and no tokenizer takes."""
    value = json.loads(line)  # it skips a byte order mark, which some editors write
    if ESCAPED_HALF.search(line):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise UserError("it has half a character (one half of a surrogate pair), which is no text") from None
    return value


@contextmanager
def naming(path: Path, size: int) -> Iterator[None]:
    """Name a file that cannot be written, and the bytes that it needs, in the block's OSError: a full disk does not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}, {size:,} bytes are needed", str(path)) from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not TOML: {error}") from None


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, whole or not at all.

    Readers, and runs after a crash at any moment, find the old content or the new, never a part.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file as `write_text` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.tmp-{os.getpid()}")  # two processes writing one path share no part
    try:
        with naming(path, len(data)):
            part.write_bytes(data)
            sync(part)
        os.replace(part, path)  # atomic
    finally:
        part.unlink(missing_ok=True)
    sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document, whole or not at all; a value that JSON lacks is a TypeError before anything is written."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write a JSON document per line, whole or not at all."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def publish_folder(part: Path, home: Path) -> None:
    """Rename a folder to its final name: after a crash it has all files in full, or does not exist."""
    for path in (*part.rglob("*"), part):  # content first: the name must not survive without it
        sync(path)
    os.rename(part, home)  # atomic
    sync(home.parent)


@contextmanager
def new_folder(home: Path) -> Iterator[Path]:
    """Yield an empty folder, which gets its final name when the block ends; an error leaves nothing.

    One process at a time may write a folder.
    """
    part = home.with_name(f"{home.name}.tmp")
    shutil.rmtree(part, ignore_errors=True)  # left by a process that died
    part.mkdir(parents=True)
    try:
        yield part
        publish_folder(part, home)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def read_sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    block = memoryview(bytearray(1 << 20))
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(block):
            digest.update(block[:size])
    return digest.hexdigest()


def text_sha256(text: str) -> str:
    """Return a text's SHA-256 in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
