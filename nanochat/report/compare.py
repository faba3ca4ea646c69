"""Two runs side by side: the figures for each stage with differences; paired if both answered the same questions.

A run is a dictionary as in report.json. Paired: the mean difference, question by question, with a standard error, and
McNemar's exact test. Its p-value is the probability that the questions answered correctly by only one run split so
unevenly by chance.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nanochat.log import format_value, terminal_table
from nanochat.outcome import Outcome, mean_estimate
from nanochat.paths import read_sha256
from nanochat.stages import STAGES

WIDEST = 48  # longest text in a column, in characters

Record = dict[str, Any]  # parsed JSON
Metric = float | str | Record | None  # a record has a value, and perhaps a standard error

# ---- correct answers ----


def decisions(base: Path, outcomes: Iterable[Outcome]) -> list[Record]:
    """Return for each evaluated task a hash over all questions, and the number of correct samples for each."""
    found = []
    for outcome in outcomes:
        folder = base / outcome.stage / outcome.tag
        for name, digest in outcome.artifacts.items():
            # Answers are kept one a line; other artifacts are no evaluation.
            paths = folder.rglob(name) if name.endswith(".jsonl") else []
            # Evaluations from earlier checkpoints wrote files with the same name: the hash decides.
            for path in paths:
                if read_sha256(path) == digest:
                    about = {"stage": outcome.stage, "tag": outcome.tag, "task": path.stem}
                    found.append(about | _count_correct(path))
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


def mcnemar(only_one: int, only_other: int) -> float:
    """Return the two-sided probability that a fair coin falls so, or more unevenly."""
    tosses = only_one + only_other
    ways = sum(math.comb(tosses, heads) for heads in range(min(only_one, only_other) + 1))
    # Twice one tail counts an even split double, so the limit is 1. Integers of any size divide exactly.
    return min(1.0, 2 * ways / 2**tosses)


# ---- side by side ----


def compare(runs: Sequence[Record], names: Sequence[str]) -> str:
    """Return the comparison of two runs, A and B, as text for a terminal: environments, then each stage."""
    lines = [f"{letter}: {name}" for letter, name in zip("AB", names, strict=True)]
    # Commit, machine and software: only facts that differ.
    environments = [run["environment"] for run in runs]
    for title in _all_keys(environments):
        groups = [environment.get(title, {}) for environment in environments]
        lines += _table_lines(title, ["", "A", "B"], _differing(groups))
    first, second = map(_newest_stages, runs)
    titles = {stage.name: stage.section for stage in STAGES}
    for name in _all_keys([titles, first, second]):
        if name in first and name in second:
            title = titles.get(name, name)
            lines += _figure_lines(title, [first[name], second[name]])
            answers = [_answers_of(runs[0], first[name]), _answers_of(runs[1], second[name])]
            lines += _answer_lines(title, *answers)
    return "\n".join(lines)


def _all_keys(records: Iterable[Mapping[str, Any]]) -> dict[str, None]:
    """Return the keys found in any record, in order of appearance."""
    # A dictionary is a set that keeps its order.
    return dict.fromkeys(key for record in records for key in record)


def _newest_stages(run: Record) -> dict[str, Record]:
    """Return stage -> newest record."""
    # By age, so that a newer record replaces an older one.
    by_age = sorted(run["stages"], key=lambda stage: stage["timestamp"])
    return {stage["stage"]: stage for stage in by_age}


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
    """Return a row for each text that differs between two records."""
    rows = []
    for name in _all_keys(records):
        one, other = (record.get(name, "-") for record in records)
        # Compared at full length, shown cut: long texts may differ at the end alone.
        if one != other:
            rows.append([name, one[:WIDEST], other[:WIDEST]])
    return rows


# ---- the figures for a stage ----


def _figure_lines(title: str, stages: Sequence[Record]) -> list[str]:
    """Return a stage's table: settings and texts that differ, and all numbers with their difference."""
    # Texts have no difference.
    rows = [[*row, "-", "-"] for row in _differing(list(map(_texts, stages)))]
    figures = [{"Wall clock, seconds": stage["seconds"]} | stage["metrics"] for stage in stages]
    for name in _all_keys(figures):
        one, other = (run.get(name) for run in figures)
        if _number(one) is not None or _number(other) is not None:
            values = ["-" if value is None else format_value(value) for value in (one, other)]
            rows.append([name, *values, *_difference(one, other)])
    return _table_lines(title, ["", "A", "B", "B - A", "±"], rows)


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


def _difference(one: Metric, other: Metric) -> list[str]:
    """Return other - one and the standard error as text; dashes for values that are no numbers."""
    if _number(one) is None or _number(other) is None:
        return ["-", "-"]
    difference = _number(other) - _number(one)
    # A plain number has neither a format nor an error.
    details = [value if isinstance(value, dict) else {} for value in (one, other)]
    plain = ",d" if isinstance(difference, int) else ".4f"
    spec = details[0].get("format") or plain
    # As if the runs were independent: squares add up.
    errors = [detail.get("stderr") for detail in details]
    error = "-" if None in errors else format(math.hypot(*errors), spec)
    return [f"{difference:+{spec}}", error]


# ---- question by question ----


def _answers_of(run: Record, stage: Record) -> dict[str, Record]:
    """Return task -> the answers from a stage."""
    place = stage["stage"], stage["tag"]
    # One run may hold several tags.
    return {answers["task"]: answers for answers in run["decisions"] if (answers["stage"], answers["tag"]) == place}


def _answer_lines(title: str, ours: Mapping[str, Record], theirs: Mapping[str, Record]) -> list[str]:
    """Return a table with all tasks for which both runs answered the same questions."""
    header = [
        "Question by question",
        "Questions",
        "A",
        "B",
        "B - A",
        "±",
        "only A",
        "only B",
        "p",
    ]
    rows = []
    for task, one in ours.items():
        # Two unknown sets are not the same set.
        if task in theirs and one["questions"] == theirs[task]["questions"] is not None:
            rows.append([task, *_paired_cells(one, theirs[task])])
    return _table_lines(f"{title}: share of correct answers", header, rows)


def _paired_cells(one: Record, other: Record) -> list[str]:
    """Return a task's cells, tested if each question was answered once."""
    a = _correct_shares(one)
    b = _correct_shares(other)
    pairs = list(zip(a, b, strict=True))
    difference, error = mean_estimate([y - x for x, y in pairs])
    cells = [
        f"{len(a)}",
        f"{statistics.fmean(a):.4f}",
        f"{statistics.fmean(b):.4f}",
        f"{difference:+.4f}",
        f"{error:.4f}",
    ]
    # McNemar's test needs one verdict per question, not a share.
    if max(one["samples"], other["samples"]) > 1:
        return [*cells, "-", "-", "-"]
    only_one = sum(x > y for x, y in pairs)
    only_other = sum(x < y for x, y in pairs)
    p = mcnemar(only_one, only_other)
    return [*cells, f"{only_one}", f"{only_other}", f"{p:.3g}"]


def _correct_shares(answers: Record) -> list[float]:
    """Return the share of correct samples for each question."""
    samples = answers["samples"]
    return [int(count) / samples for count in answers["right"].split()]
