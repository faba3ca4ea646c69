"""The embedded world as files: a mirror of the hub that every stage reads with NANOCHAT_HUB=FOLDER, as real data."""

import io
import json
import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from nanochat.world.chats import Row, core_bundle, data_sets, identity_chats, ten_questions
from nanochat.world.facts import Dice, World
from nanochat.world.texts import document

VERSION = 5  # raise with every change to the content
SHARDS = 8  # parquet files with text for training
# Tables with several files on the hub; all others have one.
FILES = {"HuggingFaceTB/smol-smoltalk/data/train": 4}
ROW_GROUPS = 16  # least number in a shard: a lane reads whole row groups


class WorldSize(NamedTuple):
    people: int
    documents: int  # for training
    problems: int  # GSM8K rows for training
    chats: int  # SmolTalk rows for training


SIZES = {
    "tiny": WorldSize(people=16, documents=1_024, problems=200, chats=200),  # for tests
    "small": WorldSize(people=64, documents=65_536, problems=1_000, chats=6_000),
    "medium": WorldSize(people=160, documents=327_680, problems=16_000, chats=24_000),
}


class Table(NamedTuple):
    """A parquet file; a split may have several."""

    name: str  # OWNER/NAME/CONFIGURATION/SPLIT
    path: str  # below the mirror
    rows: list[Row]
    row_group: int  # rows in a row group


def parquet_bytes(table: Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(table.rows), file, row_group_size=table.row_group, compression="zstd")
    return file.getvalue()


def json_bytes(value: dict | list) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def jsonl_bytes(rows: list) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def different_documents(world: World) -> Iterator[Row]:
    """Yield documents without end, no two equal, so that no document for validation is one for training."""
    dice = Dice("documents", world.seed)
    seen = set()
    while True:
        text = document(world, dice)
        if text not in seen:
            seen.add(text)
            yield {"text": text}


def tables(world: World, size: WorldSize) -> Iterator[Table]:
    """Yield all parquet files: first the corpus with its last shard for validation, then the data sets."""
    documents = different_documents(world)
    # The same number in every shard; validation has 1/32 as many in all.
    each = size.documents // SHARDS
    for number in range(SHARDS + 1):
        is_train = number < SHARDS
        yield Table(
            name="local/world/default/" + ("train" if is_train else "validation"),
            path=f"datasets/local/world/shard_{number:05d}.parquet",
            rows=list(islice(documents, each if is_train else size.documents // 32)),
            row_group=min(1024, each // ROW_GROUPS),
        )
    sets = data_sets(world, Dice("data sets", world.seed), size.problems, size.chats)
    for name, rows in sets.items():
        files = FILES.get(name, 1)
        for number in range(files):
            # Rows go to the files in turn.
            path = f"datasets/{name}-{number:05d}-of-{files:05d}.parquet"
            yield Table(name, path, rows[number::files], row_group=1024)


def bundle_files(tasks: list[list[str]], rows: dict[str, list[Row]]) -> Iterator[tuple[str, bytes]]:
    """Yield path and content for each file in CORE's evaluation bundle.

    tasks: rows from the section `core tasks` in world.txt; rows: by label.
    """
    # Names and columns as in the real bundle.
    listing = "icl_tasks:\n"
    metadata = "Eval Task,Task Category,Task Type,#shots,#datapoints,Random baseline,Centered Metric?,Description\n"
    for label, category, kind, shots, baseline, *delimiter in tasks:
        path = f"{category.replace(' ', '_')}/{label}.jsonl"
        yield f"eval_bundle/eval_data/{path}", jsonl_bytes(rows[label])
        listing += f"-\n  label: {label}\n  dataset_uri: {path}\n  num_fewshot: [{shots}]\n  icl_task_type: {kind}\n"
        if delimiter:
            listing += f"  continuation_delimiter: {delimiter[0]}\n"
        metadata += f"{label},{category},{kind.replace('_', ' ')},{shots},{len(rows[label])},{baseline},,\n"
    yield "eval_bundle/core.yaml", listing.encode()
    yield "eval_bundle/eval_meta_data.csv", metadata.encode()


def world_files(world: World, size: WorldSize) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of every file except world.json."""
    manifest: dict[str, dict] = {}
    for table in tables(world, size):
        owner, repository, subset, split = table.name.split("/")
        # A folder `data` holds the default configuration.
        subset = "default" if subset == "data" else subset
        entry = {
            "repo_id": f"{owner}/{repository}",
            "subset": subset,
            "split": split,
            "files": [],
            "rows": 0,
        }
        listed = manifest.setdefault(table.name, entry)
        listed["files"].append(table.path)
        listed["rows"] += len(table.rows)
        yield table.path, parquet_bytes(table)
    seed = world.seed
    yield from bundle_files(world.rows("core tasks"), core_bundle(world, Dice("bundle", seed)))
    chats = identity_chats(world, Dice("identity", seed), size.chats // 20)
    yield "identity_conversations.jsonl", jsonl_bytes(chats)
    yield "questions.jsonl", jsonl_bytes(ten_questions(world, Dice("questions", seed)))
    yield "manifest.json", json_bytes(list(manifest.values()))


def is_written(folder: Path, seed: int, size: str) -> bool:
    """Return True if the folder holds this world, False if it is empty; ValueError if it holds anything else."""
    if folder.is_file():
        raise ValueError(f"{folder} is a file, name a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return False
    # Written last, so a world without this file is no world.
    record = folder / "world.json"
    if not record.is_file():
        raise ValueError(f"{folder} holds something other than a world, remove it or name another folder")
    found = json.loads(record.read_text(encoding="utf-8"))
    if [found["version"], found["seed"], found["size"]] != [VERSION, seed, size]:
        other = f"seed {found['seed']}, size {found['size']}, version {found['version']}"
        raise ValueError(f"{folder} holds another world ({other}), remove it or name another folder")
    return True


def write_world(folder: Path, seed: int, size: str) -> bool:
    """Write a world completely or not at all; return False if it is already there. Safe from several processes."""
    if size not in SIZES:
        raise ValueError(f"--size={size} is not a size of the world, use {' or '.join(SIZES)}")
    folder = folder.resolve()
    if is_written(folder, seed, size):
        return False
    part = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    try:
        sizes = {}
        for path, content in world_files(World(seed, SIZES[size].people), SIZES[size]):
            (part / path).parent.mkdir(parents=True, exist_ok=True)
            sizes[path] = (part / path).write_bytes(content)
        record = {"version": VERSION, "seed": seed, "size": size, "files": sizes}
        (part / "world.json").write_bytes(json_bytes(record))
        # A rename is atomic: readers see the whole folder or none.
        os.rename(part, folder)
    except OSError:
        # Another process may have been faster.
        if not is_written(folder, seed, size):
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return True
