"""Tables of rows on disk: the rows of a file after its filters, and all rows together, where duplicates are found.

SQLite sorts on disk with a cache of fixed size, so that memory does not grow with the rows.
"""

import hashlib
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path

from nanochat.errors import UserError
from nanochat.log import Record, table_of
from nanochat.paths import sync, write_text
from tracks.chatdata.filters import FILTERS, Context, FilterSettings, Row, chosen_filters, language, least_similarity
from tracks.chatdata.near import band_keys, signature, similarity

# reason: the filter that drops the row, empty for a row that stays; detail: the name of a benchmark, or the fault.
# line: the row as JSON, or the beginning of a dropped row's text. languages, ratio: of a translation. A row that a
# filter of one row drops has no figures, and no signature.
TABLE = """CREATE TABLE rows (id INTEGER PRIMARY KEY, bucket TEXT, topic TEXT, reason TEXT, detail TEXT, line TEXT,
    tokens INTEGER, supervised INTEGER, language TEXT, languages TEXT, ratio REAL, exact BLOB, signature BLOB)"""
INSERT = "INSERT INTO rows VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
COPY = """INSERT INTO rows SELECT NULL, bucket, topic, reason, detail, line, tokens, supervised, language, languages,
    ratio, exact, signature FROM part.rows ORDER BY id"""
# Filter over all rows -> its statements. The first of equal rows stays. Each row is compared with the first row that
# has the same key. :near has the buckets with this filter, each with the similarity from which on a row is dropped.
DUPLICATES = {
    "exact": [
        """UPDATE rows SET reason = 'exact' WHERE reason = '' AND bucket IN (SELECT key FROM json_each(:near))
        AND id NOT IN (SELECT min(id) FROM rows WHERE reason = '' GROUP BY exact)""",
    ],
    "near": [
        """CREATE TABLE keys AS SELECT value AS key, rows.id FROM rows, json_each(band_keys(signature))
        WHERE reason = ''""",
        "CREATE INDEX by_key ON keys (key, id)",
        """UPDATE rows SET reason = 'near' WHERE id IN (SELECT later.id
        FROM (SELECT key, min(id) AS id FROM keys GROUP BY key HAVING count(*) > 1) AS leaders
        JOIN keys USING (key) JOIN rows AS later ON later.id = keys.id JOIN rows AS first ON first.id = leaders.id
        JOIN json_each(:near) AS limits ON limits.key = later.bucket
        WHERE later.id > first.id AND similarity(first.signature, later.signature) >= limits.value)""",
    ],
}
SHOWN = 160  # characters of a dropped row
# Title in the report card -> columns with their formats, and the query.
REPORT = {
    "Buckets": (
        "Bucket | Rows in:,d | Rows:,d | Tokens:,d | Supervised tokens:,d | Share of supervised tokens:.1%",
        """SELECT bucket, count(*), sum(reason = ''), sum(tokens * (reason = '')), sum(supervised * (reason = '')),
        1.0 * sum(supervised * (reason = '')) / max(1, sum(sum(supervised * (reason = ''))) OVER ())
        FROM rows GROUP BY bucket ORDER BY min(id)""",
    ),
    "Topics": (
        "Bucket | Topic | Rows in:,d | Rows:,d | Tokens:,d | Share of rows:.1%",
        """SELECT bucket, topic, count(*), sum(reason = ''), sum(tokens * (reason = '')),
        1.0 * sum(reason = '') / max(1, sum(sum(reason = '')) OVER ()) FROM rows WHERE topic <> ''
        AND bucket IN (SELECT value FROM json_each(:tagged)) GROUP BY bucket, topic ORDER BY bucket, topic""",
    ),
    "Filters": (
        "Filter | Rows in:,d | Rows out:,d",
        """WITH ends AS (SELECT coalesce(key, 1e9) AS place, count(*) AS count FROM rows
        LEFT JOIN json_each(:filters) ON value = reason
        WHERE bucket IN (SELECT value FROM json_each(:buckets)) GROUP BY place)
        SELECT value, sum(count * (place >= key)), sum(count * (place > key)) FROM json_each(:filters), ends
        GROUP BY key ORDER BY key""",
    ),
    "Dropped rows": (
        "Filter | Bucket | Rows:,d",
        "SELECT reason, bucket, count(*) FROM rows WHERE reason <> '' GROUP BY reason, bucket ORDER BY reason, min(id)",
    ),
    "Languages of answers": (
        "Bucket | Language | Rows:,d",
        "SELECT bucket, language, count(*) FROM rows WHERE reason = '' GROUP BY bucket, language ORDER BY min(id)",
    ),
    "Length of translations, relative to the usual one": (
        "Languages | At least:.2f | Rows:,d",
        """SELECT languages, min(CAST(4 * ratio AS INTEGER) / 4.0, 8) AS least, count(*) FROM rows WHERE ratio > 0
        GROUP BY languages, least ORDER BY languages, least""",
    ),
    "Contamination": (
        "Benchmark | Bucket | Rows dropped:,d",
        """SELECT detail, bucket, count(*) FROM rows WHERE reason = 'contamination' GROUP BY detail, bucket
        ORDER BY detail, min(id)""",
    ),
    "Examples of dropped rows": (
        "Filter | Bucket | Text",
        f"""SELECT reason, bucket, replace(substr(CASE WHEN reason = 'turns' THEN detail
        WHEN reason IN ('exact', 'near') THEN json_extract(line, '$.messages[0].content', '$.messages[1].content')
        ELSE line END, 1, {SHOWN}), char(10), ' ')
        FROM (SELECT *, row_number() OVER (PARTITION BY reason ORDER BY id) AS place FROM rows WHERE reason <> '')
        WHERE place <= 3 ORDER BY reason, id""",
    ),
}
SHARD = 10_000  # rows in a file of the output


def _open_table(path: Path) -> sqlite3.Connection:
    """Return a new table of rows; a file in its place is overwritten."""
    path.unlink(missing_ok=True)
    table = sqlite3.connect(path)
    # A table that is not complete is never used, so that it needs no journal.
    table.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {TABLE}")
    return table


def filter_file(rows: Iterable[Record], count: int, context: Context, path: Path) -> None:
    """Write the table of the rows of a file, whole or not at all. Duplicates are found later. count: of the rows."""
    part = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    with closing(_open_table(part)) as table:
        table.executemany(INSERT, (_cells(Row(value, context.tokenizer), context) for value in rows))
        table.commit()
        if table.total_changes != count:
            raise UserError(f"a file with {count:,} rows gave {table.total_changes:,}: run it again")
    sync(part)
    os.replace(part, path)


def _cells(row: Row, context: Context) -> tuple[object, ...]:
    """Return a row of the table, from the bucket on."""
    for name in chosen_filters(context.settings, row.bucket):
        check = FILTERS[name]
        detail = check(row, context) if check else ""  # those over all rows come later
        if detail:
            return row.bucket, row.topic, name, detail, row.text[:SHOWN], 0, 0, "", row.languages, row.ratio, b"", b""
    if row.fault:
        raise UserError(f"a row of {row.bucket} is malformed, drop it with the filter turns: {row.fault}")
    exact = hashlib.sha256(str(row.ids).encode()).digest()
    figures = len(row.ids), sum(row.mask), language(row.answers[0]), row.languages, row.ratio
    return row.bucket, row.topic, "", "", row.line, *figures, exact, signature(row.text)


def merge(parts: Sequence[Path], settings: FilterSettings, path: Path) -> sqlite3.Connection:
    """Return a new table with the rows of all files in order, duplicates among the dropped ones."""
    table = _open_table(path)
    for part in parts:
        table.execute("ATTACH ? AS part", [str(part)])
        table.execute(COPY)
        table.commit()
        table.execute("DETACH part")
    table.create_function("similarity", 2, similarity, deterministic=True)
    table.create_function("band_keys", 1, lambda signed: json.dumps(band_keys(signed)), deterministic=True)
    lists = _filter_lists(table, settings)
    for name in dict.fromkeys(chain.from_iterable(lists)):
        with_it = [bucket for filters, buckets in lists.items() if name in filters for bucket in buckets]
        near = {bucket: least_similarity(settings, bucket) for bucket in with_it}
        for statement in DUPLICATES.get(name, ()):
            table.execute(statement, {"near": json.dumps(near)})
    return table


def _filter_lists(table: sqlite3.Connection, settings: FilterSettings) -> dict[tuple[str, ...], list[str]]:
    """Return the lists of filters, each with the buckets that have it."""
    lists: dict[tuple[str, ...], list[str]] = {}
    for [bucket] in table.execute("SELECT bucket FROM rows GROUP BY bucket ORDER BY min(id)"):
        lists.setdefault(tuple(chosen_filters(settings, bucket)), []).append(bucket)
    return lists


def write_output(table: sqlite3.Connection, folder: Path, origin: Callable[[str], str] = str) -> Iterator[Path]:
    """Write the rows that stay, and yield the files: a series of JSONL files for each bucket.

    A UserError before anything is written if a bucket is empty. origin: a function from a bucket to the one that it is
    a part of; a part may be empty, and has no file then.
    """
    buckets = table.execute(REPORT["Buckets"][1]).fetchall()
    rows: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    for bucket, rows_in, rows_out, *_ in buckets:
        rows[origin(bucket)] += rows_in
        kept[origin(bucket)] += rows_out
    for bucket, count in rows.items():
        if not kept[bucket]:
            raise UserError(f"the bucket {bucket} is empty, all of its {count:,} rows are dropped: change the filters")
    for bucket, *_ in buckets:
        lines = table.execute("SELECT line FROM rows WHERE reason = '' AND bucket = ? ORDER BY id", [bucket])
        for number, shard in enumerate(iter(partial(lines.fetchmany, SHARD), [])):
            path = folder / f"{bucket}-{number:05d}.jsonl"
            write_text(path, "".join(line for [line] in shard))
            yield path


def report(table: sqlite3.Connection, settings: FilterSettings) -> list[Record]:
    """Return the tables for the report card, those without rows left out: *Topics* has tagged buckets alone.

    Buckets with other filters than the rest have a table *Filters of BUCKET*.
    """
    lists = _filter_lists(table, settings)
    # Rows may have topics that nobody has asked for.
    tagged = [
        bucket
        for bucket in chain.from_iterable(lists.values())
        if settings.topics or settings.is_split(settings.origin(bucket))
    ]
    tables = []
    for title, (columns, query) in REPORT.items():
        for filters, buckets in lists.items() if title == "Filters" else [((), [])]:
            chosen = {"filters": filters, "buckets": buckets, "tagged": tagged}
            rows = table.execute(query, {name: json.dumps(names) for name, names in chosen.items()}).fetchall()
            own_title = f"{title} of {', '.join(buckets)}" if buckets and len(lists) > 1 else title
            if rows:
                tables.append(table_of(own_title, columns, rows))
    return tables
