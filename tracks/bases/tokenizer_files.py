"""The tokenizer of a folder as `transformers` 5 reads it: tokenizer.json, and what the files beside it say."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from nanochat.errors import UserError
from nanochat.log import Record
from tracks.bases.added import listed_tokens, roles, with_listed
from tracks.bases.definition import Wanted, definition_of
from tracks.bases.model import PublicConfig
from tracks.bases.reading import about, read_object, read_text, token_ids
from tracks.bases.special_names import with_special
from tracks.bases.templates import DEFAULT
from tracks.bases.tokenizer import Definition

MORE_TEMPLATES = "additional_chat_templates"  # a folder of files NAME.jinja
SIDES = ("padding_side", "truncation_side")  # in a tokenizer_config.json
# Classes of `transformers` that pad on the left unless a file says otherwise.
PADS_LEFT = ("GemmaTokenizer", "LlamaTokenizer", "CodeLlamaTokenizer")


class FolderTokenizer(NamedTuple):
    """The tokenizer of a folder."""

    definition: Definition
    files: Sequence[Path]  # that it was read from
    templates: Sequence[str]  # names of its own for conversations
    dropped: Sequence[str]  # added tokens that the embedding has no row for
    sides: Record  # as `sides_of` returns them


def read_tokenizer(folder: Path, settings: Record, wanted: Wanted, config: PublicConfig) -> FolderTokenizer:
    """Return the tokenizer of a folder; UserError for what it cannot be read from. settings: the config.json."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"{folder} has no tokenizer.json: save its tokenizer with `transformers`, which writes one")
    options = read_object(folder / "tokenizer_config.json") or {}
    if "auto_map" in options:
        raise UserError(f"{folder} has a tokenizer with code of its own, which is not run")
    others = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "generation_config.json")
    used = [file, *(folder / name for name in others if (folder / name).is_file())]
    more = sorted((folder / MORE_TEMPLATES).glob("*.jinja"))
    in_files = {path.stem: read_text(path) for path in more}
    used += more
    if (folder / "chat_template.jinja").is_file():
        in_files = {DEFAULT: read_text(folder / "chat_template.jinja"), **in_files}
    in_files = {name: text for name, text in in_files.items() if text}
    named = in_files or _own_templates(options.get("chat_template"))  # as `transformers` reads them
    in_map = read_object(folder / "special_tokens_map.json")
    generation = read_object(folder / "generation_config.json") or {}
    text = read_text(file)
    with about(folder):
        text, kept, dropped = with_listed(text, listed_tokens(options), config.vocab_size)
        special = roles(options, in_map, settings.get("tokenizer_class"), config.family, kept)
        ends = token_ids("eos_token_id", [generation.get("eos_token_id"), settings.get("eos_token_id")])
        begins = token_ids("bos_token_id", [settings.get("bos_token_id")])
    _check_dropped(folder, dropped, special)
    by_role, in_lists = _special_names(options)
    by_role |= set(filter(None, special.values()))
    text = with_special(text, by_role)
    with about(folder):
        definition = definition_of(text, named, wanted, special, ends, config, begins)
    _check_dropped(folder, dropped, {"chat template": definition.template})
    definition = replace(definition, listed=sorted(in_lists - by_role))
    sides = sides_of(options, settings, config, definition)
    return FolderTokenizer(definition, used, [*named], sorted(dropped), sides)


def _special_names(options: Record) -> tuple[set[str], set[str]]:
    """Return the names of special tokens in a tokenizer_config.json: those with a role, and those in lists.

    For `transformers` a token with a role is special whatever tokenizer.json says. It reads one in a list as that says.
    """
    roles = [value for name, value in options.items() if name.endswith("_token")]
    listed = []
    for name in ("extra_special_tokens", "model_specific_special_tokens", "additional_special_tokens"):
        value = options.get(name)
        roles += value.values() if isinstance(value, dict) else ()
        listed += value if isinstance(value, list) else ()
    return _names(roles), _names(listed)


def _names(tokens: Sequence[Any]) -> set[str]:
    """Return the names of tokens that a file has as texts or as objects."""
    names = [token.get("content") if isinstance(token, dict) else token for token in tokens]
    return {name for name in names if isinstance(name, str)}


def _check_dropped(folder: Path, dropped: Collection[str], used: Mapping[str, str | None]) -> None:
    """Raise a UserError if a token that the embedding has no row for is in one of these texts."""
    for place, text in used.items():
        for token in sorted(dropped):
            if text and token in text:
                raise UserError(
                    f"{folder}: its {place} needs the token {token}, and its embedding has no row for it: take the"
                    " tokenizer that these weights were trained with, or resize the embedding"
                )


def _own_templates(value: Any) -> dict[str, str]:
    """Return the chat templates in a tokenizer_config.json by name: one is a text, several are a list or an object."""
    if isinstance(value, list):
        value = {one.get("name"): one.get("template") for one in value if isinstance(one, dict)}
    named = value if isinstance(value, dict) else {DEFAULT: value}
    return {name: text for name, text in named.items() if isinstance(name, str) and isinstance(text, str) and text}


def sides_of(options: Record, settings: Record, config: PublicConfig, definition: Definition) -> Record:
    """Return the sides on which `transformers` pads texts and cuts them off, where they are not those of every class.

    options: the tokenizer_config.json. settings: the config.json.
    """
    sides = {name: options[name] for name in SIDES if options.get(name) in ("left", "right")}
    # A large file is not parsed for its padding, which goes along in it; a token of that name has a number there.
    if "padding_side" in sides or re.search(r'"padding"\s*:\s*\{', definition.tokenizer):
        return sides
    usual = "GemmaTokenizer" if config.family == "gemma3" else ""
    named = str(options.get("tokenizer_class") or settings.get("tokenizer_class") or usual).removesuffix("Fast")
    # This one is not taken for vocabularies of bytes, and Qwen2 has its own class, whatever is named.
    of_bytes = named == "LlamaTokenizer" and '"ByteLevel"' in definition.tokenizer
    if named in PADS_LEFT and not of_bytes and config.family != "qwen2":
        sides["padding_side"] = "left"
    return sides
