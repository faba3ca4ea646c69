"""How a step runs: its output on a terminal and in the log, signals, and what tells that it is to be done anew."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nanochat.jobs import runner as driver
from nanochat.jobs.plan import Plan, Step

DRAWS = r"""
import os, sys
print(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size().columns if sys.stdout.isatty() else None)
sys.stderr.write("\r10%\x1b[K\r90%\x1b[K\r\x1b[1mdone\x1b[0m\x1b[K\n")
sys.exit(3)
"""
EXECUTE = """
import sys; from pathlib import Path; from nanochat.jobs.runner import execute
print(execute([sys.executable, "-c", sys.argv[2]], Path(sys.argv[1]), False))
"""


def run_in(stdout: int, log: Path, code: str, **options) -> subprocess.Popen:
    """`execute` in a process that holds a lock as speedrun.sh does."""
    lock = os.open(log.with_name("lock"), os.O_RDWR | os.O_CREAT)
    os.dup2(lock, driver.LOCK)
    command = [sys.executable, "-c", EXECUTE, str(log), code]
    return subprocess.Popen(command, stdout=stdout, pass_fds=[driver.LOCK], **options)


@pytest.fixture(autouse=True)
def descriptor():
    """Whatever the test runner keeps there is put back."""
    try:
        kept = os.dup(driver.LOCK)
    except OSError:
        kept = None
    yield
    if kept is not None:
        os.dup2(kept, driver.LOCK)
        os.close(kept)


def test_a_terminal_stays_live_and_the_log_has_plain_lines(tmp_path):
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, driver.termios.TIOCSWINSZ, b"\x18\x00\x49\x00" + bytes(4))  # 24 lines of 73
    process = run_in(follower, tmp_path / "log", DRAWS)
    os.close(follower)
    seen = b""
    while b"(3, 0)" not in seen:
        seen += os.read(leader, 65536)
    process.wait()
    os.close(leader)
    assert seen.startswith(b"True True 73\r\n\r10%\x1b[K\r90%\x1b[K\r\x1b[1mdone\x1b[0m\x1b[K\r\n")
    log = (tmp_path / "log").read_text()
    assert log.startswith("== 2")
    assert log.splitlines()[-2:] == ["True True 73", "done"]


def test_without_a_terminal_nothing_is_drawn(tmp_path):
    process = run_in(subprocess.PIPE, tmp_path / "log", DRAWS)
    assert process.communicate()[0].decode().startswith("False False None\n")
    assert (tmp_path / "log").read_text().splitlines()[-2:] == ["False False None", "done"]


def test_a_signal_is_handed_on_and_told(tmp_path):
    waits = "import signal, time\nsignal.signal(15, lambda *_: exit(0))\nprint('ready', flush=True)\ntime.sleep(60)"
    process = run_in(subprocess.PIPE, tmp_path / "log", waits)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[0] == b"(0, 15)\n"


class LastWords(subprocess.Popen):
    """A child that speaks and ends just before it is asked whether it has ended."""

    def poll(self) -> int | None:
        if not self.stdin.closed:
            self.stdin.close()
            self.wait()
        return super().poll()


def test_what_a_child_says_as_it_ends_is_not_lost(monkeypatch):
    monkeypatch.setattr(driver, "LOOK", 0.01)
    source, sink = os.pipe()  # which another process holds open, this one
    command = [sys.executable, "-c", "import sys; sys.stdin.read(); print('last')"]
    with LastWords(command, stdin=subprocess.PIPE, stdout=sink) as child:
        assert b"".join(driver._output(source, child, [])) == b"last\n"
    os.close(source)
    os.close(sink)


def test_the_lock_is_of_those_who_inherited_it(tmp_path):
    with open(tmp_path / "lock", "w") as ours, open(tmp_path / "lock", "w") as theirs:
        driver.take(ours.fileno(), "default")
        driver.take(ours.fileno(), "default")  # as each step of one run does
        child = subprocess.Popen(["sleep", "60"], pass_fds=[ours.fileno()])
        ours.close()
        with pytest.raises(ValueError, match="another one is at work with --tag=default"):
            driver.take(theirs.fileno(), "default")
        child.kill()
        child.wait()
        driver.take(theirs.fileno(), "default")
        closed = os.dup(theirs.fileno())
    os.close(closed)
    with pytest.raises(ValueError, match="start that"):
        driver.take(closed, "default")


def test_what_makes_a_step_another(tmp_path):
    record = {"words": ["scripts.a", "--depth=1", "--fp8"], "inputs": {"text": "1", "gone": "2"}}
    assert driver.difference(record, record["words"], {"text": "1", "new": "3"}) == ""
    assert driver.difference(record, record["words"], {"text": "2"}) == "text changed"
    assert driver.difference(record, ["scripts.a", "--depth=2"], {}) == "--depth=1 --fp8 is now --depth=2"


def test_a_file_is_hashed_again_when_it_changed(tmp_path):
    file, memory = tmp_path / "file", tmp_path / "hashes.json"
    file.write_text("one")
    hashes = driver.Hashes(memory)
    before = hashes(file)
    hashes.save()
    memory.write_text(memory.read_text().replace(before, "remembered"))
    assert driver.Hashes(memory)(file) == "remembered"
    file.write_text("three")
    assert driver.Hashes(memory)(file) not in ("remembered", before)


def test_inputs_are_the_parents_artifacts_and_the_text(tmp_path, monkeypatch, text_folder):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    plan = Plan("default", "embedded", 4, f"folder:{text_folder}", {}, {"bundle": [], "tasks": []}, [], "")
    plan.folder.mkdir(parents=True)
    before = driver.inputs_of(plan, "tok_train")
    assert list(before) == ["the text"]
    (text_folder / "00.txt").write_text("other")
    assert driver.inputs_of(plan, "tok_train") != before
    assert driver.inputs_of(plan, "world") == {}
    (tmp_path / "tok_train/default").mkdir(parents=True)
    (tmp_path / "tok_train/default/outcome.json").write_text("{}")
    with pytest.raises(ValueError, match="tok_train writes it again"):
        driver.inputs_of(plan, "base_train")


def test_the_reason_of_a_failure():
    said = ["step 1", "error: --depth=0 is no depth", "=" * 60]
    assert driver._reason(said) == said[1]
    assert driver._reason(["Traceback", "KeyError: 'x'", "="]) == "KeyError: 'x'"
    assert driver._reason(["killed"]) == "killed"


def test_what_is_set_aside_is_kept_and_not_taken_from_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path))
    plan = Plan("default", "embedded", 4, "python", {}, {}, [Step("base_train", [], [], [])], "")
    home, record = tmp_path / "base_train/default", plan.folder / "base_train.json"
    assert driver.set_aside(plan, "base_train") is None
    for path in (home / "step_000001", plan.folder):
        path.mkdir(parents=True)
    record.write_text(json.dumps({}))
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another run is at work"):
            driver.set_aside(plan, "base_train")
    assert record.exists()  # or it would go on with what does not fit
    kept = driver.set_aside(plan, "base_train")
    assert (kept / "step_000001").is_dir()
    assert not home.exists()
    assert not record.exists()


def test_how_to_talk_to_the_last_model(tmp_path, monkeypatch):
    """The commands themselves are run in test_end_to_end.py."""
    trained = {"base_train": "", "mid_train": "", "chat_sft": "after --until=mid_train", "chat_rl": "so is this"}
    plan = Plan("d8", "cpu", 8, "world", {}, {}, [Step(name, [], [], [], why) for name, why in trained.items()], "")
    monkeypatch.setattr(driver, "ROOT", tmp_path / "the house")
    monkeypatch.delenv("NANOCHAT_BASE_DIR", raising=False)
    python = f"cd '{tmp_path / 'the house'}' && .venv/bin/python"
    cli, web = driver.talks(plan)
    assert cli == f"talk to it: {python} -m scripts.chat_cli -i mid -g d8"
    assert web == f"in a browser: {python} -m scripts.chat_web -i mid -g d8"
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path / "my runs"))
    assert f" && NANOCHAT_BASE_DIR='{tmp_path / 'my runs'}' .venv/bin/python -m " in driver.talks(plan)[0]
    none = Plan("d8", "cpu", 8, "world", {}, {}, [Step(name, [], [], [], "no") for name in trained], "")
    assert driver.talks(none) == []
