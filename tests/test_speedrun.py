"""speedrun.sh as a user meets it: killed, started twice, changed; tests/test_end_to_end.py runs the whole job."""

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import fields

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_hub import BadHub
from conftest import ROOT
from pages import OF_TRUNK, shown
from terminals import NEEDS_SETSID, start_in_terminal

from nanochat.data.corpus import CORPORA
from nanochat.paths import hold_folder, write_text
from scripts.plan import Config

# Below the time for which the model is compiled.
LONG, SHORT = (["--depth=1", "--until=base_loss", f"--seconds={seconds}"] for seconds in (100, 1))


def until(condition: Callable[[], object], awaited: str) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, f"{awaited} did not come"
        time.sleep(0.05)


def steps_with(text: str, message: str):
    """Return the steps that have a line like `== base_train: already finished` in the output."""
    return re.findall(rf"^== (\w+): {message}", text, re.MULTILINE)


SHOWN = shown("speedrun.sh", OF_TRUNK) + shown("runs/cpu.sh", OF_TRUNK)


@pytest.mark.parametrize("command", SHOWN, ids=" ".join)
def test_the_commands_in_the_docs_can_be_planned(command, here, text_folder, tmp_path, monkeypatch) -> None:
    """test_end_to_end.py runs such a command; tests/test_runs.py shows that cpu.sh passes its flags on."""
    shutil.copytree(text_folder, tmp_path / "my-text")
    monkeypatch.chdir(ROOT)  # restored after --cwd
    _, script, *flags = command
    scale = ["--scale=cpu"] if script == "runs/cpu.sh" else []
    done = here("scripts.plan", *flags, *scale, f"--cwd={tmp_path}")
    assert ("scale: cpu" in done.stdout) == (script == "runs/cpu.sh")
    assert (f"text: folder:{tmp_path}/my-text" in done.stdout) == ("--data=my-text" in flags)


def test_the_help_names_every_flag_and_needs_no_environment(speedrun) -> None:
    write_text(speedrun.home / "runs/setup.sh", "exit 3")
    done = speedrun.run("--help")
    named = re.findall(r"^ +--([\w-]+)", done.stdout, re.MULTILINE)
    of_the_plan_alone = {"on", "cwd", "save"}
    assert set(named) == {one.name.replace("_", "-") for one in fields(Config)} - of_the_plan_alone
    speedrun.run(code=3)  # of the setup, which says itself what is wrong


def test_a_dry_run_prints_the_plan_and_leaves_everything_as_it_was(speedrun, base) -> None:
    """Other flags count, --fresh too, but it archives nothing. Packages are installed only without an environment."""
    write_text(speedrun.home / "runs/setup.sh", "echo 'setup runs' && exit 7")
    write_text(base / "base_train/default/outcome.json", "{}")
    (speedrun.home / ".venv/ready").touch()

    def state():
        files = {path: path.lstat().st_mtime_ns for path in speedrun.home.rglob("*") if path.is_file()}
        own = {path: time for path, time in files.items() if path.suffix != ".pyc"}  # Python's, beside the code
        return own | {path: path.lstat().st_mtime_ns for path in base.rglob("*")}

    before = state()
    done = speedrun.run("--dry-run", "--fresh", "--scale=embedded", "--depth=1", "--until=base_train")
    assert (done.stderr, "setup runs" in done.stdout) == ("", False)
    assert done.stdout.startswith("\n== plan\nscale: embedded, ")
    assert "; depth 1\n" in done.stdout
    assert "left out: base_loss, base_eval" in done.stdout
    assert "error: --data=nowhere is not a folder" in speedrun.run("--dry-run", "--data=nowhere", code=2).stderr
    assert state() == before
    (speedrun.home / ".venv/ready").unlink()
    assert speedrun.run("--dry-run", code=7).stdout == "setup runs\n"


def test_several_nodes_without_their_track_are_refused(speedrun) -> None:
    shutil.rmtree(speedrun.home / "tracks/scale", ignore_errors=True)
    speedrun.env |= {"NANOCHAT_NODES": "2", "NANOCHAT_HEAD": "localhost:29500"}
    sentence = "error: NANOCHAT_NODES=2: a job on several nodes belongs to tracks/scale, which is not here\n"
    assert sentence == speedrun.run(code=2).stderr
    assert sentence == speedrun.run("--dry-run", code=2).stderr


@pytest.mark.timeout(600)
def test_killed_started_twice_and_changed(speedrun, base) -> None:
    run, stage, here = base / "speedrun/default", base / "base_train/default", base.parent
    log = run / "base_train.log"
    assert "--until" in speedrun.run("--help").stdout
    speedrun.env |= {"NANOCHAT_BASE_DIR": "base", "NANOCHAT_HUB": "hub"}  # relative to the current folder
    killed = speedrun.start(*LONG, cwd=here)
    until(lambda: log.exists() and "\nstep " in log.read_text(), "a step")
    second = speedrun.run(*LONG, cwd=here, code=2)
    assert f"another process runs in {run}: wait until it ends, or use another --tag" in second.stderr
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()

    # The same command resumes. A signal to the script alone, which bash would ignore, reaches the stage, which saves.
    stopped = speedrun.start(*LONG, cwd=here)
    until(lambda: log.read_text().count("\n== ") and "\nstep " in log.read_text().rpartition("\n== ")[2], "a step")
    stopped.send_signal(signal.SIGINT)
    text, _ = stopped.communicate()
    assert stopped.returncode == 128 + signal.SIGINT
    assert steps_with(text, "already finished") == ["tok_train", "tok_eval"]
    assert "speedrun: base_train was stopped by SIGTERM\n  log: " in text
    assert text.splitlines()[-1] == f"  resume with: bash '{speedrun.home}/speedrun.sh' {' '.join(LONG)}"
    assert list(stage.glob("step_*/manifest.json"))

    # Another flag: the stage and the following ones are repeated, earlier ones are not; old results are kept.
    done = speedrun.run(*SHORT, cwd=here)
    assert steps_with(done.stdout, "already finished") == ["tok_train", "tok_eval"]
    assert "== base_train: repeated, --target-seconds=100 is now --target-seconds=1\nearlier results" in done.stdout
    assert steps_with(done.stdout, "done") == ["base_train", "base_loss"]
    [kept] = (run / "archive").iterdir()
    assert list(kept.glob("step_*/manifest.json"))
    assert "left out: base_eval, download_tasks, mid_train, chat_eval_mid" in done.stdout
    assert not (speedrun.home / "report.md").exists()


def test_a_stage_that_has_failed_gets_no_signal(speedrun, base) -> None:
    """By then its number may be another process's."""
    speedrun.env |= {"BASH_FUNC_kill%%": '() { echo "a signal: $*"; }'}
    with hold_folder(base / "base_train/default"):
        failed = speedrun.start(*SHORT)
        text, _ = failed.communicate()
    assert failed.returncode == 2
    assert "another process runs in" in text
    assert steps_with(text, "done") == ["tok_train", "tok_eval"]
    assert "a signal" not in text


@NEEDS_SETSID
def test_the_main_job_outlives_its_terminal_or_saves(speedrun, base) -> None:
    command = [*speedrun.command, *SHORT]
    hung_up = start_in_terminal([*speedrun.command, *LONG], "hung up", ROOT, speedrun.env, "\nstep 00000")
    assert hung_up.wait(120) == 128 + signal.SIGHUP
    assert list((base / "base_train/default").glob("step_*/manifest.json"))
    assert start_in_terminal(command, "nohup", ROOT, speedrun.env, "== base_train: python").wait(240) == 0
    assert (base / "base_loss/default/outcome.json").exists()


def test_text_of_the_hub_comes_beside_the_tokenizer(speedrun, base, tmp_path) -> None:
    files = {}
    for number, file in enumerate(CORPORA["climbmix"].files()):
        texts, content = [f"{number} {row} of the hub's text" for row in range(200)], pa.BufferOutputStream()
        pq.write_table(pa.table({"text": texts}), content)
        files[f"{file.repo}/{file.path}"] = content.getvalue().to_pybytes()
    with BadHub(files) as hub:
        online = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": ""}
        speedrun.env = {name: value for name, value in speedrun.env.items() if name != "NANOCHAT_HUB"} | online
        done = speedrun.run("--scale=cpu", "--until=tok_train", "--tag=hub")
    assert {"download", "tok_train"} == set(steps_with(done.stdout, "done"))
    assert "text: climbmix" in done.stdout
    assert "\ndata: climbmix: 9 files, " in (base / "speedrun/hub/download.log").read_text()
