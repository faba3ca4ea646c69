"""Augmented multiple choice: styles and more choices of a task, in evaluations and in mixtures."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from chat_files import chat, contents, key, write_lines
from conftest import each_row, plant_world

from nanochat.chat import render_conversation
from nanochat.paths import read_sha256
from nanochat.tokenizer import Tokenizer
from tasks import TASKS, open_tasks, task_to_learn
from tasks.common import TRAIN
from tasks.mixing import mix
from tasks.multiple_choice import answers_in
from tasks.table import TaskTable
from tracks.chatdata.augment import STYLES


@pytest.fixture(autouse=True)
def base(base: Path, tiny_world: Path) -> Path:
    """The base folder, with a world: its choices are augmented too."""
    return plant_world(base, tiny_world)


@pytest.mark.parametrize("name", ["ARC-Easy", "World-Choices"])
def test_every_row_in_three_styles(name, small_hub) -> None:
    plain, task = TASKS[name](), TASKS[f"{name}~styles:3"]()
    found = list(task)
    assert (len(found), task.kind) == (3 * len(plain), "generative")
    for number, row in enumerate(plain):
        copies = found[3 * number : 3 * number + 3]
        assert len({one["style"] for one in copies}) == 3
        for one in copies:
            right, style = one["messages"][1]["content"], STYLES[one["style"]]
            assert row["letters"][style.read(right, one["choices"])] == row["messages"][1]["content"].strip(".")[-1]
            answers = answers_in(style.answer, one["choices"])
            verdicts = [task.evaluate(one, answer) for answer in answers]
            assert verdicts == [answer == right for answer in answers]  # the other listed choices are wrong
            assert not task.evaluate(one, style.answer.format(letter="E", number=5, text="?"))
    # No instruction is in Korean, and all others are there.
    assert {one["style"] for one in found} == {name for name in STYLES if "Korean" not in name}
    task.seed = 1
    assert found != list(task)


def test_korean_questions_have_korean_styles_too(write_rows) -> None:
    rows = [{"question": f"{n}번의 뜻은?", "choices": ["물", "불"], "answer": n % 2} for n in range(300)]
    write_rows("MMLU", rows)
    assert {one["style"] for one in TASKS["MMLU~styles"]()} == set(STYLES)


def test_click_of_the_mirror_has_all_styles(mirror) -> None:
    pytest.importorskip("tracks.benchmarks.sets")
    assert {one["style"] for one in TASKS["CLIcK~styles"]()} == set(STYLES)


def test_more_choices_keep_the_form_of_the_task(small_hub) -> None:
    task = TASKS["World-Choices~options:8"]()
    for plain, row in zip(TASKS["World-Choices"](), task, strict=True):
        question, answer = contents(row)
        assert question.endswith("like this: It is choice=X.")
        # The answer names the same choice, by the letter that it has now.
        assert answer[:-2] == plain["messages"][1]["content"][:-2]
        assert f"\n- {answer.removeprefix('It is ').removesuffix('.')}\n" in question
        assert task.evaluate(row, answer)
    assert Counter(len(row["letters"]) for row in task).most_common(1)[0][0] == 8


def test_a_faulty_row_is_named_alone_and_gives_no_choices(write_rows) -> None:
    faulty = [
        {"question": "Which is metal 8?", "choices": None, "answer": 0},
        {"question": "Which is metal 9?", "choices": ["gold", "tea"], "answer": 2},
    ]
    whole = [{"question": f"Which is metal {n}?", "choices": [f"iron {n}", f"salt {n}"], "answer": 0} for n in range(4)]
    write_rows("MMLU", [*faulty, *whole])
    task = TASKS["MMLU~options"]()
    letters, faults = [], []
    for number in range(len(task)):
        try:
            letters.append(task[number]["letters"])
        except ValueError as error:
            faults.append(str(error))
    assert letters == ["ABCDE"] * 4  # its own two, and the wrong one of each other question
    assert sorted(faults) == [
        "cais/mmlu, split test, row 0: a cell is empty",
        "cais/mmlu, split test, row 1: the right answer is none of its 2 choices",
    ]


def test_evaluations_take_augmented_names(small_hub) -> None:
    found = open_tasks("arc-easy~styles|ARC-Easy~Options:8|arc-easy")
    assert list(found) == ["ARC-Easy~styles", "ARC-Easy~options:8", "ARC-Easy"]
    assert [task.data.baseline for task in found.values()] == [0.25, 0.125, 0.25]


def test_copies_of_a_row_are_for_training_or_for_validation(small_hub) -> None:
    known = TaskTable({"Mine": replace(TASKS["ARC-Easy"], splits=(TRAIN,))})
    train, new = (mix(known, "mine~styles:3", split) for split in ("train", "validation"))
    questions = [{row["messages"][0]["content"].partition("\n\n")[0] for row in one} for one in (train, new)]
    assert questions[0].isdisjoint(questions[1])
    assert len(new) == 3 * (len(TASKS["ARC-Easy"]("train")) // 20)


def test_copies_of_a_question_are_sampled_together(small_hub) -> None:
    found = mix(TASKS, "arc-easy~styles:2@10:1.5", seed=5)
    questions = Counter(row["messages"][0]["content"].partition("\n\n")[0] for row in found)
    assert sorted(questions.values()) == [2, 2, 3, 4, 4]  # half of the sample is there twice


# A specification, and a part of the sentence about its fault.
MISTAKES = """
mmlu~Options:11 => MMLU~options:11: the number is from 1 to 10; epochs come after it
gsm8k~styles => GSM8K~styles: GSM8K is not answered by a choice alone, so it cannot be augmented
mmlu~styles,MMLU~Styles@9:2 => MMLU~styles is named twice
"""


@each_row("spec sentence", MISTAKES, " => ")
def test_mistakes_in_a_mixture_are_named(spec, sentence, small_hub) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        mix(TASKS, spec)


def test_shares_count_the_tokens_of_all_copies(small_hub, tmp_path, base) -> None:
    tokenizer = Tokenizer.train([f"the answer is {number}" for number in range(99)], 320)
    tokenizer.save(base / "tok_train/default/tokenizer.json")
    own = {key(chat(number)) for number in range(40)}
    found = mix(TASKS, f"mmlu~styles:3%90,{write_lines(tmp_path / 'my.jsonl', *map(chat, range(40)))}%10:9", seed=3)
    tokens = {True: 0, False: 0}
    for row in found:
        tokens[key(row) in own] += sum(render_conversation(row, tokenizer)[1])
    assert 100 * tokens[False] / sum(tokens.values()) == pytest.approx(90, abs=1)


def test_a_mixture_knows_the_rows_and_files_of_an_augmented_task(small_hub) -> None:
    origin = mix(TASKS, "aqua~options:8@30:2", seed=5).origin()
    [file] = TASKS["AQUA"].files("train")
    assert origin == {"AQUA~options:8": {"rows": 60, "files": {str(file): read_sha256(small_hub / str(file))}}}


@pytest.mark.parametrize("name", ["AQUA~styles:2", "AQUA~options:8"])
def test_what_is_learned_of_an_augmented_task_is_what_it_is_called(name, small_hub) -> None:
    """AQUA itself is learned by its rationales, which name the letters of its own choices."""
    plain = {message["messages"][-1]["content"] for message in mix(TASKS, "aqua@30", seed=5)}
    assert all("The answer is" in text for text in plain)
    learned = [row["messages"][-1]["content"] for row in mix(TASKS, f"{name}@30", seed=5)]
    _, reinforced, _ = task_to_learn(name, "default")
    for texts in (learned, [reinforced[number]["messages"][-1]["content"] for number in range(10)]):
        assert len(texts) >= 10
        assert max(map(len, texts)) < 60
        assert not plain.intersection(texts)


@pytest.mark.parametrize(("name", "split", "least"), [("ARC-Easy", "train", 0.9), ("MMLU", "validation", 0.7)])
def test_most_real_questions_get_ten_choices(name, split, least, mirror) -> None:
    task = TASKS[f"{name}~options"](split)
    assert sum(len(task[number]["letters"]) == 10 for number in range(200)) > least * 200
