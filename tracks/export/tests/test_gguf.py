"""The GGUF file: what llama.cpp expects and `transformers` passes over; test_hf.py compares the model in it."""

import gguf

from nanochat.tokenizer import SPECIAL_TOKENS
from tracks.export.gguf import write_gguf
from tracks.export.hf import Exported
from tracks.export.tests.exports import tokenizer_of, trained
from tracks.export.tokenizers import CHAT_TEMPLATE


def test_llama_cpp_finds_the_keys_and_tensors_it_expects(tmp_path) -> None:
    tokenizer = tokenizer_of()
    exported = Exported("d4", trained("portable", tokenizer), tokenizer, {})
    write_gguf(exported, tmp_path)
    special = exported.tokenizer.special_tokens
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    assert metadata["general.architecture"] == "qwen3"
    for key, value in {
        "context_length": 192,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.layer_norm_rms_epsilon": 2**-23,
    }.items():
        assert metadata[f"qwen3.{key}"] == value, key
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == 701 == len(set(tokens))
    assert types == [1] * 692 + [3] * 9  # normal; control
    assert tokens[692:] == list(SPECIAL_TOKENS)
    assert (tokens[ord("a")], tokens[ord(" ")], tokens[ord("\n")], tokens[0xFF]) == ("a", "Ġ", "Ċ", "ÿ")
    left, right = metadata["tokenizer.ggml.merges"][0].split(" ")
    assert tokens[256] == left + right
    assert metadata["tokenizer.chat_template"] == CHAT_TEMPLATE
    assert metadata["tokenizer.ggml.bos_token_id"] == metadata["tokenizer.ggml.eot_token_id"] == special["<|bos|>"]
    assert metadata["tokenizer.ggml.eos_token_id"] == special["<|assistant_end|>"]
    names = [tensor.name for tensor in reader.tensors]
    assert ("output.weight" in names) is not exported.model.config.tie_embeddings
