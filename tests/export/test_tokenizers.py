"""The tokenizer in other programs' files: the same ids there and back, and one sentence for what is none."""

import base64
import json
import random

import pytest
import tokenizers
from exports import tokenizer_of

import rustbpe
from nanochat.export import tokenizers as files
from nanochat.export.polyglot import lines
from nanochat.tokenizer import SPECIAL_TOKENS, ArtifactError, Tokenizer

LINES = list(lines(SPECIAL_TOKENS))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_of(900)


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """Both forms, in folders of their own."""
    folder = tmp_path_factory.mktemp("tokenizers")
    for name in ("hf", "tiktoken"):
        (folder / name).mkdir()
    files.write_hf(tokenizer, folder / "hf", 64)
    files.write_tiktoken(tokenizer, folder / "tiktoken")
    return folder


def test_tokenizers_gives_the_same_ids_and_text(tokenizer, folder):
    hf = tokenizers.Tokenizer.from_file(str(folder / "hf/tokenizer.json"))
    special = tokenizer.special_tokens
    assert hf.get_vocab_size() == tokenizer.vocab_size
    assert {name: hf.token_to_id(name) for name in special} == special
    assert hf.encode("a <|user_end|>b").ids == [
        *(special["<|bos|>"], *tokenizer.encode("a "), special["<|user_end|>"], *tokenizer.encode("b"))
    ]
    found = files.plain_hf(hf, LINES)
    assert files.differing(tokenizer, LINES, found) == []
    assert [hf.decode(ids) for ids in found[:2000]] == LINES[:2000]


def test_tiktoken_gives_the_same_ids(tokenizer, folder):
    theirs = files.load_tiktoken(folder / "tiktoken")
    assert files.differing(tokenizer, LINES, theirs.encode_ordinary_batch(LINES)) == []
    assert theirs.n_vocab == tokenizer.vocab_size
    assert theirs.encode_single_token("<|output_end|>") == tokenizer.special_tokens["<|output_end|>"]


def test_what_differs_is_named(tokenizer):
    other = Tokenizer(rustbpe.Tokenizer(tokenizer.core.merges, SPECIAL_TOKENS, r"\p{L}+|\p{N}|[^\p{L}\p{N}]+"))
    texts = ["abc", "it's 12", "x\n"]
    assert files.differing(tokenizer, texts, map(other.encode, texts)) == ["it's 12"]
    with pytest.raises(ValueError, match=r"^other gives other ids than ours for 1 texts, the first is \"it's 12\"$"):
        files.check(tokenizer, texts, map(other.encode, texts), "other")
    assert files.check(tokenizer, texts, map(tokenizer.encode, texts), "x").endswith("the same ids for 3 texts")


def test_two_ids_for_the_same_bytes_are_refused():
    twice = Tokenizer(rustbpe.Tokenizer([(97, 98), (98, 99), (256, 99), (97, 257)], SPECIAL_TOKENS))
    with pytest.raises(ValueError, match="two ids for 'abc'"):
        files.words(twice)


@pytest.mark.parametrize("name", ["hf/tokenizer.json", "tiktoken/tokenizer.json", "tiktoken/tokenizer.tiktoken"])
def test_what_was_written_is_read_as_the_same_tokenizer(name, tokenizer, folder):
    assert files.read(folder / name).content_hash == tokenizer.content_hash


def test_our_own_file_is_read(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    assert files.read(tmp_path / "tokenizer.json").content_hash == tokenizer.content_hash


def test_merges_come_back_from_ranks():
    """Of the tokenizer that tiktoken's form alone would keep, too: made of pairs at random."""
    dice = random.Random(3)
    ranks = [bytes([byte]) for byte in range(256)]
    while len(ranks) < 500:
        token = dice.choice(ranks[97:123] + ranks[256:]) + dice.choice(ranks[97:123])
        if token not in ranks:
            ranks.append(token)
    assert all(
        ranks.index(ranks[left] + ranks[right]) == 256 + i
        for i, (left, right) in enumerate(
            files._pair(token, {token: rank for rank, token in enumerate(ranks)}) for token in ranks[256:]
        )
    )


def hf_with(folder, **changes) -> bytes:
    record = json.loads((folder / "hf/tokenizer.json").read_text(encoding="utf-8"))
    return json.dumps(record | {name: change(record[name]) for name, change in changes.items()}).encode()


def changed(value: dict, **fields) -> dict:
    return value | fields


def test_what_is_no_such_vocabulary_is_one_sentence(folder, tmp_path):
    line = base64.b64encode(b"a") + b" 0\n"
    broken = {
        "": "first 256 ids are not the bytes",
        "not base64 0": "is no vocabulary that can be read",
        (line + line).decode(): "ranks do not count from 0",
        line.decode(): "first 256 ids are not the bytes",
        "{": "JSONDecodeError",
        "[1]": "is no vocabulary that can be read",
        "{}": "KeyError",
        '{"pat_str": "x"}': "tokenizer.tiktoken cannot be read",
        hf_with(folder, model=lambda m: changed(m, merges=m["merges"][1:])): "merges in order",
        hf_with(folder, model=lambda m: changed(m, merges=m["merges"][::-1])): "merges in order",
        hf_with(folder, added_tokens=lambda tokens: tokens[:-1]): "it lacks <|output_end|>",
        hf_with(folder, added_tokens=lambda tokens: tokens[1:]): "special tokens do not come last",
        hf_with(folder, normalizer=lambda _: {"type": "Lowercase"}): "gives other ids than ours",
        b"\x80\x04\x95pickle": "is no vocabulary that can be read",
    }
    for content, words in broken.items():
        path = tmp_path / "some.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ArtifactError, match=words) as caught:
            files.read(path)
        assert "\n" not in str(caught.value), content
    with pytest.raises(ArtifactError, match=r"nowhere.json cannot be read \(No such file"):
        files.read(tmp_path / "nowhere.json")
