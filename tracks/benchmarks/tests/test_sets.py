"""The data sets of benchmarks: names, files, layouts of columns, and the real rows of CLIcK."""

from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
from chat_files import contents
from conftest import ROOT
from data_sets import check_data_set, check_layouts, listed_tasks
from made_chats import chat

from nanochat.data.hub import HubFile
from tasks import TASKS
from tasks.mixing import mix
from tracks.benchmarks import sets
from tracks.benchmarks.layouts import right_first

ALL = sets.TASKS | sets.CHATS


def test_every_row_of_the_tables_is_complete() -> None:
    for name, data in ALL.items():
        check_data_set(name, data)
        assert TASKS[name] is data


def test_the_page_of_the_track_lists_them_all() -> None:
    page = ROOT / "tracks/benchmarks/README.md"
    assert listed_tasks(page, "The data sets") == sorted(ALL)
    check_layouts(page, sets.TASKS.values())


def test_the_files_of_subjects() -> None:
    assert len(TASKS["KMMLU"].files("test")) == 45
    converted = HubFile("Accounting/dev/0000.parquet", "HAERAE-HUB/KMMLU", "refs/convert/parquet")
    assert TASKS["KMMLU"].files("dev")[0] == converted


def test_a_number_outside_the_choices_is_named(write_rows) -> None:
    write_rows("KMMLU", [{"question": "?", "A": "x", "B": "y", "C": "z", "D": "", "answer": 0}])
    with pytest.raises(ValueError, match=r"split test, row \d+: the right answer is none of its 4 choices"):
        TASKS["KMMLU"]()[0]


def test_a_test_split_is_never_learned() -> None:
    with pytest.raises(ValueError, match="EunsuKim/CLIcK: the split train is not known, choose from test"):
        mix(TASKS, "click")


def test_click_of_the_mirror(mirror) -> None:
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
def test_columns_of_the_hub(name, write_rows) -> None:
    texts = [f"보기 {i}" for i in range(10)]
    write_rows(name, [{"question": f"{n}번?", **LAYOUTS[name](n, texts)} for n in range(20)])
    task = TASKS[name]()
    assert len(task) == 20 * len(TASKS[name].parts)
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


def test_sentences_that_follow_or_not(write_rows) -> None:
    rows = [{"premise": f"{n}명이 왔다.", "hypothesis": "아무도 안 왔다.", "label": n % 3} for n in range(9)]
    write_rows("KLUE-NLI", rows)
    for conversation in TASKS["KLUE-NLI"]():
        question, right = contents(conversation)
        n = int(question.partition("명이")[0][-1])
        assert "뒤 문장: 아무도 안 왔다.\n\n- 참이다=A\n- 알 수 없다=B\n- 거짓이다=C\n" in question
        assert right == "ABC"[n % 3]


def test_sentences_of_the_mirror(mirror) -> None:
    letters = Counter(contents(conversation)[1] for conversation in TASKS["KLUE-NLI"]())
    assert set(letters) == set("ABC")
    assert sum(letters.values()) == 3000
    assert max(letters.values()) < 1100  # guessing one letter is no better than guessing


def test_the_right_choice_is_as_often_in_each_place() -> None:
    places = Counter(right_first(f"question {n}", "right", "x", "y", "z")[2] for n in range(4000))
    assert sum((places[place] - 1000) ** 2 / 1000 for place in range(4)) < 16.3  # chi squared, p = 0.001


def test_instructions_may_have_several_columns(write_rows) -> None:
    for name, more, question in (("KoAlpaca", {"url": "x"}, "왜?"), ("KoAlpaca-v1", {"input": "비"}, "왜?\n\n비")):
        write_rows(name, [{"instruction": "왜?", "output": "그냥.", **more}], split="train")
        assert [*TASKS[name]("train")] == [chat(question, "그냥.")]
    write_rows(name, [{"instruction": "왜?", "output": "그냥.", "input": ""}], split="train")
    assert [*TASKS[name]("train")] == [chat("왜?", "그냥.")]
