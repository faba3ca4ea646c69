"""Added tokens of a folder's tokenizer and their roles, from the files beside its tokenizer.json too.

They are read as `transformers` 5 does it.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from nanochat.errors import UserError
from nanochat.log import Record

ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
# Roles that a class of `transformers` gives where no file says another.
_ENDS = {"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
CLASSES: Mapping[str, Mapping[str, str]] = {
    "GemmaTokenizer": {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"},
    "GPT2Tokenizer": {**_ENDS, "bos_token": "<|endoftext|>"},
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "Qwen2Tokenizer": {**_ENDS, "pad_token": "<|endoftext|>"},
}
# The class of a family, where no file names one, and of Qwen2 whatever is named.
USUAL = {"qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "gemma3": "GemmaTokenizer"}
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class Added(NamedTuple):
    """A tokenizer.json with all added tokens that the embedding has rows for."""

    text: str
    kept: frozenset[str]
    dropped: frozenset[str]


def listed_tokens(options: Record) -> dict[str, Record]:
    """Return the tokens in a tokenizer_config.json by name, in the form of a tokenizer.json."""
    listed = options.get("added_tokens_decoder", {})
    if not isinstance(listed, dict):
        raise UserError("its tokenizer_config.json has an added_tokens_decoder that is no object")
    found = {}
    for id, token in listed.items():
        said = token if isinstance(token, dict) else {}
        flags = {name: said.get(name, name == "normalized" and not said.get("special")) for name in FLAGS}
        name = said.get("content")
        if not id.isdecimal() or not isinstance(name, str) or any(type(flag) is not bool for flag in flags.values()):
            raise UserError(f"its tokenizer_config.json lists the token {id}: {token}, which cannot be")
        found[name] = {"id": int(id), "content": name, **flags}
    return dict(sorted(found.items(), key=lambda one: one[1]["id"]))


def with_listed(text: str, listed: Mapping[str, Record], rows: int) -> Added:
    """Return a tokenizer.json with the tokens that are listed elsewhere, as far as the embedding has rows for them.

    Gemma 3's has none for the last token, of images. A listed token replaces the one of its name, but what was special
    stays it.
    """
    try:
        state = json.loads(text)
        own = {token["content"]: token for token in state["added_tokens"]}
        tokens = dict(own)
        for name, token in listed.items():
            old = own.get(name, token)
            tokens[name] = {**token, "id": old["id"], "special": token["special"] or old["special"]}
        kept = {name: token for name, token in tokens.items() if token["id"] < rows}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Added(text, frozenset(), frozenset())  # the library says what is wrong
    if list(kept.values()) != state["added_tokens"]:
        text = json.dumps(state | {"added_tokens": list(kept.values())})
    return Added(text, frozenset(kept), frozenset(tokens.keys() - kept.keys()))


def roles(
    options: Record, more: Record | None, named_class: Any, family: str, known: frozenset[str]
) -> dict[str, str | None]:
    """Return tokens by their role; UserError for one that is no text.

    options: the tokenizer_config.json. more: the special_tokens_map.json, which counts only where the first lists no
    tokens. named_class: what config.json names. known: tokens, of which a class may give a role to one.
    """
    said = options if more is None or "added_tokens_decoder" in options else options | more
    named = None if family == "qwen2" else options.get("tokenizer_class") or named_class
    name = str(named or USUAL.get(family)).removesuffix("Fast")
    usual = {role: token for role, token in CLASSES.get(name, {}).items() if token in known}
    found: dict[str, str | None] = {}
    for role in ROLES:
        value = said.get(role, usual.get(role))
        value = value.get("content") if isinstance(value, dict) else value
        if not isinstance(value, str | None):
            file = "tokenizer_config.json" if said is options else "special_tokens_map.json"
            raise UserError(f"its {file} has {role}={value}, which is no text")
        found[role] = value
    return found
