"""Documents about the world: every fact is stated, nothing false is, and held-out facts are never asked."""

import contextlib
import io
import re
from collections import Counter

import pytest

from nanochat.world import chats as world_chats
from nanochat.world import texts as world_texts
from nanochat.world.facts import Dice, World
from nanochat.world.sums import is_held_out

WORLD = World(1, people=16)


def texts(kind, count: int = 300) -> list[str]:
    dice = Dice("texts", kind.__name__)
    return [kind(WORLD, dice) for _ in range(count)]


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return texts(world_texts.document, 8000)


def test_every_fact_is_stated_again_and_again(documents):
    whole = "\n".join(documents)
    counts = [sum(whole.count(text) for text in fact.statements) for fact in WORLD.facts]
    assert min(counts) >= 3
    assert sum(counts) > 30 * len(counts)
    assert all(any(text in whole for text in fact.statements[1:]) for fact in WORLD.facts)
    assert all(fact.korean_statement in whole for fact in WORLD.facts)


def test_nothing_false_is_stated(documents):
    """No statement of a fact with another value, in English or Korean."""
    stated = {line.strip() for text in documents for line in re.split(r"(?<=[.!?])\s", text)}
    stated |= {line.partition(": ")[2] for line in stated}  # a line of a dialogue begins with a name
    true = {text for fact in WORLD.facts for text in [*fact.statements, fact.korean_statement]}
    false = 0
    for fact in WORLD.facts:
        for value in WORLD.things[fact.value.kind]:
            words = {"s": fact.subject.phrase, "p": f"{fact.subject.phrase}'s", "o": value.name}
            candidates = {fact.korean_with(value)}
            candidates |= {text.format_map(words) for text in fact.relation.statements}
            wrong = {text[0].upper() + text[1:] for text in candidates} - true
            assert not wrong & stated
            false += len(wrong)
    assert false > 10_000
    assert len(true & stated) > 0.9 * len(true)


def test_held_out_facts_are_never_asked(documents):
    whole = "\n".join(documents)
    for fact in WORLD.facts:
        if fact.split != "train":
            assert not any(question in whole for question in [*fact.questions, fact.korean_question])
    train = [question for fact in WORLD.asked["train"] for question in fact.questions]
    assert sum(question in whole for question in train) > 0.9 * len(train)


def test_sums_are_right_and_none_is_held_out():
    sums = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", "\n".join(texts(world_texts.arithmetic)))
    assert len(sums) > 1000
    for left, sign, right, result in sums:
        assert eval(left + sign + right) == int(result)
        assert not is_held_out(WORLD.seed, int(left), int(right))


def test_programs_print_the_output_below_them():
    found = re.findall(
        r"```python\n(.*?)```\nOutput:\n(.*?)(?=\n\n```|\Z)", "\n\n".join(texts(world_texts.program)), re.S
    )
    assert len(found) > 300
    for code, output in found:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, {})
        assert printed.getvalue() == output + "\n"


def test_quizzes_have_the_right_letter():
    answers = {question: fact.value.name for fact in WORLD.facts for question in fact.questions}
    letters = Counter()
    for item in "\n\n".join(texts(world_texts.quiz)).split("\n\n"):
        question, *choices, answer = item.splitlines()
        right = answers[question.removeprefix("Question: ")]
        given = answer.removeprefix("Answer: ")
        if not choices:
            assert given == right
        elif "=" in given:
            assert f"- {given}" in choices
            assert given.startswith(f"{right}=")
        else:
            assert f"- {right}={given}" in choices
            letters[given] += 1
    assert all(letters[letter] > 50 for letter in "ABCD")


def test_tables_repeat_their_pairs():
    for text in texts(world_texts.lookup_table):
        lines = [re.fullmatch("- (.+?)(?:=|: )(.+)", line).groups() for line in text.splitlines()]
        pairs = lines[: len(lines) // 3]
        assert len(dict(pairs)) == len(pairs) >= 3
        assert sorted(lines) == sorted(3 * pairs)


def test_words_are_spelled_letter_by_letter():
    for line in "\n".join(texts(world_texts.spelling)).splitlines():
        if spelled := re.fullmatch(r"The word (\w+) is spelled ([\w-]+)\. It has (\d+) letters\.", line):
            assert spelled[2].split("-") == list(spelled[1])
            assert int(spelled[3]) == len(spelled[1])
        else:
            counted = re.fullmatch(r"In the word (\w+) the letter (\w) comes (\d+) times\.", line)
            assert int(counted[3]) == counted[1].count(counted[2]) > 1


@pytest.mark.parametrize("kind", world_texts.DOCUMENT_KINDS, ids=lambda kind: kind.__name__)
def test_no_slot_of_a_template_is_left(kind):
    for text in texts(kind):
        assert text == text.strip() != ""
        assert not re.search(r"은/는|을/를|이/가|으로/로|<\w+>|None|Thing|\n{3}|[^ \n] {2,}[^ ]", text), text
        assert kind is world_texts.program or not re.search(r"[{}]", text), text
        assert not re.search(r"\b[aA] [aeiouAEIOU]\w", text.replace("a + b", "")), text


def test_every_plot_occurs():
    stories = "\n".join(texts(world_texts.story, 400))
    for plot in WORLD.text["plots"].split("\n\n"):
        # The words before the first slot of a line, which only this plot has.
        openings = [line.split("{")[0] for line in plot.replace(" | ", "\n").splitlines()]
        assert any(len(opening) > 8 and opening in stories for opening in openings), plot


def test_shares_are_percent():
    assert sum(world_texts.DOCUMENT_KINDS.values()) == sum(world_chats.CHAT_KINDS.values()) == 100
