"""Two runs side by side: the figures for each stage with differences; paired if both answered the same questions.

A run is a dictionary as in report.json. Paired: the mean difference, question by question, with a standard error, and
the sign test (McNemar's exact test, if each question is answered once). Its p-value is the probability that the
questions which one run answers better split so unevenly by chance.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from nanochat.errors import UserError
from nanochat.ladder import STAGE as LADDER
from nanochat.ladder import compare_ladders, ladder_of_record
from nanochat.log import Record, format_value, table_of, terminal_table
from nanochat.outcome import Outcome, moment
from nanochat.paths import read_jsonl, read_sha256, text_sha256
from nanochat.stages import TITLES
from nanochat.statistics import mean_estimate, sign_test

# Columns with number formats; in the first table all is text.
FIGURES = " | A | B | B - A | ±"  # the first column has no title
ANSWERS = "Question by question | Questions:d | A:.4f | B:.4f | B - A:+.4f | ±:.4f | A better:d | B better:d | p:.3g"
NONE = ["-", "-"]  # difference and error where there is no number

# ---- correct answers ----


@dataclass(frozen=True)
class Answers:
    """The answers of a model to a benchmark, as an evaluation keeps them."""

    questions: str  # hash over all
    right: list[list[bool]]  # each sample of each question
    stops: list[bool]  # does a sample stop by itself? Empty for answers by the likeliest letter
    commonest: float  # share of the most frequent text


def read_answers(path: Path) -> Answers:
    """Return the answers that base_eval or chat_eval has written, one question a line."""
    questions = []
    right = []
    stops = []
    texts = Counter()
    answers: Iterable[Record] = read_jsonl(path, dict)
    for answer in answers:
        # chat_eval draws several samples for a question; base_eval scores each once, and has hashed the text itself.
        samples: Sequence[Record] = answer.get("completions") or [{"right": answer["correct"]}]
        questions.append(answer.get("question") or text_sha256(json.dumps([answer["prompt"], answer["answer"]])))
        right.append([sample["right"] for sample in samples])
        stops += [sample["reason"] != "length" for sample in samples if "reason" in sample]
        texts.update(sample.get("text") for sample in samples)
    commonest = max(texts.values(), default=0) / max(texts.total(), 1)
    return Answers(text_sha256(" ".join(questions)), right, stops, commonest)


def decisions(base: Path, outcomes: Iterable[Outcome]) -> list[Record]:
    """Return for each evaluated task a hash over all questions, and the number of correct samples for each."""
    found = []
    for outcome in outcomes:
        if "eval" not in outcome.stage:  # other stages have no answers: chats are kept one a line too
            continue
        # Answers are kept one a line; other artifacts are not evaluations.
        for path in (base / outcome.stage / outcome.tag).rglob("*.jsonl"):
            # Evaluations from earlier checkpoints wrote files with the same name: the hash decides.
            if outcome.artifacts.get(path.name) != read_sha256(path):
                continue
            answers = read_answers(path)
            found.append(
                {
                    "stage": outcome.stage,
                    "tag": outcome.tag,
                    "task": path.stem,
                    "questions": answers.questions,
                    "samples": max(map(len, answers.right), default=1),
                    "right": " ".join(str(sum(each)) for each in answers.right),
                }
            )
    return found


# ---- side by side ----


def end_of(stage: Record) -> datetime:
    """Return the end of a stage."""
    return moment(stage["timestamp"])


def compare(runs: Sequence[Record], names: Sequence[str]) -> str:
    """Return the comparison of two runs, A and B, as text for a terminal, stage by stage."""
    lines = [f"A: {names[0]}", f"B: {names[1]}"]
    # Stage -> newest record: a newer one replaces an older one.
    first, second = ({stage["stage"]: stage for stage in sorted(run["stages"], key=end_of)} for run in runs)
    for name in filter(second.__contains__, first):
        title = TITLES.get(name, name)
        stages: list[Record] = [first[name], second[name]]
        tables = [
            table_of(title, FIGURES, _rows(list(map(_figures, stages)))),
            table_of(f"{title}: share of correct answers", ANSWERS, _answer_rows(runs, stages)),
        ]
        lines += [f"\n{terminal_table(table)}" for table in tables if table["rows"]]
        if name == LADDER:
            lines.append(f"\n{_multipliers(stages)}")
    return "\n".join(lines)


def _multipliers(stages: Sequence[Record]) -> str:
    """Return the compute multipliers of B over A, two ladders, as text; why there are none, if they do not compare."""
    try:
        one, other = (ladder_of_record(stage, name) for stage, name in zip(stages, ("A", "B"), strict=True))
        return terminal_table(compare_ladders(one, other).table())
    except UserError as error:
        return f"Compute multiplier: {error}"


# ---- the figures for a stage ----


def _figures(stage: Record) -> dict[str, float | str | Record | None]:
    """Return a stage's settings as text, the time, the metrics, and the cells of tables with a standard error."""
    # The card lists the settings worth showing.
    settings = {name: format_value(stage["config"][name]) for name in stage["card"]}
    found = settings | {"Wall clock, seconds": stage["seconds"]} | stage["metrics"]
    for table in stage["tables"]:
        for row in table["rows"]:
            for (column, _), cell in zip(table["columns"], row, strict=True):
                if isinstance(cell, dict):
                    found[f"{table['title']}: {row[0]}, {column}"] = cell
    # A plain number has neither a format nor an error.
    return {name: value if isinstance(value, dict) else {"value": value} for name, value in found.items()}


def _rows(records: Sequence[Record]) -> list[list[str]]:
    """Return a row for each number, with the difference, and for each text that differs between two records."""
    rows = []
    for name in dict.fromkeys(chain(*records)):
        one, other = (record.get(name, {"value": None}) for record in records)
        texts = [format_value(one), format_value(other)]
        difference = _difference(one, other)
        if texts[0] != texts[1] or difference != NONE:
            rows.append([name, *texts, *difference])
    return rows


def _difference(one: Record, other: Record) -> list[str]:
    """Return other - one and the standard error as text; dashes for values that are not numbers."""
    before, after = one["value"], other["value"]
    if not {type(before), type(after)} <= {int, float}:
        return NONE
    spec = one.get("format") or (",d" if isinstance(after - before, int) else ".4f")
    # As if the runs were independent: squares add up.
    errors = [one.get("stderr"), other.get("stderr")]
    known = [error for error in errors if error is not None]
    error = "-" if len(known) < len(errors) else format(math.hypot(*known), spec)
    return [f"{after - before:+{spec}}", error]


# ---- question by question ----


def _answer_rows(runs: Sequence[Record], stages: Sequence[Record]) -> list[list[Any]]:
    """Return a row for each task with the same questions in both runs."""
    import numpy as np

    # (task, hash over the questions) -> the answers from a stage
    ours, theirs = (
        {
            (answers["task"], answers["questions"]): answers
            for answers in run["decisions"]
            # One run may hold several tags.
            if (answers["stage"], answers["tag"]) == (stage["stage"], stage["tag"])
        }
        for run, stage in zip(runs, stages, strict=True)
    )
    rows = []
    for key in sorted(ours.keys() & theirs.keys()):
        a, b = (np.array(one["right"].split(), float) / one["samples"] for one in (ours[key], theirs[key]))
        better = (a > b).sum(), (a < b).sum()
        rows.append([key[0], len(a), a.mean(), b.mean(), *mean_estimate((b - a).tolist()), *better, sign_test(*better)])
    return rows
