"""Hubs for the tests of tasks: a small one of rows written here, the mirror of real data if there is one, and rows."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, plant_world

from tasks import TASKS

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

    def write(name: str, *tables: list[dict], split: str = "test", schema: pa.Schema | None = None):
        paths = [tmp_path / "hub" / str(file) for file in TASKS[name].files(split)]
        for number, path in enumerate(paths):
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(tables[number % len(tables)], schema), path)
        return paths[0]

    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "hub"))
    return write
