"""The commands and the Python that the documentation shows, run as they stand."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import checked, plant_world
from pages import HARDWARE, PAGES, ROOT, blocks

from nanochat.world.chats import ten_questions
from nanochat.world.facts import World
from nanochat.world.writer import SIZES

# What sets up the very environment these tests run in; test_setup.py, test_speedrun.py and test_runs.py run them.
ELSEWHERE = ("bash speedrun.sh", "bash runs/test.sh", "source .venv/bin/activate")
ELSEWHERE += tuple(f"bash runs/{name}.sh" for name in ("cpu", "miniseries", "scaling_laws"))


# test_changing.py runs the commands of changing.md, each on a patched copy of the code.
COMMANDS_RUN_HERE = [page for page in PAGES if page.name != "changing.md"]


@pytest.fixture
def folders(base: Path, text_folder: Path, tmp_path: Path, tiny_world: Path):
    """Folders that the commands read: a user's text, and a world."""
    shutil.copytree(text_folder, tmp_path / "my-text")
    plant_world(base, tiny_world)


@pytest.mark.parametrize("page", COMMANDS_RUN_HERE, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_shows_works(page, quick, folders, base, fake_hub, tmp_path):
    environment = os.environ | {"NANOCHAT_HUB": str(fake_hub), "NANOCHAT_BASE_DIR": str(base)}

    def run(*words: str):
        command = [quick, *words]
        checked(subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True), 0)

    for language, content in blocks(page):
        if language == "python":
            run("-c", content)
            continue
        assert language == "bash", f"{page.name} shows a block of {language}, which nothing runs"
        for line in content.splitlines():
            command = shlex.split(line, comments=True)
            if not command or line.startswith(ELSEWHERE) or HARDWARE in line:
                continue
            assert command[0] == "python", f"{page.name}: nothing runs `{line}`"
            run(*command[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_the_readme_shows_the_questions_of_the_first_world_and_the_summary_of_the_card():
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
