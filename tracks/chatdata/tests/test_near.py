"""Signatures against exact sets of shingles."""

from random import Random

import numpy as np
from made_chats import sentence, shingles

from tracks.chatdata.near import PLACES, band_keys, signature, similarity


def test_signatures_estimate_the_jaccard_index_and_bands_find_similar_pairs() -> None:
    random, errors, pairs = Random(1), [], []
    for number in range(2000):
        words = sentence(random, random.randint(8, 90), korean=number % 4 == 0).split()
        others = [sentence(random, 1) if random.random() < number / 6000 else word for word in words]
        first, second = " ".join(words), "  ".join(others).upper()
        exact = len(shingles(first) & shingles(second)) / len(shingles(first) | shingles(second))
        signed = signature(first), signature(second)
        pairs.append((exact, bool({*band_keys(signed[0])} & {*band_keys(signed[1])})))
        errors.append((similarity(*signed) - exact) / np.sqrt(max(exact * (1 - exact), 0.01) / PLACES))
    assert abs(np.mean(errors)) < 0.1  # no bias
    assert 0.8 < np.std(errors) < 1.2  # as far off as the formula says
    assert np.abs(errors).max() < 5
    found = [shared for exact, shared in pairs if exact >= 0.8]
    assert len(found) > 300
    assert np.mean(found) > 0.995
    assert np.mean([shared for exact, shared in pairs if exact < 0.4]) < 0.2
    for text in ("", "a", "가나", "word " * 5000):
        assert len(signature(text)) == 2 * PLACES
        assert similarity(signature(text), signature(text.upper())) == 1
    assert similarity(signature("a"), signature("b")) < 0.1
