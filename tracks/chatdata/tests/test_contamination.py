"""Questions of benchmarks: every planted one is found, by rules that a plain search confirms."""

from random import Random

import pytest
from conftest import ROOT
from made_chats import sentence

from tasks import TASKS
from tracks.chatdata.contamination import Benchmarks, normal
from tracks.chatdata.sources import benchmark_questions

MIRROR = ROOT.parent / "shared/hub"


def reworded(text: str, random: Random):
    """The text in other cases, with other spaces and marks."""
    words = [random.choice((str.upper, str.title, str.lower))(word) for word in text.split()]
    return random.choice((" ", "  ", "\n", " - ")).join(words).rstrip(".?") + random.choice(("", "!", " ?", "…"))


def made(random: Random):
    lengths = [random.choice((4, 8, 20, 40)) for _ in range(1000)]
    items = [(sentence(random, words, korean=number % 2 == 0),) for number, words in enumerate(lengths)]
    words = sentence(random, 2000).split() + sentence(random, 2000, korean=True).split()
    return items, [" ".join(random.choices(words, k=16)) for _ in range(20_000)]


def real(random: Random):
    if not MIRROR.is_dir():
        pytest.skip("no mirror of real data on this machine")
    pytest.importorskip("tracks.benchmarks.sets")
    rows = [row["messages"] for row in TASKS["KoAlpaca-v1"]("train")]
    texts = [f"{question['content']}\n{answer['content']}" for question, answer in rows]
    return benchmark_questions(TASKS["CLIcK"]()), [text[random.randint(0, 5) :] for text in (texts * 2)[:20_000]]


@pytest.mark.parametrize("source", [made, real])
def test_planted_questions_are_found_and_little_else(source, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_HUB", str(MIRROR))
    random = Random(3)
    items, rows = source(random)
    benchmarks = Benchmarks({"Test": items})
    places = random.sample(range(len(rows)), 50)
    for place, item in zip(places, random.sample(items, 50), strict=True):
        half = len(rows[place]) // 2
        rows[place] = f"{rows[place][:half]} {reworded(item[-1], random)} {rows[place][half:]}"
    found = {number for number, row in enumerate(rows) if benchmarks.find(row)}
    assert {*places} <= found
    assert len(found) <= 55


def plain(question: str, row: str):
    """The rule for questions in words, by comparing lists."""
    asked, words = normal(question).split(), normal(row).split()
    size = min(13, len(asked))
    parts = [asked[start : start + size] for start in range(len(asked) - size + 1)]
    return len(asked) >= 3 and any(words[start : start + size] in parts for start in range(len(words) - size + 1))


def test_the_rule_equals_a_plain_search() -> None:
    random = Random(4)
    cases = []
    for _ in range(400):
        words = sentence(random, random.choice((2, 3, 12, 13, 14, 30))).split()
        start, end = sorted(random.choices(range(len(words) + 1), k=2))
        cases.append((" ".join(words), f"Well, {' '.join(words[start:end])}, so."))
    found = [bool(Benchmarks({"Test": [(question,)]}).find(row)) for question, row in cases]
    assert found == [plain(*case) for case in cases]
    assert 20 < sum(found) < 300


def test_a_general_question_counts_with_its_choices_alone() -> None:
    items = [
        (f"Which is true?{n // 9 * ' '}", f"Which is true?\n- {'red' if n else 'the sky is'}=A\n- {n} birds=B")
        for n in range(9)
    ]
    benchmarks = Benchmarks({"Test": items, "Few": [("Hi?",), ("Where does Geku live?",)]})
    assert benchmarks.sizes["Against Test"] == "9 questions, 0 too general to be found"
    assert benchmarks.sizes["Against Few"] == "2 questions, 1 too general to be found"
    assert benchmarks.find("Which is true? That is the question.") == ""
    for listed in (
        "the sky is=A\n- 0 birds=B",
        "A. the sky is\nB. 0 birds",
        "(1) The sky is (2) 0 birds",
        "① the sky is",
    ):
        assert benchmarks.find(f"which is TRUE:\n{listed} ② 0 birds") == "Test"
    assert benchmarks.find("Which is true: the sky is, or 8 birds?") == ""
    assert benchmarks.find("Tell me: where does geku LIVE") == "Few"
    assert benchmarks.find("Where does Geku lively") == ""


def test_the_beginning_of_many_questions_gives_none_of_them_away() -> None:
    stem = sentence(Random(5), 20).rstrip(".")
    items = [(f"{stem} {word}", f"{stem} {word}\n- {word}=A") for word in sentence(Random(6), 40).split()]
    general = [(stem, f"{stem}\n- {sentence(Random(number), 9)}=A") for number in (7, 8)]
    benchmarks = Benchmarks({"Test": items + general})
    assert benchmarks.find(f"So: {stem}, and no more") == ""
    assert benchmarks.find(general[0][1]) == benchmarks.find(items[0][0]) == "Test"
