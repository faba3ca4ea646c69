"""Files from a mirror, from the cache of the hub and from a hub on this machine."""

import hashlib
from pathlib import Path

import pytest
from bad_hub import COMMIT, BadHub
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError

from nanochat.data import hub
from nanochat.data.hub import HubError, HubFile

A, B, DEEP = (HubFile(path, "some/set") for path in ("a.bin", "b.bin", "deep/c.bin"))


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A hub with three files, and a cache of this test."""
    with BadHub({file.path: file.path.encode() * 1000 for file in (A, B, DEEP)}) as running:
        template = running.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("NANOCHAT_HUB", raising=False)
        yield running
        running.shutdown()


def refusal(*files: HubFile, offline: bool = False) -> str:
    with pytest.raises(HubError) as refused:
        hub.fetch(files, offline)
    return str(refused.value)


def write(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def test_a_mirror_is_read_in_place_and_nothing_else(tmp_path, monkeypatch):
    mirror = write(tmp_path / "mirror", "datasets/some/set/a.bin", "eval_bundle/core.yaml")
    monkeypatch.setenv("NANOCHAT_HUB", str(mirror))
    wanted = [HubFile("eval_bundle/core.yaml"), A]
    assert hub.fetch(wanted) == [mirror / str(file) for file in wanted]
    assert hub.is_here(wanted)
    assert not hub.is_here([*wanted, B])
    assert hub.sha256(mirror / str(A)) == hashlib.sha256((mirror / str(A)).read_bytes()).hexdigest()
    missing = "datasets/some/set/b.bin, other.txt and 1 more (not in the mirror that NANOCHAT_HUB names)"
    assert refusal(B, A, HubFile("other.txt"), HubFile("z")) == f"3 of 4 files are not available: {missing}"
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "typo"))
    assert "is no directory" in refusal(A)


def test_downloaded_files_are_then_in_the_cache(server):
    first = hub.fetch([A, DEEP, A])
    assert [path.read_bytes() for path in first] == [server.files[file.path] for file in (A, DEEP, A)]
    assert hub.sha256(first[0]) == first[0].resolve().name == hashlib.sha256(server.files["a.bin"]).hexdigest()
    requests = server.requests
    assert hub.fetch([DEEP, A], offline=True) == [first[1], first[0]]
    assert hub.fetch([HubFile("a.bin", "some/set", COMMIT)]) == [first[0]]
    missing = "1 of 2 files are not available: datasets/some/set/b.bin"
    assert refusal(A, B, offline=True) == f"{missing} (not on this machine, and downloads are switched off)"
    assert server.requests == requests  # the hub was not asked again


def test_without_a_network_the_reason_is_one_sentence(monkeypatch):
    def unreachable(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("An error happened while trying to locate the file.\nPlease check.")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    reason = "not on this machine, and the hub cannot be reached: connect to the network, or set NANOCHAT_HUB"
    assert refusal(B) == f"1 of 1 files are not available: datasets/some/set/b.bin ({reason})"


def test_failed_downloads_are_counted_and_the_others_kept(server):
    gone, local = HubFile("gone.bin", "some/set"), HubFile("a.txt", "local/text")
    sentence = refusal(gone, A, local)
    assert sentence.startswith("2 of 3 files are not available: datasets/some/set/gone.bin (404 Client Error")
    assert sentence.endswith("datasets/local/text/a.txt (not on the hub, set NANOCHAT_HUB to a mirror that has it)")
    assert "\n" not in sentence
    assert hub.is_here([A])


def test_a_world_of_an_earlier_run_stands_for_no_file(server, tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path / "base"))
    write(tmp_path / "base/world", "world.json", str(A), str(B))
    assert not hub.is_here([A])
    assert hub.fetch([B])[0].read_bytes() == server.files["b.bin"]
    assert "datasets/some/set/a.bin" in refusal(A, offline=True)
