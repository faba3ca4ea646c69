"""Augmented multiple choice: every style is read back and nothing else; no spliced choice is right."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from nanochat.curate.augment import LETTERS, STYLES, answers_in, list_choices, normal_form, remix
from nanochat.curate.bm25 import BM25

CHOICES = ["red", "1,000", "서울", "x < 5", "a (b)", "A", "two\nlines", "$5.", "Answer 3", "\\boxed{1}"]
LOOK_ALIKES = (
    """
Chapter {n} answers this.|box {n}|\\fbox{{{n}}}|\\boxed{{{n}.5}}|\\boxed{{x={n}}}|정답률 {n}%
정답은 {n}번째 줄에 있다.|Answer {n} questions.|The answer is {n}.5.|The answer is {n} metres.
The answer is {n}00.|Is the answer {n}?|Answer{n}|I doubt that the answer is {n}.
If the answer is {n}, then why?|정답: {n}점|The answer is not {n}.|Answers: {n}|정답 {n}개
Step {n}: think|{n} apples|Vitamin {l}|({l}) cells are white|Plan {l} is right|the {l} answer
Type ({l}) blood|{l}+|\\text{{{l}}}|Answer: {l} or none|The answer is {l}-shaped.
The answer is {l} x.|정답: {l}형|\\boxed{{}}|{low}|The answer is {low}.|{l}{l}|[{l}]|#{n}|{n}/2|-{n}
{n}%|No answer|The answer is a number.|(1{n})|정답은 {l}번|정답은 {n}번 문제의 답이다|Answer key {n}
{n}번 국도|Room {l}{n}|Question {n}.|We answered {n}.|{n} 정답|boxed {l}|section {n}.|(see {l})
Answer {n}: no
""".strip()
    .replace("\n", "|")
    .split("|")
)


@pytest.mark.parametrize("name", STYLES)
def test_each_style_is_read_back(name):
    style = STYLES[name]
    for count in range(2, 11):
        choices = CHOICES[:count]
        for index, answer in enumerate(answers_in(style.answer, choices)):
            other = answers_in(style.answer, choices)[index - 1]
            for text in (answer, f" **{answer}**\n", f"First {other}, then not.\n\n{answer}", answer.removesuffix(".")):
                assert style.read(text, choices) == index, text
            if style.reader != "alone":
                short = answer.removesuffix(".")
                assert style.read(f"{other}\nNo. Therefore, {short}. Because it is.", choices) == index
        # An answer beyond the choices is none.
        if count < 10:
            assert style.read(answers_in(style.answer, CHOICES)[count], choices) is None


def test_look_alikes_are_not_read():
    texts = {
        form.format(n=number, l=letter, low=letter.lower())
        for form, (number, letter) in product(LOOK_ALIKES, enumerate(LETTERS[:10], 1))
    }
    assert len(texts) >= 500
    read = [
        (name, text) for text in texts for name, style in STYLES.items() if style.read(text, ["?"] * 10) is not None
    ]
    assert read == []


def test_a_question_in_a_style():
    style = STYLES["boxed number"]
    assert list_choices("Which?", ["a{b}", "c"], style.listing, style.instruction) == (
        "Which?\n\n(1) a{b}\n(2) c\n\nPut the number of the right choice in \\boxed{}."
    )
    assert answers_in(style.answer, ["a", "c"]) == ["\\boxed{1}", "\\boxed{2}"]


def test_normal_form():
    for same in ("1,000|1000|1000.0|1000.|01000", "0.5|.5|0.50|00.5", "The Nile!|the  nile", "-5|−5|-5.0"):
        assert len(set(map(normal_form, same.split("|")))) == 1, same
    different = "5|-5|50|0.5|1.05|1.5|x<5|x>5|5%|$5|1/2|12|1,00|c|c++|c#|?|!".split("|")
    assert len(set(map(normal_form, different))) == len(different)


def sums(count: int) -> list[tuple[str, list[str], int]]:
    """Return additions with four choices; numbers are written in several ways, so that many choices say the same."""
    dice = np.random.default_rng(3)
    rows = []
    for _ in range(count):
        a, b = dice.integers(400, 600, 2).tolist()
        values = [a + b, *(a + b + dice.permutation([-10, -2, -1, 1, 2, 10])[:3]).tolist()]
        texts = [dice.choice([f"{value:,}", f"{value}", f"{value}.0", f" {value}."]) for value in values]
        order = dice.permutation(4).tolist()
        rows.append((f"What is {a} + {b}?", [str(texts[place]) for place in order], order.index(0)))
    return rows


def test_the_right_choice_stays_the_only_right_one_and_is_anywhere():
    rows = sums(1500)
    index = BM25(question for question, *_ in rows)
    places = Counter()
    for number, (question, choices, right) in enumerate(rows):
        found, more, place = remix(number, rows, index, 8, seed=1)
        assert (found, more[place]) == (question, choices[right])
        values = [float(text.strip().removesuffix(".").replace(",", "")) for text in more]
        assert len(set(values)) == len(values) == 8
        assert set(choices) <= set(more)
        places[place] += 1
    expected = len(rows) / 8
    assert sum((places[place] - expected) ** 2 / expected for place in range(8)) < 24.3  # chi-squared, 7, p = 0.001
    # The seed and the row decide everything.
    assert remix(5, rows, index, 8, 1) == remix(5, rows, index, 8, 1) != remix(5, rows, index, 8, 2)


def test_choices_that_might_be_right_are_not_spliced_in():
    rows = [
        ("Which metal is liquid?", ["mercury", "iron"], 0),
        ("Which metal is a liquid?", ["Quicksilver", "lead", "Iron!", "hydrargyrum"], 0),
        ("Which metal is not liquid?", ["tin", "bromine"], 0),
        ("Which of these is a metal?", ["gold", "all of the above"], 1),
    ]
    index = BM25(question for question, *_ in rows)
    assert sorted(remix(0, rows, index)[1]) == ["hydrargyrum", "iron", "lead", "mercury"]
    # The teacher knows other names.
    calls = {frozenset(["mercury", "hydrargyrum"])}
    _, choices, right = remix(0, rows, index, same=lambda first, second: {first, second} in calls)
    assert (sorted(choices), choices[right]) == (["iron", "lead", "mercury"], "mercury")
    assert remix(3, rows, index) == rows[3]  # another order would change the meaning
    assert len(remix(0, rows, index, most=3)[1]) == 3
