"""Documents about the world: every fact is stated, nothing false is, and held-out facts are never asked."""

import re
from collections import Counter

import pytest

from nanochat.world import texts as world_texts
from nanochat.world.facts import World, capitalized

WORLD = World(1, people=16)


def texts(kind, count: int = 300):
    WORLD.restart(kind.__name__)
    return [kind(WORLD) for _ in range(count)]


@pytest.fixture(scope="module")
def documents():
    return texts(world_texts.document, 8000)


def test_every_fact_is_stated_and_held_out_facts_are_never_asked(documents) -> None:
    whole = "\n".join(documents)
    for fact in WORLD.facts:
        assert any(text in whole for text in fact.statements)
        assert fact.korean_statement in whole
        if fact.split != "train":
            assert not any(question in whole for question in [*fact.questions, fact.korean_question])
    train = [question for fact in WORLD.asked["train"] for question in fact.questions]
    assert sum(question in whole for question in train) > 0.9 * len(train)


def test_nothing_false_is_stated(documents) -> None:
    """No statement of a fact with another value, in English or Korean."""
    stated = {line.strip() for text in documents for line in re.split(r"(?<=[.!?])\s", text)}
    stated |= {line.partition(": ")[2] for line in stated}  # a line of a dialogue begins with a name
    true = {text for fact in WORLD.facts for text in [*fact.statements, fact.korean_statement]}
    false = set()
    for fact in WORLD.facts:
        for value in WORLD.things[fact.value.kind]:
            false.add(fact.korean_with(value))
            # "Kara lives in Badaton." with another town
            false |= {capitalized(text.replace(fact.value.name, value.name)) for text in fact.statements}
    assert len(false - true) > 5_000
    assert not (false - true) & stated
    assert len(true & stated) > 0.9 * len(true)


def test_quizzes_have_the_right_letter() -> None:
    answers = {question: fact.value.name for fact in WORLD.facts for question in fact.questions}
    letters = Counter()
    for item in "\n\n".join(texts(world_texts.quiz)).split("\n\n"):
        question, *choices, answer = item.splitlines()
        right = answers[question.removeprefix("Question: ")]
        given = answer.removeprefix("Answer: ")
        letter = given.removeprefix(f"{right}=")
        if choices:
            assert f"- {right}={letter}" in choices
            letters[letter] += 1
        else:
            assert given == right
    assert all(letters[letter] > 50 for letter in "ABCD")


@pytest.mark.parametrize("kind", world_texts.DOCUMENT_KINDS, ids=lambda kind: kind.__name__)
def test_no_slot_of_a_template_is_left(kind) -> None:
    for text in texts(kind):
        assert text == text.strip() != ""
        assert not re.search(r"은/는|을/를|이/가|으로/로|<\w+>|None|Thing|\n{3}|[^ \n] {2,}[^ ]", text), text
        assert kind is world_texts.program or not re.search(r"[{}]", text), text
        assert not re.search(r"\b[aA] [aeiouAEIOU]\w", text.replace("a + b", "")), text
