"""The embedded world as files: a mirror of the hub that every stage reads with NANOCHAT_HUB=FOLDER, as real data."""

import json
import os
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from nanochat.paths import write_jsonl
from nanochat.world.chats import Rows, core_bundle, data_sets, identity_chats, ten_questions
from nanochat.world.facts import World
from nanochat.world.texts import document

VERSION = 6  # raise with every change to the content
SHARDS = 8  # parquet files with text for training
# Data sets with several files on the hub; all others have one.
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


def write_parquet(path: Path, rows: Rows, row_group: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=row_group, compression="zstd")


def different_documents(world: World) -> Iterator[dict]:
    """Yield documents without end, no two equal, so that no document for validation is one for training."""
    world.restart("documents")
    seen = set()
    while True:
        text = document(world)
        if text not in seen:
            seen.add(text)
            yield {"text": text}


def write_tables(folder: Path, world: World, size: WorldSize) -> None:
    """Write all parquet files: the corpus with its last shard for validation, and the data sets."""
    documents = different_documents(world)
    # The same number in every shard; validation has 1/32 as many in all.
    each = size.documents // SHARDS
    for number, count in enumerate([each] * SHARDS + [size.documents // 32]):
        path = folder / f"local/world/shard_{number:05d}.parquet"
        write_parquet(path, list(islice(documents, count)), min(1024, each // ROW_GROUPS))
    for name, rows in data_sets(world, size.problems, size.chats).items():
        files = FILES.get(name, 1)
        for number in range(files):
            # Rows go to the files in turn.
            path = folder / f"{name}-{number:05d}-of-{files:05d}.parquet"
            write_parquet(path, rows[number::files], row_group=1024)


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


def write_world(folder: Path, seed: int, size: str) -> None:
    """Write a world completely or not at all; a finished world of this seed and size stays as it is."""
    record = {"version": VERSION, "seed": seed, "size": size}
    if folder.exists() and any(folder.iterdir()):
        written = folder / "world.json"
        if not written.exists() or json.loads(written.read_text()) != record:
            raise ValueError(
                f"{folder} is not the world of seed {seed} and size {size}, remove it or name another folder"
            )
        return
    world = World(seed, SIZES[size].people)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.tmp-") as temporary:
        part = Path(temporary, "world")
        write_tables(part / "datasets", world, SIZES[size])
        write_bundle(part / "eval_bundle", world.rows("core tasks"), core_bundle(world))
        write_jsonl(part / "identity_conversations.jsonl", identity_chats(world, SIZES[size].chats // 20))
        write_jsonl(part / "questions.jsonl", ten_questions(world))
        (part / "world.json").write_text(json.dumps(record))
        # A rename is atomic: readers see the whole folder or none.
        os.rename(part, folder)
