"""Copies of the tree without some of its tracks.

python tests/copies.py FOLDER                 a copy without any track, in which runs/test.sh tests the trunk
python tests/copies.py FOLDER golf export     a copy without these
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Files that Python is writing, which may be gone when they are copied.
BEING_COMPILED = shutil.ignore_patterns("*.pyc.*")


def track_names(root: Path = ROOT) -> list[str]:
    """The tracks of a tree."""
    return sorted(path.parent.name for path in (root / "tracks").glob("*/__init__.py"))


def copy_tree(folder: Path, without: Collection[str]) -> Path:
    """Copy what is or could be committed, but for some tracks, to a new folder; returns the folder.

    The copy has git's history, and an environment with the same packages, where `nanochat` is the copy. The folder with
    mirrors of data sets lies beside it, as beside the tree. Compiled code comes along: where Python may not write it,
    each process would compile all that it imports.
    """
    for name in listed():
        parts = Path(name).parts
        if parts[0] != "tracks" or len(parts) == 2 or parts[1] not in without:
            for file in [ROOT / name, *compiled_files(ROOT / name)]:
                place = folder / file.relative_to(ROOT)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, place)
    shared = ROOT.parent / "shared"
    if shared.is_dir() and not (folder.parent / "shared").exists():
        (folder.parent / "shared").symlink_to(shared)
    link_history(folder)
    make_environment(folder)
    return folder


def compiled_files(source: Path) -> list[Path]:
    """What Python has made of a source file. It is used as long as the source has the same size and time."""
    return list((source.parent / "__pycache__").glob(f"{source.stem}.cpython-*.pyc")) if source.suffix == ".py" else []


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "safe.directory=*", *words]  # in a container, a checkout may be another user's
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def has_history() -> bool:
    return (ROOT / ".git").exists()


def listed() -> list[str]:
    """Paths of what is or could be committed; in a tree without git, all but what tools have made."""
    if has_history():
        names = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        return [name for name in names if (ROOT / name).is_file()]
    made = {".venv", "target", "__pycache__", ".pytest_cache", ".ruff_cache"}
    paths = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [path.as_posix() for path in paths if made.isdisjoint(path.parts)]


def link_history(folder: Path) -> None:
    """Let the copy have the commit of the tree, and its files as changes to it; objects stay where they are."""
    if not has_history():
        return
    objects = (ROOT / git(ROOT, "rev-parse", "--git-path", "objects").strip()).resolve()
    git(folder, "init", "--quiet")
    (folder / ".git/objects/info/alternates").write_text(f"{objects}\n", encoding="utf-8")
    git(folder, "update-ref", "HEAD", git(ROOT, "rev-parse", "HEAD").strip())
    git(folder, "add", "--all")


def make_environment(folder: Path) -> None:
    """Make a .venv with the packages and programs of the one that runs this."""
    environment, programs = folder / ".venv", Path(sys.executable).parent
    (environment / "bin").mkdir(parents=True)
    for program in programs.iterdir():
        if os.access(program, os.X_OK) and program.is_file():
            (environment / "bin" / program.name).symlink_to(program)
    shutil.copy(programs.parent / "pyvenv.cfg", environment)
    packages = sysconfig.get_path("purelib")
    own = environment / Path(packages).relative_to(sys.prefix)
    own.mkdir(parents=True)
    # In place of the line of the editable install, which is found in no folder but its own.
    (own / "copy.pth").write_text(f"{folder.resolve()}\n{packages}\n", encoding="utf-8")
    ready = programs.parent / "ready"
    if ready.exists():  # runs/setup.sh has nothing to do
        place, *checksums = ready.read_text(encoding="utf-8").splitlines()
        lines = [f"{folder.resolve()},{place.partition(',')[2]}", *checksums]
        (environment / "ready").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    copy_tree(Path(sys.argv[1]), sys.argv[2:] or track_names())
