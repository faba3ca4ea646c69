"""Ladders of tiny models, as a user trains and compares them: killed, resumed, and mistakes."""

import json
import os
import re
import signal
import subprocess
import time

import pytest
from small_runs import SMALL

FLAGS = ["--data=letters", "--depths=1,2", "--vocab-size=300", *SMALL, "--num-iterations=3"]
SAME_FLOPS = "--target-flops gives all depths the same FLOPs, and this is a curve over them: use"
ENDED = re.compile("== (.*): already finished")


def test_a_ladder_that_is_killed_goes_on_and_two_are_compared(series, quick, base, tmp_path) -> None:
    words = [quick, "-m", "scripts.ladder", "--tag=one", "--seeds=1,2", *FLAGS]
    environment = os.environ | {"NANOCHAT_BASE_DIR": str(base), "OMP_NUM_THREADS": "1"}
    with (
        open(tmp_path / "killed.txt", "w") as out,
        subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=out) as run,
    ):
        end = time.monotonic() + 120
        while not (base / "ladder/one/s1-d2.json").exists():  # its third step has begun
            assert time.monotonic() < end
            assert run.poll() is None
            time.sleep(0.02)
        run.send_signal(signal.SIGKILL)
    finished = [base / "tok_train/one/outcome.json", base / "base_train/one-s1-d1/outcome.json"]
    done = {path: path.stat().st_mtime_ns for path in finished}
    assert not (base / "ladder/one/curve.log").exists()
    # The step at work outlives the killed job, and holds its folder until it has ended.
    command = [*words, "--out=one.md"]
    while (
        again := subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    ).returncode == 2:
        assert "another process runs in" in again.stderr
        assert time.monotonic() < end
        time.sleep(0.2)
    assert again.returncode == 0, again.stderr
    assert ENDED.findall(again.stdout)[:2] == ["tok_train", "s1-d1"]
    assert done == {path: path.stat().st_mtime_ns for path in done}
    lines = (base / "ladder/one/curve.log").read_text(encoding="utf-8").splitlines()
    assert [line.split()[1] for line in lines] == [f"model_tag=one-s{s}-d{d}" for s in (1, 2) for d in (1, 2)]
    card = (tmp_path / "one.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| one-s[12]-d[12] ", card, re.MULTILINE)) == 4
    assert "## Ladder" in card
    assert "![Bits per byte against compute](one/ladder-one-1.svg)" in card

    # Another recipe, with one seed: its spread is taken from the first ladder.
    series("scripts.ladder", "--tag=two", "--seeds=1", *FLAGS, "--matrix-lr=0.1")
    compared = series("scripts.ladder", "--compare", "one", str(base / "ladder/two/curve.log")).stdout
    assert compared.startswith("Compute multiplier of two over one\n")
    assert len(re.findall(r"^\| [12] +\| \d\.\d{4} ", compared, re.MULTILINE)) == 2
    assert "Each depth of two has one run" in compared
    found = json.loads(series("scripts.ladder", "--compare", "one", "two", "--json", "--level=0.8").stdout)
    assert (found["level"], found["paired"], [row["depth"] for row in found["multipliers"]]) == (0.8, False, [1, 2])
    cards = series("nanochat.report", "--compare", str(tmp_path / "one.json"), str(tmp_path / "two.json")).stdout
    assert "\nCompute multiplier of B over A\n" in cards


def test_a_dry_run_plans_each_depth(series, base) -> None:
    plans = series("scripts.ladder", *FLAGS, "--seeds=1,2", "--dry-run").stdout
    assert plans.count("Number of parameters:") == 2
    assert plans.endswith("Each depth is trained with 2 seeds: 1,2\n")
    assert not (base / "tok_train").exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--depths=2"], "--depths=2 is one depth alone: a ladder has two or more, like --depths=2,4,6"),
        (["--depths=2,2"], "--depths names 2 twice: each run counts once"),
        (["--depths=2,x"], "--depths=2,x has to be a list of depths like 2,4,6"),
        (["--seeds="], "--seeds= has to be a list of seeds like 1,2,3"),
        (["--seeds=1,1"], "--seeds names 1 twice: each run counts once"),
        (["--seed=2"], "--seed differs between runs: use --seeds"),
        (["--eval-every=-1"], "--eval-every=-1 measures no bits per byte, and a ladder is a curve of them"),
        (["--flags=--eval_every -1"], "--eval-every=-1 measures no bits per byte, and a ladder is a curve of them"),
        (["--target-flops=1e9"], f"{SAME_FLOPS} --target-param-data-ratio, or scripts.scaling_laws"),
        (["--target_flops=1e9"], f"{SAME_FLOPS} --target-param-data-ratio, or scripts.scaling_laws"),
        (["--warmup-step=2"], "unknown argument --warmup-step, did you mean --warmup-steps?"),
        (["--level=0.8"], "--json and --level are for a comparison: add --compare ONE OTHER"),
        (["--compare", "one"], "--compare needs two ladders, the baseline first, not 1"),
        (["--compare", "one", "two"], "there is no ladder one in "),
        (["--compare", "one", "two", "--lvl=1"], "--compare trains nothing, so there is no use for --lvl=1"),
        (["--compare", "one", "two", "--level=1"], "--level has to be 0 or more and below 1, not 1.0"),
    ],
)
def test_a_mistake_is_found_before_anything_is_trained(series, base, flags, sentence) -> None:
    refused = series("scripts.ladder", "--data=letters", *flags, code=2)
    assert refused.stderr.startswith(f"error: {sentence}")
    assert not (base / "tok_train").exists()
