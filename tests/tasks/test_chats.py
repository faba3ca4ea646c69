"""Chats, instructions and users' own files."""

import json
import re
from collections import Counter
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from chat_files import chat, key, write_lines

from nanochat.chat import check_conversation
from tasks import TASKS
from tasks.chats import Chat, instruction, json_lines
from tasks.common import FILE, DataSet, TaskError


def test_chats_of_the_world_are_well_formed(world_hub):
    for name in ("SmolTalk", "Identity"):
        task = TASKS[name]("train")
        assert len({key(conversation) for conversation in task}) > 2
        for conversation in task:
            check_conversation(conversation)
    assert len(TASKS["SmolTalk"]("train")) == 200


def test_chats_of_the_mirror_are_well_formed(mirror):
    for split, count in (("train", 12624), ("test", 2921)):
        task = TASKS["Multi-Turn"](split)
        assert len(task) == count
        for index in range(0, count, 7):
            check_conversation(task[index])


def test_a_malformed_chat_is_named_with_its_file_and_row(write_rows):
    broken = {"messages": [{"role": "assistant", "content": "hello"}]}
    write_rows("SmolTalk", [chat(1), chat(2)], [chat(3), broken], split="train")
    with pytest.raises(TaskError, match=r"data/train-0000[13]-of-00004.parquet, row 1: message 1: its role is 'assis"):
        list(TASKS["SmolTalk"]("train"))


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


def test_faults_are_named_with_their_lines(tmp_path):
    [user, _] = chat(1)["messages"]
    half_a_pair = '[{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "x"}]'
    bad = {
        2: ("{", "Expecting property name"),
        3: ("7", "a conversation has a list `messages`"),
        4: ({"messages": []}, "a conversation has a list `messages`"),
        6: ([user, user], "message 2: its role is 'user'"),
        7: ([user], "the assistant says nothing in it that could be learned"),
        8: (half_a_pair, "surrogates not allowed"),
        9: ([user, {"role": "assistant"}], "message 2: it needs a `role` and a `content`"),
    }
    path = tmp_path / "my.jsonl"
    write_lines(path, *(bad.get(number, (chat(number),))[0] for number in range(1, 10)))
    with pytest.raises(TaskError) as caught:
        json_lines(str(path))("train")
    _, *listed, rest = str(caught.value).splitlines()
    assert rest.strip() == "and 2 more"
    assert len(listed) == 5
    for line, (number, (_, fault)) in zip(listed, bad.items(), strict=False):
        assert f":{number}: " in line
        assert fault in line
    for row, fault in bad.values():
        write_lines(path, row)
        with pytest.raises(TaskError, match=re.escape(f"{path}:1: ") + ".*" + re.escape(fault)):
            json_lines(str(path))("train")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'\xff{"messages": []}\n', r"my.jsonl:1: .*codec can't decode"),
        (b"\n", r"my.jsonl has no rows: the split train is empty"),
    ],
)
def test_files_without_conversations_are_named(content, sentence, tmp_path):
    (tmp_path / "my.jsonl").write_bytes(content)
    with pytest.raises(TaskError, match=sentence):
        json_lines(str(tmp_path / "my.jsonl"))("train")


def test_identity_of_a_mirror_is_a_file_of_lines(world_hub):
    rows = [json.loads(line) for line in (world_hub / "identity_conversations.jsonl").read_text("utf-8").splitlines()]
    assert len(TASKS["Identity"]("train")) == len(rows)
