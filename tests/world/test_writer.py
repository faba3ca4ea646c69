"""The world as files: pinned content, a corpus, written completely or not at all."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import ROOT

from nanochat.data.corpus import open_corpus
from nanochat.paths import write_json
from nanochat.world import VERSION, writer
from nanochat.world.writer import SIZES, write_world

# Hash of the tiny world of seed 1. With a change of content, raise VERSION and put the new hash here.
PINNED = "d88afc941ed1509beb332f31627b1270e5fb62902b4facc77e428f00d23bb395"


def files_of(folder: Path):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_content_is_pinned(tiny_world) -> None:
    """The hash of rows and texts, whatever compressed them."""
    digest = hashlib.sha256()
    for path in sorted(tiny_world.rglob("*.*")):
        if path.suffix == ".parquet":
            digest.update(json.dumps(pq.read_table(path).to_pylist()).encode())
        elif path.name != "world.json":
            digest.update(path.read_bytes())
    assert digest.hexdigest() == PINNED


def test_another_seed_is_another_world_with_the_same_files(tiny_world, tmp_path) -> None:
    write_world(tmp_path / "two", seed=2, size="tiny")
    one, two = files_of(tiny_world), files_of(tmp_path / "two")
    assert one.keys() == two.keys()
    same = {path for path in one if one[path] == two[path]}
    assert same == {"core/core.yaml", "core/eval_meta_data.csv"}


def test_it_is_a_corpus_whose_validation_text_is_not_trained_on(tiny_world, monkeypatch) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tiny_world.parent))
    (tiny_world.parent / "world-7").symlink_to(tiny_world)
    corpus = open_corpus("world-7")
    train, val = ([text for batch in corpus.batches(split) for text in batch.to_pylist()] for split in ("train", "val"))
    assert len(train) == SIZES["tiny"].documents == 32 * len(val)
    assert len({*train, *val}) == len(train) + len(val)
    # Lanes read whole row groups, so there are enough of them.
    shards = sorted((tiny_world / "text").glob("*.parquet"))
    assert sum(pq.read_metadata(shard).num_row_groups for shard in shards[:-1]) >= 64


def test_ranks_that_start_at_once_find_one_world(tmp_path, tiny_world) -> None:
    command = [sys.executable, "-m", "nanochat.world", f"--out={tmp_path / 'world'}", "--size=tiny"]
    both = [subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}) for seed in "78"]
    assert [child.wait(timeout=120) for child in both] == [0, 0]
    assert files_of(tmp_path / "world") == files_of(tiny_world)


def test_a_failure_half_way_leaves_nothing(tmp_path, monkeypatch) -> None:
    def full(*arguments) -> None:
        assert not (tmp_path / "world").exists()  # nobody sees a world before it is complete
        raise OSError("no space left")

    monkeypatch.setattr(writer, "write_bundle", full)
    with pytest.raises(OSError, match="no space"):
        write_world(tmp_path / "world", 1, "tiny")
    assert not list(tmp_path.iterdir())


def test_a_world_of_an_older_version_is_written_again(base, tiny_world) -> None:
    old = base / "world"
    write_json(old / "world.json", {"version": VERSION - 1, "seed": 1, "size": "tiny"})
    (old / "other.txt").write_text("of the older version")
    open_corpus("world")  # a process of its own writes it
    assert files_of(old) == files_of(tiny_world)
    assert {path.name for path in base.iterdir()} == {"world", "world.lock"}
