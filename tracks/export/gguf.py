"""Model and tokenizer as one GGUF file for llama.cpp, Ollama and others, with the architecture Qwen3."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tracks.export import tokenizers as tokenizer_files
from tracks.export.hf import (
    QWEN3,
    Exported,
    architecture_of,
    compare_models,
    has_own_writers,
    hf_settings,
    hf_weights,
    transformers,
    write_as_its_own,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GGUF_NAME = "model.gguf"

# llama.cpp splits text into words by patterns with fixed names. The nearest one groups digits in threes, ours in pairs.
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
    """Write model.gguf with the keys and types that llama.cpp expects; return sentences on each comparison."""
    if has_own_writers(exported):
        return write_as_its_own(exported, folder, "gguf")
    import gguf

    # Without short windows.
    architecture = replace(QWEN3, name="llama.cpp's Qwen3", supported=QWEN3.supported - {"window_pattern"})
    architecture_of(exported.model.config, [architecture])
    tokenizer = exported.tokenizer
    settings = hf_settings(exported.model, QWEN3, tokenizer.special_tokens)
    # Types tell llama.cpp which tokens are special.
    words = tokenizer_files.written_tokens(tokenizer)
    specials = list(tokenizer.special_tokens)  # the last ones of the vocabulary, in order
    token_types = [int(gguf.TokenType.NORMAL)] * len(words)
    token_types += [int(gguf.TokenType.CONTROL)] * len(specials)
    metadata = {f"qwen3.{key}": settings[name] for key, name in KEYS.items()} | {
        "general.name": exported.name,
        "general.type": "model",
        "general.file_type": int(gguf.LlamaFileType.ALL_F32),
        "qwen3.rope.freq_base": settings["rope_parameters"]["rope_theta"],
        "tokenizer.ggml.model": "gpt2",  # its name for byte-level BPE
        "tokenizer.ggml.pre": PATTERN,
        "tokenizer.ggml.tokens": words + specials,
        "tokenizer.ggml.token_type": token_types,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in tokenizer_files.written_merges(tokenizer)],
        "tokenizer.ggml.bos_token_id": settings["bos_token_id"],
        "tokenizer.ggml.eos_token_id": settings["eos_token_id"],
        "tokenizer.ggml.eot_token_id": settings["bos_token_id"],  # a document ends where the next one begins
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": tokenizer_files.CHAT_TEMPLATE,
    }
    writer = gguf.GGUFWriter(folder / GGUF_NAME, "qwen3")
    for key, value in metadata.items():
        value_type = gguf.GGUFValueType.get_type(value)
        if type(value) is int:  # llama.cpp expects numbers without a sign
            value_type = gguf.GGUFValueType.UINT32
        writer.add_key_value(key, value, value_type)
    # In fp32: users quantize with llama.cpp's own program. `model.layers.0.self_attn.q_proj` becomes `blk.0.attn_q`.
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, exported.model.config.depth)
    for name, weight in hf_weights(exported.model, QWEN3):
        written = names.get_name(name, (".weight",))
        assert written is not None, name
        writer.add_tensor(written, weight.numpy())
    # The format's order: header, metadata, tensors.
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return [
        compare_models(exported, read_gguf(folder, exported.model.config.head_dim)),
        f"tokenizer: llama.cpp splits numbers of three or more digits in another way (pattern {PATTERN})",
    ]


def read_gguf(folder: Path, head_dim: int) -> "PreTrainedModel":
    """Return the model that the reader of `transformers` finds in model.gguf."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    library = transformers()
    # The reader passes over the size of a head in the file, which test_gguf.py compares: without it each has 128.
    config = library.AutoConfig.from_pretrained(folder, gguf_file=GGUF_NAME, head_dim=head_dim)
    model = library.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(folder / GGUF_NAME, return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(tensors)
    return model.eval()
