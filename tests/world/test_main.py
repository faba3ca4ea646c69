"""`python -m nanochat.world`: the same bytes in every process; a finished world stays, anything else is refused."""

import re
from pathlib import Path

import pytest

from nanochat.world.__main__ import Config, main
from nanochat.world.writer import VERSION, write_world

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def mirror(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world") / "tiny"
    assert write_world(folder, seed=1, size="tiny")
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_processes_write_the_same_bytes(mirror, tmp_path, python):
    done = python("-m", "nanochat.world", f"--out={tmp_path / 'again'}", "--size=tiny", PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "again") == files_of(mirror)
    assert done.stdout.splitlines()[-1].startswith(f"{tmp_path / 'again'}: written, 44 files, ")


def test_a_finished_world_is_left_alone(mirror, capsys):
    before = {path: path.stat().st_mtime_ns for path in mirror.rglob("*")}
    main(Config(out=str(mirror), size="tiny"))
    assert "already there, 44 files" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in mirror.rglob("*")} == before


def test_other_folders_and_sizes_are_refused(mirror):
    for out, size, seed, message in (
        ("", "tiny", 1, "--out is missing, name the folder to write"),
        ("x", "huge", 1, "--size=huge is not a size of the world, use tiny or small or medium"),
        (mirror, "tiny", 2, f"another world (seed 1, size tiny, version {VERSION}), remove it or name another"),
        (ROOT, "tiny", 1, "holds something other than a world, remove it or name another folder"),
        (ROOT / "README.md", "tiny", 1, "is a file, name a folder"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            main(Config(out=str(out), seed=seed, size=size))
