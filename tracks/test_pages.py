"""The pages of the tracks: each has a README, what a page shows works, and no link is dead."""

import re

import pytest
from conftest import ROOT
from pages import OF_TRACKS, commands, dead_links, name_of, shown

TRACKS = sorted(path.parent.name for path in (ROOT / "tracks").glob("*/__init__.py"))


@pytest.mark.parametrize("track", TRACKS)
def test_a_track_has_a_readme_which_the_index_links(track) -> None:
    readme = (ROOT / "tracks" / track / "README.md").read_text(encoding="utf-8")
    assert "\n```bash\n" in readme
    assert f"[{track}]({track}/README.md)" in (ROOT / "tracks/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", OF_TRACKS, ids=name_of)
def test_what_a_page_shows_works(page, reader) -> None:
    for words in commands(page):
        reader.run(*words)


@pytest.mark.parametrize("page", [*OF_TRACKS, *sorted((ROOT / "tracks").glob("*/card.md"))], ids=name_of)
def test_links_lead_somewhere(page) -> None:
    assert dead_links(page) == []


def test_the_commands_of_the_main_job_can_be_planned(here, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)  # restored after --cwd
    for _, _, *flags in shown("speedrun.sh", OF_TRACKS):
        assert "\n== plan\n" in here("scripts.plan", *flags, f"--cwd={tmp_path}").stdout


def test_old_commands_name_modules_that_are_here() -> None:
    """tests/scripts/test_moved.py and tests/test_runs.py ask for the sentences."""
    named = set()
    for path in (*(ROOT / "scripts/moved").glob("*.py"), *(ROOT / "runs").glob("*.sh")):
        named |= set(re.findall(r"\btracks\.\w+\.\w+\b", path.read_text(encoding="utf-8")))
    assert len(named) >= 20
    of_tracks_here = [name for name in named if name.split(".")[1] in TRACKS]
    assert [name for name in of_tracks_here if not ROOT.joinpath(*name.split(".")).with_suffix(".py").exists()] == []
