"""What the tests of stages share: real processes in an environment of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The folder where the processes of `python` leave their artifacts."""
    return tmp_path / "base"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory) -> dict[str, str]:
    """The variable with which processes find what others have compiled before them, those of other workers too."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    return {"TORCHINDUCTOR_CACHE_DIR": str(shared / "compiled")}


@pytest.fixture
def python(base: Path, compiled: dict[str, str]):
    """Run `python ARGUMENTS` in the repository's root, without this machine's settings; `variables` are added."""

    def run(*arguments: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess:
        ours = ("NANOCHAT_", "HF_", "TIKTOKEN_", "WANDB_", "RANK", "COLUMNS", "PYTHONPATH")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env |= {"NANOCHAT_BASE_DIR": str(base), **compiled, **variables}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)

    return run


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """A little text of several kinds in a folder named `letters`."""
    folder = tmp_path / "letters"
    folder.mkdir()
    for number in range(40):
        lines = [
            f"Letter {number}: the quick brown fox — 빠른 갈색 여우 — {line**3} {line:x} {'ab' * (line % 9)}\n"
            for line in range(60)
        ]
        (folder / f"{number:02d}.txt").write_text("".join(lines), encoding="utf-8")
    return folder
