"""Tasks without files: words of the tokenizer's text, letters counted right, and the small Sudoku."""

import json
import re
from collections import Counter

import pyarrow.parquet as pq
from chat_files import contents

from nanochat.calculator import calculate
from nanochat.paths import write_json
from tasks import TASKS, open_tasks
from tasks.mixing import mix
from tasks.puzzles import solutions
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


def test_puzzles_follow_from_the_seed_and_splits_share_no_board():
    train, test = TASKS["Sudoku-4"]("train"), TASKS["Sudoku-4"]("test")
    assert (len(train), len(test)) == (20_000, 1_000)
    boards, held_out = ({board for board, _ in task.rows} for task in (train, test))
    assert not boards & held_out
    assert len(boards | held_out) == 288  # all there are
    assert TASKS["Sudoku-4"]("test").hashes() == test.hashes() != train.hashes()
    # Each problem has one solution.
    for conversation in (test[number] for number in range(200)):
        question, answer = contents(conversation)
        shown = re.sub(r"\s", "", question)
        [board] = solutions(shown)
        assert re.fullmatch(shown, board)
        assert test.evaluate(conversation, answer)
        assert not test.evaluate(conversation, "")
    # Where a board has two solutions, both are right; a wrong or changed digit and a short board are not.
    problem = {"messages": [{"content": "1 . 3 .\n3 . 1 .\n. 1 . 3\n. 3 . 1"}]}
    assert test.evaluate(problem, "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1")
    assert test.evaluate(problem, "1432\n3214\n4123\n2341")
    for wrong in ("1234341221434322", "2134341221434321", "123434122143432", "1234123434123412"):
        assert not test.evaluate(problem, wrong)
