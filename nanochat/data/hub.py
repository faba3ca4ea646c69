"""Files of data sets: from a mirror directory, or through `huggingface_hub`.

The mirror is the directory in NANOCHAT_HUB; if it is set, no other place is searched. Else `huggingface_hub` supplies
the cache, locks, retries, resumed downloads, HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE. If a run has written
the embedded world for lack of other data, the world stands for files that are not in the cache. A cached file is used
without asking the hub again; pin a revision to be sure of its version.
"""

import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nanochat.log import say
from nanochat.nodes import once_a_node
from nanochat.paths import base_dir, read_sha256

PARALLEL_DOWNLOADS = 8
HINTS = {401: ": it does not exist or needs HF_TOKEN", 403: ": HF_TOKEN may not read it", 404: ": it does not exist"}


class HubError(ValueError):
    """Files that cannot be found or fetched; the message names each of them."""


@dataclass(frozen=True)
class HubFile:
    """A file `path` of the data set `repo` ("owner/name"); without a repo, a file in the root of a mirror."""

    path: str
    repo: str = ""
    revision: str | None = None

    def __str__(self) -> str:
        return f"datasets/{self.repo}/{self.path}" if self.repo else self.path

    @property
    def on_hub(self) -> bool:
        """False for files that only a mirror or the embedded world can have."""
        return bool(self.repo) and not self.repo.startswith("local/")


class Found(NamedTuple):
    """A local file, where it comes from ("mirror", "cache", "world" or "hub"), and the seconds of its download."""

    path: Path
    origin: str
    seconds: float = 0.0


def fetch(files: Sequence[HubFile], offline: bool = False) -> list[Found]:
    """Return all files in order; one process of each node downloads the missing ones. HubError names all failures."""
    key = hashlib.sha256(repr((files, offline)).encode()).hexdigest()[:16]
    # The answer travels to the other processes as JSON.
    answers = once_a_node(
        f"{len(files)} files ({key})",
        lambda: [(str(path), *rest) for path, *rest in _fetch_here(files, offline)],
    )
    return [Found(Path(path), *rest) for path, *rest in answers]


def is_here(files: Sequence[HubFile]) -> bool:
    """Return True if all files are on this machine."""
    return all(_find(file) for file in files)


def revision(path: Path) -> str | None:
    """Return the commit of a file in the cache of the hub."""
    commit = re.search(r"/snapshots/([0-9a-f]{40})/", path.as_posix())
    return commit[1] if commit else None


def sha256(path: Path) -> str:
    """Return the hash of a file; a file in the cache was checked when it was downloaded, and is not read again."""
    return _cached_sha256(path) or read_sha256(path)


def mirror() -> Path | None:
    """Return the directory in NANOCHAT_HUB, if that is set."""
    name = os.environ.get("NANOCHAT_HUB")
    if not name:
        return None
    path = Path(name).expanduser()
    if not path.is_dir():
        raise HubError(f"NANOCHAT_HUB={name} is no directory, name a mirror or unset it")
    return path


def world_dir() -> Path:
    """Return the folder of the embedded world, which later stages read until it is removed."""
    return base_dir() / "world"


def _world() -> Path | None:
    """Return the embedded world if it replaces the hub.

    Files that it lacks are not downloaded either, or one run would mix real files with invented ones. The main job on
    real text sets NANOCHAT_WORLD=off, as an earlier job may have left a world.
    """
    if os.environ.get("NANOCHAT_WORLD") == "off" or mirror():
        return None
    return world_dir() if (world_dir() / "world.json").is_file() else None


def _places(file: HubFile) -> Iterator[Found]:
    """Yield the places on this machine where a file may be, first choice first."""
    if root := mirror():
        yield Found(root / str(file), "mirror")
        return
    if file.on_hub:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(file.repo, file.path, revision=file.revision, repo_type="dataset")
        if isinstance(cached, str):
            yield Found(Path(cached), "cache")
    if world := _world():
        yield Found(world / str(file), "world")


def _find(file: HubFile) -> Found | None:
    return next((place for place in _places(file) if place.path.is_file()), None)


def _obstacle(file: HubFile, offline: bool) -> str:
    """Return the reason why a missing file cannot be downloaded, or an empty string."""
    from huggingface_hub import constants  # reads HF_HUB_OFFLINE

    if mirror():
        return "not in the mirror that NANOCHAT_HUB names"
    if world := _world():
        return f"not in the cache, nor in the embedded world; remove {world} to download it"
    if not file.on_hub:
        return "not on the hub, set NANOCHAT_HUB to a mirror that has it"
    return "not in the cache" if offline or constants.HF_HUB_OFFLINE else ""


def _fetch_here(files: Sequence[HubFile], offline: bool) -> list[Found]:
    found = {file: _find(file) for file in files}
    missing = [file for file, place in found.items() if place is None]
    failures = {file: reason for file in missing if (reason := _obstacle(file, offline))}
    if missing and not failures:
        say(f"hub: downloading {len(missing):,} of {len(found):,} files")
        with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
            # All are tried: a file that came is in the cache when the command is run again.
            for file, result in zip(missing, pool.map(_download, missing), strict=True):
                if isinstance(result, Found):
                    found[file] = result
                else:
                    failures[file] = result
    if failures:
        lines = [f"{file}: {reason}" for file, reason in failures.items()]
        raise HubError("\n  ".join([f"{len(failures)} of {len(found)} files are not available:", *lines]))
    if count := sum(place.origin == "world" for place in found.values()):
        say(f"hub: {count:,} of {len(found):,} files are from the embedded world in {world_dir()}")
    return [found[file] for file in files]


def _download(file: HubFile) -> Found | str:
    """Return the downloaded file, or the reason why the download failed."""
    from huggingface_hub import hf_hub_download

    start = time.monotonic()
    try:
        path = Path(hf_hub_download(file.repo, file.path, repo_type="dataset", revision=file.revision))
    except Exception as error:  # of httpx, xet or the system, as the library passes them on
        return _failure(error)
    # The library checks the size of a plain download, but not its hash.
    expected = _cached_sha256(path)
    if expected and read_sha256(path) != expected:
        path.resolve().unlink()  # or the cache would supply it the next time
        path.unlink()
        return f"its content does not have the SHA-256 {expected[:12]}… of the hub, run the command again"
    return Found(path, "hub", time.monotonic() - start)


def _failure(error: Exception) -> str:
    """Return the reason of a failed download in one line."""
    # A failed question for the metadata comes wrapped in another error.
    cause = error.__cause__ or error
    response = getattr(cause, "response", None)
    if response is not None:
        return f"HTTP {response.status_code}{HINTS.get(response.status_code, ', run the command again')}"
    return f"{type(cause).__name__}: {cause}".partition("\n")[0]


def _cached_sha256(path: Path) -> str | None:
    """Return the SHA-256 in the name of a large file in the cache of the hub."""
    blob = path.resolve()
    return blob.name if blob.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", blob.name) else None
