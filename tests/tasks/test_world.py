"""Tasks about the embedded world: which world they ask about, and when an answer is right."""

import pytest

from nanochat.chat import check_conversation
from nanochat.paths import base_dir, write_json
from nanochat.world.writer import write_world
from tasks import TASKS, WORLD_TASKS, open_tasks, task_to_learn

OF_WORLDS = {name: data for name, data in TASKS.items() if data.table}


@pytest.fixture
def learned(base) -> None:
    """A tokenizer that learned from the world of seed 2, and one that learned from other text."""
    write_world(base / "world-2", 2, "tiny")
    learned = {"two": {"name": "world-2", "world seed": 2}, "real": {"name": "climbmix"}}
    learned["folder"] = {"name": "world-2", "world seed": None}  # a user's folder of this name
    for tag, data in learned.items():
        write_json(base / f"tok_train/{tag}/tokenizer.json", {"training": {"data": data}})


def test_answers_have_to_contain_the_whole_word(learned):
    task = TASKS["World-Questions"](tokenizer="two")
    word = task[0]["messages"][-1]["content"]
    assert task.evaluate(task[0], f"I think that it is {word}.")
    assert not task.evaluate(task[0], f"It is {word}ish.")
    [task] = open_tasks("World-Korean", tokenizer="default").values()
    for word, answer, is_right in (
        ("1월", "라의 축제는 1월에 열린다.", True),
        ("1월", "라의 축제는 11월에 열린다.", False),
        ("소", "라는 염소를 기른다.", False),
        ("소", "라는 소를 기른다.", True),
        ("6마일", "라의 길이는 26마일이다.", False),
        ("은색", "라의 깃발은 은색이다.", True),
        ("은색", "라의 깃발은 검은색이다.", False),
    ):
        assert task.evaluate({"messages": [{"role": "assistant", "content": word}]}, answer) is is_right


def test_the_world_is_the_one_that_the_tokenizer_learned_from(learned):
    folders = {"two": "world-2", "real": "world", "folder": "world", "none": "world"}
    for tag, folder in folders.items():
        for name, data in OF_WORLDS.items():
            for split in data.split_names:
                [(file, path)] = data(split, tokenizer=tag).files.items()
                assert path == base_dir() / file
                assert file == f"{folder}/tasks/{data.table}-{split}.parquet", name


def test_every_task_is_well_formed_and_its_own_answer_is_right(learned):
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


def test_a_model_of_a_world_practises_its_sums_and_is_scored_with_its_tasks(learned, fake_hub, monkeypatch, tmp_path):
    name, train, test = task_to_learn("", "two")
    assert (name, train.split, test.split) == ("World-Sums", "train", "test")
    monkeypatch.setenv("NANOCHAT_HUB", str(fake_hub))
    assert task_to_learn("", "real")[0] == task_to_learn("gsm8k", "two")[0] == "GSM8K"
    with pytest.raises(ValueError, match="SmolTalk is no task, choose from"):  # it has no verdicts
        task_to_learn("SmolTalk", "two")
    assert list(open_tasks("", tokenizer="two")) == list(WORLD_TASKS)
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))
    assert open_tasks("", tokenizer="real") == {}  # the mirror is empty


def test_a_sum_is_right_by_its_result_and_not_by_the_numbers_that_go_in(learned):
    task = TASKS["World-Talk"](tokenizer="two")
    row = next(row for row in task if row["category"] == "sums")
    [result] = row["accept"]
    called = f"<|python_start|>{result}-0<|python_end|><|output_start|>{{0}}<|output_end|>{{0}}."
    assert task.evaluate(row, called.format(result))
    assert not task.evaluate(row, called.format("1"))
    known = next(row for row in task if row["category"] == "facts")
    assert not task.evaluate(known, f"{known['accept'][0]}? I do not know that.")
