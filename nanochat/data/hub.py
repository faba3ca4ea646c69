"""A file of a data set: from the mirror directory that NANOCHAT_HUB names, else through `huggingface_hub`.

Where a run has written the embedded world because it had nothing else, that stands for what is not in the cache.

That library brings a cache with locks, the rest of a body that broke off, HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE. Here
are patience, checks, and one fetching rank a node. What is in the cache is taken as it is: pin a revision to be sure.
"""

import errno
import hashlib
import multiprocessing
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NamedTuple

from nanochat.log import say
from nanochat.nodes import once_a_node
from nanochat.paths import base_dir, read_sha256

AT_ONCE = 8  # downloads
ATTEMPTS = 5
FIRST_WAIT = 1.0  # seconds; doubled after each attempt, give or take half
SAY_EVERY = 10.0  # seconds
FOR_GOOD = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS}  # trying again mends none of these
HINTS = {401: ", it does not exist or needs HF_TOKEN", 403: ", HF_TOKEN may not read it", 404: ", it does not exist"}


class HubError(ValueError):
    """Files that cannot be had, each of them named."""


@dataclass(frozen=True)
class HubFile:
    """A file by name: `path` in the data set `repo` ("owner/name"), or in a mirror's root where there is no repo."""

    path: str
    repo: str = ""
    revision: str | None = None

    def __str__(self) -> str:
        return f"datasets/{self.repo}/{self.path}" if self.repo else self.path


class Found(NamedTuple):
    """Where a file lies, where it came from ("mirror", "cache", "world", "hub"), and how many seconds that took."""

    path: Path
    origin: str
    seconds: float = 0.0


def fetch(files: Sequence[HubFile], offline: bool = False) -> list[Found]:
    """Every file, in order, fetched by one rank of each node where it is missing; a HubError names all that fail."""
    what = f"{len(files)} files ({hashlib.sha256(repr((files, offline)).encode()).hexdigest()[:16]})"
    answers = once_a_node(what, lambda: [(str(path), *rest) for path, *rest in _fetch_here(files, offline)])
    return [Found(Path(path), *rest) for path, *rest in answers]


def is_here(files: Sequence[HubFile]) -> bool:
    """Whether all of them are on this machine, in the mirror or in the cache."""
    return all(map(_find, files))


def revision(path: Path) -> str | None:
    """The commit that a file in the hub's cache is of."""
    commit = re.search(r"/snapshots/([0-9a-f]{40})/", path.as_posix())
    return commit[1] if commit else None


def sha256(path: Path) -> str:
    """The hash of a file's content, not read again where the cache tells it: it was checked when the file came."""
    return _promised_sha256(path) or read_sha256(path)


def mirror() -> Path | None:
    """The directory that NANOCHAT_HUB names, if it does."""
    named = os.environ.get("NANOCHAT_HUB")
    if named and not Path(named).expanduser().is_dir():
        raise HubError(f"NANOCHAT_HUB={named} is no directory, name a mirror or unset it")
    return Path(named).expanduser() if named else None


def world_dir() -> Path:
    """Where the embedded world is written, and read by later stages until it is removed."""
    return base_dir() / "world"


def _world() -> Path | None:
    """The embedded world where it is the hub; what it lacks is not fetched, or real files would mix with its own.

    The main job on real text says NANOCHAT_WORLD=off: an earlier one may have left a world.
    """
    if os.environ.get("NANOCHAT_WORLD") == "off":
        return None
    return world_dir() if mirror() is None and (world_dir() / "world.json").is_file() else None


def _places(file: HubFile) -> Iterator[Found]:
    """Where on this machine a file may lie, first choice first."""
    if root := mirror():
        yield Found(root / str(file), "mirror")
        return
    if not _is_on_no_hub(file):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(file.repo, file.path, revision=file.revision, repo_type="dataset")
        if isinstance(cached, str):
            yield Found(Path(cached), "cache")
    if world := _world():
        yield Found(world / str(file), "world")


def _find(file: HubFile) -> Found | None:
    return next((found for found in _places(file) if found.path.is_file()), None)


def _is_on_no_hub(file: HubFile) -> bool:
    return not file.repo or file.repo.startswith("local/")


def _cannot_come(file: HubFile, offline: bool) -> str:
    """Why a file that is not on this machine is not to be fetched, or nothing."""
    from huggingface_hub import constants  # reads HF_HUB_OFFLINE

    if mirror():
        return "not in the mirror that NANOCHAT_HUB names"
    if world := _world():
        return f"not in the cache, nor in the embedded world; remove {world} to have it fetched"
    if _is_on_no_hub(file):
        return "on no hub, set NANOCHAT_HUB to a mirror that has it"
    return "not in the cache" if offline or constants.HF_HUB_OFFLINE else ""


def _promised_sha256(path: Path) -> str | None:
    """In the hub's cache a large file lies under the name of its SHA-256."""
    blob = path.resolve()
    return blob.name if blob.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", blob.name) else None


def _fetch_here(files: Sequence[HubFile], offline: bool) -> list[Found]:
    came = {file: _find(file) for file in files}
    missing = [file for file, found in came.items() if not found]
    lost = {file: why for file in missing if (why := _cannot_come(file, offline))}
    # Asked first, so that all that does not exist is known before the first long download.
    lost = lost or {file: why for file, _, why in _each(missing, _ask) if why}
    for file, found, why in _each([] if lost else missing, _download):
        if why:
            lost = {other: "not fetched, as another failed" for other in missing if not came[other]} | {file: why}
            break
        came[file] = found
    if lost:
        lines = [f"{len(lost)} of {len(came)} files cannot be had:", *(f"{file}: {why}" for file, why in lost.items())]
        raise HubError("\n  ".join(lines))
    if count := sum(found.origin == "world" for found in came.values()):
        say(f"hub: {count:,} of {len(came):,} files are those of the embedded world in {world_dir()}")
    return [came[file] for file in files]


def _each(files: Sequence[HubFile], act: Callable[[HubFile], Any]) -> Iterator[tuple[HubFile, Any, str]]:
    """(file, what `act` gave, or why it failed), several at once, as they end."""
    if not files:
        return
    # Its threads are daemons: a long download must not keep the process alive when another file has failed.
    with ThreadPool(min(AT_ONCE, len(files))) as pool:
        ended, number = pool.imap_unordered(lambda file: (file, *_patiently(file, act)), files), 0
        while number < len(files):
            try:
                yield ended.next(SAY_EVERY)
                number += 1
            except multiprocessing.TimeoutError:
                say(f"hub: {number:,} of {len(files):,} files so far")


def _patiently(file: HubFile, act: Callable[[HubFile], Any]) -> tuple[Any, str]:
    """What `act` gave, or why it failed; tried again after what may pass, with a printed line each time."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return act(file), ""
        except Exception as error:  # of httpx, xet, the system: none is ours, and all but a clear no may pass
            why, final, pause = _judge(error)
        if final or attempt == ATTEMPTS:
            break
        wait = pause + FIRST_WAIT * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
        say(f"hub: {file}: {why}; attempt {attempt} of {ATTEMPTS}, again in {wait:.1f} s")
        time.sleep(wait)
    return None, why + (f", after {attempt} attempts" if attempt > 1 else "")


def _judge(error: Exception) -> tuple[str, bool, int]:
    """What is wrong, in a few words; whether it stays so; how many seconds the hub wants to be left alone."""
    # The library wraps what a HEAD request met in an error of its own.
    answers = [getattr(cause, "response", None) for cause in (error, error.__cause__)]
    answer = next((answer for answer in answers if answer is not None), None)
    if answer is None:
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        return why, getattr(error, "errno", None) in FOR_GOOD, 0
    status, pause = answer.status_code, answer.headers.get("Retry-After", "")
    final = status < 500 and status not in (408, 429)
    return f"HTTP {status}{HINTS.get(status, '')}", final, int(pause) if pause.isdigit() else 0


def _ask(file: HubFile) -> None:
    """A question whether the hub has a file: an error where it has not."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    get_hf_file_metadata(hf_hub_url(file.repo, file.path, repo_type="dataset", revision=file.revision))


def _download(file: HubFile) -> Found:
    from huggingface_hub import hf_hub_download

    start = time.monotonic()
    path = Path(hf_hub_download(file.repo, file.path, repo_type="dataset", revision=file.revision))
    if (expected := _promised_sha256(path)) and (content := read_sha256(path)) != expected:
        path.resolve().unlink(missing_ok=True)  # or the cache would give it again
        path.unlink(missing_ok=True)
        raise OSError(f"its SHA-256 is {content} and not {expected}")
    return Found(path, "hub", time.monotonic() - start)
