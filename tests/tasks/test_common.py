"""Promises of every task: rows in a fixed order, own answers that are right, files and faults by name."""

import re

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import ROOT

from nanochat.chat import check_conversation
from nanochat.data.hub import HubFile
from nanochat.stages import CHAT_CORE, MEANS
from tasks import JUDGED, TASKS, WORLD_TASKS
from tasks.common import pick, unchanged
from tasks.multiple_choice import MultipleChoice

WITH_QUESTIONS = ["ARC-Easy", "ARC-Challenge", "MMLU", "AQUA", "GSM8K"]
GOOD_ROW = {"question": "x or y?", "choices": ["x", "y"], "answer": 1}


def text_of(content):
    return content if isinstance(content, str) else "".join(part["text"] for part in content if part["type"] == "text")


def test_every_row_of_the_tables_is_complete():
    for name, data in TASKS.items():
        assert 0 <= data.baseline < 1
        assert data.task.kind in ("categorical", "generative", "program", "chat")
        assert (name in JUDGED) == (data.task.kind != "chat")
        assert name not in JUDGED or "test" in data.split_names, f"{name}: evaluations ask for the split test"
    assert {*CHAT_CORE, *WORLD_TASKS} <= set(JUDGED)


def test_the_page_of_tasks_lists_them_all():
    page = (ROOT / "docs/tasks.md").read_text(encoding="utf-8")
    table = page.partition("## The tasks")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert sorted(re.findall("`(.*?)`", " ".join(rows))) == sorted(TASKS)
    layouts = page.partition("| convert |")[2].partition("\n\n")[0]
    converters = {data.convert for data in TASKS.values() if issubclass(data.task, MultipleChoice)}
    converters -= {unchanged}  # some need none
    assert set(re.findall(r"^\| `(\w+)` ", layouts, re.MULTILINE)) == {convert.__name__ for convert in converters}
    for tasks in MEANS.values():
        assert f"the mean over {', '.join(tasks[:-1])} and {tasks[-1]}" in page


@pytest.mark.parametrize("name", WITH_QUESTIONS)
def test_every_row_is_a_conversation_with_a_right_answer(name, hub):
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


def test_names_and_files():
    assert pick("gsm8k|ARC-Easy, mmlu|MMLU", TASKS) == ["GSM8K", "ARC-Easy", "MMLU"]
    assert pick("", TASKS) == []
    last = "datasets/HuggingFaceTB/smol-smoltalk/data/train-00003-of-00004.parquet"
    assert [*map(str, TASKS["SmolTalk"].files("train"))][3:] == [last]
    assert len(TASKS["KMMLU"].files("test")) == 45
    converted = HubFile("Accounting/dev/0000.parquet", "HAERAE-HUB/KMMLU", "refs/convert/parquet")
    assert TASKS["KMMLU"].files("dev")[0] == converted
    assert TASKS["SpellingBee"].files() == []


def test_an_empty_cell_is_named(write_rows):
    write_rows("MMLU", [GOOD_ROW, GOOD_ROW | {"question": None}, GOOD_ROW])
    with pytest.raises(ValueError, match="cais/mmlu, split test, row 1: a cell is empty"):
        list(TASKS["MMLU"]())
