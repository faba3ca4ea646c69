"""Tiny models of each family with random weights, made and saved by `transformers`, and GGUF files of them."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from nanochat.models import new_model
from tracks.bases.families import FAMILIES, names_of, read_config
from tracks.bases.gguf_file import CONTROL, NORMAL, SIZES, USER_DEFINED
from tracks.bases.model import PublicConfig, PublicGPT
from tracks.bases.rotary import Scaling, rates_of
from tracks.bases.sources import FoundModel, open_source
from tracks.bases.tokenizer import Definition, PublicTokenizer
from tracks.bases.weights import weights_of

VOCABULARY = 700
CONTEXT = 512
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,  # 4 x 16 is more than the width
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
LOCAL = {"rope_type": "default", "rope_theta": 10_000.0}
# Name of a case: class of the config, and its settings beside those in COMMON.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-pieces": ("LlamaConfig", {"num_key_value_heads": 4}),  # Llama 2's vocabulary
    "llama-scaled": ("LlamaConfig", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama-biased": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True, "rope_parameters": LINEAR}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2-windows": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 20,
            "rope_parameters": {"sliding_attention": LOCAL, "full_attention": {**LINEAR, "rope_theta": 1e6}},
        },
    ),
}
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT = [
    "The quick brown fox jumps over the lazy dog, 12 + 345 = 357. user assistant system model",
    "def f(x):\n    return x * 2  # twice\n\n\tHe said: 'it's fine'.",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
]
PIECES = [
    *TEXT[0].split(" "), *TEXT[1].split(" "), *TEXT[2].split(" "),
    " ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u200b", "\ufffd", "é", "e\u0301", "👍🏽", "👩‍💻", "1234", "٣٤",
    "<think>", "<0x41>", "▁", "Ġ", "|", "'s", "ß", "中文", "\x00", "\x7f",
]  # fmt: skip
SPECIAL = ["<bos>", "<|im_start|>", "<|im_end|>", "<pad>", "<unk>", "<start_of_turn>", "<end_of_turn>"]


@cache
def byte_tokenizer() -> Tokenizer:
    """Pairs of bytes, as Llama 3 and Qwen have them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 20,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 4, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return tokenizer


@cache
def piece_tokenizer(blank: bool = False) -> Tokenizer:
    """Pairs of characters, with bytes for those that are not there, as Gemma has them.

    blank: a text begins with one, as Llama 2 has it.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if blank:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Sequence(steps)
    special = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - 20, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXT[:2] * 4, trainer)
    # The bytes are tokens of the vocabulary, and not to be found in a text.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in SPECIAL]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))]
    )
    return tokenizer


def has_pieces(case: str) -> bool:
    return case in ("gemma3", "llama-pieces")


def tokenizer_for(case: str) -> Tokenizer:
    return piece_tokenizer(case == "llama-pieces") if has_pieces(case) else byte_tokenizer()


def make_model(case: str, **more: Any) -> transformers.PreTrainedModel:
    """A model with random weights, gains and biases too, always the same. more: settings of its config."""
    name, settings = CASES[case]
    config = getattr(transformers, name)(**{**COMMON, **settings, **more})
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def save_folder(
    case: str, folder: Path, shard: str = "1GB", template: str | None = CHATML, **more: Any
) -> transformers.PreTrainedModel:
    """Save the model of a case as a folder; return it. more: settings of its config."""
    model = make_model(case, **more)
    model.save_pretrained(folder, max_shard_size=shard)
    save_tokenizer(case, folder, template)
    return model


def save_tokenizer(case: str, folder: Path, template: str | None = CHATML) -> transformers.PreTrainedTokenizerFast:
    special = {"bos_token": "<bos>", "eos_token": "<|im_end|>", "pad_token": "<pad>", "unk_token": "<unk>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_for(case), chat_template=template, **special
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def save_without_turns(case: str, folder: Path) -> None:
    """Save a model as Llama 2's base is: without a chat template, and without tokens for one."""
    save_folder(case, folder, template=None)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text(encoding="utf-8")
        for old, new in (("<|im_start|>", "<a>"), ("<|im_end|>", "</s>"), ("<end_of_turn>", "<b>")):
            text = text.replace(old, new)
        (folder / name).write_text(text, encoding="utf-8")


def model_of(source: FoundModel) -> PublicGPT:
    """Our model of a source, ready to compute in fp32."""
    model = new_model(source.config, attention="chunks").to_empty(device="cpu")
    assert isinstance(model, PublicGPT)
    model.load_state_dict(weights_of(source))
    return model


def brought(case: str, folder: Path) -> tuple[PublicGPT, transformers.PreTrainedModel]:
    """Our model and that of `transformers`, with the same weights."""
    theirs = save_folder(case, folder)
    return model_of(open_source(str(folder))), theirs


# ---- GGUF ----


def save_gguf(
    case: str,
    path: Path,
    kind: str = "F32",
    table: np.ndarray | None = None,
    entries: dict[str, Any] | None = None,
    **more: Any,
) -> transformers.PreTrainedModel:
    """Write the model of a case as llama.cpp's converter does; matrices are of this type, if they fit in its blocks.

    table: divisors of rotary rates, in place of those that follow from the config. entries: other values of the
    metadata; None: left out. more: settings of the config.
    """
    theirs = make_model(case, **more)
    config = read_config(theirs.config.to_dict())
    writer = gguf.GGUFWriter(path, FAMILIES[config.family].gguf)
    metadata = _metadata(case, theirs.config.to_dict(), config) | (entries or {})
    for key, value in metadata.items():
        if value is None:
            continue
        kind_of_value = gguf.GGUFValueType.UINT32 if type(value) is int else gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind_of_value)
    state = theirs.state_dict()
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads}
    for names in names_of(config):
        value = state[names.theirs].numpy()
        part = names.gguf.split(".")[-2]
        if config.family == "gemma3" and names.ours.endswith("gain"):
            value = value + 1
        if config.family == "llama" and part in heads:  # the halves of each head become pairs
            halves = value.reshape(heads[part], 2, -1, *value.shape[1:])
            value = halves.swapaxes(1, 2).reshape(value.shape)
        _add(writer, names.gguf, np.ascontiguousarray(value), kind)
    if config.rope_kind == "llama3":
        plain, scaled = (rates_of(config.channels // 2, config.rope_base, one) for one in (Scaling(), config.scaling))
        table = (plain / scaled).float().numpy()
    if table is not None:
        writer.add_tensor("rope_freqs.weight", table)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return theirs


def _metadata(case: str, settings: dict[str, Any], config: PublicConfig) -> dict[str, Any]:
    prefix = FAMILIES[config.family].gguf
    metadata: dict[str, Any] = {f"{prefix}.{name}": settings.get(theirs) for theirs, name in SIZES.items()}
    metadata[f"{prefix}.rope.freq_base"] = config.rope_base
    if config.family == "gemma3":
        metadata[f"{prefix}.rope.freq_base_swa"] = config.rope_base_short
    if config.rope_kind == "linear":
        metadata |= {f"{prefix}.rope.scaling.type": "linear", f"{prefix}.rope.scaling.factor": config.rope_factor}
    tokenizer = tokenizer_for(case)
    state = json.loads(tokenizer.to_str())
    ids = tokenizer.get_vocab()
    added = {token["content"]: token["special"] for token in state["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    tokens += [f"<unused{number}>" for number in range(len(tokens), config.vocab_size)]
    types = [{True: CONTROL, False: USER_DEFINED, None: NORMAL}[added.get(token)] for token in tokens]
    metadata |= {
        "general.license": "mit",
        "tokenizer.ggml.model": "llama" if has_pieces(case) else "gpt2",
        "tokenizer.ggml.pre": "default" if has_pieces(case) else "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 4,
        "tokenizer.ggml.add_bos_token": has_pieces(case),
        "tokenizer.ggml.add_space_prefix": case == "llama-pieces",
        "tokenizer.chat_template": CHATML,
    }
    if not has_pieces(case):
        metadata["tokenizer.ggml.merges"] = [" ".join(merge) for merge in state["model"]["merges"]]
    return {key: value for key, value in metadata.items() if value is not None}


def _add(writer: gguf.GGUFWriter, name: str, value: np.ndarray, kind: str) -> None:
    type_ = gguf.GGMLQuantizationType[kind]
    block, _ = gguf.GGML_QUANT_SIZES[type_]
    if value.ndim == 1 or value.shape[-1] % block:
        writer.add_tensor(name, value.astype(np.float32))
    else:
        writer.add_tensor(name, gguf.quantize(value.astype(np.float32), type_), raw_dtype=type_)


def change(path: Path, **values: object) -> None:
    """Set values of a file, a JSON object."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_model(folder: Path, **values: object) -> None:
    """Give the tokenizer of a folder another kind of model, or change values of its own."""
    file = folder / "tokenizer.json"
    own = json.loads(file.read_text(encoding="utf-8"))["model"]
    change(file, model=values if "type" in values else own | values)


def texts(count: int = 2000) -> list[str]:
    """Return texts of words, spaces and characters that vocabularies treat unlike others."""
    dice = random.Random(4)
    return ["".join(dice.choices(PIECES, k=dice.randrange(12))) for _ in range(count)]


def public(case: str, **changes: Any) -> PublicTokenizer:
    """Return a tokenizer of a case, and other fields of its definition."""
    fields = {"template": CHATML, "bos": 0, "ends": (2, 0), "variables": {"bos_token": "<bos>"}}
    if has_pieces(case):
        fields["prefix"] = (0,)
    return PublicTokenizer(Definition(tokenizer_for(case).to_str(), **{**fields, **changes}))
