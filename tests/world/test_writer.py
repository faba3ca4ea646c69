"""The world as a mirror of the hub: pinned content, columns of the real data sets, written completely or not at all."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nanochat.data.corpus import open_corpus
from nanochat.world import writer
from nanochat.world.writer import SIZES, is_written, write_world

ROOT = Path(__file__).resolve().parents[2]
# Hash of the tiny world of seed 1. With a change of content, raise VERSION and put the new hash here.
PINNED = "2559cb6b3baeaaae34449280669b28a869e6eb51d7e556ce4d1a6f1a0600cbaf"


@pytest.fixture(scope="module")
def mirror(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world") / "tiny"
    assert write_world(folder, seed=1, size="tiny")
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def content_hash(folder: Path) -> str:
    """The hash of rows and texts, whatever compressed them."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.*")):
        if path.suffix == ".parquet":
            digest.update(json.dumps(pq.read_table(path).to_pylist()).encode())
        elif path.is_file() and path.name != "world.json":  # has sizes of compressed files
            digest.update(path.read_bytes())
    return digest.hexdigest()


# ---- the content ----


def test_the_content_is_pinned(mirror):
    assert content_hash(mirror) == PINNED


def test_another_seed_is_another_world_of_the_same_shape(mirror, tmp_path):
    write_world(tmp_path / "two", seed=2, size="tiny")
    one, two = (json.loads((folder / "manifest.json").read_text()) for folder in (mirror, tmp_path / "two"))
    assert one == two
    for path, content in files_of(mirror).items():
        same = path in ("manifest.json", "eval_bundle/core.yaml", "eval_bundle/eval_meta_data.csv")
        assert ((tmp_path / "two" / path).read_bytes() == content) == (same or "humaneval" in path), path


# ---- the layout of a hub mirror ----

# The columns of the real data sets.
CHOICES = "struct<text: list<element: string>, label: list<element: string>>"
MMLU = {"question": "string", "subject": "string", "choices": "list<element: string>", "answer": "int64"}
COLUMNS = {
    "allenai/ai2_arc/ARC-Easy": {"id": "string", "question": "string", "choices": CHOICES, "answerKey": "string"},
    "allenai/ai2_arc/ARC-Challenge": {"id": "string", "question": "string", "choices": CHOICES, "answerKey": "string"},
    "cais/mmlu/all": MMLU,
    "openai/gsm8k/main": {"question": "string", "answer": "string"},
    "deepmind/aqua_rat/raw": {
        "question": "string", "options": "list<element: string>", "rationale": "string", "correct": "string",
    },
    "openai/openai_humaneval/openai_humaneval": dict.fromkeys(
        ("task_id", "prompt", "canonical_solution", "test", "entry_point"), "string"
    ),
    "HuggingFaceTB/smol-smoltalk/data": {
        "messages": "list<element: struct<content: string, role: string>>", "source": "string",
    },
    "local/world": {"text": "string"},
}  # fmt: skip


def schema(path: Path) -> dict[str, str]:
    return {field.name: str(field.type) for field in pq.read_schema(path)}


def test_columns_are_the_real_ones(mirror):
    found = {path.parent.relative_to(mirror / "datasets").as_posix(): path for path in mirror.rglob("*.parquet")}
    assert {name: schema(path) for name, path in found.items()} == COLUMNS


def test_the_manifest_lists_every_data_set(mirror):
    listed = json.loads((mirror / "manifest.json").read_text())
    files = [path for row in listed for path in row["files"]]
    assert sorted(files) == sorted(path.relative_to(mirror).as_posix() for path in mirror.rglob("*.parquet"))
    for row in listed:
        assert row["rows"] == sum(pq.read_metadata(mirror / path).num_rows for path in row["files"])
        assert all(path.startswith(f"datasets/{row['repo_id']}/") for path in row["files"])
    subsets = {(row["repo_id"], row["subset"], row["split"]) for row in listed}
    assert {("cais/mmlu", "all", "auxiliary_train"), ("HuggingFaceTB/smol-smoltalk", "default", "test")} <= subsets


def test_lanes_find_enough_row_groups(mirror):
    shards = sorted((mirror / "datasets/local/world").glob("*.parquet"))
    footers = [pq.read_metadata(shard) for shard in shards]
    assert sum(footer.num_row_groups for footer in footers[:-1]) >= 64
    assert all(footer.row_group(g).num_rows <= 1024 for footer in footers for g in range(footer.num_row_groups))
    assert all(footer.row_group(0).column(0).compression == "ZSTD" for footer in footers)


def test_it_is_a_corpus_whose_validation_text_is_not_trained_on(mirror, monkeypatch):
    monkeypatch.setenv("NANOCHAT_HUB", str(mirror))
    corpus = open_corpus("world")
    train, val = ([text for batch in corpus.batches(split) for text in batch.to_pylist()] for split in ("train", "val"))
    assert len(train) == SIZES["tiny"].documents == 32 * len(val)
    assert len({*train, *val}) == len(train) + len(val)


# ---- writing it completely or not at all ----


def test_a_failure_half_way_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments):
        assert not (tmp_path / "world").exists()  # nobody sees a world before it is complete
        raise OSError("no space left")

    monkeypatch.setattr(writer, "bundle_files", full)
    with pytest.raises(OSError, match="no space"):
        write_world(tmp_path / "world", 1, "tiny")
    assert not list(tmp_path.iterdir())


def test_a_faster_process_wins(mirror, tmp_path, monkeypatch):
    rename = os.rename

    def rename_late(part, folder):
        shutil.copytree(mirror, folder)
        rename(part, folder)

    monkeypatch.setattr(os, "rename", rename_late)
    write_world(tmp_path / "world", 1, "tiny")
    assert is_written(tmp_path / "world", 1, "tiny")
    assert os.listdir(tmp_path) == ["world"]
