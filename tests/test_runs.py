"""The named runs of runs/, as a user starts them, in a copy of the folder with this environment."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

SMALL = ["--aspect-ratio=32", "--head-dim=32", "--max-seq-len=128", "--total-batch-size=256", "--device-batch-size=2"]
SMALL += "--vocab-size=300 --no-compile --dtype=fp32 --eval-bytes=3000 --eval-every=0 --sample-every=-1".split()
ROW = re.compile(r"^\| (\S+) +\| (\d+) +\| ([\d,]+) +\| ([\d,]+) +\| ([\d.]+) +\| (\S+) +\| (\S+) ± \S+ +\|$", re.M)


@pytest.fixture
def runs(tmp_path, base, text_folder):
    """A function that starts a script of runs/ in the folder that has `letters`."""
    home = tmp_path / "a path with spaces"
    shutil.copytree(ROOT / "runs", home / "runs")
    python = f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "$@"\n'
    for name, text in [("runs/setup.sh", "exit 0\n"), (".venv/bin/python", python), ("speedrun.sh", 'echo "$@"\n')]:
        (home / name).parent.mkdir(exist_ok=True, parents=True)
        (home / name).write_text(text)
        (home / name).chmod(0o755)

    def run(name: str, *flags: str) -> subprocess.CompletedProcess:
        env = os.environ | {"NANOCHAT_BASE_DIR": str(base), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
        words = ("bash", str(home / "runs" / name), *flags)
        return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)

    return run


def test_a_miniseries_is_a_table_and_a_plot_and_resumes(runs, base, tmp_path):
    flags = ["--data=letters", "--tag=mini", "--out=mini.md", *SMALL, "--target-param-data-ratio=0.05"]
    one = runs("miniseries.sh", "--depths=2", *flags)
    assert one.returncode == 0, one.stderr
    ended = {path: path.stat().st_mtime_ns for path in base.glob("*/*/outcome.json")}
    assert len(ended) == 2
    # Again with one depth more: what has ended stays as it is.
    two = runs("miniseries.sh", "--depths=2,1", *flags)
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("the run ended at step") == 1
    assert ended == {path: path.stat().st_mtime_ns for path in ended}
    text = (tmp_path / "mini.md").read_text(encoding="utf-8")
    rows = ROW.findall(text)
    assert [(tag, depth) for tag, depth, *_ in rows] == [("mini-d1", "1"), ("mini-d2", "2")]
    assert re.search(r"^With ten times the FLOPs, bits per byte are \d\.\d+ times as many", text, re.MULTILINE)
    assert "![Bits per byte against compute](mini.svg)" in text
    assert "power law</text>" in (tmp_path / "mini.svg").read_text(encoding="utf-8")
    other = runs("miniseries.sh", "--depths=2", *flags, "--vocab-size=310")
    assert other.returncode == 2
    assert other.stderr == "error: the vocabulary of --tag=mini has --vocab-size=300, not 310: take another --tag\n"


@pytest.mark.slow
def test_scaling_laws_end_with_the_ratio_that_they_suggest(runs, tmp_path):
    sweeps = ["--sweep=4e9:1,2,3", "--sweep=1e10:1,2,3"]
    done = runs("scaling_laws.sh", "--data=letters", *sweeps, "--out=laws.md", *SMALL, "--warmup-steps=5")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "laws.md").read_text(encoding="utf-8")
    rows = ROW.findall(text)
    tags = [f"scaling-{budget}-d{depth}" for depth in (1, 2, 3) for budget in ("4e9", "1e10")]
    assert [row[0] for row in rows] == tags
    for tag, *_, flops, _ in rows:
        assert float(flops) == pytest.approx(float(tag.split("-")[1]), rel=0.05)
    assert "## The best size of each budget" in text
    assert "![Bits per byte at fixed compute](laws.svg)" in text
    assert "1e+10 FLOPs</text>" in (tmp_path / "laws.svg").read_text(encoding="utf-8")


def test_an_evening_on_a_laptop_is_a_scale_of_the_main_job(runs):
    assert runs("cpu.sh", "--data=my text", "--tag=mine").stdout == "--scale=cpu --data=my text --tag=mine\n"
