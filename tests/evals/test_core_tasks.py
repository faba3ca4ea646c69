"""The bundle's tasks: prompts equal to the public nanochat's, as text and as tokens, and missing files."""

import json
import random

import pytest
from bundles import HARD, vocabulary, world_tasks, write_bundle
from conftest import ROOT

from nanochat.evals.core_tasks import read_bundle, tokenize_items
from nanochat.tokenizer import Tokenizer

SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="module")
def tokenizer():
    return vocabulary()


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """The world's tasks and the hard ones, in a mirror."""
    write_bundle(tmp_path / "mirror", [*world_tasks(9), *HARD])
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "mirror"))
    return tmp_path / "mirror/eval_bundle"


@pytest.mark.skipif(not (SHARED / "parity").exists(), reason="no recorded prompts here")
def test_prompts_are_those_of_the_public_nanochat(monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_HUB", str(SHARED / "hub"))
    tasks, items = {task.label: task for task in read_bundle()}, {}
    assert len(tasks) == 22
    for line in (SHARED / "parity/core_prompts.jsonl").read_text(encoding="utf-8").splitlines():
        wanted = json.loads(line)
        task, most = tasks[wanted["task"]], wanted["max_per_task"]
        if task.label not in items:
            items[task.label] = task.items(most)
        assert (task.kind, task.shots) == (wanted["type"], wanted["shots"])
        assert task.prompts(items[task.label], wanted["index"]) == wanted["prompts"]
    assert items.keys() == tasks.keys()
    assert {task.baseline for task in tasks.values()} == {0, 0.091, 0.2, 0.25, 0.5, tasks["boolq"].baseline}


def test_tasks_their_items_and_the_hashes_of_questions_and_missing_files_are_named(bundle, tokenizer) -> None:
    """tests/evals/test_core.py compares prompts, prefixes and options with the plain twin's."""
    for task, made in zip(read_bundle(), [*world_tasks(9), *HARD], strict=True):
        expected = list(made.rows)
        random.Random(1337).shuffle(expected)
        assert task.items(0) == expected
        if task.shots < 7:
            assert task.items(7) == expected[:7]
        assert (task.label, task.kind, task.baseline) == (made.label, made.kind, made.baseline / 100)
    other = Tokenizer.train(["another vocabulary of the very same questions"], 270)
    for task in read_bundle():
        items = task.items(0)
        every = range(len(items))
        questions = [item.question for item in tokenize_items(task, items, every, tokenizer)]
        assert questions == [item.question for item in tokenize_items(task, items, every, other)]
        assert len(set(questions)) == len({tuple(task.prompts(items, index)) for index in every})
    assert [len(read_bundle()[0].items(most)) for most in (2, 6, 7)] == [6, 6, 7]
    path = bundle / "core.yaml"
    path.write_text(path.read_text().replace("hard_choices.jsonl", "lost.jsonl"))
    with pytest.raises(ValueError, match=r"eval_data/hard/lost.jsonl \(not in the mirror"):
        read_bundle()
    (bundle / "eval_meta_data.csv").unlink()
    with pytest.raises(ValueError, match=r"1 of 2 files are not available: eval_bundle/eval_meta_data.csv \(not in"):
        read_bundle()
