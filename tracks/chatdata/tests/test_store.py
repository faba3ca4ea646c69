"""Duplicates over several files against plain sets, and counts that do not add up."""

import tracemalloc
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from chat_files import contents
from made_chats import chat, chats, shingles, small_tokenizer

from nanochat.paths import read_jsonl
from tracks.chatdata.contamination import Benchmarks
from tracks.chatdata.filters import Context, FilterSettings
from tracks.chatdata.store import filter_file, merge, report, write_output

SETTINGS = FilterSettings(filters="short,exact,near")
CONTEXT = Context(SETTINGS, small_tokenizer(), Benchmarks({}))


def test_duplicates_are_those_of_a_plain_search_in_any_files(tmp_path) -> None:
    random, rows = Random(5), []
    for number, row in enumerate(chats(5, 120, words=30)):
        question, answer = contents(row)
        words = answer.split()
        words[random.randrange(30)] = "changed"
        copy = chat(question, " ".join(words))
        rows += [row, *[[], [row], [copy], [copy, row, copy]][number % 4]]
    random.shuffle(rows)
    rows = [row | {"bucket": "a", "number": number} for number, row in enumerate(rows)]
    expected, kept, seen, sets = {"exact": 0, "near": 0}, [], set(), []
    for row in rows:
        text = "\n".join(contents(row))
        own = shingles(text)
        if text in seen:
            expected["exact"] += 1
        elif any(len(own & other) >= 0.8 * len(own | other) for other in sets):
            expected["near"] += 1
        else:
            kept.append(row)
            sets.append(own)
        seen.add(text)
    for count in (1, 7):
        sizes = [len(rows) * number // count for number in range(count + 1)]
        parts = [tmp_path / f"{count}-{number}.db" for number in range(count)]
        for part, start, end in zip(parts, sizes, sizes[1:], strict=False):
            filter_file(rows[start:end], end - start, CONTEXT, part)
        with closing(merge(parts, SETTINGS, tmp_path / "all.db")) as table:
            [path] = write_output(table, tmp_path)
            tables = {one["title"]: one["rows"] for one in report(table, SETTINGS)}
        assert list(read_jsonl(path, dict)) == kept
        counts = [len(rows), len(rows), len(rows) - expected["exact"], len(kept)]
        assert [row[1:] for row in tables["Filters"]] == [*pairwise(counts)]
        assert tables["Dropped rows"] == [("exact", "a", expected["exact"]), ("near", "a", expected["near"])]
    with pytest.raises(ValueError, match="a file with 9 rows gave 8"):
        filter_file(rows[:8], 9, CONTEXT, tmp_path / "short.db")
    assert not (tmp_path / "short.db").exists()


def test_malformed_rows_are_counted_and_long_rows_need_little_memory(tmp_path) -> None:
    question, answer = "Where is it now?", "It is here."
    bad = [
        chat(question),
        chat(question, "\ud83d"),
        chat(question, answer, original=["x"]),
        {"messages": [], "fault": "row 3: a cell is empty"},
        chat(question, answer, question, original="Where?"),
    ]
    good = [chat(question, answer, fault=["mine"]), chat(question, answer), chat(question, "long " * 200_000)]
    good[1]["messages"][1] = {"name": "model", "content": answer, "role": "assistant"}
    rows = [row | {"bucket": "a"} for row in bad + good]
    context = replace(CONTEXT, settings=FilterSettings(filters="ratio,turns,exact"))
    tracemalloc.start()
    filter_file(rows, len(rows), context, tmp_path / "a.db")
    assert tracemalloc.get_traced_memory()[1] < 300e6
    tracemalloc.stop()
    with closing(merge([tmp_path / "a.db"], context.settings, tmp_path / "all.db")) as table:
        tables = {one["title"]: one["rows"] for one in report(table, context.settings)}
    assert tables["Filters"] == [("ratio", 8, 8), ("turns", 8, 3), ("exact", 3, 2)]
    faults = [text for name, _, text in tables["Examples of dropped rows"] if name == "turns"]
    assert faults[:2] == [
        "the last message is not an answer, or a message is empty",
        "half a surrogate pair is not text",
    ]
    with pytest.raises(ValueError, match="a row of a is malformed, drop it with the filter turns: the last message"):
        filter_file(rows, len(rows), replace(CONTEXT, settings=FilterSettings(filters="exact")), tmp_path / "b.db")


def test_a_bucket_has_its_own_filters_and_similarity(tmp_path) -> None:
    text = "Where is the harbour of the old town, and how do I get there from the station?"
    near = "Where is the harbour of the old town, and how do I get there from the airport?"
    other = "A question about something else entirely, %s at sea?"
    rows = [chat(text, "Here.") | {"bucket": bucket} for bucket in ("a", "a", "b", "noisy", "near", "near")]
    rows += [chat(near, "Here.") | {"bucket": bucket} for bucket in ("a", "b", "noisy")]
    rows += [chat(near) | {"bucket": "b"}, chat(f"{near} Please!", "Here.") | {"bucket": "b"}]
    rows += [chat(other % "rain", "Yes.") | {"bucket": "b"}, chat("And the last of them?", "No.") | {"bucket": "near"}]
    filters = "all=turns,exact,near;noisy=turns;near=turns,near"
    settings = FilterSettings(filters=filters, near="all=0.99,b=0.6")
    filter_file(rows, len(rows), replace(CONTEXT, settings=settings), tmp_path / "a.db")
    with closing(merge([tmp_path / "a.db"], settings, tmp_path / "all.db")) as table:
        kept = table.execute("SELECT bucket, id FROM rows WHERE reason = ''").fetchall()
        reasons = table.execute("SELECT id, reason FROM rows WHERE reason <> '' ORDER BY id").fetchall()
        tables = {one["title"]: one["rows"] for one in report(table, settings)}
        assert [path.name for path in write_output(table, tmp_path)] == [
            f"{bucket}-00000.jsonl" for bucket in ("a", "b", "noisy", "near")
        ]
    assert kept == [("a", 1), ("noisy", 4), ("a", 7), ("noisy", 9), ("b", 12), ("near", 13)]
    by_reason = {name: [number for number, reason in reasons if reason == name] for name in ("turns", "exact", "near")}
    assert by_reason == {"turns": [10], "exact": [2, 3, 8], "near": [5, 6, 11]}
    assert tables["Filters of a, b"] == [("turns", 8, 7), ("exact", 7, 4), ("near", 4, 3)]
    assert tables["Filters of noisy"] == [("turns", 2, 2)]
    assert tables["Filters of near"] == [("turns", 3, 3), ("near", 3, 1)]
    assert "Filters" not in tables


def test_a_part_of_a_bucket_may_be_empty_but_not_the_bucket(tmp_path) -> None:
    settings = FilterSettings(filters="turns", split_topics="web")
    rows = [chat("Hi", "Ho") | {"bucket": "web-daily", "topic": "daily"}, chat("Hi") | {"bucket": "web-code"}]
    for number, count in ((0, 2), (1, 1)):
        filter_file(rows[number:], count, replace(CONTEXT, settings=settings), tmp_path / f"{number}.db")
    with closing(merge([tmp_path / "0.db"], settings, tmp_path / "all.db")) as table:
        assert [path.name for path in write_output(table, tmp_path, settings.origin)] == ["web-daily-00000.jsonl"]
        assert {one["title"]: one["rows"] for one in report(table, settings)}["Topics"][0][:4] == (
            "web-daily",
            "daily",
            1,
            1,
        )
    empty = pytest.raises(ValueError, match="the bucket web is empty, all of its 1 rows are dropped")
    with closing(merge([tmp_path / "1.db"], settings, tmp_path / "all.db")) as table, empty:
        list(write_output(table, tmp_path, settings.origin))
