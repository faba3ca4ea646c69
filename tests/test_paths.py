import json
import os
import resource
import stat
from pathlib import Path

import pytest

from nanochat import paths


def test_base_dir_is_read_when_asked(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    assert paths.base_dir() == tmp_path
    monkeypatch.setenv("NANOCHAT_BASE_DIR", "~/elsewhere")
    assert paths.base_dir() == Path.home() / "elsewhere"
    monkeypatch.delenv("NANOCHAT_BASE_DIR")
    assert paths.base_dir() == Path.home() / ".cache/nanochat"
    assert paths.stage_dir("tok_train", "d8-v1.0") == paths.base_dir() / "tok_train" / "d8-v1.0"
    for tag in ("", "..", "a/b", "/tmp", ".hidden", "a\nb", "a b"):
        with pytest.raises(ValueError, match="cannot name a folder"):
            paths.stage_dir("tok_train", tag)


def test_folders_in_variables_hold_in_every_folder(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, folder in (("NANOCHAT_BASE_DIR", "out"), ("NANOCHAT_HUB", "~/hub")):
        monkeypatch.setenv(name, folder)
    paths.fix_folders()
    assert os.environ["NANOCHAT_BASE_DIR"] == str(tmp_path / "out")
    assert os.environ["NANOCHAT_HUB"] == str(Path.home() / "hub")
    monkeypatch.delenv("NANOCHAT_HUB")
    paths.fix_folders()
    assert "NANOCHAT_HUB" not in os.environ


def test_a_file_that_does_not_fit_is_named_with_its_bytes(tmp_path) -> None:
    """Not with its characters. A limit of this process stands for a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="3,000 bytes are needed") as caught:
            paths.write_text(tmp_path / "card.md", "모" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(tmp_path / "card.md")
    assert not os.listdir(tmp_path)


def test_text_and_json_are_written_whole_and_reach_the_disk_before_their_name(tmp_path, monkeypatch) -> None:
    path = tmp_path / "new" / "folder" / "card.json"
    paths.write_json(path, {"text": "모든 — \n", "n": 1})
    assert json.loads(path.read_bytes()) == {"text": "모든 — \n", "n": 1}
    paths.write_text(path, "a\nb\n")
    assert path.read_bytes() == b"a\nb\n"
    assert os.listdir(path.parent) == ["card.json"]
    acts = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (acts.append(stat.S_ISDIR(os.fstat(fd).st_mode)), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda *names: (acts.append("rename"), replace(*names)))
    paths.write_text(tmp_path / "card", "new")
    assert acts == [False, "rename", True]


def test_lines_of_json(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    paths.write_jsonl(path, [{"n": 1}, {"n": "둘"}])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b' \r\n{"n": 3}')
    assert list(paths.read_jsonl(path, lambda row: row["n"])) == [1, "둘", 3]
    path.write_bytes(rb'{"n": "\ud83d\ude00 \\ud83d"}')
    assert list(paths.read_jsonl(path, lambda row: row["n"])) == ["\N{GRINNING FACE} \\ud83d"]
    faults = {b"{": "Expecting", b'{"m": 1}': "'n'", b"5": "'int' object", b"\xff": "'utf-8' codec"}
    faults[b"[" * 100_000] = "maximum recursion depth"
    for half in (rb"\ud83d", rb"\uDE00", rb"\ude00\ud83d"):
        faults[b'{"n": [{"m": "%b"}]}' % half] = "it has half a character"
    for line, fault in faults.items():
        path.write_bytes(b'{"n": 1}\n\n' + line)
        rows = paths.read_jsonl(path, lambda row: row["n"])
        assert next(rows) == 1
        with pytest.raises(ValueError, match=f"{path}:3: {fault}"):
            next(rows)


def test_a_failed_write_leaves_the_old_file(monkeypatch, tmp_path) -> None:
    path = tmp_path / "card.json"
    paths.write_text(path, "old")
    with pytest.raises(TypeError):
        paths.write_json(path, object())

    def full(source, target):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        paths.write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["card.json"]
