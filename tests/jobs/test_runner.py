"""Job runner: output and logs, signals, locks, reasons to repeat a step."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from nanochat.jobs import runner
from nanochat.jobs.runner import Job, Step
from nanochat.paths import hold_folder, read_json, take_lock, write_json, write_text

# A stage in one file: prints, counts how often it ran, fails if asked, and leaves an outcome.
STAGE = """
import sys
from datetime import datetime
from pathlib import Path
from nanochat.outcome import Outcome
from nanochat.paths import base_dir
import dataclasses
stage, tag, *flags = sys.argv[1:]
if "--fail" in flags:
    print("a terminal" if sys.stdout.isatty() else "no terminal", flush=True)
    print("error: it was asked to fail", file=sys.stderr)
    sys.exit(2)
home = base_dir() / stage / tag
home.mkdir(parents=True, exist_ok=True)
(home / "made").write_text(" ".join(flags))
moment = datetime.now().astimezone().isoformat(timespec="milliseconds")  # as a stage writes it
seconds = sum(float(flag.partition("=")[2]) for flag in flags if flag.startswith("--seconds="))
outcome = Outcome(stage=stage, tag=tag, started=moment, timestamp=moment, command="", config={"eval_bytes": 1},
    card=[], versions={}, environment={})
outcome.add_artifact(home / "made")
outcome.write(seconds)  # of earlier attempts, as a stage counts them that trains
"""


@pytest.fixture
def job(base, monkeypatch):
    """A function that makes a job of tiny stages, given as name -> (parent, flags)."""
    script = base / "stages/tiny_stage.py"
    write_text(script, STAGE)
    monkeypatch.setenv("PYTHONPATH", f"{script.parent}:{runner.ROOT}")

    def make(**stages: tuple[str, str]):
        steps = [
            Step(name, ["tiny_stage", name, "t", *flags.split()], f"{name}/t", f"{parent}/t" if parent else "")
            for name, (parent, flags) in stages.items()
        ]
        return Job("lab", "t", steps, resume="bash lab.sh")

    return make


def run_all(own: Job):
    """Run the steps in order up to the first failure, as the lines of a script do; return its exit status."""
    with hold_folder(own.folder) as lock:
        statuses = (runner.run_step(own, step, lock, []) for step in own.steps)
        return next(filter(None, statuses), 0)


def ran(text: str):
    return [line.split()[1].strip(":") for line in text.splitlines() if line.startswith("== ") and ": done" in line]


def test_a_job_runs_resumes_and_repeats_a_changed_step_with_its_children(job, capsys) -> None:
    stages = {"tok": ("", ""), "base": ("tok", "--depth=1"), "sft": ("base", ""), "other": ("tok", "")}
    assert run_all(job(**stages)) == 0
    assert ran(capsys.readouterr().out) == ["tok", "base", "sft", "other"]
    run_all(job(**stages))
    text = capsys.readouterr().out
    assert ran(text) == []
    assert text.count("already finished") == 4

    changed = stages | {"base": ("tok", "--depth=2")}
    run_all(job(**changed))
    text = capsys.readouterr().out
    assert ran(text) == ["base", "sft"]
    assert "== base: repeated, --depth=1 is now --depth=2\nearlier results of base are in " in text
    assert "== sft: repeated, base/t/made changed" in text
    [kept] = (job(**changed).folder / "archive").glob("base-*")
    assert (kept / "made").read_text() == "--depth=1"


def test_the_first_finished_steps_end_where_one_has_to_run(job, base) -> None:
    """speedrun.sh skips them without a process each."""
    own = job(tok_train=("", ""), base_train=("tok_train", ""), base_loss=("base_train", ""))
    assert runner.first_finished(own) == []
    run_all(own)
    assert runner.first_finished(own) == ["tok_train", "base_train", "base_loss"]
    left_out = replace(own, steps=[replace(own.steps[0], skip="it is not needed"), *own.steps[1:]])
    assert runner.first_finished(left_out) == ["base_train", "base_loss"]
    changed = replace(own.steps[1], command=[*own.steps[1].command, "--seed=2"])
    assert runner.first_finished(replace(own, steps=[own.steps[0], changed, own.steps[2]])) == ["tok_train"]
    (base / "tok_train/t/outcome.json").unlink()
    assert runner.first_finished(own) == []


def test_a_failed_step_names_its_log_and_the_command_that_resumes(job, capsys, base) -> None:
    own = job(tok=("", ""), base=("tok", "--fail"), sft=("base", ""))
    assert run_all(own) == 2
    shown = capsys.readouterr()
    first, second, third = shown.err.splitlines()
    assert first == "lab: base failed with exit status 2"
    log = base / "lab/t/base.log"
    assert (second, third) == (f"  log: {log}", "  resume with: bash lab.sh")
    assert ran(shown.out) == ["tok"]
    assert shown.out.endswith("error: it was asked to fail\n")
    assert log.read_text().startswith("== 2")
    assert log.read_text().splitlines()[1:] == ["no terminal", "error: it was asked to fail"]


def test_a_job_in_another_folder_runs_beside_it_and_children_hold_the_lock_of_the_same(job) -> None:
    own = job(tok=("", ""))
    with hold_folder(own.folder):
        with pytest.raises(ValueError, match="lab/t: wait until it ends, or use another --tag"):
            run_all(own)
        run_all(Job("lab", "second", own.steps))
    with hold_folder(own.folder) as lock:
        take_lock(lock, own.folder)  # as each step of a job does
        child = subprocess.Popen(["sleep", "60"], pass_fds=[lock])
    with pytest.raises(ValueError, match="another process runs in"), hold_folder(own.folder):
        pass
    child.kill()
    child.wait()
    with hold_folder(own.folder):
        pass


def python_step(base: Path, code: str):
    (base / "stages/code.py").write_text(code)
    own = Job("lab", "t", [Step("code", ["code"])])
    own.folder.mkdir(parents=True)
    return own, own.steps[0]


@pytest.mark.parametrize(("code", "status"), [("exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_a_record_has_the_exit_status_of_a_step_that_failed(code: str, status: int, job, base) -> None:
    own, step = python_step(base, code)
    assert runner.run_step(own, step, 0, []) == status
    assert read_json(own.record(step))["status"] == status
    (base / "stages/code.py").write_text("print('it works now')")
    assert runner.run_step(own, step, 0, []) == 0
    assert "status" not in read_json(own.record(step))


def test_a_quiet_step_shows_the_end_of_its_log_if_it_fails(job, base, capfd) -> None:
    own, step = python_step(base, "print(*range(99), 'error: no network', sep='\\n', file=open(2, 'w'))\nexit(2)")
    assert runner.run_step(own, replace(step, quiet=True), 0, []) == 2
    out = capfd.readouterr().out
    assert out.endswith("97\n98\nerror: no network\n")
    assert "\n3\n" not in out


def test_a_quiet_step_shows_the_progress_of_its_download(job, base, capfd) -> None:
    lines = ["data: folder", "download: 1 of 2 files | 0.10 GB | 5 MB/s | eta: 20.0s", "a file's name"]
    own, step = python_step(base, f"import sys\nfor line in {lines}: print(line, file=sys.stderr)")
    assert runner.run_step(own, replace(step, quiet=True), 0, []) == 0
    out = capfd.readouterr().out
    assert lines[1] in out.splitlines()
    assert lines[0] not in out
    assert lines[2] not in out


def test_a_character_that_is_written_in_two_parts_is_shown_whole(job, base, capfd) -> None:
    code = "import os, time\nos.write(1, b'rice \\xec')\ntime.sleep(0.7)\nos.write(1, b'\\x8c\\x80 end')"
    own, step = python_step(base, code)
    assert runner.run_step(own, step, 0, []) == 0
    assert "rice \uc300 end" in capfd.readouterr().out


@pytest.mark.parametrize("sent", ["signal", "script"])
def test_a_stop_is_passed_on(job, base, sent, capsys) -> None:
    """A SIGTERM, or the end of the calling script, reaches the command, which may save and end normally."""
    waits = "import signal, time\nsignal.signal(15, lambda *_: exit(0))\ntime.sleep(60)"
    own, step = python_step(base, waits)
    log, stop = own.folder / "code.log", []
    if sent == "signal":
        threading.Timer(2, stop.append, [signal.SIGTERM]).start()
    # No process has this number: the script is gone.
    status = runner.run_step(own, step, 0, stop, script=0 if sent == "signal" else 2**22)
    assert status == 128 + signal.SIGTERM
    assert f"lab: code was stopped by SIGTERM\n  log: {log}\n" in capsys.readouterr().err
    assert log.exists()


def test_a_stop_before_a_step_begins_is_a_stop(job, base, capsys) -> None:
    """As while a large text is hashed: the command has not been there to hear of it."""
    own, step = python_step(base, "print('at work')")
    assert runner.run_step(own, step, 0, [signal.SIGINT]) == 128 + signal.SIGINT
    told = capsys.readouterr()
    assert "code was stopped by SIGINT" in told.err
    assert "at work" not in told.out


def test_a_step_runs_again_after_a_killed_attempt_and_earlier_attempts_count(job, base, capsys) -> None:
    """As a power cut leaves it: a record that is not finished, some lines in the log, no outcome."""
    own = job(tok=("", ""))
    run_all(own)
    record, outcome = own.folder / "tok.json", base / "tok/t/outcome.json"
    outcome.unlink()
    killed = read_json(record) | {"finished": False, "seconds": 100.0}
    record.write_text(json.dumps(killed))
    capsys.readouterr()
    run_all(own)
    assert ran(capsys.readouterr().out) == ["tok"]
    assert read_json(record)["seconds"] == read_json(outcome)["seconds"] == pytest.approx(160, abs=60)


def test_of_a_runner_that_was_killed_the_stage_knows_how_long_it_has_run(job, base, capsys) -> None:
    own = job(tok=("", "--seconds=5000"))
    run_all(own)
    record, outcome = own.folder / "tok.json", base / "tok/t/outcome.json"
    outcome.unlink()
    record.write_text(json.dumps(read_json(record) | {"finished": False, "seconds": 0.0}))
    run_all(own)
    assert read_json(record)["seconds"] == read_json(outcome)["seconds"] == pytest.approx(5060, abs=60)


def test_a_step_whose_result_was_deleted_starts_from_nothing(job, base) -> None:
    own = job(tok=("", ""))
    run_all(own)
    record, outcome = own.folder / "tok.json", base / "tok/t/outcome.json"
    record.write_text(json.dumps(read_json(record) | {"seconds": 7200.0}))
    outcome.unlink()
    run_all(own)
    assert read_json(record)["seconds"] < 7200


def test_a_step_that_is_left_out_takes_the_result_of_another_model_out_of_the_card(job, base, capsys) -> None:
    chats = {"chat_sft": ("base_train", "--rows=1"), "chat_rl": ("chat_sft", "")}
    stages = {"base_train": ("", "--depth=1"), **chats}
    run_all(job(**stages))
    # Other flags of their own change nothing: the next command without --until may have the old ones.
    same = {"base_train": ("", "--depth=1"), "chat_sft": ("base_train", "--rows=2"), "chat_rl": ("chat_sft", "")}
    changed = {"base_train": ("", "--depth=2"), **chats}
    for flags in (same, changed):
        own = job(**flags)
        own.steps[1:] = [replace(step, skip="after --until=base_train") for step in own.steps[1:]]
        capsys.readouterr()
        assert run_all(own) == 0
        text = capsys.readouterr().out
        is_stale = flags is changed
        for name in chats:
            assert f"== {name}: left out, after --until=base_train\n" in text
            assert (f"earlier results of {name} are in" in text) == is_stale
            assert (base / name / "t/outcome.json").exists() != is_stale
    assert run_all(job(**changed)) == 0
    assert (base / "chat_rl/t/outcome.json").exists()


def test_an_evaluation_by_hand_with_other_flags_does_not_count_for_the_job(job, base, capsys) -> None:
    own = job(base_train=("", ""), base_loss=("base_train", ""))
    run_all(own)
    outcome = base / "base_loss/t/outcome.json"
    first = read_json(outcome)
    same = {"timestamp": "2026-11-21T12:00:00+00:00", "config": {"eval_bytes": 1, "run": "look", "device_type": "cpu"}}
    write_json(outcome, first | same)  # nothing that decides the result
    capsys.readouterr()
    run_all(own)
    assert capsys.readouterr().out.count("already finished") == 2
    write_json(outcome, first | {"config": {"eval_bytes": 2}})
    run_all(own)
    text = capsys.readouterr().out
    assert "== base_loss: repeated, its result is of a command with another --eval-bytes\n" in text
    assert read_json(outcome)["config"] == first["config"]


def test_reasons_to_repeat_a_step_and_the_hash_of_a_text(text_folder) -> None:
    record = {"command": ["scripts.a", "--depth=1", "--fp8"], "inputs": {"text": "1", "gone": "2"}}
    step = Step("a", record["command"])
    assert runner.difference(record, step, {"text": "1", "new": "3"}) == ""
    assert runner.difference(record, step, {"text": "2"}) == "text changed"
    assert runner.difference(record, Step("a", ["scripts.a", "--depth=2"]), {}) == "--depth=1 --fp8 is now --depth=2"
    assert runner.difference(record, Step("a", ["scripts.a", "--fp8", "--depth=1"]), {}) == ""
    assert runner.difference(record, Step("a", ["scripts.a", "--fp8", "--depth", "1"]), {}) == ""
    # The same words, of which one value has moved to another flag; and the same flags in an order that counts.
    rates = record | {"command": ["scripts.a", "--one", "0.2", "--two", "0.02", "--three", "0.2"]}
    other = Step("a", ["scripts.a", "--one", "0.02", "--two", "0.02", "--three", "0.2"])
    assert runner.difference(rates, other, {}) == "--one=0.2 is now --one=0.02"
    twice = record | {"command": ["scripts.a", "--depth=1", "--depth=2"]}
    assert (
        runner.difference(twice, Step("a", ["scripts.a", "--depth=2", "--depth=1"]), {}) == "--depth=2 is now --depth=1"
    )
    step = Step("tok_train", [], data=f"folder:{text_folder}")
    before = runner.input_hashes(step)
    assert before.keys() == {"the text"}
    (text_folder / "00.txt").rename(text_folder / "99.txt")  # names do not count
    assert runner.input_hashes(step) == before
    (text_folder / "99.txt").write_text("other")
    assert runner.input_hashes(step) != before


def test_a_stage_is_archived_unless_a_run_writes_to_it(job, base) -> None:
    own = job(base_train=("", ""))
    [step] = own.steps
    stage, record = base / "base_train/t", own.folder / "base_train.json"
    runner.archive(own, step)  # nothing is there
    for path in (stage / "step_000001", own.folder):
        path.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps({}))
    with hold_folder(stage), pytest.raises(ValueError, match="another process runs in"):
        runner.archive(own, step)
    assert record.exists()  # it still says that the stage has to be archived
    runner.archive(own, step)
    [place] = (own.folder / "archive").iterdir()
    assert (place / "step_000001").is_dir()
    assert not stage.exists()
    assert not record.exists()


def test_a_step_is_left_out_where_its_files_have_not_come(job, base, monkeypatch, capsys) -> None:
    (base / "mirror").mkdir()
    monkeypatch.setenv("NANOCHAT_HUB", str(base / "mirror"))
    own = job(base_train=("", ""), base_eval=("base_train", ""), mid_train=("base_train", ""))
    needs = {"files": [["eval_bundle/core.yaml", "", ""]], "skip_without_files": "no bundle is here"}
    own.steps[1] = replace(own.steps[1], **needs)
    assert run_all(own) == 0
    text = capsys.readouterr().out
    assert ran(text) == ["base_train", "mid_train"]
    assert "== base_eval: left out, no bundle is here\n" in text
    own = replace(own, closing=["talk to it"])
    assert runner.closing_lines(own) == ["left out: base_eval (no bundle is here)", "talk to it"]
    # The next attempt finds them.
    write_text(base / "mirror/eval_bundle/core.yaml", "icl_tasks: []")
    assert runner.closing_lines(own) == ["left out: base_eval (no bundle is here)", "talk to it"]  # until then
    assert run_all(own) == 0
    assert ran(capsys.readouterr().out) == ["base_eval"]
    # A result counts where its inputs have been removed to make room.
    (base / "mirror/eval_bundle/core.yaml").unlink()
    assert run_all(own) == 0
    assert "== base_eval: already finished" in capsys.readouterr().out
    assert runner.closing_lines(own) == ["talk to it"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process may use all cores")
def test_each_of_several_runs_gets_a_share_of_the_cores_that_are_there(monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    here = os.sched_getaffinity(0)
    assert runner.core_share(1) == {"OMP_NUM_THREADS": str(len(here))}
    assert runner.core_share(10**6) == {"OMP_NUM_THREADS": "1"}
    os.sched_setaffinity(0, {min(here)})  # as a container or Slurm does
    try:
        assert runner.core_share(1) == {"OMP_NUM_THREADS": "1"}
    finally:
        os.sched_setaffinity(0, here)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert runner.core_share(2) == {"OMP_NUM_THREADS": "3"}
