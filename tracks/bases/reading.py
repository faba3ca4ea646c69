"""Files and values of a public model; what cannot be read is one sentence, with the place that it is about."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.paths import read_json
from tracks.bases.special_names import is_text


@contextmanager
def about(place: Path) -> Iterator[None]:
    """Put a place before the sentence of a UserError."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{place}: {error}") from None


@contextmanager
def reading_metadata(path: Path) -> Iterator[None]:
    """Make a UserError of whatever is raised by a value of another type than it is read as."""
    try:
        yield
    except UserError:
        raise
    # A list where a number is due, a text, an empty list: errors of many types.
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{path} has metadata that cannot be read: {reason}") from None


def read_text(path: Path) -> str:
    """Return the text of a file of a folder."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is damaged: it is no UTF-8") from None


def read_object(path: Path) -> Record | None:
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


def token_ids(name: str, values: Sequence[Any]) -> list[int]:
    """Return token ids that a config has by a name, each alone or as a list; UserError for anything else."""
    flat = [id for value in values if value is not None for id in (value if isinstance(value, list) else [value])]
    for id in flat:
        if type(id) is not int:
            raise UserError(f"its {name} has {id!r}, which is no id")
    return flat
