"""BM25: search for the texts that are most similar to a text, by the words that both have.

The score of a text D for a query Q is the sum over the words q of Q, repeated ones too:

    log(1 + (N - n + 0.5) / (n + 0.5)) * f * (k1 + 1) / (f + k1 * (1 - b + b * |D| / mean))

N texts, n of them with q; f is the number of q in D, |D| the number of words in D, and mean that of all texts.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

K1 = 1.5  # weight of repeated words
B = 0.75  # penalty for long texts, from 0 (none) to 1
# Two neighbours of Korean, or one that stands alone, or a run of other letters and digits.
WORD = re.compile(r"(?=([가-힣]{2}))[가-힣]|(?<![가-힣])([가-힣])(?![가-힣])|([^\W가-힣]+)")


def words(text: str) -> list[str]:
    """Return the words in lower case; Korean is cut into 2-grams of characters, since particles change its words."""
    return ["".join(groups) for groups in WORD.findall(text.lower()) if any(groups)]


class BM25:
    """An index of texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        counted = [Counter(words(text)) for text in texts]
        lengths = np.array([sum(counts.values()) for counts in counted])
        damping = K1 * (1 - B + B * lengths / (lengths.mean() or 1))  # 1: no text has a word
        postings = defaultdict(list)  # word -> number of a text, times in it, and so on: flat, to save memory
        for number, counts in enumerate(counted):
            for word, times in counts.items():
                postings[word] += number, times
        self._size = len(counted)
        self._scores = {}  # word -> numbers of the texts that have it, and their scores for it
        for word, posting in postings.items():
            numbers, times = np.array(posting).reshape(-1, 2).T
            rarity = np.log1p((self._size - len(numbers) + 0.5) / (len(numbers) + 0.5))
            scores = rarity * times * (K1 + 1) / (times + damping[numbers])
            if len(numbers) > self._size / 16:
                # Adding to all texts is faster than adding to many.
                scores = np.bincount(numbers, scores, self._size)
                numbers = slice(None)
            self._scores[word] = numbers, scores

    def scores(self, query: str) -> np.ndarray:
        """Return the score of every text for a query, float64."""
        found = np.zeros(self._size)
        for word, times in Counter(words(query)).items():
            if word in self._scores:
                numbers, scores = self._scores[word]
                found[numbers] += times * scores  # no number is there twice
        return found

    def search(self, query: str, count: int) -> list[int]:
        """Return the numbers of the best texts, the best first; of equal texts the first. No text scores 0."""
        scores = self.scores(query)
        count = min(count, self._size)
        least = np.partition(scores, -count)[-count]  # much faster than sorting all
        best = np.flatnonzero((scores >= least) & (scores > 0))
        return best[np.argsort(-scores[best], kind="stable")][:count].tolist()
