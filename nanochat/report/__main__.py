"""A run's report card: `python -m nanochat.report` writes Markdown, HTML and JSON.

`--compare A B` prints two runs side by side.
"""

import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nanochat.config import option, run
from nanochat.log import print0
from nanochat.paths import base_dir, write_json, write_text
from nanochat.report.card import Card, markdown, read_card, summary_markdown
from nanochat.report.compare import compare, decisions
from nanochat.report.html import html_page
from nanochat.report.plots import picture_file
from nanochat.stages import STAGES

FORMAT = 1  # version number in report.json, raised when a key changes meaning
# Picture names given by nanochat.report.card, so that pictures from an older card can be removed.
PICTURE = re.compile(rf"({'|'.join(stage.name for stage in STAGES)})-.+-(\d+|tasks)\.svg|time\.svg")


@dataclass(frozen=True)
class Config:
    """Write the report card for all finished stages, or compare runs."""

    out: str = option("report.md", "the card; .html, .json and pictures lie beside it", group="place", unit="FILE.md")
    base_dir: str = option("", "folder of the run; empty: NANOCHAT_BASE_DIR", group="place", unit="FOLDER")
    tag: str = option("", "tag of the run; empty: all tags", group="place")
    compare: tuple[str, ...] = option((), "two or more runs: folders or report.json files", group="place", unit="A B")

    def __post_init__(self):
        if len(self.compare) == 1:
            raise ValueError("--compare takes two runs or more, A B, not 1")
        if Path(self.out).suffix != ".md":
            raise ValueError(f"--out={self.out} is no Markdown file, name it like {Path(self.out).stem}.md")


def card_record(card: Card, base: Path) -> dict[str, Any]:
    """Return a run as a JSON document; docs/report.md lists the keys."""
    summary = {
        "metrics": card.headlines,
        "shares": [asdict(share) for share in card.shares],
        "seconds": card.seconds,
        "dollars": card.dollars,
    }
    record = {
        "format": FORMAT,
        "generated": card.generated,
        "environment": card.environment,
        "stages": [asdict(outcome) for outcome in card.outcomes],
        "damaged": card.damaged,
        "summary": summary,
        # Small enough to compare runs question by question without their folders.
        "decisions": decisions(base, card.outcomes),
    }
    return _without_nan(record)


def _without_nan(value: Any) -> Any:
    """Return a value with None for NaN and infinity, for which JSON has no word."""
    if isinstance(value, dict):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    is_finite = not isinstance(value, float) or math.isfinite(value)
    return value if is_finite else None


def write_card(base: Path, out: Path, tag: str = "") -> Card:
    """Write the card in all three forms, and the Markdown's pictures in a folder with the same name."""
    card = read_card(base, tag=tag)
    pictures = out.with_suffix("")
    for name, element in card.plots.items():
        write_text(pictures / name, picture_file(element))
    # An older card may have left pictures; other files in the folder belong to the user.
    for path in pictures.glob("*.svg"):
        if path.name not in card.plots and PICTURE.fullmatch(path.name):
            path.unlink()
    write_text(out, markdown(card, out.stem))
    write_text(out.with_suffix(".html"), html_page(card))
    write_json(out.with_suffix(".json"), card_record(card, base))
    return card


def read_record(path: Path) -> dict[str, Any]:
    """Return a run's record, from the run's folder or from a report.json."""
    if path.is_dir():
        return card_record(read_card(path), path)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        # Keys in another version may mean something else.
        if record["format"] == FORMAT:
            return record
    except (ValueError, KeyError, TypeError):  # no JSON, or written by another program
        pass
    raise ValueError(f"{path} is no report.json of format {FORMAT}: write it again with `python -m nanochat.report`")


def main(config: Config) -> None:
    if config.compare:
        runs = {name: read_record(Path(name).expanduser()) for name in config.compare}
        print0(compare(list(runs.values()), list(config.compare)))
        return  # a comparison writes no file
    base = Path(config.base_dir).expanduser() if config.base_dir else base_dir()
    out = Path(config.out).expanduser()
    if out.is_dir():
        raise ValueError(f"--out={config.out} is a folder, name a file")
    card = write_card(base, out, config.tag)
    print0(
        summary_markdown(card),
        f"\nreport card: {out.resolve()}",
        sep="\n",
    )


if __name__ == "__main__":
    run(main, Config)
