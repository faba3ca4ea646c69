"""Documents in files of every kind, whole and damaged; folders converted to shuffled shards."""

import errno
import json
import os
import random
import signal
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import write_jsonl, write_shard
from forks import Forked
from test_speedrun import until

from nanochat import paths
from nanochat.data import documents as module
from nanochat.data.corpus import open_corpus, open_shards
from nanochat.data.documents import convert_folder, documents, text_files
from nanochat.errors import UserError
from nanochat.paths import write_bytes

TEXTS = ["first text\n", "", "둘째 — text", "with\0zero and \U0001f30d", "line\r\nends\n"]


def write(path: Path, data: bytes):
    write_bytes(path, data)
    return path


def read(path: Path):
    return list(documents(path))


def refusal(path: Path):
    with pytest.raises(ValueError) as refused:
        read(path)
    return str(refused.value)


def test_every_kind_is_read_as_it_was_written(tmp_path) -> None:
    """A null is blank; test_corpus.py damages such files."""
    lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in TEXTS)
    assert read(write(tmp_path / "a.jsonl", lines.encode())) == TEXTS
    assert read(write(tmp_path / "mark.jsonl", b"\xef\xbb\xbf" + lines.encode())) == TEXTS
    for kind in ("txt", "md"):
        assert read(write(tmp_path / f"a.{kind}", "".join(TEXTS).encode())) == ["".join(TEXTS)]
    assert read(write(tmp_path / "mark.txt", "\ufeffa\ufeff".encode())) == ["a\ufeff"]
    assert read(write(tmp_path / "empty.txt", b"")) == []
    path, texts = tmp_path / "a.parquet", [*TEXTS, None]
    for kind in (pa.string(), pa.large_string()):
        assert read(write_shard(path, texts, kind, row_group_size=2)) == [text or "" for text in texts]
    assert "needs a column `text` with strings, it has id, text" in refusal(write_shard(path, [1, 2], pa.int64()))


def test_a_row_group_may_hold_more_than_an_array_of_strings(tmp_path) -> None:
    """2.2 GB of text, of which the file has each of two once."""
    values = pa.array(["a" * 100_000, "b" * 100_000])
    texts = pa.DictionaryArray.from_arrays(pa.array([row % 2 for row in range(22_000)], pa.int8()), values)
    path = tmp_path / "large.parquet"
    pq.write_table(pa.table({"text": texts}), path, store_schema=False)
    assert pq.read_metadata(path).num_row_groups == 1
    counts = {"a": 0, "b": 0}
    for text in documents(path):
        assert len(text) == 100_000
        counts[text[0]] += 1
    assert counts == {"a": 11_000, "b": 11_000}

    class InParts:
        """A row group in two chunks, as Arrow reads one that is too large for one."""

        def read_row_group(self, group: int, columns: list[str]) -> pa.Table:
            return pa.table({name: pa.chunked_array([["one", None], ["two"]]) for name in columns})

    whole = module.read_row_group(InParts(), 0)
    assert (whole.type, whole.to_pylist()) == (pa.large_string(), ["one", None, "two"])


def test_a_document_that_is_not_utf8_is_named(tmp_path) -> None:
    damaged = pa.array([b"good", b"a\xff"] * 2000, pa.binary()).view(pa.string())
    path = write_shard(tmp_path / "a.parquet", damaged, row_group_size=1000)
    assert refusal(path).startswith(f"{path}: row 2: 'utf-8' codec can't decode byte 0xff")
    [shard] = open_shards([path])
    with pytest.raises(UserError, match=r"a\.parquet: row group 3: Invalid UTF8 sequence at string index 1"):
        shard.read_row_group(3)
    [shard] = open_shards([write_shard(path, ["one", None])])
    with pytest.raises(UserError, match=r"a\.parquet: row group 0: a document is null"):
        shard.read_row_group(0)


def test_blank_documents_are_counted(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path / "home"))
    for name, texts in (("some", ["a", " ", "b", "", "\n"]), ("none", ["a", "b"])):
        write_jsonl(tmp_path / name / "a.jsonl", texts)
        convert_folder(name, tmp_path / name, text_files(tmp_path / name))
    said = [line.partition("validation")[2] for line in capsys.readouterr().out.splitlines() if "documents for" in line]
    assert said == [", 3 blank ones left out", ""]


def test_text_files_are_cut_at_line_ends_lose_nothing_and_have_one_order(tmp_path) -> None:
    whole = "".join(f"{number} 줄 \r\n" for number in range(5000)) + "no line end" + "x" * 20_000
    texts = read(write(tmp_path / "one.md", whole.encode()))
    assert "".join(texts) == whole
    assert len(texts) > 5
    assert all(text.endswith("\n") and 8192 <= len(text) < 8300 for text in texts[:-1])
    path = write(tmp_path / "bad.txt", "good\nañb\nend".encode("latin-1"))
    assert refusal(path).startswith(f"{path}:2: 'utf-8' codec can't decode byte")
    for name in ("b.TXT", "a/z.jsonl", "a.md", "a/b/c.parquet", "image.png", "notes.rst", "x.gz"):
        write(tmp_path / "folder" / name, b"")
    found = [file.relative_to(tmp_path / "folder").as_posix() for file in text_files(tmp_path / "folder")]
    assert found == ["a.md", "a/b/c.parquet", "a/z.jsonl", "b.TXT"]


def names_below(folder: Path) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in text_files(folder)]


def test_hidden_folders_and_what_this_program_writes_are_no_text(tmp_path, monkeypatch) -> None:
    text = tmp_path / ".text"  # hidden itself, and named
    for name in ("a.txt", ".venv/b.txt", "deep/.git/c.txt", "deep/d.txt", "base/corpora/e.parquet", "base/mine/f.md"):
        write(text / name, name.encode())
    assert names_below(text) == ["a.txt", "base/corpora/e.parquet", "base/mine/f.md", "deep/d.txt"]
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(text / "base"))
    assert names_below(text) == ["a.txt", "deep/d.txt"]
    monkeypatch.chdir(text)
    monkeypatch.setenv("NANOCHAT_BASE_DIR", "base")
    assert open_corpus(".").describe() == open_corpus(".").describe()
    assert names_below(text / "base/mine") == ["f.md"]  # a folder in it may be named
    with pytest.raises(UserError, match="--data=base is the base folder, where this program writes"):
        open_corpus("base")


def test_links_to_folders_are_followed_and_no_folder_is_read_twice(tmp_path) -> None:
    text = write(tmp_path / "text/m/a.txt", b"text").parents[1]
    elsewhere = write(tmp_path / "elsewhere/b.txt", b"text").parent
    for link, target in {
        "a": text / "m",  # read under its own name
        "n": elsewhere,
        "o": elsewhere,
        "up": text,
        "m/up": tmp_path,  # finds both again
    }.items():
        (text / link).symlink_to(target, target_is_directory=True)
    assert names_below(text) == ["m/a.txt", "n/b.txt"]
    (tmp_path / "link").symlink_to(elsewhere, target_is_directory=True)
    assert names_below(tmp_path / "link") == ["b.txt"]


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path, monkeypatch) -> None:
    write(tmp_path / "text/locked/a.txt", b"text")
    scan = os.scandir

    def refuse(place: str) -> object:  # root may read everything
        if str(place).endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="locked"):
        text_files(tmp_path / "text")


def test_a_bad_line_is_named(tmp_path) -> None:
    for line in (b'{"content": "no text"}', b'{"text": 5}', b'["a list"]', b"3"):
        path = write(tmp_path / "a.jsonl", b'{"text": "good"}\n\n' + line + b"\n")
        assert refusal(path) == f'{path}:3: not a JSON object like {{"text": "…"}}'
    assert refusal(write(path, b'{"text": "half \\ud83d"}')).startswith(f"{path}:1: it has half a character")
    assert refusal(write(path, b"{not json")).startswith(f"{path}:1: Expecting property name")


def convert(path: Path):
    return convert_folder("text", path, text_files(path))


def rows(home: Path, split: str):
    return [text for file in sorted(home.glob(f"{split}*.parquet")) for text in pq.read_table(file)["text"].to_pylist()]


def sizes_of_row_groups(file: Path):
    metadata = pq.read_metadata(file)
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


def numbers(count: int, prefix: str = ""):
    return [f"{prefix}document {number}" for number in range(count)]


def corpora():
    """Folders of conversions in the home of the test."""
    return [path for path in (Path.home() / ".cache/nanochat/corpora").iterdir() if path.is_dir()]


def test_nothing_is_lost_and_nothing_comes_twice(tmp_path, monkeypatch, seed) -> None:
    monkeypatch.setattr(module, "SHARD_BYTES", 200_000)
    monkeypatch.setattr(module, "DEALT_CHARS", 1000)
    generator = random.Random(seed)
    texts = [f"{number} " + "가나다 " * generator.randrange(200) for number in range(5000)]
    home = convert(write_jsonl(tmp_path / "many/a.jsonl", texts).parent)
    assert sorted(rows(home, "train") + rows(home, "val")) == sorted(texts)
    assert 10 < len(rows(home, "val")) < 120
    names = sorted(path.name for path in home.iterdir())
    assert names == [*(f"train-{i:05d}.parquet" for i in range(len(names) - 1)), "val.parquet"]
    assert len(names) > 9
    order = [texts.index(text) for text in rows(home, "train")[:1000]]
    ascents = sum(a < b for a, b in pairwise(order))
    assert 400 < ascents < 600  # shuffled: as often up as down


def test_a_conversion_is_found_again_by_its_content(tmp_path) -> None:
    path = write_jsonl(tmp_path / "text/a.jsonl", numbers(100)).parent
    home = convert(path)
    before = {file.name: file.stat().st_mtime_ns for file in home.iterdir()}
    os.utime(path / "a.jsonl")
    moved = path.rename(tmp_path / "elsewhere")
    assert convert(moved) == home
    assert {file.name: file.stat().st_mtime_ns for file in home.iterdir()} == before
    # The same name, size and time with other content.
    status = (moved / "a.jsonl").stat()
    (moved / "a.jsonl").write_bytes((moved / "a.jsonl").read_bytes().replace(b'document 7"', b'document X"'))
    os.utime(moved / "a.jsonl", ns=(status.st_atime_ns, status.st_mtime_ns))
    other = convert(moved)
    assert other != home
    assert "document X" in rows(other, "train") + rows(other, "val")


def test_validation_never_moves_into_training(tmp_path) -> None:
    path = write_jsonl(tmp_path / "text/a.jsonl", numbers(3000)).parent
    held_out = set(rows(convert(path), "val"))
    write_jsonl(path / "0-first.jsonl", numbers(3000, "more "))
    write_jsonl(path / "z-the-same-again.jsonl", numbers(500))
    home = convert(path)
    assert held_out < set(rows(home, "val"))
    assert not set(rows(home, "train")) & set(rows(home, "val"))


def test_few_documents_and_small_row_groups(tmp_path, monkeypatch) -> None:
    for count in (2, 40):
        texts = ["", " \n\t", *numbers(count)]
        home = convert(write_jsonl(tmp_path / f"few{count}/a.jsonl", texts).parent)
        assert sorted(rows(home, "train") + rows(home, "val")) == sorted(numbers(count))
        assert rows(home, "val")
        assert sizes_of_row_groups(home / "train-00000.parquet") == [1] * len(rows(home, "train"))
    home = convert(write_jsonl(tmp_path / "many/a.jsonl", numbers(1000)).parent)
    assert max(sizes_of_row_groups(home / "train-00000.parquet")) == 1000 // 64
    monkeypatch.setattr(module, "MIN_ROW_GROUPS", 1)
    home = convert(write_jsonl(tmp_path / "large/a.jsonl", numbers(3000)).parent)
    assert sizes_of_row_groups(home / "train-00000.parquet")[:2] == [1024, 1024]


@pytest.mark.parametrize("texts", [[], ["one"], ["same", "same"], [" \n", "one"]])
def test_too_few_documents(tmp_path, texts) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="needs two different documents"):
            convert(write_jsonl(tmp_path / "tiny/a.jsonl", texts).parent)
    assert corpora() == []


def convert_late(path: Path, gate: Path) -> None:
    """Convert a folder; say so, and wait for the gate, before the result is published."""
    publish = paths.publish_folder

    def publish_late(part: Path, home: Path) -> None:
        print("converted", flush=True)
        until(gate.exists, "the gate")
        publish(part, home)

    paths.publish_folder = publish_late
    print(convert(path))


def test_a_killed_conversion_leaves_nothing_that_counts_and_two_processes_convert_once(tmp_path) -> None:
    path = write_jsonl(tmp_path / "text/a.jsonl", numbers(100)).parent

    def start(name: str):
        return Forked(tmp_path / name, convert_late, path, tmp_path / "gate", HOME=str(Path.home()))

    killed = start("killed")
    until(lambda: "converted" in killed.out(), "a conversion")
    killed.signal(signal.SIGKILL)
    killed.codes()
    [left] = corpora()
    assert left.name.endswith(".tmp")
    both = [start("one"), start("other")]
    until(lambda: "converted" in both[0].out() + both[1].out(), "another conversion")
    (tmp_path / "gate").touch()
    outputs = [job.done().splitlines() for job in both]
    [home] = corpora()
    assert outputs[0][-1] == outputs[1][-1] == str(home)
    assert sum("converted" in output for output in outputs) == 1
    assert len(rows(home, "train") + rows(home, "val")) == 100
