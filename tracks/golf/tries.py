"""The tries of entries from elsewhere: a refusal stays on record, as the dice of the next try may fall otherwise.

The folder of a judgement has a ledger, `tries.jsonl`: a line when a try begins, with a SHA-256 of the entry's files,
and a line with the verdict. A try that was stopped has none.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from nanochat.errors import UserError
from nanochat.log import Record, table_of
from nanochat.paths import read_sha256, text_sha256
from nanochat.trial.judging import Judgement, Limits, judge
from nanochat.trial.ledger import Ledger, read
from nanochat.trial.scorer import Broken, Refused
from tracks.golf.entries import check_size

LEDGER = "tries.jsonl"


def files_hash(folder: Path, names: Iterable[str]) -> str:
    """Return the SHA-256 of a JSON object, name -> SHA-256 of the content, of an entry's files in order."""
    return text_sha256(json.dumps({name: read_sha256(folder / name) for name in sorted(names)}))


def tries_of(path: Path) -> Iterator[Record]:
    """Yield the tries of a ledger, each with its verdict; UserError if a line was changed."""
    records = list(read(path))
    for record, after in zip(records, [*records[1:], {}], strict=True):
        if record["kind"] == "try":
            yield record | {"verdict": after.get("verdict", "no verdict: it was stopped")}


def tries_elsewhere(folder: Path, entry: str) -> list[Record]:
    """Return the tries of the same files in the folders beside that of a judgement."""
    paths = [path for path in sorted(folder.parent.glob(f"*/{LEDGER}")) if path.parent != folder]
    return [record for path in paths for record in tries_of(path) if record["entry"] == entry]


def tries_table(ledger: Ledger, elsewhere: Iterable[Record]) -> Record:
    """Return a table of the tries in a ledger, and of others."""
    found = sorted([*tries_of(ledger.path), *elsewhere], key=lambda record: record["at"])
    rows = [[record["at"], record["tag"], record["entry"][:12], record["verdict"]] for record in found]
    columns = "Begun | Tag | SHA-256 of the files | Verdict"
    return table_of("Tries", columns, rows, f"The last line of {LEDGER} has the hash {ledger.head}.")


def verdict(place: Path, files: Mapping[str, int], budget: int, documents: Sequence[str], limits: Limits) -> Judgement:
    """Return the judgement of an entry's files, with their bytes; each fault of the entry is a Refused with a rule."""
    try:
        check_size(files, budget)
    except UserError as over:
        raise Refused("bytes", str(over)) from None
    try:
        return judge(place, documents, limits)
    except Broken as fault:
        raise Refused("interface", str(fault)) from None
