"""Conversations and evaluation sets: held-out facts stay out of training, and every answer is right."""

import re
from collections.abc import Callable

import pytest
from chat_files import contents

from nanochat.world import chats
from nanochat.world.facts import World
from nanochat.world.sums import is_held_out
from nanochat.world.texts import document

WORLD = World(1, people=32)
TABLES = chats.tables(WORLD, problems=1000, chats=2000)
BUNDLE = chats.core_bundle(WORLD)
FACT_OF = {question: fact for fact in WORLD.facts for question in fact.questions}
HELD_OUT = [fact for fact in WORLD.facts if fact.split != "train"]
SUM = r"(\d+) ?[-+*/] ?(\d+)"


def rows_of(*names: str):
    """Rows of all tables with such names."""
    return [row for name, rows in TABLES.items() if re.search("|".join(names), name) for row in rows]


def exchanges(*kinds: Callable, count: int = 600):
    """(question, answer) pairs of some kinds of conversations for training."""
    pairs = []
    for kind in kinds:
        for _ in range(count):
            texts = kind(WORLD, "train")
            pairs += zip(texts[::2], texts[1::2], strict=True)
    return pairs


@pytest.fixture(scope="module")
def training():
    """Every conversation, question with choices, and problem for training, as text."""
    rows = rows_of("train$")
    texts = ["\n".join(contents(row)) for row in rows if "messages" in row]
    return texts + ["\n".join(map(str, row.values())) for row in rows if "messages" not in row]


@pytest.fixture(scope="module")
def documents():
    WORLD.restart("documents of a test")
    return "\n".join(document(WORLD) for _ in range(3000))


def test_no_question_of_a_test_occurs_in_training(training):
    whole = "\n".join(training)
    tests = rows_of("test$", "validation$") + chats.ten_questions(WORLD)
    asked = {row["question"] for row in tests if "question" in row}
    for rows in BUNDLE.values():
        asked |= {row.get("query", row.get("context", "")).partition(": ")[2] for row in rows} - {""}
    assert len(asked) > 500
    for question in asked:  # "is 7 plus 5" is no part of "is 37 plus 5"
        assert question not in whole or not re.search(rf"(?<!\d){re.escape(question)}", whole), question


def test_no_held_out_fact_is_asked_or_stated_in_training():
    """In no wording: with the name of the subject, near the name with a pronoun, or after an answer that names it."""
    assert len(HELD_OUT) > 100
    texts, followed = ["\n".join(map(str, row.values())) for row in rows_of("choices-train", "sums-train")], []
    for row in rows_of("chat-train"):
        said = contents(row)
        # A pronoun is about a name in the same question and answer, or in the answer before.
        texts += map("\n".join, zip(said[::2], said[1::2], strict=True))
        followed += zip(said[1:-1:2], said[2::2], strict=True)
    for fact in HELD_OUT:
        phrases = [*fact.statements, *fact.pronoun_statements, *fact.questions]
        phrases += [fact.korean_statement, fact.korean_question]
        about = [text for text in texts if fact.subject.phrase in text or fact.subject.korean in text]
        assert not [text for text in about if any(phrase in text for phrase in phrases)]
        asked = {question.lower() for question in fact.follow_ups}
        after = [question for answer, question in followed if fact.subject.phrase.lower() in answer.lower()]
        assert not [question for question in after if question.removeprefix("And ").lower() in asked]


def number_pairs(texts: list[str]):
    return {frozenset(map(int, pair)) for pair in re.findall(SUM, "\n".join(texts))}


def test_nothing_of_a_test_is_joined_or_spelled_in_training(training):
    solved = [row["answer"] for row in rows_of("sums-test")]
    solved += [row["context"] for row in BUNDLE["world_sums"]]
    asked = number_pairs(solved)
    assert len(asked) > 100
    assert not asked & number_pairs(training)
    assert all(is_held_out(WORLD.seed, min(pair), max(pair)) for pair in asked)
    asked = {row["context"].split()[2] for row in BUNDLE["world_spelling"]}
    orders = "\n".join(map("\n".join, exchanges(chats.with_words)))
    assert len(asked) > 30
    assert not asked & set(re.findall(r"\w+", orders))


def test_questions_are_answered_with_the_value():
    """test_facts.py counts the letters."""
    for row in rows_of("choices"):
        assert row["choices"][row["answer"]] == FACT_OF[row["question"]].value.name
    assert len(TABLES["facts-test"]) == sum(len(fact.questions) for fact in WORLD.asked["test"])
    ten = chats.ten_questions(WORLD)
    assert len({row["question"] for row in ten}) == 10
    assert all(FACT_OF[row["question"]].value.name == row["answer"] for row in rows_of("facts") + ten)
    answers = {fact.korean_question: fact.korean_statement for fact in WORLD.asked["test"]}
    assert len(TABLES["korean-test"]) == len(WORLD.asked["test"])
    assert all(row["answer"] in answers[row["question"]] for row in rows_of("korean"))


def test_sums_are_right():
    rows = rows_of("sums")
    assert len({row["question"] for row in rows}) == len(rows) == 1100
    for row in rows:
        steps = re.findall(r"<<([^=]+)=(\d+)>>(\d+)", row["answer"])
        assert all(eval(sum_) == int(result) == int(shown) for sum_, result, shown in steps)
        assert row["answer"].endswith(f"\n#### {steps[-1][1]}")
    for user, answer in exchanges(chats.with_sums):
        x, sign, y, called, result = re.fullmatch(r"(\d+) (.) (\d+) = <<(.*)=(\d+)>>\5\.", answer).groups()
        assert called == f"{x}{sign}{y}"
        assert eval(called) == int(result) <= 100
        assert {x, y} <= set(re.findall(r"\d+", user))
        assert not is_held_out(WORLD.seed, int(x), int(y))


def test_questions_about_the_world_are_answered_with_the_fact():
    answers = {}
    for fact in WORLD.asked["train"]:
        answers |= dict.fromkeys(fact.questions, fact.statements[0])
        answers[fact.korean_question] = fact.korean_statement
    right = 0
    for user, answer in exchanges(chats.about_facts, chats.in_korean):
        for question in answers:
            if user.endswith(question):
                assert answer == answers[question]
                right += 1
    assert right > 500


def test_the_bundle_is_right():
    assert {label for label, *_ in WORLD.rows("core tasks")} == BUNDLE.keys()
    statements = {text for fact in WORLD.facts for text in [*fact.statements, fact.korean_statement]}
    for row in BUNDLE["world_people"] + BUNDLE["world_places"]:
        assert row["choices"][row["gold"]] == FACT_OF[row["query"].removeprefix("Question: ")].value.name
    for row in BUNDLE["world_answers"]:
        assert row["continuation"] == FACT_OF[row["context"].removeprefix("Question: ")].value.name
    for row in BUNDLE["world_schema"]:
        people = [option.rpartition(" ")[2] for option in row["context_options"]]
        true = [f"{person} {row['continuation']}" in statements for person in people]
        assert true == [row["gold"] == 0, row["gold"] == 1]
    for row in BUNDLE["world_korean"]:
        assert [choice in statements for choice in row["choices"]].index(True) == row["gold"]
    for row in BUNDLE["world_sums"]:
        assert eval(row["context"].rstrip("= ")) == int(row["continuation"])
    for row in BUNDLE["world_cloze"]:
        assert f"{row['context']} {row['continuation']}." in statements
        ends = [text for text in statements if text.startswith(f"{row['context']} ")]
        assert all(row["continuation"] in end for end in ends)  # the cloze has one end
