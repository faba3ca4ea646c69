"""The tokenizer in files of other programs: the same ids, and one sentence for a file that is not a vocabulary."""

import base64
import os
from pathlib import Path

import numpy as np
import pytest
import tokenizers

import rustbpe
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


def test_tokenizers_gives_the_same_ids_and_text(tokenizer, tmp_path) -> None:
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


def test_our_file_and_tiktokens_ranks_are_read(tokenizer, tmp_path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.tiktoken").write_text(ranks_file(tokenizer))
    for name in ("tokenizer.json", "tokenizer.tiktoken"):
        assert files.read_tokenizer(tmp_path / name).content_hash == tokenizer.content_hash


def test_the_merge_of_a_token_is_the_one_that_bpe_leaves() -> None:
    ranks = {bytes([byte]): byte for byte in range(256)}
    for token in (b"bc", b"ab", b"abc", b"aa", b"aaaa"):
        ranks[token] = len(ranks)
    # bc has a lower rank than ab.
    assert files.merge_of(b"abc", ranks) == (ord("a"), ranks[b"bc"])
    assert files.merge_of(b"abbc", ranks) == (ranks[b"ab"], ranks[b"bc"])
    # Of equal pairs the leftmost is merged first.
    assert files.merge_of(b"aaa", ranks) == (ranks[b"aa"], ord("a"))
    assert files.merge_of(b"aaaaaa", ranks) == (ranks[b"aaaa"], ranks[b"aa"])
    for token in (b"xyz", b"a", b""):
        with pytest.raises(ValueError):
            files.merge_of(token, ranks)


CL100K = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # file in the cache of tiktoken
KNOWN = 20_000  # of its tokens


def test_the_merges_of_a_real_vocabulary_give_its_ids() -> None:
    path = Path(os.environ.get("TIKTOKEN_CACHE_DIR", "/nowhere"), CL100K)
    if not path.exists():
        pytest.skip("TIKTOKEN_CACHE_DIR names no folder with cl100k_base")
    tokens = [base64.b64decode(line.split()[0]) for line in path.read_bytes().splitlines()[:KNOWN]]
    ranks: dict[bytes, int] = {}
    merges = []
    for rank, token in enumerate(tokens):
        if rank >= 256:
            merges.append(files.merge_of(token, ranks))
        ranks[token] = rank
    # The real vocabulary has the bytes in another order than ours.
    ids = np.array([*(token[0] for token in tokens[:256]), *range(256, KNOWN)])
    ours = rustbpe.Tokenizer(ids[np.array(merges)].astype(np.uint32))
    theirs = rustbpe.Tokenizer.from_ranks(tokens)
    for text in TEXTS[:1000]:
        assert ours.encode(text).tolist() == ids[theirs.encode(text)].tolist()


def test_ranks_with_bytes_in_another_order_are_refused(tokenizer, tmp_path) -> None:
    """Their merges would mean other bytes."""
    first, second, *others = ranks_file(tokenizer).splitlines(keepends=True)
    path = tmp_path / "tokenizer.tiktoken"
    path.write_text(first.replace(" 0", " 1") + second.replace(" 1", " 0") + "".join(others))
    with pytest.raises(ValueError, match="that begins with the bytes in order"):
        files.read_tokenizer(path)


@pytest.mark.parametrize("content", [b"!!! 0 1", b"\x80\x04\x95pickle", b"{"])
def test_another_file_is_refused_in_one_sentence(content, tmp_path) -> None:
    path = tmp_path / "tokenizer.pkl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is neither our tokenizer.json nor a file of tiktoken's ranks"):
        files.read_tokenizer(path)
