"""Model and tokenizer as one GGUF file for llama.cpp, Ollama and others, with the architecture Qwen3."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nanochat.export import tokenizers as tokenizer_files
from nanochat.export.hf import (
    QWEN3,
    Exported,
    Fields,
    architecture_of,
    build_hf,
    compare_models,
    hf_settings,
    hf_weights,
)

# llama.cpp splits text into words by patterns with fixed names. The nearest one takes digits in threes, ours in pairs.
PATTERN = "llama-bpe"

# Key in the file -> name in the config of `transformers`.
KEYS = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}


def write_gguf(exported: Exported, folder: Path) -> list[str]:
    """Write model.gguf; return sentences on each comparison."""
    architecture_of(exported.model.config, [QWEN3])
    path = folder / "model.gguf"
    write_file(path, exported)
    # A model built from nothing but the file.
    loaded = build_hf(QWEN3, *read_qwen3(path, exported))
    return [
        compare_models(exported, loaded),
        f"tokenizer: llama.cpp splits numbers of three or more digits in another way (pattern {PATTERN})",
    ]


def write_file(path: Path, exported: Exported) -> None:
    """Write a file with the keys and types that llama.cpp expects."""
    import gguf

    tokenizer = exported.tokenizer
    settings = hf_settings(exported.model, QWEN3, tokenizer.special_tokens)
    # Types tell llama.cpp which tokens are special.
    words = tokenizer_files.written_tokens(tokenizer)
    specials = list(tokenizer.special_tokens)  # the last ones of the vocabulary, in order
    types = [int(gguf.TokenType.NORMAL)] * len(words)
    types += [int(gguf.TokenType.CONTROL)] * len(specials)
    metadata = {f"qwen3.{key}": settings[name] for key, name in KEYS.items()} | {
        "general.name": exported.name,
        "general.type": "model",
        "general.file_type": int(gguf.LlamaFileType.ALL_F32),
        "qwen3.rope.freq_base": settings["rope_parameters"]["rope_theta"],
        "tokenizer.ggml.model": "gpt2",  # stands for byte-level BPE
        "tokenizer.ggml.pre": PATTERN,
        "tokenizer.ggml.tokens": words + specials,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in tokenizer_files.written_merges(tokenizer)],
        "tokenizer.ggml.bos_token_id": settings["bos_token_id"],
        "tokenizer.ggml.eos_token_id": settings["eos_token_id"],
        "tokenizer.ggml.eot_token_id": settings["bos_token_id"],  # a document ends where the next one begins
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": tokenizer_files.CHAT_TEMPLATE,
    }
    writer = gguf.GGUFWriter(path, "qwen3")
    types = gguf.GGUFValueType
    for key, value in metadata.items():
        # llama.cpp expects numbers without a sign.
        writer.add_key_value(key, value, types.UINT32 if type(value) is int else types.get_type(value))
    # In fp32: users quantize with llama.cpp's own program.
    for name, weight in hf_weights(exported.model, QWEN3):
        writer.add_tensor(gguf_name(name, exported.model.config.depth), weight.numpy())
    # The format's order: header, metadata, tensors.
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str, depth: int) -> str:
    """Return the name of a tensor in the file: `model.layers.0.self_attn.q_proj.weight` is `blk.0.attn_q.weight`."""
    import gguf

    return gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, depth).get_name(name, (".weight",))


def read_qwen3(path: Path, exported: Exported) -> tuple[Fields, dict[str, Tensor]]:
    """Return config fields and weights for Qwen3 in `transformers`, from nothing but the file."""
    import gguf

    reader = gguf.GGUFReader(path)  # maps the file into memory
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    stored = {tensor.name: tensor.data for tensor in reader.tensors}
    settings = {name: metadata[f"qwen3.{key}"] for key, name in KEYS.items()}
    # The only nested value, so it has no row in KEYS.
    settings["rope_parameters"] = {"rope_type": "default", "rope_theta": metadata["qwen3.rope.freq_base"]}
    settings["tie_word_embeddings"] = False
    weights = {}
    for name, _ in hf_weights(exported.model, QWEN3):
        tensor = stored[gguf_name(name, settings["num_hidden_layers"])]
        weights[name] = torch.from_numpy(np.array(tensor))  # a copy: the file is mapped read-only
    return settings, weights
