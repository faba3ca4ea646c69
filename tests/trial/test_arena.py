"""A run of one side in the sandbox: what comes out, and what a program that is no training can send."""

import json
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from contain import NEEDS_SANDBOX
from copies import ROOT, listed
from foreign_entries import HONEST

from nanochat.errors import UserError
from nanochat.evals import sandbox
from nanochat.evals.sandbox import Verdict
from nanochat.log import Record
from nanochat.trial import arena
from nanochat.trial.arena import HEAD, Failure, Killed, Late
from nanochat.trial.judging import Judgement
from nanochat.trial.scorer import Broken, Refused
from nanochat.trial.sides import Side


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


@pytest.mark.parametrize(
    "names", [["a", "a/b"], ["a\0b"], [""], ["a/./b"], ["n" * 300], ["\udc80"], ["/".join("a" * 300)]]
)
def test_a_name_that_no_file_can_have_is_the_runs_fault(names: list[str], tmp_path: Path) -> None:
    with pytest.raises(Failure, match="it names a file that cannot be written"):
        arena._receive(Pipe(b"abc").source, dict.fromkeys(names, 1), tmp_path / "run")


def trained(data: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train, where the process sends this."""

    @contextmanager
    def conversation(*_: object) -> Iterator[tuple[int, int, Callable[[float], Verdict]]]:
        pipe = Pipe(data)
        try:
            yield -1, pipe.reads, lambda _: Verdict(True, "")
        finally:
            os.close(pipe.reads)

    monkeypatch.setattr(sandbox, "conversation", conversation)
    arena.train(Side("a", "HEAD", folder), [], folder, folder, folder / "run", 5.0, False)


def sent(sizes: object, data: bytes) -> bytes:
    head = json.dumps({"facts": {"memory": 1.0}, "sizes": sizes}).encode()
    return struct.pack(HEAD, len(head)) + head + data


@pytest.mark.parametrize("data", [struct.pack(HEAD, 3) + b"{}}", sent({"a": float("inf")}, b""), sent([1], b"")])
def test_something_else_than_files_is_the_runs_fault(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Failure, match="its process sent something else than files"):
        trained(data, tmp_path, monkeypatch)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here is always full")
def test_a_full_disk_is_no_fault_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def new_folder(home: Path) -> Iterator[Path]:
        place = home / "home/base_train/trial"
        place.mkdir(parents=True)
        (place / "model").symlink_to("/dev/full")
        yield home
        shutil.rmtree(home)

    monkeypatch.setattr(arena, "new_folder", new_folder)
    with pytest.raises(OSError, match="No space left on device"):
        trained(sent({"model": 3}, b"abc"), tmp_path, monkeypatch)


def test_a_run_that_ends_early_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(EOFError):
        arena._receive(Pipe(b"ab").source, {"model": 3}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@NEEDS_SANDBOX
def test_a_code_says_which_flags_it_cannot_read(tmp_path: Path) -> None:
    code = tmp_path / "code"
    for name in listed():
        if name.startswith(("nanochat/", "scripts/", "tasks/")):
            (code / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, code / name)
    for place in [tmp_path, *tmp_path.parents][:4]:  # the sandbox's user reads what lies below
        place.chmod(place.stat().st_mode | 0o055)
    assert not arena.complaint(code, ["--depth=4", "--matrix-lr=0.03"], 512, False)
    for flag, sentence in (
        ("--matrix-lrr=0.03", "unknown argument --matrix-lrr, did you mean --matrix-lr?"),
        ("--matrix-lr=abc", "--matrix-lr: could not convert string to float: 'abc'"),
        ("--help", "there is a flag that trains nothing"),
        ("--target-flops=1e6", "--target-flops=1e+06 is below a step, which has "),
    ):
        assert arena.complaint(code, ["--depth=4", flag], 512, False).startswith(sentence)
    (code / "nanochat/config.py").write_text("# another version\n")
    assert not arena.complaint(code, ["--matrix-lrr=0.03"], 512, False)


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


def test_the_reason_why_a_model_cannot_be_scored_is_where_the_answer_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(*_: object) -> None:
        raise UserError("its words")

    monkeypatch.setattr(arena, "judge", judge)
    place = tmp_path / "runs/key"
    place.mkdir(parents=True)
    (tmp_path / "home/tok_train/default").mkdir(parents=True)
    with pytest.raises(Failure, match="its model could not be scored: the reason is in ") as raised:
        arena.score(Side("a", "HEAD", tmp_path), tmp_path / "home", place, [], False)
    shutil.rmtree(place)
    assert Path(str(raised.value).rpartition(" in ")[2]).read_text(encoding="utf-8") == "its words"


def scored(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float = 300.0) -> Record:
    """Score a sealed sentence by a program in place of a model."""
    monkeypatch.setattr(arena, "MODEL", program)
    place = tmp_path / "runs/key"
    place.mkdir(parents=True)
    for folder in [tmp_path, *tmp_path.parents][:4]:  # the sandbox's user reads what lies below
        folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "code").mkdir()
    (tmp_path / "home/tok_train/default").mkdir(parents=True)
    side = Side("a", "HEAD", tmp_path / "code")
    return arena.score(side, tmp_path / "home", place, ["a sealed sentence"], False, seconds)


@NEEDS_SANDBOX
@pytest.mark.parametrize(
    ("old", "when"),
    [
        ("return [MARK, *text]", "True"),  # the process that has the text
        ("rows = [self", "first < len(ids)"),  # that which scores
        ("rows = [self", "first == len(ids)"),  # that which is asked without what follows
        ("return Entry()", "True"),  # before any question
    ],
)
def test_a_scoring_that_sleeps_is_late(old: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses no processor time, and what it has read decides how long it takes."""
    indent = 4 if "Entry" in old else 8
    sleeping = HONEST.replace(old, f"import time; time.sleep(12 if {when} else 0)\n{' ' * indent}{old}")
    with pytest.raises(Late, match=r"^its model was not scored within 9 seconds$"):
        scored(sleeping, tmp_path, monkeypatch, 9.0)


@NEEDS_SANDBOX
@pytest.mark.parametrize("kind", ["FileNotFoundError", "ModuleNotFoundError", "PermissionError", "ValueError"])
def test_what_a_scorer_says_of_the_text_is_in_no_answer(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process raises with the text that it is given."""
    with pytest.raises(UserError) as raised:
        scored(HONEST.replace("return [MARK, *text]", f"raise {kind}(text.decode())"), tmp_path, monkeypatch)
    said = str(raised.value)
    assert "sealed" not in said
    if kind != "ValueError":
        assert said.startswith(f"refused, bytes: it needs what is not among its files ({kind}): the reason is in ")
    assert "a sealed sentence" in Path(said.rpartition(" in ")[2]).read_text(encoding="utf-8")


@NEEDS_SANDBOX
def test_a_scoring_that_ends_with_another_status_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaving = "import atexit, os\n\natexit.register(os._exit, 3)\n"
    with pytest.raises(Late, match=r"^its process did not end, or not without an error, when its model was scored$"):
        scored(leaving + HONEST, tmp_path, monkeypatch)


@NEEDS_SANDBOX
def test_a_scoring_that_kills_itself_has_used_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = "import os, time\n        while time.process_time() < 3: pass\n        os.kill(os.getpid(), 9)"
    with pytest.raises(Killed, match=r"^the scoring of its model was killed, as by a machine") as raised:
        scored(HONEST.replace("return [MARK, *text]", busy), tmp_path, monkeypatch)
    assert raised.value.cpu_seconds >= 3


@pytest.mark.parametrize(
    ("stop", "error", "sentence"),
    [
        (Broken("its process has ended", killed=True), Killed, "the scoring of its model was killed, as by a machine"),
        (Refused("time", "it takes longer than 120 s"), Late, "its model was not scored within 1800 seconds$"),
        (Judgement(bytes=1, ended=False), Late, "its process did not end, or not without an error, when"),
    ],
)
def test_what_the_machine_may_have_stopped_is_told_from_other_failures(
    stop: object, error: type[Failure], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(*_: object) -> object:
        if isinstance(stop, Exception):
            raise stop
        return stop

    monkeypatch.setattr(arena, "judge", judge)
    (tmp_path / "home/tok_train/default").mkdir(parents=True)
    (tmp_path / "runs/key").mkdir(parents=True)
    with pytest.raises(error, match=sentence):
        arena.score(Side("a", "HEAD", tmp_path), tmp_path / "home", tmp_path / "runs/key", [], False)
