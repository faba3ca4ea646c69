"""BM25: words, scores by the formula, the best texts."""

import math
import random

import numpy as np

from tracks.chatdata.bm25 import BM25, words

KNOWN = "the the the of Water 물 물은 물이 서울특별시 Seoul 1,000 DNA가 x² café 수도 수도는".split() + [
    f"w{n}" for n in range(80)
]


def plain_score(query: list[str], text: list[str], texts: list[list[str]]):
    """Return the score by the formula, everything counted anew for each word."""
    total = 0.0
    mean = sum(map(len, texts)) / len(texts)
    for word in set(query) & set(text):
        having = sum(word in other for other in texts)
        rarity = math.log((len(texts) - having + 0.5) / (having + 0.5) + 1)
        times = text.count(word)
        total += query.count(word) * rarity * times * 2.5 / (times + 1.5 * (0.25 + 0.75 * len(text) / mean))
    return total


def test_scores_are_those_of_the_formula() -> None:
    dice = random.Random(5)
    texts = [" ".join(dice.choices(KNOWN, k=dice.randint(1, 30))) + "?!." for _ in range(99)] + ["?!"]
    index = BM25(texts)
    split = list(map(words, texts))
    for query in texts[:30]:  # 3,000 pairs
        expected = [plain_score(words(query), text, split) for text in split]
        np.testing.assert_allclose(index.scores(query), expected, rtol=1e-12)
        best = sorted(range(len(texts)), key=lambda number: -index.scores(query)[number])
        assert index.search(query, 20) == [number for number in best[:20] if expected[number]]


def test_the_order_of_texts_and_the_words_of_korean() -> None:
    assert BM25(["a b", "b c", "c"]).search("c b", 9) == [1, 2, 0]
    assert BM25(["b", "b", "b", "b"]).search("b", 2) == [0, 1]
    assert BM25(["?", "!"]).search("a", 1) == []
    assert words("서울특별시의 DNA가, DNA는 x_1 3.5%!") == "서울 울특 특별 별시 시의 dna 가 dna 는 x_1 3 5".split()
