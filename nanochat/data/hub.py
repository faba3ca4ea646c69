"""Files of data sets and models: from a mirror directory, or through `huggingface_hub`.

The mirror is the directory in NANOCHAT_HUB; it may have some of the files. For the others `huggingface_hub` supplies
the cache, locks, retries, resumed downloads, HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE. A cached file is used
without asking the hub again; pin a revision to be sure about the version. `nanochat.data.bundle` has the files in
eval_bundle/.
"""

import errno
import functools
import os
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from threading import Event, get_ident
from typing import Any, Literal

from nanochat.errors import UserError
from nanochat.log import Progress
from nanochat.paths import base_dir, read_sha256

PARALLEL_DOWNLOADS = 8
SERVER_TIMEOUT = 3.0  # seconds to wait before a server counts as unreachable
SHOWN = 200  # characters of the names in an error, for each reason
MAX_WAIT = "600"  # seconds, if a server asks to wait before the next attempt

Kind = Literal["dataset", "model"]  # of a repository on the hub
SPOKEN: dict[Kind, str] = {"dataset": "data set", "model": "model"}


class HubError(UserError):
    """Files cannot be found or downloaded; the message is one sentence with the reasons."""


@dataclass(frozen=True)
class HubFile:
    """A file `path` in the data set or model `repo` ("owner/name"); without a repo, in the root of a mirror."""

    path: str
    repo: str = ""
    revision: str | None = None
    kind: Kind = "dataset"  # of the repo

    def __post_init__(self) -> None:
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in (self.path, self.repo)):
            raise HubError(f"{self} would lie outside of the {SPOKEN[self.kind]}'s folder")

    def __str__(self) -> str:
        return f"{self.kind}s/{self.repo}/{self.path}" if self.repo else self.path

    @property
    def on_hub(self) -> bool:
        """False for files found only in a mirror."""
        return bool(self.repo) and not self.repo.startswith("local/")


def fetch(files: Sequence[HubFile], refused: str = "") -> list[Path]:
    """Return all files in order, missing ones downloaded. HubError has the reason for each failure.

    refused: the reason why missing files are not downloaded from the hub, if the caller has one.
    """
    found = {file: find(file) for file in files}
    # Before the threads start, so that the hub is asked once.
    reasons = {
        file: refused or (refusal("") if file.on_hub else "not on the hub, set NANOCHAT_HUB to a mirror")
        for file, path in found.items()
        if path is None
    }
    places = {file: path for file, path in found.items() if path is not None}
    failures: dict[str, list[str]] = {}  # reason -> files
    if not all(reasons.values()):
        _distrust_answers()
    stopped = Event()
    pool = ThreadPoolExecutor(PARALLEL_DOWNLOADS)
    try:
        # All are tried: a file downloaded now is in the cache when the command is run again.
        downloads = {file: pool.submit(_download, file, reason, stopped) for file, reason in reasons.items()}
        _show_progress(list(downloads.values()))
    except KeyboardInterrupt:
        # Those that have begun end, with the next piece by HTTP, and at once by Xet.
        from huggingface_hub.utils._xet import abort_xet_session

        stopped.set()
        abort_xet_session()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    for file, download in downloads.items():
        try:
            places[file] = download.result()
        # From httpx, xet or the system: the library has no common base class.
        except Exception as error:
            failures.setdefault(str(error).partition("\n")[0], []).append(str(file))
    if failures:
        count = sum(map(len, failures.values()))
        place = f"not in the mirror NANOCHAT_HUB={mirror()}" if mirror() else "not on this machine"
        parts = []
        for reason, missing in failures.items():
            names = shorten(", ".join(missing), SHOWN, placeholder=" …")
            parts.append(f"{names} ({place}; {reason})")
        raise HubError(f"{count} of {len(found)} files are not available: {'; '.join(parts)}")
    return [places[file] for file in files]


def _show_progress(downloads: Sequence[Future[Path]]) -> None:
    """Wait for downloads, and print now and then how far they are; on stderr, as stdout may be a table or JSON."""
    progress = Progress(sys.stderr)
    start = time.monotonic()
    received = 0
    for number, download in enumerate(as_completed(downloads), 1):
        if download.exception() is None:
            received += download.result().stat().st_size
        rate = received / 1e6 / max(time.monotonic() - start, 1e-3)
        text = f"download: {number:,} of {len(downloads):,} files | {received / 1e9:.2f} GB | {rate:.0f} MB/s"
        progress.update(text, number / len(downloads))


def mirrored(repo: str, kind: Kind) -> Path | None:
    """Return the folder of a repository in the mirror, or without a mirror in the base folder; None if it has none."""
    folder = (mirror() or base_dir()) / f"{kind}s" / repo
    return folder if folder.is_dir() else None


def repo_files(
    repo: str, suffixes: Sequence[str], kind: Kind = "dataset", revision: str | None = None
) -> list[HubFile]:
    """Return the files of a repository with one of the suffixes.

    They are those in a mirror, or else all that the hub lists, or, where it cannot be asked, those in its cache.
    """
    copy = mirrored(repo, kind)
    names = _names_below(copy) if copy else []
    if not names:
        from huggingface_hub import HfApi, errors, snapshot_download

        reason = refusal("")
        try:
            if reason:
                names = _names_below(
                    Path(snapshot_download(repo, repo_type=kind, revision=revision, local_files_only=True))
                )
            else:
                _distrust_answers()
                names = HfApi().list_repo_files(repo, repo_type=kind, revision=revision)
        except errors.LocalEntryNotFoundError:
            raise HubError(f"the {SPOKEN[kind]} {repo} is not on this machine; {reason}") from None
        # Of the library, from httpx or the system, as in `fetch`.
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise HubError(f"the {SPOKEN[kind]} {repo}: {reason}") from None
    return [HubFile(name, repo, revision, kind) for name in sorted(names) if name.endswith(tuple(suffixes))]


def _names_below(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def refusal(server: str) -> str:
    """Return the reason to download nothing from a server (empty: the hub); empty if there is none."""
    from huggingface_hub import constants  # reads HF_ENDPOINT and HF_HUB_OFFLINE when it is imported

    server = server or constants.ENDPOINT
    if constants.HF_HUB_OFFLINE:
        return "downloads are switched off"
    if not is_reachable(server):
        return f"{server} cannot be reached: connect to the network, or set NANOCHAT_HUB"
    return ""


@functools.lru_cache
def is_reachable(server: str) -> bool:
    """Return True if a server answers. Asked once per process: without a network every question takes seconds."""
    from huggingface_hub import get_session

    try:
        get_session().head(server, timeout=SERVER_TIMEOUT)
    # The exceptions depend on the library's version.
    except Exception as error:
        return isinstance(error, HubError)  # ours: there was an answer
    # Even if the server refuses, the network works.
    return True


def is_here(files: Sequence[HubFile]) -> bool:
    """Return True if all files are on this machine."""
    return all(find(file) for file in files)


def sha256(path: Path) -> str:
    """Return the hash of a file; for a large file in the cache of the hub it is the name, and nothing is read."""
    # snapshots/COMMIT/NAME is a link to blobs/HASH; small files have a shorter hash from git.
    blob = path.resolve()
    if blob.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", blob.name):
        return blob.name
    return read_sha256(path)


def mirror() -> Path | None:
    """Return the directory in NANOCHAT_HUB, if that is set."""
    # Read at every call: tests and notebooks change it.
    name = os.environ.get("NANOCHAT_HUB")
    if not name:
        return None
    path = Path(name).expanduser()
    if not path.is_dir():
        raise HubError(f"NANOCHAT_HUB={name} is not a directory, name a mirror or unset it")
    return path


def find(file: HubFile) -> Path | None:
    """Return a file on this machine: in the mirror, in the base folder (the bundle), or in the cache; else None."""
    for folder in filter(None, (mirror(), base_dir())):
        if (folder / str(file)).is_file():
            return folder / str(file)
    if not file.on_hub:
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(file.repo, file.path, revision=file.revision, repo_type=file.kind)
    # Else None, or a marker for a file known to be missing.
    return Path(cached) if isinstance(cached, str) else None


def _download(file: HubFile, refused: str, stopped: Event) -> Path:
    if refused:
        raise HubError(refused)

    from huggingface_hub import errors, hf_hub_download
    from huggingface_hub.utils import disable_progress_bars, tqdm
    from huggingface_hub.utils.sha import git_hash

    own = get_ident()

    def end_if_stopped() -> None:
        if stopped.is_set() and get_ident() == own:  # Xet shows progress in a thread of its own
            raise HubError("stopped")  # the library removes what it has of the file

    class Bar(tqdm):
        """The library's, which begins a file and is called after each piece, 10 MB by HTTP: a place to end it."""

        monitor_interval = 0  # else tqdm keeps a thread for each class

        def __new__(cls, *_: Any, **__: Any) -> "Bar":
            end_if_stopped()
            return super().__new__(cls)

        def update(self, n: float | None = 1) -> bool | None:
            end_if_stopped()
            return super().update(n)

    download = functools.partial(
        hf_hub_download, file.repo, file.path, repo_type=file.kind, revision=file.revision, tqdm_class=Bar
    )
    if not sys.stderr.isatty():
        disable_progress_bars()  # eight at a time in a file are no lines; _show_progress prints some
    try:
        try:
            path = download()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):  # None: an answer of the hub
                raise
            # Another process or machine cleans the cache. What came is kept.
            path = download()
    except errors.GatedRepoError:
        folder = "datasets/" if file.kind == "dataset" else ""
        page = f"accept the conditions on huggingface.co/{folder}{file.repo}"
        raise HubError(f"{page} and put a token of the account into HF_TOKEN, or run `hf auth login`") from None
    blob = Path(path).resolve()  # where there are no links, the file itself
    # Large files are named by their SHA-256, small ones by git's hash: both are hashes of the content.
    digest = read_sha256(blob) if len(blob.name) == 64 else git_hash(blob.read_bytes())
    if blob.parent.name == "blobs" and digest != blob.name:
        blob.unlink()
        raise HubError("the server sent other content than it announced, and it was removed: try again")
    return Path(path)


@functools.lru_cache
def _distrust_answers() -> None:
    """Check the headers that huggingface_hub would obey: names for its files, and the time until a retry.

    Before threads begin: the library closes the connections that it has.
    """
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    def check(response: Any) -> None:  # httpx2's
        headers = response.headers
        for name in ("etag", "x-linked-etag", "x-repo-commit"):
            if "/" in headers.get(name, "").lstrip("W/").strip('"'):  # as the library reads it
                raise HubError(f"{response.url.host} sent a header {name} that is a path")
        for name in ("retry-after", "ratelimit"):
            if name in headers:
                headers[name] = re.sub(r"\b([6-9]\d\d|\d{4,})\b", MAX_WAIT, headers[name])

    def client() -> Any:
        made = default_client_factory()
        made.event_hooks["response"].append(check)
        return made

    set_client_factory(client)
