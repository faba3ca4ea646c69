"""The report card: outcomes → card (figures as text) → Markdown. `nanochat.report.html` writes the same card as HTML.

A figure that is not known is left out or a dash; a record that cannot be read is named.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nanochat.hardware import hourly_rate
from nanochat.log import duration, format_rows, format_value, is_known, print0
from nanochat.outcome import Outcome, read_outcomes
from nanochat.report.plots import Plot, draw_plot
from nanochat.stages import STAGES, Stage

Facts = dict[str, str]
Table = tuple[str, list[list[str]]]  # title; header and rows

MEANS = ("CORE metric", "ChatCORE")  # a stage with one of these headlines is an evaluation, with a score for each task
METRIC_WIDTHS = (15, 8)  # least widths in the summary, as in the public card: first column, other columns
COMMON_GROUPS = ("Git Information", "Hardware", "Software")  # facts that every recent run records, in this order


@dataclass(frozen=True)
class Section:
    """A stage, as text."""

    title: str
    moment: str = ""  # end of the stage; empty for a damaged record
    remark: str = ""  # damage, or another machine than the header's
    settings: Facts = field(default_factory=dict)  # fields of the config
    results: Facts = field(default_factory=dict)  # metrics
    tables: list[Table] = field(default_factory=list)
    plots: dict[str, str] = field(default_factory=dict)  # file name -> SVG element


@dataclass(frozen=True)
class Share:
    """Time and cost for a stage; None for a stage that did not run."""

    title: str
    seconds: float | None = None  # wall clock
    part: float | None = None  # share in the run's time, 0 to 1
    dollars: float | None = None  # None too if a price is not known


@dataclass(frozen=True)
class Card:
    """A run, ready to be written as Markdown, HTML or JSON."""

    generated: str  # date of rendering
    started: str  # date of the first stage; empty without a readable record
    environment: dict[str, Facts]  # group -> facts about the machine that ran the stages, perhaps another one
    sections: list[Section]
    headlines: dict[str, dict[str, Any]]  # metric -> column of the summary -> value
    shares: list[Share]
    timeline: dict[str, str]  # file name -> SVG element, none or one
    outcomes: list[Outcome]
    damaged: dict[str, str]  # path of a record -> why it cannot be read

    @property
    def bloat(self) -> Facts:
        return self.environment["Bloat"]

    @property
    def seconds(self) -> float:
        return sum(share.seconds or 0.0 for share in self.shares)

    @property
    def dollars(self) -> float | None:
        """The cost for all stages; None if a stage ran at an unknown price."""
        costs = [share.dollars for share in self.shares if share.seconds is not None]
        # A sum with a missing part would look complete.
        return sum(costs) if costs and None not in costs else None

    @property
    def totals(self) -> Facts:
        facts = {"Total wall clock time": duration(self.seconds)}
        if self.dollars is not None:
            facts["Total cost"] = f"${self.dollars:.2f}"
        return facts

    @property
    def metrics_table(self) -> Table | None:
        """The headline metrics, a column for each stage that can have some; None without a metric."""
        if not self.headlines:
            return None
        # All metrics have the same columns, in the same order.
        columns = next(iter(self.headlines.values()))
        rows = [["Metric", *columns]]
        for metric, values in self.headlines.items():
            rows.append([metric, *map(_headline, values.values())])
        return "", rows

    @property
    def times_table(self) -> Table:
        """Time, share and, if a price is known, cost for each stage."""
        priced = any(share.dollars is not None for share in self.shares)
        rows = [["Stage", "Time", "Share", "Cost"]]
        for share in self.shares:
            ran = share.seconds is not None
            time = duration(share.seconds) if ran else "-"
            part = f"{share.part:.1%}" if ran else "-"
            cost = "-" if share.dollars is None else f"${share.dollars:.2f}"
            rows.append([share.title, time, part, cost])
        # A column with dashes alone would say nothing.
        return "", rows if priced else [row[:-1] for row in rows]

    @property
    def plots(self) -> dict[str, str]:
        """All pictures: file name -> SVG element."""
        found = {}
        for section in self.sections:
            found |= section.plots
        return found | self.timeline


def _headline(value: Any) -> str:
    return "-" if value is None else format_value(value)


# ---- from outcomes to the card ----


def stage_entries(base: Path, stages: Sequence[Stage], tag: str) -> list[tuple[Path, str, Outcome | str]]:
    """Return path, title, and record (or the reason why reading failed) for each outcome below `base`, stage by stage.

    Unknown stages come last, with their folder's name as title. A tag is named if a stage has several.
    """
    titles = {stage.name: stage.section for stage in stages}
    order = {name: place for place, name in enumerate(titles)}
    found = read_outcomes(base, tag)
    # A record lies at STAGE/TAG/outcome.json.
    names = [path.parts[-3] for path, _ in found]
    entries = []
    for name, (path, outcome) in zip(names, found, strict=True):
        title = titles.get(name, name)
        if names.count(name) > 1:
            title += f" ({path.parts[-2]})"
        place = order.get(name, len(order))  # behind all known stages
        entries.append((place, path, title, outcome))
    # A stable sort: tags of one stage keep their order.
    entries.sort(key=lambda entry: entry[0])
    return [tuple(entry) for _, *entry in entries]


def read_card(base: Path, stages: Sequence[Stage] = STAGES, tag: str = "") -> Card:
    """Return the card for all outcomes below `base`, or for one tag."""
    entries = stage_entries(base, stages, tag)
    if not entries:
        raise ValueError(f"no stage has left an outcome below {base}, run one first or name another --base-dir")
    # The newest stage describes the machine in the header.
    sound = [outcome for *_, outcome in entries if isinstance(outcome, Outcome)]
    newest = max(sound, key=lambda outcome: outcome.timestamp).environment if sound else {}
    titled = []  # readable outcomes with their titles
    sections = []
    damaged = {}
    for path, title, outcome in entries:
        # One bad record must not cost the whole card.
        try:
            if isinstance(outcome, str):
                raise ValueError(outcome)
            sections.append(_section(title, outcome, newest, stages))
            titled.append((title, outcome))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            name = path.relative_to(base).as_posix()
            damaged[name] = str(error)
            print0(f"report: {name} is damaged: {error}", file=sys.stderr)
            sections.append(Section(title, remark=f"{name} is damaged: {error}\n\nRun the stage again."))
    outcomes = [outcome for _, outcome in titled]
    starts = [outcome.started for outcome in outcomes]
    return Card(
        generated=f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        started=_moment(min(starts)) if starts else "",
        environment=_environment(newest),
        sections=sections,
        headlines=_headlines(outcomes, stages),
        shares=_shares(titled, stages),
        timeline=_timeline(titled, stages),
        outcomes=outcomes,
        damaged=damaged,
    )


def _section(title: str, outcome: Outcome, newest: dict[str, Any], stages: Sequence[Stage]) -> Section:
    """Return a stage's section. newest: the environment in the card's header."""
    prefix = f"{outcome.stage}-{outcome.tag}"
    plots = {}
    for number, curve in enumerate(outcome.curves, 1):
        plots[f"{prefix}-{number}.svg"] = draw_plot(curve)
    # The mean over all tasks is the last headline metric.
    headline = next((stage.headline for stage in stages if stage.name == outcome.stage), ())
    bars = _score_bars(outcome) if headline and headline[-1] in MEANS else {}
    if bars:
        plots[f"{prefix}-tasks.svg"] = draw_plot(bars)
    # Only fields marked for the card; the JSON file has the others.
    settings = {name: format_value(outcome.config[name]) for name in outcome.card}
    results = {name: format_value(value) for name, value in outcome.metrics.items()}
    tables = [(table["title"], format_rows(table)) for table in outcome.tables]
    return Section(
        title,
        moment=_moment(outcome.timestamp),
        remark=_other_machine(outcome.environment, newest),
        settings=settings,
        results=results,
        tables=tables,
        plots=plots,
    )


def _moment(timestamp: str) -> str:
    return datetime.fromisoformat(timestamp).strftime("%Y-%m-%d %H:%M:%S")


def _score_bars(outcome: Outcome) -> Plot:
    """Return the plot with an evaluation's scores; empty without scores."""
    bars = {}
    for name, score in outcome.metrics.items():
        # Scores have a standard error, parameters like the step have none.
        if isinstance(score, dict) and "stderr" in score:
            # NaN for a single question: drawn without a whisker.
            error = score["stderr"] if is_known(score["stderr"]) else 0.0
            bars[name] = [score["value"], error, format_value(score)]
    if not bars:
        return {}
    return {
        "title": "Scores, with standard errors",
        "bars": bars,
    }


def _other_machine(environment: dict[str, Any], newest: dict[str, Any]) -> str:
    """Return a remark if a stage ran with another commit or machine than the header names."""
    here = _commit_and_machine(environment)
    there = _commit_and_machine(newest)
    if here == there:
        return ""
    known = [part for part in here if part]
    return f"Of another commit or machine: {', '.join(known)}"


def _commit_and_machine(environment: dict[str, Any]) -> list[str | None]:
    """Return the facts that must agree for comparable results; None for a fact that was not recorded."""
    git = environment.get("Git Information", {})
    hardware = environment.get("Hardware", {})
    return [
        git.get("Commit"),
        hardware.get("CPUs"),
        hardware.get("Memory"),
        hardware.get("GPUs"),
    ]


def _environment(newest: dict[str, Any]) -> dict[str, Facts]:
    """Return the header's groups with facts, Bloat last."""
    # A dictionary, not a set: groups keep their order.
    names = dict.fromkeys([*COMMON_GROUPS, *newest])
    names.pop("Bloat", None)
    groups = {}
    for name in [*names, "Bloat"]:
        # Older runs recorded less.
        facts = newest.get(name, {"Recorded": "no"})
        groups[name] = {label: format_value(value) for label, value in facts.items()}
    rate = _dollars_an_hour(newest)
    if rate:
        groups["Hardware"]["Hourly Rate"] = f"${rate:.2f}/hour"
    return groups


def _dollars_an_hour(environment: dict[str, Any]) -> float | None:
    hardware = environment.get("Hardware", {})
    return hourly_rate(hardware.get("GPUs", ""))


def _headlines(outcomes: Sequence[Outcome], stages: Sequence[Stage]) -> dict[str, dict[str, Any]]:
    """Return metric -> column -> value for the stages' headline metrics, from the newest tag that has the metric."""
    # Several stages share a column: one for each model.
    columns = list(dict.fromkeys(stage.column for stage in stages if stage.column))
    # Newer outcomes overwrite older ones.
    by_age = sorted(outcomes, key=lambda outcome: outcome.timestamp)
    table: dict[str, dict[str, Any]] = {}
    for stage in stages:
        for outcome in by_age:
            if outcome.stage != stage.name:
                continue
            for metric, value in outcome.metrics.items():
                # "ChatCORE (5 of 6 tasks)" has a row of its own.
                if metric.partition(" (")[0] in stage.headline:
                    row = table.setdefault(metric, dict.fromkeys(columns))
                    row[stage.column] = value
    return table


def _shares(titled: Sequence[tuple[str, Outcome]], stages: Sequence[Stage]) -> list[Share]:
    """Return time and cost for every stage in order, including stages that did not run; unknown stages last."""
    # Avoids a division by zero without any readable stage.
    total = sum(outcome.seconds for _, outcome in titled) or 1.0
    ran = {}  # stage -> shares, one for each tag
    for title, outcome in titled:
        rate = _dollars_an_hour(outcome.environment)
        share = Share(
            title,
            seconds=outcome.seconds,
            part=outcome.seconds / total,
            dollars=None if rate is None else rate * outcome.seconds / 3600,
        )
        ran.setdefault(outcome.stage, []).append(share)
    shares = []
    for stage in stages:
        # The chat evaluation of a base model is started by hand alone: nothing is missing without it.
        absent = [] if stage.source == "base" else [Share(stage.section)]
        shares += ran.pop(stage.name, absent)
    for unknown in ran.values():
        shares += unknown
    return shares


def _timeline(titled: Sequence[tuple[str, Outcome]], stages: Sequence[Stage]) -> dict[str, str]:
    """Return the picture of the stages' times; a colour for each model, paler for evaluations."""
    # Every stage with children trains a model; other stages evaluate their parent.
    models = {stage.parent for stage in stages}
    model_of = {}
    for stage in stages:
        model_of[stage.name] = stage.name if stage.name in models else stage.parent
    parts = []
    for title, outcome in titled:
        group = model_of.get(outcome.stage, outcome.stage)
        parts.append([title, outcome.seconds, group])
    if not parts:
        return {}
    plot = {
        "title": "Wall clock time",
        "parts": parts,
    }
    return {"time.svg": draw_plot(plot)}


# ---- Markdown ----


def markdown(card: Card, pictures: str) -> str:
    """Return the card as Markdown. pictures: the folder with the pictures, beside the file."""
    parts = [
        "# nanochat training report",
        f"Generated: {card.generated}",
        "## Environment",
    ]
    for name, facts in card.environment.items():
        if name != "Bloat":
            parts.append(f"### {name}\n{_listing(facts)}")
    # One more empty line sets this group apart.
    parts.append(f"\n### Bloat\n{_listing(card.bloat)}")
    if card.started:
        parts.append(f"Run started: {card.started}")
    parts.append("---")
    # Two empty lines between sections, one inside.
    sections = [_section_markdown(section, pictures) for section in card.sections]
    sections.append(_summary_markdown(card, pictures))
    parts.append("\n\n\n".join(sections))
    return "\n\n".join(parts) + "\n"


def summary_markdown(card: Card) -> str:
    """Return the summary for the terminal: headline metrics, totals and times, without pictures."""
    parts = []
    if card.metrics_table:
        parts.append(_table(card.metrics_table, METRIC_WIDTHS))
    parts.append(_totals(card))
    parts.append(_table(card.times_table))
    return "\n\n".join(parts)


def _summary_markdown(card: Card, pictures: str) -> str:
    parts = [
        "## Summary",
        _listing(card.bloat),
        summary_markdown(card),
        *_images(card.timeline, pictures),
    ]
    return "\n\n".join(parts)


def _totals(card: Card) -> str:
    return "\n".join(f"{name}: {value}" for name, value in card.totals.items())


def _section_markdown(section: Section, pictures: str) -> str:
    heading = f"## {section.title}"
    if section.moment:
        parts = [f"{heading}\ntimestamp: {section.moment}", section.remark]
    # A damaged record has no date: the remark takes the place.
    else:
        parts = [f"{heading}\n{section.remark}"]
    # One list for both; a metric wins over a setting with the same name.
    parts.append(_listing(section.settings | section.results))
    parts += [_table(table) for table in section.tables]
    parts += _images(section.plots, pictures)
    return "\n\n".join(part for part in parts if part)


def _listing(facts: Facts) -> str:
    return "\n".join(f"- {label}: {value}" for label, value in facts.items())


def _table(table: Table, least: tuple[int, int] = (0, 0)) -> str:
    """Return a table. least: smallest widths, for the first column and for the others."""
    title, rows = table
    rows = [[_cell(text) for text in row] for row in rows]
    header, *body = rows
    first, other = least
    widths = [first, *(other for _ in header[1:])]
    # Two dashes more than the text: the blanks beside a cell.
    dashes = ["-" * (max(len(name), width) + 2) for name, width in zip(header, widths, strict=True)]
    lines = [f"### {title}\n"] if title else []
    lines.append(_row(header, widths))
    lines.append(f"|{'|'.join(dashes)}|")
    lines += [_row(row, widths) for row in body]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Return text that fits into a cell: on one line, with escaped bars."""
    return " ".join(text.split()).replace("|", "\\|")


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(map(str.ljust, cells, widths)) + " |"


def _images(plots: dict[str, str], folder: str) -> list[str]:
    images = []
    for name, element in plots.items():
        title = element.partition('aria-label="')[2].partition('"')[0]
        # Quoted, because a blank would end the link.
        link = quote(f"{folder}/{name}")
        images.append(f"![{title}]({link})")
    return images
