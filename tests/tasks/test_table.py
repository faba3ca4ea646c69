"""The table of all data sets: names of tracks without their modules, and what follows where a track is not here."""

import json
import shutil

import pytest
from conftest import ROOT
from copies import BEING_COMPILED

from nanochat import registry
from tasks import JUDGED, TASKS
from tasks.sets import SETS
from tasks.table import TaskTable

WATCH = """
import json, sys
from tasks import JUDGED, TASKS, open_tasks, pick
names = [*TASKS, *JUDGED, *pick("kmmlu|sudoku-4", JUDGED)]
assert "KMMLU" in TASKS and len(TASKS) == len(set(TASKS)) and "KMMLU~styles" not in TASKS
json.dump([name for name in sys.modules if name.split(".")[0] in ("tracks", "torch")], sys.stdout)
"""


def test_names_are_listed_without_importing_a_track(python) -> None:
    assert json.loads(python("-c", WATCH).stdout) == []
    # In the order of the tables, those of the report card first.
    assert list(TASKS) == [*SETS, *registry.TASKS.modules, *registry.CHATS.modules]
    assert "GSM8K" in JUDGED
    assert "LiveCodeBench-v6" in JUDGED
    assert not {"SmolTalk", "KoAlpaca"} & set(JUDGED)


def test_a_table_has_its_rows_and_those_of_tracks() -> None:
    known = TaskTable({"Mine": SETS["AQUA"]})
    assert known["Mine"] is TASKS["AQUA"] is SETS["AQUA"]
    assert list(known) == ["Mine", *list(TASKS)[len(SETS) :]]
    with pytest.raises(KeyError, match="AQUA"):
        known["AQUA"]
    with pytest.raises(
        ValueError, match="Mine~jokes: the augmentation jokes is not known, choose from styles, options"
    ):
        known["Mine~jokes"]


def test_without_tracks_all_else_works(tmp_path, python) -> None:
    for folder in ("nanochat", "scripts", "tasks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=BEING_COMPILED)
    (tmp_path / "tracks").mkdir()
    (tmp_path / "tracks/__init__.py").touch()  # before the installed one
    listed = python("-m", "scripts.prepare", "--help", cwd=tmp_path).stdout
    assert all(name in "".join(listed.split()) for name in ("GSM8K", "KMMLU", "LiveCodeBench-v6", "Sudoku-4"))
    for words, kind, track in (
        (("scripts.prepare", "--data=", "--tasks=kmmlu"), "task KMMLU", "benchmarks"),
        (("scripts.chat_eval", "--tasks=GSM8K|sudoku-4"), "task Sudoku-4", "recursion"),
        (("scripts.chat_eval", "--tasks=MMLU~styles:2"), "augmentation styles", "chatdata"),
    ):
        done = python("-m", *words, cwd=tmp_path, code=2)
        assert done.stderr == f"error: the {kind} belongs to tracks/{track}, which is not here\n"
