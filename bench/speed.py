"""The speed table of README.md: what its rows are, their record in bench/speed.json, and the table made of it.

`bash runs/evidence.sh --only=speed` runs the benchmarks with --json. Rows whose peer took part are new; the others
stay as they were measured, with their date.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]

RECORD = "bench/speed.json"  # in a checkout: key of a row -> what was measured
PAGE = "README.md"
TABLE = re.compile(r"(?<=<!-- speed -->\n).*?(?=<!-- /speed -->)", re.DOTALL)
HOURS = 1.0  # on two quiet cores, with all peers


@dataclass(frozen=True)
class Needed:
    """What a benchmark needs that this project does not have, and how `runs/evidence.sh` is told where it is."""

    flag: str
    variable: str  # in place of the flag
    text: str


REFERENCE = Needed("--reference", "NANOCHAT_REFERENCE", "checkout of the public nanochat")
PEERS = Needed("--peers", "NANOCHAT_PEERS", "environments of the tokenizers' peers, separated by commas")
TEXT = Needed("--text", "NANOCHAT_BENCH_TEXT", "folder of Parquet files with 100 MB of text (default: mixed-text)")
NEEDED = (REFERENCE, PEERS, TEXT)

# Benchmark -> its flags; what is needed stands for its value.
COMMANDS: dict[str, Sequence[str | Needed]] = {
    "tokenizer": ("--data", TEXT, "--peers", PEERS, "--what", "train", "encode", "--vocab", "65536"),
    "dataloader": ("--data", TEXT, "--reference", REFERENCE),
    "train_step": ("--data", TEXT, "--reference", REFERENCE, "--depths", "4"),
    "engine": ("--reference", REFERENCE),
}


@dataclass(frozen=True)
class SpeedRow:
    """A row of the table: a figure of two contenders in one case of a benchmark."""

    title: str
    benchmark: str
    case: str
    ours: str
    peer: str
    peer_title: str
    figure: str
    unit: str
    also: str = ""  # another figure of ours, shown in percent


ROWS = {
    "tokenizer": SpeedRow(
        "train a tokenizer, 65,536 tokens, 100 MB",
        benchmark="tokenizer",
        case="train, 65536 tokens",
        ours="ours",
        peer="gigatoken",
        peer_title="gigatoken",
        figure="seconds",
        unit="s",
    ),
    "encode": SpeedRow(
        "encode text, cl100k_base, 2 threads",
        benchmark="tokenizer",
        case="encode, cl100k_base, threads: 2",
        ours="ours, Arrow",
        peer="tiktoken",
        peer_title="tiktoken",
        figure="speed",
        unit="MB/s",
    ),
    "data": SpeedRow(
        "load training data, tokens dropped",
        benchmark="dataloader",
        case="data loader",
        ours="ours",
        peer="reference",
        peer_title="public nanochat",
        figure="rate",
        unit="tokens/s",
        also="dropped",
    ),
    "step": SpeedRow(
        "training step, depth 4, as shipped",
        benchmark="train_step",
        case="depth 4",
        ours="ours, as shipped",
        peer="reference, as shipped",
        peer_title="public nanochat",
        figure="rate",
        unit="tokens/s",
    ),
    "generation": SpeedRow(
        "generate for 32 prompts",
        benchmark="engine",
        case="32 prompts",
        ours="ours",
        peer="reference",
        peer_title="public nanochat",
        figure="rate",
        unit="tokens/s",
    ),
}


# ---- from the JSON of a benchmark to the record ----


def command_of(benchmark: str, values: Mapping[Needed, str]) -> tuple[list[str], list[Needed]]:
    """Return the words of a benchmark's command, and what it needs and does not have."""
    words = ["-m", f"bench.{benchmark}"]
    missing = []
    for word in COMMANDS[benchmark]:
        if isinstance(word, Needed):
            if not values.get(word):
                missing.append(word)
            word = values.get(word, "")
        words.append(word)
    return words, missing


def measured(row: SpeedRow, found: Record) -> Record | None:
    """Return the record of a row from the JSON of its benchmark; None where one of the two contenders has no figure."""
    own = {one["name"]: one for one in found["rows"] if one.get("case") == row.case}
    figures = [own.get(name, {}).get(row.figure) for name in (row.ours, row.peer)]
    if not all(figures):
        return None
    ours, peer = (figure["median"] for figure in figures)
    machine = found["machine"]
    record = {
        "ours": ours,
        "peer": peer,
        "ratio": ours / peer if row.unit.endswith("/s") else peer / ours,
        "date": found["date"],
        "commit": found["commit"],
        "machine": f"CPU with {machine['CPUs']}, {machine['GPUs'].replace('none', 'no GPU')}",
    }
    return record | ({row.also: own[row.ours][row.also]["median"]} if row.also else {})


def update(record: Record, found: Mapping[str, Record]) -> tuple[Record, list[str]]:
    """Return the record with the rows that were measured, and a sentence for each that stays as it was.

    found: benchmark -> its JSON, for those that ran.
    """
    new = {}
    stays = []
    for key, row in ROWS.items():
        fresh = measured(row, found[row.benchmark]) if row.benchmark in found else None
        new[key] = fresh or record[key]
        if not fresh:
            why = (
                f"{row.peer_title} did not take part"
                if row.benchmark in found
                else f"bench.{row.benchmark} did not run"
            )
            stays.append(f"{row.title}: as measured on {record[key]['date']}, because {why}")
    return new, stays


# ---- the table ----


def shown(value: float, unit: str) -> str:
    """Return a figure as the table has it."""
    if unit == "s":
        return f"{value:.2f} s"
    if unit == "tokens/s" and value >= 1e6:
        return f"{value / 1e6:.3g} M {unit}"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def render(record: Record) -> str:
    """Return the table, and below it the machine, or the machine of each date."""
    lines = ["| | this project | compared with | ratio | measured |", "|---|---|---|---|---|"]
    dates: dict[str, set[str]] = {}  # machine -> when
    for key, row in ROWS.items():
        one = record[key]
        ours = shown(one["ours"], row.unit) + (f", {one[row.also]:.0%}".replace("%", " %") if row.also else "")
        peer = f"{row.peer_title}, {shown(one['peer'], row.unit)}"
        lines.append(f"| {row.title} | {ours} | {peer} | {one['ratio']:.3g} | {one['date']} |")
        dates.setdefault(one["machine"], set()).add(one["date"])
    machines = [
        machine if len(dates) == 1 else f"{machine} ({', '.join(sorted(when))})" for machine, when in dates.items()
    ]
    return "\n".join([*lines, "", f"Machine: {'. '.join(machines)}.", ""])


def read(root: Path) -> Record:
    """Return the record of a checkout."""
    return json.loads((root / RECORD).read_text(encoding="utf-8"))


def write(root: Path, record: Record) -> None:
    """Write the record of a checkout, and the table in its README.md."""
    (root / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    page = root / PAGE
    page.write_text(TABLE.sub(lambda _: render(record), page.read_text(encoding="utf-8"), count=1), encoding="utf-8")
