"""Multiple choice: the prompt, layouts of columns, the Korean data sets."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from chat_files import contents

from tasks import TASKS
from tasks.multiple_choice import NamedChoice, right_first


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
    assert task.baseline == pytest.approx(np.mean([1 / len(row["choices"]) for row in rows]), abs=5e-4)
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
