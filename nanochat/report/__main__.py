"""A run's report card: `python -m nanochat.report` writes Markdown, HTML and JSON.

`--compare A B` prints two runs side by side.
"""

import json
from pathlib import Path

from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.log import print0
from nanochat.paths import base_dir, read_json, write_json, write_text
from nanochat.report.card import FORMAT, Card, markdown, plots, read_card, summary
from nanochat.report.compare import compare
from nanochat.report.html import html_page
from nanochat.report.plots import picture_file


@options("place")
class Config:
    """Write the report card for all finished stages, or compare two runs."""

    out: str = option("report.md", "file for the card; .html, .json and pictures are written next to it")
    tag: str = option("", "tag of the run, or several with commas between them; empty: all tags")
    compare: tuple[str, ...] = option((), "two runs: folders or report.json files")

    def __post_init__(self) -> None:
        if len(self.compare) not in (0, 2):
            raise UserError(f"--compare needs two runs, A B, not {len(self.compare)}")
        if Path(self.out).suffix != ".md":
            raise UserError(f"--out={self.out} is not a Markdown file, name it like {Path(self.out).stem}.md")


def json_record(card: Card) -> Card:
    """Return the card with None for NaN and infinity, for which JSON has no word."""
    return json.loads(json.dumps(card), parse_constant=lambda _: None)


def write_card(base: Path, out: Path, tag: str = "") -> Card:
    """Write the card in all three forms, and the Markdown's pictures in a folder with the same name."""
    card = read_card(base, tag)
    for name, plot in plots(card["stages"]).items():
        write_text(out.with_suffix("") / name, picture_file(plot))
    write_text(out, markdown(card, out.stem))
    write_text(out.with_suffix(".html"), html_page(card))
    write_json(out.with_suffix(".json"), json_record(card))
    return card


def read_record(path: Path) -> Card:
    """Return a run's record, from the run's folder or from a report.json."""
    if path.is_dir():
        return json_record(read_card(path))
    if path.suffix == ".md":
        raise UserError(f"{path} is the card for readers, name {path.with_suffix('.json').name} beside it")
    try:
        record = read_json(path)
    except ValueError:
        record = None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise UserError(f"{path} is not a report.json of this version, name the folder of the run")
    return record


def main(config: Config) -> None:
    if config.compare:
        runs = [read_record(Path(name).expanduser()) for name in config.compare]
        print0(compare(runs, config.compare))
        return  # a comparison writes no file
    out = Path(config.out).expanduser()
    print0(summary(write_card(base_dir(), out, config.tag)), f"report card: {out.resolve()}", sep="\n\n")


if __name__ == "__main__":
    run_script(main)
