"""Doors for tracks: fixed names, tables that have them, and one sentence where the track is not here."""

import re
import sys

import pytest
from conftest import ROOT

from nanochat import registry
from nanochat.paths import write_text
from nanochat.registry import Door, load

DOORS = {name: value for name, value in vars(registry).items() if isinstance(value, Door)}


def is_here(module: str):
    return ROOT.joinpath(*module.split(".")).with_suffix(".py").exists()


@pytest.mark.parametrize("title", DOORS)
def test_each_module_has_the_names_of_its_door(title) -> None:
    door = DOORS[title]
    for module in dict.fromkeys(door.modules.values()):
        assert re.fullmatch(r"tracks\.\w+\.\w+", module)
        if is_here(module):
            names = [name for name in door.modules if door.modules[name] == module]
            assert names == [name for name in names if load(door, name) is not None]
            assert names == list(getattr(sys.modules[module], door.table)), "the registry and the track list others"


def test_a_name_of_a_track_that_is_not_here_is_one_sentence(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write_text(tmp_path / "planted/__init__.py", "")
    (tmp_path / "planted/left/__pycache__").mkdir(parents=True)  # a folder that was not removed in full
    write_text(tmp_path / "planted/whole/sets.py", "TASKS = {'Here': 1}")
    write_text(tmp_path / "planted/needy/sets.py", "import a_library_that_nobody_has")
    tracks = {"Gone": "planted.gone.sets", "Left": "planted.left.sets", "Elsewhere": "nowhere.gone.sets"}
    tracks |= {"Here": "planted.whole.sets", "Needy": "planted.needy.sets"}
    door = Door("task", "TASKS", tracks)
    assert load(door, "Here") == 1
    for name, track in {"Gone": "gone", "Left": "left", "Elsewhere": "gone"}.items():
        with pytest.raises(ValueError, match=f"^the task {name} belongs to tracks/{track}, which is not here$"):
            load(door, name)
    assert [name for name in tracks if registry.is_here(door, name)] == ["Here", "Needy"]
    with pytest.raises(ModuleNotFoundError, match="a_library_that_nobody_has"):
        load(door, "Needy")
    with pytest.raises(KeyError):  # the tables alone decide what is imported
        load(door, "planted.whole.sets")
