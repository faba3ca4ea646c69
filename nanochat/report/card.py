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
METRIC_WIDTHS = (15, 8)  # least widths of the first and the other columns of the summary, as in the public card


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
    """Time and cost of a stage; None for a stage that did not run."""

    title: str
    seconds: float | None = None  # wall clock
    part: float | None = None  # of the time of all stages
    dollars: float | None = None  # None too if a price is not known


@dataclass(frozen=True)
class Card:
    """A run, ready to be written as Markdown, HTML or JSON."""

    generated: str  # date of rendering
    started: str  # date of the first stage; empty without a readable record
    environment: dict[str, Facts]  # group -> facts about the machine of the run, which may be another one
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
        """The cost of all stages; None if the price of one that ran is not known."""
        costs = [share.dollars for share in self.shares if share.seconds is not None]
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
        columns = next(iter(self.headlines.values()))
        rows = [[metric, *map(_headline, values.values())] for metric, values in self.headlines.items()]
        return "", [["Metric", *columns], *rows]

    @property
    def times_table(self) -> Table:
        """Time, share and, if a price is known, cost of each stage."""
        priced = any(share.dollars is not None for share in self.shares)
        rows = [["Stage", "Time", "Share", "Cost"]]
        for share in self.shares:
            ran = share.seconds is not None
            time = duration(share.seconds) if ran else "-"
            part = f"{share.part:.1%}" if ran else "-"
            cost = "-" if share.dollars is None else f"${share.dollars:.2f}"
            rows.append([share.title, time, part, cost])
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
    """Return path, title, and record (or the reason why it cannot be read) below `base`, in the order of the stages.

    Unknown stages come last, with their folder's name as title. A tag is named where a stage has several.
    """
    titles = {stage.name: stage.section for stage in stages}
    order = {name: place for place, name in enumerate(titles)}
    found = read_outcomes(base, tag)
    names = [path.parts[-3] for path, _ in found]
    entries = []
    for name, (path, outcome) in zip(names, found, strict=True):
        several = f" ({path.parts[-2]})" if names.count(name) > 1 else ""
        entries.append((path, titles.get(name, name) + several, outcome))
    return sorted(entries, key=lambda entry: order.get(entry[0].parts[-3], len(order)))


def read_card(base: Path, stages: Sequence[Stage] = STAGES, tag: str = "") -> Card:
    """Return the card of the outcomes below `base`, of all tags or of one."""
    entries = stage_entries(base, stages, tag)
    if not entries:
        raise ValueError(f"no stage has left an outcome below {base}, run one first or name another --base-dir")
    sound = [outcome for *_, outcome in entries if isinstance(outcome, Outcome)]
    newest = max(sound, key=lambda outcome: outcome.timestamp).environment if sound else {}
    titled, sections, damaged = [], [], {}
    for path, title, outcome in entries:
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
    return Card(
        generated=f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        started=_moment(min(outcome.started for outcome in outcomes)) if outcomes else "",
        environment=_environment(newest),
        sections=sections,
        headlines=_headlines(outcomes, stages),
        shares=_shares(titled, stages),
        timeline=_timeline(titled, stages),
        outcomes=outcomes,
        damaged=damaged,
    )


def _section(title: str, outcome: Outcome, newest: dict[str, Any], stages: Sequence[Stage]) -> Section:
    """Return the section of a stage. newest: the environment in the card's header."""
    plots = {}
    for number, curve in enumerate(outcome.curves, 1):
        plots[f"{outcome.stage}-{outcome.tag}-{number}.svg"] = draw_plot(curve)
    headline = next((stage.headline for stage in stages if stage.name == outcome.stage), ())
    bars = _score_bars(outcome) if headline and headline[-1] in MEANS else {}
    if bars:
        plots[f"{outcome.stage}-{outcome.tag}-tasks.svg"] = draw_plot(bars)
    return Section(
        title,
        moment=_moment(outcome.timestamp),
        remark=_other_machine(outcome.environment, newest),
        settings={name: format_value(outcome.config[name]) for name in outcome.card},
        results={name: format_value(value) for name, value in outcome.metrics.items()},
        tables=[(table["title"], format_rows(table)) for table in outcome.tables],
        plots=plots,
    )


def _moment(timestamp: str) -> str:
    return datetime.fromisoformat(timestamp).strftime("%Y-%m-%d %H:%M:%S")


def _score_bars(outcome: Outcome) -> Plot:
    """Return the plot of an evaluation's scores; empty without scores."""
    bars = {}
    for name, score in outcome.metrics.items():
        # Scores have a standard error, parameters like the step have none.
        if isinstance(score, dict) and "stderr" in score:
            error = score["stderr"] if is_known(score["stderr"]) else 0.0
            bars[name] = [score["value"], error, format_value(score)]
    return {"title": "Scores, with standard errors", "bars": bars} if bars else {}


def _other_machine(environment: dict[str, Any], newest: dict[str, Any]) -> str:
    """Return a remark if a stage ran with another commit or machine than the header names."""
    here, there = _commit_and_machine(environment), _commit_and_machine(newest)
    return "" if here == there else f"Of another commit or machine: {', '.join(part for part in here if part)}"


def _commit_and_machine(environment: dict[str, Any]) -> list[str | None]:
    hardware = environment.get("Hardware", {})
    commit = environment.get("Git Information", {}).get("Commit")
    return [commit, *(hardware.get(part) for part in ("CPUs", "Memory", "GPUs"))]


def _environment(newest: dict[str, Any]) -> dict[str, Facts]:
    """Return the header's groups of facts, Bloat last."""
    names = dict.fromkeys(["Git Information", "Hardware", "Software", *newest])
    names.pop("Bloat", None)
    groups = {}
    for name in [*names, "Bloat"]:
        facts = newest.get(name, {"Recorded": "no"})  # older runs recorded less
        groups[name] = {label: format_value(value) for label, value in facts.items()}
    rate = _dollars_an_hour(newest)
    if rate:
        groups["Hardware"]["Hourly Rate"] = f"${rate:.2f}/hour"
    return groups


def _dollars_an_hour(environment: dict[str, Any]) -> float | None:
    return hourly_rate(environment.get("Hardware", {}).get("GPUs", ""))


def _headlines(outcomes: Sequence[Outcome], stages: Sequence[Stage]) -> dict[str, dict[str, Any]]:
    """Return metric -> column -> value of the stages' headline metrics; of several tags the newest counts."""
    columns = list(dict.fromkeys(stage.column for stage in stages if stage.column))
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
    """Return time and cost of every stage in order, also of stages that did not run; unknown stages last."""
    total = sum(outcome.seconds for _, outcome in titled) or 1.0
    ran = {}
    for title, outcome in titled:
        rate = _dollars_an_hour(outcome.environment)
        dollars = None if rate is None else rate * outcome.seconds / 3600
        share = Share(title, outcome.seconds, outcome.seconds / total, dollars)
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
    """Return the picture of the time of each stage; a colour for each model, paler for its evaluations."""
    models = {stage.parent for stage in stages}
    model_of = {stage.name: stage.name if stage.name in models else stage.parent for stage in stages}
    parts = [[title, outcome.seconds, model_of.get(outcome.stage, outcome.stage)] for title, outcome in titled]
    return {"time.svg": draw_plot({"title": "Wall clock time", "parts": parts})} if parts else {}


# ---- Markdown ----


def markdown(card: Card, pictures: str) -> str:
    """Return the card as Markdown. pictures: the folder of the pictures, beside the file."""
    parts = ["# nanochat training report", f"Generated: {card.generated}", "## Environment"]
    parts += [f"### {name}\n{_listing(facts)}" for name, facts in card.environment.items() if name != "Bloat"]
    parts.append(f"\n### Bloat\n{_listing(card.bloat)}")
    if card.started:
        parts.append(f"Run started: {card.started}")
    parts.append("---")
    sections = [_section_markdown(section, pictures) for section in card.sections]
    body = "\n\n\n".join([*sections, _summary_markdown(card, pictures)])
    return "\n\n".join([*parts, body]) + "\n"


def summary_markdown(card: Card) -> str:
    """Return the summary for the terminal: headline metrics, totals and times, without pictures."""
    metrics = [_table(card.metrics_table, METRIC_WIDTHS)] if card.metrics_table else []
    return "\n\n".join([*metrics, _totals(card), _table(card.times_table)])


def _summary_markdown(card: Card, pictures: str) -> str:
    parts = ["## Summary", _listing(card.bloat), summary_markdown(card)]
    return "\n\n".join([*parts, *_images(card.timeline, pictures)])


def _totals(card: Card) -> str:
    return "\n".join(f"{name}: {value}" for name, value in card.totals.items())


def _section_markdown(section: Section, pictures: str) -> str:
    heading = f"## {section.title}"
    parts = [f"{heading}\ntimestamp: {section.moment}" if section.moment else heading, section.remark]
    if not section.moment:  # damaged: the remark takes the place of the date
        parts = [f"{heading}\n{section.remark}"]
    parts.append(_listing(section.settings | section.results))
    parts += [_table(table) for table in section.tables]
    parts += _images(section.plots, pictures)
    return "\n\n".join(part for part in parts if part)


def _listing(facts: Facts) -> str:
    return "\n".join(f"- {label}: {value}" for label, value in facts.items())


def _table(table: Table, least: tuple[int, int] = (0, 0)) -> str:
    """Return a table. least: widths of the first and of the other columns, at least."""
    title, rows = table
    rows = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    header, *_ = rows
    widths = [least[0], *(least[1] for _ in header[1:])]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    rule = "|".join("-" * (max(len(name), width) + 2) for name, width in zip(header, widths, strict=True))
    heading = [f"### {title}\n"] if title else []
    return "\n".join([*heading, lines[0], f"|{rule}|", *lines[1:]])


def _images(plots: dict[str, str], folder: str) -> list[str]:
    images = []
    for name, element in plots.items():
        title = element.partition('aria-label="')[2].partition('"')[0]
        images.append(f"![{title}]({quote(f'{folder}/{name}')})")  # quoted: a blank would end the link
    return images
