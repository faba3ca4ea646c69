"""Job runner: output and logs, signals, locks, reasons to repeat a step, several steps at once."""

import fcntl
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nanochat.jobs import runner
from nanochat.jobs.runner import Job, Step, load_job, run_job

PRINTS = r"""
import sys
print(sys.stdout.isatty())
sys.stderr.write("\r10%\x1b[K\r90%\x1b[K\r\x1b[1mdone\x1b[0m\x1b[K\n")
sys.exit(3)
"""
EXECUTE = """
import sys; from pathlib import Path; from nanochat.jobs.runner import execute, stop_signals
with stop_signals() as stop:
    print(execute([sys.executable, "-c", sys.argv[2]], Path(sys.argv[1]), 0, stop), stop)
"""
# A stage in one file: prints, counts how often it ran, fails if asked, and leaves an outcome.
STAGE = """
import sys
from pathlib import Path
from nanochat.outcome import Outcome
from nanochat.paths import base_dir
import dataclasses
stage, tag, *flags = sys.argv[1:]
print("error: it was asked to fail" if "--fail" in flags else "working")
if "--fail" in flags:
    sys.exit(2)
home = base_dir() / stage / tag
home.mkdir(parents=True, exist_ok=True)
(home / "made").write_text(" ".join(flags))
moment = "2026-11-20T12:00:00+00:00"
outcome = Outcome(stage=stage, tag=tag, started=moment, timestamp=moment, command="", config={}, card=[], versions={},
    environment={})
outcome.add_artifact(home / "made")
outcome.write()
"""


@pytest.fixture
def job(base, monkeypatch):
    """A function that makes a job of tiny stages, given as name -> (parents, flags)."""
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(base))
    script = base / "stages/tiny_stage.py"
    script.parent.mkdir(parents=True)
    script.write_text(STAGE)
    monkeypatch.setenv("PYTHONPATH", f"{script.parent}:{runner.ROOT}")

    def make(**stages: tuple[str, str]) -> Job:
        steps = [
            Step(
                name,
                ["tiny_stage", name, "t", *flags.split()],
                output=f"{name}/t",
                parents=[f"{parent}/t" for parent in parents.split()],
            )
            for name, (parents, flags) in stages.items()
        ]
        return Job("lab", "t", steps, resume="bash lab.sh")

    return make


def ran(text: str) -> list[str]:
    return [line.split()[1].strip(":") for line in text.splitlines() if line.startswith("== ") and ": done" in line]


def test_a_job_runs_resumes_and_repeats_a_changed_step_with_its_children(job, capsys):
    stages = {"tok": ("", ""), "base": ("tok", "--depth=1"), "sft": ("base", ""), "other": ("tok", "")}
    assert run_job(job(**stages), workers=2) == {}
    assert sorted(ran(capsys.readouterr().out)) == ["base", "other", "sft", "tok"]
    assert run_job(job(**stages)) == {}
    text = capsys.readouterr().out
    assert ran(text) == []
    assert text.count("already finished") == 4

    changed = stages | {"base": ("tok", "--depth=2")}
    assert run_job(job(**changed)) == {}
    text = capsys.readouterr().out
    assert ran(text) == ["base", "sft"]
    assert "== base: repeated, --depth=1 is now --depth=2; earlier results are in " in text
    assert "== sft: repeated, base/t/made changed" in text
    [kept] = (job(**changed).folder / "archive").glob("base-*")
    assert (kept / "made").read_text() == "--depth=1"


def test_a_failed_step_stops_only_the_steps_that_need_it(job, capsys, base):
    stages = {"tok": ("", ""), "base": ("tok", "--fail"), "sft": ("base", ""), "rl": ("sft", ""), "other": ("tok", "")}
    failures = run_job(job(**stages))
    assert failures.keys() == {"base", "sft", "rl"}
    log = base / "lab/t/base.log"
    first, second, third = failures["base"].splitlines()
    assert first == "lab: base failed with exit status 2: error: it was asked to fail"
    assert (second, third) == (f"  log: {log}", "  resume with: bash lab.sh")
    assert failures["sft"] == failures["rl"] == "a step before it failed"
    assert ran(capsys.readouterr().out) == ["tok", "other"]
    assert log.read_text().startswith("== 2")


def test_a_job_in_another_folder_runs_beside_it_and_the_same_is_refused(job):
    own = job(tok=("", ""))
    with runner.hold_job(own):
        with pytest.raises(ValueError, match="another process runs --tag=t: wait until it ends"):
            run_job(own)
        assert run_job(Job("lab", "second", own.steps)) == {}


def test_a_job_can_be_saved_and_loaded(job):
    own = job(tok=("", ""), base=("tok", "--depth=1"))
    own.save()
    assert load_job(own.folder) == own


# ---- a command and its output ----


def run_in_process(stdout: int, log: Path, code: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", EXECUTE, str(log), code], stdout=stdout)


def test_output_reaches_the_log_as_plain_lines(tmp_path, capfdbinary):
    status = runner.execute([sys.executable, "-c", PRINTS], tmp_path / "log", 0, [])
    assert status == 3
    assert (tmp_path / "log").read_text().splitlines()[-2:] == ["False", "done"]
    assert b"\r90%" in capfdbinary.readouterr().out  # progress passes through


def test_a_signal_is_passed_on(tmp_path):
    waits = "import signal, time\nsignal.signal(15, lambda *_: exit(0))\nprint('ready', flush=True)\ntime.sleep(60)"
    process = run_in_process(subprocess.PIPE, tmp_path / "log", waits)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == b"0 [15]\n"


class LateWriter(subprocess.Popen):
    """A child that prints and ends just before `poll` checks whether it has ended."""

    def poll(self) -> int | None:
        if not self.stdin.closed:
            self.stdin.close()
            self.wait()
        return super().poll()


def test_the_last_line_of_a_child_is_not_lost(monkeypatch):
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    command = [sys.executable, "-c", "import sys; sys.stdin.read(); print('last')"]
    with LateWriter(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert b"".join(runner.read_output(child, [], 0)) == b"last\n"


def test_without_its_script_a_command_is_ended(tmp_path):
    waits = "import time; print('ready', flush=True); time.sleep(60)"
    # No process is the parent of this number: the script is gone.
    status = runner.execute([sys.executable, "-c", waits], tmp_path / "log", 0, [], script=2**22)
    assert status == 128 + signal.SIGTERM


def test_processes_that_inherit_the_lock_hold_it(tmp_path, job):
    own = job()
    with open(tmp_path / "lock", "w") as ours, open(tmp_path / "lock", "w") as theirs:
        runner.take_lock(ours.fileno(), own)
        runner.take_lock(ours.fileno(), own)  # as each step of a job does
        child = subprocess.Popen(["sleep", "60"], pass_fds=[ours.fileno()])
        ours.close()
        with pytest.raises(ValueError, match="another process runs --tag=t"):
            runner.take_lock(theirs.fileno(), own)
        child.kill()
        child.wait()
        runner.take_lock(theirs.fileno(), own)


# ---- records and inputs ----


def test_reasons_to_repeat_a_step():
    record = {"command": ["scripts.a", "--depth=1", "--fp8"], "inputs": {"text": "1", "gone": "2"}}
    step = Step("a", record["command"])
    assert runner.difference(record, step, {"text": "1", "new": "3"}) == ""
    assert runner.difference(record, step, {"text": "2"}) == "text changed"
    assert runner.difference(record, Step("a", ["scripts.a", "--depth=2"]), {}) == "--depth=1 --fp8 is now --depth=2"
    older = {"words": record["command"], "inputs": {}}
    assert runner.difference(older, step, {}) == ""


def test_a_file_is_hashed_again_when_it_changed(tmp_path):
    file, memory = tmp_path / "file", tmp_path / "hashes.json"
    file.write_text("one")
    [before] = runner.hash_files(memory, [file])
    memory.write_text(memory.read_text().replace(before, "remembered"))
    assert runner.hash_files(memory, [file]) == ["remembered"]
    file.write_text("three")
    assert runner.hash_files(memory, [file])[0] not in ("remembered", before)


def test_inputs_are_artifacts_of_parents_and_text(job, base, text_folder):
    own = job()
    own.folder.mkdir(parents=True)
    step = Step("tok_train", [], data=f"folder:{text_folder}")
    before = runner.input_hashes(own, step)
    assert list(before) == ["the text"]
    (text_folder / "00.txt").write_text("other")
    assert runner.input_hashes(own, step) != before
    assert runner.input_hashes(own, Step("world", [])) == {}
    (base / "tok_train/t").mkdir(parents=True)
    (base / "tok_train/t/outcome.json").write_text("{}")
    with pytest.raises(ValueError, match="remove the file to repeat the stage"):
        runner.input_hashes(own, Step("base_train", [], parents=["tok_train/t"]))


def test_a_stage_is_archived_unless_a_run_writes_to_it(job, base):
    own = job(base_train=("", ""))
    [step] = own.steps
    stage, record = base / "base_train/t", own.folder / "base_train.json"
    assert runner.archive(own, step) is None
    for path in (stage / "step_000001", own.folder):
        path.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps({}))
    with open(stage / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another run writes to"):
            runner.archive(own, step)
    assert record.exists()  # it still says that the stage has to be archived
    place = runner.archive(own, step)
    assert (place / "step_000001").is_dir()
    assert not stage.exists()
    assert not record.exists()


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["step 1", "error: --depth=0 is no depth", "=" * 60], "error: --depth=0 is no depth"),
        (["Traceback", "KeyError: 'x'", "="], "KeyError: 'x'"),
        (["killed"], "killed"),
    ],
)
def test_the_line_that_names_the_error(lines, reason, tmp_path):
    (tmp_path / "log").write_text("\n".join(lines))
    assert runner.failure_line(tmp_path / "log") == reason
