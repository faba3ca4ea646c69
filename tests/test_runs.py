"""The named runs of runs/, as a user starts them, in a copy of the folder with this environment."""

import os
import re
import subprocess

import pytest
from conftest import ROOT, checked, copy_runs

SMALL = ["--aspect-ratio=32", "--head-dim=32", "--max-seq-len=128", "--total-batch-size=256", "--device-batch-size=2"]
SMALL += "--vocab-size=300 --no-compile --dtype=fp32 --eval-bytes=3000 --eval-every=0 --sample-every=-1".split()
ROW = re.compile(r"^\| (\S+-d\d+) +\| (\d+) +\|(?: +[\d.,]+ +\|){3} (\S+) +\| \S+ +\| (\S+) +\| \S+ +\|$", re.M)


@pytest.fixture
def runs(tmp_path, base, text_folder, quick):
    """A function that starts a script of runs/ in the folder that has `letters`."""
    home = tmp_path / "a path with spaces"
    python = f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{quick}" "$@"\n'
    copy_runs(home, {".venv/bin/python": python, "speedrun.sh": 'echo "$@"\n'})

    def run(name: str, *flags: str, code: int = 0):
        env = os.environ | {"NANOCHAT_BASE_DIR": str(base), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
        words = ("bash", str(home / "runs" / name), *flags)
        return checked(subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True), code)

    return run


def test_an_evening_on_a_laptop_is_a_scale_of_the_main_job_and_phases_are_presets(runs):
    assert runs("cpu.sh", "--data=my text", "--tag=mine").stdout == "--scale=cpu --data=my text --tag=mine\n"
    # The plans of a recursive model's phases; the tests of the training script have recursive runs.
    for phase, preset in (("fast", "aggressive"), ("extreme", "extreme")):
        done = runs(f"train_h100_{phase}.sh", "--data=letters", *SMALL, "--dry-run")
        assert f"recursion {preset}: each block runs 4 exits x 1 passes x (2 loops + 1) times" in done.stdout


@pytest.mark.slow
def test_recursion_on_puzzles_ends_with_a_table(runs):
    flags = ["--data=letters", "--steps=3", "--width=32", "--depth=1", "--seeds=1"]
    done = runs("puzzles.sh", *flags)
    table = done.stdout[done.stdout.index("Sudoku-4: 200 held-out problems") :].splitlines()
    assert [line.split()[1] for line in table[1:]] == ["Arm", "---", "R", "P", "W"]


@pytest.mark.slow
def test_recursion_is_compared_with_its_compute(runs, tmp_path):
    flags = ["--data=letters", "--steps=20", "--depth=1", "--width=32", "--seeds=2", *SMALL, "--eval-every=5"]
    flags += ["--max-seq-len=64", "--out=card/recursion.md", "--save-every=10"]
    one = runs("recursion.sh", *flags)
    assert "\nVerdict: " in one.stdout
    card = (tmp_path / "card/recursion.md").read_text(encoding="utf-8")
    assert "## Recursion" in card
    again = runs("recursion.sh", *flags)
    assert again.stdout.count("nothing is left to train") == 10


RECURSION_WORDS = ["--data=letters", *SMALL]
# script flag | beginning of the sentence
MISTAKES = """
recursion --seeds=abc | --seeds=abc has to be a number from 1
recursion --seed=7 | --seed differs between arms: give --seeds, --preset or --steps
recursion --preset=off | --preset=off is no recursion: take moderate, aggressive or extreme
"""


@pytest.mark.parametrize("case", MISTAKES.strip().splitlines())
def test_a_mistake_in_a_flag_is_found_first(runs, case):
    words, sentence = case.split(" | ")
    script, flag = words.split()
    assert runs(f"{script}.sh", *RECURSION_WORDS, flag, code=2).stderr.startswith(f"error: {sentence}")
