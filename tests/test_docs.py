"""The commands and the Python that the documentation shows, run as they stand; tracks/test_pages.py is about tracks."""

import re
import subprocess

import pytest
from conftest import ROOT
from pages import OF_TRUNK, commands, dead_links, name_of

from nanochat.world.chats import ten_questions
from nanochat.world.facts import World
from nanochat.world.writer import SIZES

# test_changing.py runs the commands of changing.md, each on a patched copy of the code.
COMMANDS_RUN_HERE = [page for page in OF_TRUNK if page.name != "changing.md"]


@pytest.mark.parametrize("page", COMMANDS_RUN_HERE, ids=name_of)
def test_what_a_page_shows_works(page, reader) -> None:
    for words in commands(page):
        reader.run(*words)


@pytest.mark.parametrize("page", OF_TRUNK, ids=name_of)
def test_links_lead_somewhere(page) -> None:
    assert dead_links(page) == []


def test_the_readme_shows_the_questions_of_the_first_world_and_the_summary_of_the_card() -> None:
    """The card in the working tree may be a newer one: every run of the main job writes it."""
    shown = re.findall(r"^\d+\. (.*) \*(.*)\*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    asked = ten_questions(World(1, SIZES["small"].people))
    assert shown == [(row["question"], row["answer"]) for row in asked]
    command = ["git", "-c", "safe.directory=*", "show", "HEAD:report.md"]
    committed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if committed.returncode:
        pytest.skip(f"no committed report.md to compare with: {committed.stderr.strip()}")
    readme, card = (ROOT / "README.md").read_text(encoding="utf-8"), committed.stdout
    tables = [re.findall(r"^\| Metric .*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)[-1] for text in (readme, card)]
    assert tables[0] == tables[1]
