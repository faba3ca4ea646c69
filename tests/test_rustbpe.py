"""The Rust core from Python: against the definition of BPE, tiktoken, bad input, absurd arguments and interruptions.

Its own tests in rustbpe/src compare each part with the definition.
"""

import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import naive_bpe
import numpy as np
import pyarrow as pa
import pytest
import tiktoken
from conftest import each_row
from corpora import SAMPLES

import rustbpe

PATTERN = rustbpe.DEFAULT_PATTERN
SEED = 20261120


def random_texts(count: int):
    dice = random.Random(SEED)
    return [naive_bpe.random_text(dice) for _ in range(count)]


def as_tiktoken(tokenizer: rustbpe.Tokenizer):
    ranks = {tokenizer.token_bytes(rank): rank for rank in range(tokenizer.vocab_size)}
    return tiktoken.Encoding("test", pat_str=tokenizer.pattern, mergeable_ranks=ranks, special_tokens={})


# tiktoken keeps a vocabulary under the hash of its address.
CACHED = {
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
}


def reference(name: str):
    """A real vocabulary, from TIKTOKEN_CACHE_DIR: tests do not download."""
    if not Path(os.environ.get("TIKTOKEN_CACHE_DIR", "/nowhere"), CACHED[name]).exists():
        pytest.skip(f"TIKTOKEN_CACHE_DIR names no folder with {name}")
    return tiktoken.get_encoding(name)


def from_reference(encoding: tiktoken.Encoding):
    tokens = sorted(encoding._mergeable_ranks, key=encoding._mergeable_ranks.get)
    return rustbpe.Tokenizer.from_ranks(tokens, encoding._special_tokens, encoding._pat_str)


def assert_same_ids(tokenizer: rustbpe.Tokenizer, encoding: tiktoken.Encoding, texts: list[str]) -> None:
    """Text by text; batches of ours go through two threads."""
    ids, offsets = tokenizer.encode_batch(texts, threads=2)
    expected = encoding.encode_ordinary_batch(texts, num_threads=2)
    lengths = np.array([len(row) for row in expected])
    if not np.array_equal(np.diff(offsets), lengths) or not np.array_equal(ids, np.concatenate(expected)):
        wrong = next(i for i, row in enumerate(expected) if ids[offsets[i] : offsets[i + 1]].tolist() != row)
        got = ids[offsets[wrong] : offsets[wrong + 1]].tolist()
        raise AssertionError(f"{texts[wrong]!r}\nours {got}\ntiktoken {expected[wrong]}")


@pytest.fixture(scope="module")
def tokenizer():
    return rustbpe.Tokenizer(rustbpe.train(SAMPLES, 1000), ["<|bos|>", "<|end|>"])


CORPORA = {
    "samples": SAMPLES,
    "random": [naive_bpe.assigned(text) for text in random_texts(300)],
    "runs": ["a" * 37, "ab" * 20, "aab" * 11, "aaab" * 9, "abcabcab" * 5, " " * 50, "\n" * 9, "가" * 21],
    "ties": ["ab cd ef gh", "ba dc fe hg", "abcdefgh"],
    "one text": ["the quick brown fox jumps over the lazy dog; the dog sleeps on, the fox is off " * 3],
}


@pytest.mark.parametrize("corpus", CORPORA)
def test_merges_equal_those_of_the_naive_trainer(corpus) -> None:
    texts = CORPORA[corpus]
    expected = [list(pair) for pair in naive_bpe.train(texts, 400, PATTERN)]
    for threads in (1, 2):
        assert rustbpe.train(texts, 256 + 400, threads=threads).tolist() == expected


def test_every_kind_of_source_gives_the_same_merges() -> None:
    texts = random_texts(200)
    expected = rustbpe.train(texts, 600).tolist()
    halves = [pa.array(texts[:77]), pa.array(texts[77:], pa.large_string())]
    for source in (iter(texts), pa.array(texts), halves, [*texts[:50], pa.array(texts[50:])]):
        assert rustbpe.train(source, 600).tolist() == expected
    # A slice of an Arrow array shares the buffers of the whole array.
    assert rustbpe.train(pa.array(texts)[13:40], 500).tolist() == rustbpe.train(texts[13:40], 500).tolist()


def test_limits_count_characters_and_a_source_is_not_read_past_them() -> None:
    texts = ["한국어 토크나이저", "plain text here", "끝까지 읽지 않는다"]
    capped, first = ([text[:4] for text in texts], [texts[0], texts[1][:3]])
    for source in (texts, pa.array(texts)):
        assert rustbpe.train(source, 356, doc_cap=4).tolist() == rustbpe.train(capped, 356).tolist()
        assert rustbpe.train(source, 356, max_chars=12).tolist() == rustbpe.train(first, 356).tolist()

    def endless():
        while True:
            yield "some text " * 1000

    assert len(rustbpe.train(endless(), 260, max_chars=10_000_000)) == 4


def test_progress_is_reported_in_order_and_to_the_end() -> None:
    reports = []
    merges = rustbpe.train(SAMPLES, 900, progress=lambda *state: reports.append(state))
    phases = [phase for phase, _, _ in reports]
    characters = sum(map(len, SAMPLES))
    assert phases == sorted(phases)
    assert ("count", characters, characters) in reports
    assert reports[-1] == ("merge", len(merges), len(merges))


def test_a_million_equal_characters_take_little_time() -> None:
    dice = random.Random(SEED)
    letters = "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=10**6))
    for text in ("a" * 10**6, " " * 10**6, "-" * 10**6, letters):
        tokenizer = rustbpe.Tokenizer(rustbpe.train([text], 300))
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_equal_tiktoken(tokenizer) -> None:
    plain = rustbpe.Tokenizer(tokenizer.merges)
    assert_same_ids(plain, as_tiktoken(plain), random_texts(20_000))


@pytest.mark.parametrize("name", CACHED)
def test_real_vocabularies_give_tiktokens_ids(name) -> None:
    """bench/tokenizer.py compares the ids of whole corpora."""
    encoding = reference(name)
    assert_same_ids(from_reference(encoding), encoding, random_texts(20_000) + SAMPLES)


def test_batches_arrow_arrays_and_single_texts_agree(tokenizer) -> None:
    texts = ["", *random_texts(500), ""]
    bos = tokenizer.special_tokens["<|bos|>"]
    rows = [[bos, *tokenizer.encode(text).tolist()] for text in texts]
    for array in (pa.array(texts), pa.array(texts, pa.large_string())):
        for threads in (1, 2, 3):
            both = tokenizer.encode_arrow(array, bos, threads), tokenizer.encode_batch(texts, bos, threads)
            for ids, offsets in both:
                assert ids.dtype == np.uint16
                assert offsets.dtype == np.uint64
                assert ids.tolist() == [id for row in rows for id in row]
                assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == rows


def test_a_vocabulary_beyond_16_bits_has_32_bit_ids() -> None:
    text = "".join(map(chr, range(0x4E00, 0x9000))) * 2
    few = rustbpe.Tokenizer([], [f"<|{i}|>" for i in range(65_536 - 256)])
    many = rustbpe.Tokenizer([], [f"<|{i}|>" for i in range(65_537 - 256)])
    assert (few.encode(text).dtype, many.encode(text).dtype) == (np.uint16, np.uint32)
    assert few.encode(text).tolist() == many.encode(text).tolist() == list(text.encode())


def test_extreme_strings_are_exact() -> None:
    dice = random.Random(SEED)
    tokenizer = rustbpe.Tokenizer(rustbpe.train([*SAMPLES, "a" * 5000, " " * 5000, "=-" * 3000], 2000))
    encoding = as_tiktoken(tokenizer)
    for alphabet in ("a", "abcdefghijklmnopqrstuvwxyz", "-", "=-", ".,;:!?", "가", "가나다라", "\n", "1"):
        text = "".join(dice.choices(alphabet, k=50_000))
        assert tokenizer.encode(text).tolist() == encoding.encode_ordinary(text), alphabet


def test_any_other_pattern_goes_through_the_regular_expression() -> None:
    assert rustbpe.train(["ab ab"], 400, pattern="[^b]+|b").tolist() == [[32, 97]]
    gaps = rustbpe.Tokenizer([(97, 98)], pattern="[a-z]+")
    assert gaps.decode(gaps.encode("12 ab, ab!")) == "12 ab, ab!"


def test_decode_takes_arrays_and_lists_and_replaces_invalid_utf8(tokenizer) -> None:
    ids = tokenizer.encode("héllo 한국")
    for form in (ids, ids.tolist(), ids.astype(np.uint32), ids.astype(np.int64), tuple(ids.tolist())):
        assert tokenizer.decode(form) == "héllo 한국"
        assert tokenizer.decode_bytes(form) == "héllo 한국".encode()
    assert tokenizer.decode([0xED, 0x95]) == "\ufffd"
    assert tokenizer.decode([tokenizer.special_tokens["<|bos|>"], 97]) == "<|bos|>a"
    assert tokenizer.decode([]) == ""


# call | error | words of its sentence; t is a tokenizer
BAD_CALLS = r"""
t.encode("a\ud800") | ValueError | lone surrogate
rustbpe.train(["a", "b\ud912"], 300) | ValueError | text 1
rustbpe.train("abc", 300) | TypeError | single str
t.encode_arrow(pa.array(["a", None])) | ValueError | element 1
t.encode_arrow(["a"]) | TypeError | not an Arrow array
t.encode_arrow(pa.array([1])) | ValueError | not string
t.decode([5000]) | ValueError | id 5000
rustbpe.Tokenizer([(97, 257), (97, 98)]) | ValueError | out of order
rustbpe.Tokenizer([(1, 2, 3)]) | ValueError | rows of two
rustbpe.Tokenizer([(97, 97), *[(i, i) for i in range(256, 320)]]) | ValueError | bytes in all
rustbpe.train(["a"], 10**12) | ValueError | 2097152
t.encode_batch(["a"], threads=-1) | ValueError | threads is -1
rustbpe.Tokenizer.from_ranks([*ALL_BYTES, b"abc", b"ab"]) | ValueError | in the order they were learned
rustbpe.Tokenizer([], ["<|a|>", "<|a|>"]) | ValueError | twice
rustbpe.Tokenizer.from_ranks([b"a"]) | ValueError | single byte
rustbpe.train(["a"], 300, pattern="([") | ValueError | regular expression
"""
ALL_BYTES = [bytes([byte]) for byte in range(256)]


@each_row("call kind words", BAD_CALLS)
def test_bad_input_raises_an_error_with_a_sentence(tokenizer, call, kind, words) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        eval(call, globals() | {"t": tokenizer})
    assert type(raised.value).__name__ == kind
    assert words in str(raised.value)


def test_invalid_utf8_in_an_arrow_array_is_named(tokenizer) -> None:
    offsets = pa.array([0, 1, 3], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a\xc3\x28")])
    for act in (lambda: tokenizer.encode_arrow(broken), lambda: rustbpe.train([broken], 300)):
        with pytest.raises(ValueError, match="element 1 of the Arrow array is not valid UTF-8 at its byte 0"):
            act()


def test_nul_bytes_and_empty_strings_are_text() -> None:
    """tests/test_tokenizer.py encodes any text."""
    assert rustbpe.train(["\x00\x00"], 300).tolist() == [[0, 0]]
    assert rustbpe.train(["ab"], 1000).tolist() == [[97, 98]]  # fewer merges than asked for
    assert rustbpe.train(["", "a"], 1000).shape == (0, 2)


def test_errors_of_a_source_and_of_a_callback_arrive() -> None:
    def breaks():
        yield "some text"
        raise RuntimeError("the disk is gone")

    def callback(*_):
        raise LookupError("enough")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        rustbpe.train(breaks(), 300)
    with pytest.raises(LookupError, match="enough"):
        rustbpe.train(SAMPLES, 300, progress=callback)


PEAK_MEMORY = """
import resource, rustbpe, sys
def texts(count):
    for i in range(count):
        yield f"row {i % 997}: some words, over and over, 또 같은 말 " * 40
rustbpe.train(texts(100), 400)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rustbpe.train(texts(150_000), 400)  # 300 MB
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_grows_with_the_distinct_words_not_with_the_text() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK_MEMORY], capture_output=True, text=True, timeout=120, check=True)
    grown = int(done.stdout) * (1 if sys.platform == "darwin" else 1024)  # bytes there, kilobytes elsewhere
    assert grown < 150e6  # a batch of 32 MB of text, as str and in UTF-8


def test_ctrl_c_ends_training_at_once() -> None:
    script = "import rustbpe\nprint('ready', flush=True)\nrustbpe.train(('text %d' % i for i in range(10**12)), 300)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    _, complaint = child.communicate(timeout=30)
    assert complaint.rstrip().endswith("KeyboardInterrupt")
