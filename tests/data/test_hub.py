"""Files from a mirror, and from a hub that misbehaves: a real HTTP server, real processes, the real cache."""

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
# Fetches the files that its argument describes; `quick` shortens the waits between attempts.
FETCH = """
import json, sys
from nanochat.data import hub
hub.FIRST_WAIT, hub.SAY_EVERY = 0.05, 0.9
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
    """([(path, origin)] of what came, all that was printed)."""
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, out + errors
    *lines, last = out.splitlines()
    return [(Path(path), origin) for path, origin in json.loads(last)], "\n".join([*lines, errors])


def refusal(process: subprocess.Popen) -> str:
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 1, out + errors
    assert "HubError: " in errors, errors
    return errors.partition("HubError: ")[2]


def nothing_half(tmp_path: Path, server: BadHub) -> None:
    """Whatever has a final name in the cache is whole."""
    for file in (tmp_path / "cache").rglob("snapshots/*/**/*"):
        if file.is_file():
            assert (
                file.read_bytes() == server.files[file.relative_to(file.parents[-1]).as_posix().split(COMMIT + "/")[1]]
            )


# ---- a mirror ----


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    for name in ("datasets/some/set/a.bin", "eval_bundle/core.yaml", "words.txt"):
        (tmp_path / "mirror" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mirror" / name).write_bytes(content(name))
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "mirror"))
    return tmp_path / "mirror"


def test_a_mirror_is_read_where_it_lies(mirror):
    wanted = [HubFile("words.txt"), HubFile("a.bin", "some/set"), HubFile("eval_bundle/core.yaml")]
    found = hub.fetch(wanted)
    assert [place.path.relative_to(mirror).as_posix() for place in found] == [str(file) for file in wanted]
    assert {place.origin for place in found} == {"mirror"}
    assert hub.is_here(wanted)
    assert not hub.is_here([*wanted, HubFile("b.bin", "some/set")])


def test_what_a_mirror_lacks_is_listed_at_once(mirror):
    with pytest.raises(HubError) as refused:
        hub.fetch([HubFile("b.bin", "some/set"), HubFile("a.bin", "some/set"), HubFile("other.txt")])
    first, *lines = str(refused.value).splitlines()
    assert first == "2 of 3 files cannot be had:"
    assert [line.split(":")[0].strip() for line in lines] == ["datasets/some/set/b.bin", "other.txt"]
    assert "NANOCHAT_HUB" in lines[0]


def test_a_mirror_that_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "typo"))
    with pytest.raises(HubError, match="is no directory"):
        hub.fetch([HubFile("words.txt")])


def test_what_no_hub_has(monkeypatch):
    monkeypatch.delenv("NANOCHAT_HUB", raising=False)
    with pytest.raises(HubError, match=r"eval_bundle/core\.yaml: on no hub, set NANOCHAT_HUB"):
        hub.fetch([HubFile("eval_bundle/core.yaml")])
    with pytest.raises(HubError, match=r"datasets/local/text/a\.txt: on no hub"):
        hub.fetch([HubFile("a.txt", "local/text")])


def test_what_a_run_records(mirror):
    path = mirror / "datasets/some/set/a.bin"
    assert (hub.revision(path), hub.sha256(path)) == (None, hashlib.sha256(path.read_bytes()).hexdigest())


# ---- a hub ----


def test_files_come_and_are_then_in_the_cache(server, start, tmp_path):
    found, said = finish(start("a.bin", "deep/c.bin"))
    assert [path.read_bytes() for path, _ in found] == [server.files["a.bin"], server.files["deep/c.bin"]]
    assert [origin for _, origin in found] == ["hub", "hub"]
    assert "attempt" not in said
    path = found[0][0]
    assert (hub.revision(path), hub.sha256(path)) == (COMMIT, hashlib.sha256(server.files["a.bin"]).hexdigest())
    asked = len(server.seen)
    again, _ = finish(start("deep/c.bin", "a.bin"))
    assert again == [(found[1][0], "cache"), (found[0][0], "cache")]
    assert len(server.seen) == asked  # not a single question


# File → (what goes wrong with it, the line that tells so).
PASSING = {
    "ask.bin": ({"HEAD": ["500", "503"]}, "HTTP 503; attempt 2 of 5, again in 0\\.\\d s"),
    "busy.bin": ({"HEAD": ["429"]}, "HTTP 429; attempt 1 of 5, again in 2\\.\\d s"),
    "get.bin": ({"GET": ["500", "502"]}, "HTTP 502; attempt 2 of 5"),
    "reset.bin": ({"GET": ["reset", "reset"]}, "Error: .*reset.*; attempt 2 of 5"),
    "short.bin": ({"GET": ["short"]}, "OSError: .*size.*; attempt 1 of 5"),
    "wrong.bin": ({"GET": ["wrong"]}, "OSError: its SHA-256 is .* and not .*; attempt 1 of 5"),
    "all.bin": ({"GET": ["break", "500", "reset", "wrong"]}, "attempt 3 of 5"),
    "drip.bin": ({"GET": ["drip"]}, ""),
}


def test_what_passes_is_waited_for(server, start, tmp_path):
    for name, (faults, _) in PASSING.items():
        server.files[name] = content(name)
        for method, several in faults.items():
            server.faults[method, name] += several
    found, said = finish(start(*PASSING))
    for (path, _), (name, (_, line)) in zip(found, PASSING.items(), strict=True):
        assert path.read_bytes() == server.files[name]
        assert re.search(rf"^hub: datasets/some/set/{name}: .*{line}" if line else "", said, re.MULTILINE), said
    assert re.search(r"^hub: \d of 8 files so far$", said, re.MULTILINE)
    assert not any(server.faults.values())
    nothing_half(tmp_path, server)
    assert not list((tmp_path / "cache").rglob("*.incomplete"))


@pytest.mark.parametrize("fault", ["break", "silence"])
def test_a_long_body_that_broke_off_is_resumed(server, start, fault):
    """The library keeps what came in pieces of 10 MB."""
    server.files["long.bin"] = content("long.bin", 30_000_000)
    server.faults["GET", "long.bin"] += [fault]
    [(path, _)], _ = finish(start("long.bin"))
    assert path.read_bytes() == server.files["long.bin"]
    assert [range_ for method, _, range_ in server.seen if method == "GET"] == ["", "bytes=10485760-"]


def test_what_does_not_pass_ends_with_all_names(server, start, tmp_path):
    began = time.monotonic()
    server.faults["HEAD", "b.bin"] += ["401"]
    message = refusal(start("gone.bin", "a.bin", "b.bin", "lost.bin"))
    assert message.startswith("3 of 4 files cannot be had:")
    assert "datasets/some/set/gone.bin: HTTP 404, it does not exist\n" in message
    assert "datasets/some/set/lost.bin: HTTP 404, it does not exist\n" in message
    assert "datasets/some/set/b.bin: HTTP 401, it does not exist or needs HF_TOKEN\n" in message
    assert server.count("GET") == 0  # nothing is fetched in vain
    assert server.count("HEAD", "gone.bin") == 1
    assert time.monotonic() - began < 10


def test_patience_ends(server, start):
    server.faults["HEAD", "a.bin"] += ["500"] * 100
    assert "datasets/some/set/a.bin: HTTP 500, after 5 attempts" in refusal(start("a.bin"))
    assert server.count("HEAD", "a.bin") == 5


def test_a_server_that_is_not_there(start):
    message = refusal(start("a.bin", HF_ENDPOINT="http://127.0.0.1:9"))
    assert re.search(r"a\.bin: ConnectError: .*, after 5 attempts", message)


def test_a_hash_that_never_comes(server, start, tmp_path):
    server.faults["GET", "deep/c.bin"] += ["wrong"] * 5
    assert re.search(r"deep/c\.bin: .* its SHA-256 is .*, after 5 attempts", refusal(start("deep/c.bin")))
    assert not list((tmp_path / "cache").rglob("*c.bin"))
    nothing_half(tmp_path, server)


def test_one_failure_does_not_wait_for_a_long_download(server, start):
    server.drip_seconds = 30.0
    server.faults["GET", "a.bin"] += ["drip"]
    server.faults["GET", "b.bin"] += ["403"]
    began = time.monotonic()
    message = refusal(start("a.bin", "b.bin", HF_HUB_DOWNLOAD_TIMEOUT="30"))
    assert time.monotonic() - began < 10
    assert "a.bin: not fetched, as another failed\n" in message
    assert "b.bin: HTTP 403" in message


def test_two_processes_at_once(server, start, tmp_path):
    server.faults["GET", "a.bin"] += ["drip"]
    both = [start("a.bin"), start("a.bin")]
    places = {finish(process)[0][0][0] for process in both}
    assert len(places) == 1
    assert places.pop().read_bytes() == server.files["a.bin"]
    assert server.count("GET") == 1


def test_a_killed_download_leaves_nothing_under_the_final_name(server, start, tmp_path):
    server.drip_seconds = 30.0
    server.faults["GET", "a.bin"] += ["drip"]
    process = start("a.bin")
    while not server.count("GET"):
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not list((tmp_path / "cache").rglob("a.bin"))
    [(path, _)], _ = finish(start("a.bin"))
    assert path.read_bytes() == server.files["a.bin"]


def test_offline_lists_all_that_is_missing_and_asks_nobody(server, start):
    finish(start("a.bin"))
    asked = len(server.seen)
    for offline in ({"offline": True}, {"HF_HUB_OFFLINE": "1"}):
        message = refusal(start("deep/c.bin", "a.bin", "b.bin", **offline))
        assert message.startswith("2 of 3 files cannot be had:")
        assert "deep/c.bin: not in the cache" in message
        assert "b.bin: not in the cache" in message
    assert finish(start("a.bin", offline=True))[0][0][1] == "cache"
    assert len(server.seen) == asked


def test_the_embedded_world_stands_for_what_is_not_in_the_cache(server, start, tmp_path):
    finish(start("a.bin"))
    asked, world = len(server.seen), tmp_path / "base/world"
    for name in ("world.json", "datasets/some/set/a.bin", "datasets/some/set/deep/c.bin", "words.txt"):
        (world / name).parent.mkdir(parents=True, exist_ok=True)
        (world / name).write_text("{}")
    base = {"NANOCHAT_BASE_DIR": str(tmp_path / "base")}
    found, said = finish(start("a.bin", "deep/c.bin", {"path": "words.txt", "repo": ""}, **base))
    assert [origin for _, origin in found] == ["cache", "world", "world"]
    assert [path for path, _ in found[1:]] == [world / "datasets/some/set/deep/c.bin", world / "words.txt"]
    assert f"hub: 2 of 3 files are those of the embedded world in {world}" in said
    message = refusal(start("deep/c.bin", "b.bin", **base))
    assert "1 of 2 files cannot be had:\n  datasets/some/set/b.bin: not in the cache, nor in the embedded" in message
    assert f"remove {world} to have it fetched" in message
    assert len(server.seen) == asked
    (tmp_path / "mirror/datasets/some/set").mkdir(parents=True)
    assert "not in the mirror" in refusal(start("deep/c.bin", NANOCHAT_HUB=str(tmp_path / "mirror"), **base))
    (world / "world.json").unlink()
    assert finish(start("deep/c.bin", **base))[0][0][1] == "hub"


def test_a_pinned_revision_is_asked_for(server, start):
    finish(start({"path": "a.bin", "revision": COMMIT}))
    assert hub.revision(finish(start({"path": "a.bin", "revision": COMMIT}, offline=True))[0][0][0]) == COMMIT
