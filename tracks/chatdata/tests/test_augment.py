"""Augmented multiple choice: every style is read back and nothing else; no spliced choice says the same as another."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from tasks.multiple_choice import LETTERS, answers_in
from tracks.chatdata.augment import STYLES, normal_form, remix
from tracks.chatdata.bm25 import BM25

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
Answer {n}: no|{l}. redder|{low}. red|{l}) red|{n}. red|{l}. red or not|{l}: x < 5|red {l}.
""".strip()
    .replace("\n", "|")
    .split("|")
)


@pytest.mark.parametrize("name", STYLES)
def test_each_style_is_read_back(name) -> None:
    style = STYLES[name]
    for count in range(2, 11):
        choices = CHOICES[:count]
        answers = answers_in(style.answer, choices)
        for index, answer in enumerate(answers):
            short = answer.removesuffix(".")
            texts = [answer, f" **{answer}**\n", f"Is it {answers[index - 1]}? No.\n\n{answer}", short]
            if style.reader != "alone":
                texts.append(f"{answers[index - 1]}\nNo. Therefore, {short}. Because it is.")
            assert [style.read(text, choices) for text in texts] == [index] * len(texts)
        # An answer beyond the choices is none.
        assert count == 10 or style.read(answers_in(style.answer, CHOICES)[count], choices) is None


def test_look_alikes_are_not_read() -> None:
    marks = list(enumerate(LETTERS[:10], 1))
    texts = {form.format(n=n, l=letter, low=letter.lower()) for form, (n, letter) in product(LOOK_ALIKES, marks)}
    assert len(texts) >= 500
    assert [text for text in texts for style in STYLES.values() if style.read(text, CHOICES) is not None] == []


def test_normal_form() -> None:
    for same in ("1,000|1000|1000.0|1000.|01000", "0.5|.5|0.50|00.5", "The Nile!|the  nile", "-5|−5|-5.0"):
        assert len(set(map(normal_form, same.split("|")))) == 1, same
    different = "5|-5|50|0.5|1.05|1.5|x<5|x>5|5%|$5|1/2|12|1,00|c|c++|c#|?|!".split("|")
    assert len(set(map(normal_form, different))) == len(different)


def test_the_right_choice_stays_the_only_right_one_and_is_anywhere() -> None:
    """Additions, whose numbers are written in several ways, so that many choices say the same."""
    dice = np.random.default_rng(3)
    rows = []
    for a, b in dice.integers(400, 600, (1000, 2)).tolist():
        values = a + b + np.array([0, *dice.permutation([-10, -2, -1, 1, 2, 10])[:3]])
        texts = [str(dice.choice([f"{value:,}", f"{value}", f"{value}.0", f" {value}."])) for value in values]
        order = dice.permutation(4).tolist()
        rows.append((f"What is {a} + {b}?", [texts[place] for place in order], order.index(0)))
    index = BM25(question for question, *_ in rows)
    places = Counter()
    for number, (question, choices, right) in enumerate(rows):
        found, more, place = remix(number, rows, index, 8, seed=1)
        assert (found, more[place]) == (question, choices[right])
        assert set(choices) <= set(more)
        assert len({float(text.strip().removesuffix(".").replace(",", "")) for text in more}) == len(more) == 8
        places[place] += 1
    # Chi-squared with 7 degrees of freedom, p = 0.001.
    assert sum((places[place] - 125) ** 2 / 125 for place in range(8)) < 24.3
    assert remix(5, rows, index, 8, 1) == remix(5, rows, index, 8, 1) != remix(5, rows, index, 8, 2)


def test_choices_that_might_be_right_are_not_spliced_in() -> None:
    rows = [
        ("Which metal is liquid?", ["mercury", "iron"], 0),
        ("Which metal is a liquid?", ["Quicksilver", "lead", "Iron!", "hydrargyrum"], 0),
        ("Which metal is not liquid?", ["tin", "bromine"], 0),
        ("Which of these is a metal?", ["gold", "all of the above"], 1),
    ]
    index = BM25(question for question, *_ in rows)
    assert sorted(remix(0, rows, index)[1]) == ["hydrargyrum", "iron", "lead", "mercury"]
    assert remix(3, rows, index) == rows[3]  # another order would change the meaning
    assert len(remix(0, rows, index, most=3)[1]) == 3
