"""The pages of the documentation, and what they show to be run."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from conftest import ROOT

OF_TRUNK = [
    *(ROOT / f"{name}.md" for name in ("README", "AGENTS", "CONTRIBUTING")),
    *sorted((ROOT / "docs").glob("*.md")),
]
# tracks/README.md is their index. A card is written by a run, which links the pictures beside it.
OF_TRACKS = sorted(page for page in (ROOT / "tracks").glob("*/*.md") if page.name != "card.md")
HARDWARE = "# hardware: "  # behind a command that this machine need not be able to run
# What sets up the very environment these tests run in; test_setup, test_speedrun, test_runs and test_evidence run them.
ELSEWHERE = ("bash speedrun.sh", "bash runs/test.sh", "bash runs/setup.sh", "source .venv/bin/activate", "uv ")
ELSEWHERE += tuple(f"bash runs/{name}.sh" for name in ("cpu", "miniseries", "scaling_laws", "evidence"))


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, content) of the fenced blocks of a page."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def shown(script: str, pages: Iterable[Path]) -> list[list[str]]:
    """The words of each `bash SCRIPT ...` that some page shows, once each."""
    lines = [line for page in pages for _, content in blocks(page) for line in content.splitlines()]
    calls = [line for line in lines if line.startswith(f"bash {script}") and HARDWARE not in line]
    return [list(words) for words in dict.fromkeys(tuple(shlex.split(line, comments=True)) for line in calls)]


def dead_links(page: Path) -> list[str]:
    """Relative links of a page that lead nowhere. What stands in backticks is code, not a link: `a[0](1)`."""
    text = re.sub(r"`[^`\n]+`", "code", page.read_text(encoding="utf-8"))
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    return [target for target in targets if not (page.parent / target).exists()]


def commands(page: Path) -> list[list[str]]:
    """What `python` gets in the commands and programs of a page that this machine can run, in their order."""
    found = []
    for language, content in blocks(page):
        if language == "python":
            found.append(["-c", content])
            continue
        assert language == "bash", f"{name_of(page)} shows a block of {language}, which nothing runs"
        for line in content.splitlines():
            words = shlex.split(line, comments=True)
            if not words or line.startswith(ELSEWHERE) or HARDWARE in line:
                continue
            assert words[0] == "python", f"{name_of(page)}: nothing runs `{line}`"
            found.append(words[1:])
    return found
