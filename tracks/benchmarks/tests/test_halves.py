"""A data set with one split, of which one half may be learned."""

from chat_files import contents

from tasks import TASKS
from tasks.mixing import mix
from tracks.benchmarks.halves import split_of


def rows(count: int) -> list[dict]:
    choices = ["하나", "둘", "셋", "넷"]
    return [
        {"question": f"{n}번?", "paragraph": f"{n // 4}번 글" if n < 40 else "", "choices": choices, "answer": "둘"}
        for n in range(count)
    ]


def test_each_question_is_in_one_half(write_rows) -> None:
    write_rows("CLIcK-Halves", rows(200), split="train")
    halves = [[contents(row)[0] for row in TASKS["CLIcK-Halves"](split)] for split in ("train", "test")]
    assert len(set(halves[0]) | set(halves[1])) == sum(map(len, halves)) == 200
    assert all(70 < len(half) < 130 for half in halves)
    # A passage tells the answers to all its questions.
    passages = [{question.partition("\n")[0] for question in half if "번 글" in question} for half in halves]
    assert passages[0]
    assert passages[1]
    assert not passages[0] & passages[1]


def test_blanks_do_not_decide() -> None:
    assert split_of("왜? ", "") == split_of("왜?", " ")
    assert {split_of(f"{n}?", "") for n in range(20)} == {"train", "test"}


def test_one_half_is_learned(write_rows) -> None:
    write_rows("CLIcK-Halves", rows(100), split="train")
    learned = {contents(row)[0] for row in mix(TASKS, "click-halves")}
    assert learned == {contents(row)[0] for row in TASKS["CLIcK-Halves"]("train")}
    assert mix(TASKS, "click-halves~options:10").rows


def test_halves_of_the_mirror(mirror) -> None:
    found = {split: [contents(row)[0] for row in TASKS["CLIcK-Halves"](split)] for split in ("train", "test")}
    everything = sorted(contents(row)[0] for row in TASKS["CLIcK"]())
    assert sorted(found["train"] + found["test"]) == everything
    assert 700 < len(found["test"]) < 1000
