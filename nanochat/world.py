"""The embedded world, written as a mirror of the hub: `python -m nanochat.world --out=FOLDER --seed=1 --size=small`.

NANOCHAT_HUB=FOLDER then makes every stage read it as it reads real data.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from nanochat.config import Count, option, run
from nanochat.log import print0
from nanochat.world_chats import CoreTask, core_bundle, data_sets, identity, ten_questions
from nanochat.world_facts import Dice, World
from nanochat.world_texts import document

VERSION = 2  # of what a seed gives; to be raised with every change to the content
SHARDS = 8  # of training text
GROUPS = 16  # row groups of a shard at least, because lanes read row groups


class Size(NamedTuple):
    people: int
    documents: int  # for training
    problems: int  # GSM8K-like, for training
    chats: int  # for training


SIZES = {
    "tiny": Size(16, 1_024, 200, 200),  # for tests
    "small": Size(64, 65_536, 4_000, 6_000),
    "medium": Size(160, 327_680, 16_000, 24_000),
}


@dataclass(frozen=True)
class Config:
    """Write the embedded world of a seed as a mirror directory of the hub."""

    out: str = option("", "the folder to write", group="place", unit="FOLDER")
    seed: Count = option(1, "another seed, another world", group="world", unit="SEED")
    size: str = option("small", f"one of {', '.join(SIZES)}", group="world", unit="SIZE")


class Writer:
    """Writes files below a folder and keeps a record of them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.sizes: dict[str, int] = {}  # path -> bytes
        self.data_sets: list[dict] = []  # as manifest.json lists them

    def text(self, path: str, content: str) -> None:
        self._path(path).write_text(content, encoding="utf-8", newline="\n")
        self.sizes[path] = self._path(path).stat().st_size

    def lines(self, path: str, rows: list) -> None:
        self.text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def table(self, path: str, rows: list[dict], group: int = 1024) -> None:
        pq.write_table(pa.Table.from_pylist(rows), self._path(path), row_group_size=group, compression="zstd")
        self.sizes[path] = self._path(path).stat().st_size

    def listed(self, name: str, subset: str, split: str, files: list[str], rows: int) -> None:
        self.data_sets.append({"repo_id": name, "subset": subset, "split": split, "files": files, "rows": rows})

    def _path(self, path: str) -> Path:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        return self.folder / path


def _documents(world: World, count: int) -> Iterator[dict]:
    """No two are equal, so that none for validation is one for training."""
    dice, seen = Dice("documents", world.seed), set()
    while len(seen) < count:
        text = document(world, dice)
        if text not in seen:
            seen.add(text)
            yield {"text": text}


def _write_corpus(writer: Writer, world: World, documents: int) -> None:
    validation = documents // 32
    stream = _documents(world, documents + validation)
    files = [f"datasets/local/world/shard_{number:05d}.parquet" for number in range(SHARDS + 1)]
    for path in files:
        count = validation if path == files[-1] else documents // SHARDS
        writer.table(path, [next(stream) for _ in range(count)], group=min(1024, documents // SHARDS // GROUPS))
    writer.listed("local/world", "default", "train", files[:-1], documents)
    writer.listed("local/world", "default", "validation", files[-1:], validation)


def _write_data_sets(writer: Writer, sets: dict[str, list[dict]]) -> None:
    for name, rows in sets.items():
        owner, repository, subset, split = name.split("/")
        path = f"datasets/{name}-00000-of-00001.parquet"
        writer.table(path, rows)
        writer.listed(f"{owner}/{repository}", "default" if subset == "data" else subset, split, [path], len(rows))


def _write_bundle(writer: Writer, tasks: list[CoreTask]) -> None:
    listing = "icl_tasks:\n"
    facts = "Eval Task,Task Category,Task Type,#shots,#datapoints,Random baseline,Centered Metric?,Description\n"
    for task in tasks:
        path = f"{task.category.replace(' ', '_')}/{task.label}.jsonl"
        writer.lines(f"eval_bundle/eval_data/{path}", task.rows)
        listing += f"-\n  label: {task.label}\n  dataset_uri: {path}\n  num_fewshot: [{task.shots}]\n"
        listing += f"  icl_task_type: {task.kind}\n"
        if task.delimiter != CoreTask._field_defaults["delimiter"]:
            listing += f"  continuation_delimiter: {json.dumps(task.delimiter, ensure_ascii=False)}\n"
        kind = task.kind.replace("_", " ")
        facts += f"{task.label},{task.category},{kind},{task.shots},{len(task.rows)},{task.baseline},,\n"
    writer.text("eval_bundle/core.yaml", listing)
    writer.text("eval_bundle/eval_meta_data.csv", facts)


def _write_all(folder: Path, seed: int, size: str) -> None:
    world, counts = World(seed, SIZES[size].people), SIZES[size]
    writer = Writer(folder)
    _write_corpus(writer, world, counts.documents)
    _write_data_sets(writer, data_sets(world, Dice("data sets", seed), counts))
    _write_bundle(writer, core_bundle(world, Dice("bundle", seed)))
    writer.lines("identity_conversations.jsonl", identity(world, Dice("identity", seed), counts.chats // 20))
    writer.lines("questions.jsonl", ten_questions(world, Dice("questions", seed)))
    writer.text("manifest.json", json.dumps(writer.data_sets, indent=1) + "\n")
    record = {"version": VERSION, "seed": seed, "size": size, "files": dict(writer.sizes)}
    writer.text("world.json", json.dumps(record, indent=1) + "\n")


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


def write_world(folder: Path, seed: int = Config.seed, size: str = Config.size) -> bool:
    """Write a world, whole or not at all; False where it was there. Several processes may try at once."""
    if size not in SIZES:
        raise ValueError(f"--size={size} is not a size of the world, use {' or '.join(SIZES)}")
    folder = folder.resolve()
    if is_written(folder, seed, size):
        return False
    part = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    try:
        _write_all(part, seed, size)
        os.rename(part, folder)
    except OSError:
        if not is_written(folder, seed, size):  # another process was faster
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return True


def main(config: Config) -> None:
    if not config.out:
        raise ValueError("--out is missing, name the folder to write")
    if config.seed < 0:
        raise ValueError(f"--seed={config.seed} is negative, use 0 or more")
    folder = Path(config.out).expanduser()
    wrote = write_world(folder, config.seed, config.size)
    sizes: dict[str, Any] = json.loads((folder / "world.json").read_text(encoding="utf-8"))["files"]
    for row in json.loads((folder / "manifest.json").read_text(encoding="utf-8")):
        name = f"{row['repo_id']} {row['subset']} {row['split']}"
        print0(f"{name:55} {row['rows']:9,} rows {sum(sizes[path] for path in row['files']):12,} bytes")
    print0(f"{folder}: {'written' if wrote else 'already there'}, {len(sizes)} files, {sum(sizes.values()):,} bytes")


if __name__ == "__main__":
    run(main, Config)
