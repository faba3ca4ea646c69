"""Sources of chats: tasks, files and folders, as files of rows; and the questions of benchmarks.

`facts=World-Chat,korean=KoAlpaca-v1,web=json:my.jsonl,code=my-folder` names a source for each bucket: a task, with its
split behind a slash if that is not train; a JSONL file, or several by a pattern; a folder with JSONL and Parquet files;
or such files of a data set on the hub, `hub:owner/name`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from nanochat.data.hub import fetch, repo_files, sha256
from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.paths import read_jsonl
from tasks.chats import as_row, chat_files
from tasks.common import EVALUATION_SPLIT, DataSets, Task, find_task
from tracks.chatdata.filters import pairs

SUFFIXES = (".jsonl", ".parquet")
BATCH = 256  # rows of a Parquet file that are Python objects at once


@dataclass(frozen=True)
class SourceFile:
    """A file of a source, to be read once.

    origin: keys that rows get, unless they have their own. rows: as the file counts them. unread: those of the file.
    """

    origin: Record
    hashes: dict[str, str]
    rows: int
    unread: Iterator[Record]

    def stream(self) -> Iterator[Record]:
        for row in self.unread:
            own = {key: value for key, value in row.items() if value is not None}  # Parquet has every key in each row
            yield {"messages": []} | self.origin | own | {"bucket": self.origin["bucket"]}


def open_sources(sources: str, licenses: str, known: DataSets, tokenizer: str) -> list[SourceFile]:
    """Return the files of all sources in order; a UserError for a source that is missing, empty or lacks a column."""
    found = []
    for bucket, word in pairs(sources).items():
        place = Path(word.removeprefix("json:")).expanduser()
        origin = {"bucket": bucket, "source": place.name, "license": pairs(licenses).get(bucket, "unknown")}
        if word.startswith("json:") or place.is_dir():
            files = [_open_file(path, origin) for path in chat_files(place, SUFFIXES)]
        elif word.startswith("hub:"):
            origin["source"] = word.removeprefix("hub:")
            files = [_open_file(path, origin) for path in fetch(repo_files(origin["source"], SUFFIXES))]
        else:
            name, _, split = word.partition("/")
            origin["source"] = name = find_task(name, known)
            split = split or "train"
            data = known[name]
            if split == EVALUATION_SPLIT or split not in data.split_names:
                raise UserError(f"{name} has no split {split} to train on; test splits are for evaluation alone")
            task = data(split, tokenizer)
            files = [SourceFile(origin, task.hashes(), len(task), _read_task(task))]
        if not any(file.rows for file in files):
            raise UserError(f"the source of the bucket {bucket} has no rows: {word}")
        found += files
    return found


def _open_file(path: Path, origin: Record) -> SourceFile:
    hashes = {path.name: sha256(path)}
    if path.suffix.lower() == ".parquet":
        metadata = pq.read_metadata(path)
        names = metadata.schema.to_arrow_schema().names
        if "messages" not in names:
            raise UserError(f"{path} has no column messages, it has {', '.join(names)}")
        return SourceFile(origin, hashes, metadata.num_rows, _read_parquet(path))
    with open(path, "rb") as file:
        return SourceFile(origin, hashes, sum(not line.isspace() for line in file), read_jsonl(path, as_row))


def _read_parquet(path: Path) -> Iterator[Record]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH):
            yield from batch.to_pylist()


def _read_task(task: Task) -> Iterator[Record]:
    for number in range(len(task)):
        try:
            yield {**task[number]}
        except UserError as error:  # the filter `turns` drops and counts it
            yield {"fault": str(error)}


def benchmark_questions(task: Task) -> list[tuple[str, ...]]:
    """Return each item's question in all forms, as alone and with its choices."""
    return [task.forms(str(task[number]["messages"][-2]["content"])) for number in range(len(task))]
