"""The recipes of docs/changing.md: each patch applies to a copy of the code, and the commands below it run there."""

import re
import shlex
import shutil
import subprocess

import pytest
from copies import BEING_COMPILED
from pages import ROOT

PAGE = (ROOT / "docs/changing.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^## (.*?)\n.*?^```diff\n(.*?)^```\n+```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_has_recipes() -> None:
    assert len(RECIPES) == PAGE.count("```diff") >= 5


@pytest.mark.parametrize(("title", "patch", "commands"), RECIPES, ids=[title for title, *_ in RECIPES])
def test_a_recipe_works(title, patch, commands, tmp_path, python) -> None:
    for folder in ("nanochat", "scripts", "tasks", "tracks", "tests", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=BEING_COMPILED)
    for file in ("pyproject.toml", "README.md", "conftest.py"):
        shutil.copy(ROOT / file, tmp_path)
    undo = ["patch", "-p1", "--reverse", "--dry-run", "--force"]
    if subprocess.run(undo, cwd=tmp_path, input=patch, capture_output=True, text=True).returncode == 0:
        pytest.skip("the code has this change already")
    applied = subprocess.run(["patch", "-p1", "--forward"], cwd=tmp_path, input=patch, capture_output=True, text=True)
    assert applied.returncode == 0, applied.stdout + applied.stderr
    for line in commands.splitlines():
        command = shlex.split(line)
        assert command[0] == "python"
        python(*command[1:], cwd=tmp_path)
