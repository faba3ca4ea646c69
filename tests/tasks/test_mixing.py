"""Mixtures: rows and epochs, samples, held-out rows, mistakes; chats, instructions and users' own files."""

import json
import os
import re
import shutil
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from chat_files import chat, contents, key, write_lines
from conftest import each_row
from made_chats import chat as made_chat

from nanochat.chat import render_conversation
from nanochat.errors import UserError
from nanochat.paths import read_sha256, write_json, write_text
from nanochat.tokenizer import Tokenizer
from tasks import TASKS
from tasks.chats import instruction, json_lines
from tasks.common import TRAIN
from tasks.mixing import absolute_mixture, mix


@pytest.fixture
def own_file(tmp_path):
    return write_lines(tmp_path / "my.jsonl", *map(chat, range(40)))


def test_a_mixture_has_each_row_as_often_as_there_are_epochs(small_hub, own_file) -> None:
    found = mix(TASKS, f"smoltalk, MMLU:2 ,gsm8k:0.5,aqua@30:1.5,{own_file}:3", "train", seed=5)
    sizes = {name: len(TASKS[name]("train")) for name in ("SmolTalk", "MMLU", "GSM8K")}
    assert found.rows == {
        "SmolTalk": sizes["SmolTalk"],
        "MMLU": 2 * sizes["MMLU"],
        "GSM8K": sizes["GSM8K"] // 2,
        "AQUA": 45,
        "json:my.jsonl": 38 * 3,  # two of the forty are kept for validation
    }
    assert len(found) == sum(found.rows.values())
    assert found.examples == found.rows | {"MMLU": sizes["MMLU"], "AQUA": 30, "json:my.jsonl": 38}
    counts = Counter(map(key, found))

    def times(name: str):
        """Count how many rows of a task are in the mixture how many times."""
        return Counter(counts[key(row)] for row in TASKS[name].to_learn("train"))

    for name, epochs in (("SmolTalk", 1), ("MMLU", 2)):
        expected = Counter(map(key, TASKS[name]("train")))
        assert all(counts[row] == epochs * number for row, number in expected.items()), name
    assert times("GSM8K") == {0: sizes["GSM8K"] - sizes["GSM8K"] // 2, 1: sizes["GSM8K"] // 2}
    assert (times("AQUA")[1], times("AQUA")[2]) == (15, 15)
    assert Counter(counts[key(chat(number))] for number in range(40)) == {3: 38, 0: 2}


def test_aqua_is_learned_with_its_rationales(small_hub) -> None:
    """Under its own name too; AQUA-Letter and an augmentation have the letter alone."""
    plain, by_name, letters = (mix(TASKS, name, seed=3) for name in ("aqua", "AQUA-Rationale", "aqua-letter"))
    assert [*map(key, plain)] == [*map(key, by_name)]
    assert plain.rows == {"AQUA": 100}
    for split in ("train", "validation"):
        for row in mix(TASKS, "aqua", split):
            assert re.fullmatch(r"Count\.\nThe answer is [A-E]\.", contents(row)[1])
    assert {contents(row)[1] for row in letters} == set("ABCDE")
    # The evaluation of that name reads the letter, as it does for other multiple choice.
    assert [TASKS[name].task.kind for name in ("AQUA", "AQUA-Rationale")] == ["categorical", "generative"]
    assert "nothing but the letter" in contents(TASKS["AQUA"]()[0])[0]


def test_the_seed_gives_order_and_samples(small_hub) -> None:
    first, again, other = (list(map(key, mix(TASKS, "arc-easy,aqua@50", seed=seed))) for seed in (3, 3, 4))
    assert first == again
    assert first != other
    assert sorted(first) != sorted(other)  # the sample of AQUA differs too
    arc = {key(row) for row in TASKS["ARC-Easy"]("train")}
    from_arc = [row in arc for row in first]
    assert from_arc != sorted(from_arc, reverse=True)  # the tasks are mixed
    # A task with one conversation for each row is sampled as it always was, so that runs can be resumed.
    task = TASKS["AQUA"].to_learn("train")
    sample = np.random.default_rng((3, 0)).permutation(len(task))[:50].tolist()
    assert sorted(map(key, mix(TASKS, "aqua@50", seed=3))) == sorted(key(task[number]) for number in sample)


def test_the_order_is_that_of_a_shuffle_of_the_rows(small_hub) -> None:
    """As earlier versions shuffled them: their runs go on, and their figures stand."""
    tasks = [TASKS[name]("train") for name in ("SmolTalk", "GSM8K")]
    rows = []
    for number, (task, epochs) in enumerate(zip(tasks, (1, 2), strict=True)):
        sample = np.random.default_rng((5, number)).permutation(len(task))
        rows += [(number, row) for row in [*sample] * epochs]
    order = np.array(rows)
    np.random.default_rng(5).shuffle(order)
    found = mix(TASKS, "smoltalk,gsm8k:2", "train", seed=5)
    assert [*map(key, found)] == [key(tasks[number][row]) for number, row in order.tolist()]


def test_validation_has_every_held_out_row_once(small_hub, own_file) -> None:
    spec = f"smoltalk:2,arc-easy,aqua@7:3,identity,{own_file}:5"
    train, held_out = (mix(TASKS, spec, split, seed=3) for split in ("train", "validation"))
    assert held_out.rows == {
        "SmolTalk": len(TASKS["SmolTalk"]("test")),  # it has no validation split
        "ARC-Easy": len(TASKS["ARC-Easy"]("validation")),
        "AQUA": len(TASKS["AQUA"]("validation")),
        "Identity": max(1, len(TASKS["Identity"]("train")) // 20),
        "json:my.jsonl": 2,
    }
    assert len(set(map(key, held_out))) > 0.9 * len(held_out)
    own_rows = {key(chat(number)) for number in range(40)}
    assert own_rows & {*map(key, train)} == own_rows - {*map(key, held_out)}


# A specification, and a part of the sentence about its fault.
MISTAKES = """
mmlu,chess => chess is not a task, choose from ARC-Easy,
mmlu:x => mmlu:x is not like NAME[~AUGMENTATION[:N]][@ROWS][%SHARE][:EPOCHS], or NAME|NAME
smoltalk|chess => chess is not a task, choose from ARC-Easy,
smoltalk|@9 => smoltalk|@9 is not like NAME
mmlu~options:0.5 => mmlu~options:0.5 is not like NAME[~AUGMENTATION[:N]]
mmlu~jokes => MMLU~jokes: the augmentation jokes is not known, choose from styles, options
mmlu%50,aqua => mmlu%50,aqua: all tasks need shares, which add up to 100 %, not to 50 %
mmlu%50,aqua%60:2 => which add up to 100 %, not to 110 %
mmlu%100 => tok_train/default/tokenizer.json; train one with
mmlu:0 => 0 epochs of
mmlu:2,MMLU => MMLU is named twice, give it epochs instead: MMLU:2
aqua@101 => AQUA has 100 rows to train on: 1 epochs of 101 rows cannot be taken from them
humaneval => openai/openai_humaneval: the split train is not known, choose from test
json:/no/such.jsonl => there is no file /no/such.jsonl
"""


@each_row("spec sentence", MISTAKES, " => ")
def test_mistakes_in_a_mixture_are_named(spec, sentence, small_hub) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        mix(TASKS, spec)


@pytest.mark.parametrize("spec", ["smoltalk%50:2.5,gsm8k@90%50", "smoltalk%20,gsm8k%80:1.5", "mmlu%90,{}%10:9"])
def test_shares_are_of_supervised_tokens(spec, small_hub, own_file, base) -> None:
    tokenizer = Tokenizer.train([f"the answer is {number}" for number in range(99)], 320)
    tokenizer.save(base / "tok_train/default/tokenizer.json")
    spec = spec.format(own_file)
    whole, found = mix(TASKS, re.sub("%[0-9]+", "", spec), seed=3), mix(TASKS, spec, seed=3)
    [(first, _), (second, _)] = found.rows.items()
    keys = set(map(key, mix(TASKS, spec.split("%")[0], seed=3)))  # of the first task
    tokens = {True: 0, False: 0}
    for row in found:
        tokens[key(row) in keys] += sum(render_conversation(row, tokenizer)[1])
    asked = float(re.search("%([0-9]+)", spec)[1])
    assert 100 * tokens[True] / sum(tokens.values()) == pytest.approx(asked, abs=1)
    # One of the tasks is read in full.
    assert found.rows[first] == whole.rows[first] or found.rows[second] == whole.rows[second]
    assert list(map(key, mix(TASKS, spec, seed=3))) == list(map(key, found))


def test_a_default_leaves_out_tasks_without_files(small_hub, tmp_path, monkeypatch, capsys) -> None:
    """Only a specification that the user typed has to be there in full."""
    found = mix(TASKS, "", default="multi-turn,aqua@999")
    assert found.rows == {"AQUA": 100}
    assert "train mixture: Multi-Turn is left out: 1 of 1 files are not available:" in capsys.readouterr().out
    with pytest.raises(ValueError, match="files are not available"):
        mix(TASKS, "multi-turn,aqua")
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))
    with pytest.raises(ValueError, match="no task of multi-turn,aqua is here: set NANOCHAT_HUB"):
        mix(TASKS, "", default="multi-turn,aqua")


def test_a_file_may_have_tools_and_their_turns(tmp_path) -> None:
    calling = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    result = {"role": "tool", "content": "46"}
    messages = [{"role": "user", "content": "?"}, calling, result, {"role": "assistant", "content": "46"}]
    rows = [{"messages": messages, "tools": [{"type": "function"}]}, {"messages": messages[:1] + messages[3:]}]
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps(row) + "\n" for row in 20 * rows))
    found = list(mix(TASKS, f"json:{tmp_path}/calls.jsonl"))
    assert all(row in rows for row in found)
    assert all(row in found for row in rows)
    (tmp_path / "calls.jsonl").write_text(json.dumps({"messages": messages, "tools": "f"}))
    with pytest.raises(UserError, match=r"calls\.jsonl:1: the tools of a conversation are a list of objects"):
        mix(TASKS, f"json:{tmp_path}/calls.jsonl")


def test_the_first_of_several_tasks_that_has_files_is_read(small_hub, tmp_path, own_file, monkeypatch, capsys) -> None:
    found = mix(TASKS, f"multi-turn|smoltalk@30:2,{own_file}")
    assert found.rows == {"SmolTalk": 60, "json:my.jsonl": 38}
    assert "train mixture: Multi-Turn is left out: 1 of 1 files are not" in capsys.readouterr().out
    assert mix(TASKS, "smoltalk | multi-turn").rows == {"SmolTalk": 200}
    if find_spec("tracks.chatdata"):  # augmentations are its
        assert mix(TASKS, "mmlu|arc-easy~options:4@8").rows == {"MMLU~options:4": 8}
    (hub := tmp_path / "hub").mkdir()
    (hub / "datasets").symlink_to(small_hub / "datasets")  # without the file of Identity
    monkeypatch.setenv("NANOCHAT_HUB", str(hub))
    with pytest.raises(ValueError, match=r"1 of 1 files are not available: identity_conversations.jsonl"):
        mix(TASKS, "multi-turn|identity")
    assert mix(TASKS, "", default="multi-turn|identity,aqua").rows == {"AQUA": 100}


def test_validation_is_of_the_data_set_that_is_trained_on(small_hub, tmp_path, monkeypatch) -> None:
    """Also where the first one has files for validation, but none to train on."""
    hub = shutil.copytree(small_hub, tmp_path / "hub")
    for file in TASKS["SmolTalk"].files("train"):
        (hub / str(file)).unlink()
    monkeypatch.setenv("NANOCHAT_HUB", str(hub))
    for split in ("train", "validation"):
        assert list(mix(TASKS, "smoltalk|identity", split).rows) == ["Identity"]


def test_a_mixture_knows_its_rows_and_files(small_hub, tmp_path, own_file) -> None:
    origin = mix(TASKS, f"aqua@30:2,simplespelling@9,{own_file}", seed=5).origin()
    rows = {"AQUA": 60, "SimpleSpelling": 9, "json:my.jsonl": 38}
    assert {name: one["rows"] for name, one in origin.items()} == rows
    [file] = TASKS["AQUA"].files("train")
    assert origin["AQUA"]["files"] == {str(file): read_sha256(small_hub / str(file))}
    assert origin["json:my.jsonl"]["files"] == {"my.jsonl": read_sha256(tmp_path / "my.jsonl")}
    assert list(origin["SimpleSpelling"]["files"]) == ["rows"]


def test_instructions_may_have_several_columns(write_rows) -> None:
    for columns, more, question in (
        (("instruction", "output"), {"url": "x"}, "왜?"),
        (("instruction", "input", "output"), {"input": "비"}, "왜?\n\n비"),
        (("instruction", "input", "output"), {"input": ""}, "왜?"),
    ):
        data = replace(TASKS["SmolTalk"], repo="me/mine", splits=(TRAIN,), columns=columns, convert=instruction)
        write_rows(data, [{"instruction": "왜?", "output": "그냥.", **more}], split="train")
        assert [*data("train")] == [made_chat(question, "그냥.")]


SENTENCES = [f"Sentence number {number} comes to an end{mark}" for number, mark in enumerate(".?!" * 400)]
CHINESE = [f"第{number}漢字是很古老的文字。" * 9 for number in range(900)]
ENDLESS = [f"words {number}  without end " * 9 for number in range(900)]


@pytest.mark.parametrize("lines", [SENTENCES * 9, CHINESE, ENDLESS])
def test_passages_are_a_piece_and_the_pieces_after_it(lines, tmp_path, base) -> None:
    text = "\n".join(lines)
    twice = "".join((text * 2).split())
    sentences = set(SENTENCES)
    write_text(tmp_path / "own/book.txt", text)
    write_json(base / "tok_train/book/outcome.json", {"config": {"data": str(tmp_path / "own")}})
    for split, file in (("train", "own/train-00000.parquet"), ("validation", "own/val.parquet")):
        task = TASKS["Passages"](split, "book")
        assert (list(task.files), len(task) > 3) == ([file], True)
        for conversation in task:
            question, answer = contents(conversation)
            assert question in sentences or text[0] != "S"
            assert "".join((question + answer).split()) in twice
    (tmp_path / "own/book.txt").write_text("Short.")
    (tmp_path / "own/more.txt").write_text("Also.")
    with pytest.raises(ValueError, match="the text of the tokenizer book is too short for passages, split train"):
        TASKS["Passages"]("train", "book")


def test_both_forms_of_a_line_and_several_files_are_read(tmp_path) -> None:
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


def test_files_of_a_mixture_get_their_whole_paths_and_all_else_stays(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = os.path.expanduser("~")
    for spec, expected in {
        "smoltalk, MMLU~options:8@5 ,json:/a/b/:3": None,
        "json:my.jsonl:3,ARC-Easy%40": f"json:{tmp_path}/my.jsonl:3,ARC-Easy%40",
        "a, json:../b|c.jsonl ,json:~/d@9": f"a,json:{tmp_path.parent}/b|c.jsonl,json:{home}/d@9",
    }.items():
        assert absolute_mixture(spec) == (expected or spec)


def test_two_files_of_one_name_cannot_be_mixed(tmp_path) -> None:
    for folder in "ab":
        write_lines(tmp_path / folder / "chats.jsonl", *(chat(number) for number in range(40)))
    with pytest.raises(UserError, match=r"two files of the mixture are called json:chats\.jsonl: rename one"):
        mix(TASKS, f"json:{tmp_path}/a/chats.jsonl,json:{tmp_path}/b/chats.jsonl")
    with pytest.raises(UserError, match=r"json:chats\.jsonl is named twice, give it epochs instead"):
        mix(TASKS, f"json:{tmp_path}/a/chats.jsonl,json:{tmp_path}/a/chats.jsonl")


def test_tables_of_tools(tmp_path) -> None:
    """Tools may be a text of JSON, and what a table fills up with null is left out; a null content stays."""
    tool = {"name": "f", "parameters": {"properties": {"x": {"type": "int"}}}}
    wide = {"name": "f", "parameters": {"properties": {"x": {"type": "int"}, "y": None}}, "strict": None}
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}
    padded = {**call, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1, "y": None}}, "id": None}]}
    said = [
        {"role": "user", "content": "1?"},
        call,
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "2"},
    ]
    expected = {"messages": said, "tools": [tool]}
    for tools in (json.dumps([wide]), [wide], [tool]):
        write_lines(tmp_path / "my.jsonl", {"messages": [said[0], padded, *said[2:]], "tools": tools})
        assert list(json_lines(str(tmp_path / "my.jsonl"))("train")) == [expected]
    write_lines(tmp_path / "my.jsonl", {**chat(1), "tools": ""})
    assert list(json_lines(str(tmp_path / "my.jsonl"))("train")) == [chat(1)]


def test_a_column_may_have_the_system_message(tmp_path) -> None:
    sharegpt = [{"from": "human", "value": "1?"}, {"from": "gpt", "value": "1!"}]
    expected = {"messages": [{"role": "system", "content": "S"}, *chat(1)["messages"]]}
    write_lines(tmp_path / "my.jsonl", {"system": "S", "conversations": sharegpt}, {"system": "S", **chat(1)})
    assert list(json_lines(str(tmp_path / "my.jsonl"))("train")) == [expected, expected]
    write_lines(tmp_path / "my.jsonl", {"system": " ", **chat(1)}, {"system": {"os": "linux"}, **chat(1)})
    assert list(json_lines(str(tmp_path / "my.jsonl"))("train")) == [chat(1), chat(1)]


def test_forms_of_other_programs_are_read(tmp_path) -> None:
    question, answer = chat(1)["messages"]
    sharegpt = [{"from": "system", "value": "S"}, {"from": "human", "value": "1?"}, {"from": "gpt", "value": "2"}]
    marked = [*sharegpt[:2], {**sharegpt[2], "weight": 0}]
    earlier = {"role": "assistant", "content": "So?"}
    rows = [
        {"prompt": question["content"], "completion": answer["content"]},
        {"prompt": [question, earlier, question], "completion": [answer], "tools": [{"name": "f"}]},
        {"conversations": sharegpt, "id": 7, "chat_template_kwargs": {"enable_thinking": None}},
        {"conversations": marked},
        {"conversations": [question, answer]},
        {"instruction": "Add.", "input": "1 + 1", "output": "2", "system": "S", "text": "Below is"},
        {"instruction": question["content"], "input": None, "output": answer["content"]},
    ]
    write_lines(tmp_path / "my.jsonl", *rows)
    spoken = [{"role": "system", "content": "S"}, {"role": "user", "content": "1?"}]
    expected = [
        chat(1),
        {"messages": [question, {**earlier, "train": False}, question, answer], "tools": [{"name": "f"}]},
        {"messages": [*spoken, {"role": "assistant", "content": "2"}]},
        {"messages": [*spoken, {"role": "assistant", "content": "2", "weight": 0}]},
        chat(1),
        {
            "messages": [
                spoken[0],
                {"role": "user", "content": "Add.\n\n1 + 1"},
                {"role": "assistant", "content": "2"},
            ]
        },
        chat(1),
    ]
    task = json_lines(str(tmp_path / "my.jsonl"))("train")
    shown = [json.dumps(row, sort_keys=True) for row in task]
    assert sorted(shown) == sorted(json.dumps(row, sort_keys=True) for row in expected)


FAULTS = [
    ("{", "Expecting property name"),
    ({"messages": []}, "a conversation has a list `messages`"),
    (chat(1)["messages"][:1], "the assistant says nothing in it that could be learned"),
    (chat(1)["messages"][::-1], "message 1: its role is 'assistant'"),
    ({"prompt": "1?"}, "with `prompt` and `completion`, with `conversations`, or with `instruction` and `output`"),
    ({"instruction": "1?", "output": 2}, "no JSON object with `messages`"),
    ({"instruction": "1?", "input": [2], "output": "1!"}, "the `input` of its instruction is no text"),
    ({"prompt": 1, "completion": "2"}, "what the user says is neither a text nor a list of messages: 1"),
    ({"conversations": [{"from": "human"}]}, "message 1: its content is neither"),
    ({"conversations": [{"from": "fox", "value": "1"}]}, "message 1: its role is 'fox'"),
    ({**chat(1), "tools": "[1"}, "the tools of a conversation are a list of objects, or that as JSON in a text"),
    ({**chat(1), "tools": "{}"}, "the tools of a conversation are a list of objects"),
    (
        {**chat(1), "chat_template_kwargs": {"enable_thinking": False}},
        "its chat_template_kwargs are not read: a chat template has the same values for all conversations",
    ),
    (
        {"system": "S", "messages": [{"role": "system", "content": "T"}, *chat(1)["messages"]]},
        "it has a system message, and another in its column system: keep one",
    ),
]


@pytest.mark.parametrize(("row", "fault"), FAULTS)
def test_faults_are_named_with_their_lines(row, fault, tmp_path) -> None:
    path = tmp_path / "my.jsonl"
    write_lines(path, chat(1), row, chat(2))
    with pytest.raises(ValueError, match=re.escape(f"{path}:2: ") + ".*" + re.escape(fault)):
        json_lines(str(path))("train")
