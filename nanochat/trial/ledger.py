"""The ledger of a series: one JSON object a line, each with the hash of the one before, so that none can be changed.

Whoever can write the file could write it anew, all of it. So an answer names the hash of its last line (`head`), and
`verify(path, head)` says whether a ledger still has it.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.paths import sync

GENESIS = "0" * 64


def line_hash(record: Record) -> str:
    """Return the hash of a record, which has the hash of the one before."""
    content = {name: value for name, value in record.items() if name != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Ledger:
    """An open ledger. Its folder is locked by whoever opens it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists():
            data = path.read_bytes()
            os.truncate(path, data.rfind(b"\n") + 1)  # a line that a crash has cut short
        self.records = list(read(path)) if path.exists() else []

    @property
    def head(self) -> str:
        return self.records[-1]["hash"] if self.records else GENESIS

    def add(self, kind: str, **values: object) -> Record:
        """Write a line, and return it."""
        record: Record = {"kind": kind, **values, "previous": self.head}
        record["hash"] = line_hash(record)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        sync(self.path)
        self.records.append(record)
        return record

    def of_kind(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["kind"] == kind]


def read(path: Path) -> Iterator[Record]:
    """Yield the records of whole lines; UserError where the chain is broken."""
    previous = GENESIS
    for number, line in enumerate(path.read_bytes().rpartition(b"\n")[0].splitlines(), 1):
        record = _parsed(line)
        if not record or record.get("previous") != previous or record.get("hash") != line_hash(record):
            raise UserError(f"{path}: line {number} was changed, or lines before it were: nothing can be added to it")
        previous = record["hash"]
        yield record


def _parsed(line: bytes) -> Record | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def verify(path: Path, head: str = "") -> int:
    """Return the number of records; UserError if one was changed, or if none has the hash `head`."""
    hashes = [record["hash"] for record in read(path)]
    if head and head not in hashes:
        raise UserError(f"{path}: no line has the hash {head}: it was written anew after that answer")
    return len(hashes)
