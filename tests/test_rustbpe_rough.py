"""The Rust core under rough treatment: bad input, absurd arguments, interruptions, a text without end."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import rustbpe

SAMPLES = sorted((Path(__file__).parent.parent / "scripts/samples").glob("*.txt"))


def sample_texts() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in SAMPLES]


@pytest.fixture(scope="module")
def tokenizer() -> rustbpe.Tokenizer:
    return rustbpe.Tokenizer(rustbpe.train(sample_texts(), 1000), ["<|bos|>", "<|end|>"])


BAD_CALLS = {
    "lone surrogate": (lambda t: t.encode("a\ud800"), ValueError, "lone surrogate"),
    "lone surrogate in a batch": (lambda t: t.encode_batch(["a", "\udfff"]), ValueError, "text 1"),
    "lone surrogate in training": (lambda t: rustbpe.train(["a", "b\ud912"], 300), ValueError, "text 1"),
    "no str": (lambda t: t.encode(7), TypeError, "str"),
    "None in a batch": (lambda t: t.encode_batch(["a", None]), TypeError, "text 1 is a NoneType"),
    "one str as a batch": (lambda t: t.encode_batch("abc"), TypeError, "single str"),
    "one str as a source": (lambda t: rustbpe.train("abc", 300), TypeError, "single str"),
    "numbers as a source": (lambda t: rustbpe.train([1], 300), TypeError, "item 0 of source is a int"),
    "small vocabulary": (lambda t: rustbpe.train(["a"], 255), ValueError, "from 256"),
    "null in an Arrow array": (lambda t: t.encode_arrow(pa.array(["a", None])), ValueError, "element 1"),
    "null in a slice": (lambda t: t.encode_arrow(pa.array(["a"] * 9 + [None])[3:]), ValueError, "element 6"),
    "null in training": (lambda t: rustbpe.train([pa.array([None, "a"])], 300), ValueError, "element 0"),
    "no Arrow array": (lambda t: t.encode_arrow(["a"]), TypeError, "not an Arrow array"),
    "chunked Arrow array": (lambda t: t.encode_arrow(pa.chunked_array([["a"]])), TypeError, "chunks"),
    "Arrow array of numbers": (lambda t: t.encode_arrow(pa.array([1])), ValueError, "not string"),
    "dictionary": (lambda t: t.encode_arrow(pa.array(["a"]).dictionary_encode()), ValueError, "not string"),
    "unknown id": (lambda t: t.decode([5000]), ValueError, "id 5000"),
    "negative id": (lambda t: t.decode([-1]), ValueError, "id -1"),
    "unknown id to prepend": (lambda t: t.encode_batch(["a"], prepend=1002), ValueError, "id 1002"),
    "merges out of order": (lambda t: rustbpe.Tokenizer([(97, 257), (97, 98)]), ValueError, "out of order"),
    "no merges": (lambda t: rustbpe.Tokenizer("merges"), TypeError, "whole numbers"),
    "merges in threes": (lambda t: rustbpe.Tokenizer([(1, 2, 3)]), ValueError, "rows of two"),
    "merges of floats": (lambda t: rustbpe.Tokenizer([(97.0, 98.0)]), TypeError, "whole numbers"),
    "negative merges": (lambda t: rustbpe.Tokenizer([(-1, 98)]), ValueError, "only ids below"),
    "merges twice": (lambda t: rustbpe.Tokenizer([(97, 98), (97, 98)]), ValueError, "a second time"),
    "endless tokens": (
        lambda t: rustbpe.Tokenizer([(97, 97), *[(i, i) for i in range(256, 320)]]),
        ValueError,
        "bytes in all",
    ),
    "huge vocabulary": (lambda t: rustbpe.train(["a"], 10**12), ValueError, "2097152"),
    "negative limits": (lambda t: rustbpe.train(["a"], 300, max_chars=-1), ValueError, "max_chars is -1"),
    "negative threads": (lambda t: t.encode_batch(["a"], threads=-1), ValueError, "threads is -1"),
    "ids of floats": (lambda t: t.decode([1.5]), TypeError, "whole numbers"),
    "ids beyond 64 bits": (lambda t: t.decode([2**70]), TypeError, "whole numbers"),
    "a table of ids": (lambda t: t.decode([[1], [2]]), ValueError, "one row"),
    "special id out of reach": (lambda t: rustbpe.Tokenizer.from_ranks(ALL_BYTES, {"x": 2**31}), ValueError, "beyond"),
    "tokens out of order": (
        lambda t: rustbpe.Tokenizer.from_ranks([*ALL_BYTES, b"abc", b"ab"]),
        ValueError,
        "in the order they were learned",
    ),
    "merges of ranks": (lambda t: rustbpe.Tokenizer.from_ranks(ALL_BYTES).merges, ValueError, "given by ranks"),
    "special token twice": (lambda t: rustbpe.Tokenizer([], ["<|a|>", "<|a|>"]), ValueError, "twice"),
    "special token without a name": (lambda t: rustbpe.Tokenizer([], [""]), ValueError, "no name"),
    "special token over a token": (lambda t: rustbpe.Tokenizer.from_ranks(ALL_BYTES, {"x": 5}), ValueError, "ordinary"),
    "bytes missing": (lambda t: rustbpe.Tokenizer.from_ranks([b"a"]), ValueError, "single byte"),
    "empty token": (lambda t: rustbpe.Tokenizer.from_ranks([*ALL_BYTES, b""]), ValueError, "no bytes"),
    "broken pattern": (lambda t: rustbpe.train(["a"], 300, pattern="(["), ValueError, "regular expression"),
}
ALL_BYTES = [bytes([byte]) for byte in range(256)]


@pytest.mark.parametrize("call", BAD_CALLS)
def test_bad_input_is_an_exception_with_a_sentence(tokenizer: rustbpe.Tokenizer, call: str):
    act, kind, words = BAD_CALLS[call]
    with pytest.raises(kind) as raised:
        act(tokenizer)
    assert type(raised.value) is kind
    assert words in str(raised.value)


def test_invalid_utf8_in_an_arrow_array_is_named(tokenizer: rustbpe.Tokenizer):
    offsets = pa.array([0, 1, 3], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a\xc3\x28")])
    for act in (lambda: tokenizer.encode_arrow(broken), lambda: rustbpe.train([broken], 300)):
        with pytest.raises(ValueError, match="element 1 of the Arrow array is not valid UTF-8 at its byte 0"):
            act()


def test_nul_bytes_and_empty_strings_are_text(tokenizer: rustbpe.Tokenizer):
    for text in ("", "\x00", "a\x00b", "\x00" * 100):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert rustbpe.train(["\x00\x00"], 300).tolist() == [[0, 0]]


def test_what_an_iterator_raises_half_way_comes_through():
    def breaks():
        yield "some text"
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        rustbpe.train(breaks(), 300)


def test_what_the_callback_raises_comes_through():
    def callback(*_):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        rustbpe.train(sample_texts(), 300, progress=callback)


def test_more_threads_than_any_machine_has_are_no_harm():
    assert rustbpe.train(["some text"], 260, threads=10**9).shape == (4, 2)
    assert rustbpe.Tokenizer([]).encode_batch(["a"] * 9, threads=10**9)[0].tolist() == [97] * 9


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


def test_memory_grows_with_the_distinct_words_not_with_the_text():
    done = subprocess.run([sys.executable, "-c", PEAK_MEMORY], capture_output=True, text=True, timeout=120, check=True)
    grown = int(done.stdout) * (1 if sys.platform == "darwin" else 1024)  # bytes there, kilobytes elsewhere
    assert grown < 150e6  # a batch of 32 MB of text, as str and in UTF-8


def test_ctrl_c_ends_training_at_once():
    script = "import rustbpe\nprint('ready', flush=True)\nrustbpe.train(('text %d' % i for i in range(10**12)), 300)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    _, complaint = child.communicate(timeout=30)
    assert complaint.rstrip().endswith("KeyboardInterrupt")
