"""Byte-level BPE by its definition, without a thought of speed: the oracle of the tests of `rustbpe`."""

import random
import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import regex


def train(texts: Iterable[str], merges: int, pattern: str):
    """Count all pairs of neighbours, merge the most frequent one (of equals the smaller ids), repeat."""
    pieces = Counter(piece for text in texts for piece in regex.findall(pattern, text))
    words = [(list(piece.encode()), count) for piece, count in pieces.items()]
    learned: list[tuple[int, int]] = []
    while len(learned) < merges:
        counts: Counter = Counter()
        for ids, count in words:
            for pair in pairwise(ids):
                counts[pair] += count
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        for ids, _ in words:
            merge(ids, best, 256 + len(learned))
        learned.append(best)
    return learned


def merge(ids: list[int], pair: tuple[int, int], new: int) -> None:
    """Replace `pair` by `new` in place, left to right."""
    at = 0
    while at + 1 < len(ids):
        if (ids[at], ids[at + 1]) == pair:
            ids[at : at + 2] = [new]
        at += 1


ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyzABCDEFG",
    "0123456789",
    " ",
    " \t\r\n",
    "'sdmtlvreSDMTLVRE\u017f",  # contractions; the long s is an s to them
    ".,!?-_(){}\"'’“”",
    "한국어는안녕하세요가나다",
    "éüßñçøæЖдяλπ漢字かな",
    "\u00a0\u2003\u3000\u0085\u2028",  # spaces beyond ASCII
    "²½٣७Ⅷ\u0301\u200d🙂👩‍🚀",  # numbers, marks and symbols beyond ASCII
    "\x00\x01\x1c\x7f",
)


def assigned(text: str):
    """The characters that Python knows: on those added to Unicode since, two regular expression engines may differ."""
    return "".join(char for char in text if unicodedata.category(char) != "Cn")


def random_text(dice: random.Random):
    """Runs from small alphabets, in which the alternatives of a split pattern meet, and any character at all."""
    parts = []
    for _ in range(dice.randint(1, 12)):
        if dice.random() < 0.2:
            parts += [chr(code) for _ in range(3) if not 0xD800 <= (code := dice.randrange(0x110000)) < 0xE000]
        else:
            longest = 100 if dice.random() < 0.03 else 6
            parts += dice.choices(dice.choice(ALPHABETS), k=dice.randint(1, longest))
    return "".join(parts)
