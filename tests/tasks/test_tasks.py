"""Every task on the files of the embedded world and, where it is, of the mirror; rows written here that are wrong."""

import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanochat.chat import check_conversation
from nanochat.data.hub import HubFile
from nanochat.world.writer import write_world
from tasks import CHAT_CORE, JUDGED, TASKS
from tasks.common import TaskError, pick
from tasks.gsm8k import extract_answer

MIRROR = Path(__file__).resolve().parents[3] / "shared/hub"
ARC_EASY = "datasets/allenai/ai2_arc/ARC-Easy/test-00000-of-00001.parquet"


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world") / "world"
    write_world(folder, 1, "tiny")
    return folder


@pytest.fixture(params=["world", "mirror"])
def hub(request, monkeypatch) -> Path:
    folder = MIRROR if request.param == "mirror" else request.getfixturevalue("world")
    if not folder.is_dir():
        pytest.skip("no mirror of real data on this machine")
    monkeypatch.setenv("NANOCHAT_HUB", str(folder))
    return folder


def text_of(content) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content if part["type"] == "text")


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Put rows where a task looks for its test split."""

    def write(name: str, rows: list[dict], schema: pa.Schema | None = None) -> None:
        path = tmp_path / str(TASKS[name].files("test")[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema), path)

    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))
    return write


# ---- all of them ----


ASKED = ["ARC-Easy", "ARC-Challenge", "MMLU", "AQUA", "AQUA-Rationale", "GSM8K"]  # of a column of questions


@pytest.mark.parametrize("name", ASKED)
def test_every_row_is_a_conversation_whose_own_answer_is_right(name, hub):
    task = TASKS[name]()
    questions = pq.read_table(hub / str(TASKS[name].files("test")[0]))["question"].to_pylist()
    assert len(task) == len(questions)
    order = np.random.default_rng(42).permutation(len(questions))
    for conversation, number in zip(task, order, strict=True):
        check_conversation(conversation)
        assert [message["role"] for message in conversation["messages"]] == ["user", "assistant"]
        asked, answer = (text_of(message["content"]) for message in conversation["messages"])
        assert task.evaluate(conversation, answer)
        assert task.reward(conversation, answer) == 1.0
        for wrong in (f"{answer}0", "") if name != "AQUA-Rationale" else (f"{answer} Or: The answer is X.", ""):
            assert task.evaluate(conversation, wrong) == ("Or:" in wrong)  # X is no choice
        assert task.reward(conversation, "") == 0.0
        assert asked.startswith(questions[number])


def test_what_every_task_says_of_itself():
    for name, data in TASKS.items():
        assert 0 <= data.baseline < 1
        assert data.task.kind in ("categorical", "generative", "program", "chat")
        assert (name in JUDGED) == (data.task.kind != "chat")
    assert set(CHAT_CORE) <= set(JUDGED)


def test_free_questions_are_judged_by_a_word(hub):
    if not (hub / "questions.jsonl").exists():
        pytest.skip("this mirror has no questions about a world")
    task = TASKS["Questions"]()
    assert len(task) == 10
    for conversation in task:
        check_conversation(conversation)
        word = conversation["messages"][-1]["content"]
        assert task.evaluate(conversation, f"I think that it is {word}.")
        assert not task.evaluate(conversation, f"It is {word}ish.")
        assert not task.evaluate(conversation, "It is the other one.")


@pytest.mark.parametrize("line", ["{", "[]", '{"question": "Who?"}'])
def test_a_file_that_holds_no_questions(line, tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))
    (tmp_path / "questions.jsonl").write_text(line)
    with pytest.raises(TaskError, match=r"questions\.jsonl is not made of lines"):
        TASKS["Questions"]()


def test_the_page_of_tasks_lists_them_all():
    page = (Path(__file__).resolve().parents[2] / "docs/tasks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert sorted(re.findall("`(.*?)`", " ".join(rows))) == sorted(TASKS)
    assert f"the mean over {', '.join(CHAT_CORE[:-1])} and {CHAT_CORE[-1]}" in page


@pytest.mark.parametrize("name", ASKED)
def test_the_other_splits_open_too(name, hub):
    for split in TASKS[name].split_names:
        [file] = TASKS[name].files(split)
        if not (hub / str(file)).exists() and (split == "train" or hub != MIRROR):
            continue  # the mirror has not all files to train on, the world has not MMLU's for few shots
        task = TASKS[name](split)
        assert len(task) == pq.read_metadata(hub / str(file)).num_rows
        check_conversation(task[0])


def test_files_are_named_as_the_hub_names_them():
    """As the pages of these repositories list them."""
    assert [str(file) for file in TASKS["SmolTalk"].files("train")] == [
        f"datasets/HuggingFaceTB/smol-smoltalk/data/train-0000{i}-of-00004.parquet" for i in range(4)
    ]
    assert [file.path for file in TASKS["MMLU"].files("train")] == ["all/auxiliary_train-00000-of-00001.parquet"]
    assert [file.path for file in TASKS["CLIcK"].files()] == ["default/train/0000.parquet"]
    assert len(TASKS["KMMLU"].files("test")) == 45
    assert TASKS["KMMLU"].files("dev")[0] == HubFile(
        "Accounting/dev/0000.parquet", "HAERAE-HUB/KMMLU", "refs/convert/parquet"
    )
    assert TASKS["SpellingBee"].files() == []


def test_the_order_is_shuffled_once_and_for_all(world, monkeypatch):
    """By numpy's generator with 42, as the public reference does: so its first problems are these."""
    monkeypatch.setenv("NANOCHAT_HUB", str(world))
    rows = pq.read_table(world / str(TASKS["MMLU"].files("test")[0])).to_pylist()
    order = np.random.default_rng(42).permutation(len(rows)).tolist()
    assert order != sorted(order)
    whole = TASKS["MMLU"]()
    for conversation, number in zip(whole, order, strict=True):
        assert text_of(conversation["messages"][0]["content"]).startswith(rows[number]["question"] + "\n")
        assert conversation["messages"][1]["content"] == "ABCD"[rows[number]["answer"]]
    for part in ({"start": 3}, {"stop": 7}, {"start": 2, "stop": 9, "step": 3}, {"step": len(rows)}):
        some = TASKS["MMLU"](**part)
        expected = list(whole)[slice(part.get("start", 0), part.get("stop"), part.get("step", 1))]
        assert list(some) == expected
        assert len(some) == len(expected)


def test_names_are_found_and_guessed():
    assert pick("gsm8k|ARC-Easy, mmlu", TASKS) == ["GSM8K", "ARC-Easy", "MMLU"]
    assert pick("MMLU|mmlu", TASKS) == ["MMLU"]
    assert pick("", TASKS) == []
    with pytest.raises(ValueError, match=r"--tasks=MMLU\|GSM7K: GSM7K is no task, did you mean GSM8K\?"):
        pick("MMLU|GSM7K", TASKS)
    with pytest.raises(ValueError, match="chess is no task, take of ARC-Easy, "):
        pick("chess", TASKS)


# ---- multiple choice ----


def test_a_question_is_asked_so(written):
    choices = {"text": ["red", "blue", "green"], "label": ["1", "2", "3"]}
    written("ARC-Easy", [{"question": "Which colour has the sky?", "choices": choices, "answerKey": "2"}])
    [conversation] = TASKS["ARC-Easy"]()
    asked, answer = conversation["messages"]
    assert text_of(asked["content"]) == (
        "Which colour has the sky?\n\n- red=A\n- blue=B\n- green=C\n\n"
        "Reply with nothing but the letter of the right choice."
    )
    assert answer == {"role": "assistant", "content": "B"}
    assert list(conversation["letters"]) == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("ARC-Challenge", {"choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "B"}),
        ("MMLU", {"choices": ["x", "y"], "answer": 1, "subject": "none"}),
        ("AQUA", {"options": ["A)x", "B) y"], "correct": "B", "rationale": "it is so"}),
    ],
)
def test_every_form_of_columns_gives_the_same_conversation(name, row, written):
    written(name, [{"question": "x or y?", **row}])
    [conversation] = TASKS[name]()
    assert text_of(conversation["messages"][0]["content"]).startswith("x or y?\n\n- x=A\n- y=B\n\n")
    assert conversation["messages"][1]["content"] == "B"


def test_the_verdict_is_on_the_letter_alone(written):
    written("MMLU", [{"question": "?", "choices": ["x", "y"], "answer": 1}])
    task = TASKS["MMLU"]()
    assert [task.evaluate(task[0], said) for said in ("B", " B\n", "b", "A", "B.", "AB", "")] == [
        True,
        True,
        *[False] * 5,
    ]


# ---- GSM8K ----


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so it is\n#### 18", "18"),
        ("#### 1,234,567", "1234567"),
        ("#### -5", "-5"),
        ("#### 0.25", "0.25"),
        ("#### 72 apples in all", "72"),
        ("#### 12\n#### 13", "12"),
        ("#### 18.", "18."),  # as the data set's authors read it
        ("####18", None),
        ("#### $18", None),
        ("### 18", None),
        ("the answer is 18", None),
        ("", None),
    ],
)
def test_answers_are_read_as_the_authors_do(text, answer):
    assert extract_answer(text) == answer


def test_annotations_become_calls_of_the_calculator(written):
    solution = "Eggs: <<16-3-4=9>>9 are left.\n9 * 2 = $<<9*2=18>>18 a day\n#### 18"
    written("GSM8K", [{"question": "How much?", "answer": solution}])
    task = TASKS["GSM8K"]()
    [conversation] = task
    assert [tuple(part.values()) for part in conversation["messages"][1]["content"]] == [
        ("text", "Eggs: "),
        ("python", "16-3-4"),
        ("python_output", "9"),
        ("text", "9 are left.\n9 * 2 = $"),
        ("python", "9*2"),
        ("python_output", "18"),
        ("text", "18 a day\n#### 18"),
    ]
    assert [
        task.evaluate(conversation, said) for said in ("#### 18", "#### 18 dollars", "18", "#### 1,8", "#### 19")
    ] == [*(True, True, False, True, False)]


def test_no_part_of_a_solution_is_lost(hub):
    table = pq.read_table(hub / str(TASKS["GSM8K"].files("train")[0]))
    answers = dict(zip(table["question"].to_pylist(), table["answer"].to_pylist(), strict=True))
    around = {"text": "{}", "python": "<<{}=", "python_output": "{}>>"}
    calls = 0
    for conversation in TASKS["GSM8K"]("train"):
        asked, answer = conversation["messages"]
        parts = [(part["type"], part["text"]) for part in answer["content"]]
        assert "".join(around[kind].format(text) for kind, text in parts) == answers[asked["content"]]
        assert not any("<<" in text or not text for _, text in parts)
        calls += sum(kind == "python" for kind, _ in parts)
    assert calls > len(answers)


def test_a_slice_of_a_task_is_a_task(hub):
    task = TASKS["GSM8K"]()
    part = task[2:5]
    assert [*part] == [task[2], task[3], task[4]]
    assert (len(part), len(task[-3:]), part[::-1][0]) == (3, 3, task[4])
    assert part.evaluate_all([(part[0], "#### none")]) == [False]


# ---- what is wrong with files ----

GOOD = {"question": "x or y?", "choices": ["x", "y"], "answer": 1}


def test_a_missing_column_is_named(written):
    written("MMLU", [{"question": "x or y?", "options": ["x", "y"], "answer": 1}])
    with pytest.raises(TaskError, match=r"all/test-\S+ has no column choices, it has question, options, answer"):
        TASKS["MMLU"]()


def test_an_empty_split_is_named(written):
    written(
        "MMLU", [], pa.schema([("question", pa.string()), ("choices", pa.list_(pa.string())), ("answer", pa.int64())])
    )
    with pytest.raises(TaskError, match=r"mmlu/all/test-\S+ has no rows: the split test is empty"):
        TASKS["MMLU"]()


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("MMLU", GOOD | {"answer": 2}),
        ("MMLU", GOOD | {"answer": -1}),
        ("ARC-Easy", {"question": "?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "C"}),
        ("ARC-Easy", {"question": "?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "A"}),
        ("AQUA", {"question": "?", "options": ["A)x", "B)y"], "correct": "C"}),
        ("AQUA", {"question": "?", "options": ["A)x", "B)y"], "correct": ""}),
    ],
)
def test_a_right_answer_outside_the_choices_is_named(name, row, written):
    written(name, [row])
    with pytest.raises(TaskError, match=r"test-\S+, row 0: the right answer is none of its 2 choices"):
        TASKS[name]()[0]


def test_too_few_rows_are_named(written):
    written("MMLU", [GOOD] * 5)
    assert len(TASKS["MMLU"](stop=5)) == 5
    for part in ({"stop": 6}, {"start": 5}, {"start": 3, "stop": 3}):
        with pytest.raises(TaskError, match=r"mmlu/all/test-\S+ has 5 rows, too few for those from \d to \d"):
            TASKS["MMLU"](**part)


def test_an_empty_cell_and_an_answer_without_a_number_are_named(written):
    written("MMLU", [GOOD, GOOD | {"question": None}, GOOD])
    task = TASKS["MMLU"]()
    with pytest.raises(TaskError, match=r"row 1: question is empty"):
        list(task)
    written("GSM8K", [{"question": "?", "answer": "none"}])
    with pytest.raises(TaskError, match=r"row 0: its answer has no number behind ####"):
        TASKS["GSM8K"]()[0]


def test_a_damaged_file_is_named(world, tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))
    (tmp_path / ARC_EASY).parent.mkdir(parents=True)
    (tmp_path / ARC_EASY).write_bytes((world / ARC_EASY).read_bytes()[: os.path.getsize(world / ARC_EASY) // 2])
    with pytest.raises(TaskError, match=r"ARC-Easy/test-\S+ is damaged: "):
        TASKS["ARC-Easy"]()


@pytest.mark.parametrize(
    ("name", "split", "sentence"),
    [
        ("GSM8K", "tset", "openai/gsm8k has no split tset, only train, test"),
        ("CLIcK", "train", "EunsuKim/CLIcK has no split train, only test"),  # its file of that name is to test with
        ("MMLU", "auxiliary_train", "cais/mmlu has no split auxiliary_train, only train, dev, validation, test"),
        ("HRM8K", "train", "HAERAE-HUB/HRM8K has no split train, only test"),
        ("SpellingBee", "validation", "SpellingBee has no split validation, only train, test"),
    ],
)
def test_a_split_that_is_not_there_is_named(name, split, sentence, world, monkeypatch):
    monkeypatch.setenv("NANOCHAT_HUB", str(world))
    with pytest.raises(TaskError, match=re.escape(sentence)):
        TASKS[name](split)
