"""Results of a lab: answers, scores and differences of the runs of a spec, read from their folders.

- read_results(spec, suffix) -> list[RunResult]: one for each run, also for those that failed. suffix: of the
  evaluation's tag, HELD_OUT for the evaluations of --final.
- cells(results, benchmarks) -> Cells: scores by (base, mix, benchmark), of intact runs.
- differences(cells, reference), synergies(cells, reference): tables of `significance`, p corrected over each table.
- verdicts_on(spec, results) -> list[Recommendation].
- recommended(spec) -> list[Arm]: the arms of the reference and those with the verdict keep, which --final evaluates.
- losses(results) -> (base, mix) -> rate -> losses by seed, nan for failed runs: the points of `rates`.

In a lab with several rates, mixes are compared at equal rates: each base at each rate counts as a base (d20*0.5). Runs
with an alarm that breaks them are left out, and so are failed ones: a cell without runs is a hole, never a zero.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nanochat.lab import significance
from nanochat.lab.alarms import Alarm, alarms, stop_share
from nanochat.log import Record, metric_curve, read_metrics
from nanochat.outcome import Estimate, Outcome, mean_estimate
from nanochat.paths import read_jsonl, stage_dir, text_sha256
from nanochat.stages import STAGES

if TYPE_CHECKING:
    from nanochat.lab.sweep import Arm, Run, Spec

HELD_OUT = "-held-out"  # end of the tag of an evaluation of --final
NOT_RUN = "not run"
LONGEST = 160  # characters of a reason

Key = tuple[str, str, str]  # base, mix, benchmark
Cells = dict[Key, significance.Scores]


class RunResult(NamedTuple):
    """Whatever a run has left so far."""

    run: "Run"
    base: str  # with the rate, if the lab has several
    failure: str  # reason why there are no answers; empty if there are
    questions: Mapping[str, str]  # of each benchmark: a hash of the prompts
    answers: Mapping[str, np.ndarray]  # of each benchmark: (answers to a question, questions), 1 if right, or 0
    alarms: Sequence[Alarm]
    records: Sequence[Record]  # of the metric log
    outcomes: Sequence[Outcome]  # of training and of the evaluation

    @property
    def broken(self) -> str:
        """The reason to leave the run out."""
        return self.failure or "; ".join(alarm.sentence for alarm in self.alarms if alarm.breaks)


# ---- reading ----


def read_results(spec: "Spec", suffix: str = "") -> list[RunResult]:
    """Return the results of all runs."""
    benchmarks = spec.held_out if suffix else [*spec.dev, *spec.stable]
    evaluation = next(stage.name for stage in STAGES if stage.source and stage.parent == spec.stage)
    parents = {}
    for base in spec.bases:
        folder = stage_dir(f"chat_eval_{spec.source}", f"{spec.name}-{base}")
        parents[base] = _shares(_read_answers(folder, benchmarks), spec.stable)
    found = []
    for run in spec.runs:
        tag, arm = spec.tag_of(run), run.arm
        folder = stage_dir(evaluation, tag + suffix)
        paths = [stage_dir(spec.stage, tag) / "outcome.json", folder / "outcome.json"]
        outcomes = [Outcome.load(path) for path in paths if path.exists()]
        # Answers of an evaluation that goes on are not complete.
        answers = _read_answers(folder, benchmarks) if len(outcomes) == len(paths) else {}
        records = read_metrics(paths[0].with_name("metrics.jsonl"))
        found.append(
            RunResult(
                run=run,
                base=arm.base if len(spec.rates) == 1 else f"{arm.base}*{arm.rate:g}",
                failure="" if answers else _reason(spec, tag),
                questions={name: _prompts(each) for name, each in answers.items()},
                answers={name: _verdicts(each) for name, each in answers.items()},
                alarms=alarms(records, _shares(answers, spec.stable), parents[arm.base]),
                records=records,
                outcomes=outcomes,
            )
        )
    return found


def _read_answers(folder: Path, benchmarks: Iterable[str]) -> dict[str, list[Record]]:
    """Return the records of an evaluation by benchmark, without those that have no file."""
    paths = {name: folder / f"{name}.jsonl" for name in benchmarks}
    return {name: list(read_jsonl(path, dict)) for name, path in paths.items() if path.exists()}


def _prompts(records: Sequence[Record]) -> str:
    return text_sha256("\0".join(record["prompt"] for record in records))


def _verdicts(records: Sequence[Record]) -> np.ndarray:
    return np.array([[answer["right"] for answer in record["completions"]] for record in records], float).T


def _shares(answers: Mapping[str, Sequence[Record]], stable: Sequence[str]) -> dict[str, Estimate]:
    """Return the shares for alarms: right answers in stable benchmarks, and answers that stop in any."""
    found = {name: mean_estimate(_verdicts(answers[name]).mean(0).tolist()) for name in stable if name in answers}
    stopped = {f"answers in {name} that stop": stop_share(records) for name, records in answers.items()}
    return found | {name: share for name, share in stopped.items() if share}


def _reason(spec: "Spec", tag: str) -> str:
    """Return the last line of the log of a run."""
    logs = [stage_dir("lab", spec.name) / f"{tag}-{step}.log" for step in ("eval", "train")]
    newest = next((log for log in logs if log.exists()), None)
    if not newest:
        return NOT_RUN
    return newest.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2][:LONGEST]


# ---- scores and differences ----


def cells(results: Sequence[RunResult], benchmarks: Iterable[str]) -> Cells:
    """Return the scores of the intact runs that have answered the same questions as most runs of their base."""
    rows = {}
    for base, benchmark in product(dict.fromkeys(result.base for result in results), benchmarks):
        own = [
            result for result in results if result.base == base and benchmark in result.answers and not result.broken
        ]
        common = Counter(result.questions[benchmark] for result in own).most_common(1)
        for result in own:
            if result.questions[benchmark] == common[0][0]:
                row = rows.setdefault((base, result.run.arm.mix, benchmark), [])
                row.append(result.answers[benchmark].mean(0))
    return {key: np.array(row) for key, row in rows.items()}


def pooled(found: Cells, key: Key) -> tuple[float, int]:
    """Return the variance of a seed's mean over all mixes of a base in a benchmark, and its degrees of freedom."""
    own = [scores for other, scores in found.items() if other[::2] == key[::2]]
    return significance.pooled_seed_variance(own)


def _contrast(found: Cells, key: Key, plus: Sequence[str], minus: Sequence[str]) -> significance.Difference:
    """Return a sum of means of mixes with signs, on the base and benchmark of a key."""
    base, _, benchmark = key
    sides = [[found[base, mix, benchmark] for mix in mixes] for mixes in (plus, minus)]
    return significance.contrast(*sides, *pooled(found, key))


def cell_means(found: Cells) -> significance.Table:
    return {key: _contrast(found, key, [key[1]], []) for key in found}


def differences(found: Cells, reference: str) -> significance.Table:
    """Return the difference of each mix from the reference on the same base."""
    table = {}
    for key in found:
        base, mix, benchmark = key
        if mix != reference and (base, reference, benchmark) in found:
            table[key] = _contrast(found, key, [mix], [reference])
    return significance.adjust(table)


def synergies(found: Cells, reference: str) -> significance.Table:
    """Return for each mix a+b the gain beyond the sum of the gains of a and b."""
    table = {}
    for key in found:
        base, mix, benchmark = key
        parts = mix.split("+")
        needed = {(base, name, benchmark) for name in [*parts, reference]}
        if len(parts) == 2 and needed <= found.keys():
            table[key] = _contrast(found, key, [mix, reference], parts)
    return significance.adjust(table)


def verdicts_on(spec: "Spec", results: Sequence[RunResult]) -> list[significance.Recommendation]:
    """Return the verdicts on all mixes, by their differences in the development benchmarks."""
    table = differences(cells(results, spec.dev), spec.reference)
    return significance.recommend(table, spec.least_gain, spec.scaled)


def recommended(spec: "Spec") -> list["Arm"]:
    """Return the arms of the reference, and those that are kept."""
    results = read_results(spec)
    kept = {(one.base, one.mix) for one in verdicts_on(spec, results) if one.verdict == "keep"}
    kept |= {(result.base, spec.reference) for result in results}
    # Once for all seeds of an arm.
    return list(dict.fromkeys(result.run.arm for result in results if (result.base, result.run.arm.mix) in kept))


# ---- noise and rates ----


def noise(results: Sequence[RunResult], repeats: int) -> dict[str, significance.Noise]:
    """Return the noise over repeats of each benchmark answered in writing, pooled over runs."""
    models = {}
    for result in results:
        for name, verdicts in result.answers.items():
            # A letter is chosen once. Repeats come one after the other, each with its samples.
            if len(verdicts) >= repeats > 1:
                models.setdefault(name, []).append(verdicts.reshape(repeats, -1, verdicts.shape[1]).mean(1))
    return {name: significance.repeats_noise(scores) for name, scores in models.items()}


def losses(results: Iterable[RunResult]) -> dict[tuple[str, str], dict[float, list[float]]]:
    """Return the last validation of each run, by (base, mix), rate and seed: loss, or share of wrong answers in RL."""
    found = {}
    for result in results:
        _, values = metric_curve(result.records, "val/loss")
        _, right = metric_curve(result.records, "eval/pass@1")
        values += [1 - share for share in right]
        if result.failure != NOT_RUN:
            arm = result.run.arm
            # A run that diverged has no outcome.
            last = values[-1] if values and result.outcomes else math.nan
            found.setdefault((arm.base, arm.mix), {}).setdefault(arm.rate, []).append(last)
    return found
