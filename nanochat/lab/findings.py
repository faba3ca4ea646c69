"""Findings of a lab: the section `Lab` of the report card, from the results of the runs.

`write_report(spec, outcome, look)` fills the outcome that the script has begun (`Outcome.begin("lab", spec.name,
config)`), prints it, and writes it with `recommendation.json` into the folder of the lab. look: number of looks at the
held-out benchmarks by now, 0 before --final. `write_recommendation(spec, results)` alone comes before a look.

All scores are in points, with standard errors from questions and seeds. Marks: ▲ gain, ▼ harm, by p corrected over the
table; no mark: not distinguishable from the reference.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from nanochat.lab import rates, significance
from nanochat.lab.results import (
    HELD_OUT,
    NOT_RUN,
    Cells,
    RunResult,
    cell_means,
    cells,
    differences,
    losses,
    noise,
    pooled,
    read_results,
    synergies,
    verdicts_on,
)
from nanochat.log import Record, metric_curve, table_of
from nanochat.outcome import Outcome, measured
from nanochat.paths import base_dir, stage_dir, write_json
from nanochat.report.card import hourly_rate

if TYPE_CHECKING:
    from nanochat.lab.sweep import Spec

TARGET = 0.0035  # deviation that the noise table wants from Avg@k: the bound of "very stable"
POINTS = 100  # of a curve
CURVES = {"loss": "train/loss", "gradient norm": "train/grad_norm", "validation": "val/loss"}
MARKS = {"gain": " ▲", "harm": " ▼", "not distinguishable": ""}
DIFFERENCE = "Base|Mix|Benchmark|Points:+.1f|±:.1f|Low:+.1f|High:+.1f|Freedom:.1f|p:.2g|Corrected p:.2g|Shown"


def write_recommendation(spec: "Spec", results: Sequence[RunResult]) -> Path:
    """Write the recommendation from the development benchmarks, with the runs that it rests on."""
    path = stage_dir("lab", spec.name) / "recommendation.json"
    verdicts = [one._asdict() for one in verdicts_on(spec, results)]
    runs = [spec.tag_of(result.run) for result in results if not result.broken]
    write_json(path, {"rule": significance.RULE, "recommendation": verdicts, "runs": runs})
    return path


def write_report(spec: "Spec", outcome: Outcome, look: int = 0) -> None:
    """Fill, print and write the outcome of a lab."""
    results = read_results(spec)
    outcome.add_artifact(write_recommendation(spec, results))
    verdicts = verdicts_on(spec, results)
    found = cells(results, spec.dev)
    gains = differences(found, spec.reference)
    # A stable benchmark raises alarms, and decides nothing.
    shown = found | cells(results, spec.stable)
    tables = [
        table_of("Mixes", "Mix | Words of --mixture", list(spec.mixes.items())),
        *score_tables("Scores", spec, results, shown, gains),
        table_of("Recommendation", "Base | Mix | Verdict | In words", [list(one) for one in verdicts]),
        difference_table("Differences from the reference", gains, spec.least_gain),
        difference_table("Synergies: gain beyond the sum of both", synergies(found, spec.reference)),
        luck_table(found),
        noise_table(results, spec.repeats),
        rates_table(results, len(spec.seeds)),
        merges_table({spec.tag_of(result.run) for result in results}),
        table_of("Alarms", "Run | Alarm | Left out | Reason", alarm_rows(spec, results)),
    ]
    sealed = []
    if look:
        sealed = [result for result in read_results(spec, HELD_OUT) if result.answers]
        title = "held out, look 1" if look == 1 else f"look {look}, no longer held out"
        found = cells(sealed, spec.held_out)
        gains = differences(found, spec.reference)
        tables += score_tables(f"Scores, {title}", spec, sealed, found, gains)
        tables.append(difference_table(f"Differences, {title}", gains, spec.least_gain))
    tables.append(cost_table(results, sealed))
    outcome.tables = [table for table in tables if table["rows"]]
    left_out = sum(bool(result.broken) for result in results)
    outcome.metrics = {
        "Question": spec.question,
        "Runs": f"{len(results)}, {left_out} of them left out",
        "Reference": spec.reference,
        "Budget of a run": ", ".join(f"{name} {value:,g}" for name, value in spec.budget.items()),
        "Rule": significance.RULE,
    }
    outcome.metrics |= {f"{one.mix} on {one.base}": one.verdict for one in verdicts}
    outcome.curves = overlays(results)
    outcome.show()
    outcome.write()


# ---- tables ----


def score_tables(
    title: str, spec: "Spec", results: Sequence[RunResult], found: Cells, gains: significance.Table
) -> list[Record]:
    """Return a table of mixes by benchmarks for each base, in points, with marks; a hole has its reason."""
    scores = cell_means(found)
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
                mark = MARKS[shown_as(gains[key], spec.least_gain)] if key in gains else ""
                score = scores.get(key)
                hole = "; ".join(holes) or "-"
                row.append(measured(100 * score.mean, 100 * score.error, ".1f", mark) if score else hole)
            if own:
                rows.append(row)
        tables.append(table_of(f"{title}, {base}", " | ".join(["Mix", "Seeds", *benchmarks]), rows))
    return tables


def shown_as(one: significance.Difference, least_gain: float) -> str:
    """Return a difference in words, a key of MARKS."""
    if not one.counts(least_gain):
        return "not distinguishable"
    return "gain" if one.mean > 0 else "harm"


def difference_table(title: str, table: significance.Table, least_gain: float = 0.0) -> Record:
    """Return differences in points, with 95 % intervals."""
    rows = []
    for key, one in table.items():
        points = [100 * value for value in (one.mean, one.error, one.low, one.high)]
        rows.append([*key, *points, one.freedom, one.p, one.adjusted, shown_as(one, least_gain)])
    return table_of(title, DIFFERENCE, rows)


def luck_table(found: Cells) -> Record:
    """Return the best seed of each cell beside the mean, and beside the best of seeds that differ by luck alone."""
    rows = []
    for key, scores in found.items():
        seeds = scores.mean(axis=1)
        variance, freedom = pooled(found, key)
        if freedom:
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
    high, little = 100 * significance.HIGH_NOISE, 100 * significance.LITTLE_NOISE
    title = f"Noise over {repeats} repeats (high from {high:g} points, very stable below {little:g})"
    columns = "Benchmark | Freedom | Deviation:.2f | ±:.2f | Class | Explained by questions, %:.0f"
    return table_of(title, f"{columns} | k of Avg@k for {100 * TARGET:g}", rows)


def rates_table(results: Sequence[RunResult], seeds: int) -> Record:
    """Return the mean loss at each rate, and the end of the search, or the next round, in words."""
    rows = []
    for key, points in losses(results).items():
        if len(points) > 1:
            rows += [[*key, f"{rate:g}", len(points[rate]), fmean(points[rate])] for rate in sorted(points)]
            rows.append([*key, rates.next_rates(points, seeds).sentence, None, None])
    return table_of("Rates", "Base | Mix | Factor of the rate | Seeds | Loss:.4f", rows)


def merges_table(tags: set[str]) -> Record:
    """Return the merges of these runs."""
    rows = []
    for path in sorted(base_dir().glob("merge/*/outcome.json")):
        merge = Outcome.load(path)
        models = merge.config["models"]
        # Words like TAG@STEP:WEIGHT.
        if tags & set(re.findall(r"(?:^|,)([^,@:]+)", models)):
            rows.append([merge.tag, merge.config["method"], models, merge.metrics["Weights"]])
    return table_of("Merges", "Model | Method | Models | Weights", rows)


def alarm_rows(spec: "Spec", results: Iterable[RunResult]) -> list[list[str]]:
    """Return a row for each alarm and each failed run."""
    rows = []
    for result in results:
        tag = spec.tag_of(result.run)
        if result.failure not in ("", NOT_RUN):
            rows.append([tag, "failed", "yes", result.failure])
        for alarm in result.alarms:
            rows.append([tag, alarm.kind, "yes" if alarm.breaks else "no", alarm.sentence])
    return rows


def cost_table(results: Sequence[RunResult], sealed: Sequence[RunResult]) -> Record:
    """Return the costs of the final models (training and held-out evaluation) and of the recipe (all else)."""
    final = [outcome for result in sealed for outcome in result.outcomes]
    recipe = [outcome for result in results for outcome in result.outcomes if outcome not in final]
    title = "Cost"
    rows = []
    for part, outcomes in {"Recipe": recipe, "Final": final}.items():
        flops = [
            outcome.metrics["Total training flops"]["value"] for outcome in outcomes if "eval" not in outcome.stage
        ]
        seconds = sum(outcome.seconds for outcome in outcomes)
        asked = sum(outcome.seconds for outcome in outcomes if "eval" in outcome.stage)
        prices = [hourly_rate(outcome.environment["Hardware"]["GPUs"]) for outcome in outcomes]
        # A sum with a missing part would look complete.
        dollars = None
        if None not in prices:
            dollars = sum(price * outcome.seconds / 3600 for price, outcome in zip(prices, outcomes, strict=True))
        rows.append([part, len(flops), seconds, sum(flops), dollars, 100 * asked / max(seconds, 1e-9)])
    if final:
        title += f": the recipe takes {rows[0][2] / rows[1][2]:.1f} times as long as the final models"
    return table_of(title, "Part | Models | Seconds:,.0f | FLOPs:.3g | Dollars:.2f | Evaluation, %:.0f", rows)


# ---- curves ----


def overlays(results: Iterable[RunResult]) -> list[Record]:
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
