import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanochat import corpus
from nanochat.corpus import open_corpus


def shard(path: Path, texts: list, kind=None, column: str = "text") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": range(len(texts)), column: pa.array(texts, kind or pa.string())}), path)


def texts_of(data, split: str) -> list[str]:
    batches = list(open_corpus(str(data)).batches(split))
    assert all(pa.types.is_string(batch.type) or pa.types.is_large_string(batch.type) for batch in batches)
    return [text for batch in batches for text in batch.to_pylist()]


def refusal(data, split: str = "train") -> str:
    with pytest.raises(ValueError) as refused:
        texts_of(data, split)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_last_shard_is_validation(tmp_path):
    shard(tmp_path / "b.parquet", ["b1", "b2"], pa.large_string())
    shard(tmp_path / "a/z.parquet", ["z1", ""])
    shard(tmp_path / "c.parquet", ["c1"])
    assert texts_of(tmp_path, "train") == ["z1", "", "b1", "b2"]
    assert texts_of(tmp_path, "val") == ["c1"]


@pytest.mark.parametrize("count", [2, 99, 101, 2500])
def test_without_a_shard_of_its_own_validation_is_every_100th(tmp_path, count):
    texts = [f"text {number}" for number in range(count)]
    shard(tmp_path / "a.parquet", texts)
    assert texts_of(tmp_path, "val") == texts[::100]
    assert texts_of(tmp_path, "train") == [text for number, text in enumerate(texts) if number % 100]


def test_text_files_are_cut_at_line_ends_and_lose_nothing(tmp_path):
    whole = "".join(f"{number} 줄 \r\n" for number in range(5000)) + "no line end" + "x" * 20_000
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one.md").write_bytes(whole.encode())
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "two.txt").write_text("second")
    (tmp_path / "three.rst").write_text("not read")
    documents = next(open_corpus(str(tmp_path))._text_batches()).to_pylist()
    assert "".join(documents[:-1]) == whole
    assert documents[-1] == "second"
    assert len(documents) > 5
    assert all(text.endswith("\n") and len(text) < 8300 for text in documents[:-2])


def test_many_documents_come_in_several_batches(tmp_path):
    (tmp_path / "a.txt").write_text(("x" * 8191 + "\n") * 2100)
    batches = list(open_corpus(str(tmp_path)).batches("train"))
    assert len(batches) == 3
    assert sum(map(len, batches)) == 2100 - 21


def test_parquet_goes_before_text_and_says_so(tmp_path, capsys):
    shard(tmp_path / "a.parquet", ["row 1", "row 2"])
    (tmp_path / "README.md").write_text("about the shards")
    assert texts_of(tmp_path, "train") == ["row 2"]
    assert "its 1 .txt and .md files are not read" in capsys.readouterr().out


def test_what_a_folder_can_lack(tmp_path):
    assert "is no folder" in refusal(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    assert "holds no .parquet, .txt or .md file" in refusal(tmp_path / "empty")
    (tmp_path / "one.txt").write_text("a single document")
    assert "is a file, name its folder" in refusal(tmp_path / "one.txt")
    assert "has no document for train" in refusal(tmp_path)


def test_a_damaged_file_is_named_before_anything_is_read(tmp_path):
    shard(tmp_path / "a.parquet", ["text"] * 1000)
    bad = tmp_path / "b.parquet"
    for content in (b"", b"PAR1", (tmp_path / "a.parquet").read_bytes()[:-100]):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=r"b\.parquet is no whole parquet file"):
            open_corpus(str(tmp_path))


def test_a_damaged_page_is_named_when_it_is_read(tmp_path):
    pq.write_table(
        pa.table({"text": [f"some text {n}" for n in range(5000)]}), tmp_path / "a.parquet", compression="zstd"
    )
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[200 : len(content) // 2] = bytes(len(content) // 2 - 200)
    (tmp_path / "a.parquet").write_bytes(content)
    assert "a.parquet is damaged" in refusal(tmp_path)


def test_wrong_columns(tmp_path):
    shard(tmp_path / "a.parquet", ["x"], column="content")
    message = refusal(tmp_path)
    assert "a.parquet has no column `text`, only id, content" in message
    shard(tmp_path / "a.parquet", [1, 2], pa.int64())
    assert "of type int64, it has to be string" in refusal(tmp_path)
    shard(tmp_path / "a.parquet", ["x", None, "y"])
    assert "a.parquet has 1 nulls" in refusal(tmp_path)


def test_text_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "bad.txt").write_bytes("añb".encode("latin-1"))
    assert "bad.txt is not UTF-8 (byte 1)" in refusal(tmp_path)


# ---- corpora with a name ----


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with a mirror and a Python of two files, one of them not UTF-8."""
    mirror = tmp_path / "hub/datasets/local/mixed-text"
    for number in range(2):
        shard(mirror / f"shard_{number}.parquet", [f"mixed {number}"])
    library = tmp_path / "python/site-packages"
    library.mkdir(parents=True)
    (library / "good.py").write_text("a = 1\n" * 5000)
    (library / "bad.py").write_bytes(b"# \xff\n")
    folders = {"stdlib": library.parent, "purelib": library, "platlib": library}
    monkeypatch.setattr(corpus.sysconfig, "get_path", lambda name: str(folders[name]))
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "hub"))
    return tmp_path


def test_auto_is_the_first_that_is_here(machine, monkeypatch, capsys):
    assert open_corpus("auto").name == "mixed-text"
    assert texts_of("mixed-text", "val") == ["mixed 1"]
    capsys.readouterr()
    monkeypatch.delenv("NANOCHAT_HUB")
    assert open_corpus("auto").name == "python"
    assert "python is the first corpus here (mixed-text: set NANOCHAT_HUB" in capsys.readouterr().out
    assert "set NANOCHAT_HUB" in refusal("mixed-text")


def test_python_leaves_out_what_is_not_utf8_and_counts_it(machine, capsys):
    assert len(open_corpus("python").files) == 2  # each once, although one folder lies in the other
    assert set("".join(texts_of("python", "train")).splitlines()) == {"a = 1"}
    assert "left 1 files of python out" in capsys.readouterr().out


def test_a_machine_without_any(machine, monkeypatch):
    monkeypatch.delenv("NANOCHAT_HUB")
    for file in (machine / "python").rglob("*.py"):
        file.unlink()
    assert "name a folder" in refusal("auto")


def test_this_machine_has_python_text():
    found = open_corpus("python")
    assert len(found.files) > 100
    assert next(found.batches("val"))[0].as_py()


def test_what_a_record_says(tmp_path, text_folder, monkeypatch):
    about = open_corpus(str(text_folder)).describe()
    size = sum(file.stat().st_size for file in text_folder.iterdir())
    assert (about["name"], about["files"], about["bytes"]) == ("letters", 40, size)
    assert str(tmp_path) not in str(about)
    monkeypatch.chdir(text_folder)
    assert open_corpus(".").describe() == about
    (text_folder / "00.txt").write_text("shorter")
    assert open_corpus(".").describe()["fingerprint"] != about["fingerprint"]
    assert len(about["fingerprint"]) == len(hashlib.sha256().hexdigest())


def test_size_is_at_least_the_characters(tmp_path):
    shard(tmp_path / "a.parquet", [f"{number} 가나다" * 30 for number in range(3000)])
    found = open_corpus(str(tmp_path))
    characters = sum(
        len(text.as_py()) for split in ("train", "val") for batch in found.batches(split) for text in batch
    )
    assert characters <= found.size < 4 * characters
