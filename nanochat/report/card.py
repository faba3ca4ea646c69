"""The report card: outcomes → card (figures as text) → Markdown; `nanochat.report.html` renders the same Markdown.

A figure that is not known is left out or a dash.
"""

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from nanochat.errors import UserError
from nanochat.hardware import parse_hardware
from nanochat.log import Record, duration, escape_markup, format_value, markdown_table, table_of
from nanochat.metrics import read_preflight
from nanochat.outcome import Outcome, moment, read_outcomes
from nanochat.paths import read_json
from nanochat.report.compare import decisions
from nanochat.stages import STAGES, TITLES
from nanochat.statistics import NOT_KNOWN

if TYPE_CHECKING:
    from nanochat.report.plots import Plot

Card = Record  # a run as a JSON document; docs/report.md lists the keys
Facts = dict[str, Any]  # label -> value

FORMAT = 1  # version number in report.json, raised when a key changes meaning
FOLDERS = re.compile(r"(^|[=:,])[/~][^:,]*/(?=[^/:,])")  # the folders before the last part of a path


def hourly_rate(machine: Facts) -> float | None:
    """Return dollars per hour of all nodes, from an outcome's hardware; None without a known price.

    The price that was given counts first, else that of GPUs such as "8x NVIDIA H100 80GB HBM3".
    """
    if "Hourly Rate" in machine:
        return machine["Hourly Rate"]
    with suppress(ValueError):  # of GPUs of several kinds
        count, accelerator = parse_hardware(machine["GPUs"])
        return accelerator.dollars and machine.get("Nodes", 1) * count * accelerator.dollars
    return None


def cost(outcomes: Sequence[Outcome]) -> float | None:
    """Return the dollars for some stages; None if one of them ran at an unknown price."""
    rates = [hourly_rate(outcome.environment["Hardware"]) for outcome in outcomes]
    known = [rate for rate in rates if rate is not None]
    # A sum with a missing part would look complete.
    if len(known) < len(outcomes):
        return None
    return sum(rate * outcome.seconds / 3600 for rate, outcome in zip(known, outcomes, strict=True))


def read_card(base: Path, tag: str = "") -> Card:
    """Return the card for all outcomes below `base`, or for those of some tags, with commas between them."""
    found = {one: read_outcomes(base, one) for one in list(filter(None, tag.split(","))) or [""]}
    outcomes = [outcome for own in found.values() for outcome in own]
    if not outcomes:
        raise UserError(f"no stage has left an outcome below {base}, run one first or set another NANOCHAT_BASE_DIR")
    if missing := [one for one, own in found.items() if not own]:
        raise UserError(f"--tag={tag}: no stage has left an outcome with the tag {' or '.join(missing)}")
    # Unknown stages come last. A stable sort: tags of one stage keep their order.
    outcomes.sort(key=lambda outcome: [*TITLES, outcome.stage].index(outcome.stage))
    newest = max(outcomes, key=attrgetter("ended"))
    environment = {
        name: {label: format_value(value) for label, value in facts.items()}
        for name, facts in newest.environment.items()
    }
    rate = hourly_rate(newest.environment["Hardware"])
    if rate is not None:
        environment["Hardware"]["Hourly Rate"] = f"${rate:.2f}/hour"
    stages = [outcome.stage for outcome in outcomes]
    seconds = sum(outcome.seconds for outcome in outcomes)
    shares = []
    for outcome in outcomes:
        title = TITLES.get(outcome.stage, outcome.stage)
        # The tag is named if a stage has several.
        if stages.count(outcome.stage) > 1:
            title += f" ({outcome.tag})"
        part = outcome.seconds / seconds
        shares.append({"title": title, "seconds": outcome.seconds, "part": part, "dollars": cost([outcome])})
    return {
        "format": FORMAT,
        "generated": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        "text": _text(outcomes),
        "command": _command(base, outcomes, newest),
        "environment": environment,
        "stages": [asdict(outcome) for outcome in outcomes],
        "summary": {
            "metrics": _headlines(outcomes),
            "shares": shares,
            "seconds": seconds,
            "dollars": cost(outcomes),
        },
        "preflight": read_preflight(base),
        # Small enough to compare runs question by question without their folders.
        "decisions": decisions(base, outcomes),
    }


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


def _moment(timestamp: str) -> str:
    return timestamp[:19].replace("T", " ")  # to the second


def _headlines(outcomes: Sequence[Outcome]) -> dict[str, Facts]:
    """Return metric -> column -> value for the stages' headline metrics, from the newest tag that has the metric."""
    # Several stages share a column: one for each model.
    names = {outcome.stage for outcome in outcomes}
    columns = dict.fromkeys(stage.column for stage in STAGES if stage.column and (stage.planned or stage.name in names))
    table = {}
    for stage in STAGES:
        # Newer outcomes overwrite older ones.
        for outcome in sorted(outcomes, key=attrgetter("ended")):
            for metric, value in outcome.metrics.items():
                # "ChatCORE (5 of 6 tasks)" has its own row.
                if outcome.stage == stage.name and metric.partition(" (")[0] in stage.headline:
                    table.setdefault(metric, columns.copy())[stage.column] = value
    return table


# ---- Markdown ----


def markdown(card: Card, pictures: str) -> str:
    """Return the card as Markdown. pictures: the folder with the pictures, beside the file."""
    parts = ["# nanochat training report", f"Generated: {card['generated']}"]
    checkout = card["environment"].get("Git Information", {})
    if "Commit" in checkout:
        # A record of an earlier version has no date.
        date = f", {checkout['Date']}" if checkout.get("Date") else ""
        parts.append(f"Code: commit {checkout['Commit']}{date}")
    if card["text"]:
        parts.append(f"Learned from: {escape_markup(card['text'])}")
    parts += [f"Command: {escape_markup(card['command'])}", "## Environment"]
    for name, facts in card["environment"].items():
        parts.append(f"### {name}\n{_listing(facts)}")
    started = min((stage["started"] for stage in card["stages"]), key=moment)
    parts += [f"Run started: {_moment(started)}", "---"]
    for stage, share in zip(card["stages"], card["summary"]["shares"], strict=True):
        parts.append(f"## {share['title']}\ntimestamp: {_moment(stage['timestamp'])}")
        # Only fields marked for the card; the JSON file has the others. A metric wins over a setting's name.
        settings = {name: stage["config"][name] for name in stage["card"] if name not in stage["off"]}
        known = {name: value for name, value in stage["metrics"].items() if value != NOT_KNOWN}
        facts = settings | known
        if stage["stage"] == "base_train" and share["dollars"] is not None:
            facts["Dollars"] = {"value": share["dollars"], "format": ",.2f"}
        hidden = _hidden(len(stage["off"]), len(stage["metrics"]) - len(known))
        if hidden:
            facts["Not shown"] = hidden
        if facts:
            parts.append(_listing(facts))
        for table in stage["tables"]:
            parts += [f"### {table['title']}", markdown_table(table)]
            if "note" in table:
                parts.append(table["note"])
        for name, plot in plots([stage]).items():
            # Quoted, because a blank would end the link.
            parts.append(f"![{plot['title']}]({quote(f'{pictures}/{name}')})")
    bloat = [_listing(card["environment"]["Bloat"])] if "Bloat" in card["environment"] else []
    return "\n\n".join([*parts, "## Summary", *bloat, summary(card)]) + "\n"


def _hidden(settings: int, figures: int) -> str:
    """Return what a section leaves out, in words."""
    parts = []
    if settings:
        parts.append(f"{settings} {'setting' if settings == 1 else 'settings'} at the default that does nothing")
    if figures:
        parts.append(f"{figures} {'figure' if figures == 1 else 'figures'} that this machine does not have")
    return " and ".join(parts)


def plots(stages: Sequence[Record]) -> "dict[str, Plot]":
    """Return the curves of the stages: name of the picture's file -> plot."""
    return {
        f"{stage['stage']}-{stage['tag']}-{number}.svg": curve
        for stage in stages
        for number, curve in enumerate(stage["curves"], 1)
    }


def summary(card: Card) -> str:
    """Return the summary as Markdown, and for the terminal: headline metrics, totals, time and cost for each stage."""
    found = card["summary"]
    parts = []
    rows = [[metric, *values.values()] for metric, values in found["metrics"].items()]
    if rows:
        # All metrics have the same columns, in the same order.
        columns = " | ".join(["Metric", *next(iter(found["metrics"].values()))])
        parts.append(markdown_table(table_of("", columns, rows)))
    total = f"Total wall clock time: {duration(found['seconds'])}"
    if found["dollars"] is not None:
        total += f"\nTotal cost: ${found['dollars']:.2f}"
    rows = [[share["title"], duration(share["seconds"]), share["part"], share["dollars"]] for share in found["shares"]]
    return "\n\n".join([*parts, total, markdown_table(table_of("", "Stage | Time | Share:.1% | Dollars:.2f", rows))])


def _listing(facts: Facts) -> str:
    return "\n".join(f"- {label}: {escape_markup(format_value(value))}" for label, value in facts.items())
