"""Findings of a lab: answers, scores and differences of its runs, and the section `Lab` of the report card.

- read_results(spec, suffix) -> list[RunResult]: one for each run, also for those that failed. suffix: of the
  evaluation's tag, HELD_OUT for the evaluations of --final.
- cells(results, benchmarks) -> Cells: scores of intact runs; differences(cells, reference): with corrected p.
- write_recommendation(spec, results): before a look at held-out benchmarks. recommended(spec): the arms it names.
- write_report(spec, outcome, look) fills, prints and writes the outcome that the script has begun; write_noise(spec,
  outcome) and write_rates(spec, outcome, ends) do it for the noise of evaluations, and for a search of rates.
- final_loss(spec, run): the last validation loss of a run.

In a lab with several rates, mixes are compared at equal rates: each base at each rate counts as a base (d20*0.5). Runs
with an alarm that breaks them are left out, and so are failed ones: a cell without runs is a hole, never a zero. Scores
in tables are points, with standard errors from questions and seeds.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import nan
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanochat.lab import significance
from nanochat.lab.alarms import Alarm, alarms, stop_share
from nanochat.lab.rates import Losses, Round
from nanochat.lab.sweep import HELD_OUT, SOURCES, Arm, Run, Spec, noise_tag
from nanochat.log import Record, metric_curve, read_metrics, table_of
from nanochat.outcome import Estimate, Outcome, mean_estimate, measured
from nanochat.paths import read_jsonl, stage_dir, text_sha256, write_json
from nanochat.report.card import hourly_rate

NOT_RUN = "not run"
LONGEST = 160  # characters of a reason
POINTS = 100  # of a curve
CURVES = {"loss": "train/loss", "gradient norm": "train/grad_norm", "validation": "val/loss"}
MARKS = {"gain": " ▲", "harm": " ▼", "not distinguishable": ""}
DIFFERENCE = "Base|Mix|Benchmark|Points:+.1f|±:.1f|Low:+.1f|High:+.1f|Freedom:d|p:.2g|Corrected p:.2g|Shown"

Key = tuple[str, str, str]  # base, mix, benchmark
Cells = dict[Key, significance.Scores]
Answers = Mapping[str, Sequence[Record]]  # benchmark → records of chat_eval


class RunResult(NamedTuple):
    """Whatever a run has left so far."""

    run: Run
    base: str  # with the rate, if the lab has several
    failure: str  # reason why there are no answers; empty if there are
    answers: Answers
    alarms: Sequence[Alarm]
    records: Sequence[Record]  # of the metric log
    outcomes: Sequence[Outcome]  # of training and of the evaluation

    @property
    def broken(self) -> str:
        """The reason to leave the run out."""
        return self.failure or "; ".join(alarm.sentence for alarm in self.alarms if alarm.breaks)

    def prompts(self, benchmark: str) -> str:
        """Return a hash of the questions in a benchmark."""
        return text_sha256("\0".join(record["prompt"] for record in self.answers[benchmark]))


# ---- reading ----


def read_results(spec: Spec, suffix: str = "") -> list[RunResult]:
    """Return the results of all runs."""
    benchmarks = spec.held_out if suffix else spec.open_tasks
    parents = {}
    for base in spec.bases:
        answers = _read_answers(stage_dir(f"chat_eval_{spec.source}", f"{spec.name}-{base}"), spec.open_tasks)
        parents[base] = _shares(answers, spec.stable)
    found = []
    for run in spec.runs:
        tag, arm = spec.tag_of(run), run.arm
        folder = stage_dir(f"chat_eval_{SOURCES[spec.stage]}", tag + suffix)
        paths = [spec.outcome_of(run), folder / "outcome.json"]
        outcomes = [Outcome.load(path) for path in paths if path.exists()]
        # Answers of an evaluation that is still running are not complete.
        answers = _read_answers(folder, benchmarks) if len(outcomes) == len(paths) else {}
        records = read_metrics(paths[0].with_name("metrics.jsonl"))
        found.append(
            RunResult(
                run=run,
                base=arm.base if len(spec.rates) == 1 else f"{arm.base}*{arm.rate:g}",
                failure="" if answers else _reason(stage_dir("lab", spec.name), tag),
                answers=answers,
                alarms=alarms(records, _shares(answers, spec.stable), parents[arm.base]),
                records=records,
                outcomes=outcomes,
            )
        )
    return found


def _read_answers(folder: Path, benchmarks: Iterable[str]) -> Answers:
    """Return the records of an evaluation, without benchmarks that have no file."""
    paths = {name: folder / f"{name}.jsonl" for name in benchmarks}
    return {name: list(read_jsonl(path, dict)) for name, path in paths.items() if path.exists()}


def _verdicts(records: Sequence[Record]) -> significance.Scores:
    """Return the verdicts on all answers: (repeats, questions)."""
    return np.array([[answer["right"] for answer in record["completions"]] for record in records], float).T


def _right(records: Sequence[Record]) -> list[float]:
    """Return the share of right answers to each question."""
    return _verdicts(records).mean(axis=0).tolist()


def _shares(answers: Answers, stable: Sequence[str]) -> dict[str, Estimate]:
    """Return the shares for alarms: right answers in stable benchmarks, and answers that stop in any."""
    found = {name: mean_estimate(_right(answers[name])) for name in stable if name in answers}
    stopped = {f"answers in {name} that stop": stop_share(records) for name, records in answers.items()}
    return found | {name: share for name, share in stopped.items() if share}


def _reason(folder: Path, tag: str) -> str:
    """Return the last line of the log of a run."""
    logs = [folder / f"{tag}-{step}.log" for step in ("eval", "train")]
    newest = next((log for log in logs if log.exists()), None)
    if not newest:
        return NOT_RUN
    return newest.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2][:LONGEST]


# ---- scores and differences ----


def cells(results: Sequence[RunResult], benchmarks: Iterable[str]) -> Cells:
    """Return the scores of the intact runs that have answered the same questions as most runs of their base."""
    rows = {}
    for base, benchmark in product(dict.fromkeys(result.base for result in results), benchmarks):
        own = [one for one in results if one.base == base and benchmark in one.answers and not one.broken]
        common = Counter(one.prompts(benchmark) for one in own).most_common(1)
        for one in own:
            if one.prompts(benchmark) == common[0][0]:
                rows.setdefault((base, one.run.arm.mix, benchmark), []).append(_right(one.answers[benchmark]))
    return {key: np.array(row) for key, row in rows.items()}


def pooled_variance(found: Cells, base: str, benchmark: str) -> tuple[float, int]:
    """Return the variance of a seed's mean score, pooled over the mixes, and its degrees of freedom."""
    return significance.pooled_seed_variance([found[key] for key in found if key[::2] == (base, benchmark)])


def contrast(found: Cells, key: Key, plus: Sequence[str] = (), minus: Sequence[str] = ()) -> significance.Difference:
    """Return the sum of the means of a mix and of further ones, less those of others."""
    base, mix, benchmark = key
    sides = [[found[base, name, benchmark] for name in names] for names in ([mix, *plus], minus)]
    return significance.contrast(*sides, *pooled_variance(found, base, benchmark))


def differences(found: Cells, reference: str) -> significance.Table:
    """Return the difference of each mix from the reference on the same base, with p corrected over the table."""
    keys = [key for key in found if key[1] != reference and (key[0], reference, key[2]) in found]
    return significance.adjust({key: contrast(found, key, minus=[reference]) for key in keys})


def synergies(found: Cells, reference: str) -> significance.Table:
    """Return, for each mix named like a+b, its gain beyond the sum of the gains of a and b."""
    table = {}
    for key in found:
        base, mix, benchmark = key
        parts = mix.split("+")
        if len(parts) == 2 and all((base, name, benchmark) in found for name in (reference, *parts)):
            table[key] = contrast(found, key, [reference], parts)
    return significance.adjust(table)


def verdicts_on(spec: Spec, results: Sequence[RunResult]) -> list[significance.Recommendation]:
    """Return the verdicts on all mixes, by their differences in the development benchmarks."""
    table = differences(cells(results, spec.dev), spec.reference)
    return significance.recommend(table, spec.least_gain, spec.scaled)


def recommended(spec: Spec) -> list[Arm]:
    """Return the arms of the reference, and those that are kept."""
    results = read_results(spec)
    kept = {(one.base, one.mix) for one in verdicts_on(spec, results) if one.verdict == "keep"}
    kept |= {(result.base, spec.reference) for result in results}
    # Once for all seeds of an arm.
    return list(dict.fromkeys(result.run.arm for result in results if (result.base, result.run.arm.mix) in kept))


# ---- the report ----


def write_recommendation(spec: Spec, results: Sequence[RunResult]) -> Path:
    """Write the recommendation from the development benchmarks, with the runs that it rests on."""
    path = stage_dir("lab", spec.name) / "recommendation.json"
    verdicts = [one._asdict() for one in verdicts_on(spec, results)]
    runs = [spec.tag_of(result.run) for result in results if not result.broken]
    write_json(path, {"rule": significance.RULE, "recommendation": verdicts, "runs": runs})
    return path


def write_report(spec: Spec, outcome: Outcome, look: int = 0) -> None:
    """Fill, print and write the outcome of a lab. look: number of looks at held-out benchmarks, 0 before --final."""
    results, sealed = read_results(spec), []
    outcome.add_artifact(write_recommendation(spec, results))
    verdicts = verdicts_on(spec, results)
    outcome.tables = [table_of("Mixes", "Mix | Words of --mixture", list(spec.mixes.items()))]
    # A stable benchmark raises alarms, and decides nothing.
    outcome.tables += score_tables("", spec, results, spec.dev, spec.stable)
    found = cells(results, spec.dev)
    outcome.tables += [
        difference_table("Synergies: gain beyond the sum of both", synergies(found, spec.reference), spec),
        luck_table(found),
        table_of("Recommendation", "Base | Mix | Verdict | In words", [list(one) for one in verdicts]),
        table_of("Alarms", "Run | Alarm | Left out | Reason", alarm_rows(spec, results)),
    ]
    if look:
        title = ", held out, look 1" if look == 1 else f", look {look}, no longer held out"
        sealed = [result for result in read_results(spec, HELD_OUT) if result.answers]
        outcome.tables += score_tables(title, spec, sealed, spec.held_out)
    outcome.tables = [table for table in [*outcome.tables, cost_table(results, sealed)] if table["rows"]]
    outcome.metrics = {
        "Question": spec.question,
        "Runs": f"{len(results)}, {sum(bool(result.broken) for result in results)} of them left out",
        "Reference": spec.reference,
        "Budget of a run": ", ".join(f"{name} {value:,}" for name, value in spec.budget.items()),
        "Rule": significance.RULE,
        **{f"{one.mix} on {one.base}": one.verdict for one in verdicts},
    }
    outcome.curves = overlays(results)
    outcome.show()
    outcome.write()


def write_noise(spec: Spec, outcome: Outcome) -> None:
    """Fill, print and write the outcome of repeated evaluations of the bases."""
    repeats, means = [], []  # for each model: benchmark -> scores, an evaluation in each row
    for base in spec.bases:
        own = []
        for slots in spec.slots:
            folder = stage_dir(f"chat_eval_{spec.source}", noise_tag(spec, base, slots))
            answers = _read_answers(folder, spec.open_tasks)
            if not answers:
                raise ValueError(f"the evaluation of {base} has failed, see {stage_dir('lab', spec.name)}")
            own.append({name: _verdicts(records) for name, records in answers.items()})
        repeats += own
        # At each number of slots the mean of the repeats, as in Avg@k.
        means.append({name: np.array([one[name].mean(axis=0) for one in own]) for name in own[0]})
    outcome.metrics = {"Question": spec.question, "Models": ", ".join(spec.bases), "Repeats": spec.repeats}
    outcome.tables = [noise_table("repeats", repeats), noise_table(f"slots {spec.slots}", means)]
    outcome.show()
    outcome.write()


def final_loss(spec: Spec, run: Run) -> float:
    """Return the last validation loss of a run; nan if it has failed, which a diverged one does."""
    path = spec.outcome_of(run)
    if not path.exists():
        return nan
    losses = [record["val/loss"] for record in read_metrics(path.with_name("metrics.jsonl")) if "val/loss" in record]
    if not losses:
        raise ValueError(f"{path.parent} has no validation loss: let the flags of the lab have eval-every = 0")
    return losses[-1]


def write_rates(spec: Spec, outcome: Outcome, found: Mapping[tuple[str, str], tuple[Losses, Round]]) -> None:
    """Fill, print and write the outcome of a search for rates. found: losses and result by base and mix."""
    outcome.metrics = {"Question": spec.question}
    rows = []
    for (base, mix), (losses, end) in found.items():
        outcome.metrics[f"{mix} on {base}"] = end.sentence
        means = {rate: float(np.mean(losses[rate])) for rate in sorted(losses)}
        rows += [
            [base, mix, rate, len(losses[rate]), mean, "yes" * (rate in end.rates)] for rate, mean in means.items()
        ]
        curve = [np.log10(list(means)).tolist(), list(means.values())]
        outcome.curves.append(
            {"title": f"{mix} on {base}", "x": "log10 of the rate", "y": "loss", "series": {"": curve}}
        )
    columns = "Base | Mix | Rate:g | Seeds | Loss:.4f | Best"
    outcome.tables = [table_of("Rates, as factors of the stage's own, by the last validation loss", columns, rows)]
    outcome.show()
    outcome.write()


def score_tables(
    title: str, spec: Spec, results: Sequence[RunResult], deciding: Sequence[str], others: Sequence[str] = ()
) -> list[Record]:
    """Return a matrix of mixes and benchmarks for each base, with marks, and the table of differences.

    A hole has its reason.
    """
    found = cells(results, deciding)
    gains, found = differences(found, spec.reference), found | cells(results, others)
    tables = []
    for base in dict.fromkeys(result.base for result in results):
        rows = []
        for mix in spec.mixes:
            own = [result for result in results if (result.base, result.run.arm.mix) == (base, mix)]
            holes = [result.broken for result in own if result.broken]
            row = [mix, f"{len(own) - len(holes)} of {len(own)}"]
            for benchmark in [*deciding, *others]:
                key = (base, mix, benchmark)
                cell = "; ".join(holes) or "-"
                if key in found:
                    score, mark = contrast(found, key), MARKS[shown_as(gains[key], spec)] if key in gains else ""
                    cell = measured(100 * score.mean, 100 * score.error, ".1f", mark)
                row.append(cell)
            if own:
                rows.append(row)
        tables.append(table_of(f"Scores{title}, {base}", " | ".join(["Mix", "Seeds", *deciding, *others]), rows))
    return [*tables, difference_table(f"Differences from the reference{title}", gains, spec)]


def difference_table(title: str, table: significance.Table, spec: Spec) -> Record:
    """Return the differences of an adjusted table, in points."""
    rows = []
    for key, one in table.items():
        points = [100 * value for value in (one.mean, one.error, one.low, one.high)]
        rows.append([*key, *points, one.freedom, one.p, one.adjusted, shown_as(one, spec)])
    return table_of(title, DIFFERENCE, rows)


def luck_table(found: Cells) -> Record:
    """Return the best seed of each cell beside the mean, and beside the best of equally good seeds."""
    rows = []
    for (base, mix, benchmark), scores in found.items():
        seeds = scores.mean(axis=1)
        variance, freedom = pooled_variance(found, base, benchmark)
        if freedom:
            luck = seeds.mean() + significance.best_by_luck(variance**0.5, len(seeds))
            rows.append([base, mix, benchmark, len(seeds), 100 * seeds.mean(), 100 * seeds.max(), 100 * luck])
    return table_of("Best seeds", "Base|Mix|Benchmark|Seeds|Mean:.1f|Best:.1f|Best by luck alone:.1f", rows)


def noise_table(over: str, models: Sequence[Mapping[str, significance.Scores]]) -> Record:
    """Return the noise of each benchmark in points. models: for each, evaluations of the same questions as rows."""
    rows = []
    for name in models[0]:
        number = len(models[0][name])
        # A question that is answered by the likeliest letter has one answer, whatever the repeats.
        if number > 1:
            one = significance.noise([scores[name] for scores in models])
            deviation = [100 * one.deviation, 100 * one.error, one.kind, 100 * one.explained]
            rows.append([name, len(models), number, *deviation, one.repeats_for(significance.LITTLE_NOISE)])
    columns = (
        "Benchmark|Models|Evaluations|Deviation:.2f|±:.2f|Class|Explained by questions, %:.0f|k of Avg@k to be calm"
    )
    return table_of(f"Noise over {over}, {significance.CLASSES}", columns, rows)


def shown_as(one: significance.Difference, spec: Spec) -> str:
    """Return a difference in words, a key of MARKS."""
    if not one.counts(spec.least_gain):
        return "not distinguishable"
    return "gain" if one.mean > 0 else "harm"


def alarm_rows(spec: Spec, results: Iterable[RunResult]) -> list[list[str]]:
    """Return a row for each alarm and each failed run."""
    rows = []
    for result in results:
        tag = spec.tag_of(result.run)
        if result.failure not in ("", NOT_RUN):
            rows.append([tag, "failed", "yes", result.failure])
        rows += [[tag, alarm.kind, "yes" if alarm.breaks else "no", alarm.sentence] for alarm in result.alarms]
    return rows


def cost_table(results: Sequence[RunResult], sealed: Sequence[RunResult]) -> Record:
    """Return the costs of the final models (training and held-out evaluation) and of the recipe (all else)."""
    final = [outcome for result in sealed for outcome in result.outcomes]
    recipe = [outcome for result in results for outcome in result.outcomes if outcome not in final]
    rows = []
    for part, outcomes in {"Recipe": recipe, "Final": final}.items():
        trained = [outcome for outcome in outcomes if "eval" not in outcome.stage]
        flops = sum(outcome.figure("Total training flops") for outcome in trained)
        seconds = sum(outcome.seconds for outcome in outcomes)
        evaluated = seconds - sum(outcome.seconds for outcome in trained)
        prices = [hourly_rate(outcome.environment["Hardware"]["GPUs"]) for outcome in outcomes]
        # A sum with a missing part would look complete.
        dollars = None
        if None not in prices:
            dollars = sum(price * outcome.seconds / 3600 for price, outcome in zip(prices, outcomes, strict=True))
        rows.append([part, len(trained), seconds, flops, dollars, 100 * evaluated / max(seconds, 1e-9)])
    return table_of("Cost", "Part | Models | Seconds:,.0f | FLOPs:.3g | Dollars:.2f | Evaluation, %:.0f", rows)


def overlays(results: Iterable[RunResult]) -> list[Record]:
    """Return a picture for each row of a matrix and each figure, with a line for each run."""
    pictures = {}
    for result in results:
        for name, figure in CURVES.items():
            points = metric_curve(result.records, figure, POINTS)
            if points[0]:
                title = f"{result.base}, {result.run.arm.mix}: {name}"
                picture = pictures.setdefault(title, {"title": title, "x": "step", "y": name, "series": {}})
                picture["series"][f"seed {result.run.seed}"] = points
    return list(pictures.values())
