"""What a benchmark found: a table for people, and with --json one JSON object for programs.

The object has the benchmark, its command, date, commit, machine and versions, and `rows`: a dict for each row of the
tables, with numbers as they were measured. Benchmarks that read --json use nothing else to write it.
"""

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import tyro

from nanochat.errors import UserError
from nanochat.log import terminal_table


class JsonFileError(UserError, argparse.ArgumentTypeError):
    """The file of --json cannot be written: a sentence for both ways in which commands read their flags."""


PRINTED = "-"  # the value of --json without a file
Row = dict[str, Any]


def json_file(text: str) -> str:
    """Return the file of --json; its folder is looked for now, and not after an hour."""
    if text not in ("", PRINTED) and not Path(text).resolve().parent.is_dir():
        raise JsonFileError(f"there is no folder {Path(text).parent} for {text}")
    return text


def add_json(parser: argparse.ArgumentParser) -> None:
    """Give a command the flag --json."""
    parser.add_argument(
        "--json",
        nargs="?",
        const=PRINTED,
        default="",
        type=json_file,
        metavar="FILE",
        help="also write rows, machine, date and commit as JSON; without a file, print that alone",
    )


# The same for a command with a config.
_JSON = tyro.constructors.PrimitiveConstructorSpec(
    nargs="*",
    metavar="[FILE]",
    instance_from_str=lambda words: json_file(" ".join(words) or PRINTED),
    is_instance=lambda value: isinstance(value, str),
    str_from_instance=lambda value: [value] if value else [],
)
JsonFile = Annotated[str, _JSON]


class Findings:
    """The rows of a benchmark.

    target: the value of --json. If that is to print, everything else that this process and its children print goes to
    stderr from here on.
    """

    def __init__(self, benchmark: str, target: str) -> None:
        self.benchmark = benchmark
        self.target = target
        self.rows: list[Row] = []
        self._stdout = 1
        if target == PRINTED:
            sys.stdout.flush()
            self._stdout = os.dup(1)
            os.dup2(2, 1)

    def add(self, **cells: Any) -> None:
        """Keep a row that the caller prints itself."""
        self.rows.append(cells)

    def show(self, table: Row) -> None:
        """Print a table of `nanochat.log.table_of`, and keep its rows by the names of the columns."""
        self.keep(table)
        print(terminal_table(table).strip(), flush=True)

    def keep(self, table: Row) -> None:
        """Keep the rows of a table that is printed elsewhere."""
        about = {"table": table["title"]} if table["title"] else {}
        names = [name for name, _ in table["columns"]]
        for row in table["rows"]:
            self.add(**about, **dict(zip(names, row, strict=True)))

    def object(self) -> Row:
        """Return what --json writes."""
        from nanochat.environment import environment, versions

        about = environment()
        checkout = about["Git Information"]
        run = sys.modules["__main__"].__spec__
        module = run.name if run else f"bench.{self.benchmark}"
        return {
            "benchmark": self.benchmark,
            "command": f"python -m {module} {shlex.join(sys.argv[1:])}".strip(),
            "date": time.strftime("%Y-%m-%d"),
            "commit": checkout["Commit"],
            "machine": about["Hardware"],
            "versions": about["Software"] | versions(),
            "rows": self.rows,
        }

    def finish(self) -> None:
        """Print hardware and versions, and write the object if it is asked for."""
        found = self.object()
        facts = found["machine"] | found["versions"]
        print("", *(f"{name}: {value}" for name, value in facts.items()), sep="\n", flush=True)
        self.write(found)

    def write(self, found: Row | None = None) -> None:
        """Write the object to where --json says; nothing without --json."""
        if not self.target:
            return
        found = found or self.object()
        text = json.dumps(found, indent=1, ensure_ascii=False, default=lambda number: number.item()) + "\n"  # numpy's
        if self.target == PRINTED:
            with open(self._stdout, "w", encoding="utf-8", closefd=False) as stdout:
                stdout.write(text)
        else:
            Path(self.target).write_text(text, encoding="utf-8")
