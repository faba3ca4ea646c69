"""Chats, instructions and users' own files."""

import re

import pytest
from chat_files import chat, contents, key, write_lines
from made_chats import chat as made_chat

from nanochat.paths import write_json
from tasks import TASKS
from tasks.chats import json_lines


def test_instructions_may_have_several_columns(write_rows):
    for name, more, question in (("KoAlpaca", {"url": "x"}, "왜?"), ("KoAlpaca-v1", {"input": "비"}, "왜?\n\n비")):
        write_rows(name, [{"instruction": "왜?", "output": "그냥.", **more}], split="train")
        assert [*TASKS[name]("train")] == [made_chat(question, "그냥.")]
    write_rows(name, [{"instruction": "왜?", "output": "그냥.", "input": ""}], split="train")
    assert [*TASKS[name]("train")] == [made_chat("왜?", "그냥.")]


SENTENCES = [f"Sentence number {number} comes to an end{mark}" for number, mark in enumerate(".?!" * 400)]
CHINESE = [f"第{number}漢字是很古老的文字。" * 9 for number in range(900)]
ENDLESS = [f"words {number}  without end " * 9 for number in range(900)]


@pytest.mark.parametrize("lines", [SENTENCES * 9, CHINESE, ENDLESS])
def test_passages_are_a_piece_and_the_pieces_after_it(lines, tmp_path, base):
    text = "\n".join(lines)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/book.txt").write_text(text)
    write_json(base / "tok_train/book/outcome.json", {"config": {"data": str(tmp_path / "own")}})
    for split, file in (("train", "own/train-00000.parquet"), ("validation", "own/val.parquet")):
        task = TASKS["Passages"](split, "book")
        assert (list(task.files), len(task) > 3) == ([file], True)
        for conversation in task:
            question, answer = contents(conversation)
            assert question in SENTENCES or text[0] != "S"
            assert "".join((question + answer).split()) in "".join((text * 2).split())
    (tmp_path / "own/book.txt").write_text("Short.")
    (tmp_path / "own/more.txt").write_text("Also.")
    with pytest.raises(ValueError, match="the text of the tokenizer book is too short for passages, split train"):
        TASKS["Passages"]("train", "book")


def test_both_forms_of_a_line_and_several_files_are_read(tmp_path):
    tool = [{"type": "python", "text": "1+1"}, {"type": "python_output", "text": "2"}, {"type": "text", "text": "2"}]
    with_tool = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": tool}]
    with_system = [{"role": "system", "content": "Be brief. 짧게."}, *chat(2)["messages"]]
    path = tmp_path / "my.jsonl"
    write_lines(path, chat(1), with_system, "", {"messages": with_tool, "source": "me"}, "   ")
    task = json_lines(str(path))("train")
    expected = [chat(1), {"messages": with_system}, {"messages": with_tool}]
    assert sorted(map(key, task)) == sorted(map(key, expected))
    assert task.kind == "chat"
    for number in (2, 0, 1):
        write_lines(tmp_path / f"folder/web-{number}.jsonl", chat(number))
    write_lines(tmp_path / "folder/code-0.jsonl", chat(9))
    (tmp_path / "folder/manifest.json").write_text("{}")
    for name, numbers in (("folder/web-*.jsonl", [0, 1, 2]), ("folder", [9, 0, 1, 2])):
        task = json_lines(f"{tmp_path}/{name}")("train")
        assert [row[0][0]["content"] for row in task.rows] == [f"{number}?" for number in numbers]
        assert len(task.hashes()) == len(numbers)


FAULTS = """
"{" | Expecting property name
{"messages": []} | a conversation has a list `messages`
chat(1)["messages"][:1] | the assistant says nothing in it that could be learned
chat(1)["messages"][::-1] | message 1: its role is 'assistant'
"""


@pytest.mark.parametrize("case", FAULTS.strip().splitlines())
def test_faults_are_named_with_their_lines(case, tmp_path):
    row, fault = case.split(" | ")
    path = tmp_path / "my.jsonl"
    write_lines(path, chat(1), eval(row), chat(2))
    with pytest.raises(ValueError, match=re.escape(f"{path}:2: ") + ".*" + re.escape(fault)):
        json_lines(str(path))("train")
