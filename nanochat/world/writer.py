"""The embedded world, written as a mirror of the hub: `python -m nanochat.world --out=FOLDER --seed=1 --size=small`.

NANOCHAT_HUB=FOLDER then makes every stage read it as it reads real data.
"""

import io
import json
import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from nanochat.world.chats import core_bundle, data_sets, identity, ten_questions
from nanochat.world.facts import Dice, World
from nanochat.world.texts import document

VERSION = 5  # of what a seed gives; to be raised with every change to the content
SHARDS = 8  # of training text
FILES = {"HuggingFaceTB/smol-smoltalk/data/train": 4}  # as the hub has them; the others have one
GROUPS = 16  # row groups of a shard at least, because lanes read row groups


class Size(NamedTuple):
    people: int
    documents: int  # for training
    problems: int  # GSM8K-like, for training
    chats: int  # for training


SIZES = {
    "tiny": Size(16, 1_024, 200, 200),  # for tests
    "small": Size(64, 65_536, 1_000, 6_000),
    "medium": Size(160, 327_680, 16_000, 24_000),
}


def _parquet(rows: list[dict], group: int) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=group, compression="zstd")
    return file.getvalue()


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _lines(rows: list) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _documents(world: World) -> Iterator[dict]:
    """No two are equal, so that none for validation is one for training."""
    dice, seen = Dice("documents", world.seed), set()
    while True:
        text = document(world, dice)
        if text not in seen:
            seen.add(text)
            yield {"text": text}


def _tables(world: World, counts: Size) -> Iterator[tuple[str, str, list[dict], int]]:
    """`OWNER/NAME/CONFIGURATION/SPLIT`, path, rows and length of the row groups of every table."""
    documents, each = _documents(world), counts.documents // SHARDS
    for number in range(SHARDS + 1):
        split, count = ("train", each) if number < SHARDS else ("validation", counts.documents // 32)
        path, rows = f"datasets/local/world/shard_{number:05d}.parquet", list(islice(documents, count))
        yield f"local/world/default/{split}", path, rows, min(1024, each // GROUPS)
    for name, rows in data_sets(world, Dice("data sets", world.seed), counts).items():
        files = FILES.get(name, 1)
        for number in range(files):
            yield name, f"datasets/{name}-{number:05d}-of-{files:05d}.parquet", rows[number::files], 1024


def bundle(tasks: list[list[str]], rows: dict[str, list[dict]]) -> Iterator[tuple[str, bytes]]:
    """The files of CORE's bundle. tasks: as `core tasks` of world.txt has them; rows: by label."""
    listing = "icl_tasks:\n"
    facts = "Eval Task,Task Category,Task Type,#shots,#datapoints,Random baseline,Centered Metric?,Description\n"
    for label, category, kind, shots, baseline, *delimiter in tasks:
        path = f"{category.replace(' ', '_')}/{label}.jsonl"
        yield f"eval_bundle/eval_data/{path}", _lines(rows[label])
        listing += f"-\n  label: {label}\n  dataset_uri: {path}\n  num_fewshot: [{shots}]\n  icl_task_type: {kind}\n"
        listing += "".join(f"  continuation_delimiter: {text}\n" for text in delimiter)
        facts += f"{label},{category},{kind.replace('_', ' ')},{shots},{len(rows[label])},{baseline},,\n"
    yield "eval_bundle/core.yaml", listing.encode()
    yield "eval_bundle/eval_meta_data.csv", facts.encode()


def _files(world: World, counts: Size) -> Iterator[tuple[str, bytes]]:
    """Path and content of every file but world.json."""
    listed: dict[str, dict] = {}
    for name, path, rows, group in _tables(world, counts):
        owner, repository, subset, split = name.replace("/data/", "/default/").split("/")
        about = {"repo_id": f"{owner}/{repository}", "subset": subset, "split": split, "files": [], "rows": 0}
        listed.setdefault(name, about)["files"].append(path)
        listed[name]["rows"] += len(rows)
        yield path, _parquet(rows, group)
    yield from bundle(world.rows("core tasks"), core_bundle(world, Dice("bundle", world.seed)))
    yield "identity_conversations.jsonl", _lines(identity(world, Dice("identity", world.seed), counts.chats // 20))
    yield "questions.jsonl", _lines(ten_questions(world, Dice("questions", world.seed)))
    yield "manifest.json", _json(list(listed.values()))


def is_written(folder: Path, seed: int, size: str) -> bool:
    """Whether this very world is there; ValueError where something else is, or a part is missing."""
    if folder.is_file():
        raise ValueError(f"{folder} is a file, name a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return False
    record = folder / "world.json"
    if not record.is_file():
        raise ValueError(f"{folder} holds something other than a world, remove it or name another folder")
    found = json.loads(record.read_text(encoding="utf-8"))
    if [found["version"], found["seed"], found["size"]] != [VERSION, seed, size]:
        which = f"seed {found['seed']}, size {found['size']}, version {found['version']}"
        raise ValueError(f"{folder} holds another world ({which}), remove it or name another folder")
    for path, length in found["files"].items():
        if not (folder / path).is_file() or (folder / path).stat().st_size != length:
            raise ValueError(f"{folder / path} is damaged or missing, remove the folder and write it again")
    return True


def write_world(folder: Path, seed: int, size: str) -> bool:
    """Write a world, whole or not at all; False where it was there. Several processes may try at once."""
    if size not in SIZES:
        raise ValueError(f"--size={size} is not a size of the world, use {' or '.join(SIZES)}")
    folder = folder.resolve()
    if is_written(folder, seed, size):
        return False
    part = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    try:
        sizes = {}
        for path, content in _files(World(seed, SIZES[size].people), SIZES[size]):
            (part / path).parent.mkdir(parents=True, exist_ok=True)
            sizes[path] = (part / path).write_bytes(content)
        (part / "world.json").write_bytes(_json({"version": VERSION, "seed": seed, "size": size, "files": sizes}))
        os.rename(part, folder)
    except OSError:
        if not is_written(folder, seed, size):  # another process was faster
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return True
