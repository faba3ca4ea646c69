"""Two runs side by side: each stage's figures with their difference, paired where both answered the same questions.

A run is a dict as report.json holds it. Paired: the mean of the differences, question by question, with its standard
error, and McNemar's exact test: how likely so lopsided a share of the questions that only one gets right is by chance.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nanochat.outcome import Outcome
from nanochat.paths import read_sha256
from nanochat.report.card import show, terminal_table
from nanochat.stages import STAGES

WIDEST = 48  # characters of a text in a column

# ---- what was right ----


def decisions(base: Path, outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Of each task of an evaluation: a hash of its questions, and how often of `samples` each was answered right."""
    found = []
    for outcome in outcomes:
        for name, digest in outcome.artifacts.items():
            if name.endswith(".jsonl"):
                about = {"stage": outcome.stage, "tag": outcome.tag, "task": name.removesuffix(".jsonl")}
                files = sorted((base / outcome.stage / outcome.tag).rglob(name))
                path = next((file for file in files if read_sha256(file) == digest), None)
                found.append(about | (_right(path) if path else {"problem": f"{name} is not there as it was written"}))
    return found


def _right(path: Path) -> dict[str, Any]:
    questions, counts, samples = [], [], 1
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "completions" in record:
            verdicts = [one["right"] for one in record["completions"]]
            question = hashlib.sha256(json.dumps([record["prompt"], record["answer"]]).encode()).hexdigest()
        else:
            verdicts, question = [record["correct"]], record.get("question")
        questions.append(question)
        counts.append(sum(verdicts))
        samples = len(verdicts)
    known = None not in questions  # of older runs they are not
    digest = hashlib.sha256(" ".join(questions).encode()).hexdigest() if known else None
    return {"questions": digest, "samples": samples, "right": " ".join(map(str, counts))}


# ---- statistics ----


def paired(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """The mean of other - one, and its standard error; nan of one pair alone."""
    return _mean([b - a for a, b in zip(one, other, strict=True)])


def unpaired(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    (low, low_error), (high, high_error) = _mean(one), _mean(other)
    return high - low, math.hypot(low_error, high_error)


def mcnemar(only_one: int, only_other: int) -> float:
    """Two-sided p of a fair coin that falls so, or more unevenly."""
    tosses, ways, way = only_one + only_other, 0, 1
    for heads in range(min(only_one, only_other) + 1):
        ways += way
        way = way * (tosses - heads) // (heads + 1)
    return min(1.0, 2 * ways / 2**tosses)


def _mean(values: Sequence[float]) -> tuple[float, float]:
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return statistics.fmean(values), spread / math.sqrt(len(values))


# ---- side by side ----


def compare(one: dict, other: dict, names: Sequence[str]) -> str:
    """All of it as text for a terminal; of several tags of a stage the newest is taken, and that is told."""
    lines = [f"A: {names[0]}", f"B: {names[1]}"]
    for title in dict.fromkeys([*one["environment"], *other["environment"]]):
        rows = _differing(one["environment"].get(title, {}), other["environment"].get(title, {}))
        lines += _told(title, ["", "A", "B"], rows)
    titles = {stage.name: stage.section for stage in STAGES}
    runs = [_newest(run, letter, lines) for run, letter in ((one, "A"), (other, "B"))]
    for name in sorted(runs[0] | runs[1], key=lambda name: (list(titles).index(name) if name in titles else 99, name)):
        title, pair = titles.get(name, name), [run.get(name) for run in runs]
        if None in pair:
            lines.append(f"\n{title}: only {'B' if pair[0] is None else 'A'} has it")
            continue
        rows = [[*row, "-", "-"] for row in _differing(*(_words(stage) for stage in pair))]
        rows += _numbers(*({"Wall clock, seconds": stage["seconds"]} | stage["metrics"] for stage in pair))
        lines += _told(title, ["", "A", "B", "B - A", "±"], rows)
        judged = [_judged(run, stage) for run, stage in zip((one, other), pair, strict=True)]
        rows = [_answers(task, judged[0][task], judged[1][task]) for task in judged[0] if task in judged[1]]
        header = ["Question by question", "Questions", "A", "B", "B - A", "±", "only A", "only B", "p"]
        lines += _told(f"{title}: share of answers that are right", header, rows)
    return "\n".join(lines)


def _newest(run: dict, letter: str, lines: list[str]) -> dict[str, dict]:
    stages: dict[str, dict] = {}
    for stage in sorted(run["stages"], key=lambda stage: stage["timestamp"]):
        if before := stages.get(stage["stage"]):
            lines.append(f"{letter} has {stage['stage']} of {before['tag']} too: the newer, {stage['tag']}, is taken")
        stages[stage["stage"]] = stage
    lines += [f"{letter}: {path} is damaged: {reason}" for path, reason in run["damaged"].items()]
    return stages


def _words(stage: dict) -> dict[str, str]:
    """What a stage tells beside numbers, its settings first."""
    told = {name: stage["config"][name] for name in stage["card"]} | stage["metrics"]
    return {name: show(value) for name, value in told.items() if name in stage["card"] or _number(value) is None}


def _differing(one: dict[str, str], other: dict[str, str]) -> list[list[str]]:
    pairs = [[name, one.get(name, "-"), other.get(name, "-")] for name in dict.fromkeys([*one, *other])]
    return [[name, *(value[:WIDEST] for value in pair)] for name, *pair in pairs if pair[0] != pair[1]]


def _number(value: Any) -> float | None:
    value = value["value"] if isinstance(value, dict) else value
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _numbers(one: dict[str, Any], other: dict[str, Any]) -> list[list[str]]:
    """A row for each number: both, their difference, and its standard error where both have one."""
    rows = []
    for name in dict.fromkeys([*one, *other]):
        pair = [run.get(name) for run in (one, other)]
        low, high = map(_number, pair)
        if low is None and high is None:
            continue
        row = [name, *("-" if value is None else show(value) for value in pair), "-", "-"]
        if None not in (low, high):
            about = [value if isinstance(value, dict) else {} for value in pair]
            spec = about[0].get("format") or (",d" if isinstance(high - low, int) else ".4f")
            errors = [value.get("stderr") for value in about]
            row[3:] = [f"{high - low:+{spec}}", "-" if None in errors else format(math.hypot(*errors), spec)]
        rows.append(row)
    return rows


def _judged(run: dict, stage: dict) -> dict[str, dict]:
    same = [one for one in run["decisions"] if (one["stage"], one["tag"]) == (stage["stage"], stage["tag"])]
    return {one["task"]: one for one in same}


def _answers(task: str, one: dict, other: dict) -> list[str]:
    """A row: paired if the questions are the same, and tested if each was answered once."""
    for letter, judged in (("A", one), ("B", other)):
        if "problem" in judged:
            return [f"{task}: {letter}: {judged['problem']}", *["-"] * 8]
    a, b = ([int(count) / judged["samples"] for count in judged["right"].split()] for judged in (one, other))
    means = [f"{statistics.fmean(values):.4f}" for values in (a, b)]
    if one["questions"] is None or one["questions"] != other["questions"]:
        difference, error = unpaired(a, b)
        why = "other questions" if None not in (one["questions"], other["questions"]) else "questions not known"
        return [task, f"{len(a)}, {len(b)}", *means, f"{difference:+.4f}", f"{error:.4f}", "-", "-", why]
    difference, error = paired(a, b)
    row = [task, f"{len(a)}", *means, f"{difference:+.4f}", f"{error:.4f}"]
    if max(one["samples"], other["samples"]) > 1:
        return [*row, "-", "-", "-"]
    only = [sum(x > y for x, y in zip(*pair, strict=True)) for pair in ((a, b), (b, a))]
    return [*row, *map(str, only), f"{mcnemar(*only):.3g}"]


def _told(title: str, header: list[str], rows: list[list[str]]) -> list[str]:
    columns = [[name, ""] for name in header]
    return ["", terminal_table({"title": title, "columns": columns, "rows": rows})] if rows else []
