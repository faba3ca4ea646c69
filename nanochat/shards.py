"""Parquet shards of documents: opened with the hash of their content, read by row group, watched for change."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nanochat.documents import Bad, column_fault
from nanochat.paths import read_sha256


@dataclass(frozen=True)
class Shard:
    """A parquet file of documents, as it was when it was opened.

    hash: SHA-256 of its content. size: bytes of the column of text before compression, in which a dictionary holds what
    is repeated once. stamp: bytes and time of change of the file.
    """

    path: Path
    row_groups: int
    rows: int
    hash: str
    size: int = 0
    stamp: tuple[int, int] | None = None

    def check(self) -> None:
        """A ValueError if the file has changed since; one that was only touched is read again, and is the same."""
        try:
            if _stamp(self.path) == self.stamp or read_sha256(self.path) == self.hash:
                return
        except OSError as error:
            raise ValueError(f"{self.path} cannot be read any more ({error})") from error
        raise ValueError(f"{self.path} has changed since this run began, put it back or start a new run")


def open_shards(
    paths: list[Path], column: str, bad: Bad, sha256: Callable[[Path], str] = read_sha256
) -> tuple[Shard, ...]:
    """The shards in some files; `bad` is told which cannot be read. sha256: the hash of a file's content."""

    def opened(path: Path) -> Shard | str:
        try:
            return _open_shard(path, column, sha256)
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:  # hashing lets other threads run
        shards = list(pool.map(opened, paths))
    for fault in shards:
        if isinstance(fault, str):
            bad(fault)
    return tuple(shard for shard in shards if isinstance(shard, Shard))


def _open_shard(path: Path, column: str, sha256: Callable[[Path], str]) -> Shard:
    try:
        stamp, footer = _stamp(path), pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no whole parquet file ({error}), fetch or write it again") from error
    if fault := column_fault(footer.schema.to_arrow_schema(), column):
        raise ValueError(f"{path} {fault}")
    if not footer.num_rows:
        raise ValueError(f"{path} holds no document")
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(footer.num_columns)]
    size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == column)
    return Shard(path, footer.num_row_groups, footer.num_rows, sha256(path), size, stamp)


def _stamp(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def read_row_group(shard: Shard, group: int, column: str) -> pa.Array:
    """The documents of one row group; a ValueError names a file that is damaged."""
    try:
        with pq.ParquetFile(shard.path, page_checksum_verification=True) as file:
            texts = pa.concat_arrays(file.read_row_group(group, columns=[column]).column(0).chunks)
        texts.validate(full=True)  # as UTF-8 too, which reading does not
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{shard.path} is damaged in row group {group} ({error}), fetch or write it again") from error
    if texts.null_count:
        raise ValueError(f"{shard.path} has {texts.null_count} nulls in row group {group}, write it without them")
    return texts
