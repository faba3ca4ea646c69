"""A GGUF file as what a folder has: a config.json, tensors by their names in `transformers`, and a tokenizer.json.

llama.cpp stores some things in another way: Llama's queries and keys have the channels of a rotating pair side by side,
Gemma's gains are one larger, tables of frequencies stand for a scaled rotary, and a vocabulary has no tokenizer.json.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor

from nanochat.errors import UserError
from nanochat.log import Record
from tracks.bases.families import FAMILIES, Names
from tracks.bases.gguf_head import Head
from tracks.bases.rotary import Scaling, rates_of
from tracks.bases.templates import DEFAULT

# The types of tensors that are read; the file says which it has.
TYPES = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K".split()
ROWS = 4096  # of a matrix at once, so that copies on the way to fp32 stay small
# Ours in config.json -> the name behind that of the architecture.
SIZES = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "sliding_window": "attention.sliding_window",
}
WINDOW = SIZES["sliding_window"]
TEMPLATE = "tokenizer.chat_template"  # entry, and the beginning of those with a name of their own behind a dot
# Settings that change values, with the only value that is known here.
KNOWN_VALUES: Record = {
    "rope.scaling.attn_factor": 1.0,
    "rope.scale_linear": 1.0,
    "final_logit_softcapping": 0.0,
    "attn_logit_softcapping": 0.0,
    "expert_count": 0,
}
# Every Llama from 3.1 on was first trained with so many tokens, and has these bounds.
LLAMA3 = Scaling("llama3", low_freq_factor=1.0, high_freq_factor=4.0, context=8192)
LAYERS_OF_27B = 62  # of Gemma 3
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # types of tokens


class GGUFFile:
    """An open file; tensors stay on disk until they are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.head = Head(path)
        # A file cut in half, or of another kind; no text in UTF-8 is a ValueError too.
        except ValueError as error:
            raise UserError(f"{path} cannot be read as GGUF: {error}") from None
        self.tensors = self.head.tensors
        self.architecture = self.get("general.architecture", "")
        known = [family.gguf for family in FAMILIES.values()]
        if self.architecture not in known:
            raise UserError(
                f"{path}: its architecture is {self.architecture or 'not named'}: only {', '.join(known)} are known"
            )
        parts = self.get("split.count", 0)
        if parts not in (0, 1):
            raise UserError(
                f"{path} is one of {parts} parts: join them first, with llama.cpp's llama-gguf-split --merge"
            )
        found = {tensor.type.name for tensor in self.tensors.values()}
        if unknown := sorted(found - set(TYPES)):
            raise UserError(f"{path} has tensors of the type {', '.join(unknown)}: only {', '.join(TYPES)} are known")

    def get(self, name: str, default: Any = None) -> Any:
        """Return an entry of the metadata."""
        return self.head.entries.get(name, default)

    def token(self, role: str) -> str:
        """Return the token with a role, such as `bos`; UserError if its id is none of the vocabulary."""
        entry = f"tokenizer.ggml.{role}_token_id"
        id, tokens = self.get(entry, 0), self.get("tokenizer.ggml.tokens")
        if type(id) is not int or not 0 <= id < len(tokens):
            raise UserError(f"{self.path} has {entry}={id}, and its vocabulary has {len(tokens):,} tokens")
        return tokens[id]

    def templates(self) -> dict[str, str]:
        """Return the chat templates by name."""
        found = {}
        for entry, text in self.head.entries.items():
            first, _, name = entry.partition(TEMPLATE)
            if not first and (name == "" or name.startswith(".")) and text and type(text) is str:
                found[name[1:] or DEFAULT] = text
        return found

    def forget(self) -> None:
        """Let the metadata go, as a vocabulary may be large. Tensors can still be read."""
        self.head.entries.clear()

    # ---- config ----

    def config(self) -> Record:
        """Return the config.json of the same model."""
        prefix = self.architecture
        config = {theirs: self.get(f"{prefix}.{name}") for theirs, name in SIZES.items()}
        config = {name: value for name, value in config.items() if value is not None}
        [family] = [family for family in FAMILIES.values() if family.gguf == prefix]
        config["architectures"] = [family.architecture]
        config["model_type"] = family.model_type
        missing = [
            SIZES[name] for name in ("hidden_size", "num_attention_heads", "num_hidden_layers") if not config.get(name)
        ]
        if missing:
            raise UserError(f"{self.path} has no {prefix}.{missing[0]}")
        if "head_dim" not in config:
            config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
        self._check_values(config)
        if prefix != "gemma3":
            config.pop("sliding_window", None)  # these families use none, whatever the file says
        config["vocab_size"] = len(self.get("tokenizer.ggml.tokens", ()))
        config["tie_word_embeddings"] = "output.weight" not in self.tensors
        config["attention_bias"] = prefix != "qwen2" and "blk.0.attn_q.bias" in self.tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in self.tensors
        if prefix == "gemma3":
            # The file does not say: the largest of the family has another one.
            largest = config["num_hidden_layers"] == LAYERS_OF_27B
            per_head = config["hidden_size"] // config["num_attention_heads"]
            config["query_pre_attn_scalar"] = per_head if largest else config["head_dim"]
            config |= self._window_pattern()
        for name in ("bos", "eos", "padding"):
            config[f"{name.removesuffix('ding')}_token_id"] = self.get(f"tokenizer.ggml.{name}_token_id")
        scaled = self._scaling(config)
        return config | ({"rope_scaling": scaled} if scaled else {})

    def _window_pattern(self) -> Record:
        """Return which layers see a window, if the file says: every n-th sees all, or a switch for each layer."""
        pattern = self.get(f"{self.architecture}.attention.sliding_window_pattern")
        if isinstance(pattern, list):
            return {"layer_types": ["sliding_attention" if one else "full_attention" for one in pattern]}
        return {} if pattern is None else {"sliding_window_pattern": pattern}

    def _check_values(self, config: Record) -> None:
        """Raise a UserError for a setting that would change values, with its name."""
        known = KNOWN_VALUES | dict.fromkeys(("rope.dimension_count", "attention.value_length"), config["head_dim"])
        found = {name: self.get(f"{self.architecture}.{name}") for name in known}
        wrong = [name for name, value in found.items() if value is not None and value != known[name]]
        window = self.get(f"{self.architecture}.{WINDOW}") if self.architecture == "llama" else None  # as Mistral's
        if window and window < config.get("max_position_embeddings", 0):
            wrong.append(WINDOW)
        if wrong:
            value = self.get(f"{self.architecture}.{wrong[0]}")
            raise UserError(f"{self.path} has {self.architecture}.{wrong[0]}={value}, which is not known here")

    def _scaling(self, config: Record) -> Record | None:
        factor = self.get(f"{self.architecture}.rope.scaling.factor")
        # A factor without a kind is linear, as llama.cpp reads it.
        kind = self.get(f"{self.architecture}.rope.scaling.type", "linear" if factor else "none")
        if "rope_freqs.weight" in self.tensors:
            return self._llama3(config)
        return None if kind == "none" else {"rope_type": kind, "factor": factor or 1.0}

    def _llama3(self, config: Record) -> Record:
        """Return the scaling whose rates are those of the file's table, which has the divisor of each."""
        expected = (config["head_dim"] // 2,)
        if self.shape("rope_freqs.weight") != expected:
            raise UserError(
                f"{self.path}: rope_freqs.weight has the shape {self.shape('rope_freqs.weight')}, not {expected}"
            )
        divisors = self.read("rope_freqs.weight")
        scaling = replace(LLAMA3, factor=float(divisors.max()))
        plain, scaled = (rates_of(len(divisors), config["rope_theta"], one) for one in (Scaling(), scaling))
        if not torch.allclose(plain / scaled, divisors, rtol=1e-4):
            raise UserError(f"{self.path} scales rotary positions by a table that is not Llama 3's")
        return {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.context,
        }

    # ---- tensors ----

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def read(self, name: str) -> Tensor:
        """Return a tensor in fp32, as it is stored."""
        place = self.tensors[name]
        found = torch.empty(place.rows, place.shape[-1])
        for first in range(0, place.rows, ROWS):
            values = gguf.dequantize(self.head.rows(name, first, ROWS), place.type)
            found.numpy()[first : first + ROWS] = values
        self.head.release()
        return found.view(place.shape)

    def read_as(self, names: Names, heads: Mapping[str, int]) -> Tensor:
        """Return a tensor as `transformers` has it. heads: of queries and keys, by the last part of their name."""
        found = self.read(names.gguf)
        if self.architecture == "gemma3" and names.ours.endswith("gain"):
            return found - 1
        part = names.gguf.split(".")[-2]
        if self.architecture == "llama" and part in heads:
            pairs = found.unflatten(0, (heads[part], -1, 2))  # (heads, pairs, 2, …), a pair side by side
            return pairs.transpose(1, 2).reshape(found.shape)
        return found

    # ---- vocabulary ----

    def tokenizer(self) -> str:
        """Return the text of a tokenizer.json with the same vocabulary."""
        model = self.get("tokenizer.ggml.model", "")
        if model == "gpt2":
            state = self._of_bytes()
        elif model == "llama" and self.architecture in ("gemma3", "llama"):
            state = self._of_pieces()
        else:
            raise UserError(f"{self.path} has a vocabulary of the kind {model or 'none'}, which is not known")
        if self.begins_with_bos:
            state["post_processor"] = _with_first(self.token("bos"), self.bos)
        return json.dumps(state, ensure_ascii=False)

    @property
    def bos(self) -> int:
        return self.get("tokenizer.ggml.bos_token_id", -1)

    @property
    def begins_with_bos(self) -> bool:
        """True if every text begins with the bos token; a file that does not say is read as llama.cpp reads it."""
        usual = self.get("tokenizer.ggml.model") == "llama" or self.get("tokenizer.ggml.pre") in LLAMA3_SPLITS
        return bool(self.get("tokenizer.ggml.add_bos_token", usual)) and self.bos >= 0

    def _tokens(self) -> tuple[list[str], list[int]]:
        tokens = self.get("tokenizer.ggml.tokens", [])
        types = self.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
        if len(types) != len(tokens):
            raise UserError(f"{self.path} has {len(tokens):,} tokens and types for {len(types):,}")
        return tokens, types

    def _of_bytes(self) -> Record:
        """Pairs of bytes, written in letters, with the merges of the file."""
        tokens, types = self._tokens()
        split = self.get("tokenizer.ggml.pre", "default")
        if split not in SPLITS:
            raise UserError(f"{self.path} splits texts like {split}: only {', '.join(SPLITS)} are known")
        merges = self.get("tokenizer.ggml.merges")
        if merges is None:
            raise UserError(f"{self.path} has no tokenizer.ggml.merges")
        return {
            **_added(tokens, types),
            "normalizer": {"type": "NFC"} if SPLITS[split].composed else None,
            "pre_tokenizer": SPLITS[split].pre_tokenizer(),
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {
                "type": "BPE",
                "vocab": {token: id for id, token in enumerate(tokens)},
                "merges": [merge.split(" ") for merge in merges],
                "ignore_merges": SPLITS[split].whole_words,
            },
        }

    def _of_pieces(self) -> Record:
        """Pieces of SentencePiece: pairs of characters, merged in the order of the vocabulary, and bytes for others."""
        tokens, types = self._tokens()
        # Llama's texts begin with a blank that is not theirs, also behind a special token; Gemma's do not.
        has_blank = bool(self.get("tokenizer.ggml.add_space_prefix", self.architecture == "llama"))
        normalizers: list[Record] = [{"type": "Prepend", "prepend": "▁"}] if has_blank else []
        normalizers.append({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
        decoders: list[Record] = [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        if has_blank:
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        # Runs of spaces are stored as such, and looked up with the letter for a space.
        tokens = ["▁" * len(token) if token and not token.strip(" ") else token for token in tokens]
        ids = {token: id for id, token in enumerate(tokens)}
        merges = []
        for token in tokens:
            found = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
            pairs = [pair for pair in found if pair[0] in ids and pair[1] in ids]
            merges += sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        return {
            **_added(tokens, types),
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                "type": "BPE",
                "unk_token": self.token("unknown"),
                "fuse_unk": True,
                "byte_fallback": True,
                "vocab": ids,
                "merges": [list(merge) for merge in merges],
            },
        }


def _added(tokens: Sequence[str], types: Sequence[int]) -> Record:
    """Return a tokenizer.json's head: tokens that a text is searched for before it is split."""
    added = [
        {
            "id": id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == CONTROL,
        }
        for id, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "post_processor": None}


def _with_first(token: str, id: int) -> Record:
    """Return the post-processor of a tokenizer.json that puts a token before each text."""
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    texts = [{"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB")]
    return {
        "type": "TemplateProcessing",
        "single": [first, texts[0]],
        "pair": [first, *texts],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
    }


# How GPT-4 split texts: words with a character before them, digits in groups of three, signs, blanks.
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Splitting:
    """How a vocabulary of bytes splits a text before it merges."""

    pattern: str = ""  # empty: GPT-2's, which is part of the library
    single_digits: bool = False  # before that
    composed: bool = False  # accents are joined with their letters first (NFC)
    whole_words: bool = False  # a word that is a token is that token, whatever the merges say

    def pre_tokenizer(self) -> Record:
        parts: list[Record] = []
        if self.single_digits:
            parts.append({"type": "Digits", "individual_digits": True})
        if self.pattern:
            pattern = {"Regex": self.pattern}
            parts.append({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
        letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        parts.append({**letters, "use_regex": not self.pattern})
        return {"type": "Sequence", "pretokenizers": parts}


LLAMA3_SPLITS = ("llama-bpe", "llama3", "llama-v3", "smaug-bpe")  # converters differ in the name
QWEN2_SPLITS = ("qwen2", "deepseek-r1-qwen")
SPLITS = {  # by tokenizer.ggml.pre
    "gpt-2": Splitting(),
    "smollm": Splitting(single_digits=True),
    **dict.fromkeys(LLAMA3_SPLITS, Splitting(GPT4, whole_words=True)),
    **dict.fromkeys(QWEN2_SPLITS, Splitting(GPT4.replace(r"\p{N}{1,3}", r"\p{N}"), composed=True)),
}
