"""Promises of every task: rows in a fixed order, own answers that are right, files and faults by name."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from data_sets import check_data_set, check_layouts, listed_tasks

from nanochat.chat import check_conversation
from nanochat.data.hub import HubFile
from nanochat.stages import CHAT_CORE, MEANS
from tasks import JUDGED, TASKS, WORLD_TASKS
from tasks.common import CONVERTED, TRAIN, DataSet, Split, Task, pick
from tasks.sets import SETS

WITH_QUESTIONS = ["ARC-Easy", "ARC-Challenge", "MMLU", "AQUA", "AQUA-Rationale", "GSM8K"]
GOOD_ROW = {"question": "x or y?", "choices": ["x", "y"], "answer": 1}


def text_of(content):
    return content if isinstance(content, str) else "".join(part["text"] for part in content if part["type"] == "text")


def test_every_row_of_the_tables_is_complete() -> None:
    for name, data in SETS.items():
        check_data_set(name, data)
    assert {*CHAT_CORE, *WORLD_TASKS} <= set(JUDGED)


def test_the_page_of_tasks_lists_them_all() -> None:
    page = ROOT / "docs/tasks.md"
    assert listed_tasks(page, "The tasks") == sorted(SETS)
    check_layouts(page, SETS.values())
    for tasks in MEANS.values():
        assert f"the mean over {', '.join(tasks[:-1])} and {tasks[-1]}" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", WITH_QUESTIONS)
def test_every_row_is_a_conversation_with_a_right_answer(name, hub) -> None:
    task = TASKS[name]()
    questions = pq.read_table(hub / str(TASKS[name].files("test")[0]))["question"].to_pylist()
    order = np.random.default_rng(42).permutation(len(questions))  # the order of the public nanochat
    for conversation, number in zip(task, order, strict=True):
        check_conversation(conversation)
        assert [message["role"] for message in conversation["messages"]] == ["user", "assistant"]
        question, answer = (text_of(message["content"]) for message in conversation["messages"])
        assert question.startswith(questions[number])
        assert task.evaluate(conversation, answer)
        assert task.reward(conversation, answer) == 1.0
        assert not task.evaluate(conversation, "")
        assert task.reward(conversation, "") == 0.0
    for split in TASKS[name].split_names:
        path = hub / str(TASKS[name].files(split)[0])
        if path.exists():  # neither the mirror nor the world has the files of all splits
            task = TASKS[name](split)
            assert len(task) == pq.read_metadata(path).num_rows
            check_conversation(task[0])


def test_names_and_files() -> None:
    assert pick("gsm8k|ARC-Easy, mmlu|MMLU", TASKS) == ["GSM8K", "ARC-Easy", "MMLU"]
    assert pick("", TASKS) == []
    last = "datasets/HuggingFaceTB/smol-smoltalk/data/train-00003-of-00004.parquet"
    assert [*map(str, TASKS["SmolTalk"].files("train"))][3:] == [last]
    assert TASKS["SpellingBee"].files() == []
    subjects = DataSet(
        task=Task, repo="me/mine", path=CONVERTED, splits=(TRAIN, Split("test", own="dev")), parts=("x", "y")
    )
    assert subjects.split_names == ("train", "test")
    converted = [HubFile(f"{part}/dev/0000.parquet", "me/mine", "refs/convert/parquet") for part in ("x", "y")]
    assert subjects.files("test") == converted == subjects.files()[2:]


def test_an_empty_cell_is_named(write_rows) -> None:
    write_rows("MMLU", [GOOD_ROW, GOOD_ROW | {"question": None}, GOOD_ROW])
    with pytest.raises(ValueError, match="cais/mmlu, split test, row 1: a cell is empty"):
        list(TASKS["MMLU"]())
