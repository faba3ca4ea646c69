"""Chats, instructions and Korean sets: those of the mirror as they are, the others as small files of their layout."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanochat.chat import check_conversation
from nanochat.world.writer import write_world
from tasks import TASKS
from tasks.chats import SETS, Chat
from tasks.common import FILE, DataSet, TaskError

MIRROR = Path(__file__).resolve().parents[3] / "shared/hub"


@pytest.fixture
def mirror(monkeypatch) -> Path:
    if not MIRROR.is_dir():
        pytest.skip("no mirror of real data on this machine")
    monkeypatch.setenv("NANOCHAT_HUB", str(MIRROR))
    return MIRROR


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Put tables where a data set looks for the files of a split, one after the other."""

    def write(data: DataSet, split: str, *tables: list[dict]) -> None:
        for number, file in enumerate(data.files(split)):
            path = tmp_path / "hub" / str(file)
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(tables[number % len(tables)]), path)

    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "hub"))
    return write


def key(conversation: dict) -> str:
    return json.dumps(conversation, sort_keys=True)


def chat(number: int) -> dict:
    said = [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": f"{number}!"}]
    return {"messages": said}


# ---- chats and instructions ----


def test_chats_of_the_world_are_whole(tmp_path, monkeypatch):
    write_world(tmp_path / "world", 1, "tiny")
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "world"))
    for name in ("SmolTalk", "Identity"):
        task = TASKS[name]("train")
        assert len({key(conversation) for conversation in task}) > 2
        for conversation in task:
            check_conversation(conversation)
    assert len(TASKS["SmolTalk"]("train")) == 200
    assert SETS["SmolTalk"].files("train")[3].path == "data/train-00003-of-00004.parquet"


def test_a_malformed_chat_is_named_with_its_file_and_row(written):
    broken = {"messages": [{"role": "assistant", "content": "hello"}]}
    written(SETS["SmolTalk"], "train", [chat(1), chat(2)], [chat(3), broken])
    with pytest.raises(TaskError, match=r"data/train-0000[13]-of-00004.parquet, row 1: message 1: its role is 'assis"):
        list(TASKS["SmolTalk"]("train"))


def test_instructions_of_any_columns_are_a_row_of_the_table(mirror):
    """With the mirror's own sets, of which the table has one."""
    rows = [
        (SETS["KoAlpaca-v1"], 11420),
        (replace(SETS["KoAlpaca-v1"], repo="tatsu-lab/alpaca"), 4700),
        (
            replace(
                SETS["KoAlpaca-v1"],
                repo="local/gpteacher",
                path="codegen/" + FILE,
                columns="instruction input response",
            ),
            4535,
        ),
        (DataSet(Chat, "local/korean-chatbot-data", "data/" + FILE, "train", "Q A", SETS["KoAlpaca"].form), 11823),
    ]
    for data, count in rows:
        task = data("train")
        assert len(task) == count
        cells = pq.read_table(mirror / str(task.data.files("train")[0])).select(data.columns.split()).to_pylist()
        expected = Counter(("\n\n".join(c for c in [*row.values()][:-1] if c), [*row.values()][-1]) for row in cells)
        assert Counter(tuple(m["content"] for m in one["messages"]) for one in task) == expected


def test_a_chat_set_of_the_mirror_renders(mirror):
    for split, count in (("train", 12624), ("test", 2921)):
        task = TASKS["Multi-Turn"](split)
        assert len(task) == count
        for index in range(0, count, 7):
            check_conversation(task[index])


# ---- Korean ----


def test_kmmlu_has_a_column_for_each_choice(written):
    row = {
        "question": "값은?",
        "answer": 3,
        "A": "1",
        "B": "2",
        "C": "3",
        "D": "4",
        "Category": "x",
        "Human Accuracy": 0.5,
    }
    written(TASKS["KMMLU"], "test", [row], [row | {"answer": 1}])
    task = TASKS["KMMLU"]()
    assert len(task) == 45
    assert Counter(one["messages"][1]["content"] for one in task) == {"C": 23, "A": 22}
    assert task[0]["messages"][0]["content"].startswith("값은?\n\n- 1=A\n- 2=B\n- 3=C\n- 4=D\n")
    written(TASKS["KMMLU"], "test", [row], [row], [row | {"answer": 0}])
    with pytest.raises(
        TaskError, match=r"KMMLU/\S+/test/0000.parquet, row 0: the right answer is none of its 4 choices"
    ):
        list(TASKS["KMMLU"]())


def test_hae_rae_repeats_its_choices_in_the_query(written):
    query = "다음 중 뜻이 맞는 것은?\n### 선택지:\n(A) 가\n(B) 나\n(C) 다\n### 정답:"
    row = {"query": query, "options": "['가', '나', '다']", "answer": "(B)"}
    written(TASKS["HAE-RAE"], "test", [row], [row | {"options": "가|나|다"}])
    task = TASKS["HAE-RAE"]()
    assert len(task) == 5
    assert all(conversation == task[0] for conversation in task)
    asked, answer = task[0]["messages"]
    assert asked["content"].startswith("다음 중 뜻이 맞는 것은?\n\n- 가=A\n- 나=B\n- 다=C\n\n")
    assert (answer["content"], task[0]["letters"]) == ("B", "ABC")


def test_click_of_the_mirror(mirror):
    task = TASKS["CLIcK"]()
    rows = pq.read_table(mirror / str(TASKS["CLIcK"].files("test")[0])).to_pylist()
    assert len(task) == len(rows) == 1695
    assert task.baseline == pytest.approx(sum(1 / len(row["choices"]) for row in rows) / len(rows), abs=5e-4)
    for conversation, number in zip(task, np.random.default_rng(42).permutation(len(rows)), strict=True):
        asked, answer = (message["content"] for message in conversation["messages"])
        row = rows[number]
        assert asked.startswith(f"{row['paragraph']}\n\n{row['question']}".strip() + "\n\n- ")
        assert f"\n- {row['answer']}={answer}\n" in asked


def test_hrm8k_has_numbers_of_several_types(written):
    written(
        TASKS["HRM8K"],
        "test",
        [{"question": "몇 개?", "answer": 18.0, "original": "?"}],
        [{"question": "값?", "answer": "1,200"}],
    )
    task = TASKS["HRM8K"]()
    assert len(task) == 5
    for conversation in task:
        number = {"몇 개?": "18", "값?": "1200"}[conversation["messages"][0]["content"]]
        for said in (f"#### {number}", f"정답은 {number}.", rf"\boxed{{{number}.0}}"):
            assert task.evaluate(conversation, said)
        assert not task.evaluate(conversation, "#### 17")
        assert not task.evaluate(conversation, "모름")


def test_koalpaca(written):
    written(TASKS["KoAlpaca"], "train", [{"instruction": "왜?", "output": "그냥.", "url": "x"}])
    assert [*TASKS["KoAlpaca"]("train")] == [
        {"messages": [{"role": "user", "content": "왜?"}, {"role": "assistant", "content": "그냥."}]}
    ]
