import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanochat.data import corpus
from nanochat.data.corpus import CORPORA, open_corpus
from nanochat.data.hub import HubError
from nanochat.dataloader import TextLoader
from nanochat.tokenizer import Tokenizer


def shard(path: Path, texts: list, kind=None, **how) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": pa.array(texts, kind or pa.string())}), path, **how)
    return path


def folder(path: Path, count: int, word: str) -> Path:
    path.mkdir(parents=True)
    (path / "a.jsonl").write_text("".join(json.dumps({"text": f"{word} {number}"}) + "\n" for number in range(count)))
    return path


def texts_of(data, split: str, **how) -> list[str]:
    batches = list(open_corpus(str(data), **how).batches(split))
    assert all(pa.types.is_string(batch.type) or pa.types.is_large_string(batch.type) for batch in batches)
    return [text for batch in batches for text in batch.to_pylist()]


def refusal(data, **how) -> str:
    with pytest.raises(ValueError) as refused:
        texts_of(data, "train", **how)
    return str(refused.value)


@pytest.fixture(autouse=True)
def mirror(tmp_path, monkeypatch):
    """A mirror with the default shards of two corpora, and a folder for what is made."""
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path / "base"))
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "mirror"))
    for name in ("climbmix", "mixed-text"):
        for number, file in enumerate(CORPORA[name].files()):
            texts = [f"{name} {number} {row}" for row in range(6)]
            shard(tmp_path / "mirror" / str(file), texts, row_group_size=2)
    return tmp_path / "mirror/datasets"


# ---- a folder ----


def test_a_folder_is_converted_and_read(tmp_path):
    path = folder(tmp_path / "my text, 0.5:0.5", 200, "row")
    (path / "more.txt").write_text("and a text")
    assert texts_of(path, "train") == texts_of(f"folder:{path}", "train")
    everything = texts_of(path, "train") + texts_of(path, "val")
    assert sorted(everything) == sorted([*(f"row {number}" for number in range(200)), "and a text"])
    assert open_corpus(str(path)).name == "my text, 0.5:0.5"


def test_what_a_folder_can_lack(tmp_path):
    assert "is no folder; the corpora with a name are auto, climbmix, " in refusal(tmp_path / "missing")
    assert "folder:missing is no folder" in refusal("folder:missing")
    (tmp_path / "empty").mkdir()
    assert "holds no .parquet, .jsonl, .txt, .md file" in refusal(tmp_path / "empty")
    (tmp_path / "one.txt").write_text("a single document")
    assert "is a file, name its folder" in refusal(tmp_path / "one.txt")


def test_bad_rows_are_an_error_or_left_out(tmp_path):
    path = folder(tmp_path / "text", 100, "row")
    with open(path / "a.jsonl", "a") as file:
        file.write("{}\n")
    assert "a.jsonl:101: not an object with a text" in refusal(path)
    assert len(texts_of(path, "train", skip_bad=True) + texts_of(path, "val", skip_bad=True)) == 100


# ---- names ----


@pytest.mark.parametrize("name", CORPORA)
def test_the_validation_shard_is_never_trained_on(name):
    named = CORPORA[name]
    for count in (0, 1, named.count):
        *train, validation = named.files(count)
        assert len(set(train)) == len(train) == (count or named.default)
        assert validation not in train
    assert f"{named.count + 1} is out of range" in refusal(name, num_shards=named.count + 1)


def test_the_files_of_the_hub():
    files = [str(file) for file in CORPORA["climbmix"].files(CORPORA["climbmix"].count)]
    assert len(files) == 6543
    assert files[0] == "datasets/karpathy/climbmix-400b-shuffle/shard_00000.parquet"
    assert files[-2:] == [f"datasets/karpathy/climbmix-400b-shuffle/shard_0654{i}.parquet" for i in (1, 2)]
    korean = [file.path for file in CORPORA["fineweb2-ko"].files(25)]
    assert korean[0] == "data/kor_Hang/train/000_00000.parquet"
    assert korean[5] == "data/kor_Hang/train/001_00000.parquet"
    assert korean[-2:] == ["data/kor_Hang/train/004_00004.parquet", "data/kor_Hang/test/000_00000.parquet"]


def test_a_corpus_by_name_is_read_where_it_lies(mirror):
    found = open_corpus("climbmix")
    assert texts_of("climbmix", "train") == [f"climbmix {n} {row}" for n in range(8) for row in range(6)]
    assert texts_of("climbmix", "val") == [f"climbmix 8 {row}" for row in range(6)]
    assert texts_of("climbmix", "train", num_shards=2)[-1] == "climbmix 1 5"
    [(source, share)] = found.parts
    assert (source.name, share) == ("climbmix", 1.0)
    assert [entry.path.parent for entry in source.train] == [mirror / "karpathy/climbmix-400b-shuffle"] * 8
    assert {(entry.row_groups, entry.rows, entry.column) for entry in source.train + source.val} == {(3, 6, "text")}


def test_as_many_shards_as_a_run_needs(tmp_path, mirror):
    """Of the mirror all shards are alike, but for the one to validate."""
    each = open_corpus("climbmix", num_shards=1).parts[0][0].train[0].size / corpus.BYTES_PER_TOKEN
    assert corpus.shards_for("climbmix", 1) == 1
    assert corpus.shards_for("climbmix", 2.9 * each) == 3
    assert corpus.shards_for("climbmix", 3.1 * each) == 4
    assert corpus.shards_for("auto", 1e15) == CORPORA["climbmix"].count
    assert corpus.shards_for(f"climbmix:1,{folder(tmp_path / 'text', 9, 'row')}:3", 39 * each) == 10
    assert corpus.shards_for("climbmix:1,mixed-text:3", 7.9 * each) == 6
    assert corpus.shards_for(str(tmp_path / "text"), 1e15) == 0


def test_all_that_is_missing_is_listed(mirror):
    for number in (1, 4):
        (mirror / f"local/mixed-text/shard_{number:05d}.parquet").unlink()
    with pytest.raises(HubError) as refused:
        open_corpus("mixed-text")
    assert [line.split(":")[0].strip() for line in str(refused.value).splitlines()[1:]] == [
        "datasets/local/mixed-text/shard_00001.parquet",
        "datasets/local/mixed-text/shard_00004.parquet",
    ]


def test_auto_is_the_first_that_is_here(mirror, capsys):
    assert open_corpus("auto").name == "climbmix"
    with pytest.raises(HubError, match="12 of 21 files cannot be had"):  # more shards are no other corpus
        open_corpus("auto", num_shards=20)
    (mirror / "karpathy/climbmix-400b-shuffle/shard_00003.parquet").unlink()
    assert open_corpus("auto").name == "mixed-text"
    assert "data: mixed-text is what --data=auto finds" in capsys.readouterr().out
    (mirror / "local/mixed-text/shard_00003.parquet").unlink()
    for number in range(3):
        shard(mirror / f"local/world/shard_{number:05d}.parquet", [f"world {number}"])
    assert texts_of("auto", "train") == ["world 0", "world 1"]
    assert texts_of("world", "val") == ["world 2"]


def test_python_leaves_out_what_is_not_utf8_and_counts_it(tmp_path, monkeypatch, capsys):
    library = tmp_path / "lib"
    (library / "site-packages").mkdir(parents=True)
    (library / "good.py").write_text("a = 1\n" * 5000)
    (library / "bad.py").write_bytes(b"# \xff\n")
    (library / "site-packages/other.py").write_text("b = 2\n")
    monkeypatch.setattr(corpus.sysconfig, "get_path", lambda name: str(library))
    assert set("".join(texts_of("python", "train")).splitlines()) == {"a = 1"}
    assert "1 bad left out" in capsys.readouterr().out


# ---- mixes ----


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        ("climbmix:0.7,mixed-text:0.3", [("climbmix", 0.7), ("mixed-text", 0.3)]),
        ("climbmix:2, folder:/a:b:6", [("climbmix", 0.25), ("folder:/a:b", 0.75)]),
        ("folder:relative/path:1e-1,my-text:.9", [("folder:relative/path", 0.1), ("my-text", 0.9)]),
        ("climbmix:0.7", [("climbmix", 1.0)]),
        ("folder:/a:b", [("folder:/a:b", 1.0)]),
    ],
)
def test_a_mix_is_read_as_it_was_meant(data, parts):
    assert corpus._parse(data) == parts


@pytest.mark.parametrize(
    "data",
    ["climbmix,mixed-text", "climbmix:0.5,mixed-text", "climbmix:0,python:1", "climbmix:-1,python:1", "a:nan,b:1"],
)
def test_every_part_needs_its_share(data):
    assert "needs its share of the tokens, like climbmix:0.7" in refusal(data)


def test_a_source_is_named_once():
    assert "names a source twice" in refusal("climbmix:0.5,climbmix:0.5")


def test_a_mix_keeps_its_shares_until_a_part_ends(tmp_path):
    paths = [folder(tmp_path / name, 3000, name) for name in ("first", "other")]
    found = open_corpus(f"{paths[0]}:3,folder:{paths[1]}:1")
    assert [(source.name, share) for source, share in found.parts] == [("first", 0.75), ("other", 0.25)]
    assert found.name == "first:0.75+other:0.25"
    read = [text.split()[0] for batch in found.batches("train") for text in batch.to_pylist()]
    assert sorted(set(read)) == ["first", "other"]
    assert 5800 < len(read) < 6000  # none is left out in the end
    for end in (1000, 2000, 3500):
        assert 0.7 < read[:end].count("first") / end < 0.8
    assert {text.split()[0] for batch in found.batches("val") for text in batch.to_pylist()} == {"first", "other"}


# ---- damage ----


def test_damaged_shards_are_an_error_or_left_out(mirror, capsys):
    bad = mirror / "local/mixed-text/shard_00002.parquet"
    bad.write_bytes(bad.read_bytes()[:-50])
    assert "shard_00002.parquet is no whole parquet file" in refusal("mixed-text")
    found = open_corpus("mixed-text", skip_bad=True)
    assert found.bad.count == 1
    assert "data: left out: " in capsys.readouterr().out
    assert len(found.parts[0][0].train) == 6
    validation = mirror / "local/mixed-text/shard_00007.parquet"
    validation.write_bytes(b"")
    assert "mixed-text has no whole shard for val" in refusal("mixed-text", skip_bad=True)


def test_a_shard_that_changes_under_way(mirror, capsys):
    for skip_bad, left in ((False, 0), (True, 36)):
        found = open_corpus("mixed-text", skip_bad=skip_bad)
        changed = mirror / "local/mixed-text/shard_00000.parquet"
        shard(changed, [f"changed {skip_bad}"] * 6, row_group_size=2)
        if skip_bad:
            assert sum(map(len, found.batches("train"))) == left
            assert found.bad.count == capsys.readouterr().out.count("data: left out: ") == 1  # not once a row group
        else:
            with pytest.raises(ValueError, match=r"shard_00000\.parquet has changed since this run began"):
                next(found.batches("train"))
            with (
                TextLoader(found, Tokenizer.train(["any"], 266), 1, 8, lanes=1) as loader,
                pytest.raises(ValueError, match=r"shard_00000\.parquet has changed since this run began"),
            ):
                next(loader)


def test_the_same_text_is_not_to_train_on_and_to_validate(mirror):
    files = mirror / "local/mixed-text"
    (files / "shard_00002.parquet").write_bytes((files / "shard_00007.parquet").read_bytes())
    assert "shard_00002.parquet is to train on and to validate" in refusal("mixed-text")


# ---- records ----


def test_what_a_record_says(tmp_path, text_folder, monkeypatch):
    about = open_corpus(str(text_folder)).describe()
    assert (about["name"], about["files"]) == ("letters", 2)
    assert str(tmp_path) not in str(about)
    monkeypatch.chdir(text_folder)
    assert open_corpus(".").describe() == about
    (text_folder / "00.txt").write_text("shorter")
    other = open_corpus(".").describe()
    assert other["fingerprint"] != about["fingerprint"]
    assert len(about["fingerprint"]) == len(about["validation"]) == len(hashlib.sha256().hexdigest())
    mixes = [open_corpus(f"climbmix:{share},mixed-text:1").describe() for share in (1, 2)]
    assert mixes[0]["fingerprint"] != mixes[1]["fingerprint"]
    assert mixes[0]["validation"] == mixes[1]["validation"]


def test_what_a_manifest_says(mirror):
    entries = open_corpus("mixed-text").manifest()
    assert len(entries) == 8
    assert [entry["split"] for entry in entries] == ["train"] * 7 + ["val"]
    for entry in entries:
        content = (mirror / "local/mixed-text" / entry["file"]).read_bytes()
        assert (entry["size"], entry["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
        assert (entry["source"], entry["revision"], entry["rows"]) == ("mixed-text", None, 6)


def test_the_size_of_text(tmp_path):
    found = open_corpus(str(folder(tmp_path / "text", 3000, "가나다" * 30)))
    characters = sum(
        len(text.as_py()) for split in ("train", "val") for batch in found.batches(split) for text in batch
    )
    assert characters <= found.size < 4 * characters


def test_no_batch_of_any_seed_mix_or_epoch_has_validation_text(tmp_path):
    names = ("alpha", "beta")
    found = open_corpus(
        ",".join(f"{folder(tmp_path / name, 300, name)}:{share}" for name, share in zip(names, (3, 1), strict=True))
    )
    tokenizer = Tokenizer.train(["alpha beta 0123456789"], 266)  # so that what is decoded is what was written
    # Of three digits, so that none is what a row has left of another.
    held_out = [text for batch in found.batches("val") for text in batch.to_pylist() if text[-3:].isdigit()]
    trained = [text for batch in found.batches("train") for text in batch.to_pylist()]
    assert len(held_out) >= 2
    for seed in (0, 1):
        seen = set()
        with TextLoader(found, tokenizer, 8, 255, lanes=8, seed=seed) as loader:
            while min(loader.epochs.values()) < 2:
                for row in next(loader)[0].tolist():
                    seen.update(tokenizer.decode(row).split("<|bos|>"))
        assert not seen & set(held_out)
        assert len(seen & set(trained)) > 0.9 * len(trained)


def test_the_real_mixed_text(monkeypatch):
    shared = Path(__file__).resolve().parents[3] / "shared/hub"
    if not shared.is_dir():
        pytest.skip("no mirror with real data beside this checkout")
    monkeypatch.setenv("NANOCHAT_HUB", str(shared))
    found = open_corpus("mixed-text")
    assert found.describe()["documents"] == 16384
    assert {entry.row_groups for entry in found.parts[0][0].train} == {2}
    assert len(next(found.batches("val"))) == 1024
