"""Folders of text become shuffled shards: nothing lost, nothing twice, validation pinned, whole or not at all."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nanochat.data import folder
from nanochat.data.documents import text_files
from nanochat.data.folder import convert

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path / "base"))
    return tmp_path / "base"


def text_folder(path: Path, texts: list[str], name: str = "a.jsonl") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def converted(path: Path, **how) -> Path:
    return convert(path.name, path, text_files(path), **how)


def rows(home: Path, split: str) -> list[str]:
    return [text for file in sorted(home.glob(f"{split}*.parquet")) for text in pq.read_table(file)["text"].to_pylist()]


def sizes_of_row_groups(file: Path) -> list[int]:
    about = pq.read_metadata(file)
    return [about.row_group(number).num_rows for number in range(about.num_row_groups)]


def numbers(count: int, prefix: str = "") -> list[str]:
    return [f"{prefix}document {number}" for number in range(count)]


def test_nothing_is_lost_and_nothing_comes_twice(base, tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "SHARD_BYTES", 200_000)
    monkeypatch.setattr(folder, "DEALT_CHARS", 1000)
    seed = random.randrange(2**32)
    print("seed", seed)
    generator = random.Random(seed)
    texts = [f"{number} " + "가나다 " * generator.randrange(200) for number in range(5000)]
    home = converted(text_folder(tmp_path / "many", texts), seed=seed)
    assert sorted(rows(home, "train") + rows(home, "val")) == sorted(texts)
    assert 10 < len(rows(home, "val")) < 120
    names = sorted(path.name for path in home.iterdir())
    assert names == ["manifest.json", *(f"train-{i:05d}.parquet" for i in range(len(names) - 2)), "val.parquet"]
    assert len(names) > 10


def test_documents_are_shuffled_by_the_seed(base, tmp_path):
    path = text_folder(tmp_path / "text", numbers(2000))
    orders = [rows(converted(path, seed=seed), "train") for seed in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]
    kept = [a < b for a, b in zip(orders[0], orders[0][1:], strict=False)]
    assert 0.4 < sum(kept) / len(kept) < 0.6  # as often up as down


def test_a_conversion_is_found_again_by_its_content(base, tmp_path, capsys):
    path = text_folder(tmp_path / "text", numbers(100))
    home = converted(path)
    before = {file.name: file.stat().st_mtime_ns for file in home.iterdir()}
    os.utime(path / "a.jsonl")
    assert converted(path) == home
    assert {file.name: file.stat().st_mtime_ns for file in home.iterdir()} == before
    moved = path.rename(tmp_path / "elsewhere")
    assert convert("text", moved, text_files(moved)) == home
    # Same name, size and time, other content.
    about = (moved / "a.jsonl").stat()
    (moved / "a.jsonl").write_bytes((moved / "a.jsonl").read_bytes().replace(b'document 7"', b'document X"'))
    os.utime(moved / "a.jsonl", ns=(about.st_atime_ns, about.st_mtime_ns))
    other = convert("text", moved, text_files(moved))
    assert other != home
    assert "document X" in rows(other, "train") + rows(other, "val")


def test_validation_never_moves_into_training(base, tmp_path):
    path = text_folder(tmp_path / "text", numbers(3000))
    held_out = set(rows(converted(path), "val"))
    text_folder(path, numbers(3000, "more "), "0-first.jsonl")
    text_folder(path, numbers(500), "z-the-same-again.jsonl")
    home = converted(path)
    assert held_out < set(rows(home, "val"))
    assert not set(rows(home, "train")) & set(rows(home, "val"))


@pytest.mark.parametrize("count", [2, 3, 40])
def test_few_documents(base, tmp_path, count):
    home = converted(text_folder(tmp_path / "few", numbers(count)))
    assert sorted(rows(home, "train") + rows(home, "val")) == sorted(numbers(count))
    assert rows(home, "val")
    assert sizes_of_row_groups(home / "train-00000.parquet") == [1] * len(rows(home, "train"))


def test_row_groups_are_as_large_as_64_of_them_allow(base, tmp_path, monkeypatch):
    home = converted(text_folder(tmp_path / "text", numbers(1000)))
    assert max(sizes_of_row_groups(home / "train-00000.parquet")) == 1000 // 64
    monkeypatch.setattr(folder, "LEAST_ROW_GROUPS", 1)
    home = converted(text_folder(tmp_path / "text", numbers(3000)))
    assert sizes_of_row_groups(home / "train-00000.parquet")[:2] == [1024, 1024]


@pytest.mark.parametrize("texts", [[], ["one"], ["same", "same"], [" \n", "one"]])
def test_too_few_documents(base, tmp_path, texts):
    with pytest.raises(ValueError, match="needs two different documents"):
        converted(text_folder(tmp_path / "tiny", texts))
    assert not [path for path in (base / "corpora").iterdir() if path.is_dir()]


def test_blank_documents_are_left_out_and_counted(base, tmp_path, capsys):
    home = converted(text_folder(tmp_path / "text", ["", " \n\t", *numbers(10)]))
    assert sorted(rows(home, "train") + rows(home, "val")) == numbers(10)
    assert "2 blank left out" in capsys.readouterr().out


def test_bad_rows_stop_it_or_are_counted(base, tmp_path, capsys):
    path = text_folder(tmp_path / "text", numbers(50))
    with open(path / "a.jsonl", "a") as file:
        file.write("not json\n")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"a\.jsonl:51: not JSON .*--skip-bad"):
            converted(path)
        assert not [path for path in (base / "corpora").iterdir() if path.is_dir()]
        capsys.readouterr()
    home = converted(path, skip_bad=True)
    assert len(rows(home, "train") + rows(home, "val")) == 50
    assert "1 bad left out (the first: " in capsys.readouterr().out
    assert converted(path, skip_bad=True) == home
    with pytest.raises(ValueError, match=r"a\.jsonl:51: not JSON"):  # what was made by leaving out is no whole folder
        converted(path)


CONVERT = """
import sys
from pathlib import Path
from nanochat.data import folder
from nanochat.data.documents import text_files
publish = folder.publish_folder
def slowly(part, home):
    print("made", flush=True)
    sys.stdin.readline()
    publish(part, home)
folder.publish_folder = slowly
path = Path(sys.argv[1])
print(folder.convert("text", path, text_files(path)))
"""


def start(path: Path) -> subprocess.Popen:
    """A conversion that says "made", and puts the folder in its place when it is told to."""
    command = [sys.executable, "-u", "-c", CONVERT, str(path)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_killed_conversion_leaves_nothing_that_counts(base, tmp_path):
    path = text_folder(tmp_path / "text", numbers(100))
    process = start(path)
    assert process.stdout.readline() == "made\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    [left] = [found for found in (base / "corpora").iterdir() if found.is_dir()]
    assert left.name.endswith(".tmp")
    home = convert("text", path, text_files(path))
    assert [found for found in (base / "corpora").iterdir() if found.is_dir()] == [home]
    assert len(rows(home, "train") + rows(home, "val")) == 100


def test_two_processes_make_it_once(base, tmp_path):
    path = text_folder(tmp_path / "text", numbers(100))
    first = start(path)
    assert first.stdout.readline() == "made\n"
    second = start(path)
    while "data: waiting for another process" not in (line := second.stdout.readline()):
        assert line.startswith("data: ")
    answers = [process.communicate("go\n", timeout=60)[0].splitlines() for process in (first, second)]
    assert answers[0][-1] == answers[1][-1]
    assert "made" not in answers[1]
