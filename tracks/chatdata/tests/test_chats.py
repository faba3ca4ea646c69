"""The script chats: planted rows, parts, a killed run, and mistakes; in this process, except where one is killed."""

import os
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_files import write_lines
from conftest import ROOT, plant_world
from made_chats import chat, chats, small_tokenizer

from nanochat.paths import read_json, read_jsonl, write_json
from tasks import TASKS
from tracks.chatdata.filters import FILTERS

SCRIPT = "tracks.chatdata.chats"


@pytest.fixture(autouse=True)
def ready(base, tiny_world) -> None:
    """A tokenizer and a world."""
    plant_world(base, tiny_world)
    small_tokenizer().save(base / "tok_train/default/tokenizer.json")


def tables(folder) -> dict[str, list]:
    return {one["title"]: one["rows"] for one in read_json(folder / "outcome.json")["tables"]}


def output(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "outcome.json" and path.is_file()}


def test_planted_rows_are_found_and_counted(here, base, tmp_path) -> None:
    good = chats(1, 60)
    question = TASKS["World-Facts"]()[0]["messages"][0]["content"]
    planted = {
        "contamination": chat(f"Well: {question.upper()}", "Who knows."),
        "images": chat("![a](b.png)", "A picture."),
        "turns": chat("Hi", "Ho", "Hi"),
    }
    rows = [*good, *planted.values(), good[3], good[5] | {"license": "MIT"}]
    web = write_lines(tmp_path / "web.jsonl", *rows)
    write_lines(tmp_path / "mixed/b.jsonl", *(one["messages"] for one in chats(3, 20)))
    translated = chat("하나 둘 셋?", "네, 그렇습니다.", original="One two three four?")
    pq.write_table(pa.Table.from_pylist([translated, *chats(2, 30)]), tmp_path / "mixed/a.parquet")
    mirror = tmp_path / "hub"
    write_lines(mirror / "datasets/some/set/data/train.jsonl", *chats(4, 10))
    sources = f"--sources=facts=World-Chat/validation,web={web},mixed={tmp_path / 'mixed'},more=hub:some/set"
    flags = (sources, "--against=world-facts", "--licenses=web=CC0-1.0", "--tag=t")
    here(SCRIPT, *flags, NANOCHAT_HUB=str(mirror))
    folder = base / "chats/t"
    found = tables(folder)
    dropped = {name: count for name, bucket, count in found["Dropped rows"] if bucket == "web"}
    assert dropped == dict.fromkeys(planted, 1) | {"exact": 2}
    assert [counts[:3] for counts in found["Buckets"][1:]] == [
        ["web", len(rows), 60],
        ["mixed", 51, 51],
        ["more", 10, 10],
    ]
    assert found["Length of translations, relative to the usual one"] == [["en-ko", 0.5, 1]]
    assert ["World-Facts", "web", 1] in found["Contamination"]
    kept = list(read_jsonl(folder / "web-00000.jsonl", dict))
    assert [row["messages"] for row in kept] == [row["messages"] for row in good]
    assert {(row["bucket"], row["source"], row["license"]) for row in kept} == {("web", "web.jsonl", "CC0-1.0")}
    assert next(read_jsonl(folder / "more-00000.jsonl", dict))["source"] == "some/set"
    assert '"original": "One two three four?"' in (folder / "mixed-00000.jsonl").read_text()
    manifest = read_json(folder / "manifest.json")
    assert {*manifest["files"]} == {path.name for path in folder.glob("*-0*.jsonl")}
    assert [name for name, *_ in manifest["counts"]["Filters"]] == [*FILTERS]
    assert "is finished" in here(SCRIPT, *flags, NANOCHAT_HUB=str(mirror)).stdout


def test_buckets_that_are_not_searched_for_questions_are_named(here, base, tmp_path) -> None:
    question = TASKS["World-Facts"]()[0]["messages"][0]["content"]
    rows = [*chats(1, 5), chat(f"Well: {question.upper()}", "Who knows.")]
    sources = ",".join(f"{name}={write_lines(tmp_path / name / 'a.jsonl', *rows)}" for name in ("searched", "other"))
    flags = (f"--sources={sources}", "--against=world-facts", "--filters=other=turns;all=contamination", "--tag=t")
    said = here(SCRIPT, *flags).stdout
    assert "chats: --filters leaves out contamination for other: questions may stay in their rows" in said
    found = tables(base / "chats/t")
    assert [row for row in found["Dropped rows"] if row[0] == "contamination"] == [["contamination", "searched", 1]]


def test_a_run_that_failed_is_repaired_by_other_settings_and_sources(here, base, tmp_path) -> None:
    web = write_lines(tmp_path / "web.jsonl", *chats(1, 5), {"text": "x"})
    flags = (f"--sources=web={web}", "--tag=t")
    here(SCRIPT, *flags, code=2)
    write_lines(tmp_path / "web.jsonl", *chats(1, 5))
    assert "the bucket web is empty" in here(SCRIPT, *flags, "--min-tokens=500", code=2).stderr
    here(SCRIPT, *flags)
    assert {path.name for path in (base / "chats/t").iterdir()} == {"web-00000.jsonl", "manifest.json", "outcome.json"}
    write_lines(tmp_path / "web.jsonl", *chats(1, 6))
    assert "was made with other settings or files (sources): " in here(SCRIPT, *flags, code=2).stderr


def test_shards_of_a_run_that_has_not_finished_are_no_chats_of_another(here, base, tmp_path) -> None:
    """A full disk ends the first run between two shards; the second one has one bucket, of another name."""
    one, two = (write_lines(tmp_path / f"{number}.jsonl", *chats(number, 5)) for number in (1, 2))
    folder = base / "chats/t"
    (folder / "two-00000.jsonl").mkdir(parents=True)  # in place of the disk: nothing can be moved here
    here(SCRIPT, f"--sources=one={one},two={two}", "--tag=t", code=1)
    (folder / "two-00000.jsonl").rmdir()
    assert (folder / "one-00000.jsonl").exists()
    (folder / "mine-00000.jsonl").write_text("{}\n")  # a file of the user's stays
    here(SCRIPT, f"--sources=web={one}", "--tag=t")
    assert {path.name for path in folder.glob("*.jsonl")} == {"web-00000.jsonl", "mine-00000.jsonl"}
    assert not (folder / "work").exists()


def test_parts_and_a_killed_run_give_the_bytes_of_one_run(here, base, tmp_path) -> None:
    for number in range(5):
        rows = chats(number, 200) + chats(number // 2, 9) + chats(77, 3)
        write_lines(tmp_path / f"files/{number}.jsonl", *rows)
    flags = (f"--sources=a={tmp_path / 'files'}",)
    here(SCRIPT, *flags, "--tag=one")
    whole = output(base / "chats/one")
    assert whole["a-00000.jsonl"].count(b"\n") == 1003
    for part in ("3/3", "1/3", "2/3"):
        here(SCRIPT, *flags, "--tag=parts", f"--part={part}")
    assert output(base / "chats/parts") == {}
    assert "rows are filtered" not in here(SCRIPT, *flags, "--tag=parts").stdout
    command = [sys.executable, "-m", SCRIPT, *flags, "--tag=killed"]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ, stdout=subprocess.DEVNULL) as process:
        folder, deadline = base / "chats/killed/work", time.monotonic() + 60
        while not [*folder.glob("*/00000.db")] and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.005)
        process.kill()
    assert process.returncode == -9
    done = here(SCRIPT, *flags, "--tag=killed")
    assert "4.jsonl: 212 rows are filtered" in done.stdout
    assert "a: 0.jsonl" not in done.stdout
    for tag in ("parts", "killed"):
        assert output(base / f"chats/{tag}") == whole
        assert not (base / f"chats/{tag}/work").exists()


def test_a_bucket_is_split_by_topic_and_daily_keeps_its_noise(here, base, tmp_path) -> None:
    noisy = chat("Who draws this for my friend? ![a](b.png)", "I draw it for her.")
    rows = [
        chat("Write a Python function that adds two numbers.", "def add(a, b): return a + b"),
        chat("![a](b.png) What are the symptoms of diabetes, doctor?", "Thirst and tiredness."),
        chat("Tell me a story about a friend in the city.", "Once upon a time there was a friend."),
        noisy,
        chat("What is this about, of all things?", "It is about science.", topic="science"),
    ]
    web = write_lines(tmp_path / "web.jsonl", *rows)
    flags = (
        f"--sources=web={web},other={web}",
        "--split-topics=web",
        "--filters=all=turns,images;web-daily=turns",
        "--tag=topics",
    )
    here(SCRIPT, *flags)
    folder = base / "chats/topics"
    names = ["other", "web-code", "web-daily", "web-science"]
    assert sorted(path.name for path in folder.glob("*.jsonl")) == [f"{name}-00000.jsonl" for name in names]
    daily = list(read_jsonl(folder / "web-daily-00000.jsonl", dict))
    assert [row["messages"] for row in daily] == [rows[2]["messages"], noisy["messages"]]
    assert {(row["bucket"], row["topic"]) for row in daily} == {("web-daily", "daily")}
    assert "topic" not in next(read_jsonl(folder / "other-00000.jsonl", dict))
    counted = [row[:4] for row in tables(folder)["Topics"]]  # not of other, whose topics nobody has asked for
    assert counted == [
        ["web-code", "code", 1, 1],
        ["web-daily", "daily", 2, 2],
        ["web-medical", "medical", 1, 0],
        ["web-science", "science", 1, 1],
    ]
    manifest = read_json(folder / "manifest.json")
    assert manifest["--split-topics"] == "web"
    assert manifest["--filters"] == "all=turns,images;web-daily=turns"
    assert manifest["counts"]["Topics"] == tables(folder)["Topics"]
    assert manifest["counts"]["Filters of web-daily"] == [["turns", 2, 2]]
    here(SCRIPT, f"--sources=web={web}", "--topics", "--filters=turns", "--tag=tagged")
    kept = list(read_jsonl(base / "chats/tagged/web-00000.jsonl", dict))
    assert [row["topic"] for row in kept] == ["code", "medical", "daily", "daily", "science"]
    assert {row["bucket"] for row in kept} == {"web"}
    assert sum(row[2] for row in tables(base / "chats/tagged")["Topics"]) == 5
    here(SCRIPT, f"--sources=web={web}", "--filters=turns", "--tag=plain")
    assert "Topics" not in tables(base / "chats/plain")


def test_a_manifest_from_before_a_setting_counts_as_its_default(here, base, tmp_path) -> None:
    web = write_lines(tmp_path / "web.jsonl", *chats(1, 5))
    here(SCRIPT, f"--sources=web={web}", "--tag=old")
    path = base / "chats/old/manifest.json"
    manifest = read_json(path)
    manifest |= {"--min-tokens": 8, "--max-tokens": 2048, "--near": 0.8}
    del manifest["--topics"], manifest["--split-topics"]
    write_json(path, manifest)
    assert "is finished" in here(SCRIPT, f"--sources=web={web}", "--tag=old").stdout
    refused = here(SCRIPT, f"--sources=web={web}", "--tag=old", "--topics", "--near=0.9", code=2).stderr
    assert "was made with other settings or files (--near, --topics): " in refused
