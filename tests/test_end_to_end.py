"""The main job as a user runs it, from text to a model that answers; the other tests of this file read its results."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from committed_cards import check_committed
from outcomes import sections
from test_speedrun import steps_with

from bench.served import serving
from nanochat.jobs.plan import PLANNED_STAGES
from nanochat.paths import read_json
from tasks import WORLD_TASKS

RAN = [*PLANNED_STAGES.values()]

# Of the flags of the stages: what is evaluated is a few questions with short answers.
FEWER = {
    '"--max-per-task": "100"': '"--max-per-task": "8"',
    '"--max-problems": "200", "--max-new-tokens": "128"': '"--max-problems": "3", "--max-new-tokens": "8"',
    '"--max-new-tokens": "100"': '"--max-new-tokens": "8"',
    '"--eval-examples": "100"': '"--eval-examples": "3"',
    '"--eval-metrics-max-problems": "50"': '"--eval-metrics-max-problems": "3"',
    '"--eval-tokens": "30000"': '"--eval-tokens": "3000"',
    '"--max-problems": "400", "--max-new-tokens": "128"': '"--max-problems": "3", "--max-new-tokens": "8"',
    '"--num-iterations": "100", "--max-new-tokens": "128"': '"--num-iterations": "100", "--max-new-tokens": "8"',
    '"--eval-bytes": "500000"': '"--eval-bytes": "20000"',
}


def fewer(home: Path) -> None:
    """Let the stages of a copy of the code evaluate few questions with short answers."""
    scales = home / "nanochat/jobs/scales.py"
    text = scales.read_text(encoding="utf-8")
    for long, few in FEWER.items():
        assert long in text
        text = text.replace(long, few)
    scales.write_text(text, encoding="utf-8")


@pytest.mark.timeout(600)
def test_the_main_job(speedrun, base, here, tmp_path) -> None:
    """All stages on a world, then everything that uses the models and the card.

    A mirror of real data sets is there all the time, and no output names one.
    """
    fewer(speedrun.home)
    flags = ["--scale=embedded", "--depth", "1", "--seconds=1", "--wandb=world"]
    speedrun.env |= {"WANDB_MODE": "offline", "WANDB_DIR": str(base)}
    done = speedrun.run(*flags, cwd=tmp_path)
    assert done.stdout.startswith("\n== plan\n")
    assert steps_with(done.stdout, "done") == [*(stage.name for stage in RAN), "report"]
    scripts = {"tok_train", "tok_eval", "base_train", "base_loss", "base_eval", "mid_train", "chat_sft", "chat_rl"}
    assert {stage.script for stage in RAN} == scripts | {"chat_eval"}
    assert f"report card: {speedrun.home / 'report.md'}" in done.stdout
    assert "| Metric " in done.stdout
    *_, download, cli, web = done.stdout.splitlines()
    assert download == "left out: download, download_tasks (nothing has to be downloaded)"

    finished = {path: path.stat().st_mtime_ns for path in base.glob("*/default/*") if path.parts[-3] != "speedrun"}
    again = speedrun.run(*flags, cwd=tmp_path)
    assert steps_with(again.stdout, "already finished$") == [stage.name for stage in RAN]
    assert finished == {path: path.stat().st_mtime_ns for path in finished}

    check_the_card(base, speedrun.home)
    assert list(base.glob("wandb/*/*.wandb"))
    check_the_names(base, speedrun.home, done.stdout + done.stderr)
    # RL has its parent's temperature, and the suggestions that came with the base model.
    manifest = read_json(max(base.glob("chat_rl/default/step_*/manifest.json")))
    assert manifest["config"]["chat_temperature"] == 0.2
    assert len(manifest["suggestions"]["questions"]) == 6
    check_the_commands_to_talk(cli, web)
    with serving(base, tag="default") as server:  # scripts.chat_web
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        [choice] = server.http.post("/v1/chat/completions", json=body).json()["choices"]
        assert choice["finish_reason"] in ("stop", "length")
    assert "reward 0" in here("scripts.rollouts", "--tag=default", "--show=1").stdout
    here("bench.scaling")


def check_the_card(base, home) -> None:
    metrics = {}
    for stage in ("base_train", "base_loss"):
        metrics[stage] = read_json(base / stage / "default/outcome.json")["metrics"]
    # The same text and weights, in another precision perhaps.
    expected = pytest.approx(metrics["base_loss"]["val bpb"]["value"], rel=0.02)
    assert metrics["base_train"]["Final validation bpb"]["value"] == expected
    found = sections((home / "report.md").read_text(encoding="utf-8"))
    assert [*found] == ["Environment", *(stage.section for stage in RAN), "Summary"]
    pictures = re.findall(r"\]\((.*)\)", found["Base model training"])
    assert pictures
    for picture in pictures:
        assert (home / picture).read_text(encoding="utf-8").startswith("<svg")
    assert "| The capital of France is " in found["Base model loss"]
    check_committed("main", home / "report.md", base)


def check_the_commands_to_talk(cli: str, web: str) -> None:
    command = cli.removeprefix("talk to it: ")
    assert web == "in a browser: " + command.replace("scripts.chat_cli", "scripts.chat_web")
    command += " --max-new-tokens=4"
    done = subprocess.run(command, shell=True, cwd="/", env=os.environ, input="Hello\n", capture_output=True, text=True)
    assert (done.returncode, "model: chat_rl default" in done.stderr) == (0, True), done.stderr
    assert done.stdout


# Names of real data sets and benchmarks; CORE is one unless it is called World CORE.
REAL = re.compile(
    r"smol-?talk|gsm8?k|mmlu|arc[-_](?:easy|challenge)|ai2_arc|aqua|human_?eval|(?-i:CLIcK)|hrm8k|hae.?rae|alpaca|chatcore|"
    r"climbmix|fineweb|mixed-text|hellaswag|lambada|squad|boolq|winograd|jeopardy|(?<!world )core metric",
    re.IGNORECASE,
)


def check_the_names(base: Path, home: Path, terminal: str) -> None:
    seen = {"the terminal": terminal}
    for root in (base, base / "world", home / "report"):
        seen |= {str(path.relative_to(root)): f"{path.name}\n{read(path)}" for path in root.rglob("*")}
    for name in ("report.md", "report.html", "report.json"):
        seen[name] = read(home / name)
    assert len(seen) > 100
    found = {name: REAL.findall(text) for name, text in seen.items() if REAL.search(text)}
    assert not found
    card = seen["report.md"]
    assert "Learned from: embedded world, seed 1, synthetic (9 files" in card
    assert "\nCommand: bash speedrun.sh --scale=embedded --depth 1 --seconds=1 --wandb=world\n" in card
    for row in (*WORLD_TASKS, "World mean", "World CORE metric"):
        assert f"| {row} " in card.partition("## Summary")[2]


def read(path: Path):
    """Return a file's text; of tensors and other large binary files nothing, in which chance spells any word."""
    content = path.read_bytes() if path.is_file() else b""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("ascii", "replace") if len(content) < 100_000 else ""
