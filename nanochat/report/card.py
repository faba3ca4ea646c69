"""The report card: outcomes → card (figures as text) → Markdown; `nanochat.report.html` renders the same Markdown.

A figure that is not known is left out or a dash.
"""

import re
import shlex
from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from nanochat.hardware import find_accelerator
from nanochat.log import duration, format_value, is_known, markdown_table, table_of
from nanochat.outcome import Outcome, read_outcomes
from nanochat.paths import read_json
from nanochat.report.plots import draw_plot
from nanochat.stages import OTHER_SECTIONS, STAGES

Facts = dict[str, Any]  # label -> value
Groups = dict[str, Facts]

TITLES = {stage.name: stage.section for stage in STAGES} | OTHER_SECTIONS
FOLDERS = re.compile(r"(^|[=:,])[/~][^:,]*/(?=[^/:,])")  # the folders before the last part of a path
EVALUATIONS = ("base_eval", "chat_eval")  # beginnings of the stages with a score for each task


class Section(NamedTuple):
    """A stage."""

    title: str
    outcome: Outcome
    plots: dict[str, str]  # file name -> SVG element
    part: float  # share in the run's time, 0 to 1
    dollars: float | None  # None if the price is not known


class Card(NamedTuple):
    """A run, ready to be written as Markdown, HTML or JSON."""

    generated: str  # date of rendering
    started: str  # date of the first stage
    tag: str  # of the newest stage
    text: str  # what the model learned from; empty if no stage says so
    command: str  # that started the run
    environment: Groups  # group -> facts about the machine that ran the newest stage
    sections: list[Section]
    headlines: Groups  # metric -> column of the summary -> value
    outcomes: list[Outcome]
    seconds: float  # of all stages

    @property
    def dollars(self) -> float | None:
        """The cost for all stages; None if a stage ran at an unknown price."""
        return cost(self.outcomes)

    @property
    def origin(self) -> list[str]:
        """The text and the command, a line each."""
        text = [f"Learned from: {self.text}"] if self.text else []
        return [*text, f"Command: {self.command}"]

    @property
    def plots(self) -> dict[str, str]:
        """All pictures: file name -> SVG element."""
        return {name: element for section in self.sections for name, element in section.plots.items()}


# ---- from outcomes to the card ----


def hourly_rate(gpus: str) -> float | None:
    """Return dollars per hour of "8x NVIDIA H100 80GB HBM3", as an outcome names GPUs; None without a known price."""
    match = re.fullmatch(r"(\d+)x (.+)", gpus)
    accelerator = find_accelerator(match[2]) if match else None
    if accelerator and accelerator.dollars:
        return int(match[1]) * accelerator.dollars
    return None


def cost(outcomes: Sequence[Outcome]) -> float | None:
    """Return the dollars for some stages; None if one of them ran at an unknown price."""
    rates = [hourly_rate(outcome.environment["Hardware"]["GPUs"]) for outcome in outcomes]
    # A sum with a missing part would look complete.
    if None in rates:
        return None
    return sum(rate * outcome.seconds / 3600 for rate, outcome in zip(rates, outcomes, strict=True))


def read_card(base: Path, tag: str = "") -> Card:
    """Return the card for all outcomes below `base`, or for one tag."""
    outcomes = read_outcomes(base, tag)
    if not outcomes:
        raise ValueError(f"no stage has left an outcome below {base}, run one first or name another --base-dir")
    # Unknown stages come last. A stable sort: tags of one stage keep their order.
    outcomes.sort(key=lambda outcome: [*TITLES, outcome.stage].index(outcome.stage))
    stages = [outcome.stage for outcome in outcomes]
    seconds = sum(outcome.seconds for outcome in outcomes)
    sections = []
    for outcome in outcomes:
        title = TITLES.get(outcome.stage, outcome.stage)
        # The tag is named if a stage has several.
        if stages.count(outcome.stage) > 1:
            title += f" ({outcome.tag})"
        plots, part = _plots(outcome), outcome.seconds / seconds
        sections.append(Section(title, outcome, plots, part, cost([outcome])))
    newest = max(outcomes, key=attrgetter("timestamp"))
    environment = {
        name: {label: format_value(value) for label, value in facts.items()}
        for name, facts in newest.environment.items()
    }
    rate = hourly_rate(newest.environment["Hardware"]["GPUs"])
    if rate:
        environment["Hardware"]["Hourly Rate"] = f"${rate:.2f}/hour"
    return Card(
        generated=f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        started=_moment(min(outcome.started for outcome in outcomes)),
        tag=newest.tag,
        text=_text(outcomes),
        command=_command(base, outcomes, newest),
        environment=environment,
        sections=sections,
        headlines=_headlines(outcomes),
        outcomes=outcomes,
        seconds=seconds,
    )


def _text(outcomes: Sequence[Outcome]) -> str:
    """Return the text that base training read, else the tokenizer's; several if runs with other tags read others."""
    for stage, metric in (("base_train", "Data"), ("tok_train", "data")):
        texts = [
            outcome.metrics[metric] for outcome in outcomes if outcome.stage == stage and metric in outcome.metrics
        ]
        if texts:
            return "; ".join(dict.fromkeys(texts))
    return ""


def _command(base: Path, outcomes: Sequence[Outcome], newest: Outcome) -> str:
    """Return the command of the main job, if one has run the newest stage's tag; else that of base training."""
    plan = base / "speedrun" / newest.tag / "plan.json"
    commands = {outcome.stage: outcome.command for outcome in outcomes if outcome.tag == newest.tag}
    command = commands.get("base_train", newest.command)
    if plan.exists():
        command = read_json(plan)["resume"]
    # --data=/home/me/text becomes --data=text: a reader has other folders.
    return shlex.join(FOLDERS.sub(r"\1", word) for word in shlex.split(command))


def _plots(outcome: Outcome) -> dict[str, str]:
    prefix = f"{outcome.stage}-{outcome.tag}"
    plots = {f"{prefix}-{number}.svg": draw_plot(curve) for number, curve in enumerate(outcome.curves, 1)}
    if outcome.stage.startswith(EVALUATIONS):
        bars = {
            # The error is NaN for a single question: drawn without a whisker.
            name: [score["value"], score["stderr"] if is_known(score["stderr"]) else 0.0, format_value(score)]
            for name, score in outcome.metrics.items()
            # Scores have a standard error, parameters like the step have none.
            if isinstance(score, dict) and "stderr" in score
        }
        plots[f"{prefix}-tasks.svg"] = draw_plot({"title": "Scores, with standard errors", "bars": bars})
    return plots


def _moment(timestamp: str) -> str:
    return timestamp[:19].replace("T", " ")  # to the second


def _headlines(outcomes: Sequence[Outcome]) -> Groups:
    """Return metric -> column -> value for the stages' headline metrics, from the newest tag that has the metric."""
    # Several stages share a column: one for each model.
    # Preferences are no part of the main job: their column is there if they were trained.
    names = {outcome.stage for outcome in outcomes}
    columns = dict.fromkeys(
        stage.column for stage in STAGES if stage.column and (stage.column != "DPO" or stage.name in names)
    )
    table = {}
    for stage in STAGES:
        # Newer outcomes overwrite older ones.
        for outcome in sorted(outcomes, key=attrgetter("timestamp")):
            for metric, value in outcome.metrics.items():
                # "ChatCORE (5 of 6 tasks)" has a row of its own.
                if outcome.stage == stage.name and metric.partition(" (")[0] in stage.headline:
                    table.setdefault(metric, columns.copy())[stage.column] = value
    return table


# ---- Markdown ----


def markdown(card: Card, pictures: str) -> str:
    """Return the card as Markdown. pictures: the folder with the pictures, beside the file."""
    parts = ["# nanochat training report", *body(card, pictures), "## Summary", summary(card)]
    return "\n\n".join(parts) + "\n"


def body(card: Card, pictures: str) -> list[str]:
    """Return header and stages as Markdown."""
    parts = [f"Generated: {card.generated}", *card.origin, "## Environment"]
    for name, facts in card.environment.items():
        parts.append(f"### {name}\n{_listing(facts)}")
    parts += [f"Run started: {card.started}", "---"]
    for section in card.sections:
        outcome = section.outcome
        parts.append(f"## {section.title}\ntimestamp: {_moment(outcome.timestamp)}")
        # Only fields marked for the card; the JSON file has the others. A metric wins over a setting's name.
        facts = {name: outcome.config[name] for name in outcome.card} | outcome.metrics
        if facts:
            parts.append(_listing(facts))
        for table in outcome.tables:
            parts += [f"### {table['title']}", markdown_table(table)]
        for name, element in section.plots.items():
            title = element.partition('aria-label="')[2].partition('"')[0]
            # Quoted, because a blank would end the link.
            parts.append(f"![{title}]({quote(f'{pictures}/{name}')})")
    return parts


def summary(card: Card) -> str:
    """Return the summary as Markdown, and for the terminal: headline metrics, totals, time and cost for each stage."""
    parts = []
    rows = [[metric, *values.values()] for metric, values in card.headlines.items()]
    if rows:
        # All metrics have the same columns, in the same order.
        columns = " | ".join(["Metric", *next(iter(card.headlines.values()))])
        parts.append(markdown_table(table_of("", columns, rows)))
    total = f"Total wall clock time: {duration(card.seconds)}"
    if card.dollars is not None:
        total += f"\nTotal cost: ${card.dollars:.2f}"
    rows = [[one.title, duration(one.outcome.seconds), one.part, one.dollars] for one in card.sections]
    return "\n\n".join([*parts, total, markdown_table(table_of("", "Stage | Time | Share:.1% | Dollars:.2f", rows))])


def _listing(facts: Facts) -> str:
    return "\n".join(f"- {label}: {format_value(value)}" for label, value in facts.items())
