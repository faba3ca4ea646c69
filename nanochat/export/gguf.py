"""Model and tokenizer as one GGUF file for llama.cpp, Ollama and others, with the architecture Qwen3.

llama.cpp splits text into words by patterns that it knows by name. None of them takes digits in pairs, as our tokenizer
does: `nearest_pattern` takes the best one, and the export reports the difference.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import rustbpe
from nanochat.export import tokenizers as tokenizer_files
from nanochat.export.hf import (
    ARCHITECTURES,
    Exported,
    architecture_of,
    build_hf,
    compare_models,
    hf_settings,
    hf_weights,
)
from nanochat.tokenizer import Tokenizer

ARCHITECTURE = "Qwen3ForCausalLM"
_WORDS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Names in llama.cpp: digits in threes, and single digits.
PATTERNS = {"llama-bpe": rf"{_WORDS}\p{{N}}{{1,3}}{_REST}", "qwen2": rf"{_WORDS}\p{{N}}{_REST}"}

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
    architecture_of(exported.model.config, [ARCHITECTURE])
    path = folder / "model.gguf"
    # The best pattern may still split some texts in another way.
    pattern, others = nearest_pattern(exported.tokenizer, exported.texts)
    metadata = gguf_metadata(exported, pattern)
    tensors = dict(gguf_tensors(exported))
    write_file(path, metadata, tensors)
    checks = [check_file(path, metadata, tensors)]
    # Then a model built from nothing but the file.
    loaded = build_hf(ARCHITECTURES[ARCHITECTURE], *read_qwen3(path, exported))
    checks += compare_models(exported, loaded)
    if others:
        checks.append(
            f"gguf: no pattern in llama.cpp splits text into words as this tokenizer does: with {pattern}, "
            f"the nearest, {others:,} of {len(exported.texts):,} texts get other ids"
        )
    return checks


def nearest_pattern(tokenizer: Tokenizer, texts: list[str]) -> tuple[str, int]:
    """Return the name of the best pattern in llama.cpp, and how many texts get other ids with it."""
    counts = {}
    for name, pattern in PATTERNS.items():
        other = rustbpe.Tokenizer(tokenizer.core.merges, list(tokenizer.special_tokens), pattern)
        ids = [other.encode(text).tolist() for text in texts]
        counts[name] = len(tokenizer_files.differing(tokenizer, texts, ids))
    # The first pattern wins a tie.
    best = min(counts, key=counts.get)
    return best, counts[best]


def gguf_metadata(exported: Exported, pattern: str) -> dict[str, Any]:
    """Return the metadata with the keys and types that llama.cpp expects."""
    import gguf

    tokenizer = exported.tokenizer
    settings = hf_settings(exported.model, ARCHITECTURES[ARCHITECTURE], tokenizer.special_tokens)
    # Types tell llama.cpp which tokens are special.
    words = tokenizer_files.written_tokens(tokenizer)
    specials = tokenizer_files.sorted_specials(tokenizer)
    types = [int(gguf.TokenType.NORMAL)] * len(words)
    types += [int(gguf.TokenType.CONTROL)] * len(specials)
    metadata = {f"qwen3.{key}": settings[name] for key, name in KEYS.items()}
    return metadata | {
        "general.name": exported.name,
        "general.type": "model",
        "general.file_type": int(gguf.LlamaFileType.ALL_F32),
        "qwen3.rope.freq_base": settings["rope_parameters"]["rope_theta"],
        "tokenizer.ggml.model": "gpt2",  # stands for byte-level BPE
        "tokenizer.ggml.pre": pattern,
        "tokenizer.ggml.tokens": words + specials,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in tokenizer_files.written_merges(tokenizer)],
        "tokenizer.ggml.bos_token_id": settings["bos_token_id"],
        "tokenizer.ggml.eos_token_id": settings["eos_token_id"],
        "tokenizer.ggml.eot_token_id": settings["bos_token_id"],  # a document ends where the next one begins
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": tokenizer_files.CHAT_TEMPLATE,
    }


def gguf_tensors(exported: Exported) -> Iterator[tuple[str, np.ndarray]]:
    architecture = ARCHITECTURES[ARCHITECTURE]
    config = exported.model.config
    for name, weight in hf_weights(exported.model, architecture):
        # Users quantize with llama.cpp's own program.
        yield gguf_name(name, config.depth), weight.float().cpu().numpy()


def gguf_name(name: str, depth: int) -> str:
    """Return the name of a tensor in the file: `model.layers.0.self_attn.q_proj.weight` is `blk.0.attn_q.weight`."""
    import gguf

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, depth)
    return names.get_name(name, (".weight",))


def write_file(path: Path, metadata: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "qwen3")
    # The method decides the type in the file.
    add = {
        str: writer.add_string,
        int: writer.add_uint32,
        float: writer.add_float32,
        bool: writer.add_bool,
        list: writer.add_array,
    }
    for key, value in metadata.items():
        add[type(value)](key, value)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    # The format's order: header, metadata, tensors.
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_file(path: Path, metadata: dict[str, Any], tensors: dict[str, np.ndarray]) -> str:
    """Return a sentence that the file holds exactly this; ValueError names the differences."""
    found, stored = read_gguf(path)
    wrong = []
    for key, value in metadata.items():
        # Floats are stored in 32 bits.
        expected = float(np.float32(value)) if isinstance(value, float) else value
        if found.get(key) != expected:
            wrong.append(key)
    for name in stored.keys() | tensors.keys():
        # Unequal also where one side has no such tensor.
        if not np.array_equal(stored.get(name), tensors.get(name)):
            wrong.append(name)
    if wrong:
        raise ValueError(f"{path.name} was not read back as it was written: {', '.join(sorted(wrong))}")
    return f"gguf: {len(tensors):,} tensors and {len(metadata):,} metadata values are read back as written"


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    import gguf

    reader = gguf.GGUFReader(path)  # maps the file into memory
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    return metadata, {tensor.name: tensor.data for tensor in reader.tensors}


def read_qwen3(path: Path, exported: Exported) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config fields and weights for Qwen3 in `transformers`, from nothing but the file."""
    metadata, stored = read_gguf(path)
    settings = {name: metadata[f"qwen3.{key}"] for key, name in KEYS.items()}
    # The only nested value, so it has no row in KEYS.
    settings["rope_parameters"] = {"rope_type": "default", "rope_theta": metadata["qwen3.rope.freq_base"]}
    settings["tie_word_embeddings"] = "output.weight" not in stored
    weights = {}
    for name, _ in hf_weights(exported.model, ARCHITECTURES[ARCHITECTURE]):
        # Without a tensor of its own, the head is the embedding.
        tensor = stored.get(gguf_name(name, settings["num_hidden_layers"]), stored["token_embd.weight"])
        weights[name] = torch.from_numpy(np.array(tensor))
    return settings, weights
