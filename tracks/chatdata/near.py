"""Near duplicates by MinHash.

The similarity of two texts is the Jaccard index of their sets of shingles, SHINGLE characters each. Each of PLACES hash
functions keeps its smallest value over a text's shingles. The share of equal values estimates the index, with a
standard error of sqrt(j * (1 - j) / PLACES). Texts without an equal band are not compared: with a similarity of 0.8
they have one with probability 1 - (1 - 0.8**6)**20 = 0.998.
"""

from functools import reduce

import numpy as np

SHINGLE = 5  # characters
BANDS = 20  # of a signature
BAND = 6  # places of a band
PLACES = BANDS * BAND
CHUNK = 4096  # shingles that are hashed at once, so that memory does not grow with the text


def _mix(values: np.ndarray) -> np.ndarray:
    """Return uint64 values with their bits mixed; overflow is wanted."""
    values = (values ^ (values >> 32)) * 0xD6E8FEB86659FD93
    return values ^ (values >> 29)


def _odd_numbers(count: int) -> np.ndarray:
    """Return random odd numbers, the same on every machine."""
    return _mix(np.arange(1, count + 1, dtype=np.uint64)) | 1


def signature(text: str) -> bytes:
    """Return the signature of a text, PLACES values of two bytes. Case and spaces do not matter."""
    letters = "".join(text.casefold().split()).ljust(SHINGLE)  # one shingle at least
    codes = np.frombuffer(letters.encode("utf-32-le"), np.uint32).astype(np.uint64)
    shingles = np.lib.stride_tricks.sliding_window_view(codes, SHINGLE)
    hashes = _mix(shingles @ _odd_numbers(SHINGLE)).astype(np.uint32)
    functions = _odd_numbers(PLACES).astype(np.uint32)[:, None]
    chunks = (hashes[start : start + CHUNK] for start in range(0, len(hashes), CHUNK))
    smallest = reduce(np.minimum, ((functions * chunk).min(axis=1) for chunk in chunks))
    # Mixed, because the smallest of many values begin with zeros.
    return _mix(smallest.astype(np.uint64)).astype(np.uint16).tobytes()


def band_keys(signed: bytes) -> list[int]:
    """Return a key of 63 bits for each band of a signature."""
    bands = np.frombuffer(signed, np.uint16).reshape(BANDS, BAND).astype(np.uint64)
    # Equal values in two bands have different keys.
    return (_mix(bands @ _odd_numbers(BAND) + np.arange(BANDS, dtype=np.uint64)) >> 1).tolist()


def similarity(first: bytes, second: bytes) -> float:
    """Return the estimate for two texts from their signatures."""
    return float((np.frombuffer(first, np.uint16) == np.frombuffer(second, np.uint16)).mean())
