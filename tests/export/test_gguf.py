"""The GGUF file: what was written is what is read, under the names and types that llama.cpp looks for."""

import gguf
import pytest
import torch
from exports import tokenizer_of, trained

import rustbpe
from nanochat.export import gguf as gguf_file
from nanochat.export.forms import FORMS, weights
from nanochat.export.gguf import PATTERNS, as_qwen3, check, splitting, write
from nanochat.export.polyglot import lines
from nanochat.export.tokenizers import CHAT_TEMPLATE
from nanochat.tokenizer import SPECIAL_TOKENS, Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_of()


@pytest.fixture(scope="module", params=[False, True], ids=["two tables", "one table"])
def written(tokenizer, tmp_path_factory, request):
    """What `write` takes; the head is the embedding, or is not."""
    fields = {"tie_embeddings": True, "embed_norm": False} if request.param else {}
    model = trained("portable", tokenizer, **fields)
    about = model, tokenizer, tmp_path_factory.mktemp("gguf") / "model.gguf", "d4", "llama-bpe"
    write(*about)
    return about


def test_it_holds_what_was_written(written):
    assert check(*written).endswith("facts, read back, are what was written")


def test_llama_cpp_finds_what_it_looks_for(written):
    model, tokenizer, path, *_ = written
    reader = gguf.GGUFReader(path)
    facts = {key: field.contents() for key, field in reader.fields.items()}
    config, special = model.config, tokenizer.special_tokens
    assert facts["general.architecture"] == "qwen3"
    for key, value in {
        "block_count": config.depth,
        "context_length": 192,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 1,
        "attention.key_length": 16,
        "attention.layer_norm_rms_epsilon": 2**-23,
        "rope.freq_base": 100_000.0,
        "vocab_size": 701,
    }.items():
        assert facts[f"qwen3.{key}"] == value, key
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    assert len(tokens) == len(kinds) == 701 == len(set(tokens))
    assert kinds == [1] * 692 + [3] * 9  # normal; control
    assert tokens[692:] == list(SPECIAL_TOKENS)
    assert (tokens[ord("a")], tokens[ord(" ")], tokens[ord("\n")], tokens[0xFF]) == ("a", "Ġ", "Ċ", "ÿ")
    left, right = facts["tokenizer.ggml.merges"][0].split(" ")
    assert tokens[256] == left + right
    assert facts["tokenizer.chat_template"] == CHAT_TEMPLATE
    assert facts["tokenizer.ggml.bos_token_id"] == facts["tokenizer.ggml.eot_token_id"] == special["<|bos|>"]
    assert facts["tokenizer.ggml.eos_token_id"] == special["<|assistant_end|>"]
    named = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    assert named["token_embd.weight"] == [64, 701]  # the fastest axis first
    assert named["blk.3.attn_k.weight"] == [64, 16]
    assert named["blk.0.attn_q_norm.weight"] == [16]
    assert ("output.weight" in named) is not config.tie_embeddings


def test_it_comes_back_as_the_weights_of_transformers(written):
    model, _, path, *_ = written
    expected = dict(weights(model, FORMS["Qwen3ForCausalLM"]))
    settings, found = as_qwen3(path, expected)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert settings["tie_word_embeddings"] is model.config.tie_embeddings
    assert settings["num_key_value_heads"] == 1


def test_damage_is_named(written, tmp_path):
    model, tokenizer, path, *rest = written
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ValueError, match=r"^model.gguf, read back, is not what was written: (blk|output)\S+$"):
        check(model, tokenizer, tmp_path / "model.gguf", *rest)
    with pytest.raises(ValueError, match=r"not what was written: general.name, tokenizer.ggml.pre$"):
        check(model, tokenizer, path, "another", "qwen2")


def test_the_nearest_pattern_is_taken_and_what_differs_is_counted(tokenizer):
    texts = list(lines(SPECIAL_TOKENS, 1200))
    name, others = splitting(tokenizer, texts)
    assert name == "llama-bpe"
    assert 0 < others < 100
    plain = ["It's 12 o'clock,\n\n  no  DON'T  ", "안녕 하세요", "x = 7;\r\n"]  # no number of three digits
    assert splitting(tokenizer, plain) == ("llama-bpe", 0)
    for known, pattern in PATTERNS.items():
        same = Tokenizer(rustbpe.Tokenizer(tokenizer.core.merges, SPECIAL_TOKENS, pattern))
        assert splitting(same, texts) == (known, 0)
    assert gguf_file.FORM in FORMS
