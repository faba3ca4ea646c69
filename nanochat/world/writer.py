"""The embedded world as files, in a folder:

world.json            version, seed and size
text/                 shards of documents, the last one for validation
tasks/NAME-SPLIT      tables of questions and conversations
core/                 a bundle of CORE tasks, laid out as an eval_bundle
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock

from nanochat.errors import UserError
from nanochat.paths import new_folder, read_json, write_jsonl
from nanochat.world import VERSION
from nanochat.world.chats import Rows, core_bundle, tables
from nanochat.world.facts import World
from nanochat.world.texts import document

SHARDS = 8  # parquet files with text for training
ROW_GROUPS = 16  # least number in a shard: a lane reads whole row groups


@dataclass(frozen=True)
class WorldSize:
    people: int
    documents: int  # for training
    problems: int  # for training
    chats: int  # for training


Size = Literal["tiny", "small", "medium"]  # the keys
SIZES = {
    "tiny": WorldSize(people=16, documents=1_024, problems=200, chats=200),  # for tests
    "small": WorldSize(people=64, documents=65_536, problems=1_000, chats=6_000),
    "medium": WorldSize(people=160, documents=327_680, problems=16_000, chats=24_000),
}


def write_parquet(path: Path, rows: Rows, row_group: int) -> None:
    import pyarrow as pa  # slow
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=row_group, compression="zstd")


def write_bundle(folder: Path, tasks: list[list[str]], rows: dict[str, Rows]) -> None:
    """Write CORE's evaluation bundle with the file names and columns of the real one.

    tasks: rows from the section `core tasks` in world.txt; rows: by label.
    """
    listing = "icl_tasks:\n"
    metadata = "Eval Task,Task Category,Task Type,#shots,#datapoints,Random baseline,Centered Metric?,Description\n"
    for label, category, kind, shots, baseline, *delimiter in tasks:
        path = f"{category.replace(' ', '_')}/{label}.jsonl"
        write_jsonl(folder / "eval_data" / path, rows[label])
        listing += f"-\n  label: {label}\n  dataset_uri: {path}\n  num_fewshot: [{shots}]\n  icl_task_type: {kind}\n"
        if delimiter:
            listing += f"  continuation_delimiter: {delimiter[0]}\n"
        metadata += f"{label},{category},{kind.replace('_', ' ')},{shots},{len(rows[label])},{baseline},,\n"
    (folder / "core.yaml").write_text(listing, encoding="utf-8")
    (folder / "eval_meta_data.csv").write_text(metadata, encoding="utf-8")


def ensure_world(folder: Path, seed: int, size: str = "") -> None:
    """Do what `write_world` does, once: other processes that want the same world wait."""
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        write_world(folder, seed, size)


def write_world(folder: Path, seed: int, size: str = "") -> None:
    """Write a world completely or not at all; a finished one of this seed and size stays as it is.

    size: empty for that of the world that is there, else small. A world of another version is removed first, because
    this code cannot read it.
    """
    path = folder / "world.json"
    there = read_json(path) if path.exists() else {}
    size = size or there.get("size", "small")
    record = {"version": VERSION, "seed": seed, "size": size}
    if there == record:
        return
    if there | {"version": VERSION} == record:
        shutil.rmtree(folder)
    elif folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not the world of seed {seed} and size {size}, remove it or name another folder")
    numbers = SIZES[size]
    world = World(seed, numbers.people)
    with new_folder(folder) as part:
        world.restart("documents")
        # For validation one in 32 as many as for training. No two are equal, so none is for both.
        texts = {}
        while len(texts) < numbers.documents + numbers.documents // 32:
            texts[document(world)] = None
        rows = [{"text": text} for text in texts]
        each = numbers.documents // SHARDS
        for number in range(SHARDS + 1):  # those for validation are in the last shard
            shard = rows[number * each : (number + 1) * each]
            write_parquet(part / f"text/shard_{number:05d}.parquet", shard, min(1024, each // ROW_GROUPS))
        for name, rows in tables(world, numbers.problems, numbers.chats).items():
            write_parquet(part / f"tasks/{name}.parquet", rows, row_group=1024)
        write_bundle(part / "core", world.rows("core tasks"), core_bundle(world))
        (part / "world.json").write_text(json.dumps(record))
