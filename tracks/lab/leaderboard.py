"""A leaderboard of models on a suite of benchmarks, from evaluations that are on the disk; nothing is run.

python -m tracks.lab.leaderboard --suite=ARC-Easy,MMLU,GSM8K
python -m tracks.lab.leaderboard --suite=GSM8K --runs="chat_eval_sft/mix-*,chat_eval_rl/*"

Models are compared by the questions that they have all been asked. The second table says on which benchmarks they
differ by more than chance: the others do not tell these models apart, however their scores are ordered.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import numpy as np

from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.log import Record, print0, table_of
from nanochat.outcome import Outcome, read_outcomes
from nanochat.paths import base_dir
from nanochat.report.compare import decisions
from nanochat.settings import TagSettings
from nanochat.statistics import Estimate, average, mean_estimate, measured

LEVEL = 0.05  # of an error of the first kind, over all benchmarks of the suite
Answers = np.ndarray  # for each question the share of right samples


@options("leaderboard")
class Config(TagSettings):
    """Compare models on a suite of benchmarks, from their evaluations on the disk."""

    tag = option("leaderboard", "name of the leaderboard, and of its folder")
    suite: str = option("", "benchmarks, separated by commas, as chat_eval or base_eval names them")
    runs: str = option("*", "evaluations, separated by commas: STAGE/TAG, with * and ?")


@dataclass(frozen=True)
class Row:
    """A model's answers to the suite."""

    run: str  # STAGE/TAG of the evaluation
    answers: Mapping[str, Answers]  # benchmark -> answers

    def scores(self) -> dict[str, Estimate]:
        return {name: mean_estimate(found.tolist()) for name, found in self.answers.items()}

    def mean(self) -> Estimate:
        """Return the mean over the suite, each benchmark with the same weight."""
        return average(self.scores().values())


def rows_of(found: Sequence[Record], suite: Sequence[str]) -> tuple[list[Row], list[str]]:
    """Return the models that have answered the whole suite, the best first, and sentences about those left out."""
    by_run: dict[str, dict[str, Record]] = {}
    for one in found:
        by_run.setdefault(f"{one['stage']}/{one['tag']}", {})[one["task"]] = one
    notes = []
    # Most models decide which questions a benchmark has; ties fall to the longer list.
    questions = {}
    for name in suite:
        lists = Counter(
            (tasks[name]["questions"], len(tasks[name]["right"].split())) for tasks in by_run.values() if name in tasks
        )
        if not lists:
            raise UserError(f"--suite: no evaluation has answered {name}, run scripts.chat_eval with it")
        questions[name] = max(lists, key=lambda each: (lists[each], each[1]))[0]
    rows = []
    for run, tasks in by_run.items():
        missing = [name for name in suite if name not in tasks]
        others = [name for name in suite if name in tasks and tasks[name]["questions"] != questions[name]]
        if missing:
            notes.append(f"{run} is left out: it has not answered {', '.join(missing)}")
        elif others:
            notes.append(f"{run} is left out: it was asked other questions of {', '.join(others)}")
        else:
            answers = {name: np.array(tasks[name]["right"].split(), float) / tasks[name]["samples"] for name in suite}
            rows.append(Row(run, answers))
    return sorted(rows, key=lambda row: row.mean().value, reverse=True), notes


def behind(best: Row, row: Row) -> tuple[Estimate, float]:
    """Return how much a model's mean is behind the best one's, question by question, and its p value."""
    from scipy import stats

    differences = [mean_estimate((best.answers[name] - row.answers[name]).tolist()) for name in best.answers]
    found = average(differences)
    p = 2 * stats.norm.sf(abs(found.value) / found.stderr) if found.stderr else float(found.value == 0)
    return found, float(p)


def equality(answers: Sequence[Answers]) -> float:
    """Return the p value of several models' equal scores on the same questions (analysis of variance by question).

    For one sample a question this is close to Cochran's Q test.
    """
    from scipy import stats

    table = np.stack(answers, axis=1)  # (questions, models)
    count, models = table.shape
    between = count * ((table.mean(axis=0) - table.mean()) ** 2).sum()
    within = ((table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()) ** 2).sum()
    if count < 2 or not within:
        return float(not between)
    freedom = (models - 1) * (count - 1)
    return float(stats.f.sf((between / (models - 1)) / (within / freedom), models - 1, freedom))


def benchmark_rows(rows: Sequence[Row], suite: Sequence[str]) -> list[list]:
    """Return for each benchmark how far the models are apart, and whether that is more than chance (Holm)."""
    chances = {name: equality([row.answers[name] for row in rows]) for name in suite}
    shown = {}
    corrected = 0.0
    for rank, name in enumerate(sorted(suite, key=lambda one: chances[one])):
        corrected = max(corrected, min(1.0, chances[name] * (len(suite) - rank)))
        shown[name] = corrected
    table = []
    for name in suite:
        scores = [row.scores()[name] for row in rows]
        values = [score.value for score in scores]
        verdict = "tells them apart" if shown[name] <= LEVEL else "does not"
        table.append(
            [name, len(rows[0].answers[name]), min(values), max(values), scores[0].stderr, shown[name], verdict]
        )
    return table


def main(config: Config) -> None:
    suite = [name for name in config.suite.replace("|", ",").split(",") if name]
    if not suite:
        raise UserError("--suite is missing: name benchmarks, like ARC-Easy,MMLU,GSM8K")
    patterns = [pattern for pattern in config.runs.split(",") if pattern]
    evaluations = [
        one
        for one in read_outcomes(base_dir())
        if "eval" in one.stage and any(fnmatch(f"{one.stage}/{one.tag}", pattern) for pattern in patterns)
    ]
    outcome = Outcome.begin("leaderboard", config.tag, config)
    found = [one for one in decisions(base_dir(), evaluations) if one["task"] in suite]
    rows, notes = rows_of(found, suite)
    for note in notes:
        print0(f"leaderboard: {note}")
    if len(rows) < 2:
        raise UserError(f"{len(rows)} models have answered the same questions of {config.suite}: two are needed")
    best = rows[0]
    table = []
    for row in rows:
        gap, p = behind(best, row)
        cells = [measured(*score) for score in row.scores().values()]
        table.append([row.run, *cells, measured(*row.mean()), *([None, None] if row is best else [measured(*gap), p])])
    columns = " | ".join(["Model", *suite, "Mean", "Behind the first", "p:.2g"])
    outcome.metrics = {"Models": len(rows), "Left out": len(notes)}
    outcome.tables = [
        table_of("Leaderboard", columns, table),
        table_of(
            "What the benchmarks tell",
            "Benchmark | Questions:d | Lowest:.4f | Highest:.4f | ±:.4f | p, corrected:.2g | These models",
            benchmark_rows(rows, suite),
        ),
    ]
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
