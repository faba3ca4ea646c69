"""Corpora by name, folders and mixes; shards opened and read."""

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import cells, plant_world
from corpora import write_jsonl, write_shard

from nanochat.data import corpus
from nanochat.data.corpus import (
    CORPORA,
    absolute_data,
    default_shards,
    open_corpus,
    open_shards,
    parse_data,
    shards_for,
)
from nanochat.data.hub import HubError
from nanochat.dataloader import TextLoader
from nanochat.errors import UserError
from nanochat.tokenizer import Tokenizer


def folder(path: Path, count: int, word: str):
    return write_jsonl(path / "a.jsonl", [f"{word} {number}" for number in range(count)]).parent


def texts_of(data, split: str, **options):
    return [text for batch in open_corpus(str(data), **options).batches(split) for text in batch.to_pylist()]


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A mirror with the default shards of two corpora."""
    monkeypatch.setenv("NANOCHAT_HUB", str(tmp_path / "mirror"))
    for name in ("climbmix", "mixed-text"):
        for number, file in enumerate(CORPORA[name].files()):
            texts = [f"{name} {number} {row}" for row in range(6)]
            write_shard(tmp_path / "mirror" / str(file), texts, row_group_size=2)
    return tmp_path / "mirror/datasets"


def test_a_shard_is_what_the_file_holds_and_a_damaged_one_is_named(tmp_path) -> None:
    texts = [f"{number} 가나다" * 30 for number in range(2500)]
    path = write_shard(tmp_path / "a.parquet", texts, pa.large_string(), row_group_size=1000)
    [shard] = open_shards([path])
    assert (shard.path, shard.row_groups, shard.rows) == (path, 3, 2500)
    assert shard.hash == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sum(map(len, texts)) <= shard.size < 4 * sum(map(len, texts))
    assert [text for group in range(3) for text in shard.read_row_group(group).to_pylist()] == texts
    # A damaged shard is named.
    path = write_shard(tmp_path / "a.parquet", ["text"] * 1000)
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[:-100]):
        (tmp_path / "b.parquet").write_bytes(content)
        with pytest.raises(ValueError, match=r"b\.parquet is not a complete parquet file"):
            open_shards([path, tmp_path / "b.parquet"])
    # A flipped bit that is still UTF-8 is found by the checksum of the page.
    texts = [f"some text {number}" for number in range(5000)]
    write_shard(path, texts, compression="none", use_dictionary=False, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[content.index(b"text 3000")] ^= 1
    path.write_bytes(content)
    [shard] = open_shards([path])
    with pytest.raises(ValueError, match=r"a\.parquet is not a complete parquet file"):
        shard.read_row_group(0)


def test_a_folder_is_converted_and_read(tmp_path) -> None:
    path = folder(tmp_path / "my text, 0.5:0.5", 200, "row")
    (path / "more.txt").write_text("and a text")
    assert texts_of(path, "train") == texts_of(f"folder:{path}", "train")
    everything = texts_of(path, "train") + texts_of(path, "val")
    assert sorted(everything) == sorted([*(f"row {number}" for number in range(200)), "and a text"])
    assert open_corpus(str(path)).name == "my text, 0.5:0.5"


def test_folders_that_are_none(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "one.txt").write_text("a single document")
    for data in (tmp_path / "missing", "folder:missing", tmp_path / "empty", tmp_path / "one.txt", "climbmix:-1"):
        with pytest.raises(ValueError, match=r"is not a folder with .* corpora with a name are climbmix, "):
            absolute_data(str(data))
    for data in ("", "world:0", "climbmix,world:0.0", "climbmix,"):
        with pytest.raises(ValueError, match=r"names no text: write it like climbmix:0.7,my-text:0.3"):
            absolute_data(data)
    assert absolute_data("climbmix:1,world:1") == "climbmix:0.5,world:0.5"
    assert not (Path.home() / ".cache/nanochat").exists()  # nothing was made for it


def test_the_files_of_the_hub_and_validation_is_never_trained_on() -> None:
    for named in CORPORA.values():
        for count in (0, 1, named.count):
            *train, validation = named.files(count)
            assert len(set(train)) == len(train) == (count or named.default)
            assert validation not in train
        with pytest.raises(ValueError, match=f"{named.count + 1} is out of range"):
            named.files(named.count + 1)
    files = [str(file) for file in CORPORA["climbmix"].files(6542)]
    assert files[-1] == "datasets/karpathy/climbmix-400b-shuffle/shard_06542.parquet"
    korean = [file.path for file in CORPORA["fineweb2-ko"].files(25)]
    assert korean[-2:] == ["data/kor_Hang/train/004_00024.parquet", "data/kor_Hang/test/000_00000.parquet"]


def test_a_corpus_by_name_is_read_from_the_mirror_as_far_as_a_run_needs_it(mirror, tmp_path) -> None:
    [source] = open_corpus("climbmix").sources
    assert texts_of("climbmix", "train") == [f"climbmix {n} {row}" for n in range(8) for row in range(6)]
    assert texts_of("climbmix", "val") == [f"climbmix 8 {row}" for row in range(6)]
    assert texts_of("climbmix", "train", num_shards=2)[-1] == "climbmix 1 5"
    assert (source.name, source.share) == ("climbmix", 1.0)
    assert [shard.path.parent for shard in source.shards["train"]] == [mirror / "karpathy/climbmix-400b-shuffle"] * 8
    [source] = open_corpus("climbmix", num_shards=1).sources
    tokens = source.shards["train"][0].size / corpus.BYTES_PER_TOKEN  # in a shard
    path = folder(tmp_path / "text", 9, "row")
    assert shards_for("climbmix", 1) == 1
    assert shards_for("climbmix", 2.9 * tokens) == 3
    assert shards_for("climbmix", 3.1 * tokens) == 4
    assert shards_for("auto", 1e15) == CORPORA["climbmix"].count
    assert shards_for(f"climbmix:1,{path}:3", 39 * tokens) == 10
    assert shards_for("climbmix:1,mixed-text:3", 7.9 * tokens) == {"climbmix": 2, "mixed-text": 6}
    assert shards_for(str(path), 1e15) == 0


def test_each_part_of_a_mix_has_as_many_shards_as_its_share_needs(mirror) -> None:
    data = "climbmix:0.9,mixed-text:0.1"
    [shard] = open_shards([mirror / "karpathy/climbmix-400b-shuffle/shard_00000.parquet"])
    tokens = shard.size / corpus.BYTES_PER_TOKEN
    chosen = shards_for(data, 8 * tokens)
    assert chosen == {"climbmix": 8, "mixed-text": 1}
    sources = open_corpus(data, chosen).sources
    assert [len(source.shards["train"]) for source in sources] == [8, 1]
    # No part has more than there are; a number that a person gave is for every part, and has to fit.
    assert shards_for(data, 1e15) == {name: CORPORA[name].count for name in ("climbmix", "mixed-text")}
    with pytest.raises(UserError, match="--num-shards=8 is out of range, local/mixed-text has 7"):
        open_corpus(data, 8)


def test_how_much_is_read_where_nobody_says_how_much(text_folder) -> None:
    """For a run that a clock ends: such text begins again without a word otherwise."""
    named = CORPORA["climbmix"]
    assert default_shards("climbmix") == [f"{named.default} of {named.count:,} shards of climbmix"]
    assert len(default_shards(f"climbmix:0.5,fineweb2-ko:0.3,{text_folder}:0.2")) == 2
    assert default_shards(str(text_folder)) == default_shards("world") == []


def test_auto_is_the_first_corpus_on_this_machine(mirror, capsys, tiny_world, tmp_path, monkeypatch) -> None:
    assert open_corpus("auto").name == "climbmix"
    assert open_corpus("auto").describe()["world seed"] is None
    with pytest.raises(HubError, match="12 of 21 files are not available"):  # more shards are no reason for another
        open_corpus("auto", num_shards=20)
    (mirror / "karpathy/climbmix-400b-shuffle/shard_00003.parquet").unlink()
    assert open_corpus("auto").name == "mixed-text"
    assert "data: mixed-text is what --data=auto finds" in capsys.readouterr().out
    (mirror / "local/mixed-text/shard_00003.parquet").unlink()
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(plant_world(tmp_path, tiny_world)))
    assert open_corpus("auto").describe()["world seed"] == 1
    assert texts_of("auto", "val") == pq.read_table(tiny_world / "text/shard_00008.parquet")["text"].to_pylist()


MIXES = """
climbmix:0.7,mixed-text:0.3 → climbmix 0.7 mixed-text 0.3
climbmix:2, folder:/a:b:6 → climbmix 0.25 folder:/a:b 0.75
folder:relative/path:0.1,my-text:.9 → folder:relative/path 0.1 my-text 0.9
climbmix,my-text → climbmix 0.5 my-text 0.5
climbmix:0.7 → climbmix 1.0
folder:/a:b → folder:/a:b 1.0
"""


def test_a_mix_is_parsed_and_keeps_its_shares_until_a_part_ends(tmp_path) -> None:
    for data, parts in cells(MIXES, " → "):
        assert " ".join(f"{name} {share}" for name, share in parse_data(data)) == parts
    paths = [folder(tmp_path / name, 3000, name) for name in ("first", "other")]
    data = f"{paths[0]}:3,folder:{paths[1]}:1"
    mix = open_corpus(data)
    assert [(source.name, source.share) for source in mix.sources] == [("first", 0.75), ("other", 0.25)]
    assert mix.name == "first:0.75+other:0.25"
    read = [text.split()[0] for text in texts_of(data, "train")]
    assert 5800 < len(read) < 6000  # all are read in the end
    early = read[: len(read) // 2]
    assert abs(early.count("first") / len(early) - 0.75) < 0.05


def test_no_batch_of_any_seed_mix_or_epoch_has_validation_text(tmp_path) -> None:
    paths = [folder(tmp_path / name, 300, name) for name in ("alpha", "beta")]
    data = f"{paths[0]}:3,{paths[1]}:1"
    tokenizer = Tokenizer.train(["alpha beta 0123456789"], 266)  # decoded text is the text that was written
    # With three digits, or a shorter one could be the rest of another.
    held_out = [text for text in texts_of(data, "val") if text[-3:].isdigit()]
    trained = texts_of(data, "train")
    assert len(held_out) >= 2
    for seed in (0, 1):
        seen = set()
        with TextLoader(open_corpus(data), tokenizer, 8, 255, lanes=8, seed=seed) as loader:
            deals, chunks = loader._deals, loader._chunks
            while any(deals[source].epoch(lane, chunk.unit) < 2 for (lane, source), chunk in chunks.items()):
                for row in next(loader)[0].tolist():
                    seen.update(tokenizer.decode(row).split("<|bos|>"))
        assert not seen & set(held_out)
        assert len(seen & set(trained)) > 0.9 * len(trained)


def test_describe_depends_on_content_and_not_on_the_machine(tmp_path, text_folder, mirror, monkeypatch) -> None:
    about = open_corpus(str(text_folder)).describe()
    assert (about["name"], about["files"]) == ("letters", 2)
    assert str(tmp_path) not in str(about)
    monkeypatch.chdir(text_folder)
    assert open_corpus(".").describe() == about
    (text_folder / "00.txt").write_text("shorter")
    assert open_corpus(".").describe()["fingerprint"] != about["fingerprint"]
    mixes = [open_corpus(f"climbmix:{share},mixed-text:1").describe() for share in (1, 2)]
    assert mixes[0]["fingerprint"] != mixes[1]["fingerprint"]
    assert mixes[0]["validation"] == mixes[1]["validation"]
