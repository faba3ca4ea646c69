"""Where a public model comes from: a folder as `transformers` writes it, a GGUF file, or the hub.

`open_source` reads everything but the weights, of which it looks only at a head that may be the embedding, and refuses
what is not whole. Nothing in a folder is executed: weights are safetensors, the tokenizer is a tokenizer.json, and a
class that a folder brings along is a reason to refuse it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.paths import read_sha256
from tracks.bases.definition import Wanted, definition_of
from tracks.bases.families import family_of, names_of, read_config
from tracks.bases.gguf_file import GGUFFile
from tracks.bases.hub_models import download
from tracks.bases.licences import card_licence, is_plain, licence_texts
from tracks.bases.model import PublicConfig
from tracks.bases.reading import about, read_object, reading_metadata, token_ids
from tracks.bases.special_names import with_special
from tracks.bases.tokenizer import Definition
from tracks.bases.tokenizer_files import read_tokenizer, sides_of
from tracks.bases.weight_files import (
    HEAD,
    INDEX,
    SINGLE,
    check_dtypes,
    check_tensors,
    has_another_head,
    shards,
    stored_tensors,
)


@dataclass(frozen=True)
class FoundModel:
    """A model that was found, and read but for its weights."""

    place: str
    files: Sequence[Path]
    settings: Record  # its config.json
    config: PublicConfig
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
        """Return the SHA-256 of each file, by its path in the folder."""
        folder = Path(self.place) if Path(self.place).is_dir() else Path(self.place).parent
        return {path.relative_to(folder).as_posix(): read_sha256(path) for path in self.files}


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


def _open_folder(folder: Path, context: int, wanted: Wanted) -> FoundModel:
    settings = read_object(folder / "config.json")
    if settings is None and (folder / "adapter_config.json").is_file():
        raise UserError(f"{folder} is an adapter: merge it into its model first, with peft's merge_and_unload")
    if settings is None:
        found = sorted(path.name for path in folder.glob("*.gguf"))
        others = f"; for the model in a GGUF file name the file, --from={folder / found[0]}" if found else ""
        raise UserError(f"{folder} has no config.json: it is not a folder of a model{others}")
    with about(folder):
        family_of(settings)  # before its files are read
    if "auto_map" in settings:  # its weights may be those of another model than its architecture says
        raise UserError(f"{folder} has a model with code of its own, which is not run")
    files = shards(folder)
    with about(folder):
        config = read_config(settings, context)
    stored = stored_tensors(files)
    if config.tie_embeddings and has_another_head(stored):
        config = replace(config, tie_embeddings=False)  # as `transformers` reads it
    theirs = {names.ours: names.theirs for names in names_of(config)}
    if config.tie_embeddings and theirs["embed.weight"] not in stored and HEAD in stored:
        theirs["embed.weight"] = HEAD  # of two names of one tensor, a file may have either

    def read(ours: str) -> Tensor:
        name = theirs[ours]
        with safe_open(stored[name].path, "pt") as file:
            return file.get_tensor(name).float()

    check_tensors(folder, config, {name: one.shape for name, one in stored.items()}, theirs)
    check_dtypes(stored, theirs.values())
    tokenizer = read_tokenizer(folder, settings, wanted, config)
    card = folder / "README.md"
    licence, link = card_licence(card)
    texts = licence_texts(folder)
    # Whatever has decided something of it: where its weights are, what its license is.
    others = [folder / INDEX] if files != [folder / SINGLE] else []
    others += [card] if licence or link else []
    return FoundModel(
        place=str(folder),
        files=[folder / "config.json", *files, *tokenizer.files, *others, *(folder / name for name in texts)],
        settings=settings,
        config=config,
        names=theirs,
        read=read,
        definition=tokenizer.definition,
        sides=tokenizer.sides,
        generation=read_object(folder / "generation_config.json") or {},
        licence=licence,
        licence_link=link,
        licence_texts=texts,
        templates=tokenizer.templates,
        dropped=tokenizer.dropped,
    )


def _open_gguf(path: Path, context: int, wanted: Wanted) -> FoundModel:
    file = GGUFFile(path)
    with reading_metadata(path):
        settings = file.config()
    with about(path):
        config = read_config(settings, context)
    with reading_metadata(path):
        special = _special_tokens(file)
        named = file.templates()
        text = file.tokenizer()
    text = with_special(text, set(filter(None, special.values())))
    turn_ends = [file.get(f"tokenizer.ggml.{role}_token_id") for role in ("eot", "eom")]  # of a turn, of a call
    with about(path):
        ends = token_ids("eos_token_id", [settings["eos_token_id"], *turn_ends])
    names = {one.ours: one for one in names_of(config)}
    theirs = {ours: one.gguf for ours, one in names.items()}
    stored = {name: file.shape(name) for name in file.tensors}
    check_tensors(path, config, stored, theirs)
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads}
    with about(path):
        definition = definition_of(text, named, wanted, special, ends, config)
    licence = _licence(file)
    link = file.get("general.license.link", "")
    file.forget()
    return FoundModel(
        place=str(path),
        files=[path],
        settings=settings,
        config=config,
        names=theirs,
        read=lambda ours: file.read_as(names[ours], heads),
        definition=definition,
        sides=sides_of({}, settings, config, definition),
        generation={},
        licence=licence,
        licence_link=link if is_plain(link) else "",
        licence_texts={},
        templates=[*named],
    )


def _licence(file: GGUFFile) -> str:
    """Return the license that a file names; empty if it names none."""
    entries = ("general.license", "general.license.name")
    for entry in entries:
        if not is_plain(file.get(entry, "")):
            raise UserError(f"{file.path} has {entry}={file.get(entry)}, which is no text")
    licence, name = (file.get(entry, "") for entry in entries)
    return name if licence == "other" and name else licence


def _special_tokens(file: GGUFFile) -> dict[str, str | None]:
    """Return the tokens of a file by their role."""
    tokens = file.get("tokenizer.ggml.tokens", ())
    special = {}
    for name, entry in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        id = file.get(f"tokenizer.ggml.{entry}_token_id")
        special[f"{name}_token"] = tokens[id] if id is not None and 0 <= id < len(tokens) else None
    return special
