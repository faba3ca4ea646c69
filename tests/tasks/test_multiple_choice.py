"""Multiple choice: the prompt, layouts of columns, the Korean data sets, styles and more choices."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from chat_files import contents

from tasks import TASKS, open_tasks
from tasks.augmented import TaskTable
from tasks.mixing import mix
from tasks.multiple_choice import NamedChoice, right_first
from tracks.chatdata.augment import STYLES, answers_in


def test_the_prompt_and_the_verdict(write_rows):
    choices = {"text": ["red", "blue", "green"], "label": ["1", "2", "3"]}
    write_rows("ARC-Easy", [{"question": "Which colour has the sky?", "choices": choices, "answerKey": "2"}])
    task = TASKS["ARC-Easy"]()
    [conversation] = task
    question, answer = conversation["messages"]
    assert question["content"] == (
        "Which colour has the sky?\n\n- red=A\n- blue=B\n- green=C\n\n"
        "Reply with nothing but the letter of the right choice."
    )
    assert answer == {"role": "assistant", "content": "B"}
    assert list(conversation["letters"]) == ["A", "B", "C"]
    assert [text for text in "B| B\n|b|A|B.|AB|".split("|") if task.evaluate(conversation, text)] == ["B", " B\n"]


def test_named_choices_are_judged_by_the_letter(write_rows):
    write_rows("MMLU", [{"question": "?", "choices": ["salt", "tea"], "answer": 1}])
    task = replace(TASKS["MMLU"], task=NamedChoice)()
    assert task[0]["messages"][1]["content"] == "It is tea=B."
    assert all(task.evaluate(task[0], text) for text in ("It is tea=B.", "It is salt=B.\n"))
    assert not any(task.evaluate(task[0], text) for text in ("It is tea=A.", "It is tea=B", "B", ""))


OUTSIDE = """
MMLU {"choices": ["x", "y"], "answer": 2}
ARC-Easy {"choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "C"}
AQUA {"options": ["A)x", "B)y"], "correct": "C"}
KMMLU {"A": "x", "B": "y", "C": "z", "D": "", "answer": 0}
"""


@pytest.mark.parametrize("case", OUTSIDE.strip().splitlines())
def test_a_right_answer_outside_the_choices_is_named(case, write_rows):
    name, row = case.split(" ", 1)
    write_rows(name, [{"question": "?", **json.loads(row)}])
    with pytest.raises(ValueError, match=r"split test, row \d+: the right answer is none of its [24] choices"):
        TASKS[name]()[0]


def test_click_of_the_mirror(mirror):
    task = TASKS["CLIcK"]()
    rows = pq.read_table(mirror / str(TASKS["CLIcK"].files("test")[0])).to_pylist()
    assert len(task) == len(rows) == 1695
    assert task.data.baseline == pytest.approx(np.mean([1 / len(row["choices"]) for row in rows]), abs=5e-4)
    order = np.random.default_rng(42).permutation(len(rows))
    for conversation, row in zip(task, map(rows.__getitem__, order), strict=True):
        letters, [question, answer] = "ABCDE"[: len(row["choices"])], contents(conversation)
        listed = "".join(f"- {text}={letter}\n" for text, letter in zip(row["choices"], letters, strict=True))
        asked = f"{row['paragraph']}\n\n{row['question']}".strip()
        assert question == f"{asked}\n\n{listed}\nReply with nothing but the letter of the right choice."
        assert answer == letters[row["choices"].index(row["answer"])]


# Twenty rows in the layout of the hub: name → row number n, whose right choice is the one with n in it.
LAYOUTS = {
    "KMMLU": lambda n, texts: dict(zip("ABCD", texts, strict=False)) | {"answer": n % 4 + 1, "Category": "x"},
    "HAE-RAE": lambda n, texts: {
        "query": f"{n}번의 뜻은?\n### 선택지:\n(A) {texts[0]}\n(B) …\n### 정답:",
        "options": str(texts[:5]) if n % 2 else "|".join(texts[:5]),
        "answer": f"({'ABCD'[n % 4]})",
    },
    "KMMLU-Redux": lambda n, texts: {"options": texts[:4], "solution": str(n % 4 + 1), "category": "건설"},
    "KMMLU-Pro": lambda n, texts: {"options": texts[: 4 + n % 2], "solution": str(n % 4 + 1), "year": 2024},
    "KoBALT": lambda n, texts: {
        "ID": str(n),
        "Question": f"A: 안녕\nB: 네\n{n}번의 뜻은?\n"
        + "".join(f"\n{k}: {t}" for k, t in zip("ABCDEFGHIJ", texts, strict=True)),
        "Answer": "ABCDEFGHIJ"[n % 4],
        "Level": 1,
    },
    "GPQA": lambda n, texts: {
        "Question": f"{n}번?\n",
        "Correct Answer": texts[n % 4] + "\n",
        **{f"Incorrect Answer {i}": text for i, text in enumerate(texts[n % 4 + 1 :][:3], 1)},
    },
    "ClinicalQA": lambda n, texts: {
        "exam": None if n % 2 else "혈압 120/80",
        "options": {f"option_{k}": t for k, t in zip("ABCDE", [*texts[:4], None if n % 2 else texts[4]], strict=True)},
        "answer": "ABCDE"[n % 4],
    },
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_columns_of_the_hub(name, write_rows):
    texts = [f"보기 {i}" for i in range(10)]
    write_rows(name, [{"question": f"{n}번?", **LAYOUTS[name](n, texts)} for n in range(20)])
    task = TASKS[name]()
    assert len(task) == 20 * len(TASKS[name].parts.split())
    for conversation in task:
        question, right = contents(conversation)
        n = int(question.partition("번")[0].rpartition("\n")[2])
        assert f"- 보기 {n % 4}={right}\n" in question
        assert len(conversation["letters"]) == question.count("\n- ")
        assert ("혈압" in question) == (name == "ClinicalQA" and n % 2 == 0)
        assert name != "KoBALT" or question.startswith(f"A: 안녕\nB: 네\n{n}번의 뜻은?\n\n- 보기 0=A\n")
        assert "###" not in question
    assert {conversation["messages"][1]["content"] for conversation in task} == set("ABCD")
    assert [*task] == [*TASKS[name]()]


def test_the_right_choice_is_as_often_in_each_place():
    places = Counter(right_first(f"question {n}", "right", "x", "y", "z")[2] for n in range(4000))
    assert sum((places[place] - 1000) ** 2 / 1000 for place in range(4)) < 16.3  # chi squared, p = 0.001


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
    assert [task.data.baseline for task in found.values()] == [0.25, 0.125, 0.25]


def test_copies_of_a_row_are_for_training_or_for_validation(small_hub):
    known = TaskTable()
    known["Mine"] = replace(TASKS["ARC-Easy"], splits="train")
    train, new = (mix(known, "mine~styles:3", split) for split in ("train", "validation"))
    questions = [{row["messages"][0]["content"].partition("\n\n")[0] for row in one} for one in (train, new)]
    assert questions[0].isdisjoint(questions[1])
    assert len(new) == 3 * (len(TASKS["ARC-Easy"]("train")) // 20)
