"""The pages of the documentation, and what they show to be run."""

import re
import shlex
from pathlib import Path

from conftest import ROOT

OF_TRACKS = [page for page in sorted((ROOT / "tracks").rglob("*.md")) if page.name != "card.md"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *OF_TRACKS]
HARDWARE = "# hardware: "  # behind a command that this machine need not be able to run


def blocks(page: Path):
    """(language, content) of the fenced blocks of a page."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def shown(script: str):
    """The words of each `bash SCRIPT ...` that some page shows, once each."""
    lines = [line for page in PAGES for _, content in blocks(page) for line in content.splitlines()]
    calls = [line for line in lines if line.startswith(f"bash {script}") and HARDWARE not in line]
    return [list(words) for words in dict.fromkeys(tuple(shlex.split(line, comments=True)) for line in calls)]
