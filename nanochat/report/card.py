"""The report card as data: from whichever outcomes exist to header, sections and summary, all of it text by now.

Markdown and HTML are written from it. A figure that is not known is left out or a dash; what cannot be read is named.
"""

import glob
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from nanochat.hardware import hourly_rate
from nanochat.log import duration, print0
from nanochat.outcome import Outcome
from nanochat.report.plots import draw
from nanochat.stages import STAGES, Stage

Facts = dict[str, str]
Table = tuple[str, list[list[str]]]  # title; header and rows

MEANS = ("CORE metric", "ChatCORE")  # stages that have one of them in the summary are evaluations, task by task


@dataclass(frozen=True)
class Section:
    """A stage's. settings: of its config. results: what came of it. plots: file name -> SVG element."""

    title: str
    moment: str = ""
    remark: str = ""
    settings: Facts = field(default_factory=dict)
    results: Facts = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    plots: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Share:
    """Of a stage in the run: seconds of wall clock, of all stages' together, and dollars; None: it did not run."""

    title: str
    seconds: float | None
    part: float | None
    dollars: float | None


@dataclass(frozen=True)
class Card:
    """environment: of the machine of the run, which need not be this one. headlines: metric -> column -> value."""

    generated: str
    started: str
    environment: dict[str, Facts]
    sections: list[Section]
    headlines: dict[str, dict[str, Any]]
    shares: list[Share]
    timeline: dict[str, str]
    outcomes: list[Outcome]
    damaged: dict[str, str]

    @property
    def bloat(self) -> Facts:
        return self.environment["Bloat"]

    @property
    def seconds(self) -> float:
        return sum(share.seconds or 0.0 for share in self.shares)

    @property
    def dollars(self) -> float | None:
        """Of all stages; None if of one that ran the price is not known."""
        costs = [share.dollars for share in self.shares if share.seconds is not None]
        return sum(costs) if costs and None not in costs else None

    @property
    def totals(self) -> Facts:
        cost = {"Total cost": f"${self.dollars:.2f}"} if self.dollars is not None else {}
        return {"Total wall clock time": duration(self.seconds)} | cost

    @property
    def summary(self) -> list[Table]:
        """The headline metrics, if there are any, and the time of each stage."""
        rows = [[metric, *map(_cell, row.values())] for metric, row in self.headlines.items()]
        tables = [("", [["Metric", *next(iter(self.headlines.values()))], *rows])] if rows else []
        priced = any(share.dollars is not None for share in self.shares)
        times = [["Stage", "Time", "Share"] + ["Cost"] * priced]
        for share in self.shares:
            known = share.seconds is not None
            times.append([share.title, *([duration(share.seconds), f"{share.part:.1%}"] if known else ["-", "-"])])
            times[-1] += ["-" if share.dollars is None else f"${share.dollars:.2f}"] * priced
        return [*tables, ("", times)]


# ---- values as text ----


def show(value: Any) -> str:
    """A value as a line of the card shows it: 0.1234, 2048, 65,536, 0.0155 ± 0.0021, 21.07%."""
    if isinstance(value, dict):
        spec = value.get("format", "")
        numbers = [value["value"], *(error for error in [value.get("stderr")] if _is_known(error))]
        return " ± ".join(_cell(number, spec) for number in numbers) + value.get("unit", "")
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    return " ".join(str(value).split("\n"))


def _is_known(error: float | None) -> bool:
    return error is not None and not math.isnan(error)  # of a single item there is none


def _cell(value: Any, spec: str = "") -> str:
    """None is a dash, a text is itself whatever its column's format, and so is what is no number."""
    if value is None or isinstance(value, str) or value != value:
        return "-" if value is None else str(value)
    return format(value, spec) if spec else show(value)


def cells(table: dict) -> list[list[str]]:
    """Header and rows of a table of an outcome."""
    specs = [spec for _, spec in table["columns"]]
    rows = [[_cell(value, spec) for value, spec in zip(row, specs, strict=True)] for row in table["rows"]]
    return [[name for name, _ in table["columns"]], *rows]


def terminal_table(table: dict) -> str:
    """A table as aligned columns: the first to the left, numbers to the right."""
    rows = cells(table)
    full = [row for row in rows if set(row[1:]) != {"-"}]  # the others are remarks, longer than any column
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    aligned = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in full]
    return "\n".join([table["title"], *aligned, *(row[0] for row in rows if row not in full)])


def moment(timestamp: str) -> str:
    return datetime.fromisoformat(timestamp).strftime("%Y-%m-%d %H:%M:%S")


# ---- from outcomes to the card ----


def read_outcomes(base: Path, stages: Sequence[Stage] = STAGES, tag: str = "") -> list[tuple[str, str, Outcome | str]]:
    """What lies below `base` in stage order, unknown stages last: path, title, and the outcome or why there is none."""
    titles = {stage.name: stage.section for stage in stages}
    order = list(titles)
    found = sorted(
        (*path.parts[-3:-1], path) for path in base.glob(f"*/{glob.escape(tag) or '*'}/outcome.json")
    )  # (stage, tag, path)
    found.sort(key=lambda entry: order.index(entry[0]) if entry[0] in order else len(order))
    names, entries = [name for name, _, _ in found], []
    for name, tag, path in found:
        title = titles.get(name, name) + (f" ({tag})" if names.count(name) > 1 else "")
        try:
            outcome: Outcome | str = Outcome.load(path)
        except (OSError, ValueError) as error:
            # strerror: the full text of an OSError names a path of this machine.
            outcome = str(getattr(error, "strerror", None) or error)
        entries.append((f"{name}/{tag}/{path.name}", title, outcome))
    return entries


def read_card(base: Path, stages: Sequence[Stage] = STAGES, tag: str = "") -> Card:
    """The card of the outcomes below `base`, of all tags or of one."""
    entries = read_outcomes(base, stages, tag)
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
            damaged[path] = str(error)
            print0(f"report: {path} is damaged: {error}", file=sys.stderr)
            sections.append(Section(title, remark=f"{path} is damaged: {error}\n\nRun the stage again."))
    outcomes = [outcome for _, outcome in titled]
    return Card(
        generated=f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        started=moment(min(outcome.started for outcome in outcomes)) if outcomes else "",
        environment=_environment(newest),
        sections=sections,
        headlines=_headlines(outcomes, stages),
        shares=_shares(titled, stages),
        timeline=_timeline(titled, stages),
        outcomes=outcomes,
        damaged=damaged,
    )


def _section(title: str, outcome: Outcome, newest: dict, stages: Sequence[Stage]) -> Section:
    plots = {f"{outcome.stage}-{outcome.tag}-{n}.svg": draw(plot) for n, plot in enumerate(outcome.curves, 1)}
    headline = next((stage.headline for stage in stages if stage.name == outcome.stage), ())
    if headline and headline[-1] in MEANS:
        plots |= {f"{outcome.stage}-{outcome.tag}-tasks.svg": draw(bars) for bars in _bars(outcome)}
    return Section(
        title,
        moment(outcome.timestamp),
        remark=_elsewhere(outcome.environment, newest),
        settings={name: show(outcome.config[name]) for name in outcome.card},
        results={name: show(value) for name, value in outcome.metrics.items()},
        tables=[(table["title"], cells(table)) for table in outcome.tables],
        plots=plots,
    )


def _bars(outcome: Outcome) -> list[dict]:
    """The picture of an evaluation's scores."""
    scores = {name: value for name, value in outcome.metrics.items() if isinstance(value, dict) and "stderr" in value}
    bars = {}
    for name, score in scores.items():
        bars[name] = [score["value"], score["stderr"] if _is_known(score["stderr"]) else 0.0, show(score)]
    return [{"title": "Scores, with standard errors", "bars": bars}] if bars else []


def _elsewhere(environment: dict, newest: dict) -> str:
    """Where a stage ran, if that is not what the header tells of."""
    git, machine = environment.get("Git Information", {}), environment.get("Hardware", {})
    known = [git.get("Commit"), *(machine.get(part) for part in ("CPUs", "Memory", "GPUs"))]
    there, hardware = newest.get("Git Information", {}), newest.get("Hardware", {})
    if known == [there.get("Commit"), *(hardware.get(part) for part in ("CPUs", "Memory", "GPUs"))]:
        return ""
    return f"Of another commit or machine: {', '.join(str(one) for one in known if one)}"


def _environment(newest: dict) -> dict[str, Facts]:
    unknown = {"Recorded": "no"}
    names = dict.fromkeys(["Git Information", "Hardware", "Software", *newest, "Bloat"])
    shown = {name: {label: show(value) for label, value in newest.get(name, unknown).items()} for name in names}
    if rate := _hourly(newest):
        shown["Hardware"]["Hourly Rate"] = f"${rate:.2f}/hour"
    return shown | {"Bloat": shown.pop("Bloat")}  # last


def _hourly(environment: dict) -> float | None:
    return hourly_rate(environment.get("Hardware", {}).get("GPUs", ""))


def _headlines(outcomes: Sequence[Outcome], stages: Sequence[Stage]) -> dict[str, dict[str, Any]]:
    """Headline metrics, a column for each stage that can have one: None where it has none."""
    columns = list(dict.fromkeys(stage.column for stage in stages if stage.column))
    table: dict[str, dict[str, Any]] = {}
    for stage in stages:
        for outcome in sorted(outcomes, key=lambda outcome: outcome.timestamp):  # of several tags the newest stays
            for metric in outcome.metrics:  # "ChatCORE (5 of 6 tasks)" has a row of its own
                if outcome.stage == stage.name and metric.partition(" (")[0] in stage.headline:
                    table.setdefault(metric, dict.fromkeys(columns))[stage.column] = outcome.metrics[metric]
    return table


def _shares(titled: Sequence[tuple[str, Outcome]], stages: Sequence[Stage]) -> list[Share]:
    """Of every stage in order, those that did not run too, unknown ones last."""
    total = sum(outcome.seconds for _, outcome in titled) or 1.0
    shares = []
    names = list(dict.fromkeys([stage.name for stage in stages] + [outcome.stage for _, outcome in titled]))
    for name in names:
        ran = [(title, outcome) for title, outcome in titled if outcome.stage == name]
        for title, outcome in ran:
            rate = _hourly(outcome.environment)
            dollars = rate and rate * outcome.seconds / 3600
            shares.append(Share(title, outcome.seconds, outcome.seconds / total, dollars))
        missing = [stage for stage in stages if stage.name == name and not ran]
        # A base model is asked to chat by hand alone: without it nothing is missing.
        shares += [Share(stage.section, None, None, None) for stage in missing if stage.source != "base"]
    return shares


def _timeline(titled: Sequence[tuple[str, Outcome]], stages: Sequence[Stage]) -> dict[str, str]:
    """The picture of where the time went; a colour for each model, its evaluations paler."""
    models = {stage.parent for stage in stages}
    model_of = {stage.name: stage.name if stage.name in models else stage.parent for stage in stages}
    parts = [[title, outcome.seconds, model_of.get(outcome.stage, outcome.stage)] for title, outcome in titled]
    return {"time.svg": draw({"title": "Wall clock time", "parts": parts})} if parts else {}
