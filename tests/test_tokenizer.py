"""The tokenizer: nine special tokens, text to ids and back, and a file that is checked when it is loaded."""

from pathlib import Path

import pytest
from corpora import SAMPLES
from hypothesis import given
from hypothesis import strategies as st

from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.paths import read_json, write_json
from nanochat.tokenizer import SPECIAL_TOKENS, Tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SAMPLES, 800)


@pytest.fixture
def artifact(tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path / "tokenizer.json", {"max_chars": 1000})
    return tmp_path / "tokenizer.json"


def test_the_vocabulary_is_bytes_merges_and_the_nine_special_tokens(tokenizer) -> None:
    assert tokenizer.vocab_size == 800
    assert list(tokenizer.special_tokens) == list(SPECIAL_TOKENS)
    assert list(tokenizer.special_tokens.values()) == list(range(791, 800))
    assert tokenizer.token_lengths()[790:].astype(bool).tolist() == [True] + [False] * 9


@given(st.text())
def test_any_text_comes_back_and_nothing_special_comes_out(tokenizer, text) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert sum(tokenizer.token_lengths()[ids]) == len(text.encode())
    assert not set(ids) & set(tokenizer.special_tokens.values())


def test_a_saved_tokenizer_is_the_same_and_says_it_all(tokenizer, artifact, tmp_path) -> None:
    loaded = Tokenizer.load(artifact)
    assert loaded.content_hash == tokenizer.content_hash
    assert loaded.special_tokens == tokenizer.special_tokens
    assert [loaded.encode(text) for text in SAMPLES] == [tokenizer.encode(text) for text in SAMPLES]
    record = read_json(artifact)
    assert set(record) == {"format", "content_hash", "training", "pattern", "merges", "special_tokens", "token_bytes"}
    assert record["training"] == {"max_chars": 1000}
    assert record["token_bytes"] == tokenizer.token_lengths().tolist()
    assert len(record["merges"]) == 800 - 256 - 9
    # The hash changes with the ids, and what is not an artifact says what to do.
    same = Tokenizer.train(SAMPLES, 800, threads=1)
    assert same.save(tmp_path / "a.json", {"note": "other settings"}) == tokenizer.content_hash
    assert Tokenizer.train(SAMPLES, 799).content_hash != tokenizer.content_hash
    with pytest.raises(ValueError, match=r"train one with `python -m scripts\.tok_train`"):
        Tokenizer.load(tmp_path / "absent.json")
    (tmp_path / "other.json").write_text('{"version": "1.0"}')
    with pytest.raises(ValueError, match="is not a tokenizer file"):
        Tokenizer.load(tmp_path / "other.json")


def without_bos(record: Record) -> None:
    del record["special_tokens"]["<|bos|>"]


def swap_merges(record: Record) -> None:
    record["merges"][:2] = record["merges"][1::-1]


DAMAGE = [
    (lambda record: record.pop("merges"), "'merges'"),
    (lambda record: record.update(special_tokens=5), "'int' object"),
    (lambda record: record["merges"].append([9999, 1]), "merge"),
    (without_bos, "'<|bos|>'"),
    (swap_merges, "its content_hash is of another content"),
]


@pytest.mark.parametrize(("harm", "reason"), DAMAGE)
def test_a_damaged_file_is_refused_in_a_sentence(harm, reason, artifact) -> None:
    record = read_json(artifact)
    harm(record)
    write_json(artifact, record)
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged \(.*\): train it again") as refused:
        Tokenizer.load(artifact)
    assert reason in str(refused.value)


def test_a_file_that_is_no_object_is_refused_and_one_without_a_hash_is_read(artifact, tokenizer) -> None:
    record = read_json(artifact)
    del record["content_hash"]
    write_json(artifact, record)
    assert Tokenizer.load(artifact).content_hash == tokenizer.content_hash
    write_json(artifact, [])
    with pytest.raises(UserError, match="is not a tokenizer file"):
        Tokenizer.load(artifact)
