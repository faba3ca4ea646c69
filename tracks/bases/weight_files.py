"""The weights of a model on disk: which files of a folder have them, and whether they are those of its config."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from nanochat.errors import UserError
from nanochat.models import new_model
from tracks.bases.families import COMPUTED, FAMILIES
from tracks.bases.model import PublicConfig
from tracks.bases.reading import read_object

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
HEAD = "lm_head.weight"
PLAIN_DTYPES = ("F64", "F32", "F16", "BF16")  # that say what a weight is without another file
# Files of weights that may hold code.
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def shards(folder: Path) -> list[Path]:
    """Return the files of a folder's weights; UserError if one is missing."""
    if (folder / SINGLE).is_file():  # as `transformers` looks: beside it an index is what another save has left
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        found = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        others = f", only {found[0]}, which may hold code" if found else ""
        raise UserError(f"{folder} has no weights as safetensors{others}")
    names = indexed(folder / INDEX)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder} has not all of its weights: {', '.join(missing)} is missing")
    return [folder / name for name in names]


def indexed(index: Path) -> list[str]:
    """Return the names of the files in an index of weights."""
    places = (read_object(index) or {}).get("weight_map")
    names = sorted(set(map(str, places.values()))) if isinstance(places, dict) else []
    if not names or any(Path(name).name != name for name in names):
        raise UserError(f"{index} names no files of this folder")
    return names


class Stored(NamedTuple):
    """A tensor in a file of weights."""

    path: Path
    shape: tuple[int, ...]
    dtype: str  # as safetensors names it


def stored_tensors(files: Sequence[Path]) -> dict[str, Stored]:
    """Return every tensor in files of weights, by its name."""
    found = {}
    for path in files:
        try:
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118  # not a mapping
                    part = file.get_slice(name)
                    found[name] = Stored(path, tuple(part.get_shape()), part.get_dtype())
        except SafetensorError as error:
            raise UserError(f"{path} cannot be read: {error}") from None
    return found


def check_dtypes(tensors: Mapping[str, Stored], names: Iterable[str]) -> None:
    """Raise a UserError if a weight is stored as whole numbers or in 8 bits: its scale is somewhere else."""
    for name in names:
        path, _, dtype = tensors[name]
        if dtype not in PLAIN_DTYPES:
            raise UserError(
                f"{path} has {name} as {dtype}, and only {', '.join(PLAIN_DTYPES)} can be read: save the model without"
                " quantization"
            )


def has_another_head(stored: Mapping[str, Stored]) -> bool:
    """Return True if a head is stored beside the embedding, and is not the same."""
    names = (HEAD, "model.embed_tokens.weight")
    if not all(name in stored for name in names):
        return False
    tensors = []
    for name in names:
        with safe_open(stored[name].path, "pt") as file:
            tensors.append(file.get_tensor(name).float())
    return not torch.equal(*tensors)


def check_tensors(
    place: Path, config: PublicConfig, stored: Mapping[str, tuple[int, ...]], names: Mapping[str, str]
) -> None:
    """Compare what is stored with the config; UserError for the first difference.

    names: of all parameters, ours -> the name there.
    """
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
    said = "its metadata says" if place.is_file() else "config.json says"  # of a GGUF file and a folder
    for ours, there in names.items():
        shape = tuple(model.get_parameter(ours).shape)
        if ours in ("embed.weight", "head.weight"):
            shape = (config.vocab_size, config.width)  # ours are padded
        if stored[there] != shape:
            raise UserError(f"{place}: {there} has the shape {stored[there]}, and {said} {shape}")
