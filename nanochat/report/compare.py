"""Runs side by side: the figures of each stage with differences; paired where the same questions were answered.

A run is a dictionary as in report.json. Differences are to the first run. Paired: the mean of the differences, question
by question, with a standard error, and McNemar's exact test: the probability that the questions answered correctly by
only one of two runs split so unevenly by chance.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nanochat.log import format_value, terminal_table
from nanochat.outcome import Outcome
from nanochat.paths import read_sha256
from nanochat.stages import STAGES

WIDEST = 48  # characters of a text in a column
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # names of the runs in the tables

Record = dict[str, Any]
Metric = float | str | Record | None

# ---- correct answers ----


def decisions(base: Path, outcomes: Iterable[Outcome]) -> list[Record]:
    """Return for each task of an evaluation a hash of the questions, and the number of correct samples of each."""
    found = []
    for outcome in outcomes:
        for name, digest in outcome.artifacts.items():
            if not name.endswith(".jsonl"):
                continue
            record = {"stage": outcome.stage, "tag": outcome.tag, "task": name.removesuffix(".jsonl")}
            folder = base / outcome.stage / outcome.tag
            # Files of earlier checkpoints have the same name.
            path = next((path for path in sorted(folder.rglob(name)) if read_sha256(path) == digest), None)
            record |= _count_correct(path) if path else {"problem": f"{name} is missing or was changed"}
            found.append(record)
    return found


def _count_correct(path: Path) -> Record:
    questions, counts, samples = [], [], 1
    for line in path.read_text(encoding="utf-8").splitlines():
        answer = json.loads(line)
        if "completions" in answer:  # of chat_eval: several samples of a question
            verdicts = [completion["right"] for completion in answer["completions"]]
            text = json.dumps([answer["prompt"], answer["answer"]])
            questions.append(hashlib.sha256(text.encode()).hexdigest())
        else:  # of base_eval
            verdicts = [answer["correct"]]
            questions.append(answer.get("question"))
        counts.append(sum(verdicts))
        samples = len(verdicts)
    # Older runs did not record the questions.
    digest = None if None in questions else hashlib.sha256(" ".join(questions).encode()).hexdigest()
    return {"questions": digest, "samples": samples, "right": " ".join(map(str, counts))}


# ---- statistics ----


def paired(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return the mean of other - one, pair by pair, and its standard error; NaN for a single pair."""
    return _mean([b - a for a, b in zip(one, other, strict=True)])


def unpaired(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return the difference of two means and its standard error."""
    (low, low_error), (high, high_error) = _mean(one), _mean(other)
    return high - low, math.hypot(low_error, high_error)


def mcnemar(only_one: int, only_other: int) -> float:
    """Return the two-sided probability that a fair coin falls so, or more unevenly."""
    tosses = only_one + only_other
    ways, way = 0, 1  # of so many heads or fewer; of exactly so many
    for heads in range(min(only_one, only_other) + 1):
        ways += way
        way = way * (tosses - heads) // (heads + 1)
    return min(1.0, 2 * ways / 2**tosses)


def _mean(values: Sequence[float]) -> tuple[float, float]:
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return statistics.fmean(values), spread / math.sqrt(len(values))


# ---- side by side ----


def compare(runs: Sequence[Record], names: Sequence[str]) -> str:
    """Return the comparison of two or more runs as text for a terminal."""
    letters = LETTERS[: len(runs)]
    lines = [f"{letter}: {name}" for letter, name in zip(letters, names, strict=True)]
    environments = [run["environment"] for run in runs]
    for title in _all_keys(environments):
        groups = [environment.get(title, {}) for environment in environments]
        lines += _table_lines(title, ["", *letters], _differing(groups))
    stages = {}
    for letter, run in zip(letters, runs, strict=True):
        stages[letter], notes = _newest_stages(run)
        lines += [f"{letter}{note}" for note in notes]
    titles = {stage.name: stage.section for stage in STAGES}
    unknown = sorted(_all_keys(stages.values()).keys() - titles)
    for name in [*titles, *unknown]:
        found = {letter: run[name] for letter, run in stages.items() if name in run}
        title = titles.get(name, name)
        if found and len(found) < len(runs):
            lines.append(f"\n{title}: only {', '.join(found)} has it")
        if len(found) > 1:
            lines += _figure_lines(title, found)
            lines += _answer_lines(title, found, dict(zip(letters, runs, strict=True)))
    return "\n".join(lines)


def _all_keys(records: Iterable[Mapping[str, Any]]) -> dict[str, None]:
    """Return the keys of all records, in the order of the first that has them."""
    return dict.fromkeys(key for record in records for key in record)


def _newest_stages(run: Record) -> tuple[dict[str, Record], list[str]]:
    """Return stage -> its newest record, and notes about other tags and damaged records."""
    stages: dict[str, Record] = {}
    notes = []
    for stage in sorted(run["stages"], key=lambda stage: stage["timestamp"]):
        name = stage["stage"]
        if name in stages:
            notes.append(f" has {name} of {stages[name]['tag']} too: the newer, {stage['tag']}, is shown")
        stages[name] = stage
    notes += [f": {path} is damaged: {reason}" for path, reason in run["damaged"].items()]
    return stages, notes


def _table_lines(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table after an empty line; nothing without rows."""
    columns = [[name, ""] for name in header]
    return ["", terminal_table({"title": title, "columns": columns, "rows": rows})] if rows else []


def _differing(records: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Return a row for each text that is not the same in all records."""
    rows = []
    for name in _all_keys(records):
        values = [record.get(name, "-")[:WIDEST] for record in records]
        whole = {record.get(name, "-") for record in records}
        if len(whole) > 1:
            rows.append([name, *values])
    return rows


# ---- the figures of a stage ----


def _figure_lines(title: str, stages: dict[str, Record]) -> list[str]:
    """Return the table of a stage: settings and texts that differ, all numbers, and differences to the first run."""
    first, *others = stages
    header = ["", *stages]
    for letter in others:
        header += [f"{letter} - {first}", "±"]
    rows = []
    for row in _differing([_texts(stage) for stage in stages.values()]):
        no_difference = ["-" for _ in range(len(header) - len(row))]
        rows.append(row + no_difference)
    figures = [{"Wall clock, seconds": stage["seconds"], **stage["metrics"]} for stage in stages.values()]
    for name in _all_keys(figures):
        values = [run.get(name) for run in figures]
        if any(_number(value) is not None for value in values):
            rows.append(_number_row(name, values))
    return _table_lines(title, header, rows)


def _texts(stage: Record) -> dict[str, str]:
    """Return the settings of a stage, and the metrics that are no numbers."""
    texts = {name: format_value(stage["config"][name]) for name in stage["card"]}
    for name, value in stage["metrics"].items():
        if _number(value) is None:
            texts[name] = format_value(value)
    return texts


def _number(value: Metric) -> float | None:
    """Return the number of a metric, with or without an error; None for other values."""
    if isinstance(value, dict):
        value = value["value"]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else None


def _number_row(name: str, values: Sequence[Metric]) -> list[str]:
    """Return a metric of each run, and the difference of each run to the first with its standard error."""
    row = [name]
    for value in values:
        row.append("-" if value is None else format_value(value))
    first, *others = values
    for other in others:
        row += _difference(first, other)
    return row


def _difference(one: Metric, other: Metric) -> list[str]:
    low, high = _number(one), _number(other)
    if low is None or high is None:
        return ["-", "-"]
    details = [value if isinstance(value, dict) else {} for value in (one, other)]
    plain = ",d" if isinstance(high - low, int) else ".4f"
    spec = details[0].get("format") or plain
    errors = [detail.get("stderr") for detail in details]
    error = "-" if None in errors else format(math.hypot(*errors), spec)
    return [f"{high - low:+{spec}}", error]


# ---- question by question ----


def _answer_lines(title: str, stages: dict[str, Record], runs: dict[str, Record]) -> list[str]:
    """Return a table for each run after the first: the tasks that this run and the first one have answered."""
    first, *others = stages
    ours = _answers_of(runs[first], stages[first])
    lines = []
    for letter in others:
        theirs = _answers_of(runs[letter], stages[letter])
        header = ["Question by question", "Questions", first, letter, f"{letter} - {first}", "±"]
        header += [f"only {first}", f"only {letter}", "p"]
        rows = [_answer_row(task, {first: ours[task], letter: theirs[task]}) for task in ours if task in theirs]
        lines += _table_lines(f"{title}: share of correct answers", header, rows)
    return lines


def _answers_of(run: Record, stage: Record) -> dict[str, Record]:
    """Return task -> the answers of a stage."""
    found = {}
    for answers in run["decisions"]:
        if answers["stage"] == stage["stage"] and answers["tag"] == stage["tag"]:
            found[answers["task"]] = answers
    return found


def _answer_row(task: str, pair: dict[str, Record]) -> list[str]:
    """Return the row of a task: paired if the questions are the same, and tested if each was answered once."""
    for letter, answers in pair.items():
        if "problem" in answers:
            return [f"{task}: {letter}: {answers['problem']}", *"--------"]
    one, other = pair.values()
    a, b = _correct_shares(one), _correct_shares(other)
    same_questions = one["questions"] == other["questions"] is not None
    difference, error = paired(a, b) if same_questions else unpaired(a, b)
    count = f"{len(a)}" if same_questions else f"{len(a)}, {len(b)}"
    means = [f"{statistics.fmean(shares):.4f}" for shares in (a, b)]
    row = [task, count, *means, f"{difference:+.4f}", f"{error:.4f}"]
    if not same_questions:
        are_known = one["questions"] and other["questions"]
        return [*row, "-", "-", "other questions" if are_known else "questions not known"]
    if max(one["samples"], other["samples"]) > 1:
        return [*row, "-", "-", "-"]
    only_one = sum(x > y for x, y in zip(a, b, strict=True))
    only_other = sum(x < y for x, y in zip(a, b, strict=True))
    return [*row, str(only_one), str(only_other), f"{mcnemar(only_one, only_other):.3g}"]


def _correct_shares(answers: Record) -> list[float]:
    """Return the share of correct samples of each question."""
    return [int(count) / answers["samples"] for count in answers["right"].split()]
