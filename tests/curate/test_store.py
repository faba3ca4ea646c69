"""Duplicates over several files against plain sets, and counts that do not add up."""

import json
from contextlib import closing
from random import Random

import pytest
from made_chats import chats, shingles, small_tokenizer

from nanochat.curate.contamination import Benchmarks
from nanochat.curate.filters import Context, FilterSettings
from nanochat.curate.store import filter_file, merge, report, write_output

SETTINGS = FilterSettings()
CONTEXT = Context(SETTINGS, small_tokenizer(), Benchmarks({}))


def text_of(row: dict) -> str:
    return "\n".join(message["content"] for message in row["messages"])


def test_duplicates_are_those_of_a_plain_search_in_any_files(tmp_path):
    random, rows = Random(5), []
    for number, row in enumerate(chats(5, 120, words=30)):
        copy = json.loads(json.dumps(row))
        words = row["messages"][1]["content"].split()
        words[random.randrange(30)] = "changed"
        copy["messages"][1]["content"] = " ".join(words)
        rows += [row, *[[], [row], [copy], [copy, row, copy]][number % 4]]
    random.shuffle(rows)
    rows = [row | {"bucket": "a", "number": number} for number, row in enumerate(rows)]
    expected, kept, seen, sets = {"exact": 0, "near": 0}, [], set(), []
    for row in rows:
        text = text_of(row)
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
            [path] = write_output(table, len(rows), tmp_path)
            tables = {one["title"]: one["rows"] for one in report(table)}
        assert [json.loads(line) for line in path.read_text().splitlines()] == kept
        assert tables["Dropped rows"] == [("exact", "a", expected["exact"]), ("near", "a", expected["near"])]
    lost = closing(merge(parts[1:], SETTINGS, tmp_path / "all.db"))
    with lost as table, pytest.raises(ValueError, match="the counts do not add up: "):
        write_output(table, len(rows), tmp_path)
    with pytest.raises(ValueError, match="a file with 9 rows gave 8"):
        filter_file(rows[:8], 9, CONTEXT, tmp_path / "short.db")
    assert not (tmp_path / "short.db").exists()
