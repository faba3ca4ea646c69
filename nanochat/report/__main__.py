"""The report card of a run: `python -m nanochat.report`, for reading (Markdown, HTML) and for programs (JSON).

`--compare A B` puts two runs side by side.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nanochat.config import option, run
from nanochat.log import print0
from nanochat.paths import base_dir, write_json, write_text
from nanochat.report.card import Card, Facts, Section, Table, read_card
from nanochat.report.compare import compare, decisions
from nanochat.report.html import page
from nanochat.report.plots import picture
from nanochat.stages import STAGES, Stage

# What nanochat.report.card calls its plots.
PICTURE = re.compile(rf"({'|'.join(stage.name for stage in STAGES)})-.+-(\d+|tasks)\.svg|time\.svg")
FORMAT = 1  # of report.json, to be raised when a key changes its meaning


@dataclass(frozen=True)
class Config:
    """Render the report card of the stages that have run, or compare two runs."""

    out: str = option("report.md", "the card; .html, .json and pictures lie beside it", group="place", unit="FILE.md")
    base_dir: str = option("", "folder of the run, NANOCHAT_BASE_DIR if empty", group="place", unit="FOLDER")
    tag: str = option("", "runs of this name alone; empty: all", group="place")
    compare: tuple[str, ...] = option((), "two runs: their folders, or a report.json", group="place", unit="A B")

    def __post_init__(self):
        if len(self.compare) not in (0, 2):
            raise ValueError(f"--compare takes two runs, A B, not {len(self.compare)}")
        if Path(self.out).suffix != ".md":
            raise ValueError(f"--out={self.out} is no Markdown file, name it like {Path(self.out).stem}.md")


# ---- Markdown ----


def markdown(card: Card, pictures: str) -> str:
    """pictures: the folder beside it where they are."""
    header = ["# nanochat training report", f"Generated: {card.generated}", "## Environment"]
    header += [f"### {name}\n{_listing(facts)}" for name, facts in card.environment.items() if name != "Bloat"]
    header.append(f"\n### Bloat\n{_listing(card.bloat)}")
    header += [f"Run started: {card.started}"] if card.started else []
    *headlines, times = card.summary
    totals = "\n".join(f"{name}: {value}" for name, value in card.totals.items())
    summary = [
        "## Summary",
        _listing(card.bloat),
        *(_table(table, 15, 8) for table in headlines),
        totals,
        _table(times),
    ]
    summary += _images(card.timeline, pictures)
    sections = [_section(section, pictures) for section in card.sections]
    body = "\n\n\n".join([*sections, "\n\n".join(summary)])
    return "\n\n".join([*header, "---", body]) + "\n"


def _section(section: Section, pictures: str) -> str:
    head = f"## {section.title}\n" + (f"timestamp: {section.moment}" if section.moment else section.remark)
    remark = section.remark if section.moment else ""
    listing = _listing(section.settings | section.results)
    shown = [*map(_table, section.tables), *_images(section.plots, pictures)]
    return "\n\n".join(filter(None, [head, remark, listing, *shown]))


def _listing(facts: Facts) -> str:
    return "\n".join(f"- {label}: {value}" for label, value in facts.items())


def _table(table: Table, first: int = 0, others: int = 0) -> str:
    """first, others: least widths of columns."""
    title, rows = table
    rows = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    lines = ["| " + " | ".join(cell.ljust(others if i else first) for i, cell in enumerate(row)) + " |" for row in rows]
    rule = "|" + "|".join("-" * (max(len(name), others if i else first) + 2) for i, name in enumerate(rows[0])) + "|"
    return "\n".join([f"### {title}\n"] * bool(title) + [lines[0], rule, *lines[1:]])


def _images(plots: dict[str, str], folder: str) -> list[str]:
    titles = [element.partition('aria-label="')[2].partition('"')[0] for element in plots.values()]
    places = [quote(f"{folder}/{name}") for name in plots]  # a blank would end the link
    return [f"![{title}]({place})" for title, place in zip(titles, places, strict=True)]


# ---- JSON ----


def record(card: Card, base: Path) -> dict[str, Any]:
    """All that is known of a run, for programs: docs/report.md tells what is where."""
    found = {
        "format": FORMAT,
        "generated": card.generated,
        "environment": card.environment,
        "stages": [asdict(outcome) for outcome in card.outcomes],
        "damaged": card.damaged,
        "summary": {
            "metrics": card.headlines,
            "shares": [asdict(share) for share in card.shares],
            "seconds": card.seconds,
            "dollars": card.dollars,
        },
        "decisions": decisions(base, card.outcomes),
    }
    return _finite(found)


def _finite(value: Any) -> Any:
    """JSON knows no NaN."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- the command ----


def render(base: Path, stages: Sequence[Stage] = STAGES) -> str:
    """The card of the outcomes below `base`, as Markdown."""
    return markdown(read_card(base, stages), "report")


def write(base: Path, out: Path, tag: str = "") -> None:
    """All three forms of the card, and the Markdown's pictures in a folder of its name, without an older card's."""
    card = read_card(base, tag=tag)
    plots = [section.plots for section in card.sections] + [card.timeline]
    named = {name: element for some in plots for name, element in some.items()}
    for name, element in named.items():
        write_text(out.with_suffix("") / name, picture(element))
    for path in out.with_suffix("").glob("*.svg"):
        if path.name not in named and PICTURE.fullmatch(path.name):
            path.unlink()
    write_text(out, markdown(card, out.stem))
    write_text(out.with_suffix(".html"), page(card))
    write_json(out.with_suffix(".json"), record(card, base))


def read(path: Path) -> dict[str, Any]:
    """What `record` tells of a run: of its folder, or a report.json."""
    if path.is_dir():
        return record(read_card(path), path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] == FORMAT:
            return found
    except (ValueError, KeyError, TypeError):  # no JSON, or that of something else
        pass
    raise ValueError(f"{path} is no report.json of format {FORMAT}: render it again with `python -m nanochat.report`")


def main(config: Config) -> None:
    if config.compare:
        one, other = (read(Path(name).expanduser()) for name in config.compare)
        print0(compare(one, other, config.compare))
        return
    base = Path(config.base_dir).expanduser() if config.base_dir else base_dir()
    out = Path(config.out).expanduser()
    if out.is_dir():
        raise ValueError(f"--out={config.out} is a folder, name a file")
    write(base, out, config.tag)
    print0(out.read_text(encoding="utf-8").rpartition("## Summary")[2].strip())
    print0(f"report card: {out.resolve()}")


if __name__ == "__main__":
    run(main, Config)
