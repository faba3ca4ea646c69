"""Spelling: words of the tokenizer's text, letters counted right."""

import json
import re
from collections import Counter

import pyarrow.parquet as pq
from chat_files import contents

from nanochat.calculator import calculate
from nanochat.paths import write_json
from tasks import TASKS, open_tasks
from tasks.mixing import mix
from tasks.spelling import frequent_words


def test_words_come_from_the_text(tiny_world):
    first_shard = pq.read_table(tiny_world / "text/shard_00000.parquet")["text"].to_pylist()
    counts = Counter(re.findall(r"[^\W\d_]{2,15}", " ".join(first_shard).lower()))
    words = frequent_words()
    assert words == sorted(words, key=lambda word: (-counts[word], word))
    assert set(words) == set(counts)
    for name in ("SimpleSpelling", "SpellingBee"):
        train, test = ([json.dumps(one) for one in TASKS[name](split)] for split in ("train", "test"))
        assert len(train) > 5 * len(test)
        assert not set(train) & set(test)


def test_words_are_those_of_the_tokenizer_of_the_run(small_hub, tmp_path, base):
    (tmp_path / "own").mkdir()
    for letter in "abcdefghijklmnopqrstuvwxyz":
        (tmp_path / f"own/{letter}.txt").write_text(f"Zebra pony{letter} 빠른")
    write_json(base / "tok_train/mine/outcome.json", {"config": {"data": str(tmp_path / "own")}})
    words = frequent_words("mine")
    assert {words[0], words[1]} == {"zebra", "빠른"}
    assert "zebra" not in frequent_words()
    learned, evaluated = mix(TASKS, "simplespelling", tokenizer="mine"), open_tasks("simplespelling", tokenizer="mine")
    for task in (learned, evaluated["SimpleSpelling"]):
        assert {one["messages"][0]["content"].removeprefix("Spell the word: ") for one in task} <= set(words)


def test_letters_are_counted_right(small_hub):
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
