"""The tokenizer in files of other programs: the same ids, and one sentence for a file that is no vocabulary."""

import base64
import random
import unicodedata

import pytest
import tokenizers
from exports import tokenizer_of

import rustbpe
from nanochat.export import tokenizers as files
from nanochat.export.tokenizers import sample_texts
from nanochat.tokenizer import SPECIAL_TOKENS, Tokenizer

TEXTS = sample_texts(SPECIAL_TOKENS)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_of(900)


def ranks_file(tokenizer: Tokenizer) -> str:
    """The tokenizer as tiktoken writes it: a line of base64 and a rank for each token."""
    tokens = [tokenizer.core.token_bytes(rank) for rank in range(tokenizer.vocab_size - len(SPECIAL_TOKENS))]
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))


def test_sample_texts_have_all_kinds_of_characters():
    assert sample_texts(SPECIAL_TOKENS) == TEXTS
    text = "".join(TEXTS)
    categories = {unicodedata.category(letter) for letter in set(text)}
    assert categories >= set("Lu Ll Lt Lm Lo Mn Mc Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Cc Cf Co".split())
    for part in ("<|bos|>", "<|user_end|>", "\r\n", "\u3000", "'ve", "👩‍💻", "def f(", "2.5e-10"):
        assert part in text


def test_tokenizers_gives_the_same_ids_and_text(tokenizer, tmp_path):
    files.write_hf(tokenizer, tmp_path, 64)
    hf = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    special = tokenizer.special_tokens
    assert hf.get_vocab_size() == tokenizer.vocab_size
    assert {name: hf.token_to_id(name) for name in special} == special
    expected = [special["<|bos|>"], *tokenizer.encode("a "), special["<|user_end|>"], *tokenizer.encode("b")]
    assert hf.encode("a <|user_end|>b").ids == expected
    found = files.encode_plain(hf, TEXTS)
    assert files.differing(tokenizer, TEXTS, found) == []
    assert [hf.decode(ids) for ids in found[:2000]] == TEXTS[:2000]


def test_a_difference_is_named(tokenizer):
    other = Tokenizer(rustbpe.Tokenizer(tokenizer.core.merges, SPECIAL_TOKENS, r"\p{L}+|\p{N}|[^\p{L}\p{N}]+"))
    texts = ["abc", "it's 12", "x\n"]
    with pytest.raises(ValueError, match=r"^other gives other ids for 1 texts, the first is \"it's 12\"$"):
        files.compare_ids(tokenizer, texts, map(other.encode, texts), "other")
    assert files.compare_ids(tokenizer, texts, map(tokenizer.encode, texts), "x").endswith("same ids for 3 texts")


def test_two_ids_for_the_same_bytes_are_refused():
    twice = Tokenizer(rustbpe.Tokenizer([(97, 98), (98, 99), (256, 99), (97, 257)], SPECIAL_TOKENS))
    with pytest.raises(ValueError, match="two ids for 'abc'"):
        files.written_tokens(twice)


def test_our_file_and_tiktokens_ranks_are_read(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.tiktoken").write_text(ranks_file(tokenizer))
    for name in ("tokenizer.json", "tokenizer.tiktoken"):
        assert files.read_tokenizer(tmp_path / name).content_hash == tokenizer.content_hash


def test_merges_come_back_from_ranks():
    """For any vocabulary of merges, not only a trained one."""
    rng = random.Random(3)
    ranks = [bytes([byte]) for byte in range(256)]
    while len(ranks) < 500:
        token = rng.choice(ranks[97:123] + ranks[256:]) + rng.choice(ranks[97:123])
        if token not in ranks:
            ranks.append(token)
    places = {token: rank for rank, token in enumerate(ranks)}
    for rank, token in enumerate(ranks[256:], 256):
        left, right = files.merged_pair(token, places)
        assert ranks[left] + ranks[right] == token
        assert max(left, right) < rank


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "first 256 tokens are not the bytes"),
        (b"not base64 0", "neither our tokenizer.json nor a file of tiktoken's ranks"),
        (b"!!! 0", "neither our tokenizer.json nor a file of tiktoken's ranks"),
        (b"YQ== 0\nYQ== 2\n", "ranks do not count from 0"),
        (b"YQ== 0\n", "first 256 tokens are not the bytes"),
        (b"{", "is damaged"),
        (b'{"model": {}}', "is not a tokenizer file"),
        (b"\x80\x04\x95pickle", "neither our tokenizer.json nor a file of tiktoken's ranks"),
    ],
)
def test_another_file_is_refused_in_one_sentence(content, words, tmp_path):
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        files.read_tokenizer(path)
    assert "\n" not in str(caught.value), content


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere.json cannot be read \(No such file"):
        files.read_tokenizer(tmp_path / "nowhere.json")
