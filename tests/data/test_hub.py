"""Files from a mirror, and from a hub with faults: a real HTTP server, real processes, the real cache."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bad_hub import COMMIT, BadHub

from nanochat.data import hub
from nanochat.data.hub import HubError, HubFile

ROOT = Path(__file__).resolve().parents[2]
# Fetches the files that its argument describes.
FETCH = """
import json, sys
from nanochat.data import hub
try:
    files = [hub.HubFile(**about) for about in json.loads(sys.argv[1])]
    print(json.dumps([(str(found.path), found.origin) for found in hub.fetch(files, offline="offline" in sys.argv)]))
except hub.HubError as error:
    raise SystemExit(f"HubError: {error}")
"""


def content(name: str, size: int = 300_000) -> bytes:
    return (hashlib.sha256(name.encode()).digest() * (size // 32 + 1))[:size]


@pytest.fixture
def server():
    with BadHub({name: content(name) for name in ("a.bin", "b.bin", "deep/c.bin")}) as running:
        yield running
        running.shutdown()


@pytest.fixture
def start(server, tmp_path):
    """Start a process that fetches files of the server into a cache of this test."""

    def begin(*files: str | dict, offline: bool = False, **variables: str) -> subprocess.Popen:
        wanted = [{"repo": "some/set", **({"path": file} if isinstance(file, str) else file)} for file in files]
        ours = ("NANOCHAT_", "HF_", "RANK", "WORLD_SIZE", "TORCHELASTIC")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env |= {"HF_HOME": str(tmp_path / "cache"), "HF_ENDPOINT": server.address, "NO_PROXY": "127.0.0.1"}
        env |= {"HF_HUB_DOWNLOAD_TIMEOUT": "1", "HF_HUB_ETAG_TIMEOUT": "2", **variables}
        command = [sys.executable, "-c", FETCH, json.dumps(wanted), *(["offline"] if offline else [])]
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return begin


def finish(process: subprocess.Popen) -> tuple[list[tuple[Path, str]], str]:
    """([(path, origin)] of the files, everything that was printed)."""
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, out + errors
    *lines, last = out.splitlines()
    return [(Path(path), origin) for path, origin in json.loads(last)], "\n".join([*lines, errors])


def refusal(process: subprocess.Popen) -> str:
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 1, out + errors
    assert "HubError: " in errors, errors
    return errors.partition("HubError: ")[2]


# ---- a mirror ----


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    for name in ("datasets/some/set/a.bin", "eval_bundle/core.yaml", "words.txt"):
        (tmp_path / "mirror" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mirror" / name).write_bytes(content(name))
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "mirror"))
    return tmp_path / "mirror"


def test_a_mirror_is_read_in_place(mirror):
    wanted = [HubFile("words.txt"), HubFile("a.bin", "some/set"), HubFile("eval_bundle/core.yaml")]
    found = hub.fetch(wanted)
    assert [place.path.relative_to(mirror).as_posix() for place in found] == [str(file) for file in wanted]
    assert {place.origin for place in found} == {"mirror"}
    assert hub.is_here(wanted)
    assert not hub.is_here([*wanted, HubFile("b.bin", "some/set")])
    path = found[1].path
    assert (hub.revision(path), hub.sha256(path)) == (None, hashlib.sha256(path.read_bytes()).hexdigest())


def test_files_that_no_place_has(mirror, monkeypatch, tmp_path):
    with pytest.raises(HubError) as refused:
        hub.fetch([HubFile("b.bin", "some/set"), HubFile("a.bin", "some/set"), HubFile("other.txt")])
    first, *lines = str(refused.value).splitlines()
    assert first == "2 of 3 files are not available:"
    assert [line.split(":")[0].strip() for line in lines] == ["datasets/some/set/b.bin", "other.txt"]
    assert "NANOCHAT_HUB" in lines[0]
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "typo"))
    with pytest.raises(HubError, match="is no directory"):
        hub.fetch([HubFile("words.txt")])
    monkeypatch.delenv("NANOCHAT_HUB")
    for file in (HubFile("eval_bundle/core.yaml"), HubFile("a.txt", "local/text")):
        with pytest.raises(HubError, match=rf"{file}: not on the hub, set NANOCHAT_HUB"):
            hub.fetch([file])


# ---- a hub ----


def test_downloaded_files_are_then_in_the_cache(server, start):
    found, _ = finish(start("a.bin", "deep/c.bin"))
    assert [path.read_bytes() for path, _ in found] == [server.files["a.bin"], server.files["deep/c.bin"]]
    assert [origin for _, origin in found] == ["hub", "hub"]
    path = found[0][0]
    assert (hub.revision(path), hub.sha256(path)) == (COMMIT, hashlib.sha256(server.files["a.bin"]).hexdigest())
    requests = len(server.seen)
    again, _ = finish(start("deep/c.bin", "a.bin"))
    assert again == [(found[1][0], "cache"), (found[0][0], "cache")]
    assert finish(start("a.bin", offline=True))[0][0][1] == "cache"
    for offline in ({"offline": True}, {"HF_HUB_OFFLINE": "1"}):
        message = refusal(start("gone.bin", "a.bin", "b.bin", **offline))
        assert message.startswith("2 of 3 files are not available:")
        assert "gone.bin: not in the cache" in message
        assert "b.bin: not in the cache" in message
    assert len(server.seen) == requests  # the hub was not asked again
    finish(start({"path": "a.bin", "revision": COMMIT}))
    assert hub.revision(finish(start({"path": "a.bin", "revision": COMMIT}, offline=True))[0][0][0]) == COMMIT


def test_the_library_retries_and_resumes(server, start, tmp_path):
    faults = {
        "ask.bin": ("HEAD", ["500", "503"]),
        "busy.bin": ("GET", ["429"]),
        "drip.bin": ("GET", ["drip"]),
        "break.bin": ("GET", ["break"]),
        "silence.bin": ("GET", ["silence"]),
    }
    for name, (method, several) in faults.items():
        # The library keeps a body in pieces of 10 MB.
        server.files[name] = content(name, 30_000_000 if name in ("break.bin", "silence.bin") else 300_000)
        server.faults[method, name] += several
    found, _ = finish(start(*faults))
    for path, _ in found:
        assert path.read_bytes() == server.files[path.name]
    assert not any(server.faults.values())
    ranges = [asked for method, path, asked in server.seen if (method, path) == ("GET", "break.bin")]
    assert ranges == ["", "bytes=10485760-"]
    assert not list((tmp_path / "cache").rglob("*.incomplete"))


def test_failed_downloads_are_listed_and_the_others_kept(server, start, tmp_path):
    server.faults["HEAD", "b.bin"] += ["401"]
    server.faults["GET", "deep/c.bin"] += ["wrong"]
    server.files["short.bin"] = content("short.bin")
    server.faults["GET", "short.bin"] += ["short"]
    message = refusal(start("gone.bin", "a.bin", "b.bin", "deep/c.bin", "short.bin"))
    assert message.startswith("4 of 5 files are not available:")
    assert "datasets/some/set/gone.bin: HTTP 404: it does not exist\n" in message
    assert "datasets/some/set/b.bin: HTTP 401: it does not exist or needs HF_TOKEN\n" in message
    assert re.search(r"deep/c\.bin: the content does not have the SHA-256 [0-9a-f]{12}… from the hub", message)
    assert re.search(r"short\.bin: OSError: .*size", message)
    # Whatever has its final name in the cache is whole.
    kept = [file for file in (tmp_path / "cache").rglob("snapshots/*/**/*") if file.is_file()]
    assert [(file.name, file.read_bytes()) for file in kept] == [("a.bin", server.files["a.bin"])]
    assert [origin for _, origin in finish(start("a.bin", "deep/c.bin", "short.bin"))[0]] == ["cache", "hub", "hub"]


def test_two_processes_at_once_and_a_killed_one(server, start, tmp_path):
    server.faults["GET", "a.bin"] += ["drip"]
    both = [start("a.bin"), start("a.bin")]
    places = {finish(process)[0][0][0] for process in both}
    assert len(places) == 1
    assert places.pop().read_bytes() == server.files["a.bin"]
    assert server.count("GET") == 1
    server.drip_seconds = 30.0
    server.faults["GET", "b.bin"] += ["drip"]
    killed = start("b.bin")
    while not server.count("GET", "b.bin"):
        assert killed.poll() is None
        time.sleep(0.05)
    time.sleep(0.3)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert not list((tmp_path / "cache").rglob("b.bin"))
    [(path, _)], _ = finish(start("b.bin"))
    assert path.read_bytes() == server.files["b.bin"]


def test_the_embedded_world_stands_for_files_that_are_not_in_the_cache(server, start, tmp_path):
    finish(start("a.bin"))
    requests, world = len(server.seen), tmp_path / "base/world"
    for name in ("world.json", "datasets/some/set/a.bin", "datasets/some/set/deep/c.bin", "words.txt"):
        (world / name).parent.mkdir(parents=True, exist_ok=True)
        (world / name).write_text("{}")
    base = {"NANOCHAT_BASE_DIR": str(tmp_path / "base")}
    found, output = finish(start("a.bin", "deep/c.bin", {"path": "words.txt", "repo": ""}, **base))
    assert [origin for _, origin in found] == ["cache", "world", "world"]
    assert [path for path, _ in found[1:]] == [world / "datasets/some/set/deep/c.bin", world / "words.txt"]
    assert f"hub: 2 of 3 files are from the embedded world in {world}" in output
    message = refusal(start("deep/c.bin", "b.bin", **base))
    assert "1 of 2 files are not available:\n  datasets/some/set/b.bin: not in the cache, nor in the emb" in message
    assert f"remove {world} to download it" in message
    assert len(server.seen) == requests
    (tmp_path / "mirror/datasets/some/set").mkdir(parents=True)
    assert "not in the mirror" in refusal(start("deep/c.bin", NANOCHAT_HUB=str(tmp_path / "mirror"), **base))
    assert finish(start("deep/c.bin", NANOCHAT_WORLD="off", **base))[0][0][1] == "hub"
