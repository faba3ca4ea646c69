import contextlib
import io
import re
from collections import Counter

import pytest

from nanochat.world import chats as world_chats
from nanochat.world import texts as world_texts
from nanochat.world.facts import Dice, World, is_held_out

WORLD = World(1, people=16)


def texts(kind, count: int = 300) -> list[str]:
    dice = Dice("texts", kind.__name__)
    return [kind(WORLD, dice) for _ in range(count)]


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return texts(world_texts.document, 8000)


def test_every_fact_is_stated_again_and_again(documents):
    whole = "\n".join(documents)
    stated = [sum(whole.count(say) for say in fact.statements) for fact in WORLD.facts]
    assert min(stated) >= 3
    assert sum(stated) > 30 * len(stated)
    assert all(any(say in whole for say in fact.statements[1:]) for fact in WORLD.facts)
    assert all(fact.korean_statement in whole for fact in WORLD.facts)


def test_nothing_false_is_stated(documents):
    """No statement of a fact with another value, in English or Korean."""
    said = {line.strip() for text in documents for line in re.split(r"(?<=[.!?])\s", text)}
    said |= {line.partition(": ")[2] for line in said}  # what someone says in a dialogue
    true = {say for fact in WORLD.facts for say in [*fact.statements, fact.korean_statement]}
    false = 0
    for fact in WORLD.facts:
        for value in WORLD.things[fact.value.kind]:
            named = {"s": fact.subject.phrase, "p": f"{fact.subject.phrase}'s", "o": value.name}
            says = {fact.korean_with(value), *(say.format(**named) for say in fact.relation.statements)}
            wrong = {say[0].upper() + say[1:] for say in says} - true
            assert not wrong & said
            false += len(wrong)
    assert false > 10_000
    assert len(true & said) > 0.9 * len(true)


def test_facts_that_are_held_out_are_never_asked(documents):
    whole = "\n".join(documents)
    held_out = [ask for fact in WORLD.facts if fact.split != "train" for ask in [*fact.questions, fact.korean_question]]
    assert not [ask for ask in held_out if ask in whole]
    assert sum(ask in whole for fact in WORLD.asked["train"] for ask in fact.questions) > 0.9 * 3 * len(WORLD.asked["train"])


def test_sums_are_right_and_none_is_held_out():
    sums = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", "\n".join(texts(world_texts.arithmetic)))
    assert len(sums) > 1000
    for left, sign, right, result in sums:
        assert eval(left + sign + right) == int(result)
        assert not is_held_out(WORLD.seed, int(left), int(right))


def test_programs_print_what_the_documents_say():
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
    answers = {ask: fact.value.name for fact in WORLD.facts for ask in fact.questions}
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


def test_tables_say_the_same_each_time():
    for text in texts(world_texts.table):
        lines = [re.fullmatch("- (.+?)(?:=|: )(.+)", line).groups() for line in text.splitlines()]
        pairs = lines[: len(lines) // 3]
        assert len(dict(pairs)) == len(pairs) >= 3
        assert lines.count(pairs[0]) == 3
        assert sorted(lines) == sorted(3 * pairs)


def test_words_are_spelled_letter_by_letter():
    for line in "\n".join(texts(world_texts.spelling)).splitlines():
        if spelled := re.fullmatch(r"The word (\w+) is spelled ([\w-]+)\. It has (\d+) letters\.", line):
            assert spelled[2].split("-") == list(spelled[1])
            assert int(spelled[3]) == len(spelled[1])
        else:
            counted = re.fullmatch(r"In the word (\w+) the letter (\w) comes (\d+) times\.", line)
            assert int(counted[3]) == counted[1].count(counted[2]) > 1


@pytest.mark.parametrize("kind", world_texts.SHARES, ids=lambda kind: kind.__name__)
def test_no_template_shows_through(kind):
    for text in texts(kind):
        assert text == text.strip() != ""
        assert not re.search(r"은/는|을/를|이/가|으로/로|<\w+>|None|Thing|\n{3}|[^ \n] {2,}[^ ]", text), text
        assert kind in (world_texts.program,) or not re.search(r"[{}]", text), text
        assert not re.search(r"\b[aA] [aeiouAEIOU]\w", text.replace("a + b", "")), text


def test_every_story_can_be_told():
    plots = WORLD.text["plots"].split("\n\n")
    told = "\n".join(texts(world_texts.story, 400))
    for plot in plots:
        # the words before the first slot of a line that this plot alone has
        openings = [line.split("{")[0] for line in plot.replace(" | ", "\n").splitlines()]
        assert any(len(opening) > 8 and opening in told for opening in openings), plot


def test_shares_are_percent():
    assert sum(world_texts.SHARES.values()) == 100
    assert sum(world_chats.SHARES.values()) == 100
