"""Findings of a lab: the section `Lab` of the report card, from the results of the runs.

`write_report(spec, outcome, look)` fills the outcome that the script has begun (`Outcome.begin("lab", spec.name,
config)`), prints it, and writes it with `recommendation.json` into the folder of the lab. look: number of looks at the
held-out benchmarks by now, 0 before --final. `write_recommendation(spec, results)` alone comes before a look.

All scores are in points, with standard errors from questions and seeds. Marks: ▲ gain, ▼ harm, by p corrected over the
table; no mark: not distinguishable from the reference.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nanochat.lab import rates, significance
from nanochat.lab.results import (
    HELD_OUT,
    Cells,
    RunResult,
    cells,
    differences,
    losses,
    means,
    noise,
    read_results,
    recommend,
    synergies,
)
from nanochat.log import Record, metric_curve, table_of
from nanochat.outcome import Metrics, Outcome, measured, read_outcomes
from nanochat.paths import base_dir, read_sha256, stage_dir, write_json
from nanochat.report.card import hourly_rate

if TYPE_CHECKING:
    from nanochat.lab.sweep import Spec

TARGET = 0.0035  # deviation that the noise table wants from Avg@k: the bound of "very stable"
POINTS = 300 // 3  # of a curve
CURVES = {"loss": "train/loss", "gradient norm": "train/grad_norm", "validation": "val/loss"}
DIFFERENCE = "Base | Mix | Benchmark | {} | ±:.1f | Low:+.1f | High:+.1f | Freedom:.1f | p:.2g | Corrected p:.2g | Shown"


def write_recommendation(spec: "Spec", results: Sequence[RunResult]) -> Path:
    """Write the recommendation from the development benchmarks, with the runs that it rests on."""
    path = stage_dir("lab", spec.name) / "recommendation.json"
    found = recommend(spec, results)
    runs = [spec.tag_of(result.run) for result in results if not result.broken]
    record = {"rule": significance.RULE, "recommendation": [one._asdict() for one in found], "runs": runs}
    write_json(path, record)
    return path


def write_report(spec: "Spec", outcome: Outcome, look: int = 0) -> None:
    """Fill, print and write the outcome of a lab."""
    results = read_results(spec)
    path = write_recommendation(spec, results)
    verdicts = recommend(spec, results)
    found = cells(results, [*spec.dev, *spec.stable])
    gains = differences(cells(results, spec.dev), spec.reference)
    tables = [table_of("Mixes", "Mix | Words of --mixture", list(spec.mixes.items())), *matrices(spec, results, found, gains)]
    tables += [
        table_of("Recommendation", "Base | Mix | Verdict | Reason", [list(one) for one in verdicts]),
        difference_table("Differences from the reference", gains, spec.least_gain),
        difference_table("Synergies: gain beyond the sum of both", synergies(cells(results, spec.dev), spec.reference)),
        luck_table(found),
        noise_table(results, spec.repeats),
        rates_table(spec, results),
        merges_table(spec, results),
        table_of("Alarms", "Run | Alarm | Left out | Reason", alarm_rows(spec, results)),
    ]
    sealed = []
    if look:
        sealed = [result for result in read_results(spec, HELD_OUT) if result.answers]
        title = f"held out, look {look}" if look == 1 else f"look {look}, no longer held out"
        held = cells(sealed, spec.held_out)
        others = differences(held, spec.reference)
        tables += matrices(spec, sealed, held, others, f"Held-out scores ({title})")
        tables.append(difference_table(f"Held-out differences ({title})", others, spec.least_gain))
    tables.append(cost_table(results, sealed))
    outcome.tables = [table for table in tables if table["rows"]]
    outcome.metrics = facts(spec, results) | {f"{one.mix} on {one.base}": one.verdict for one in verdicts}
    outcome.curves = curves(results)
    outcome.artifacts[path.name] = read_sha256(path)
    outcome.show()
    outcome.write()


def facts(spec: "Spec", results: Sequence[RunResult]) -> Metrics:
    """Return the question and the numbers of runs."""
    broken = [result for result in results if result.broken]
    budget = ", ".join(f"{name} {value:,}" for name, value in spec.budget.items())
    return {
        "Question": spec.question,
        "Runs": f"{len(results)}, {len(broken)} of them left out",
        "Reference": spec.reference,
        "Budget of a run": budget,
        "Rule": significance.RULE,
    }


# ---- tables ----


def matrices(
    spec: "Spec", results: Sequence[RunResult], found: Cells, gains: significance.Table, title: str = "Scores"
) -> list[Record]:
    """Return a table of mixes by benchmarks for each base, in points, with marks; a hole has its reason."""
    scores = means(found)
    benchmarks = list(dict.fromkeys(benchmark for _, _, benchmark in found))
    tables = []
    for base in dict.fromkeys(result.base for result in results):
        rows = []
        for mix in spec.mixes:
            own = [result for result in results if (result.base, result.run.arm.mix) == (base, mix)]
            holes = [result.broken for result in own if result.broken]
            row = [mix, f"{len(own) - len(holes)} of {len(own)}"]
            for benchmark in benchmarks:
                key = (base, mix, benchmark)
                gain = gains.get(key)
                mark = "" if gain is None or not gain.counts(spec.least_gain) else " ▲" if gain.mean > 0 else " ▼"
                row.append(in_points(scores[key], mark) if key in scores else "; ".join(holes) or "-")
            if own:
                rows.append(row)
        tables.append(table_of(f"{title}, {base}", " | ".join(["Mix", "Seeds", *benchmarks]), rows))
    return tables


def in_points(score: significance.Difference, mark: str) -> Metrics:
    return measured(100 * score.mean, 100 * score.error, ".1f", mark)


def difference_table(title: str, table: significance.Table, least_gain: float = 0.0) -> Record:
    """Return differences in points, with 95 % intervals."""
    rows = []
    for key, one in table.items():
        points = [100 * value for value in (one.mean, one.error, one.low, one.high)]
        shown = ("gain" if one.mean > 0 else "harm") if one.counts(least_gain) else "not distinguishable"
        rows.append([*key, *points, one.freedom, one.p, one.adjusted, shown])
    return table_of(title, DIFFERENCE.format("Points:+.1f"), rows)


def luck_table(found: Cells) -> Record:
    """Return the best seed of each cell beside the mean, and beside the best that seeds without any difference have."""
    rows = []
    for key, scores in found.items():
        seeds = scores.mean(axis=1)
        own = [other for (base, _, benchmark), other in found.items() if (base, benchmark) == (key[0], key[2])]
        variance, _ = significance.pooled_seed_variance(own)
        if len(seeds) > 1:
            luck = significance.best_of(seeds.mean(), variance**0.5, len(seeds))
            rows.append([*key, len(seeds), 100 * seeds.mean(), 100 * seeds.max(), 100 * luck])
    columns = "Base | Mix | Benchmark | Seeds | Mean:.1f | Best:.1f | Best by luck alone:.1f"
    return table_of("Best seeds", columns, rows)


def noise_table(results: Sequence[RunResult], repeats: int) -> Record:
    """Return the noise of repeated evaluations, in points."""
    rows = []
    for name, one in noise(results, repeats).items():
        deviation = [100 * one.deviation, 100 * one.error, one.kind, 100 * one.explained]
        rows.append([name, one.freedom, *deviation, one.repeats_for(TARGET)])
    bounds = f"high from {100 * significance.HIGH_NOISE:g} points, very stable below {100 * significance.LITTLE_NOISE:g}"
    columns = "Benchmark | Freedom | Deviation:.2f | ±:.2f | Class | Explained by questions, %:.0f"
    wanted = f"k of Avg@k for {100 * TARGET:g}"
    return table_of(f"Noise over {repeats} repeats ({bounds})", f"{columns} | {wanted}", rows)


def rates_table(spec: "Spec", results: Sequence[RunResult]) -> Record:
    """Return the mean loss at each rate, with the end of the search or the next round in words."""
    rows = []
    for (base, mix), points in losses(results).items():
        if len(points) > 1:
            rows += [[base, mix, f"{rate:g}", len(points[rate]), sum(points[rate]) / len(points[rate])] for rate in sorted(points)]
            rows.append([base, mix, rates.next_rates(points, len(spec.seeds)).sentence, None, None])
    return table_of("Rates", "Base | Mix | Factor of the rate | Seeds | Loss:.4f", rows)


def merges_table(spec: "Spec", results: Sequence[RunResult]) -> Record:
    """Return the merges of models of the lab."""
    tags = {spec.tag_of(result.run) for result in results}
    rows = []
    for merge in read_outcomes(base_dir()):
        if merge.stage == "merge":
            models = [word.partition(":")[0].partition("@")[0] for word in merge.config["models"].split(",")]
            if tags & set(models):
                rows.append([merge.tag, merge.config["method"], merge.config["models"], merge.metrics["Weights"]])
    return table_of("Merges", "Model | Method | Of | Weights", rows)


def alarm_rows(spec: "Spec", results: Iterable[RunResult]) -> list[list[str]]:
    """Return a row for each alarm and each failed run."""
    rows = []
    for result in results:
        tag = spec.tag_of(result.run)
        if result.failure:
            rows.append([tag, "failed", "yes", result.failure])
        for alarm in result.alarms:
            rows.append([tag, alarm.kind, "yes" if alarm.breaks else "no", alarm.sentence])
    return rows


def cost_table(results: Sequence[RunResult], sealed: Sequence[RunResult]) -> Record:
    """Return the cost of the recipe (all runs, with their evaluations) and of the final evaluation, and their ratio."""
    rows = []
    # The training of the models that --final evaluates is a part of the recipe.
    parts = {"Recipe": [outcome for result in results for outcome in result.outcomes]}
    parts["Final"] = [result.outcomes[-1] for result in sealed]
    for part, outcomes in parts.items():
        seconds = sum(outcome.seconds for outcome in outcomes)
        trained = [outcome.metrics["Total training flops"]["value"] for outcome in outcomes if "Total training flops" in outcome.metrics]
        asked = sum(outcome.seconds for outcome in outcomes if outcome.stage.startswith("chat_eval"))
        prices = [hourly_rate(outcome.environment["Hardware"]["GPUs"]) for outcome in outcomes]
        dollars = None if None in prices else sum(price * outcome.seconds / 3600 for price, outcome in zip(prices, outcomes, strict=True))
        rows.append([part, len(trained), seconds, sum(trained), dollars, 100 * asked / max(seconds, 1e-9)])
    return table_of("Cost", "Part | Runs | Seconds:,.0f | FLOPs:.3e | Dollars:.2f | Evaluation, %:.0f", rows)


# ---- curves ----


def curves(results: Iterable[RunResult]) -> list[Record]:
    """Return a picture for each row of a matrix and each figure, with a line for each run."""
    pictures = {}
    for result in results:
        row = f"{result.base}, {result.run.arm.mix}"
        for name, figure in CURVES.items():
            points = metric_curve(result.records, figure, POINTS)
            if points[0]:
                title = f"{row}: {name}"
                picture = pictures.setdefault(title, {"title": title, "x": "step", "y": name, "series": {}})
                picture["series"][f"seed {result.run.seed}"] = points
    return list(pictures.values())
