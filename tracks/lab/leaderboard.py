"""A leaderboard of models on a suite of benchmarks, from evaluations that are on the disk; nothing is run.

python -m tracks.lab.leaderboard --suite=ARC-Easy,MMLU,GSM8K
python -m tracks.lab.leaderboard --suite=GSM8K --runs="chat_eval_sft/mix-*,chat_eval_rl/*"

Models are compared by the questions that they have all been asked, under the sampling settings that most of them have
been asked with. Evaluations with others are left out by name; of a model that was evaluated at several steps, each
step is a model. The second table says on which benchmarks they
differ by more than chance: the others do not tell these models apart, however their scores are ordered. Errors are
those of questions: whether another training of the same model would score alike, a leaderboard cannot say. The error of
how far a model is behind is the one between equal models, so a few questions that all favour one model have one too.
Runs that a lab has left out, as they failed or have an alarm, are named with the reason, and have no place, unless they
were evaluated again since then.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from nanochat.config import option, options, run_script
from nanochat.errors import UserError
from nanochat.log import Record, print0, table_of
from nanochat.outcome import Outcome, moment, read_outcomes
from nanochat.paths import base_dir
from nanochat.report.compare import decisions
from nanochat.settings import TagSettings
from nanochat.stages import source_of
from nanochat.statistics import Estimate, Metrics, average, holm, mean_estimate, measured

if TYPE_CHECKING:
    import numpy as np

# Of chat evaluations: they decide what a model answers, and how often.
SETTINGS = ("temperature", "top_p", "top_k", "max_new_tokens", "num_samples", "repeats")
OF_SAMPLES = ("top_p", "top_k")  # which do nothing without a temperature
LEVEL = 0.05  # of an error of the first kind, over all benchmarks of the suite
ROUNDING = 1e-9  # squares that are nothing but rounding
DIGITS = 9  # of a share of right samples


@options("leaderboard")
class Config(TagSettings):
    """Compare models on a suite of benchmarks, from their evaluations on the disk."""

    tag = option("leaderboard", "name of the leaderboard, and of its folder")
    suite: str = option("", "benchmarks, separated by commas, as chat_eval or base_eval names them")
    runs: str = option("*", "evaluations, separated by commas: STAGE/TAG, with * and ?")


@dataclass(frozen=True)
class Row:
    """A model's answers to the suite."""

    model: str
    answers: Mapping[str, "np.ndarray"]  # benchmark -> for each question the share of right samples

    def scores(self) -> dict[str, Estimate]:
        return {name: mean_estimate(found.tolist()) for name, found in self.answers.items()}

    def mean(self) -> Estimate:
        """Return the mean over the suite, each benchmark with the same weight."""
        return average(self.scores().values())


def model_of(evaluation: Outcome) -> str:
    """Return the name of the model that an evaluation has scored: stage and tag, exits, and how it was rounded."""
    config = evaluation.config
    exits = f" exits {config['exits']}" if config.get("exits") else ""
    rounded = f" {config['quant']}" if config.get("quant") else ""
    return f"{source_of(evaluation.stage)}:{config.get('tag', evaluation.tag)}{exits}{rounded}"


def models_of(evaluations: Sequence[Outcome]) -> dict[tuple[str, str], str]:
    """Return the name of the model of each evaluation, by stage and tag, with the step where a model has several."""
    steps: dict[str, set[int]] = {}
    for one in evaluations:
        if "Step" in one.metrics:
            steps.setdefault(model_of(one), set()).add(one.metrics["Step"])
    found = {}
    for one in evaluations:
        name = model_of(one)
        at = f" step {one.metrics['Step']}" if len(steps.get(name, ())) > 1 and "Step" in one.metrics else ""
        found[one.stage, one.tag] = name + at
    return found


def settings_of(evaluation: Outcome) -> str:
    """Return the sampling settings of a chat evaluation in words; "" for others, which sample nothing."""
    config = evaluation.config
    names = [name for name in SETTINGS if name in config]
    if not config.get("temperature"):
        names = [name for name in names if name not in OF_SAMPLES]
    return ", ".join(f"{name} {config[name]}" for name in names)


def most_common(
    evaluations: Sequence[Outcome], models: Mapping[tuple[str, str], str]
) -> tuple[list[Outcome], dict[str, str]]:
    """Return the evaluations with the settings of most models, and the reasons of the models that have no such one.

    Of settings that are equally common the last ones count. Evaluations that sample nothing have no settings.
    """
    sampled = {(settings_of(one), models[one.stage, one.tag]): None for one in evaluations if settings_of(one)}
    counts = Counter(settings for settings, _ in sampled)
    common = max(reversed(counts), key=counts.__getitem__, default="")
    kept = [one for one in evaluations if settings_of(one) in ("", common)]
    there = {models[one.stage, one.tag] for one in kept}
    left_out = {
        model: f"evaluated with other settings: {settings}; most have {common}"
        for settings, model in sampled
        if model not in there
    }
    return kept, left_out


def rows_of(
    found: Sequence[Record], models: Mapping[tuple[str, str], str], suite: Sequence[str]
) -> tuple[list[Row], dict[str, str]]:
    """Return the models that have answered the whole suite, the best first, and for those left out the reasons.

    models: name of the model that a stage and tag have evaluated. Of several evaluations the last in `found` counts.
    """
    import numpy as np  # slow

    by_model: dict[str, dict[str, Record]] = {}
    for one in found:
        by_model.setdefault(models[one["stage"], one["tag"]], {})[one["task"]] = one
    left_out = {}
    # Most models decide which questions a benchmark has; ties fall to the longer list.
    questions = {}
    for name in suite:
        lists = Counter(
            (tasks[name]["questions"], len(tasks[name]["right"].split()))
            for tasks in by_model.values()
            if name in tasks
        )
        if not lists:
            raise UserError(f"--suite: no evaluation has answered {name}, run scripts.chat_eval or scripts.base_eval")
        questions[name] = max(lists, key=lambda each: (lists[each], each[1]))[0]
    rows = []
    for model, tasks in by_model.items():
        missing = [name for name in suite if name not in tasks]
        others = [name for name in suite if name in tasks and tasks[name]["questions"] != questions[name]]
        if missing:
            left_out[model] = f"it has not answered {', '.join(missing)}"
        elif others:
            left_out[model] = (
                f"its prompts of {', '.join(others)} are others: other questions, or another chat template"
            )
        else:
            answers = {name: np.array(tasks[name]["right"].split(), float) / tasks[name]["samples"] for name in suite}
            rows.append(Row(model, answers))
    return sorted(rows, key=lambda row: row.mean().value, reverse=True), left_out


@dataclass(frozen=True)
class LeftOut:
    """A model that a lab has left out as failed or broken."""

    evaluations: Sequence[str]  # its own, each STAGE/TAG
    reason: str
    since: datetime  # when the lab has written it

    def covers(self, evaluation: Outcome) -> bool:
        """Return True for an evaluation from before the lab left the model out: later ones are not what it judged."""
        return moment(evaluation.timestamp) <= self.since


def broken_runs() -> dict[str, LeftOut]:
    """Return the models that labs have left out, by name."""
    from tracks.lab.alarms import LEFT_OUT, read_left_out  # slow

    entries = [entry for path in base_dir().glob(f"lab/*/{LEFT_OUT}") for entry in read_left_out(path).items()]
    found: dict[str, LeftOut] = {}
    for name, one in sorted(entries, key=lambda entry: (moment(entry[1]["since"]), entry[0])):
        stage, _, tag = name.partition("/")
        model = f"{source_of(stage)}:{tag}"
        others = found[model].evaluations if model in found else ()
        found[model] = LeftOut([*others, name], one["reason"], moment(one["since"]))
    return found


def is_asked_for(name: str, patterns: Sequence[str]) -> bool:
    """Return True for an evaluation, STAGE/TAG, that one of the patterns covers."""
    return "eval" in name.partition("/")[0] and any(fnmatch(name, pattern) for pattern in patterns)


def behind(best: Row, row: Row, count: int) -> tuple[Estimate, float]:
    """Return how much a model's mean is behind the best one's, question by question, and its p value.

    count: of the models. The best was chosen by the same answers, so p is that of the difference between any two of
    equal models (Tukey's studentized range). The error is that of equal models as well: the spread is around 0, as in
    McNemar's test, so questions that all favour one model have one too. p is the mean of those with the degrees of
    freedom of each benchmark, weighted by its variance, and not below that of a sign test which all questions decide
    alike; a benchmark with a single question shows nothing.
    """
    import numpy as np
    from scipy import stats

    gaps = [np.round(best.answers[name] - row.answers[name], DIGITS) for name in best.answers]
    value = float(np.mean([gap.mean() for gap in gaps]))
    sources = np.array([(gap**2).mean() / len(gap) for gap in gaps])  # variances of the means
    if not sources.any():
        return Estimate(value, 0.0), 1.0
    error = math.sqrt(sources.sum()) / len(gaps)
    ratio = abs(value) / error
    tails = [2 * stats.t.sf(ratio, len(gap) - 1) if len(gap) > 1 else 1.0 for gap in gaps]
    p = max(np.average(tails, weights=sources), 0.5 ** (sum(map(np.count_nonzero, gaps)) - 1))
    ratio = stats.norm.isf(p / 2)  # of two models with that p, if the error were known
    return Estimate(value, error), float(stats.studentized_range.sf(ratio * 2**0.5, count, math.inf))


def arrangements(values: Iterable[object]) -> float:
    """Return the logarithm of the number of orders that some values have, where equal ones are alike."""
    counts = Counter(values)
    return math.lgamma(counts.total() + 1) - sum(math.lgamma(count + 1) for count in counts.values())


def least_chance(table: "np.ndarray") -> float:
    """Return the smallest p that the answers of several models can have. table: (questions, models).

    Equal models might have swapped their answers to any question. Where those that differ swap all questions alike,
    they are as far apart as they are now: two models with five questions in 2 of 2**5 cases, as in the sign test.
    """
    columns = arrangements(map(tuple, table.T.tolist()))
    return math.exp(min(0.0, columns - sum(map(arrangements, table.tolist()))))


def equality(answers: Sequence["np.ndarray"]) -> float:
    """Return the p value of several models' equal scores on the same questions (analysis of variance by question).

    Models that resemble each other more than the others do make it too sure, so the degrees of freedom are those of
    Greenhouse and Geisser. So do few questions that agree by chance, so it is `least_chance` or more.
    """
    import numpy as np
    from scipy import stats

    table = np.round(np.stack(answers, axis=1), DIGITS)  # (questions, models)
    least = least_chance(table)
    count, models = table.shape
    between = count * ((table.mean(axis=0) - table.mean()) ** 2).sum()
    within = ((table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()) ** 2).sum()
    if count < 2 or within < ROUNDING:
        return least
    covariance = np.cov(table, rowvar=False)
    covariance = covariance - covariance.mean(axis=0) - covariance.mean(axis=1, keepdims=True) + covariance.mean()
    share = np.trace(covariance) ** 2 / ((models - 1) * (covariance**2).sum())
    ratio = (between / (models - 1)) / (within / ((models - 1) * (count - 1)))
    return max(least, float(stats.f.sf(ratio, share * (models - 1), share * (models - 1) * (count - 1))))


def benchmark_rows(rows: Sequence[Row], suite: Sequence[str]) -> list[list]:
    """Return for each benchmark how far the models are apart, and whether that is more than chance (Holm)."""
    shown = dict(zip(suite, holm([equality([row.answers[name] for row in rows]) for name in suite]), strict=True))
    table = []
    for name in suite:
        scores = [row.scores()[name] for row in rows]
        values = [score.value for score in scores]
        verdict = "tells them apart" if shown[name] <= LEVEL else "does not"
        count, error = len(rows[0].answers[name]), scores[0].stderr
        if count == 1:
            verdict, error = "does not: one question has no error", None
        table.append([name, count, min(values), max(values), error, shown[name], verdict])
    return table


def cell(estimate: Estimate, single: Sequence[str] = ()) -> Metrics | str:
    """Return a cell of the table. single: benchmarks with one question that are a part of it, so it has no error."""
    if single:
        return measured(estimate.value, unit=f" (no error: one question of {', '.join(single)})")
    return measured(*estimate)


def cells(row: Row, single: Sequence[str]) -> list[Metrics | str]:
    """Return a model's scores and their mean."""
    scores = [cell(score, [name] if name in single else ()) for name, score in row.scores().items()]
    return [*scores, cell(row.mean(), single)]


def main(config: Config) -> None:
    suite = [name for name in config.suite.replace("|", ",").split(",") if name]
    if not suite:
        raise UserError("--suite is missing: name benchmarks, like ARC-Easy,MMLU,GSM8K")
    patterns = [pattern for pattern in config.runs.split(",") if pattern]
    broken = broken_runs()
    evaluations = []
    unfit = {model for model, one in broken.items() if any(is_asked_for(name, patterns) for name in one.evaluations)}
    judged = set()  # models with an evaluation that counts
    for one in sorted(read_outcomes(base_dir()), key=lambda one: one.ended):
        if is_asked_for(f"{one.stage}/{one.tag}", patterns):
            model, *_ = model_of(one).split()  # as it is rounded or not
            if model in broken and broken[model].covers(one):
                unfit.add(model)
                continue
            judged.add(model)
            evaluations.append(one)
    outcome = Outcome.begin("leaderboard", config.tag, config)
    models = models_of(evaluations)
    found = [one for one in decisions(base_dir(), evaluations) if one["task"] in suite]
    answered = {(one["stage"], one["tag"]) for one in found}
    kept, others = most_common([one for one in evaluations if (one.stage, one.tag) in answered], models)
    names = {(one.stage, one.tag) for one in kept}
    rows, left_out = rows_of([one for one in found if (one["stage"], one["tag"]) in names], models, suite)
    left_out |= others
    left_out |= {model: broken[model].reason for model in sorted(unfit - judged)}
    for model, reason in left_out.items():
        print0(f"leaderboard: {model} is left out: {reason}")
    if len(rows) < 2:
        raise UserError(f"{len(rows)} models have answered the same questions of {config.suite}: two are needed")
    best, *others = rows
    single = [name for name in suite if len(best.answers[name]) == 1]
    table = [[best.model, *cells(best, single), None, None]]
    for row in others:
        gap, p = behind(best, row, len(rows))
        table.append([row.model, *cells(row, single), cell(gap, single), p])
    columns = " | ".join(["Model", *suite, "Mean", "Behind the first", "p, corrected:.2g"])
    outcome.metrics = {"Models": len(rows), "Left out": len(left_out)}
    outcome.tables = [
        table_of("Leaderboard", columns, table),
        table_of(
            "What the benchmarks tell",
            "Benchmark | Questions:d | Lowest:.4f | Highest:.4f | ±:.4f | p, corrected:.2g | These models",
            benchmark_rows(rows, suite),
        ),
        table_of("Left out", "Model | Reason", list(left_out.items())),
    ]
    outcome.tables = [table for table in outcome.tables if table["rows"]]
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
