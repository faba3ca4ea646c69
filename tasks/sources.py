"""Sources of chats: tasks, files and folders, as files of rows; and the questions of benchmarks.

`facts=World-Chat,korean=KoAlpaca-v1,web=json:my.jsonl,code=my-folder` names a source for each bucket: a task, with its
split behind a slash if that is not train; a JSONL file; a folder with JSONL and Parquet files.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from nanochat.curate.filters import pairs
from nanochat.data.documents import text_files
from nanochat.data.hub import sha256
from nanochat.log import Record
from tasks.chats import json_lines
from tasks.common import DataSet, Task, find_task
from tasks.multiple_choice import MultipleChoice

BATCH = 256  # rows of a Parquet file that are Python objects at once


class SourceFile(NamedTuple):
    """A file of a source. origin: keys that rows get, unless they have their own. rows: as the file counts them."""

    origin: Record
    hashes: dict[str, str]
    rows: int
    read: Callable[[], Iterator[Record]]

    def stream(self) -> Iterator[Record]:
        for row in self.read():
            own = {key: value for key, value in row.items() if value is not None}  # Parquet has every key in each row
            yield {"messages": []} | self.origin | own | {"bucket": self.origin["bucket"]}


def open_sources(sources: str, licenses: str, known: Mapping[str, DataSet], tokenizer: str) -> list[SourceFile]:
    """Return the files of all sources in order; a ValueError if one is missing or lacks a column."""
    found = []
    for bucket, word in pairs(sources).items():
        place = Path(word.removeprefix("json:")).expanduser()
        origin = {"bucket": bucket, "source": place.name, "license": pairs(licenses).get(bucket, "unknown")}
        if word.startswith("json:") or place.is_dir():
            paths = text_files(place, (".jsonl", ".parquet")) if place.is_dir() else [Path(json_lines(place).path)]
            found += [_open_file(path, origin) for path in paths]
        else:
            found.append(_open_task(word, origin, known, tokenizer))
    if not found or {one.origin["bucket"] for one in found if one.rows} != {*pairs(sources)}:
        raise ValueError(
            f"--sources={sources} has a bucket without rows: write it like facts=World-Chat,web=json:a.jsonl"
        )
    return found


def _open_file(path: Path, origin: Record) -> SourceFile:
    hashes = {path.name: sha256(path)}
    if path.suffix.lower() == ".parquet":
        metadata = pq.read_metadata(path)
        names = metadata.schema.to_arrow_schema().names
        if "messages" not in names:
            raise ValueError(f"{path} has no column messages, it has {', '.join(names)}")
        return SourceFile(origin, hashes, metadata.num_rows, partial(_read_parquet, path))
    with open(path, "rb") as file:
        return SourceFile(origin, hashes, sum(not line.isspace() for line in file), partial(_read_lines, path))


def _open_task(word: str, origin: Record, known: Mapping[str, DataSet], tokenizer: str) -> SourceFile:
    name, _, split = word.partition("/")
    name, split = find_task(name, known), split or "train"
    data = known[name]
    if split == "test" or split not in data.split_names:
        raise ValueError(f"{word}: {name} has no split {split} to train on, and a test split is none")
    task = data(split, tokenizer)
    return SourceFile(origin | {"source": name}, task.hashes(), len(task), partial(_read_task, task))


def _read_parquet(path: Path) -> Iterator[Record]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH):
            yield from batch.to_pylist()


def _read_lines(path: Path) -> Iterator[Record]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                if not line.isspace():
                    value = json.loads(line)
                    yield {"messages": value} if isinstance(value, list) else value | {"messages": value["messages"]}
            except (ValueError, LookupError, TypeError) as error:
                raise ValueError(f"{path}:{number}: no JSON object with `messages` ({error})") from None


def _read_task(task: Task) -> Iterator[Record]:
    for number in range(len(task)):
        try:
            yield task[number]
        except ValueError as error:  # the filter `turns` drops and counts it
            yield {"fault": str(error)}


def benchmark_questions(task: Task) -> list[tuple[str, ...]]:
    """Return each item's question alone, and with its choices, both without instructions."""
    prompts = [str(task[number]["messages"][-2]["content"]) for number in range(len(task))]
    if not isinstance(task, MultipleChoice):
        return [(prompt,) for prompt in prompts]
    return [(prompt.partition("\n\n- ")[0], prompt.removesuffix(task.closing)) for prompt in prompts]
