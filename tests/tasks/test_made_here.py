"""Tasks made here: about the embedded world, words spelled and letters counted."""

import json
import re
from collections import Counter

import pyarrow.parquet as pq
import pytest
from chat_files import contents
from conftest import cells

from nanochat.calculator import calculate
from nanochat.chat import check_conversation
from nanochat.paths import base_dir, write_json, write_text
from nanochat.world.writer import write_world
from tasks import TASKS, WORLD_TASKS, open_tasks, task_to_learn
from tasks.mixing import mix
from tasks.sets import SETS
from tasks.spelling import frequent_words

OF_WORLDS = {name: data for name, data in SETS.items() if data.table}


@pytest.fixture
def learned(base) -> None:
    """A tokenizer that learned from the world of seed 2, and one that learned from other text."""
    write_world(base / "world-2", 2, "tiny")
    learned = {"two": {"name": "world-2", "world seed": 2}, "real": {"name": "climbmix"}}
    learned["folder"] = {"name": "world-2", "world seed": None}  # a user's folder of this name
    for tag, data in learned.items():
        write_json(base / f"tok_train/{tag}/tokenizer.json", {"training": {"data": data}})


# Right answer | a sentence with the word | one with another word that ends alike.
KOREAN = """
1월 | 라의 축제는 1월에 열린다. | 라의 축제는 11월에 열린다.
소 | 라는 소를 기른다. | 라는 염소를 기른다.
6마일 | 라의 길이는 6마일이다. | 라의 길이는 26마일이다.
은색 | 라의 깃발은 은색이다. | 라의 깃발은 검은색이다.
"""


def test_answers_have_to_contain_the_whole_word(learned) -> None:
    task = TASKS["World-Questions"](tokenizer="two")
    word = task[0]["messages"][-1]["content"]
    assert task.evaluate(task[0], f"I think that it is {word}.")
    assert not task.evaluate(task[0], f"It is {word}ish.")
    [task] = open_tasks("World-Korean", tokenizer="default").values()
    for word, right, wrong in cells(KOREAN):
        conversation = {"messages": [{"role": "assistant", "content": word}]}
        assert task.evaluate(conversation, right)
        assert not task.evaluate(conversation, wrong)


def test_the_world_is_the_one_that_the_tokenizer_learned_from(learned) -> None:
    folders = {"two": "world-2", "real": "world", "folder": "world", "none": "world"}
    for tag, folder in folders.items():
        for name, data in OF_WORLDS.items():
            for split in data.split_names:
                [(file, path)] = data(split, tokenizer=tag).files.items()
                assert path == base_dir() / file
                assert file == f"{folder}/tasks/{data.table}-{split}.parquet", name


def test_every_task_is_well_formed_and_its_own_answer_is_right(learned) -> None:
    for name, data in OF_WORLDS.items():
        for split in data.split_names:
            task = data(split, tokenizer="two")
            for number in range(10):
                conversation = task[number]
                check_conversation(conversation)
                if name in WORLD_TASKS:
                    answer = conversation["messages"][-1]["content"]
                    text = answer if isinstance(answer, str) else "".join(part["text"] for part in answer)
                    assert task.evaluate(conversation, text)
                    is_known = answer != "not know"
                    assert task.evaluate(conversation, "I do not know.") != is_known


def test_a_model_of_a_world_practises_its_sums_and_is_scored_with_its_tasks(
    learned, fake_hub, monkeypatch, tmp_path
) -> None:
    name, train, test = task_to_learn("", "two")
    assert (name, train.split, test.split) == ("World-Sums", "train", "test")
    monkeypatch.setenv("NANOCHAT_HUB", str(fake_hub))
    assert task_to_learn("", "real")[0] == task_to_learn("gsm8k", "two")[0] == "GSM8K"
    with pytest.raises(ValueError, match="SmolTalk is not a task, choose from"):  # it has no verdicts
        task_to_learn("SmolTalk", "two")
    assert list(open_tasks("", tokenizer="two")) == list(WORLD_TASKS)
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))
    assert open_tasks("", tokenizer="real") == {}  # the mirror is empty


def test_a_sum_is_right_by_its_result_and_not_by_the_numbers_that_go_in(learned) -> None:
    task = TASKS["World-Talk"](tokenizer="two")
    row = next(row for row in task if row["category"] == "sums")
    [result] = row["accept"]
    called = f"<|python_start|>{result}-0<|python_end|><|output_start|>{{0}}<|output_end|>{{0}}."
    assert task.evaluate(row, called.format(result))
    assert not task.evaluate(row, called.format("1"))
    known = next(row for row in task if row["category"] == "facts")
    assert not task.evaluate(known, f"{known['accept'][0]}? I do not know that.")


def test_words_come_from_the_text(tiny_world) -> None:
    first_shard = pq.read_table(tiny_world / "text/shard_00000.parquet")["text"].to_pylist()
    counts = Counter(re.findall(r"[^\W\d_]{2,15}", " ".join(first_shard).lower()))
    words = frequent_words()
    assert words == sorted(words, key=lambda word: (-counts[word], word))
    assert set(words) == set(counts)
    for name in ("SimpleSpelling", "SpellingBee"):
        train, test = ([json.dumps(one) for one in TASKS[name](split)] for split in ("train", "test"))
        assert len(train) > 5 * len(test)
        assert not set(train) & set(test)


def test_words_are_those_of_the_tokenizer_of_the_run(small_hub, tmp_path, base) -> None:
    for letter in "abcdefghijklmnopqrstuvwxyz":
        write_text(tmp_path / f"own/{letter}.txt", f"Zebra pony{letter} 빠른")
    write_json(base / "tok_train/mine/outcome.json", {"config": {"data": str(tmp_path / "own")}})
    words = frequent_words("mine")
    assert {words[0], words[1]} == {"zebra", "빠른"}
    assert "zebra" not in frequent_words()
    learned, evaluated = mix(TASKS, "simplespelling", tokenizer="mine"), open_tasks("simplespelling", tokenizer="mine")
    for task in (learned, evaluated["SimpleSpelling"]):
        assert {one["messages"][0]["content"].removeprefix("Spell the word: ") for one in task} <= set(words)


def test_letters_are_counted_right(small_hub) -> None:
    task = TASKS["SpellingBee"]("train")
    counts = set()
    for conversation in task:
        question, answer = contents(conversation)
        parts = {part["type"]: part["text"] for part in answer}
        assert calculate(parts["python"]) == parts["python_output"]
        word = parts["python"].split('"')[1]
        assert word in question
        assert f"spelled {'-'.join(word)}." in answer[0]["text"]
        assert task.evaluate(conversation, f"hm\n#### {parts['python_output']}")
        assert not task.evaluate(conversation, "#### 77")
        counts.add(int(parts["python_output"]))
    assert {0, 1, 2} <= counts
