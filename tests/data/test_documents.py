"""The documents in files of every kind, whole, packed and damaged."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanochat.data import documents as module
from nanochat.data.documents import Bad, by_size, documents, text_files

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["first text\n", "", "둘째 — text", "with\0zero and \U0001f30d", "line\r\nends\n"]


def written(path: Path, data: bytes) -> Path:
    """A file with this content, packed as its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        data = gzip.compress(data)
    if path.suffix == ".zst":
        data = pa.compress(data, codec="zstd", asbytes=True)
    path.write_bytes(data)
    return path


def jsonl(texts: list) -> bytes:
    return "".join(json.dumps({"id": 1, "text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


def parquet(texts: list, kind=None, column: str = "text", **how) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": range(len(texts)), column: pa.array(texts, kind or pa.string())}), sink, **how)
    return sink.getvalue().to_pybytes()


def read(path: Path) -> list[str]:
    return list(documents(path, Bad(skip=False)))


def complaint(path: Path) -> str:
    with pytest.raises(ValueError) as refused:
        read(path)
    assert str(refused.value).endswith("; mend it, or go on without it by --skip-bad")
    return str(refused.value)


def skipped(path: Path) -> tuple[list[str], list[str]]:
    """(what can be read, the complaints about the rest)."""
    bad = Bad(skip=True)
    texts = list(documents(path, bad))
    assert bad.count == len(bad.first)
    return texts, bad.first


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_every_kind_is_read_as_it_was_written(tmp_path, packed):
    assert read(written(tmp_path / f"a.jsonl{packed}", jsonl(TEXTS))) == TEXTS
    assert read(written(tmp_path / f"a.parquet{packed}", parquet(TEXTS, pa.large_string(), row_group_size=2))) == TEXTS
    for kind in ("txt", "md"):
        assert read(written(tmp_path / f"a.{kind}{packed}", "".join(TEXTS).encode())) == ["".join(TEXTS)]
    assert read(written(tmp_path / f"empty.txt{packed}", b"")) == []


def test_a_packed_file_may_have_several_members(tmp_path):
    for suffix in (".gz", ".zst"):
        one = written(tmp_path / f"one.txt{suffix}", b"one\n").read_bytes()
        (tmp_path / f"two.txt{suffix}").write_bytes(one + one)
        assert read(tmp_path / f"two.txt{suffix}") == ["one\none\n"]


def test_text_files_are_cut_at_line_ends_and_lose_nothing(tmp_path):
    whole = "".join(f"{number} 줄 \r\n" for number in range(5000)) + "no line end" + "x" * 20_000
    texts = read(written(tmp_path / "one.md", whole.encode()))
    assert "".join(texts) == whole
    assert len(texts) > 5
    assert all(text.endswith("\n") and 8192 <= len(text) < 8300 for text in texts[:-1])


def test_a_byte_order_mark_is_no_text(tmp_path):
    assert read(written(tmp_path / "a.txt", "\ufeffa\ufeff".encode())) == ["a\ufeff"]
    assert read(written(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + jsonl(["a"]))) == ["a"]


def test_files_of_a_folder_in_one_order(tmp_path):
    for name in ("b.TXT", "a/z.jsonl.gz", "a.md", "a/b/c.parquet.ZST", "image.png", "notes.rst", "x.gz"):
        written(tmp_path / name, b"")
    found = [file.relative_to(tmp_path).as_posix() for file in text_files(tmp_path)]
    assert found == ["a.md", "a/b/c.parquet.ZST", "a/z.jsonl.gz", "b.TXT"]


def test_texts_are_batched_by_their_size():
    assert [len(batch) for batch in by_size(["ten chars."] * 7, 25)] == [3, 3, 1]
    assert list(by_size([], 25)) == []


# ---- what can be wrong ----


def test_bad_lines_of_jsonl_are_named_and_the_others_read(tmp_path):
    lines = [
        jsonl(["good 1"]),
        b"{not json\n",
        b"\n",
        b'{"content": "no text"}\n',
        b'{"text": 5}\n',
        b'["a list"]\n',
        b'{"text": "half \\ud83d"}\n',
        b'{"text": "\xff"}\n',
        b"[" * 100_000 + b"\n",
        jsonl(["good 2"]),
    ]
    path = written(tmp_path / "a.jsonl", b"".join(lines))
    texts, complaints = skipped(path)
    assert texts == ["good 1", "good 2"]
    assert [what.removeprefix(f"{path}:").split(" ")[0] for what in complaints] == [
        "2:",
        "4:",
        "5:",
        "6:",
        "7:",
        "8:",
        "9:",
    ]
    assert "not JSON" in complaints[0]
    assert "not an object with a text" in complaints[1]
    assert "surrogate" in complaints[4]
    assert "not UTF-8 (byte 11 of the line)" in complaints[5]
    assert f"{path}:2: not JSON" in complaint(path)


def test_text_that_is_not_utf8_is_named_with_its_line(tmp_path):
    path = written(tmp_path / "bad.txt", "good\nañb\nend".encode("latin-1"))
    assert f"{path}:2: not UTF-8 (byte 2 of the line)" in complaint(path)
    assert skipped(path) == (["good\nend"], [f"{path}:2: not UTF-8 (byte 2 of the line)"])


def test_bad_rows_of_parquet_are_named(tmp_path):
    raw = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    texts = pa.chunked_array([pa.array(["x"] * 2000 + [None, "y"]), raw])
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=700)
    good, complaints = skipped(tmp_path / "a.parquet")
    assert good == ["x"] * 2000 + ["y", "a"]
    assert [what.partition(": ")[2] for what in complaints] == [
        "row 2001 is null or not UTF-8",
        "row 2004 is null or not UTF-8",
    ]


def test_columns_that_are_no_text(tmp_path):
    path = written(tmp_path / "a.parquet", parquet(["x"], column="content"))
    assert f"{path} has no column `text`, only id, content" in complaint(path)
    assert skipped(path)[0] == []
    written(path, parquet([1, 2], pa.int64()))
    assert "of type int64, it has to be string" in complaint(path)


def test_cut_files_are_named(tmp_path):
    whole = parquet([f"text {number}" for number in range(5000)])
    for cut in (0, 4, 1000, len(whole) - 100):
        path = written(tmp_path / "a.parquet", whole[:cut])
        assert f"{path} is no whole parquet file" in complaint(path)
    for suffix in (".gz", ".zst"):
        text = "".join(f"{number} line\n" for number in range(100_000)).encode()
        path = written(tmp_path / f"a.txt{suffix}", text)
        path.write_bytes(path.read_bytes()[:-1000])
        assert f"{path} is damaged after line " in complaint(path)
        texts, complaints = skipped(path)
        assert len(complaints) == 1
        assert text.startswith("".join(texts).encode())
        path.write_bytes(b"not packed at all, whatever its name says")
        assert f"{path} is damaged after line 0" in complaint(path)


def test_a_damaged_row_group_is_named_and_the_others_read(tmp_path):
    texts = [f"some text {number}" for number in range(3000)]
    texts[2500] = None
    data = bytearray(parquet(texts, row_group_size=1000, use_dictionary=False, write_page_checksum=True))
    with pq.ParquetFile(pa.BufferReader(bytes(data))) as shard:
        column = shard.metadata.row_group(1).column(1)
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path = written(tmp_path / "a.parquet", bytes(data))
    good, complaints = skipped(path)
    assert good == texts[:1000] + texts[2000:2500] + texts[2501:]
    assert [what.split(" (")[0] for what in complaints] == [
        f"{path} is damaged between rows 1001 and 2000",
        f"{path}: row 2501 is null or not UTF-8",
    ]
    assert f"{path} is damaged between rows 1001 and 2000" in complaint(path)


def test_a_long_line_is_left_out_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_LINE", 1000)
    for size in (999, 1000, 5000):  # with its end, a line of 999 characters has 1,000 bytes
        path = written(tmp_path / "a.txt", b"first\n" + b"x" * size + b"\nlast\n")
        texts, complaints = skipped(path)
        assert ("".join(texts) == "first\nlast\n") == (size > 999)
        assert len(complaints) == (size > 999)


# Reads a file, and prints what came of it and the most memory that took, in MB.
READ = """
import resource, sys
from pathlib import Path
from nanochat.data.documents import Bad, documents
bad = Bad(skip=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
texts = list(documents(Path(sys.argv[1]), bad))
print(texts, bad.first, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, sep="|")
"""


def test_a_line_of_a_gigabyte_takes_little_memory(tmp_path):
    path = tmp_path / "long.jsonl"
    with open(path, "wb") as file:
        file.write(jsonl(["good"]))
        os.truncate(path, 1 << 30)  # zeros that take no room on the disk
        file.seek(1 << 30)
        file.write(b"\n" + jsonl(["end"]))
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    texts, complaints, megabytes = done.stdout.split("|")
    assert f"{path}:2: a line of more than 64 MB" in complaints, done.stderr
    assert "good" in texts
    assert "end" in texts
    assert int(megabytes) < 300
