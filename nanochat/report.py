"""The report card, rendered from whichever outcomes exist: `python -m nanochat.report`.

What cannot be read is named in the card; a figure that is not known is left out.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from nanochat.config import option, run
from nanochat.log import duration, print0
from nanochat.outcome import ROOT, Outcome, environment, git
from nanochat.paths import base_dir, write_text
from nanochat.plots import draw
from nanochat.stages import STAGES, Stage

LOCK = "requirements.lock"
PICTURES = "report"  # the folder beside the card that holds them
SOURCE_SUFFIXES = (".py", ".md", ".rs", ".html", ".toml", ".sh")


@dataclass(frozen=True)
class Config:
    """Render the report card of the stages that have run."""

    out: str = option("report.md", "the file to write", group="place", unit="FILE")
    base_dir: str = option("", "folder of the run, NANOCHAT_BASE_DIR if empty", group="place", unit="FOLDER")


def _bloat(root: Path) -> dict[str, str]:
    """The size of the source: what git tracks, or outside a checkout whatever lies there, build folders apart."""
    files = [root / name for name in git(root, "ls-files", "-z").split("\0") if name]
    if not files:
        for folder, below, names in os.walk(root):
            below[:] = [name for name in below if not name.startswith(".") and name not in ("target", "out", "wandb")]
            files += [Path(folder, name) for name in names]
    sources = [file for file in files if file.suffix in SOURCE_SUFFIXES and file.is_file()]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in sources]
    characters = sum(map(len, texts))
    parts = {"Characters": characters, "Lines": sum(len(text.splitlines()) for text in texts), "Files": len(texts)}
    parts["Tokens (approx)"] = characters // 4
    if (root / LOCK).exists():
        parts[f"Dependencies ({LOCK} lines)"] = len((root / LOCK).read_text(encoding="utf-8").splitlines())
    return {label: f"{count:,}" for label, count in parts.items()}


def show(value: Any) -> str:
    """A value as a line of the card shows it: 0.1234, 2048, 65,536, 0.0155 ± 0.0021, 21.07%."""
    if isinstance(value, dict):
        spec = value.get("format", "")
        shown = [format(v, spec) if spec else show(v) for v in (value["value"], value.get("stderr")) if v is not None]
        return " ± ".join(shown) + value.get("unit", "")
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    return " ".join(str(value).split("\n"))


def _cells(table: dict) -> list[list[str]]:
    """Header and rows of a table as text; None is a dash, a text is itself whatever its column's format."""
    specs = [spec for _, spec in table["columns"]]
    rows = [
        ["-" if v is None else v if isinstance(v, str) else format(v, spec) for v, spec in zip(row, specs, strict=True)]
        for row in table["rows"]
    ]
    return [[name for name, _ in table["columns"]], *rows]


def terminal_table(table: dict) -> str:
    """A table as aligned columns: the first to the left, numbers to the right."""
    rows = _cells(table)
    full = [row for row in rows if set(row[1:]) != {"-"}]  # the others are remarks, longer than any column
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    aligned = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in full]
    return "\n".join([table["title"], *aligned, *(row[0] for row in rows if row not in full)])


def _markdown_table(table: dict) -> str:
    header, *rows = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in _cells(table)]
    lines = ["| " + " | ".join(row) + " |" for row in [header, *rows]]
    lines.insert(1, "|" + "|".join("-" * (len(name) + 2) for name in header) + "|")
    return "\n".join([f"### {table['title']}", "", *lines])


def _listing(parts: dict[str, Any]) -> str:
    return "\n".join(f"- {label}: {show(value)}" for label, value in parts.items())


# --- the card


def _section(outcome: Outcome) -> str:
    """The body of a stage's section."""
    lines = _listing({name: outcome.config[name] for name in outcome.card} | outcome.metrics)
    pictures = [f"![{curve['title']}]({PICTURES}/{name})" for name, curve in _pictures(outcome).items()]
    parts = [f"timestamp: {_moment(outcome.timestamp)}", lines, *map(_markdown_table, outcome.tables), *pictures]
    return "\n\n".join(filter(None, parts))


def _pictures(outcome: Outcome) -> dict[str, dict]:
    return {f"{outcome.stage}-{outcome.tag}-{number}.svg": curve for number, curve in enumerate(outcome.curves, 1)}


def _moment(timestamp: str) -> str:
    return datetime.fromisoformat(timestamp).strftime("%Y-%m-%d %H:%M:%S")


def read_outcomes(base: Path, stages: Sequence[Stage] = STAGES) -> tuple[list[Outcome], list[str]]:
    """The outcomes below `base` in stage order, unknown stages last, and a section of the card for each.

    A damaged one has a section that says so, and a line on stderr.
    """
    titles = {stage.name: stage.section for stage in stages}
    order = list(titles)
    found = sorted((*path.parts[-3:-1], path) for path in base.glob("*/*/outcome.json"))  # (stage, tag, path)
    found.sort(key=lambda entry: order.index(entry[0]) if entry[0] in order else len(order))
    names = [name for name, _, _ in found]
    outcomes, sections = [], []
    for name, tag, path in found:
        title = titles.get(name, name) + (f" ({tag})" if names.count(name) > 1 else "")
        try:
            outcome = Outcome.load(path)
            body = _section(outcome)
            outcomes.append(outcome)
        except (OSError, KeyError, TypeError, ValueError) as error:
            # strerror: the full text of an OSError names a path of this machine.
            reason = f"{name}/{tag}/{path.name} is damaged: {getattr(error, 'strerror', None) or error}"
            print0(f"report: {reason}", file=sys.stderr)
            body = f"{reason}\n\nRun the stage again."
        sections.append(f"## {title}\n{body}")
    return outcomes, sections


def _headlines(outcomes: Sequence[Outcome], stages: Sequence[Stage]) -> str:
    """The summary's table of headline metrics, a column for each stage that has one; empty where no metric exists."""
    columns = list(dict.fromkeys(stage.column for stage in stages if stage.column))
    cells: dict[str, dict[str, str]] = {}
    for stage in stages:
        for outcome in outcomes:  # by time: of several tags the newest stays
            for metric in outcome.metrics:  # "ChatCORE (5 of 6 tasks)" has a row of its own
                if outcome.stage == stage.name and metric.partition(" (")[0] in stage.headline:
                    cells.setdefault(metric, dict.fromkeys(columns, "-"))[stage.column] = show(outcome.metrics[metric])
    rows = [["Metric", *columns], *([metric, *row.values()] for metric, row in cells.items())]
    lines = ["| " + " | ".join(cell.ljust(8 if i else 15) for i, cell in enumerate(row)) + " |" for row in rows]
    lines.insert(1, "|" + "-" * 17 + ("|" + "-" * 10) * len(columns) + "|")
    return "\n".join(lines) if cells else ""


def render(base: Path, root: Path = ROOT, stages: Sequence[Stage] = STAGES, pictures: Path | None = None) -> str:
    """The card of the outcomes below `base`, about the source in `root`; its pictures go to that folder, if any."""
    outcomes, sections = read_outcomes(base, stages)
    if not sections:
        raise ValueError(f"no stage has left an outcome below {base}, run one first or name another --base-dir")
    if pictures:
        for outcome in outcomes:
            for name, curve in _pictures(outcome).items():
                draw(curve, pictures / name)
    outcomes.sort(key=lambda outcome: outcome.timestamp)
    bloat = _listing(_bloat(root))
    header = ["# nanochat training report", f"Generated: {datetime.now():%Y-%m-%d %H:%M:%S}", "## Environment"]
    # The card tells of the machine of the run, which need not be this one.
    for title, parts in (outcomes[-1].environment if outcomes else environment()).items():
        header.append(f"### {title}\n{_listing(parts)}")
    header.append(f"\n### Bloat\n{bloat}")
    if outcomes:
        header.append(f"Run started: {_moment(min(outcome.started for outcome in outcomes))}")
    total = duration(sum(outcome.seconds for outcome in outcomes))
    summary = ["## Summary", bloat, _headlines(outcomes, stages), f"Total wall clock time: {total}"]
    body = "\n\n\n".join([*sections, "\n\n".join(part for part in summary if part)])
    return "\n\n".join([*header, "---", body]) + "\n"


def main(config: Config) -> None:
    base = Path(config.base_dir).expanduser() if config.base_dir else base_dir()
    out = Path(config.out).expanduser()
    if out.is_dir():
        raise ValueError(f"--out={config.out} is a folder, name a file")
    write_text(out, render(base, pictures=out.parent / PICTURES))
    print0(f"report card: {out.resolve()}")


if __name__ == "__main__":
    run(main, Config)
