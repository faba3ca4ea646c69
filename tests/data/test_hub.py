"""Files from a mirror, from the cache of the hub and from a hub on this machine."""

import errno
import hashlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from bad_hub import COMMIT, BadHub
from huggingface_hub import constants

from nanochat.data import hub
from nanochat.data.hub import HubError, HubFile
from nanochat.paths import write_text

A, B, DEEP = (HubFile(path, "some/set") for path in ("a.bin", "b.bin", "deep/c.bin"))


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A hub with three files, and a cache of this test."""
    with BadHub({file.path: file.path.encode() * 1000 for file in (A, B, DEEP)}) as running:
        template = running.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", running.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("NANOCHAT_HUB", raising=False)
        yield running


def refusal(*files: HubFile, known: str = ""):
    with pytest.raises(HubError) as refused:
        hub.fetch(files, known)
    return str(refused.value)


def write(root: Path, *names: str):
    for name in names:
        write_text(root / name, name)
    return root


def test_a_mirror_is_read_in_place(tmp_path, monkeypatch) -> None:
    mirror = write(tmp_path / "mirror", "datasets/some/set/a.bin", "eval_bundle/core.yaml")
    monkeypatch.setenv("NANOCHAT_HUB", str(mirror))
    wanted = [HubFile("eval_bundle/core.yaml"), A]
    assert hub.fetch(wanted) == [mirror / str(file) for file in wanted]
    assert hub.is_here(wanted)
    assert not hub.is_here([*wanted, B])
    assert hub.sha256(mirror / str(A)) == hashlib.sha256((mirror / str(A)).read_bytes()).hexdigest()
    reason = f"not in the mirror NANOCHAT_HUB={mirror}; downloads are switched off"
    assert refusal(B, A, DEEP) == f"2 of 3 files are not available: {B}, {DEEP} ({reason})"
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "typo"))
    assert "is not a directory" in refusal(A)


def test_downloaded_files_are_then_in_the_cache(server) -> None:
    first = hub.fetch([A, DEEP, A])
    assert [path.read_bytes() for path in first] == [server.files[file.path] for file in (A, DEEP, A)]
    assert hub.sha256(first[0]) == first[0].resolve().name == hashlib.sha256(server.files["a.bin"]).hexdigest()
    requests = server.requests
    assert hub.fetch([DEEP, A], refused="not now") == [first[1], first[0]]
    assert hub.fetch([HubFile("a.bin", "some/set", COMMIT)]) == [first[0]]
    missing = "1 of 2 files are not available: datasets/some/set/b.bin"
    assert refusal(A, B, known="not now") == f"{missing} (not on this machine; not now)"
    assert server.requests == requests  # the hub was not asked again


def test_the_library_gets_its_client_once(server, monkeypatch) -> None:
    """Each time it closes the one that it has, and with it the connections of downloads: "Bad file descriptor"."""
    hub._distrust_answers.cache_clear()
    threads = []

    def slow(factory):
        threads.append(threading.current_thread())
        time.sleep(0.2)

    monkeypatch.setattr(huggingface_hub, "set_client_factory", slow)
    assert len(hub.fetch([A, DEEP])) == 2
    assert threads == [threading.main_thread()]
    hub._distrust_answers.cache_clear()


def test_an_error_of_the_system_is_tried_once_more(server, monkeypatch) -> None:
    download = huggingface_hub.hf_hub_download
    failures = [OSError(errno.ESTALE, "Stale file handle")]

    def unlucky(*arguments, **options):
        if failures:
            raise failures.pop()
        return download(*arguments, **options)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unlucky)
    [path] = hub.fetch([A])
    assert path.read_bytes() == server.files["a.bin"]
    failures += [OSError(errno.ENOSPC, "No space left on device")] * 2
    assert "No space left on device" in refusal(B)
    assert len(failures) == 1  # more of it would not help


def test_without_a_network_the_hub_is_asked_once(server, monkeypatch) -> None:
    asked = []

    def head(address: str, timeout: float) -> None:
        asked.append(address)
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.get_session", lambda: SimpleNamespace(head=head))
    monkeypatch.setattr(constants, "ENDPOINT", "http://far.example")
    reason = "http://far.example cannot be reached: connect to the network, or set NANOCHAT_HUB"
    for name in ("some/set", "other/set"):
        sentence = refusal(*(HubFile(f"{number}.bin", name) for number in range(30)))
        assert sentence.startswith("30 of 30 files are not available: datasets/")
        assert sentence.endswith(f"/6.bin, … (not on this machine; {reason})")
    assert asked == ["http://far.example"]


def test_the_hub_has_what_a_mirror_lacks_and_failures_are_counted(server, tmp_path, monkeypatch) -> None:
    mirror = write(tmp_path / "mirror", str(A))
    monkeypatch.setenv("NANOCHAT_HUB", str(mirror))
    gone, local = HubFile("gone.bin", "some/set"), HubFile("a.txt", "local/text")
    sentence, place = refusal(gone, A, B, local), f"not in the mirror NANOCHAT_HUB={mirror}"
    assert sentence.startswith("2 of 4 files are not available: datasets/some/set/gone.bin (")
    assert f"gone.bin ({place}; 404 Client Error" in sentence
    assert sentence.endswith(f"({place}; not on the hub, set NANOCHAT_HUB to a mirror)")
    assert "\n" not in sentence
    found = hub.fetch([A, B], refused="not now")
    assert [path.read_bytes() for path in found] == [str(A).encode(), server.files["b.bin"]]


def test_the_files_of_a_set_are_those_of_the_mirror_or_those_that_the_hub_lists(server, tmp_path, monkeypatch) -> None:
    assert hub.repo_files("some/set", [".bin"]) == [A, B, DEEP]
    assert hub.repo_files("some/set", ["c.bin"]) == [DEEP]
    with pytest.raises(HubError, match="the data set other/set: 404 Client Error"):
        hub.repo_files("other/set", [".bin"])
    with pytest.raises(HubError, match="the data set no name: Repo id must"):
        hub.repo_files("no name", [".bin"])
    monkeypatch.setenv("NANOCHAT_HUB", str(write(tmp_path / "mirror", f"{DEEP}", "datasets/some/set/read.me")))
    assert hub.repo_files("some/set", [".bin"]) == [DEEP]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="the data set other/set is not on this machine; downloads are switched off"):
        hub.repo_files("other/set", [".bin"])
    # A gated set names its conditions and the token.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("NANOCHAT_HUB")
    server.gated = True
    page = "accept the conditions on huggingface.co/datasets/some/set and put a token of the account into HF_TOKEN"
    assert refusal(A) == (f"1 of 1 files are not available: {A} (not on this machine; {page}, or run `hf auth login`)")


def test_a_revision_is_listed_and_without_a_network_the_cache_is(server, monkeypatch) -> None:
    pinned = HubFile("a.bin", "some/set", COMMIT)
    assert hub.repo_files("some/set", ["a.bin"], revision=COMMIT) == [pinned]
    assert hub.repo_files("some/set", ["a.bin"]) == [A]
    assert server.listed == [COMMIT, "main"]
    places = hub.fetch([A, DEEP])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.repo_files("some/set", [".bin"]) == [A, DEEP]
    assert hub.repo_files("some/set", ["a.bin"], revision=COMMIT) == [pinned]
    assert hub.fetch(hub.repo_files("some/set", [".bin"])) == places
    for repo, revision in (("some/set", "9" * 40), ("other/set", None)):
        with pytest.raises(HubError, match=f"the data set {repo} is not on this machine; downloads are switched off"):
            hub.repo_files(repo, [".bin"], revision=revision)


def test_a_listing_that_breaks_off_is_one_sentence(server, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    server.hangs_up = True
    with pytest.raises(HubError, match="the data set some/set: Server disconnected") as refused:
        hub.repo_files("some/set", [".bin"])
    assert "\n" not in str(refused.value)


def test_ctrl_c_begins_no_other_download(server, monkeypatch) -> None:
    begun = []
    waiting, stopping = threading.Event(), threading.Event()
    show_progress = hub._show_progress

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            stopping.set()
            super().shutdown(wait=wait)

    def download(repo: str, path: str, **options: Any) -> str:
        begun.append(path)
        if path == f"{hub.PARALLEL_DOWNLOADS - 1}.bin":
            assert waiting.wait(60)
            os.kill(os.getpid(), signal.SIGINT)
        assert stopping.wait(60)
        raise OSError("the end of the test")

    def show(downloads: Sequence[Future[Path]]) -> None:
        waiting.set()  # all are submitted
        show_progress(downloads)

    monkeypatch.setattr(hub, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(hub, "_show_progress", show)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(KeyboardInterrupt):
        hub.fetch([HubFile(f"{number}.bin", "some/set") for number in range(40)])
    assert len(begun) == hub.PARALLEL_DOWNLOADS


def test_ctrl_c_ends_a_download_that_has_begun(server, monkeypatch, tmp_path) -> None:
    stopping = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            stopping.set()
            super().shutdown(wait=wait, cancel_futures=cancel_futures)

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping.wait(60)

    monkeypatch.setattr(hub, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)
    server.halfway = interrupt
    with pytest.raises(KeyboardInterrupt):
        hub.fetch([A])
    assert not [path for path in (tmp_path / "cache").glob("*/blobs/*") if path.is_file()]
    server.halfway = None
    assert [path.read_bytes() for path in hub.fetch([A])] == [server.files["a.bin"]]


@pytest.mark.skipif(not find_spec("hf_xet"), reason="a package that does not exist for every system")
def test_ctrl_c_ends_a_download_by_xet(server, tmp_path) -> None:
    """Which does not see an exception of a progress bar: its storage does not answer here, and is not waited for."""
    ended = threading.Event()
    waits = []

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        waits.append(ended.wait(20))

    server.has_xet = True
    server.halfway = interrupt
    with pytest.raises(KeyboardInterrupt):
        hub.fetch([A])
    ended.set()
    while not waits:  # at most the 20 seconds
        time.sleep(0.01)
    assert waits[0]
    assert not [path for path in (tmp_path / "cache").glob("*/blobs/*") if path.is_file()]


@pytest.mark.parametrize("etag", ["../../../../planted", "0" * 64, "0" * 40])  # the last are a SHA-256, and git's
def test_a_server_that_lies_leaves_no_file(etag, server, tmp_path) -> None:
    server.etag = etag
    lie = "a header etag that is a path" if "/" in etag else "the server sent other content than it announced"
    with pytest.raises(HubError, match=lie):
        hub.fetch([A])
    assert not list(tmp_path.rglob("planted*"))
    content = server.files[A.path]
    server.etag = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() if len(etag) == 40 else ""
    assert hub.fetch([A])[0].read_bytes() == server.files[A.path]


@pytest.mark.parametrize("asked", ["9" * 20, "9" * 5000, "3000"])
def test_a_server_cannot_ask_to_wait_for_ever(asked, server, monkeypatch) -> None:
    waits = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", waits.append)
    server.retries = [asked] * 4
    assert hub.fetch([A])
    assert set(waits) == {601}  # the library adds a second
    # A name cannot leave the folder.
    for file in [
        ("../secret", "some/set"),
        ("a/../../secret", ""),
        ("a", "../.."),
        ("/etc/hosts", ""),
        ("/etc/hosts", "some/set"),
        ("a", "/etc"),
        ("//etc/hosts", ""),
        ("a", "//etc"),
    ]:
        with pytest.raises(HubError, match="outside of the data set's folder"):
            HubFile(*file)
