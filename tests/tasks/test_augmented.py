"""Augmented tasks: styles and more choices, in mixtures and as evaluations."""

from collections import Counter
from dataclasses import replace

import pytest
from chat_files import contents

from nanochat.curate.augment import STYLES, answers_in
from tasks import TASKS, open_tasks
from tasks.augmented import TaskTable
from tasks.mixing import mix


@pytest.mark.parametrize("name", ["ARC-Easy", "World-Choices"])
def test_every_row_in_three_styles(name, small_hub):
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


def test_korean_questions_have_korean_styles_too(mirror):
    task = TASKS["CLIcK~styles"]()
    assert {one["style"] for one in task} == set(STYLES)


def test_more_choices_keep_the_form_of_the_task(small_hub):
    task = TASKS["World-Choices~options:8"]()
    for plain, row in zip(TASKS["World-Choices"](), task, strict=True):
        question, answer = contents(row)
        assert question.endswith("like this: It is choice=X.")
        # The answer names the same choice, by the letter that it has now.
        assert answer[:-2] == plain["messages"][1]["content"][:-2]
        assert f"\n- {answer.removeprefix('It is ').removesuffix('.')}\n" in question
        assert task.evaluate(row, answer)
    assert Counter(len(row["letters"]) for row in task).most_common(1)[0][0] == 8


def test_a_faulty_row_is_named_alone_and_gives_no_choices(write_rows):
    faulty = [("Which is metal 8?", "A"), ("Which is metal 9?\nA: gold\nB: tea", "C")]
    whole = [(f"Which is metal {n}?\nA: iron {n}\nB: salt {n}", "A") for n in range(4)]
    write_rows("KoBALT", [{"Question": question, "Answer": answer} for question, answer in [*faulty, *whole]])
    task = TASKS["KoBALT~options"]()
    letters, faults = [], []
    for number in range(len(task)):
        try:
            letters.append(task[number]["letters"])
        except ValueError as error:
            faults.append(str(error))
    assert letters == ["ABCDE"] * 4  # its own two, and the wrong one of each other question
    assert sorted(faults) == [
        "snunlp/KoBALT-700, split test, row 0: no line begins with A, the first choice",
        "snunlp/KoBALT-700, split test, row 1: the right answer is none of its 2 choices",
    ]


def test_evaluations_take_augmented_names(small_hub):
    found = open_tasks("arc-easy~styles|ARC-Easy~Options:8|arc-easy")
    assert list(found) == ["ARC-Easy~styles", "ARC-Easy~options:8", "ARC-Easy"]
    assert [task.baseline for task in found.values()] == [0.25, 0.125, 0.25]


def test_copies_of_a_row_are_for_training_or_for_validation(small_hub):
    known = TaskTable()
    known["Mine"] = replace(TASKS["ARC-Easy"], splits="train")
    train, new = (mix(known, "mine~styles:3", split) for split in ("train", "validation"))
    questions = [{row["messages"][0]["content"].partition("\n\n")[0] for row in one} for one in (train, new)]
    assert questions[0].isdisjoint(questions[1])
    assert len(new) == 3 * (len(TASKS["ARC-Easy"]("train")) // 20)
