"""Chats of random words, a tokenizer for them, and their rows as files."""

import json
from pathlib import Path
from random import Random
from typing import Any

from nanochat.tokenizer import Tokenizer

SYLLABLES = ["".join((a, b, c)) for a in "bdgklmnprst" for b in "aeiou" for c in ("", "n", "r")]
KOREAN = [chr(code) for code in range(0xAC00, 0xAC00 + 28 * 200, 28)]


def sentence(random: Random, words: int, korean: bool = False) -> str:
    parts = [random.choices(KOREAN if korean else SYLLABLES, k=random.randint(2, 3)) for _ in range(words)]
    return " ".join(map("".join, parts)).capitalize() + "."


def chat(*texts: str | list, **others: Any) -> dict:
    """A conversation of user and assistant in turn."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]} | others


def chats(seed: int, count: int, words: int = 12) -> list[dict]:
    random = Random(seed)
    return [chat(sentence(random, words), sentence(random, words)) for _ in range(count)]


def write_chats(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def small_tokenizer() -> Tokenizer:
    return Tokenizer.train([sentence(Random(n), 20, n % 2 == 1) for n in range(40)], 400)


def shingles(text: str) -> set[str]:
    """The set that signatures stand for."""
    text = "".join(text.lower().split())
    return {text[start : start + 5] for start in range(max(1, len(text) - 4))}
