"""What a model's files say of its license: the name in its card, and the texts that the license asks to pass on."""

import sys
from pathlib import Path
from typing import Any

import yaml

from nanochat.log import print0
from tracks.bases.special_names import is_text

LICENCES = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")  # what files begin with that a license asks to pass on
LARGEST_LICENCE = 1_000_000  # bytes of such a file


def card_licence(card: Path) -> tuple[str, str]:
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
    return ", ".join(filter(is_plain, names)), link if is_plain(link) else ""


def is_plain(value: Any) -> bool:
    """Return True for a text that can be written to a file."""
    return isinstance(value, str) and is_text(value)


def is_licence(name: str) -> bool:
    """Return True for a file of the topmost folder that a license asks to pass on."""
    return "/" not in name and name.upper().startswith(LICENCES)


def licence_texts(folder: Path) -> dict[str, str]:
    """Return the texts that a license asks to pass on, by the names of their files; a line names what is none."""
    texts = {}
    for path in sorted(folder.iterdir()):
        if not is_licence(path.name) or not path.is_file():
            continue
        try:
            if path.stat().st_size > LARGEST_LICENCE or not is_text(path.name):
                raise ValueError
            texts[path.name] = path.read_bytes().decode("utf-8")  # with the ends of its lines
        except ValueError:  # of another encoding, too
            print0(f"import: without {path.name!a}, which is no text of at most 1 MB", file=sys.stderr)
    return texts
