"""README.md and AGENTS.md list the files to read first, with their length as it is, give or take a few lines."""

import re

import pytest
from conftest import ROOT

ROW = re.compile(r"^\| `([\w/]+\.(?:py|sh))` \| (\d+) \|", re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "AGENTS.md"])
def test_the_spine_is_listed_with_its_length(page) -> None:
    rows = ROW.findall((ROOT / page).read_text(encoding="utf-8"))
    assert len(rows) == 20
    total = re.search(r"^\| together \| ([\d,]+) \|", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert total
    assert int(total[1].replace(",", "")) == pytest.approx(sum(int(lines) for _, lines in rows), rel=0.01)
    for name, lines in rows:
        length = len((ROOT / name).read_text(encoding="utf-8").splitlines())
        assert int(lines) == pytest.approx(length, rel=0.1, abs=10), f"{page}: {name} has {length} lines"


def test_what_agents_read_fits_a_screen_or_two() -> None:
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) <= 60
