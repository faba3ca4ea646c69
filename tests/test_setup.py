"""Ways to install, in a copy of the repository: runs/setup.sh, uv, pip; another folder, a path with spaces, no Rust."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT
from pages import HARDWARE, blocks

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


def write_distribution(packages: Path, name: str) -> None:
    """Install an empty package without an installer."""
    (packages / name).mkdir()
    (packages / name / "__init__.py").write_text("")
    record = packages / f"{name}-0.1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (record / "RECORD").write_text(f"{name}/__init__.py,,\n{record.name}/METADATA,,\n{record.name}/RECORD,,\n")


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
@pytest.mark.timeout(1800)
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

    # `uv sync` removes packages that it does not know of; a distribution called rustbpe has files where ours are.
    uv = [checkout / ".venv/bin/uv", "pip", "uninstall", "--quiet", "--python", python]
    subprocess.run([*uv, "pytest", "nanochat-rustbpe"], check=True)
    [packages] = (checkout / ".venv").glob("lib/python*/site-packages")
    write_distribution(packages, "rustbpe")
    assert "done" in run(setup, tmp_path).stdout
    assert not list(packages.glob("rustbpe-*.dist-info"))
    subprocess.run([python, "-c", "import pytest, rustbpe; rustbpe.train"], cwd=tmp_path, check=True)
    assert run(setup, tmp_path).stdout == "setup: nothing changed\n"

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


# What uv prints where packages cannot be had.
NO_NETWORK = r"[Nn]etwork|Failed to fetch|error sending request|dns error|timed out|operation timed out|[Oo]ffline"
TOKENIZER = "-m scripts.tok_train --vocab-size=512 --data=world"
FIRST_STEPS = """-m scripts.base_train --depth=2 --head-dim=32 --max-seq-len=128 --total-batch-size=1024
--num-iterations=3 --eval-bytes=20000 --data=world"""


@pytest.fixture
def alone(checkout, tmp_path):
    """A function that runs a command in the copy, without the environment that runs the tests; it skips without uv."""
    if shutil.which("uv") is None:
        pytest.skip("no uv is installed")
    if shutil.which("cargo") is None:
        pytest.skip("no cargo is installed")
    ours = ("NANOCHAT_", "VIRTUAL_ENV", "PYTHONPATH", "HF_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"NANOCHAT_BASE_DIR": str(tmp_path / "base"), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}

    def run(*command: str | Path, code: int = 0, cwd: Path = checkout):
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=1500)
        if code == 0 and done.returncode and re.search(NO_NETWORK, done.stderr):
            pytest.skip(f"packages cannot be had here: {done.stderr.strip()[-300:]}")
        assert done.returncode == code, done.stderr
        return done

    return run


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_uv_leads_to_the_first_training_steps(checkout, alone, tmp_path) -> None:
    """The commands of docs/install.md, as they stand there."""
    lines = [line for _, content in blocks(ROOT / "docs/install.md") for line in content.splitlines()]
    shown = [line.split() for line in lines if line.startswith("uv ") and HARDWARE not in line]
    assert shown[0] == ["uv", "sync"]
    printed = [alone(*words).stdout for words in shown]
    assert "step 00030 | val/bpb: " in printed[-1]
    assert (tmp_path / "base/base_train/d2/outcome.json").exists()
    serving = alone("uv", "run", "python", "-m", "scripts.chat_web", "-i", "base", "-g", "d2", code=2).stderr
    assert " is not installed: add the extra serve, by `uv sync --extra=serve`" in serving
    changed = checkout / "rustbpe/src/lib.rs"
    changed.write_text(changed.read_text() + "\nbroken\n")
    assert "error: expected" in alone("uv", "sync", code=1).stderr  # a changed source is built again


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_pip_installs_both_folders_and_the_result_runs_elsewhere(checkout, alone, tmp_path) -> None:
    """Without what pyproject.toml tells uv about the path, as pip does it."""
    python = tmp_path / "environment/bin/python"
    alone("uv", "venv", "--python", sys.executable, tmp_path / "environment")
    alone("uv", "pip", "install", "--no-sources", "--python", python, "./rustbpe", ".")
    checkout.rename(tmp_path / "gone")
    alone(python, *TOKENIZER.split(), cwd=tmp_path)
    assert "step 00003" in alone(python, *FIRST_STEPS.split(), cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("machine", "documented", "said"),
    [
        ("Linux x86_64", "| `requirements.lock`, with hashes | 3.3 GB | 6.0 GB |", "3.3 GB and takes 6 GB on disk, "),
        ("Linux aarch64", "On Arm `runs/setup.sh` downloads 3.5 GB", "3.5 GB, "),
        ("Darwin arm64", "on macOS 0.4 GB", "0.4 GB (docs/install.md)"),
    ],
)
def test_the_sizes_are_those_of_the_page(machine, documented, said) -> None:
    assert documented in " ".join((ROOT / "docs/install.md").read_text(encoding="utf-8").split())
    setup = (ROOT / "runs/setup.sh").read_text(encoding="utf-8")
    [function] = re.findall(r"^first_download\(\) \{\n.*?^\}\n", setup, re.MULTILINE | re.DOTALL)
    script = f"uname() {{ echo {machine}; }}\n{function}first_download"
    printed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.startswith(f"the first installation downloads {said}")
    assert ("most of it CUDA libraries" in printed) == machine.startswith("Linux")


def test_the_sizes_were_summed_with_the_locked_torch() -> None:
    """runs/setup.sh and docs/install.md say what the first installation downloads: sum it again for another torch."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    [newest] = re.findall(r"^torch==(\S+) ; python_full_version >= '3\.11'", lock, re.MULTILINE)
    for name in ("runs/setup.sh", "docs/install.md"):
        assert re.search(rf"(torch|PyTorch) {re.escape(newest)}\b", (ROOT / name).read_text(encoding="utf-8")), name
