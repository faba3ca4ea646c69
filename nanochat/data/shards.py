"""Parquet shards of documents: opened with the hash of their content, read by row group, watched for change."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from nanochat.data.documents import Bad, Damaged, open_parquet
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
    column: str = "text"

    def read(self, group: int) -> pa.Array:
        """The documents of one row group; a file that was only touched since is hashed again, and is the same."""
        try:
            if _stamp(self.path) != self.stamp and read_sha256(self.path) != self.hash:
                raise Damaged(f"{self.path} has changed since this run began, put it back or start a new run")
            with open_parquet(self.path, self.column) as file:
                texts = pa.concat_arrays(file.read_row_group(group, columns=[self.column]).column(0).chunks)
            texts.validate(full=True)  # as UTF-8 too, which reading does not
        except (pa.ArrowException, OSError) as error:
            raise Damaged(
                f"{self.path}: row group {group} cannot be read ({error}), fetch or write it again"
            ) from error
        if texts.null_count:
            raise Damaged(f"{self.path} has {texts.null_count} nulls in row group {group}, write it without them")
        return texts


def open_shards(
    paths: list[Path], column: str, bad: Bad, sha256: Callable[[Path], str] = read_sha256
) -> tuple[Shard, ...]:
    """The shards in some files; `bad` is told which cannot be read. sha256: the hash of a file's content."""
    with ThreadPoolExecutor(8) as pool:  # hashing lets other threads run
        opened = [pool.submit(_open_shard, path, column, sha256) for path in paths]
    shards = []
    for shard in opened:
        with bad.caught():
            shards.append(shard.result())
    return tuple(shards)


def _open_shard(path: Path, column: str, sha256: Callable[[Path], str]) -> Shard:
    with open_parquet(path, column) as file:
        stamp, footer = _stamp(path), file.metadata
    if not footer.num_rows:
        raise Damaged(f"{path} holds no document")
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(footer.num_columns)]
    size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == column)
    return Shard(path, footer.num_row_groups, footer.num_rows, sha256(path), size, stamp, column)


def _stamp(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns
