"""The container's image: what its commands need is copied."""

import re
from pathlib import Path

from nanochat.paths import read_toml

ROOT = Path(__file__).resolve().parents[3]


def test_the_image_has_the_packages_and_the_scripts_that_a_job_runs() -> None:
    text = (ROOT / "tracks/scale/Containerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for name in line.split()}
    assert all((ROOT / name).exists() for name in copied)
    settings = read_toml(ROOT / "pyproject.toml")
    packages = {name.rstrip("*") for name in settings["tool"]["setuptools"]["packages"]["find"]["include"]}
    needed = packages | {"rustbpe", "runs", "speedrun.sh", "pyproject.toml", "requirements.lock"}
    assert "tracks" in needed  # several nodes are in tracks/scale
    assert needed <= copied
