"""Hashes of inputs: a changed file is seen, an unchanged one is not read again."""

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from nanochat.data import hub
from nanochat.jobs import hashes
from nanochat.jobs.hashes import file_hashes
from nanochat.jobs.runner import Step, input_hashes
from nanochat.paths import read_json, write_text


@pytest.fixture
def read(base, monkeypatch):
    """The files that have been read so far."""
    read = []

    def sha256(path: Path) -> str:
        read.append(path.name)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr(hub, "sha256", sha256)
    # A file's ctime cannot be set: all that tests write counts as settled.
    monkeypatch.setattr(hashes, "SETTLED", -1)
    return read


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_an_unchanged_file_is_read_once_and_a_changed_one_again(base, read, tmp_path) -> None:
    one = tmp_path / "one"
    other = tmp_path / "other"
    one.write_text("first")
    other.write_text("other")
    for _ in range(3):
        assert file_hashes([one, other]) == [digest("first"), digest("other")]
    assert read == ["one", "other"]
    # The same size and mtime, as if copied over: the kernel's ctime differs.
    times = one.stat().st_atime_ns, one.stat().st_mtime_ns
    time.sleep(0.02)  # longer than a tick of the clock
    one.write_text("third")
    os.utime(one, ns=times)
    assert file_hashes([one, other]) == [digest("third"), digest("other")]
    other.write_text("longer than before")
    assert file_hashes([other]) == [digest("longer than before")]
    assert read == ["one", "other", "one", "other"]
    # What is behind a link counts, whatever the link's name is.
    link = tmp_path / "link"
    link.symlink_to(one)
    assert file_hashes([link]) == [digest("third")]
    link.unlink()
    link.symlink_to(other)
    assert file_hashes([link]) == [digest("longer than before")]
    assert len(read) == 4


def test_the_inputs_of_a_step_are_read_once(base, read, tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("rows")
    step = Step("train", ["tiny"], local=[str(path)])
    assert input_hashes(step) == input_hashes(step) == {str(path): digest("rows")}
    assert read == ["rows.jsonl"]


def test_a_file_written_a_moment_ago_is_not_remembered(base, read, monkeypatch, tmp_path) -> None:
    """A second write within the same tick of the clock would leave size and times as they are."""
    monkeypatch.setattr(hashes, "SETTLED", 60_000_000_000)
    path = tmp_path / "new"
    path.write_text("new")
    assert file_hashes([path]) == file_hashes([path]) == [digest("new")]
    assert read == ["new", "new"]
    assert not (base / "hashes.json").exists()


def test_a_file_that_changes_while_it_is_read_is_not_remembered(base, read, monkeypatch, tmp_path) -> None:
    path = tmp_path / "text"
    path.write_text("before")

    def sha256(path: Path) -> str:
        path.write_text("after it was read")
        return digest("before")

    monkeypatch.setattr(hub, "sha256", sha256)
    assert file_hashes([path]) == [digest("before")]
    assert not (base / "hashes.json").exists()


def test_writers_at_the_same_time_lose_nothing_and_a_damaged_memory_is_no_error(base, read, tmp_path) -> None:
    paths = [tmp_path / f"file-{number}" for number in range(16)]
    for path in paths:
        path.write_text(path.name)
    write_text(base / "hashes.json", '{"half a')
    threads = [threading.Thread(target=file_hashes, args=[[path]]) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = read_json(base / "hashes.json")
    assert {Path(path).name: entry[-1] for path, entry in known.items()} == {
        path.name: digest(path.name) for path in paths
    }
    # Files that are gone are forgotten when something new is remembered.
    paths[0].unlink()
    paths[1].write_text("changed")
    file_hashes(paths[1:])
    assert len(read_json(base / "hashes.json")) == 15
