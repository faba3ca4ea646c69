"""runs/setup.sh in a copy of the repository: another folder, a path with spaces, no Rust."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

NEEDED = "pyproject.toml requirements.lock LICENSE README.md runs rustbpe nanochat scripts tasks tracks".split()


@pytest.fixture
def checkout(tmp_path):
    """A copy of the files that setup needs, on a path with spaces."""
    copy = tmp_path / "a path with spaces" / "nanochat"
    copy.mkdir(parents=True)
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("target", "__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


def run(script: Path, elsewhere: Path, path: str = ""):
    environment = {**os.environ, "PATH": path + os.environ["PATH"]}
    return subprocess.run(["bash", script], cwd=elsewhere, env=environment, capture_output=True, text=True)


def test_without_cargo_and_rustup_one_sentence_says_what_to_install(checkout, tmp_path) -> None:
    for name in ("cargo", "curl"):  # as on a machine without Rust and without a network
        stub = tmp_path / "stubs" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text("#!/bin/sh\nexit 1\n")
        stub.chmod(0o755)
    done = run(checkout / "runs" / "setup.sh", tmp_path, path=f"{stub.parent}:")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "install Rust" in done.stderr
    assert not (checkout / ".venv").exists()


def test_without_a_linker_one_sentence_says_what_to_install(checkout, tmp_path) -> None:
    for name in ("bash", "cat", "cksum", "dirname", "find", "sort"):
        (tmp_path / name).symlink_to(shutil.which(name))
    command = [tmp_path / "bash", checkout / "runs" / "setup.sh"]
    done = subprocess.run(command, env={"HOME": "/", "PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("setup: no C linker (cc): install one")


@pytest.mark.slow
def test_setup_is_idempotent_and_recovers(checkout, tmp_path) -> None:
    setup, python = checkout / "runs" / "setup.sh", checkout / ".venv" / "bin" / "python"
    works = [python, "-c", "import rustbpe, nanochat, scripts, numpy; print(nanochat.__file__)"]
    first = run(setup, tmp_path)
    assert first.returncode == 0, first.stderr
    assert "warning" not in first.stderr.lower()
    where = subprocess.run(works, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert where.startswith(str(checkout))

    assert run(setup, tmp_path).stdout == "setup: nothing changed\n"

    source = checkout / "rustbpe" / "src" / "lib.rs"
    sound = source.read_text()
    source.write_text(sound + "\nbroken\n")
    broken = run(setup, tmp_path)
    assert broken.returncode == 1
    assert "error: expected" in broken.stderr
    source.write_text(sound + "\n// fixed\n")
    fixed = run(setup, tmp_path)
    assert fixed.returncode == 0
    assert "made .venv" not in fixed.stdout  # updated in place

    # A setup that was killed while it installed packages: no mark of completion, and half a package.
    (checkout / ".venv" / "ready").unlink()
    shutil.rmtree(next((checkout / ".venv").glob("lib/python*/site-packages/numpy")))
    assert "made .venv" in run(setup, tmp_path).stdout
    subprocess.run(works, cwd=tmp_path, check=True, capture_output=True)


def test_the_wheel_has_every_module_and_data_file(checkout, tmp_path) -> None:
    """And the package runs from the wheel alone, away from the repository."""
    build = "import sys, setuptools.build_meta; print(setuptools.build_meta.build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=checkout, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    folders = [checkout / name for name in ("nanochat", "scripts", "tasks", "tracks")]
    needed = [path for folder in folders for path in folder.rglob("*") if path.suffix in {".py", ".html", ".txt"}]
    needed = [path for path in needed if "tests" not in path.parts]
    assert {path.relative_to(checkout).as_posix() for path in needed} <= packed

    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    command = [sys.executable, "-m", "nanochat.world", f"--out={tmp_path / 'world'}", "--size=tiny"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
