"""Chats of random words, and a tokenizer for them."""

from functools import cache
from random import Random
from typing import Any

from nanochat.tokenizer import Tokenizer

SYLLABLES = ["".join((a, b, c)) for a in "bdgklmnprst" for b in "aeiou" for c in ("", "n", "r")]
KOREAN = [chr(code) for code in range(0xAC00, 0xAC00 + 28 * 200, 28)]


def sentence(random: Random, words: int, korean: bool = False):
    parts = [random.choices(KOREAN if korean else SYLLABLES, k=random.randint(2, 3)) for _ in range(words)]
    return " ".join(map("".join, parts)).capitalize() + "."


def chat(*texts: str | list, **others: Any):
    """A conversation of user and assistant in turn."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]} | others


def chats(seed: int, count: int, words: int = 12):
    random = Random(seed)
    return [chat(sentence(random, words), sentence(random, words)) for _ in range(count)]


@cache
def small_tokenizer():
    return Tokenizer.train([sentence(Random(n), 20, n % 2 == 1) for n in range(40)], 400)


def shingles(text: str):
    """The set that signatures stand for."""
    text = "".join(text.lower().split())
    return {text[start : start + 5] for start in range(max(1, len(text) - 4))}
