"""Multiple choice, augmented: the same questions in other styles, and with more choices.

A style is a row of STYLES: the form of the question and of the answer, and how the answer is read back. `remix` gives a
question wrong choices of similar questions.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tasks.multiple_choice import LETTER, Style, answers_in
from tracks.chatdata.bm25 import BM25

Question = tuple[str, Sequence[str], int]  # question, choices, index of the right choice
HANGUL = re.compile("[가-힣]")
MOST_CHOICES = 10
SIMILAR = 20  # similar questions whose choices are tried

# ---- styles ----

# Name -> patterns before and after an answer. Markdown and quotes around an answer do not count.
READERS = {
    # The whole text, or the last line.
    "alone": (r"(?:\A|\n)[\s*_`$\"']*", r"[\s*_`$\"'.]*\Z"),
    # A sentence or a line; the last one counts.
    "sentence": (
        r"(?:\A|\n|[.!?]\s)[\s*_`$\"']*(?i:(?:so|thus|hence|therefore|따라서|그러므로),? )?",
        r"(?:[ *_`$\"']*(?:\n|\Z)|[.!][*_`$\"']*(?:\s|\Z))",
    ),
    # For answers in brackets of their own; the last one counts.
    "anywhere": ("", ""),
}


@dataclass(frozen=True)
class ReadableStyle(Style):
    """A style whose answers are read back from a text in which a model writes."""

    reader: str  # key of READERS

    def read(self, text: str, choices: Sequence[str]) -> int | None:
        """Return the index of the choice that a text names in this form, None if it names none."""
        before, after = READERS[self.reader]
        words = self.answer.partition("{")[0]
        rest = [answer.removeprefix(words).removesuffix(".") for answer in answers_in(self.answer, choices)]
        marks = "|".join(map(re.escape, rest))
        # The words may be in any case, since some begin a sentence; a letter has to be a capital.
        found = re.findall(f"{before}(?i:{re.escape(words)})({marks})(?={after})", text)
        return rest.index(found[-1]) if found else None


# Name -> a choice in the question, instruction, answer, reader. Doubled braces stand for themselves.
STYLES = {
    "letter": ReadableStyle(LETTER.listing, LETTER.instruction, LETTER.answer, "alone"),
    "number": ReadableStyle(
        "{number}. {text}", "Reply with nothing but the number of the right choice.", "{number}", "alone"
    ),
    "bracket": ReadableStyle(
        "({letter}) {text}",
        "Reply with the letter of the right choice in brackets, like this: (X)",
        "({letter})",
        "alone",
    ),
    "text": ReadableStyle("{letter}. {text}", "Repeat the right choice with its letter.", "{letter}. {text}", "alone"),
    "is letter": ReadableStyle(
        "{letter}) {text}", "End with a sentence like this: The answer is X.", "The answer is {letter}.", "sentence"
    ),
    "is number": ReadableStyle(
        "{number}) {text}", "End with a sentence like this: The answer is N.", "The answer is {number}.", "sentence"
    ),
    "answer letter": ReadableStyle(
        "{letter}: {text}", "Reply with a letter, like this: Answer: X", "Answer: {letter}", "sentence"
    ),
    "answer number": ReadableStyle(
        "{number}. {text}", "Reply with a number, like this: Answer N", "Answer {number}", "sentence"
    ),
    "boxed letter": ReadableStyle(
        "({letter}) {text}", r"Put the letter of the right choice in \boxed{}.", r"\boxed{{{letter}}}", "anywhere"
    ),
    "boxed number": ReadableStyle(
        "({number}) {text}", r"Put the number of the right choice in \boxed{}.", r"\boxed{{{number}}}", "anywhere"
    ),
    "Korean letter": ReadableStyle(
        "{letter}. {text}", "정답의 기호를 다음과 같이 쓰세요. 정답: X", "정답: {letter}", "sentence"
    ),
    "Korean number": ReadableStyle(
        "{number}. {text}", "정답의 번호를 다음과 같이 쓰세요. 정답은 N번", "정답은 {number}번", "sentence"
    ),
    "Korean sentence": ReadableStyle(
        "({number}) {text}", "정답의 번호를 문장으로 답하세요.", "정답은 {number}번입니다.", "sentence"
    ),
}


# ---- more choices ----

# Choices that speak of other choices, or of statements in their question: "all of the above", "A and B", "I only".
REFERRING = re.compile(
    r"(?i:\b(?:all|none|both|neither) of\b|\b(?:above|below|following|preceding)\b|\b(?:choice|option|answer)s?\b)|"
    r"\b(?i:both|neither|either)\b|\b[A-J] ?(?:and|or|&|,) ?[A-J]\b|\b[IVX]+ (?:and|only)\b|\b[IVX]+, ?[IVX]+\b|"
    r"위의|모두|보기|답 ?없|당 ?없|[ㄱ-ㅎ①-⑩]"
)
# Questions for the choice that is wrong.
NEGATED = re.compile(
    r"(?i:\b(?:not|never|no|except|incorrect|false|least|wrong|untrue|cannot)\b|n['’]t\b)|"
    r"않|아닌|아니|틀린|잘못|없는|못한|제외|거리가 먼"
)
# Applied in this order: pattern -> text in its place.
SPELLINGS = {
    r"(?<=\d),(?=\d{3}(?!\d))": "",  # 1,000
    r"(?<!\d)\.(?=\d)": "0.",  # .5 and 0.5
    r"(?<![\d.])0+(?=\d)": "",  # 007
    r"(\.\d*?)0+(?!\d)": r"\1",  # 1.50 becomes 1.5, and 1.0 becomes "1."
    r"(?<![\w)])[-−](?=\d)": "−",  # the sign of a number, which is not a hyphen
    # Spaces and punctuation, apart from a point inside a number.
    r"(?!(?<=\d)\.(?=\d))[\s.,;:!?'\"()\[\]{}…·。、「」“”‘’_–—-]": "",
}


@lru_cache(100_000)
def normal_form(text: str) -> str:
    """Return a text without differences in case, spacing, punctuation and the writing of numbers.

    "1,000", "1000" and "1000.0" have one form; "-5" and "5" have two, as have "x < 5" and "x > 5".
    """
    form = unicodedata.normalize("NFKC", text).casefold()
    for pattern, spelling in SPELLINGS.items():
        form = re.sub(pattern, spelling, form)
    return form or text.strip()


def remix(number: int, questions: Sequence[Question], index: BM25, most: int = MOST_CHOICES, seed: int = 0) -> Question:
    """Return a question with up to `most` choices in random order, and the index of the right one.

    Choices of similar questions are spliced in if they are wrong there, if both questions ask for a right choice or
    both for a wrong one, and if no other choice has the same normal form. Nothing checks that they are wrong here too:
    a dolphin, wrong in "Which is a fish?", would be right in "Which is a mammal?". A question whose choices speak of
    each other is returned as it is, and gives no choices: where the right one is "all of the above", the others are
    right too. The index has the texts of the questions.
    """
    question, choices, right = questions[number]
    if any(map(REFERRING.search, choices)):
        return question, choices, right
    found = list(choices)
    forms = set(map(normal_form, choices))
    is_negated = bool(NEGATED.search(question))
    for other in index.search(question, SIMILAR):
        similar, candidates, answer = questions[other]
        if bool(NEGATED.search(similar)) != is_negated or any(map(REFERRING.search, candidates)):
            continue
        for place, text in enumerate(candidates):
            form = normal_form(text)
            if place != answer and form not in forms and len(found) < most:
                found.append(text)
                forms.add(form)
    order = np.random.default_rng((seed, number)).permutation(len(found)).tolist()
    return question, [found[place] for place in order], order.index(right)
