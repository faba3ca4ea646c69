"""Chats, instructions and users' own files."""

import re
from collections import Counter
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from chat_files import chat, key, write_lines

from nanochat.chat import check_conversation
from tasks import TASKS
from tasks.chats import Chat, instruction, json_lines
from tasks.common import FILE, DataSet


def test_chats_of_the_world_are_well_formed(world_hub):
    for name in ("SmolTalk", "Identity"):
        task = TASKS[name]("train")
        assert len({key(conversation) for conversation in task}) > 2
        for conversation in task:
            check_conversation(conversation)
    assert len(TASKS["SmolTalk"]("train")) == 200
    lines = (world_hub / "identity_conversations.jsonl").read_text("utf-8").splitlines()
    assert len(TASKS["Identity"]("train")) == len(lines)


def test_chats_of_the_mirror_are_well_formed(mirror):
    for split, count in (("train", 12624), ("test", 2921)):
        task = TASKS["Multi-Turn"](split)
        assert len(task) == count
        for index in range(0, count, 7):
            check_conversation(task[index])


def test_instructions_of_any_columns_are_a_row_of_the_table(mirror):
    """Three data sets of the mirror are not in the table."""
    three = TASKS["KoAlpaca-v1"]
    gpteacher = {"repo": "local/gpteacher", "path": "codegen/" + FILE, "columns": "instruction input response"}
    two = DataSet(
        task=Chat,
        repo="local/korean-chatbot-data",
        path="data/" + FILE,
        splits="train",
        columns="Q A",
        convert=instruction,
    )
    counts = [(three, 11420), (replace(three, repo="tatsu-lab/alpaca"), 4700), (replace(three, **gpteacher), 4535)]
    for data, count in [*counts, (two, 11823)]:
        task = data("train")
        assert len(task) == count
        rows = pq.read_table(mirror / str(data.files("train")[0])).select(data.columns.split()).to_pylist()
        expected = Counter()
        for *question, answer in (row.values() for row in rows):
            expected["\n\n".join(filter(None, question)), answer] += 1
        assert Counter(tuple(message["content"] for message in one["messages"]) for one in task) == expected


def test_koalpaca(write_rows):
    write_rows("KoAlpaca", [{"instruction": "왜?", "output": "그냥.", "url": "x"}], split="train")
    messages = [{"role": "user", "content": "왜?"}, {"role": "assistant", "content": "그냥."}]
    assert [*TASKS["KoAlpaca"]("train")] == [{"messages": messages}]


# ---- users' own files ----


def test_both_forms_of_a_line_are_read(tmp_path):
    tool = [{"type": "python", "text": "1+1"}, {"type": "python_output", "text": "2"}, {"type": "text", "text": "2"}]
    with_tool = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": tool}]
    with_system = [{"role": "system", "content": "Be brief. 짧게."}, *chat(2)["messages"]]
    path = tmp_path / "my.jsonl"
    write_lines(path, chat(1), with_system, "", {"messages": with_tool, "source": "me"}, "   ")
    task = json_lines(str(path))("train")
    expected = [chat(1), {"messages": with_system}, {"messages": with_tool}]
    assert sorted(map(key, task)) == sorted(map(key, expected))
    assert task.kind == "chat"


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("{", "Expecting property name"),
        ({"messages": []}, "a conversation has a list `messages`"),
        ([chat(1)["messages"][0]], "the assistant says nothing in it that could be learned"),
        (chat(1)["messages"][::-1], "message 1: its role is 'assistant'"),
    ],
)
def test_faults_are_named_with_their_lines(row, fault, tmp_path):
    path = tmp_path / "my.jsonl"
    write_lines(path, chat(1), row, chat(2))
    with pytest.raises(ValueError, match=re.escape(f"{path}:2: ") + ".*" + re.escape(fault)):
        json_lines(str(path))("train")
