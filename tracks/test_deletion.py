"""Each track is a folder that can be deleted: copies of the tree without one of them.

In a copy, all other modules can be imported, the rules hold, no page of the trunk has a dead link, the commands of the
README and a dry run of the main job work, and the trunk's tests are collected. A name that belonged to the track is
answered by one sentence.

`bash runs/test.sh trunk` runs the trunk's tests in a copy without any track. With `-m slow` the tests below run them in
each copy without one.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest
from conftest import Reader, checked
from copies import copy_tree, track_names
from models import leave_model
from pages import OF_TRUNK, commands, dead_links, name_of
from quick import write_program
from test_registry import DOORS
from test_rules import RULES, importable

from nanochat import registry
from nanochat.paths import write_text
from nanochat.stages import MODELS
from nanochat.tokenizer import Tokenizer

# Imports modules, then forks for commands: see tests/quick.py.
SERVE = """
import sys
from importlib import import_module
folder, program, address, *modules = sys.argv[1:]
sys.path[:0] = [folder, f"{folder}/tests"]
for module in modules:
    import_module(module)
from quick import fork_for_commands
fork_for_commands(address, program)
"""
# Prints what the user is told about names of a table.
LOAD = """
import sys
from nanochat import registry
for name in sys.argv[2:]:
    try:
        registry.load(getattr(registry, sys.argv[1]), name)
    except ValueError as error:
        print(error)
"""
# Rules that look at one file after the other: without some files there is nothing new to see.
ABOUT_ONE_FILE = {
    "rule_1_a_script_is_a_recipe",
    "rule_3_one_training_loop",
    "rule_8_nothing_is_done_at_import",
    "rule_no_package_host_is_named",
    "rule_shell_scripts_parse",
}

# Where a user gives a name of a table in nanochat/registry.py: table -> command. A table that is not here is reached by
# names of others.
GIVEN = {
    "TASKS": "scripts.prepare --data= --tasks=NAME",
    "CHATS": "scripts.prepare --data= --tasks=NAME",
    "AUGMENTATIONS": "scripts.chat_eval --tasks=ARC-Easy~NAME",
    "MODELS": "scripts.base_loss --tag=of-kind-NAME --data=my-text",
    "CONFIGURATIONS": "scripts.base_train --model=NAME --depth=1 --data=my-text",
    "OPTIONS": "scripts.rollouts NAME=pairs.jsonl --tag=d1",
}


class Tree:
    """A copy without one track."""

    def __init__(self, track: str, folder: Path, quick: Path) -> None:
        self.track, self.folder, self.quick = track, copy_tree(folder / "nanochat", [track]), quick
        self.process: subprocess.Popen[str] | None = None

    def modules(self) -> list[str]:
        """All modules that can be imported, but the names of moved commands, which only end with a sentence."""
        return [name for name in importable(self.folder) if not name.startswith("scripts.moved.")]

    @cached_property
    def python(self) -> str:
        """A program that works like `python` in the copy, at once: all modules are imported."""
        self.quick.mkdir()
        program, address = write_program(self.quick)
        command = [str(self.folder / ".venv/bin/python"), "-c", SERVE, str(self.folder), program, address]
        with open(self.folder.with_name("errors"), "w") as errors:
            self.process = subprocess.Popen([*command, *self.modules()], cwd=self.folder, stderr=errors)
        while not Path(address).exists():
            assert self.process.poll() is None, self.folder.with_name("errors").read_text(encoding="utf-8")
            time.sleep(0.01)
        return program

    def bash(self, command: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", "-c", command]
        environment = os.environ | variables
        return checked(subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True), code)

    def delete(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder.parent)


@pytest.fixture(scope="module", params=track_names())
def tree(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, short_folder: Path
) -> Iterator[Tree]:
    tree = Tree(request.param, tmp_path_factory.mktemp("without"), short_folder / f"without-{request.param}")
    yield tree
    tree.delete()


@pytest.fixture
def reader(tree: Tree, tmp_path: Path, base: Path, tiny_world: Path, fake_hub: Path) -> Reader:
    """Somebody whose checkout is the copy."""
    return Reader(tree.python, tmp_path, base, tiny_world, fake_hub)


def test_the_copy_is_what_runs(tree, reader) -> None:
    code = "import nanochat, tasks, tracks; print(nanochat.__file__, tasks.__file__, *tracks.__path__)"
    found = reader.run("-c", code).stdout.split()
    assert [Path(path).is_relative_to(tree.folder) for path in found] == [True] * 3
    assert not (tree.folder / "tracks" / tree.track).exists()
    assert track_names(tree.folder) == [name for name in track_names() if name != tree.track]


def test_the_rules_hold(tree) -> None:
    names = (
        RULES.keys() - ABOUT_ONE_FILE - {"rule_8_importing_is_quiet"}
    )  # importing all modules is part of Tree.python
    assert [breach for name in names for breach in RULES[name](tree.folder)] == []


def test_no_page_of_the_trunk_has_a_dead_link(tree) -> None:
    assert {name_of(page): dead_links(tree.folder / name_of(page)) for page in OF_TRUNK} == {
        name_of(page): [] for page in OF_TRUNK
    }


def test_the_commands_of_the_readme_work(tree, reader) -> None:
    shown = commands(tree.folder / "README.md")
    assert len(shown) > 5
    for words in shown:
        reader.run(*words)


def test_the_main_job_can_be_planned(tree, base) -> None:
    done = tree.bash("bash speedrun.sh --dry-run", NANOCHAT_BASE_DIR=str(base))
    assert done.stdout.startswith("\n== plan\n")
    assert not base.exists()


def test_the_tests_of_the_trunk_are_collected(tree) -> None:
    """So they import nothing of the track."""
    tree.bash(f"{tree.python} -m pytest -q --collect-only --assert=plain tests")


def test_what_belonged_to_the_track_is_answered_by_one_sentence(tree, reader, base) -> None:
    """Every name, and at the command line the first of each table. tests/test_speedrun.py asks for several nodes."""
    for title, door in DOORS.items():
        names = [name for name, module in door.modules.items() if module.split(".")[1] == tree.track]
        if not names:
            continue
        sentences = [f"the {door.kind} {name} belongs to tracks/{tree.track}, which is not here" for name in names]
        assert reader.run("-c", LOAD, title, *names).stdout.splitlines() == sentences
        if title in GIVEN:
            leave_what_is_asked_for(title, names[0], base)
            done = reader.run("-m", *GIVEN[title].replace("NAME", names[0]).split(), code=2)
            assert done.stderr == f"error: {sentences[0]}\n"
    for stage, module in registry.STAGES.items():
        if module.startswith(f"tracks.{tree.track}."):
            [source] = [source for source, name in MODELS.items() if name == stage]
            done = reader.run("-m", "scripts.chat_eval", f"--source={source}", code=2)
            assert done.stderr == f"error: the stage {stage} belongs to tracks/{tree.track}, which is not here\n"
    if registry.PREFLIGHT.startswith(f"tracks.{tree.track}."):
        reader.variables["NANOCHAT_NODES"] = "1:2"
        sentence = f"NANOCHAT_NODES=1:2: a job on several nodes belongs to tracks/{tree.track}, which is not here"
        assert reader.run("-m", "scripts.plan", code=2).stderr == f"error: {sentence}\n"


def leave_what_is_asked_for(title: str, name: str, base: Path) -> None:
    if title == "MODELS":
        tokenizer = Tokenizer.train(["a few words"], 265)
        leave_model(base, "base_train", f"of-kind-{name}", tokenizer, more={"model": {"kind": name}})
    elif title == "OPTIONS":
        write_text(base / "chat_rl/d1/samples.jsonl", '{"kind": "samples", "step": 1}\n')


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_tests_of_the_trunk_pass(tree) -> None:
    words = "-n auto --dist=loadfile --no-loadscope-reorder -q tests"
    tree.bash(f".venv/bin/python -m pytest {words}", PATH=f"{tree.folder}/.venv/bin:{os.environ['PATH']}")
