"""Augmented tasks: styles and more choices, in mixtures and as evaluations."""

from collections import Counter
from dataclasses import replace

import pytest

from nanochat.curate.augment import STYLES
from tasks import TASKS
from tasks.augmented import augmented
from tasks.mixing import mix


def open_augmented(name: str, word: str, number: str | None = None, seed: int = 0, split: str = "test"):
    return augmented(name, TASKS[name], word, number, seed)[1](split)


@pytest.mark.parametrize("name", ["ARC-Easy", "World-Choices"])
def test_every_row_in_three_styles(name, small_hub):
    plain, task = TASKS[name](), open_augmented(name, "styles", "3")
    assert (len(task), task.kind, task.baseline) == (3 * len(plain), "generative", plain.baseline)
    for number, row in enumerate(plain):
        found = [task[3 * number + copy] for copy in range(3)]
        assert len({one["style"] for one in found}) == 3
        question = row["messages"][0]["content"].partition("\n\n")[0]
        for one in found:
            assert one["messages"][0]["content"].startswith(question + "\n\n")
            right = one["messages"][1]["content"]
            style = STYLES[one["style"]]
            assert row["letters"][style.read(right, one["choices"])] == row["messages"][1]["content"].strip(".")[-1]
            assert task.evaluate(one, right)
            assert not task.evaluate(one, style.answer.format(letter="E", number=5, text="?"))
    # No instruction is in Korean, and all others are there.
    assert {one["style"] for one in task} == {name for name in STYLES if "Korean" not in name}
    assert [one["style"] for one in task] != [one["style"] for one in open_augmented(name, "styles", "3", seed=1)]


def test_korean_questions_have_korean_styles_too(mirror):
    task = open_augmented("CLIcK", "styles")
    assert {one["style"] for one in task} == set(STYLES)
    assert all(task.evaluate(one, one["messages"][1]["content"]) for one in task)


def test_more_choices_keep_the_form_of_the_task(small_hub):
    task = open_augmented("World-Choices", "options", "8")
    assert Counter(len(row["letters"]) for row in task).most_common(1)[0][0] == 8
    for plain, row in zip(TASKS["World-Choices"](), task, strict=True):
        question, answer = (message["content"] for message in row["messages"])
        assert question.endswith("like this: It is choice=X.")
        # The answer names the same choice, by the letter that it has now.
        assert answer[:-2] == plain["messages"][1]["content"][:-2]
        assert f"\n- {answer.removeprefix('It is ').removesuffix('.')}\n" in question
        assert task.evaluate(row, answer)


@pytest.mark.parametrize(("name", "split", "least"), [("ARC-Easy", "train", 0.9), ("MMLU", "validation", 0.7)])
def test_more_choices_of_real_questions(name, split, least, mirror):
    task = open_augmented(name, "options", split=split)
    rows = [task[number] for number in range(300)]
    full = [row for row in rows if len(row["letters"]) == 10]
    assert len(full) > least * len(rows)
    assert all(row["messages"][0]["content"].count("\n- ") >= 10 for row in full)


def test_augmented_tasks_in_a_mixture(small_hub):
    found = mix(TASKS, "mmlu~options:8@50:0.5, ARC-Easy~styles:2@10:3,mmlu@9", seed=5)
    assert found.rows == {"MMLU~options:8": 25, "ARC-Easy~styles:2": 30, "MMLU": 9}
    assert found.examples["ARC-Easy~styles:2"] == 10
    [file] = TASKS["MMLU"].files("train")
    assert list(found.origin()["MMLU~options:8"]["files"]) == [str(file)]


def test_copies_of_a_row_are_for_training_or_for_validation(small_hub):
    known = {"Mine": replace(TASKS["ARC-Easy"], splits="train")}
    train, new = (mix(known, "mine~styles:3", split) for split in ("train", "validation"))
    questions = [{row["messages"][0]["content"].partition("\n\n")[0] for row in one} for one in (train, new)]
    assert questions[0].isdisjoint(questions[1])
    assert len(new) == 3 * (len(TASKS["ARC-Easy"]("train")) // 20)
