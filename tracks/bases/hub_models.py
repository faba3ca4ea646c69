"""A model of the hub, or of a mirror, as a folder on this machine."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nanochat.data.hub import HubError, HubFile, fetch, mirrored, repo_files
from nanochat.errors import UserError
from nanochat.log import print0
from tracks.bases.families import read_config
from tracks.bases.licences import is_licence
from tracks.bases.reading import about, read_object
from tracks.bases.tokenizer_files import MORE_TEMPLATES
from tracks.bases.weight_files import INDEX, SINGLE, indexed


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
        settings = read_object(config) or {}
        with about(config.parent):
            read_config(settings)
    files = _with_one_set_of_weights(files)
    places = zip(files, fetch(files), strict=True)
    folders = {path.parents[file.path.count("/")] for file, path in places}
    if len(folders) > 1:
        raise UserError(f"files of hub:{name} on this machine are of several revisions: name one, hub:{repo}@REVISION")
    folder = folders.pop()
    _fetch_licences([file for file in found if is_licence(file.path)], folder)
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
    """Return files without weights that `shards` would not read, as those of another precision."""
    names = {file.path for file in files}
    weights = {SINGLE}
    if SINGLE not in names and INDEX in names:
        [index] = fetch([file for file in files if file.path == INDEX])
        weights = set(indexed(index))
    return [file for file in files if file.path in weights or not file.path.endswith(".safetensors")]
