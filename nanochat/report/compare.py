"""Runs side by side: the figures for each stage with differences; paired if both runs answered the same questions.

A run is a dictionary as in report.json. Differences are to the first run. Paired: the mean difference, question by
question, with a standard error, and McNemar's exact test. Its p-value is the probability that the questions answered
correctly by only one run split so unevenly by chance.
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

WIDEST = 48  # longest text in a column, in characters
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # short names for the runs in all tables

Record = dict[str, Any]  # parsed JSON
Metric = float | str | Record | None  # a record has a value, and perhaps a standard error

# ---- correct answers ----


def decisions(base: Path, outcomes: Iterable[Outcome]) -> list[Record]:
    """Return for each evaluated task a hash over all questions, and the number of correct samples for each."""
    found = []
    for outcome in outcomes:
        for name, digest in outcome.artifacts.items():
            # Answers are kept one a line; other artifacts are no evaluation.
            if not name.endswith(".jsonl"):
                continue
            record = {
                "stage": outcome.stage,
                "tag": outcome.tag,
                "task": name.removesuffix(".jsonl"),
            }
            folder = base / outcome.stage / outcome.tag
            # Evaluations from earlier checkpoints wrote files with the same name: the hash decides.
            same_name = sorted(folder.rglob(name))
            path = next((path for path in same_name if read_sha256(path) == digest), None)
            record |= _count_correct(path) if path else {"problem": f"{name} is missing or was changed"}
            found.append(record)
    return found


def _count_correct(path: Path) -> Record:
    """Return the hash, the samples per question and the correct samples from a file of answers."""
    questions = []
    counts = []  # correct samples, question by question
    samples = 1
    for line in path.read_text(encoding="utf-8").splitlines():
        answer = json.loads(line)
        # chat_eval draws several samples for a question.
        if "completions" in answer:
            verdicts = [completion["right"] for completion in answer["completions"]]
            text = json.dumps([answer["prompt"], answer["answer"]])
            questions.append(_text_hash(text))
        # base_eval scores each question once, and has hashed the text itself.
        else:
            verdicts = [answer["correct"]]
            questions.append(answer.get("question"))
        counts.append(sum(verdicts))
        samples = len(verdicts)
    # Older runs did not record their questions: then nothing can be paired.
    digest = None if None in questions else _text_hash(" ".join(questions))
    return {
        "questions": digest,
        "samples": samples,
        "right": " ".join(map(str, counts)),
    }


def _text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ---- statistics ----


def paired(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return the mean of other - one, pair by pair, and the standard error; NaN for a single pair."""
    differences = [b - a for a, b in zip(one, other, strict=True)]
    return _mean(differences)


def unpaired(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return the difference between two means and the standard error."""
    low, low_error = _mean(one)
    high, high_error = _mean(other)
    # Variances of independent means add up.
    error = math.hypot(low_error, high_error)
    return high - low, error


def mcnemar(only_one: int, only_other: int) -> float:
    """Return the two-sided probability that a fair coin falls so, or more unevenly."""
    tosses = only_one + only_other
    ways = 0  # sequences with so many heads or fewer
    way = 1  # the binomial coefficient: sequences with exactly so many
    fewest = min(only_one, only_other)
    for heads in range(fewest + 1):
        ways += way
        # The next binomial coefficient; the division leaves no remainder.
        way = way * (tosses - heads) // (heads + 1)
    # Twice one tail counts an even split double, so the limit is 1.
    return min(1.0, 2 * ways / 2**tosses)


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard error."""
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    error = spread / math.sqrt(len(values))
    return statistics.fmean(values), error


# ---- side by side ----


def compare(runs: Sequence[Record], names: Sequence[str]) -> str:
    """Return the comparison as text for a terminal: environments, then each stage. At least two runs."""
    runs_by_letter = dict(zip(LETTERS, runs, strict=False))
    lines = [f"{letter}: {name}" for letter, name in zip(runs_by_letter, names, strict=True)]
    # Commit, machine and software: only facts that differ.
    environments = [run["environment"] for run in runs]
    for title in _all_keys(environments):
        groups = [environment.get(title, {}) for environment in environments]
        lines += _table_lines(
            title,
            ["", *runs_by_letter],
            _differing(groups),
        )
    # letter -> stage -> record
    stages = {}
    for letter, run in runs_by_letter.items():
        stages[letter], notes = _newest_stages(run)
        lines += [f"{letter}{note}" for note in notes]
    # Stages from other versions come last, by name.
    titles = {stage.name: stage.section for stage in STAGES}
    unknown = sorted(_all_keys(stages.values()).keys() - titles)
    for name in [*titles, *unknown]:
        found = {letter: run[name] for letter, run in stages.items() if name in run}
        title = titles.get(name, name)
        if found and len(found) < len(runs):
            lines.append(f"\n{title}: only {', '.join(found)} has it")
        # A difference needs two.
        if len(found) > 1:
            lines += _figure_lines(title, found)
            lines += _answer_lines(title, found, runs_by_letter)
    return "\n".join(lines)


def _all_keys(records: Iterable[Mapping[str, Any]]) -> dict[str, None]:
    """Return the keys found in any record, in order of appearance."""
    # A dictionary is a set that keeps its order.
    return dict.fromkeys(key for record in records for key in record)


def _newest_stages(run: Record) -> tuple[dict[str, Record], list[str]]:
    """Return stage -> newest record, and notes about other tags and damaged records."""
    stages: dict[str, Record] = {}
    notes = []
    # By age, so that a newer record replaces an older one.
    for stage in sorted(run["stages"], key=lambda stage: stage["timestamp"]):
        name = stage["stage"]
        if name in stages:
            older = stages[name]["tag"]
            notes.append(f" has {name} of {older} too: the newer, {stage['tag']}, is shown")
        stages[name] = stage
    notes += [f": {path} is damaged: {reason}" for path, reason in run["damaged"].items()]
    return stages, notes


def _table_lines(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table after an empty line; nothing without rows."""
    if not rows:
        return []
    columns = [[name, ""] for name in header]  # no number format: all cells are text
    table = {
        "title": title,
        "columns": columns,
        "rows": rows,
    }
    return ["", terminal_table(table)]


def _differing(records: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Return a row for each text that differs between records."""
    rows = []
    for name in _all_keys(records):
        values = [record.get(name, "-") for record in records]
        # Compared at full length, shown cut: long texts may differ at the end alone.
        if len(set(values)) > 1:
            rows.append([name, *(value[:WIDEST] for value in values)])
    return rows


# ---- the figures for a stage ----


def _figure_lines(title: str, stages: dict[str, Record]) -> list[str]:
    """Return a stage's table: settings and texts that differ, all numbers, and differences to the first run."""
    first, *others = stages
    header = ["", *stages]
    # Two more columns for each further run.
    for letter in others:
        header += [f"{letter} - {first}", "±"]
    rows = []
    texts = [_texts(stage) for stage in stages.values()]
    for row in _differing(texts):
        # Texts have no difference: dashes fill the other columns.
        no_difference = ["-" for _ in header[len(row) :]]
        rows.append(row + no_difference)
    figures = [{"Wall clock, seconds": stage["seconds"]} | stage["metrics"] for stage in stages.values()]
    for name in _all_keys(figures):
        values = [run.get(name) for run in figures]
        if any(_number(value) is not None for value in values):
            rows.append(_number_row(name, values))
    return _table_lines(title, header, rows)


def _texts(stage: Record) -> dict[str, str]:
    """Return a stage's settings, and the metrics that are no numbers."""
    # The card lists the settings worth showing.
    texts = {name: format_value(stage["config"][name]) for name in stage["card"]}
    for name, value in stage["metrics"].items():
        if _number(value) is None:
            texts[name] = format_value(value)
    return texts


def _number(value: Metric) -> float | None:
    """Return a metric's number, with or without an error; None for other values."""
    if isinstance(value, dict):
        value = value["value"]
    # Python counts True and False as integers.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else None


def _number_row(name: str, values: Sequence[Metric]) -> list[str]:
    """Return a metric for each run, and each run's difference to the first with a standard error."""
    row = [name]
    for value in values:
        row.append("-" if value is None else format_value(value))
    first, *others = values
    for other in others:
        row += _difference(first, other)
    return row


def _difference(one: Metric, other: Metric) -> list[str]:
    """Return other - one and the standard error as text; dashes for values that are no numbers."""
    low = _number(one)
    high = _number(other)
    if low is None or high is None:
        return ["-", "-"]
    difference = high - low
    # A plain number has neither a format nor an error.
    details = [value if isinstance(value, dict) else {} for value in (one, other)]
    plain = ",d" if isinstance(difference, int) else ".4f"
    spec = details[0].get("format") or plain
    # As if the runs were independent: squares add up.
    errors = [detail.get("stderr") for detail in details]
    error = "-" if None in errors else format(math.hypot(*errors), spec)
    return [f"{difference:+{spec}}", error]


# ---- question by question ----


def _answer_lines(title: str, stages: dict[str, Record], runs: dict[str, Record]) -> list[str]:
    """Return a table for each run after the first: all tasks answered by this run and the first one."""
    first, *others = stages
    ours = _answers_of(runs[first], stages[first])
    lines = []
    for letter in others:
        theirs = _answers_of(runs[letter], stages[letter])
        header = [
            "Question by question",
            "Questions",
            first,
            letter,
            f"{letter} - {first}",
            "±",
            f"only {first}",
            f"only {letter}",
            "p",
        ]
        rows = []
        for task in ours:
            # A shorter evaluation has fewer tasks.
            if task in theirs:
                rows.append(_answer_row(task, {first: ours[task], letter: theirs[task]}))
        lines += _table_lines(f"{title}: share of correct answers", header, rows)
    return lines


def _answers_of(run: Record, stage: Record) -> dict[str, Record]:
    """Return task -> the answers from a stage."""
    found = {}
    for answers in run["decisions"]:
        # One run may hold several tags.
        if answers["stage"] == stage["stage"] and answers["tag"] == stage["tag"]:
            found[answers["task"]] = answers
    return found


def _answer_row(task: str, pair: dict[str, Record]) -> list[str]:
    """Return a task's row: paired if the questions are the same, and tested if each was answered once."""
    for letter, answers in pair.items():
        if "problem" in answers:
            dashes = "--------"  # one for each further column
            return [f"{task}: {letter}: {answers['problem']}", *dashes]
    one, other = pair.values()
    a = _correct_shares(one)
    b = _correct_shares(other)
    # Two unknown sets are not the same set.
    same_questions = one["questions"] == other["questions"] is not None
    difference, error = paired(a, b) if same_questions else unpaired(a, b)
    row = [
        task,
        f"{len(a)}" if same_questions else f"{len(a)}, {len(b)}",
        f"{statistics.fmean(a):.4f}",
        f"{statistics.fmean(b):.4f}",
        f"{difference:+.4f}",
        f"{error:.4f}",
    ]
    if not same_questions:
        are_known = one["questions"] and other["questions"]
        return [*row, "-", "-", "other questions" if are_known else "questions not known"]
    # McNemar's test needs one verdict per question, not a share.
    if max(one["samples"], other["samples"]) > 1:
        return [*row, "-", "-", "-"]
    only_one = sum(x > y for x, y in zip(a, b, strict=True))
    only_other = sum(x < y for x, y in zip(a, b, strict=True))
    p = mcnemar(only_one, only_other)
    return [*row, str(only_one), str(only_other), f"{p:.3g}"]


def _correct_shares(answers: Record) -> list[float]:
    """Return the share of correct samples for each question."""
    samples = answers["samples"]
    return [int(count) / samples for count in answers["right"].split()]
