"""The public CORE bundle, from a server on this machine: fetched once, checked, and resumed."""

import io
import zipfile

import pytest
from bad_hub import BadHub
from huggingface_hub import constants

from nanochat.data import bundle
from nanochat.data.bundle import fetch_bundle
from nanochat.paths import text_sha256, write_text

FILES = {"core.yaml": "icl_tasks: []\n", "eval_meta_data.csv": "Eval Task\n", "eval_data/some/a.jsonl": "{}\n" * 1000}
NAMES = list(FILES)


def archive(files: dict[str, str]):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as members:
        for name, text in files.items():
            members.writestr(f"eval_bundle/{name}", text)
    return content.getvalue()


@pytest.fixture
def server(base, monkeypatch):
    with BadHub({"/bundle.zip": archive(FILES)}) as running:
        monkeypatch.setattr(bundle, "URL", f"{running.address}/bundle.zip")
        monkeypatch.setattr(bundle, "FILES", f"{text_sha256(FILES['core.yaml'])}  core.yaml\n")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield running


def test_the_archive_is_fetched_once_for_what_a_mirror_lacks(server, base, tmp_path, monkeypatch) -> None:
    own = tmp_path / "mirror/eval_bundle/core.yaml"
    write_text(own, "mine")
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "mirror"))
    assert fetch_bundle(["core.yaml"]) == [own]
    assert server.requests == 0
    server.files["/bundle.zip"] = archive(FILES | {"../../evil.txt": ""})
    paths = fetch_bundle(NAMES)
    requests = server.requests
    assert paths == fetch_bundle(NAMES) == [own, *(base / "eval_bundle" / name for name in NAMES[1:])]
    assert server.requests == requests
    assert paths[2].read_text() == FILES[NAMES[2]]
    with pytest.raises(ValueError, match=r"1 of 2 .*: eval_bundle/gone \(not in the .*/bundle.zip has no such file"):
        fetch_bundle(["core.yaml", "gone"])
    assert server.starts == [0]
    assert not list(tmp_path.rglob("evil.txt"))
    assert sorted(path.name for path in base.iterdir()) == ["eval_bundle", "eval_bundle.lock"]


def test_other_content_is_refused(server, base) -> None:
    server.files["/bundle.zip"] = archive(FILES | {"core.yaml": "other"})
    with pytest.raises(ValueError, match=r"/bundle.zip: core.yaml is not the known file, set NANOCHAT_HUB"):
        fetch_bundle(NAMES)
    assert [path.name for path in base.iterdir()] == ["eval_bundle.lock"]
    (base / "eval_bundle.zip").write_bytes(archive(FILES))  # left by a process that died before it unpacked
    fetch_bundle(NAMES)
    assert server.starts == [0]


def test_a_broken_download_leaves_no_folder_and_is_resumed(server, base, monkeypatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)
    server.cuts = [1000, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match=r"1 of 1 files .* \(not on this machine; .*/bundle.zip: "):
        fetch_bundle(NAMES[:1])
    assert not (base / "eval_bundle").exists()
    server.cuts = [500]
    assert fetch_bundle(NAMES)[2].read_text() == FILES[NAMES[2]]
    assert server.starts == [0, 1000, 1000, 1000, 1000, 1000, 1000, 1500]
