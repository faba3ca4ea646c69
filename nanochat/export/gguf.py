"""The model and its tokenizer as one GGUF file, the form that llama.cpp and what is built on it load: as Qwen3.

llama.cpp splits text into words by patterns that it knows by name, and has none for digits in pairs: see `splitting`.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import rustbpe
from nanochat.export import tokenizers as tokenizer_files
from nanochat.export.forms import FORMS, is_tied, settings, weights
from nanochat.gpt import GPT
from nanochat.tokenizer import Tokenizer

FORM = "Qwen3ForCausalLM"
_WORDS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {"llama-bpe": rf"{_WORDS}\p{{N}}{{1,3}}{_REST}", "qwen2": rf"{_WORDS}\p{{N}}{_REST}"}  # its names for them

KEYS = {  # of the file, and what `transformers` calls it
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


def splitting(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[str, int]:
    """The name of llama.cpp's pattern that is nearest to the tokenizer's, and how many texts it gives other ids."""
    names, counts = list(tokenizer.special_tokens), {}
    for name, pattern in PATTERNS.items():
        theirs = rustbpe.Tokenizer(tokenizer.core.merges, names, pattern)
        counts[name] = len(tokenizer_files.differing(tokenizer, texts, (theirs.encode(t).tolist() for t in texts)))
    return min(counts.items(), key=lambda item: item[1])


def write(model: GPT, tokenizer: Tokenizer, path: Path, name: str, pattern: str) -> None:
    """pattern: one of PATTERNS."""
    import gguf

    writer = gguf.GGUFWriter(path, "qwen3")
    adders = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool}
    adders[list] = writer.add_array
    for key, value in _facts(model, tokenizer, name, pattern).items():
        adders[type(value)](key, value)
    for key, values in _tensors(model):
        writer.add_tensor(key, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check(model: GPT, tokenizer: Tokenizer, path: Path, name: str, pattern: str) -> str:
    """A sentence that the file, read back, holds what `write` was given; ValueError names what it does not."""
    facts, tensors = _facts(model, tokenizer, name, pattern), dict(_tensors(model))
    found, there = _read(path)
    wrong = [key for key, value in facts.items() if found.get(key) != _stored(value)]
    wrong += [key for key in there.keys() | tensors.keys() if not np.array_equal(there.get(key), tensors.get(key))]
    if wrong:
        raise ValueError(f"{path.name}, read back, is not what was written: {', '.join(sorted(wrong))}")
    return f"gguf: {len(tensors):,} tensors and {len(facts):,} facts, read back, are what was written"


def as_qwen3(path: Path, names: Iterable[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the file says, as settings of `transformers`, and the weights that have these names there."""
    facts, tensors = _read(path)
    found = {setting: facts[f"qwen3.{key}"] for key, setting in KEYS.items()}
    found["rope_parameters"] = {"rope_type": "default", "rope_theta": facts["qwen3.rope.freq_base"]}
    found["tie_word_embeddings"] = "output.weight" not in tensors
    named = {name: tensors.get(_name(name, found["num_hidden_layers"]), tensors["token_embd.weight"]) for name in names}
    return found, {name: torch.from_numpy(np.array(tensor)) for name, tensor in named.items()}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    import gguf

    reader = gguf.GGUFReader(path)
    facts = {key: field.contents() for key, field in reader.fields.items()}
    return facts, {tensor.name: tensor.data for tensor in reader.tensors}


def _stored(value: Any) -> Any:
    return float(np.float32(value)) if isinstance(value, float) else value


def _facts(model: GPT, tokenizer: Tokenizer, name: str, pattern: str) -> dict[str, Any]:
    """Key -> value, with the keys and types that llama.cpp looks for."""
    import gguf

    about, names = settings(model, FORMS[FORM], tokenizer.special_tokens), tokenizer_files.words(tokenizer)
    specials = sorted(tokenizer.special_tokens, key=tokenizer.special_tokens.get)
    kinds = [gguf.TokenType.NORMAL] * len(names) + [gguf.TokenType.CONTROL] * len(specials)
    return {
        "general.name": name,
        "general.type": "model",
        "general.file_type": int(gguf.LlamaFileType.ALL_F32),
        **{f"qwen3.{key}": about[setting] for key, setting in KEYS.items()},
        "qwen3.rope.freq_base": about["rope_parameters"]["rope_theta"],
        "tokenizer.ggml.model": "gpt2",  # which means byte-level BPE
        "tokenizer.ggml.pre": pattern,
        "tokenizer.ggml.tokens": names + specials,
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in tokenizer_files.merges(tokenizer, names)],
        "tokenizer.ggml.bos_token_id": about["bos_token_id"],
        "tokenizer.ggml.eos_token_id": about["eos_token_id"],
        "tokenizer.ggml.eot_token_id": about["bos_token_id"],  # a document ends where the next begins
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": tokenizer_files.CHAT_TEMPLATE,
    }


def _tensors(model: GPT) -> Iterator[tuple[str, np.ndarray]]:
    for name, weight in weights(model, FORMS[FORM]):
        if name != "lm_head.weight" or not is_tied(model.config, FORMS[FORM]):
            yield _name(name, model.config.depth), weight.float().cpu().numpy()


def _name(name: str, depth: int) -> str:
    """That of `transformers` -> that of the file."""
    import gguf

    return gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, depth).get_name(name, (".weight",))
