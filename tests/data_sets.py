"""For tests of tasks: fixtures that their conftest.py imports, and what holds for every data set.

Hubs: a small one of rows written here, the mirror of real data if there is one, and rows.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, plant_world

from tasks import JUDGED, TASKS
from tasks.common import DataSet, unchanged
from tasks.multiple_choice import MultipleChoice

MIRROR = ROOT.parent / "shared/hub"


@pytest.fixture(autouse=True)
def base(base: Path, tiny_world: Path):
    """The base folder, with a world: words to spell come from its text."""
    return plant_world(base, tiny_world)


@pytest.fixture
def small_hub(fake_hub: Path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_HUB", str(fake_hub))
    return fake_hub


@pytest.fixture
def mirror(monkeypatch):
    if not MIRROR.is_dir():
        pytest.skip("no mirror of real data on this machine")
    monkeypatch.setenv("NANOCHAT_HUB", str(MIRROR))
    return MIRROR


@pytest.fixture(params=["small_hub", "mirror"])
def hub(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def write_rows(tmp_path: Path, monkeypatch):
    """Writes the files of a task's split, one table after the other; returns the first file."""

    def write(task: str | DataSet, *tables: list[dict], split: str = "test", schema: pa.Schema | None = None):
        data = TASKS[task] if isinstance(task, str) else task
        paths = [tmp_path / "hub" / str(file) for file in data.files(split)]
        for number, path in enumerate(paths):
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(tables[number % len(tables)], schema), path)
        return paths[0]

    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "hub"))
    return write


def check_data_set(name: str, data: DataSet) -> None:
    """Assert what holds for every row of a table of data sets."""
    assert 0 <= data.baseline < 1
    assert data.task.kind in ("categorical", "generative", "program", "chat")
    assert (name in JUDGED) == (data.task.kind != "chat")
    assert name not in JUDGED or "test" in data.split_names, f"{name}: evaluations ask for the split test"


def listed_tasks(page: Path, title: str):
    """Return the names in the first column of a table of tasks, sorted."""
    table = page.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return sorted(re.findall("`(.*?)`", " ".join(rows)))


def check_layouts(page: Path, data_sets: Iterable[DataSet]) -> None:
    """Assert that a page's table of layouts has each function that converts multiple choice."""
    layouts = page.read_text(encoding="utf-8").partition("| convert |")[2].partition("\n\n")[0]
    converters = {data.convert for data in data_sets if issubclass(data.task, MultipleChoice)}
    converters -= {unchanged}  # some need none
    assert set(re.findall(r"^\| `(\w+)` ", layouts, re.MULTILINE)) == {convert.__name__ for convert in converters}
