"""The named runs of runs/, as a user starts them, in a copy of the folder with this environment."""

import os
import subprocess

import pytest
from conftest import ROOT, checked, copy_runs

MOVED = {
    "data": "tracks.chatdata.run",
    "golf": "tracks.golf.run",
    "lab": "tracks.lab.embedded",
    "puzzles": "tracks.recursion.sudoku",
    "recursion": "tracks.recursion.run",
    "train_h100_extreme": "tracks.recursion.phases --phase=extreme",
    "train_h100_fast": "tracks.recursion.phases --phase=fast",
}


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


def test_an_evening_on_a_laptop_is_a_scale_of_the_main_job(runs) -> None:
    assert runs("cpu.sh", "--data=my text", "--tag=mine").stdout == "--scale=cpu --data=my text --tag=mine\n"


@pytest.mark.parametrize("name", ["miniseries", "scaling_laws"])
def test_a_series_of_the_trunk_has_a_script(runs, name) -> None:
    assert f"usage: python -m scripts.{name} " in runs(f"{name}.sh", "--help").stdout


@pytest.mark.parametrize("name", MOVED)
def test_a_moved_run_names_its_command(runs, name) -> None:
    refused = runs(f"{name}.sh", "--seeds=1", code=2)
    assert refused.stderr == f"error: runs/{name}.sh has moved: run python -m {MOVED[name]}, with the same flags\n"
