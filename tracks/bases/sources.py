"""Where a public model comes from: a folder as `transformers` writes it, a GGUF file, or the hub.

`open_source` reads everything but the weights, and refuses what is not whole. Nothing in a folder is executed: weights
are safetensors, the tokenizer is a tokenizer.json, and a class that a folder brings along is a reason to refuse it.
"""

import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
import yaml
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nanochat.data.hub import HubError, HubFile, fetch, mirrored, repo_files
from nanochat.errors import UserError
from nanochat.log import Record, print0
from nanochat.models import new_model
from nanochat.paths import read_json, read_sha256
from nanochat.quantized import Tensors
from tracks.bases.added import listed_tokens, roles, with_listed
from tracks.bases.families import COMPUTED, FAMILIES, family_of, names_of, read_config
from tracks.bases.gguf_file import GGUFFile
from tracks.bases.model import PublicConfig
from tracks.bases.special_names import is_text, with_special
from tracks.bases.templates import (
    DEFAULT,
    TEMPLATES,
    joined_template,
    named_template,
    turn_end,
    usual_template,
    with_values,
)
from tracks.bases.tokenizer import Definition, PublicCore

Read = TypeVar("Read")

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
HEAD = "lm_head.weight"
# Files of weights that may hold code.
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
MORE_TEMPLATES = "additional_chat_templates"  # a folder of files NAME.jinja
LICENCES = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")  # what files begin with that a license asks to pass on
LARGEST_LICENCE = 1_000_000  # bytes of such a file
ROWS = 4096  # of a matrix that are looked at together
# Most rows of an embedding that no token has, the larger of a number and a share of all. Trainers add rows so that each
# of up to 8 chips has a multiple of 128, or to make the number round: Qwen2.5 has 271 of 151,936.
SPARE, SPARE_SHARE = 1024, 0.1
TRIED = "Who? I am a 1.\U000f51a3"  # what a tokenizer is tried with; for the last character hardly any has a token
SIDES = ("padding_side", "truncation_side")  # in a tokenizer_config.json
# Classes of `transformers` that pad on the left unless a file says otherwise.
PADS_LEFT = ("GemmaTokenizer", "LlamaTokenizer", "CodeLlamaTokenizer")
OF_DOCUMENTS = "<|endoftext|>"  # stands between documents in vocabularies whose texts begin with nothing


@dataclass(frozen=True)
class FoundModel:
    """A model that was found, and read but for its weights."""

    place: str
    files: Sequence[Path]
    settings: Record  # its config.json
    config: PublicConfig
    stored: Mapping[str, tuple[int, ...]]  # tensors, by their names there, with shapes
    names: Mapping[str, str]  # of every parameter: ours -> the name there
    read: Callable[[str], Tensor]  # from our name to the tensor, fp32
    definition: Definition  # of the tokenizer
    sides: Record  # on which its tokenizer pads and cuts off in `transformers`, where they are not the usual ones
    generation: Record  # its defaults for sampling
    licence: str
    licence_link: str  # as its model card has it
    licence_texts: Mapping[str, str]  # by the name of the file
    templates: Sequence[str]  # names of its own for conversations
    dropped: Sequence[str] = ()  # its added tokens that the embedding has no row for

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each file."""
        return {path.name: read_sha256(path) for path in self.files}


class Wanted(NamedTuple):
    """The chat template that a user asks for."""

    template: str = ""  # in place of the model's own: a name in TEMPLATES, or a file
    values: str = ""  # that it is given, a JSON object


def open_source(place: str, context: int = 0, wanted: Wanted | None = None) -> FoundModel:
    """Return the model at a place: a folder, a GGUF file, or hub:OWNER/NAME, which may name a @REVISION.

    context: tokens, at most those of the model; 0: all of them.
    """
    wanted = wanted or Wanted()
    path = download(place.removeprefix("hub:")) if place.startswith("hub:") else Path(place).expanduser()
    if path.is_dir():
        return _open_folder(path, context, wanted)
    if path.is_file():
        return _open_gguf(path, context, wanted)
    raise UserError(f"--from={place} is neither a folder nor a file; a model of the hub is hub:OWNER/NAME")


def download(name: str) -> Path:
    """Return the folder of a model of the hub, or of a mirror, with its config, weights and tokenizer.

    name: OWNER/NAME, or OWNER/NAME@REVISION.
    """
    repo, _, revision = name.partition("@")
    if revision and (copy := mirrored(repo, "model")):
        raise UserError(
            f"{copy} is a copy of hub:{repo} without revisions: leave @{revision} out, or move it, to have the hub's"
        )
    found = repo_files(repo, ("",), kind="model", revision=revision or None)  # all: a license has any ending
    # No other forms of it, which lie in folders of their own.
    near = [file for file in found if str(Path(file.path).parent) in (".", MORE_TEMPLATES)]
    files = [file for file in near if file.path.endswith((".safetensors", ".json", ".jinja", "README.md"))]
    configs = [file for file in files if file.path == "config.json"]
    if not configs:
        packed = repo_files(repo, (".gguf",), kind="model", revision=revision or None)
        others = f"; it has {packed[0].path}: download that file, and name it by --from" if packed else ""
        raise UserError(f"hub:{name} has no config.json: it is not a model that `transformers` reads{others}")
    # What cannot be read is refused before its weights are downloaded.
    for config in fetch(configs):
        _about(config.parent, read_config, _json(config) or {})
    files = _with_one_set_of_weights(files)
    places = zip(files, fetch(files), strict=True)
    folders = {path.parents[file.path.count("/")] for file, path in places}
    if len(folders) > 1:
        raise UserError(f"files of hub:{name} on this machine are of several revisions: name one, hub:{repo}@REVISION")
    folder = folders.pop()
    _fetch_licences([file for file in found if _is_licence(file.path)], folder)
    return folder


def _fetch_licences(files: Sequence[HubFile], folder: Path) -> None:
    """Download the texts of a license into a model's folder; a line names what cannot be had."""
    for file in files:
        if not (folder / file.path).is_file():
            try:
                # Of the commit that the folder has: the hub may have a newer one by now.
                fetch([replace(file, revision=folder.name)])
            except HubError as error:
                print0(f"import: without {file.path}: {error}", file=sys.stderr)


def _with_one_set_of_weights(files: Sequence[HubFile]) -> list[HubFile]:
    """Return files without weights that `_shards` would not read, as those of another precision."""
    names = {file.path for file in files}
    weights = {SINGLE}
    if SINGLE not in names and INDEX in names:
        [index] = fetch([file for file in files if file.path == INDEX])
        weights = set(_indexed(index))
    return [file for file in files if file.path in weights or not file.path.endswith(".safetensors")]


# ---- a folder ----


def _open_folder(folder: Path, context: int, wanted: Wanted) -> FoundModel:
    settings = _json(folder / "config.json")
    if settings is None and (folder / "adapter_config.json").is_file():
        raise UserError(f"{folder} is an adapter: merge it into its model first, with peft's merge_and_unload")
    if settings is None:
        found = sorted(path.name for path in folder.glob("*.gguf"))
        others = f"; for the model in a GGUF file name the file, --from={folder / found[0]}" if found else ""
        raise UserError(f"{folder} has no config.json: it is not a folder of a model{others}")
    _about(folder, family_of, settings)  # before its files are read
    if "auto_map" in settings:  # its weights may be those of another model than its architecture says
        raise UserError(f"{folder} has a model with code of its own, which is not run")
    shards = _shards(folder)
    config = _about(folder, read_config, settings, context)
    places: dict[str, Path] = {}  # of every tensor
    stored: dict[str, tuple[int, ...]] = {}
    for path in shards:
        try:
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118  # not a mapping
                    places[name] = path
                    stored[name] = tuple(file.get_slice(name).get_shape())
        except SafetensorError as error:
            raise UserError(f"{path} cannot be read: {error}") from None
    if config.tie_embeddings and _has_another_head(places):
        config = replace(config, tie_embeddings=False)  # as `transformers` reads it
    theirs = {names.ours: names.theirs for names in names_of(config)}
    if config.tie_embeddings and theirs["embed.weight"] not in places and HEAD in places:
        theirs["embed.weight"] = HEAD  # of two names of one tensor, a file may have either

    def read(ours: str) -> Tensor:
        name = theirs[ours]
        with safe_open(places[name], "pt") as file:
            return file.get_tensor(name).float()

    _check_tensors(folder, config, stored, theirs)
    definition, used, templates, dropped = _folder_definition(folder, settings, wanted, config)
    licence, link = _licence(folder / "README.md")
    texts = _licence_texts(folder)
    return FoundModel(
        place=str(folder),
        files=[folder / "config.json", *shards, *used, *(folder / name for name in texts)],
        settings=settings,
        config=config,
        stored=stored,
        names=theirs,
        read=read,
        definition=definition,
        sides=_sides(_json(folder / "tokenizer_config.json") or {}, settings, config, definition),
        generation=_json(folder / "generation_config.json") or {},
        licence=licence,
        licence_link=link,
        licence_texts=texts,
        templates=templates,
        dropped=dropped,
    )


def _has_another_head(places: Mapping[str, Path]) -> bool:
    """Return True if a head is stored beside the embedding, and is not the same."""
    names = (HEAD, "model.embed_tokens.weight")
    if not all(name in places for name in names):
        return False
    tensors = []
    for name in names:
        with safe_open(places[name], "pt") as file:
            tensors.append(file.get_tensor(name))
    return not torch.equal(*tensors)


def _licence(card: Path) -> tuple[str, str]:
    """Return the license that the head of a model card names, and its link; empty if it has none."""
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    head = text.partition("\n---")[0] if text.startswith("---\n") else ""
    try:
        values = yaml.safe_load(head)
    except (yaml.YAMLError, ValueError, RecursionError):  # of a date that cannot be, for example
        return "", ""
    if not isinstance(values, dict):
        return "", ""
    named = values.get("license")
    if named in (None, "other"):
        named = values.get("license_name") or named
    names = named if isinstance(named, list) else [named]
    link = values.get("license_link")
    return ", ".join(filter(_is_plain, names)), link if _is_plain(link) else ""


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) and is_text(value)


def _is_licence(name: str) -> bool:
    """Return True for a file of the topmost folder that a license asks to pass on."""
    return "/" not in name and name.upper().startswith(LICENCES)


def _licence_texts(folder: Path) -> dict[str, str]:
    """Return the texts that a license asks to pass on, by the names of their files; a line names what is none."""
    texts = {}
    for path in sorted(folder.iterdir()):
        if not _is_licence(path.name) or not path.is_file():
            continue
        try:
            if path.stat().st_size > LARGEST_LICENCE or not is_text(path.name):
                raise ValueError
            texts[path.name] = path.read_bytes().decode("utf-8")  # with the ends of its lines
        except ValueError:  # of another encoding, too
            print0(f"import: without {path.name!a}, which is no text of at most 1 MB", file=sys.stderr)
    return texts


def _shards(folder: Path) -> list[Path]:
    """Return the files of a folder's weights; UserError if one is missing."""
    if (folder / SINGLE).is_file():  # as `transformers` looks: beside it an index is what another save has left
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        found = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        others = f", only {found[0]}, which may hold code" if found else ""
        raise UserError(f"{folder} has no weights as safetensors{others}")
    names = _indexed(folder / INDEX)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder} has not all of its weights: {', '.join(missing)} is missing")
    return [folder / name for name in names]


def _indexed(index: Path) -> list[str]:
    """Return the names of the files in an index of weights."""
    places = (_json(index) or {}).get("weight_map")
    names = sorted(set(map(str, places.values()))) if isinstance(places, dict) else []
    if not names or any(Path(name).name != name for name in names):
        raise UserError(f"{index} names no files of this folder")
    return names


def _folder_definition(
    folder: Path, settings: Record, wanted: Wanted, config: PublicConfig
) -> tuple[Definition, list[Path], list[str], list[str]]:
    """Return the tokenizer of a folder, its files, names of its chat templates, and the tokens that it leaves out."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"{folder} has no tokenizer.json: save its tokenizer with `transformers`, which writes one")
    options = _json(folder / "tokenizer_config.json") or {}
    if "auto_map" in options:
        raise UserError(f"{folder} has a tokenizer with code of its own, which is not run")
    others = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "generation_config.json")
    used = [file, *(folder / name for name in others if (folder / name).is_file())]
    more = sorted((folder / MORE_TEMPLATES).glob("*.jinja"))
    in_files = {path.stem: _text(path) for path in more}
    used += more
    if (folder / "chat_template.jinja").is_file():
        in_files = {DEFAULT: _text(folder / "chat_template.jinja"), **in_files}
    in_files = {name: text for name, text in in_files.items() if text}
    named = in_files or _own_templates(options.get("chat_template"))  # as `transformers` reads them
    listed = _about(folder, listed_tokens, options)
    text, kept, dropped = with_listed(_text(file), listed, config.vocab_size)
    in_map = _json(folder / "special_tokens_map.json")
    special = _about(folder, roles, options, in_map, settings.get("tokenizer_class"), config.family, kept)
    generation = _json(folder / "generation_config.json") or {}
    ends = _about(folder, _ids, "eos_token_id", [generation.get("eos_token_id"), settings.get("eos_token_id")])
    begins = _about(folder, _ids, "bos_token_id", [settings.get("bos_token_id")])
    _check_dropped(folder, dropped, special)
    by_role, in_lists = _special_names(options)
    by_role |= set(filter(None, special.values()))
    text = with_special(text, by_role)
    definition = _about(folder, _definition, text, named, wanted, special, ends, config, begins)
    _check_dropped(folder, dropped, {"chat template": definition.template})
    return replace(definition, listed=sorted(in_lists - by_role)), used, [*named], sorted(dropped)


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


def _ids(name: str, values: Sequence[Any]) -> list[int]:
    """Return token ids that a config has by a name, each alone or as a list; UserError for anything else."""
    flat = [id for value in values if value is not None for id in (value if isinstance(value, list) else [value])]
    for id in flat:
        if type(id) is not int:
            raise UserError(f"its {name} has {id!r}, which is no id")
    return flat


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is damaged: it is no UTF-8") from None


def _json(path: Path) -> Record | None:
    """Return a file of a folder, a JSON object; None if there is none."""
    if not path.is_file():
        return None
    try:
        found = read_json(path)
        written = json.dumps(found, ensure_ascii=False)
    except (ValueError, RecursionError):  # nested too deep
        found, written = None, ""
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it is no JSON object")
    if not is_text(written):
        raise UserError(f"{path} is damaged: it has half a character, which is no text")
    return found


# ---- a GGUF file ----


def _open_gguf(path: Path, context: int, wanted: Wanted) -> FoundModel:
    file = GGUFFile(path)
    settings = _metadata(path, file.config)
    config = _about(path, read_config, settings, context)
    special = _metadata(path, _special_tokens, file)
    named = _metadata(path, file.templates)
    text = with_special(_metadata(path, file.tokenizer), set(filter(None, special.values())))
    turn_ends = [file.get(f"tokenizer.ggml.{role}_token_id") for role in ("eot", "eom")]  # of a turn, of a call
    ends = _about(path, _ids, "eos_token_id", [settings["eos_token_id"], *turn_ends])
    names = {one.ours: one for one in names_of(config)}
    theirs = {ours: one.gguf for ours, one in names.items()}
    stored = {name: file.shape(name) for name in file.tensors}
    _check_tensors(path, config, stored, theirs)
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads}
    definition = _about(path, _definition, text, named, wanted, special, ends, config)
    licence = file.get("general.license", "")
    if not isinstance(licence, str):
        raise UserError(f"{path} has general.license={licence}, which is no text")
    if licence == "other":
        licence = file.get("general.license.name", "") or licence
    link = file.get("general.license.link", "")
    file.forget()
    return FoundModel(
        place=str(path),
        files=[path],
        settings=settings,
        config=config,
        stored=stored,
        names=theirs,
        read=lambda ours: file.read_as(names[ours], heads),
        definition=definition,
        sides=_sides({}, settings, config, definition),
        generation={},
        licence=licence,
        licence_link=link if _is_plain(link) else "",
        licence_texts={},
        templates=[*named],
    )


def _special_tokens(file: GGUFFile) -> dict[str, str | None]:
    """Return the tokens of a file by their role."""
    tokens = file.get("tokenizer.ggml.tokens", ())
    special = {}
    for name, entry in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        id = file.get(f"tokenizer.ggml.{entry}_token_id")
        special[f"{name}_token"] = tokens[id] if id is not None and 0 <= id < len(tokens) else None
    return special


def _metadata(path: Path, read: Callable[..., Read], *inputs: Any) -> Read:
    """Return read(*inputs), which reads metadata; UserError for a value that is of another type than it is read as."""
    try:
        return read(*inputs)
    except UserError:
        raise
    # A list where a number is due, a text, an empty list: errors of many types.
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{path} has metadata that cannot be read: {reason}") from None


# ---- both ----


def _about(path: Path, read: Callable[..., Read], *inputs: Any) -> Read:
    """Return read(*inputs); the sentence of a UserError gets the place that it is about."""
    try:
        return read(*inputs)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _definition(
    text: str,
    named: Mapping[str, str],
    wanted: Wanted,
    special: Mapping[str, str | None],
    ends: Sequence[int],
    config: PublicConfig,
    begins: Sequence[int] = (),
) -> Definition:
    """Return a tokenizer's definition.

    text: of the tokenizer.json, which alone decides what a text begins with: `transformers` 5 leaves add_bos_token of a
    tokenizer_config.json unread beside one. named: the model's chat templates. wanted: the template that was asked for.
    special: tokens by their role. ends: tokens that end a text. begins: what stands between documents if no token of a
    role does.
    """
    core = PublicCore(text)
    _check_vocabulary(core, config.vocab_size)  # first: what is made of it has a length of the largest id
    ids: dict[str, int] = {}
    for role, token in special.items():
        id = core.backend.token_to_id(token) if token else None
        if token and id is None:
            raise UserError(f"its {role} {token} is not in its vocabulary")
        if id is not None:
            ids[role] = id
    prefix = _prefix(core)
    if len(prefix) > 1:
        raise UserError("its texts begin with several tokens, which is not known here")
    between = [ids[role] for role in ("bos_token", "eos_token") if role in ids]
    document = core.special_tokens.get(OF_DOCUMENTS, next(iter([*between, *begins, *ends]), None))
    bos = prefix[0] if prefix else document
    ends = [*ends, *([ids["eos_token"]] if "eos_token" in ids else [])]
    if bos is None or not ends:
        raise UserError("its tokenizer names no token that begins or ends a text")
    own = joined_template(named)
    if wanted.template in named:
        own = named[wanted.template]
    elif wanted.template in TEMPLATES:
        own = named_template(wanted.template, core.special_tokens)
    elif wanted.template:
        try:
            own = Path(wanted.template).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            known = ", ".join([*TEMPLATES, *named])
            raise UserError(f"--template={wanted.template} is none of {known}, and no file: {error}") from None
    elif named and not own:
        raise UserError(f"its chat templates are {', '.join(named)}, and none is the default: choose one by --template")
    template = own or usual_template(core.special_tokens)
    if wanted.values:
        template = with_values(template, wanted.values)
    variables = {role: token for role, token in special.items() if token}
    day = date.today().isoformat() if "strftime_now" in template else ""
    found = Definition(text, template, bos, prefix, ends, variables, day)
    if template:
        ends = [*turn_end(found), *ends]
    ends = list(dict.fromkeys([*ends, bos]))
    outside = [id for id in ends if not 0 <= id < config.vocab_size]
    if outside:
        raise UserError(f"its token {outside[0]} ends a text, and its vocabulary has {config.vocab_size:,}")
    return replace(found, ends=ends)


def _sides(options: Record, settings: Record, config: PublicConfig, definition: Definition) -> Record:
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


def _prefix(core: PublicCore) -> list[int]:
    """Return the tokens that the library puts before every text; UserError if it cannot read one."""
    try:
        added, plain = (core.backend.encode(TRIED, add_special_tokens=special).ids for special in (True, False))
    # The library raises Exception itself, for example where a character has no token.
    except Exception as error:
        raise UserError(f"its tokenizer.json cannot read a text: {error}") from None
    if not plain:
        raise UserError("its tokenizer.json makes no tokens of a text: its vocabulary is empty, or texts are emptied")
    for place in range(len(added)):
        if added[place : place + len(plain)] == plain:
            return added[:place]
    return []


def _check_tensors(
    place: Path, config: PublicConfig, stored: Mapping[str, tuple[int, ...]], names: Mapping[str, str]
) -> None:
    """Compare what is stored with the config; UserError for the first difference. names: as FoundModel has them."""
    model = new_model(config)
    missing = [there for there in names.values() if there not in stored]
    if missing:
        raise UserError(f"{place} has not all of its weights: {missing[0]} is missing, of {len(missing)}")
    tied = {HEAD, "output.weight"} if config.tie_embeddings else set()
    more = set(stored) - set(names.values()) - tied
    more = {name for name in more if not re.fullmatch(COMPUTED, name)}
    if more:
        architecture = FAMILIES[config.family].architecture
        raise UserError(f"{place} has weights that {architecture} has not, such as {min(more)}")
    for ours, there in names.items():
        shape = tuple(model.get_parameter(ours).shape)
        if ours in ("embed.weight", "head.weight"):
            shape = (config.vocab_size, config.width)  # ours are padded
        if stored[there] != shape:
            raise UserError(f"{place}: {there} has the shape {stored[there]}, and config.json says {shape}")


def _check_vocabulary(core: PublicCore, rows: int) -> None:
    """Compare a vocabulary with the rows of an embedding."""
    if core.vocab_size > rows or has_too_few(core.vocab_size, rows):
        raise UserError(
            f"its vocabulary has {core.vocab_size:,} tokens, and its embedding {rows:,} rows: take the tokenizer that"
            " these weights were trained with"
        )
    token, id = max(core.backend.get_vocab().items(), key=lambda one: one[1], default=("", -1))
    if id >= rows:
        raise UserError(f"its token {token} has the id {id:,}, and its embedding {rows:,} rows: one of them is damaged")


def has_too_few(tokens: int, rows: int) -> bool:
    """Return True if so few tokens are another model's: an embedding has not so many rows to spare."""
    return rows - tokens > max(SPARE, SPARE_SHARE * rows)


@dataclass(frozen=True)
class Weights:
    """All weights under our names, in fp32, each read when its turn comes; rows that pad our vocabulary are zeros."""

    source: FoundModel

    def items(self) -> Iterator[tuple[str, Tensor]]:
        source = self.source
        padding = source.config.padded_vocab - source.config.vocab_size
        for name in source.names:
            weight = source.read(name)
            if padding and name in ("embed.weight", "head.weight"):
                weight = F.pad(weight, (0, 0, 0, padding))
            if not all(rows.isfinite().all() for rows in weight.split(ROWS)):
                raise UserError(f"{source.place}: {source.names[name]} has values that are not finite")
            yield name, weight


def weights_of(source: FoundModel) -> Tensors:
    """Return all weights at once."""
    return dict(Weights(source).items())
