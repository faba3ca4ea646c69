"""A run of one side in the sandbox: what comes out, and what a program that is no training can send."""

import os
import struct
import time
from pathlib import Path

import pytest

from nanochat.trial import arena
from nanochat.trial.arena import HEAD, Failure
from nanochat.trial.scorer import Refused


class Pipe:
    """A pipe with some bytes in it, whose other end has ended."""

    def __init__(self, data: bytes, seconds: float = 5.0) -> None:
        self.reads, writes = os.pipe()
        os.write(writes, data)
        os.close(writes)
        self.source = arena._Source(self.reads, time.monotonic() + seconds)


def test_files_arrive_whole(tmp_path: Path) -> None:
    arena._receive(Pipe(b"abcxy").source, {"step_1/model": 3, "manifest": 2}, tmp_path / "run")
    place = tmp_path / "run/home/base_train/trial"
    assert ((place / "step_1/model").read_bytes(), (place / "manifest").read_bytes()) == (b"abc", b"xy")


@pytest.mark.parametrize("name", ["../ledger", "/etc/passwd", "a/../../b"])
def test_a_file_outside_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^refused, files: it names a file outside its folder"):
        arena._receive(Pipe(b"abc").source, {name: 3}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("sizes", [{"a": arena.FILES + 1}, {str(number): 1 for number in range(1001)}])
def test_too_much_is_refused_before_it_is_read(sizes: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(Failure, match="its files have more than"):
        arena._receive(Pipe(b"").source, sizes, tmp_path / "run")


def test_a_run_that_ends_early_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(EOFError):
        arena._receive(Pipe(b"ab").source, {"model": 3}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_source_waits_no_longer_than_its_time() -> None:
    reads, writes = os.pipe()
    try:
        with pytest.raises(TimeoutError):
            arena._Source(reads, time.monotonic() + 0.05).read(1)
        os.write(writes, struct.pack(HEAD, 7))
        assert arena._Source(reads, time.monotonic() + 5).read(8) == struct.pack(HEAD, 7)
    finally:
        os.close(writes)
        os.close(reads)
