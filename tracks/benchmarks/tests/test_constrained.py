"""Instructions with a constraint: the same in every run, and each can be followed or not."""

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanochat.errors import UserError
from tasks import TASKS
from tasks.common import Task
from tasks.mixing import mix
from tracks.benchmarks.constrained import CONSTRAINTS
from tracks.benchmarks.instructions import check

COUNT = 200
# For each constraint, by its kind: an answer that follows it whatever it is about, and one that does not.
ANSWERS = {
    "change_case:english_lowercase": ("a fox and a hen.", "A fox and a hen."),
    "punctuation:no_comma": ("A fox and a hen.", "A fox, and a hen."),
    "startend:quotation": ('"A fox and a hen."', "A fox and a hen."),
    "detectable_format:title": ("<<Fox>>\nIt runs.", "Fox\nIt runs."),
}


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Task, Task]:
    rows = {
        "instruction": [f"Describe animal number {number}." for number in range(COUNT)],
        "input": ["It is red." if number % 2 else "" for number in range(COUNT)],
        "output": ["A fox."] * COUNT,
    }
    place = tmp_path / "datasets/tatsu-lab/alpaca/data"
    place.mkdir(parents=True)
    pq.write_table(pa.table(rows), place / "train-00000-of-00001.parquet")
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path))
    data = TASKS["Alpaca-Part-Constrained"]
    return data("train"), data("test")


def prompts(task: Task) -> list[str]:
    return [task[number]["messages"][0]["content"] for number in range(len(task))]


def test_splits_share_no_prompt_and_stay_the_same(opened: tuple[Task, Task]) -> None:
    train, test = opened
    assert len(train) + len(test) == COUNT
    assert 10 < len(test) < 45
    assert prompts(train) == prompts(train)
    first_lines = [{text.split("\n")[0] for text in prompts(task)} for task in opened]
    assert not first_lines[0] & first_lines[1]
    assert any("\n\nIt is red.\n\n" in text for text in prompts(train))


def test_a_mixture_learns_no_empty_answers(opened: tuple[Task, Task]) -> None:
    """Its answers are only judged: a run would learn to end its turn at once."""
    with pytest.raises(UserError, match=r"Alpaca-Part-Constrained has no answers to learn from: use it with scripts\."):
        mix(TASKS, "Alpaca-Part-Constrained@10")


def test_a_question_is_searched_for_as_the_data_set_has_it(opened: tuple[Task, Task]) -> None:
    """Conversations beside it have no constraint, and a short instruction leaves no other trace."""
    train, _ = opened
    for prompt in prompts(train):
        plain, whole = train.forms(prompt)
        assert whole == prompt
        assert plain.split("\n")[-1] in (plain.split("\n")[0], "It is red.")
        assert prompt.startswith(f"{plain}\n\n")


def test_verdicts(opened: tuple[Task, Task]) -> None:
    train, _ = opened
    seen = set()
    for number in range(len(train)):
        conversation = train[number]
        kind = conversation["instructions"][0]["kind"]
        seen.add(kind)
        assert not train.evaluate(conversation, "")
        assert not train.evaluate(conversation, "no no")  # too short for any
        if kind in ANSWERS:
            assert [train.evaluate(conversation, answer) for answer in ANSWERS[kind]] == [True, False]
    assert seen == {make(Random(1), ["animal"])[1]["kind"] for make in CONSTRAINTS}


def test_what_is_asked_is_what_is_checked() -> None:
    for seed in range(20):
        dice = Random(seed)
        for make in CONSTRAINTS:
            sentence, instruction = make(dice, ["animal"])
            values = instruction["values"]
            if "num_bullets" in values:
                number = values["num_bullets"]
                assert f"exactly {number} bullet points" in sentence
                assert check("* one\n" * number, instruction)
                assert not check("* one\n" * (number + 1), instruction)
            if "num_words" in values:
                number = values["num_words"]
                assert f"less than {number} words" in sentence
                assert check("word " * (number - 1), instruction)
                assert not check("word " * number, instruction)
            if "end_phrase" in values:
                assert values["end_phrase"] in sentence
                assert check(f"Yes. {values['end_phrase']}", instruction)
            if "keyword" in values:
                assert f'"{values["keyword"]}" at least twice' in sentence
                assert check("animal by animal", instruction)
