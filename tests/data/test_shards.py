"""Parquet shards: opened, read by row group, watched."""

import hashlib
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanochat.data.documents import Bad
from nanochat.data.shards import open_shards


def shard(path: Path, texts: list, kind=None, column: str = "text", **how) -> Path:
    pq.write_table(pa.table({"id": range(len(texts)), column: pa.array(texts, kind or pa.string())}), path, **how)
    return path


def opened(path: Path):
    [only] = open_shards([path], "text", Bad(skip=False))
    return only


def refusal(path: Path) -> str:
    def read() -> None:
        only = opened(path)
        for group in range(only.row_groups):
            only.read(group)

    with pytest.raises(ValueError) as refused:
        read()
    return str(refused.value)


def test_a_shard_is_what_the_file_holds(tmp_path):
    texts = [f"{number} 가나다" * 30 for number in range(2500)]
    path = shard(tmp_path / "a.parquet", texts, pa.large_string(), row_group_size=1000)
    found = opened(path)
    assert (found.path, found.row_groups, found.rows) == (path, 3, 2500)
    assert found.hash == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sum(map(len, texts)) <= found.size < 4 * sum(map(len, texts))
    groups = [found.read(group) for group in range(3)]
    assert [text for group in groups for text in group.to_pylist()] == texts
    assert all(isinstance(group, pa.Array) and pa.types.is_large_string(group.type) for group in groups)


def test_a_damaged_file_is_named_when_it_is_opened(tmp_path):
    whole = shard(tmp_path / "a.parquet", ["text"] * 1000).read_bytes()
    for content in (b"", b"PAR1", whole[:-100]):
        (tmp_path / "b.parquet").write_bytes(content)
        assert "b.parquet is no whole parquet file" in refusal(tmp_path / "b.parquet")
    assert "gone.parquet is no whole parquet file" in refusal(tmp_path / "gone.parquet")


def test_a_damaged_page_is_named_when_it_is_read(tmp_path):
    path = shard(tmp_path / "a.parquet", [f"some text {n}" for n in range(5000)], compression="zstd")
    column = pq.read_metadata(path).row_group(0).column(1)
    content = bytearray(path.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    content[start + 100 : start + column.total_compressed_size // 2] = bytes(column.total_compressed_size // 2 - 100)
    path.write_bytes(content)
    assert "a.parquet: row group 0 cannot be read" in refusal(path)


def test_a_flipped_bit_is_named_by_the_checksum_of_its_page(tmp_path):
    how = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    path = shard(tmp_path / "a.parquet", [f"some text {n}" for n in range(5000)], **how)
    content = bytearray(path.read_bytes())
    content[content.index(b"text 3000")] ^= 1  # still UTF-8
    path.write_bytes(content)
    assert "a.parquet: row group 0 cannot be read" in refusal(path)


def test_what_a_shard_must_hold(tmp_path):
    path = tmp_path / "a.parquet"
    assert "a.parquet has no column `text`, only id, content" in refusal(shard(path, ["x"], column="content"))
    assert "of type int64, it has to be string" in refusal(shard(path, [1, 2], pa.int64()))
    assert "a.parquet holds no document" in refusal(shard(path, []))
    assert "a.parquet has 1 nulls in row group 0" in refusal(shard(path, ["x", None, "y"]))
    raw = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")])
    pq.write_table(pa.table({"text": raw}), path)
    assert "a.parquet: row group 0 cannot be read" in refusal(path)


def test_bad_shards_are_left_out_and_counted(tmp_path):
    paths = [shard(tmp_path / f"{name}.parquet", ["x"]) for name in "abc"]
    paths[1].write_bytes(b"")
    bad = Bad(skip=True)
    assert [found.path for found in open_shards(paths, "text", bad)] == [paths[0], paths[2]]
    assert bad.count == 1
    assert "b.parquet" in bad.first[0]


def test_a_shard_that_changes_is_named(tmp_path):
    path = shard(tmp_path / "a.parquet", ["one", "two"])
    found = opened(path)
    os.utime(path)  # touched, not changed
    assert found.read(0).to_pylist() == ["one", "two"]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.parquet has changed since this run began"):
        found.read(0)
    path.unlink()
    with pytest.raises(ValueError, match=r"a\.parquet: row group 0 cannot be read \(.*No such file"):
        found.read(0)
