"""Data set files: from a mirror directory, or through `huggingface_hub`.

The mirror is the directory in NANOCHAT_HUB; if it is set, no other place is searched. Else `huggingface_hub` supplies
the cache, locks, retries, resumed downloads, HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE. If a run has written
the embedded world for lack of other data, the world stands for files that are not in the cache. A cached file is used
without asking the hub again; pin a revision to be sure about the version.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from nanochat.log import print_line
from nanochat.paths import base_dir, read_sha256

PARALLEL_DOWNLOADS = 8
# HTTP status -> the usual reason.
HINTS = {401: ": it does not exist or needs HF_TOKEN", 403: ": HF_TOKEN may not read it", 404: ": it does not exist"}


class HubError(ValueError):
    """Files cannot be found or downloaded; the message lists them all."""


@dataclass(frozen=True)
class HubFile:
    """A file `path` in the data set `repo` ("owner/name"); without a repo, in the root of a mirror."""

    path: str
    repo: str = ""
    revision: str | None = None

    def __str__(self) -> str:
        return f"datasets/{self.repo}/{self.path}" if self.repo else self.path

    @property
    def on_hub(self) -> bool:
        """False for files found only in a mirror or the embedded world."""
        return bool(self.repo) and not self.repo.startswith("local/")


class Found(NamedTuple):
    """A local file, its origin ("mirror", "cache", "world" or "hub"), and the download time in seconds."""

    path: Path
    origin: str
    seconds: float = 0.0


def once_a_node(name: str, work: Callable[[], Any]) -> Any:
    """Run `work` in local rank 0 of each node and return its JSON value on all ranks of the node.

    A ValueError on one node is raised on every rank. Without torchrun every process does the work itself. name: of the
    work, in messages and in the store.
    """
    env = os.environ
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or env.get("WORLD_SIZE") == "1":
        return work()
    # Imported here: torch takes seconds to load, and only the ranks of torchrun need it.
    from torch.distributed import TCPStore

    from nanochat.runtime import post_result, wait_result

    address, port = env["MASTER_ADDR"], int(env["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))
    prefix = f"nanochat/{env['TORCHELASTIC_RESTART_COUNT']}/{name}/node "
    own = env["GROUP_RANK"]
    if env["LOCAL_RANK"] == "0":
        post_result(store, prefix + own, work, ValueError)
    # The own node first: if several fail, each reports its own failure.
    value = wait_result(store, prefix + own, ValueError, notice=name)
    for node in range(int(env["GROUP_WORLD_SIZE"])):
        wait_result(store, f"{prefix}{node}", ValueError, notice=name)
    return value


def fetch(files: Sequence[HubFile], offline: bool = False) -> list[Found]:
    """Return all files in order; one process on each node downloads missing files. HubError lists all failures."""
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
    """Return the commit for a file in the cache of the hub."""
    # The cache has a folder for each commit.
    commit = re.search(r"/snapshots/([0-9a-f]{40})/", path.as_posix())
    return commit[1] if commit else None


def sha256(path: Path) -> str:
    """Return the hash of a file; a cached file was checked after the download, and is not read again."""
    return _cached_sha256(path) or read_sha256(path)


def mirror() -> Path | None:
    """Return the directory in NANOCHAT_HUB, if that is set."""
    # Read at every call: tests and notebooks change it.
    name = os.environ.get("NANOCHAT_HUB")
    if not name:
        return None
    path = Path(name).expanduser()
    if not path.is_dir():
        raise HubError(f"NANOCHAT_HUB={name} is no directory, name a mirror or unset it")
    return path


def world_dir() -> Path:
    """Return the folder for the embedded world; later stages read from there until someone removes the folder."""
    return base_dir() / "world"


def _world() -> Path | None:
    """Return the embedded world if one replaces the hub.

    Other files are not downloaded either, or a run would mix real and invented files. The main job on real text sets
    NANOCHAT_WORLD=off, because an earlier job may have left a world.
    """
    if os.environ.get("NANOCHAT_WORLD") == "off" or mirror():
        return None
    return world_dir() if (world_dir() / "world.json").is_file() else None


def _places(file: HubFile) -> Iterator[Found]:
    """Yield possible places for a file on this machine, first choice first."""
    if root := mirror():
        yield Found(root / str(file), "mirror")
        return
    if file.on_hub:
        from huggingface_hub import try_to_load_from_cache

        # A path, or None, or a marker for a file known to be missing.
        cached = try_to_load_from_cache(
            file.repo,
            file.path,
            revision=file.revision,
            repo_type="dataset",
        )
        if isinstance(cached, str):
            yield Found(Path(cached), "cache")
    if world := _world():
        yield Found(world / str(file), "world")


def _find(file: HubFile) -> Found | None:
    return next((place for place in _places(file) if place.path.is_file()), None)


def _obstacle(file: HubFile, offline: bool) -> str:
    """Return the reason not to download a missing file, or an empty string."""
    from huggingface_hub import constants  # the import reads HF_HUB_OFFLINE from the environment

    if mirror():
        return "not in the mirror that NANOCHAT_HUB names"
    if world := _world():
        return f"not in the cache, nor in the embedded world; remove {world} to download it"
    if not file.on_hub:
        return "not on the hub, set NANOCHAT_HUB to a mirror that has it"
    return "not in the cache" if offline or constants.HF_HUB_OFFLINE else ""


def _fetch_here(files: Sequence[HubFile], offline: bool) -> list[Found]:
    found = {file: _find(file) for file in files}
    # Files that appear twice are downloaded once.
    missing = [file for file, place in found.items() if place is None]
    # Known before any download starts.
    failures = {file: reason for file in missing if (reason := _obstacle(file, offline))}
    if missing and not failures:
        print_line(f"hub: downloading {len(missing):,} of {len(found):,} files")
        with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
            # Try all: a file downloaded now is in the cache when the command is run again.
            for file, result in zip(missing, pool.map(_download, missing), strict=True):
                if isinstance(result, Found):
                    found[file] = result
                else:
                    failures[file] = result
    # One error for all files, so that nobody fixes them one by one.
    if failures:
        lines = [f"{file}: {reason}" for file, reason in failures.items()]
        raise HubError("\n  ".join([f"{len(failures)} of {len(found)} files are not available:", *lines]))
    if count := sum(place.origin == "world" for place in found.values()):
        print_line(f"hub: {count:,} of {len(found):,} files are from the embedded world in {world_dir()}")
    return [found[file] for file in files]


def _download(file: HubFile) -> Found | str:
    """Return the downloaded file, or the reason for the failure."""
    from huggingface_hub import hf_hub_download

    start = time.monotonic()
    try:
        path = Path(
            hf_hub_download(
                file.repo,
                file.path,
                repo_type="dataset",
                revision=file.revision,
            )
        )
    except Exception as error:  # from httpx, xet or the system: the library has no common base class
        return _failure(error)
    # The library checks the size of a plain download, but not its hash.
    expected = _cached_sha256(path)
    if expected and read_sha256(path) != expected:
        path.resolve().unlink(missing_ok=True)  # or the cache would supply the damaged file next time
        path.unlink(missing_ok=True)
        return f"the content does not have the SHA-256 {expected[:12]}… from the hub, run the command again"
    return Found(path, "hub", time.monotonic() - start)


def _failure(error: Exception) -> str:
    """Return the reason for a failed download in one line."""
    # The library wraps errors from the request for metadata.
    cause = error.__cause__ or error
    # Answers from a server have a status, network errors have none.
    response = getattr(cause, "response", None)
    if response is not None:
        return f"HTTP {response.status_code}{HINTS.get(response.status_code, ', run the command again')}"
    return f"{type(cause).__name__}: {cause}".partition("\n")[0]


def _cached_sha256(path: Path) -> str | None:
    """Return the SHA-256 of a large file in the cache of the hub, which is the file name there."""
    # snapshots/COMMIT/NAME is a link to blobs/HASH; small files have a shorter hash from git.
    blob = path.resolve()
    return blob.name if blob.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", blob.name) else None
