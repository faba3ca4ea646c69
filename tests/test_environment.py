"""The environment of a stage: checkout, GPUs."""

import subprocess

import pytest
import torch

from nanochat.environment import environment


def git(folder, *words) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=trunk"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_where_it_ran(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("nanochat.environment.ROOT", tmp_path)

    def commit():
        return environment()["Git Information"]["Commit"]

    assert commit() == "unknown (not a git checkout)"
    git(tmp_path, "init")
    for name in ("report.md", "code.py"):
        (tmp_path / name).write_text("old")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "First words")
    (tmp_path / "report.md").write_text("a new card")  # every run rewrites it
    assert commit().endswith(" (clean)")
    (tmp_path / "code.py").write_text("new")
    assert commit().endswith(" (dirty)")


GPUS = r"""printf 'NVIDIA H100 80GB HBM3, 81559\n%.0s' 1 2 | 2x NVIDIA H100 80GB HBM3 | 159.3 GB total
printf 'NVIDIA L4, 23034\nNVIDIA T4, 15360\n' | 1x NVIDIA L4, 1x NVIDIA T4 | 37.5 GB total
printf 'NVIDIA GB10, [N/A]\n' | 1x NVIDIA GB10 | None
echo no devices; exit 9 | none | None"""


@pytest.mark.parametrize("case", GPUS.splitlines())
def test_gpus(tmp_path, monkeypatch, case) -> None:
    smi, names, memory = case.split(" | ")
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    hardware = environment()["Hardware"]
    assert hardware["GPUs"] == names
    assert str(hardware.get("GPU Memory")) == memory
    # Without a GPU, nothing is said about CUDA.
    cuda = torch.version.cuda or "n/a"
    assert hardware.get("CUDA Version") == (None if names == "none" else cuda)
