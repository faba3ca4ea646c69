"""Nothing that was promised disappears in silence: `tests/interface.txt` against the code and CHANGELOG.md."""

import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import card_promises
import pytest
import source_tree
from conftest import ROOT
from interface import CHANGES, COMMAND, HEADER, LISTED, faults, lines_of, lost, names_of, read_changes, text_of
from promises import KINDS, interface
from test_rules import absent_tracks

from nanochat.serve.app import Service, application


@pytest.fixture(scope="module")
def made() -> list[str]:
    return interface(ROOT)


def test_every_promise_is_listed_and_kept(made) -> None:
    found = faults(ROOT, made)
    assert not found, "\n".join([f"{len(found)} faults, see tests/interface.py:", *found[:50]])


def test_each_kind_of_promise_is_found(made) -> None:
    found = {line.partition(" ")[0] for line in made}
    # Only tracks have files of runs.
    assert KINDS.keys() - found <= ({"file"} if absent_tracks(ROOT) else set())
    assert found <= KINDS.keys()


def test_the_routes_are_those_of_the_server(made) -> None:
    app = application(Service(served=None, workers=[], queue=0), "localhost", "", [], [])
    # Starlette answers HEAD where it answers GET.
    routes = {f"route {method} {route.path}" for route in app.routes for method in route.methods - {"HEAD"}}
    assert routes == {line for line in made if line.startswith("route ")}


def test_the_file_is_sorted_under_a_heading_for_each_kind(made) -> None:
    text = (ROOT / LISTED).read_text(encoding="utf-8")
    assert text == text_of(lines_of(text))
    assert text.startswith(HEADER)
    assert text.count("\n# ") == 1 + len(KINDS)


# ---- planted changes ----

GOLF = ["command scripts.golf_train", "flag scripts.golf_train --depth", "flag scripts.golf_train --qat"]
NEW_GOLF = ["command tracks.golf.train", "flag tracks.golf.train --depth", "flag tracks.golf.train --qat"]
MOVED = "### Renamed\n- `python -m scripts.golf_train` is `python -m tracks.golf.train`\n"


@pytest.mark.parametrize(
    ("changes", "accepted"),
    [
        ("", False),
        ("### Removed\n- `scripts.golf_train --qat`: it was measured to be useless.\n", True),
        ("### Removed\n- `python -m scripts.golf_train --qat`: it was measured to be useless.\n", True),
        ("### Removed\n- `scripts.a --b` and\n  `scripts.golf_train --qat`: on lines\n  of their own.\n", True),
        ("### Removed\n- `scripts.* --qat`: no training script has it any more.\n", True),
        ("### Removed\n- `flag scripts.golf_train --qat`: the whole line is named.\n", True),
        ("### Removed\n- `scripts.golf_train`: the whole command is gone.\n", True),
        ("## 1.0\n### Added\n- `a`: is new\n### Removed\n- `scripts.golf_train --qat`: not used at all.\n", True),
        # The entry stands under Removed, begins with the name, and is about this flag.
        ("### Added\n- `scripts.golf_train --qat`: it is a new flag.\n", False),
        ("### Removed\n- One flag, said in words alone: scripts.golf_train --qat.\n", False),
        ("### Removed\n- `scripts.golf_train --qat-share`: another flag is gone.\n", False),
        ("### Removed\n- `scripts.golf`: another command is gone.\n", False),
        ("### Removed\n- `choice scripts.golf_train --qat`: one of its values is gone.\n", False),
    ],
)
def test_a_flag_that_is_gone_needs_an_entry(changes, accepted) -> None:
    assert lost(GOLF, GOLF[:2], read_changes(changes)) == ([] if accepted else GOLF[2:])


@pytest.mark.parametrize(
    ("made", "changes", "expected"),
    [
        (NEW_GOLF, "", GOLF),
        (NEW_GOLF, MOVED, []),
        # A flag that did not move along.
        (NEW_GOLF[:2], MOVED, GOLF[2:]),
        (NEW_GOLF[:2], f"{MOVED}### Removed\n- `tracks.golf.train --qat`: it was of no use.\n", []),
        (NEW_GOLF[:2], f"{MOVED}### Removed\n- `scripts.golf_train --qat`: it was of no use.\n", []),
        # Renamed again, by itself or with what contains it.
        (["command a.b", "flag a.b --depth", "flag a.b --qat"], f"{MOVED}- `tracks.golf.train` is `a.b`\n", []),
        (["command a.train", "flag a.train --depth", "flag a.train --qat"], f"{MOVED}- `tracks.golf` is `a`\n", []),
        (["command a.train", "flag a.train --depth", "flag a.train --qat"], f"{MOVED}- `tracks.go` is `a`\n", GOLF),
    ],
)
def test_flags_of_a_renamed_command_are_looked_up_under_the_new_name(made, changes, expected) -> None:
    assert lost(GOLF, made, read_changes(changes)) == expected


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("flag a --old", "flag a --new", "- `a --old` is `a --new`"),
        ("choice a --size=large", "choice b --size=large", "- `a --size` is `b --size`, for one track alone"),
        ("setting a --size", "setting b --size", "- `a --size` is `b --size`, for one track alone"),
        ("metric Epochs", "metric Passes", "- `metric Epochs` is `metric Passes`"),
        ("field Chat SFT: Epochs", "field Chat SFT: Passes", "- `Chat SFT: Epochs` is `Chat SFT: Passes`"),
        (
            "flag bash runs/golf.sh --seeds",
            "flag tracks.golf.run --seeds",
            "- `bash runs/golf.sh` is `tracks.golf.run`",
        ),
        ("file runs/remix.toml", "file tracks/lab/remix.toml", "- `runs` is `tracks/lab`"),
        ("flag a --loops", "flag b --flags", "- `a --x`, `a --y` and `a --loops` are `b --flags`, which hands them on"),
        ("flag a --loops", "flag b --flags", "- `a --*` is `b --flags`, which hands them on"),
        (
            "name nanochat.lab Scale",
            "name tracks.golf Scale",
            "- `nanochat.lab` is `a`\n- `nanochat.lab` is `tracks.golf`",
        ),
    ],
)
def test_any_promise_can_be_renamed(old, new, changes) -> None:
    assert lost([old], [new], read_changes("")) == [old]
    assert lost([old], [new], read_changes(f"### Renamed\n{changes}\n")) == []
    assert lost([old], [], read_changes(f"### Renamed\n{changes}\n")) == [old]


def test_renames_in_a_circle_end() -> None:
    changes = read_changes("### Renamed\n- `a` is `b`\n- `b` is `a`\n")
    assert names_of("command a", changes) == ["command a", "command b"]


def write_checkout(root: Path, listed: list[str], changes: str = "") -> None:
    for name, text in {LISTED: text_of(listed), CHANGES: changes}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def commit(root: Path) -> None:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--allow-empty", "--message=a"]):
        subprocess.run(["git", *settings, *words], cwd=root, check=True)


@pytest.mark.parametrize(
    ("listed", "changes", "expected"),
    [
        (GOLF, "", ""),
        (GOLF[:2], "", f"new, not in {LISTED}: {GOLF[2]} (`{COMMAND}` writes it there)"),
        (["flag a --b", *GOLF], "", "gone: flag a --b (bring it back, or give it an entry in CHANGELOG.md"),
        (GOLF, "### Removed\n- `scripts.golf_eval`: gone\n", 'CHANGELOG.md: an entry is "- `name`: the reason"'),
        (GOLF, "### Removed\n- `scripts.golf_eval`\n", 'CHANGELOG.md: an entry is "- `name`: the reason"'),
        (GOLF, "### Renamed\n- golf_eval → golf\n", 'CHANGELOG.md: an entry is "- `old name` is `new name`"'),
        (
            GOLF,
            "### Removed\n- `scripts.golf_train --qat`: it is of no use.\n",
            "CHANGELOG.md says that scripts.golf_train --qat is removed, but it is there",
        ),
        (
            GOLF,
            "### Renamed\n- `scripts.lab` is `tracks.lab`\n",
            "CHANGELOG.md says that scripts.lab is tracks.lab, which is not there",
        ),
        (GOLF, "### Renamed\n- `a` is `scripts.golf`\n- `scripts.golf` is `scripts.golf_train`\n", ""),
    ],
)
def test_each_fault_is_a_sentence(listed, changes, expected, tmp_path) -> None:
    write_checkout(tmp_path, listed, changes)
    found = faults(tmp_path, GOLF)
    assert len(found) == bool(expected)
    assert all(sentence.startswith(expected) for sentence in found)


def test_a_line_that_was_deleted_by_hand_is_found(tmp_path) -> None:
    write_checkout(tmp_path, GOLF)
    commit(tmp_path)
    write_checkout(tmp_path, GOLF[:2])
    [sentence] = faults(tmp_path, GOLF[:2])
    assert sentence.startswith(f"gone: {GOLF[2]} ")
    # In the commit that deletes it, too; not in the one after that, and not with an entry.
    commit(tmp_path)
    assert len(faults(tmp_path, GOLF[:2])) == 1
    write_checkout(tmp_path, GOLF[:2], "### Removed\n- `scripts.golf_train --qat`: it was measured to be useless.\n")
    assert faults(tmp_path, GOLF[:2]) == []


def test_a_tree_without_a_track_is_checked_for_the_rest(tmp_path) -> None:
    """The deletion test copies the tree without a track; a commit that deletes one has to say so."""
    rest = ["command scripts.base_train", "metric Epochs"]
    listed = [*rest, *GOLF, *NEW_GOLF, "metric Bits per parameter"]
    write_checkout(tmp_path, listed, MOVED)
    assert faults(tmp_path, rest) == []
    assert len(faults(tmp_path, rest[1:])) == 1
    # A working tree whose commit has the track, and one whose commit has it no longer.
    (tmp_path / "tracks/golf").mkdir(parents=True)
    (tmp_path / "tracks/golf/train.py").touch()
    commit(tmp_path)
    assert len(faults(tmp_path, rest)) == 8  # seven lines, and a rename to nothing
    (tmp_path / "tracks/golf/train.py").unlink()
    (tmp_path / "tracks/golf").rmdir()
    assert faults(tmp_path, rest) == []
    commit(tmp_path)
    assert len(faults(tmp_path, rest)) == 8  # seven lines, and a rename to nothing


# ---- a planted tree ----

PLANTED = {
    "scripts/__init__.py": "",
    "scripts/made.py": """
        from typing import Literal
        from nanochat.config import option, options, run_script

        @options("made")
        class Config:
            size: Literal["", "large"] = option("", "size", short="-z")
            hidden: int = option(1, "hidden", in_card=False)

        def main(config: Config) -> None:
            outcome.metrics = {"Height": 1, f"Width of {config.size}": 2}
            metrics = {"Depth": measured(3)}
            trainer.finish({"Colour": "red"} | metrics)
            table_of("Sizes", "Name | Metres:.2f", [])

        if __name__ == "__main__":
            run_script(main)
    """,
    "tracks/__init__.py": "",
    "tracks/one/__init__.py": '"""A track. Others import from here: `other.Thing`."""\n',
    "tracks/one/other.py": "class Thing: ...\nclass Hidden: ...\n",
    "tracks/one/train.py": """
        '''Train it.

        python -m tracks.one.train --depth=2   a flag that is handed on
        '''
        from nanochat.config import run_script
        from scripts.made import Config

        def main(config: Config) -> None: ...

        if __name__ == "__main__":
            run_script(main)
    """,
    "tracks/one/specs/all.toml": "",
    "runs/moved.sh": '#!/bin/sh\necho "error: runs/moved.sh has moved: run python -m tracks.one.train" >&2\n',
    "runs/handed.sh": '#!/bin/sh\nexec .venv/bin/python -m scripts.made "$@"\n',
    "tracks/one/tests/test_train.py": "if __name__ == '__main__': ...\n",
    "tracks/one/go.sh": """#!/bin/sh
        # Usage: go --fast
        #SBATCH --exclusive
        set_flag "$1" "tag out_file"
          --slow | --slower=?*) x ;;
          --bad) stop "no" ;;
    """,
    "README.md": "python -m tracks.one.train\n",
    "report.md": "# nanochat training report\n\n## Made (two)\n\n- size: large\n- Width of large: 2\n- Weight: 3\n",
}


def test_commands_of_scripts_and_tracks_are_found(tmp_path) -> None:
    for name, text in PLANTED.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(inspect.cleandoc(text) + "\n", encoding="utf-8")
    code = (
        "import pathlib, sys; from promises import interface; print(*interface(pathlib.Path(sys.argv[1])), sep='\\n')"
    )
    paths = os.pathsep.join(map(str, [tmp_path, ROOT / "tests", ROOT]))  # its packages first
    environment = os.environ | {"PYTHONPATH": paths}
    command = [sys.executable, "-c", code, tmp_path]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if not line.startswith(("section", "summary"))]
    assert found == [
        "command bash runs/handed.sh",
        "command bash tracks/one/go.sh",
        "command scripts.made",
        "command tracks.one.train",
        "flag bash runs/handed.sh --hidden",
        "flag bash runs/handed.sh --size",
        "flag bash runs/handed.sh -z",
        "flag bash tracks/one/go.sh --fast",
        "flag bash tracks/one/go.sh --out-file",
        "flag bash tracks/one/go.sh --slow",
        "flag bash tracks/one/go.sh --slower",
        "flag bash tracks/one/go.sh --tag",
        "flag scripts.made --hidden",
        "flag scripts.made --size",
        "flag scripts.made -z",
        "flag tracks.one.train --depth",
        "flag tracks.one.train --hidden",
        "flag tracks.one.train --size",
        "flag tracks.one.train -z",
        "choice scripts.made --size=large",
        "choice tracks.one.train --size=large",
        "file tracks/one/specs/all.toml",
        "setting scripts.made --size",
        "setting tracks.one.train --size",
        "metric Colour",
        "metric Depth",
        "metric Height",
        "metric Width of *",
        "field Made: Width of large",
        "field Made: size",
        "table Sizes | Metres",
        "table Sizes | Name",
        "name tracks.one Thing",
    ]


def test_a_line_that_a_card_leaves_out_is_promised_while_the_code_writes_it(monkeypatch, tmp_path) -> None:
    section = "## Chat RL\n- Not shown: 2 settings at the default that does nothing\n- task: sums\n"
    section += "\n## Chat SFT\n- top_k: 0\n"
    monkeypatch.setattr(card_promises, "committed", lambda root, path: f"{source_tree.CARD}\n\n{section}")
    tree = SimpleNamespace(root=tmp_path, pages=lambda: [tmp_path / "report.md"])
    listed = ["field Chat RL: kl", "field Chat RL: of_old_code", "field Chat SFT: kl", "setting chat_rl --kl"]
    found = set(card_promises.committed_lines(tree, ["kl", "task", "top_k"], listed))
    assert found == {"field Chat RL: kl", "field Chat RL: task", "field Chat SFT: top_k"}
