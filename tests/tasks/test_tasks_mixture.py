"""Mixtures, files of your own, rewards, spelling; tests/tasks/test_tasks_chats.py has the data sets of chats."""

import hashlib
import json
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from nanochat.calculator import calculate
from nanochat.world.writer import write_world
from tasks import TASKS, mixture, open_tasks
from tasks.chats import json_lines
from tasks.common import TaskError
from tasks.mixing import Sequence
from tasks.spelling import frequent_words

MIRROR = Path(__file__).resolve().parents[3] / "shared/hub"


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world") / "world"
    write_world(folder, 1, "tiny")
    return folder


@pytest.fixture
def hub(world, tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("NANOCHAT_HUB", str(world))
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path / "base"))
    return world


@pytest.fixture
def mirror(monkeypatch) -> Path:
    if not MIRROR.is_dir():
        pytest.skip("no mirror of real data on this machine")
    monkeypatch.setenv("NANOCHAT_HUB", str(MIRROR))
    return MIRROR


def key(conversation: dict) -> str:
    return json.dumps(conversation, sort_keys=True)


def lines(path: Path, *rows) -> str:
    text = "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return f"json:{path}"


def chat(number: int) -> dict:
    said = [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": f"{number}!"}]
    return {"messages": said}


# ---- mixtures ----


def test_a_mixture_has_each_row_as_often_as_there_are_epochs(hub, tmp_path):
    spec = f"smoltalk, MMLU:2 ,gsm8k:0.5,aqua@30:1.5,{lines(tmp_path / 'my.jsonl', *map(chat, range(40)))}:3"
    found = mixture(spec, "train", seed=5)
    sizes = {name: len(TASKS[name]("train")) for name in ("SmolTalk", "MMLU", "GSM8K")}
    assert found.rows == {
        "SmolTalk": sizes["SmolTalk"],
        "MMLU": 2 * sizes["MMLU"],
        "GSM8K": sizes["GSM8K"] // 2,
        "AQUA": 45,
        "json:my.jsonl": 38 * 3,  # two of the forty are kept to validate with
    }
    assert len(found) == sum(found.rows.values())
    once = {"MMLU": sizes["MMLU"], "AQUA": 30, "json:my.jsonl": 38}
    assert found.examples == found.rows | once
    counts = Counter(map(key, found))
    for name, times in (("SmolTalk", 1), ("MMLU", 2)):
        expected = Counter({row: times * n for row, n in Counter(map(key, TASKS[name]("train"))).items()})
        assert all(counts[row] == n for row, n in expected.items()), name
    halves = Counter(counts[key(row)] for row in TASKS["GSM8K"]("train"))
    assert halves == {0: sizes["GSM8K"] - sizes["GSM8K"] // 2, 1: sizes["GSM8K"] // 2}
    sampled = Counter(counts[key(row)] for row in TASKS["AQUA"]("train"))
    assert (sampled[1], sampled[2]) == (15, 15)
    own = Counter(counts[key(chat(number))] for number in range(40))
    assert own == {3: 38, 0: 2}


def test_the_order_is_the_seeds(hub):
    seed = random.randrange(10**6)
    print("seed", seed)
    first, again, other = (list(map(key, mixture("arc-easy,aqua@50", seed=s))) for s in (seed, seed, seed + 1))
    assert first == again
    assert first != other
    assert sorted(first) != sorted(other)  # another sample of AQUA too
    names = ["AQUA" if "The answer" in row or "how many" in row.lower() else "" for row in first]
    assert len({tuple(names[start : start + 60]) for start in range(0, len(names), 60)}) > 1


def test_a_sequence_is_one_task_after_the_other(hub):
    parts = {name: (TASKS[name](), np.array([3, 1, 3])) for name in ("MMLU", "GSM8K")}
    found = Sequence(parts)
    assert list(found) == [parts[name][0][row] for name in parts for row in (3, 1, 3)]
    assert found.rows == {"MMLU": 3, "GSM8K": 3}
    with pytest.raises(IndexError):
        found[6]


def test_validation_has_every_held_out_row_once(hub, tmp_path):
    own = lines(tmp_path / "my.jsonl", *map(chat, range(40)))
    spec = f"smoltalk:2,arc-easy,aqua@7:3,identity,{own}:5"
    train, held_out = (mixture(spec, split, seed=3) for split in ("train", "validation"))
    assert held_out.rows == {
        "SmolTalk": len(TASKS["SmolTalk"]("test")),  # it has no split for validation
        "ARC-Easy": len(TASKS["ARC-Easy"]("validation")),
        "AQUA": len(TASKS["AQUA"]("validation")),
        "Identity": max(1, len(TASKS["Identity"]("train")) // 20),
        "json:my.jsonl": 2,
    }
    assert len(set(map(key, held_out))) > 0.9 * len(held_out)
    own_rows = {key(chat(number)) for number in range(40)}
    assert own_rows & {*map(key, train)} == own_rows - {*map(key, held_out)}


def test_the_aqua_sample_of_a_mixture_on_the_mirror(mirror):
    assert mixture("aqua", "validation").rows == {"AQUA": 254}
    assert mixture("identity:2,gsm8k@1000,arc-challenge", "train", 1).rows == {
        "Identity": 1900,
        "GSM8K": 1000,
        "ARC-Challenge": 1119,
    }


@pytest.mark.parametrize(
    ("spec", "split", "sentence"),
    [
        ("gsm7k", "train", "gsm7k: gsm7k is no task, did you mean GSM8K?"),
        ("mmlu,chess", "train", "mmlu,chess: chess is no task, take of ARC-Easy, "),
        ("", "train", "'' names no task, take some of ARC-Easy, "),
        ("mmlu:x", "train", "mmlu:x: mmlu:x is not like NAME, NAME:EPOCHS or NAME@ROWS:EPOCHS"),
        ("mmlu:-1", "train", "is not like NAME"),
        ("mmlu:0", "train", "0.0 epochs of the "),
        ("mmlu:2,MMLU", "train", "MMLU is named twice, give it epochs instead: MMLU:2"),
        ("aqua@101", "train", "AQUA has 100 rows to train on, 101 cannot be sampled: ask for fewer"),
        ("aqua@0", "train", "0 cannot be sampled"),
        ("humaneval", "train", "HumanEval has no rows for train, only for test"),
        ("identity", "test", "Identity has no rows for test, only for train"),
        ("json:/no/such.jsonl", "train", "there is no file /no/such.jsonl: name one with a conversation on each line"),
    ],
)
def test_mistakes_in_a_mixture_are_named(spec, split, sentence, hub):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        mixture(spec, split)


def test_a_mixture_tells_where_it_is_from(hub, tmp_path):
    own = lines(tmp_path / "my.jsonl", *map(chat, range(40)))
    origin = mixture(f"aqua@30:2,simplespelling@9,{own}", seed=5).origin()
    assert {name: one["rows"] for name, one in origin.items()} == {"AQUA": 60, "SimpleSpelling": 9, "json:my.jsonl": 38}
    [file] = TASKS["AQUA"].files("train")
    assert origin["AQUA"]["files"] == {str(file): hashlib.sha256((hub / str(file)).read_bytes()).hexdigest()}
    assert origin["json:my.jsonl"]["files"] == {
        "my.jsonl": hashlib.sha256((tmp_path / "my.jsonl").read_bytes()).hexdigest()
    }
    assert list(origin["SimpleSpelling"]["files"]) == ["words"]


# ---- files of your own ----


def test_both_forms_of_a_line_are_read(tmp_path):
    tool = [{"type": "python", "text": "1+1"}, {"type": "python_output", "text": "2"}, {"type": "text", "text": "2"}]
    with_tool = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": tool}]
    instructed = [{"role": "system", "content": "Be brief. 짧게."}, *chat(2)["messages"]]
    path = tmp_path / "my.jsonl"
    lines(path, chat(1), instructed, "", {"messages": with_tool, "source": "me"}, "   ")
    task = json_lines(str(path))("train")
    assert sorted(map(key, task)) == sorted(map(key, [chat(1), {"messages": instructed}, {"messages": with_tool}]))
    assert task.kind == "chat"


def test_faults_are_named_with_their_lines(tmp_path):
    [user, _] = chat(1)["messages"]
    bad = {
        2: ("{", "Expecting property name"),
        3: ("7", "a conversation has a list `messages`"),
        4: ({"messages": []}, "a conversation has a list `messages`"),
        6: ([user, user], "message 2: its role is 'user' where 'assistant' is due"),
        7: ([user], "the assistant says nothing in it that could be learned"),
        8: (
            '[{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "x"}]',
            "surrogates not allowed",
        ),
        9: ([user, {"role": "assistant"}], "message 2: it needs a `role` and a `content`"),
    }
    path = tmp_path / "my.jsonl"
    lines(path, *(bad.get(number, (chat(number),))[0] for number in range(1, 10)))
    with pytest.raises(TaskError) as caught:
        json_lines(str(path))("train")
    told = str(caught.value).splitlines()
    assert len(told) == 7
    for line, (number, (_, fault)) in zip(told[1:], bad.items(), strict=False):
        assert (f":{number}: " in line and fault in line) or line.strip() == "and 2 more"
    for row, fault in bad.values():
        lines(path, row)
        with pytest.raises(TaskError, match=re.escape(f"{path}:1: ") + ".*" + re.escape(fault)):
            json_lines(str(path))("train")
    path.write_bytes(b'\xff{"messages": []}\n')
    with pytest.raises(TaskError, match=r"my.jsonl:1: .*codec can't decode"):
        json_lines(str(path))("train")
    path.write_bytes(b"\n")
    with pytest.raises(TaskError, match=r"my.jsonl has no rows: the split train is empty"):
        json_lines(str(path))("train")


def test_one_row_cannot_be_held_out(tmp_path):
    spec = lines(tmp_path / "my.jsonl", chat(1))
    assert len(mixture(spec, "train")) == 1
    with pytest.raises(TaskError, match=r"json:my\.jsonl has a single row, none is left to validate with"):
        mixture(spec, "validation")


def test_two_files_of_one_name_are_two(tmp_path):
    for folder, first in (("a", 0), ("b", 50)):
        (tmp_path / folder).mkdir()
        lines(tmp_path / folder / "my.jsonl", *map(chat, range(first, first + 30)))
    spec = f"json:{tmp_path}/a/my.jsonl:2,json:{tmp_path}/b/my.jsonl"
    found = mixture(spec, "train")
    assert found.rows == {"json:my.jsonl": 58, f"json:{tmp_path}/b/my.jsonl": 29}
    assert len(set(map(key, found))) == 58
    for again in ("a/my.jsonl", "b/../a/my.jsonl"):
        with pytest.raises(ValueError, match=r"json:my\.jsonl is named twice, give it epochs instead"):
            mixture(f"{spec},json:{tmp_path}/{again}", "train")


# ---- rewards ----


def test_a_row_may_say_what_an_answer_earns(hub):
    data = replace(TASKS["GSM8K"], reward=lambda right, answer: float(right) - 0.01 * len(answer))
    task = data()
    answer = task[0]["messages"][1]["content"][-1]["text"]
    assert task.reward(task[0], answer) == pytest.approx(1 - 0.01 * len(answer))
    assert task.reward(task[0], "no") == pytest.approx(-0.02)


# ---- spelling ----


def test_words_come_from_the_text(hub):
    texts = [
        text
        for n in range(8)
        for text in pq.read_table(hub / f"datasets/local/world/shard_0000{n}.parquet")["text"].to_pylist()
    ]
    counts = Counter(re.findall(r"[^\W\d_]{2,15}", " ".join(texts[: len(texts) // 8]).lower()))
    words = frequent_words()
    assert words == sorted(words, key=lambda word: (-counts[word], word))
    assert set(words) == set(counts)
    for name in ("SimpleSpelling", "SpellingBee"):
        train, test = TASKS[name]("train"), TASKS[name]("test")
        assert [*train] == [*TASKS[name]("train")]
        assert len(train) > 5 * len(test)
        assert not {key(one) for one in train} & {key(one) for one in test}


def test_the_text_is_that_of_the_tokenizer(hub, tmp_path, text_folder):
    record = tmp_path / "base/tok_train/default/outcome.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"config": {"data": str(text_folder), "skip_bad": False}}))
    text = " ".join(file.read_text(encoding="utf-8") for file in text_folder.iterdir()).lower()
    words = set(frequent_words())
    assert {"letter", "quick", "빠른"} <= words <= set(re.findall(r"[^\W\d_]{2,15}", text))


def test_the_words_are_those_of_the_runs_own_tokenizer(hub, tmp_path):
    (tmp_path / "own").mkdir()
    for letter in "abcdefghijklmnopqrstuvwxyz":
        (tmp_path / f"own/{letter}.txt").write_text(f"zebra pony{letter}")
    record = tmp_path / "base/tok_train/mine/outcome.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"config": {"data": str(tmp_path / "own"), "skip_bad": False}}))
    words = frequent_words("mine")
    assert words[0] == "zebra"
    assert "zebra" not in frequent_words()
    learned, asked = mixture("simplespelling", tokenizer="mine"), open_tasks("simplespelling", tokenizer="mine")
    for task in (learned, asked["SimpleSpelling"]):
        assert {one["messages"][0]["content"].removeprefix("Spell the word: ") for one in task} <= set(words)


def test_without_a_text_there_are_no_words(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path / "base"))
    with pytest.raises(ValueError, match=r"words to spell are those of the tokenizer's text: train one by"):
        TASKS["SpellingBee"]()


def test_letters_are_counted_right(hub):
    task = TASKS["SpellingBee"]("train")
    counts = set()
    for conversation in task:
        asked, answer = conversation["messages"]
        parts = {part["type"]: part["text"] for part in answer["content"]}
        assert calculate(parts["python"]) == parts["python_output"]
        word = parts["python"].split('"')[1]
        assert word in asked["content"]
        assert f"spelled {'-'.join(word)}." in answer["content"][0]["text"]
        assert task.evaluate(conversation, f"hm\n#### {parts['python_output']}")
        assert not task.evaluate(conversation, "#### 77")
        counts.add(int(parts["python_output"]))
    assert {0, 1, 2} <= counts
    simple = TASKS["SimpleSpelling"]()
    word = simple[0]["messages"][0]["content"].removeprefix("Spell the word: ")
    assert simple.evaluate(simple[0], "-".join(word))
    assert not simple.evaluate(simple[0], word)
