"""The tokenizer in files of other programs: the same ids, and one sentence for a file that is no vocabulary."""

import base64

import pytest
import tokenizers

from nanochat.tokenizer import SPECIAL_TOKENS, Tokenizer
from tracks.export import tokenizers as files
from tracks.export.tests.exports import tokenizer_of
from tracks.export.tokenizers import sample_texts

TEXTS = sample_texts()


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_of(900)


def ranks_file(tokenizer: Tokenizer):
    """The tokenizer as tiktoken writes it: a line of base64 and a rank for each token."""
    tokens = [tokenizer.core.token_bytes(rank) for rank in range(tokenizer.vocab_size - len(SPECIAL_TOKENS))]
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))


def test_tokenizers_gives_the_same_ids_and_text(tokenizer, tmp_path):
    files.write_hf(tokenizer, tmp_path, 64)
    hf = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    special = tokenizer.special_tokens
    assert hf.get_vocab_size() == tokenizer.vocab_size
    assert {name: hf.token_to_id(name) for name in special} == special
    expected = [special["<|bos|>"], *tokenizer.encode("a "), special["<|user_end|>"], *tokenizer.encode("b")]
    assert hf.encode("a <|user_end|>b").ids == expected
    hf.encode_special_tokens = True  # names in texts are text
    found = [encoding.ids for encoding in hf.encode_batch(TEXTS, add_special_tokens=False)]
    assert found == list(map(tokenizer.encode, TEXTS))
    assert [hf.decode(ids) for ids in found[:2000]] == TEXTS[:2000]


def test_our_file_and_tiktokens_ranks_are_read(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.tiktoken").write_text(ranks_file(tokenizer))
    for name in ("tokenizer.json", "tokenizer.tiktoken"):
        assert files.read_tokenizer(tmp_path / name).content_hash == tokenizer.content_hash


@pytest.mark.parametrize("content", [b"!!! 0 1", b"\x80\x04\x95pickle", b"{"])
def test_another_file_is_refused_in_one_sentence(content, tmp_path):
    path = tmp_path / "tokenizer.pkl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is neither our tokenizer.json nor a file of tiktoken's ranks"):
        files.read_tokenizer(path)
