"""Findings of a lab: answers, scores and differences of its runs, and the section `Lab` of the report card.

- read_results(spec, runs, is_held_out) -> list[RunResult]: one for each run, also for those that failed.
- trainings(results, benchmarks) -> Trainings: scores of intact runs; differences(trainings, reference): corrected p.
- write_recommendation(spec, results): before a look at held-out benchmarks. recommended(spec, results): the results
  that it names.
- write_report(spec, outcome, results, merged, look) fills, prints and writes the outcome that the script has begun;
  write_noise(spec, outcome) does it for the noise of evaluations.
- last_figure(spec, run): the last validation loss of a run, or what else its stage compares rates by.

In a lab with several rates, mixes are compared at equal rates: each base at each rate counts as a base (d20*0.5). Runs
with an alarm that breaks them are left out, and so are failed ones: a cell without runs is a hole, never a zero. Scores
in tables are points, with standard errors from questions and seeds.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import product
from math import isfinite, isnan, nan
from pathlib import Path
from statistics import mode

import numpy as np

from nanochat.errors import UserError
from nanochat.jobs.runner import Step, saved_record
from nanochat.log import Record, metric_curve, read_metrics, table_of
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir, write_json
from nanochat.report.card import cost
from nanochat.report.compare import Answers, read_answers
from nanochat.statistics import Estimate, mean_estimate, measured
from tracks.lab import significance
from tracks.lab.alarms import LEFT_OUT, Alarm, alarms, has_collapsed, read_left_out
from tracks.lab.sweep import (
    BPB,
    STAGES,
    TEXT_SPLIT,
    Run,
    Spec,
    base_step,
    base_steps,
    has_result,
    is_chat_task,
    run_steps,
)

LONGEST = 160  # characters of a reason
LAST_WORDS = re.compile(r"[eE]rror: |Signal \d+ \(")  # as a script says why it ends, or torchrun why a rank has
CURVES = {
    "loss": "train/loss",
    "gradient norm": "train/grad_norm",
    "validation": "val/loss",
    "validation bits per byte": "val/bpb",
}
MARKS = {"gain": " ▲", "harm": " ▼"}
DIFFERENCE = "Base|Mix|Benchmark|Points:+.1f|±:.1f|Low:+.1f|High:+.1f|Freedom:d|p:.2g|Corrected p:.2g|Shown"
BITS = "Base|Mix|Benchmark|Bits per byte:+.4f|±:.4f|Low:+.4f|High:+.4f|Freedom:d|p:.2g|Corrected p:.2g|Shown"
MERGES = "Base|Merge|Method|Benchmark|Mix|Its gain:+.1f|±:.1f|Gain of the merge:+.1f|±:.1f|Kept:.0%"
MERGED_BITS = MERGES.replace(".1f", ".4f")
NOISE = "Benchmark|Slots|Mean:.1f|Deviation:.2f|±:.2f|Explained by questions:.0%|Class|k for a very stable Avg@k"

# base and benchmark → for each training of the base: mix → scores
Trainings = dict[tuple[str, str], list[dict[str, significance.Scores]]]


@dataclass(frozen=True)
class RunResult:
    """Whatever a run has left so far."""

    run: Run
    base: str  # with the rate, if the lab has several
    answers: Mapping[str, Answers]  # by benchmark; none if the run has failed, or is scored by bits per byte alone
    alarms: Sequence[Alarm]  # with that of a failure
    records: Sequence[Record]  # of the metric log
    outcomes: Sequence[Outcome]  # of training and of evaluations
    bpb: float | None = None  # bits per byte of the text of the lab

    @property
    def has_scores(self) -> bool:
        """True if the run and its evaluations have ended."""
        return bool(self.answers) or self.bpb is not None

    @property
    def broken(self) -> str:
        """The reason to leave the run out."""
        return "; ".join(alarm.sentence for alarm in self.alarms if alarm.breaks)


Results = Sequence[RunResult]

# ---- reading ----


def read_results(spec: Spec, runs: Sequence[Run], is_held_out: bool = False) -> list[RunResult]:
    """Return the results of runs, or of merges. is_held_out: in the held-out benchmarks."""
    bases = () if spec.is_pretraining else spec.trainings
    parents = {base: _read_base(spec, base, base_steps(spec, base)) for base in bases}
    found = []
    for run in runs:
        steps = run_steps(spec, run, is_held_out=is_held_out)
        outcomes = [Outcome.load(step.outcome) for step in steps if has_result(spec, step)]
        answers: dict[str, Answers] = {}
        bpb = None
        if len(outcomes) == len(steps):  # answers of an evaluation that is still running are not complete
            for step in steps[1:]:
                answers |= _read_all(spec, step)
            bpb = next((bits_in(spec, one) for one in outcomes if one.stage.startswith("base_loss")), None)
        records = read_metrics(steps[0].outcome.with_name("metrics.jsonl"))
        parent = parents.get(run.base, {})
        signs = alarms(records, _shares(answers, spec.stable), _shares(parent, spec.stable))
        for name in spec.stable:
            own, before = answers.get(name), parent.get(name)
            if own and before and has_collapsed(before.commonest, own.commonest, len(own.right)):
                signs.append(
                    Alarm(
                        "collapse",
                        f"{own.commonest:.0%} of the answers in {name} are the same, and {before.commonest:.0%} before"
                        " training",
                    )
                )
        if spec.stage == "chat_rl":  # the loss of a policy is near 0, and says nothing
            signs = [sign for sign in signs if sign.kind != "loss"]
        if not answers and bpb is None:
            signs.insert(0, Alarm("failed", _reason(spec, steps)))
        if bpb is not None and not isfinite(bpb):
            signs.insert(0, Alarm("failed", f"its bits per byte are {bpb}"))
        found.append(RunResult(run, spec.base_of(run), answers, signs, records, outcomes, bpb))
    return found


def bits_in(spec: Spec, outcome: Outcome) -> float:
    """Return the bits per byte that scripts.base_loss has measured for a lab."""
    return outcome.figure("val bpb" if spec.is_pretraining else f"{TEXT_SPLIT} bpb")


def _read_base(spec: Spec, base: str, steps: Sequence[Step]) -> dict[str, Answers]:
    """Return the answers of a base; a UserError if one of its evaluations has failed."""
    answers: dict[str, Answers] = {}
    for step in steps:
        if not step.outcome.exists():
            raise UserError(f"the evaluation of {base} has failed, see the logs in {stage_dir('lab', spec.name)}")
        answers |= _read_all(spec, step)
    return answers


def _read_all(spec: Spec, step: Step) -> dict[str, Answers]:
    """Return the answers of an evaluation, without benchmarks that have no file."""
    paths = [step.outcome.with_name(f"{name}.jsonl") for name in spec.tasks]
    return {path.stem: read_answers(path) for path in paths if path.exists()}


def _shares(answers: Mapping[str, Answers], stable: Sequence[str]) -> dict[str, Estimate]:
    """Return the shares for alarms: right answers in stable benchmarks, and answers that stop in any."""
    samples = {name: np.mean(answers[name].right, axis=1) for name in stable if name in answers}
    samples |= {f"answers in {name} that stop": one.stops for name, one in answers.items()}
    return {name: mean_estimate(sample) for name, sample in samples.items() if len(sample)}


def _reason(spec: Spec, steps: Sequence[Step]) -> str:
    """Return why the first step that has not finished has not: its last words, or the signal that ended it."""
    failed = next((step for step in steps if not has_result(spec, step)), steps[-1])
    if failed.outcome.exists():
        return f"what {failed.output} was made from has changed since, and it has not run again"
    log = stage_dir("lab", spec.name) / f"{failed.name}.log"
    if not log.exists():
        return "not run"
    # An attempt begins with its command; the last one counts. torchrun draws lines without a word.
    attempt = re.split(r"^== .*\n?", log.read_text(encoding="utf-8", errors="replace"), flags=re.MULTILINE)[-1]
    lines = [line.strip() for line in attempt.splitlines() if re.search(r"\w", line)]
    reason = [line for line in lines if LAST_WORDS.search(line)] or lines or ["its log is empty"]
    record = saved_record(log.with_suffix(".json"))
    signals = {128 + one.value: one.name for one in signal.Signals}  # as the runner reports them
    if record.get("status") in signals:
        return f"ended by {signals[record['status']]}, after: {reason[-1]}"[:LONGEST]
    if record and not record["finished"] and "status" not in record:
        return f"stopped with the lab, after: {reason[-1]}"[:LONGEST]
    return reason[-1][:LONGEST]


# ---- scores and differences ----


def intact_answers(results: Results, base: str, benchmark: str) -> list[tuple[Run, np.ndarray]]:
    """Return the scores of the intact runs of a base that have answered the same questions as most of them."""
    # A benchmark may be new in the spec.
    intact = [one for one in results if one.base == base and benchmark in one.answers and not one.broken]
    common = mode(one.answers[benchmark].questions for one in intact) if intact else ""
    return [
        (one.run, 100 * np.mean(one.answers[benchmark].right, axis=1))
        for one in intact
        if one.answers[benchmark].questions == common
    ]


def bits_of_seeds(results: Results, base: str) -> dict[str, np.ndarray]:
    """Return the bits per byte of each arm of a base: (seeds, 1), the same seeds in all, nan for runs left out."""
    own = [one for one in results if one.base == base]
    seeds = list(dict.fromkeys(one.run.seed for one in own))
    found: dict[str, np.ndarray] = {}
    for one in own:
        if one.bpb is not None and not one.broken:
            rows = found.setdefault(one.run.mix, np.full((len(seeds), 1), nan))
            rows[seeds.index(one.run.seed)] = one.bpb
    return found


def trainings(results: Results, benchmarks: Sequence[str]) -> Trainings:
    """Return the scores of each arm on each benchmark, over seeds, apart for each training of a base."""
    found: Trainings = {}
    for base, benchmark in product(dict.fromkeys(result.base for result in results), benchmarks):
        if benchmark == BPB:
            bits = bits_of_seeds(results, base)
            if bits:
                found[base, benchmark] = [bits]
            continue
        # A training all of whose runs have failed is one of several, too.
        groups: dict[str, dict[str, list[np.ndarray]]] = {one.run.base: {} for one in results if one.base == base}
        for run, scores in intact_answers(results, base, benchmark):
            groups[run.base].setdefault(run.mix, []).append(scores)
        if any(groups.values()):
            found[base, benchmark] = [{mix: np.array(rows) for mix, rows in group.items()} for group in groups.values()]
    return found


def differences(
    found: Trainings, reference: str, rounds: int = 1, *, are_synergies: bool = False
) -> significance.Table:
    """Return the difference of each mix from the reference on the same base, with p corrected over the table.

    rounds: how often the lab may find one. are_synergies: the gain of each mix named like a+b beyond the sum of the
    gains of a and b, instead. With several trainings of a base, their noise is a part of the error.
    """
    table = {}
    for (base, benchmark), groups in found.items():
        for mix in dict.fromkeys(mix for group in groups for mix in group):
            plus, minus = ([mix, reference], mix.split("+")) if are_synergies else ([mix], [reference])
            if mix == reference or len(plus) != len(minus):
                continue
            whole = [group for group in groups if group.keys() >= {*plus, *minus}]
            if len(whole) > 1:
                table[base, mix, benchmark] = significance.contrast_over_trainings(whole, plus, minus)
            elif whole:
                contrast = significance.contrast_of_pairs if benchmark == BPB else significance.contrast
                one = contrast(whole[0], plus, minus)
                if isnan(one.mean):  # no seed is left in all of the arms
                    continue
                # If the runs of other trainings have failed, what is left has no error of trainings and shows nothing.
                table[base, mix, benchmark] = one if len(groups) == 1 else replace(one, freedom=0, p=1.0)
    return significance.adjust(table, rounds)


def gains_of(spec: Spec, results: Results, *, are_synergies: bool = False) -> significance.Table:
    """Return the differences of all mixes with a result, in the development benchmarks; or their synergies."""
    rounds = spec.verdict_rounds
    results = [result for result in results if result.run.seed not in spec.confirm_seeds]
    table = differences(trainings(results, spec.dev), spec.reference, rounds, are_synergies=are_synergies)
    if rounds == 1:
        return table
    early = [result for result in results if result.run.seed in spec.seeds]
    first = differences(trainings(early, spec.dev), spec.reference, rounds, are_synergies=are_synergies)
    return significance.first_shown(first, table)


def verdicts_on(spec: Spec, results: Results) -> list[significance.Recommendation]:
    """Return the verdicts on all mixes with a result; those to be kept are confirmed, once runs for that have ended."""
    gains = gains_of(spec, results)
    alone = set()
    if not spec.is_pretraining:  # each seed is a training of its own
        alone = {result.base for result in results if not spec.replicas.get(spec.trainings[result.run.base])}
    verdicts = significance.recommend(gains, spec.scaled, alone)
    fresh = [result for result in results if result.run.seed in spec.confirm_seeds]
    again = {(result.base, result.run.mix) for result in fresh}
    table = differences(trainings(fresh, spec.dev), spec.reference)
    verdicts = significance.confirm(verdicts, gains, table, again, alone)
    return significance.count_broken(verdicts, broken_runs(results), spec.reference)


def broken_runs(results: Results) -> dict[tuple[str, str], list[bool]]:
    """Return for each base and mix which of its runs are left out."""
    found: dict[tuple[str, str], list[bool]] = {}
    for result in results:
        found.setdefault((result.base, result.run.mix), []).append(bool(result.broken))
    return found


def runs_to_confirm(spec: Spec, results: Results) -> list[Run]:
    """Return the runs on seeds of their own that confirm the mixes to be kept: these mixes and their reference.

    One of three runs that broke is too many to keep a mix, and one of five is not: such a mix is confirmed too.
    """
    ahead: dict[tuple[str, str], list[Run]] = {}
    for run in spec.confirming_runs:
        ahead.setdefault((spec.base_of(run), run.mix), []).append(run)
    broken = broken_runs(results)
    verdicts = significance.recommend(gains_of(spec, results), spec.scaled)
    gained = [(one.base, one.mix) for one in verdicts if one.verdict == "keep"]
    kept = [arm for arm in gained if not significance.breaks_often(broken[arm] + [False] * len(ahead.get(arm, ())))]
    asked = {*kept, *((base, spec.reference) for base, _ in kept)}
    return [run for run in spec.confirming_runs if (spec.base_of(run), run.mix) in asked]


def undecided_runs(spec: Spec, results: Results) -> list[Run]:
    """Return the runs with more seeds that are needed: of mixes that are not distinguishable, and their reference.

    results: of the runs with the first seeds.
    """
    gains = gains_of(spec, results)
    clear = {key[:2] for key, one in gains.items() if one.shown != significance.UNCLEAR}
    unclear = {key[:2] for key in gains} - clear
    unclear |= {(base, spec.reference) for base, _ in unclear}
    return [run for run in spec.more_runs if (spec.base_of(run), run.mix) in unclear]


def recommended(spec: Spec, results: Results) -> list[RunResult]:
    """Return the intact results of the reference, and of the mixes that are kept."""
    kept = {(one.base, one.mix) for one in verdicts_on(spec, results) if one.verdict == "keep"}
    intact = [result for result in results if not result.broken]
    return [one for one in intact if one.run.mix == spec.reference or (one.base, one.run.mix) in kept]


# ---- the report ----


def write_recommendation(spec: Spec, results: Results) -> Path:
    """Write the recommendation from the development benchmarks, with the runs that it rests on."""
    path = stage_dir("lab", spec.name) / "recommendation.json"
    verdicts = [asdict(one) for one in verdicts_on(spec, results)]
    runs = [spec.tag_of(result.run) for result in results if not result.broken]
    write_json(path, {"rule": significance.RULE, "recommendation": verdicts, "runs": runs})
    return path


def write_left_out(spec: Spec, results: Results) -> None:
    """Write the runs that are left out, by their evaluation, reason and date: a leaderboard leaves them out too."""
    path = stage_dir("lab", spec.name) / LEFT_OUT
    found = read_left_out(path)  # those of bases that --bases leaves out today stay, with their dates
    now = datetime.now().astimezone().isoformat()
    for result in results:
        outputs = [step.output for step in run_steps(spec, result.run)[1:]]
        for name in outputs:
            found.pop(name, None)
        if result.broken:
            # A leaderboard has no bits per byte; they name a run that has nothing else.
            names = [name for name in outputs if "_eval" in name] or outputs
            found |= {name: {"reason": result.broken, "since": now} for name in names}
    write_json(path, found)


def write_report(spec: Spec, outcome: Outcome, results: Results, merged: Results, look: int = 0) -> None:
    """Fill, print and write the outcome of a lab. look: number of looks at held-out benchmarks, 0 before --final."""
    write_left_out(spec, [*results, *merged])
    outcome.add_artifact(write_recommendation(spec, results))
    verdicts = [[one.base, one.mix, one.verdict, one.reason] for one in verdicts_on(spec, results)]
    found = trainings(results, spec.dev)
    sealed = []  # results on the held-out benchmarks
    synergies = gains_of(spec, results, are_synergies=True)
    mixes = table_of("Mixes", f"Mix | Words of {STAGES[spec.stage].mix}", list(spec.mixes.items()))
    if spec.is_pretraining:
        mixes = table_of("Mixes", "Mix | Flags", list(spec.mixes.items()))
    tables = [
        mixes,
        *score_tables("", spec, results, spec.open_tasks),
        table_of("Recommendation", "Base | Mix | Verdict | Reason", verdicts),
        *difference_tables("Synergies: gain beyond the sum of both", synergies),
        luck_table(found),
        *merge_tables(spec, results, merged),
        alarm_table(spec, [*results, *merged]),
    ]
    if look:
        title = ", held out, look 1" if look == 1 else f", look {look}, no longer held out"
        # Others may have answers from an earlier look.
        runs = [result.run for result in recommended(spec, results)]
        sealed = read_results(spec, runs, is_held_out=True)
        tables += score_tables(title, spec, sealed, spec.held_out)
    tables.append(cost_table(spec, [*results, *merged], sealed))
    outcome.tables = [table for table in tables if table["rows"]]
    outcome.metrics = {
        "Question": spec.question,
        "Runs": f"{len(results)}, {sum(bool(result.broken) for result in results)} of them left out",
        "Reference": spec.reference,
        "Rule": significance.RULE,
    }
    if BPB in spec.dev and not spec.is_pretraining:
        for base in spec.trainings:
            [step] = [step for step in base_steps(spec, base) if step.output.startswith("base_loss")]
            outcome.metrics[f"Bits per byte of {base}, before"] = f"{bits_in(spec, Outcome.load(step.outcome)):.4f}"
    if sealed:
        outcome.metrics["Recipe to final, seconds"] = recipe_to_final(tables[-1])
    outcome.curves = overlays(results)
    outcome.finish()


def write_noise(spec: Spec, outcome: Outcome) -> None:
    """Fill, print and write the outcome of repeated evaluations of the bases, with each number of engine slots."""
    rows = []
    for slots in [0, *spec.slots]:
        evaluations = [_read_base(spec, base, [base_step(spec, base, slots)]) for base in spec.bases]
        for name in filter(is_chat_task, spec.open_tasks):  # a likelihood is the same again
            # (bases, repeats, questions)
            scores = 100 * np.array([answers[name].right for answers in evaluations]).transpose(0, 2, 1)
            # A question that is answered by the likeliest letter has one answer, whatever the repeats.
            if scores.shape[1] > 1:
                one = significance.noise(scores)
                k = one.repeats_for(significance.LITTLE_NOISE)
                figures = [scores.mean(), one.deviation, one.error, one.explained]
                rows.append([name, slots or "chosen", *figures, one.kind, k])
    outcome.metrics = {"Question": spec.question, "Models": ", ".join(spec.bases), "Repeats": spec.repeats}
    outcome.tables = [table_of(f"Noise of one evaluation, {significance.CLASSES}", NOISE, rows)]
    outcome.finish()


def last_figure(spec: Spec, run: Run) -> float:
    """Return the last figure of a run by which rates are compared, like the validation loss; nan if it has diverged."""
    path = spec.outcome_of(run)
    records = read_metrics(path.with_name("metrics.jsonl"))
    if not path.exists():
        if any(record["kind"] == "diverged" for record in records):
            return nan
        raise UserError(f"{path.parent} has no result, and did not diverge: {_reason(spec, run_steps(spec, run))}")
    name = STAGES[spec.stage].figure
    found = [record[name] for record in records if name in record]
    if not found:
        raise UserError(f"{path.parent} has no {STAGES[spec.stage].measure}: nothing is held out")
    return found[-1]


def score_tables(title: str, spec: Spec, results: Results, benchmarks: Sequence[str]) -> list[Record]:
    """Return a matrix of mixes and benchmarks for each base, with marks, and the table of differences.

    A hole has its reason. A stable benchmark raises alarms, and decides nothing.
    """
    # Nothing is decided on benchmarks that were held out, so no seeds were added for them, or set apart.
    is_held_out = benchmarks == spec.held_out
    if not is_held_out:
        results = [result for result in results if result.run.seed not in spec.confirm_seeds]
    found = trainings(results, benchmarks)
    gains = gains_of(spec, results)
    if is_held_out:
        gains = differences(found, spec.reference)
    marks = {key: MARKS.get(one.shown, "") for key, one in gains.items()}
    matrices = {}  # base -> rows
    arms: dict[tuple[str, str], list[str]] = {}  # base and mix -> why each run is left out, or ""
    for result in results:
        arms.setdefault((result.base, result.run.mix), []).append(result.broken)
    for (base, mix), reasons in arms.items():
        holes = list(filter(None, reasons))
        row = [mix, f"{len(reasons) - len(holes)} of {len(reasons)}"]
        for benchmark in benchmarks:
            groups = [group for group in found.get((base, benchmark), ()) if mix in group]
            if groups:
                contrast = significance.contrast_of_pairs if benchmark == BPB else significance.contrast
                score = contrast(groups[0], [mix])
                if len(groups) > 1:
                    score = significance.contrast_over_trainings(groups, [mix], [])
                digits = ".4f" if score.in_bits else ".1f"
                reason = f" (one {score.single}: no error)" if isnan(score.error) else ""
                row.append(measured(score.mean, score.error, digits, reason + marks.get((base, mix, benchmark), "")))
            else:
                row.append("; ".join(holes) or "-")
        matrices.setdefault(base, []).append(row)
    columns = " | ".join(["Mix", "Seeds", *benchmarks])
    tables = [table_of(f"Scores{title}, {base}", columns, rows) for base, rows in matrices.items()]
    return [*tables, *difference_tables(f"Differences from the reference{title}", gains)]


def merge_tables(spec: Spec, results: Results, merged: Results) -> list[Record]:
    """Return how much of each gain that a mix has shown is left in its merges with others: in points, and in bits."""
    gains = gains_of(spec, results)
    others = gains_of(spec, [*results, *merged])
    points, bits = [], []
    for (base, name, benchmark), one in others.items():
        merge, _, method = name.rpartition(":")
        for mix in spec.merges.get(merge, ()):
            gain = gains.get((base, mix, benchmark))
            if gain and gain.shown == "gain":
                figures = [gain.mean, gain.error, one.mean, one.error, one.mean / gain.mean]
                (bits if one.in_bits else points).append([base, merge, method, benchmark, mix, *figures])
    title = "Merges: gains over the reference that are kept"
    return [table_of(title, MERGES, points), table_of(f"{title}, bits per byte", MERGED_BITS, bits)]


def difference_tables(title: str, table: significance.Table) -> list[Record]:
    """Return the tables of differences for the report: of points, and of bits per byte."""
    points, bits = [], []
    for key, one in table.items():
        known = [None if isnan(value) else value for value in (one.error, one.low, one.high)]
        row = [*key, one.mean, *known, one.freedom, one.p, one.adjusted, one.shown]
        (bits if one.in_bits else points).append(row)
    return [table_of(title, DIFFERENCE, points), table_of(f"{title}, bits per byte", BITS, bits)]


def luck_table(found: Trainings) -> Record:
    """Return the best seed of each cell beside the mean, and beside the best of equally good seeds.

    For a base with one training: seeds of several are not alike. Bits per byte are paired by seed instead.
    """
    rows = []
    for (base, benchmark), groups in found.items():
        if len(groups) > 1 or benchmark == BPB:
            continue
        [group] = groups
        for mix, scores in group.items():
            seeds = scores.mean(axis=1)
            if len(seeds) > 1:
                variance, _ = significance.pooled_seed_variance(group, [mix])
                luck = significance.best_by_luck(variance**0.5, len(seeds))
                rows.append([base, mix, benchmark, len(seeds), seeds.mean(), seeds.max(), seeds.mean() + luck])
    return table_of("Best seeds", "Base|Mix|Benchmark|Seeds|Mean:.1f|Best:.1f|Best by luck alone:.1f", rows)


def alarm_table(spec: Spec, results: Results) -> Record:
    """Return the alarms of all runs, with failures."""
    rows = []
    for result in results:
        tag = spec.tag_of(result.run)
        rows += [[tag, alarm.kind, "yes" if alarm.breaks else "no", alarm.sentence] for alarm in result.alarms]
    return table_of("Alarms", "Run | Alarm | Left out | Reason", rows)


def cost_table(spec: Spec, results: Results, sealed: Results) -> Record:
    """Return the costs of the final models (training and held-out evaluation) and of the recipe: all other runs.

    What has failed counts too. Attempts that were killed are not known, and other labs, such as a search for rates, and
    the training of the bases are not of this recipe.
    """
    final = [outcome for result in sealed for outcome in result.outcomes]
    recipe = []
    if not spec.is_pretraining:
        recipe = [Outcome.load(step.outcome) for base in spec.trainings for step in base_steps(spec, base)]
    recipe += [outcome for result in results for outcome in result.outcomes if outcome not in final]
    records = stage_dir("lab", spec.name)
    failed = sum(
        saved_record(records / f"{step.name}.json").get("seconds", 0.0)
        for result in results
        for step in run_steps(spec, result.run)
        if not step.outcome.exists()
    )
    rows = []
    for part, outcomes in {"Recipe": recipe, "Final": final}.items():
        trained = [outcome for outcome in outcomes if outcome.stage == spec.stage]
        flops = sum(outcome.figure("Total training flops") for outcome in trained)
        seconds = sum(outcome.seconds for outcome in outcomes) + (failed if part == "Recipe" else 0.0)
        evaluated = sum(one.seconds for one in outcomes if "eval" in one.stage or "base_loss" in one.stage)
        rows.append([part, len(trained), seconds, flops, cost(outcomes), evaluated / max(seconds, 1e-9)])
    return table_of("Cost", "Part | Models | Seconds:,.0f | FLOPs:.3g | Dollars:.2f | Evaluation:.0%", rows)


def recipe_to_final(costs: Record) -> str:
    """Return how many times as long the search for the recipe took as the final models."""
    (_, _, recipe, *_), (_, _, final, *_) = costs["rows"]
    return f"{recipe / max(final, 1e-9):.1f}"


def overlays(results: Results) -> list[Record]:
    """Return a picture for each row of a matrix and each figure, with a line for each run."""
    pictures = {}
    bases = {result.base: {other.run.base for other in results if other.base == result.base} for result in results}
    for result in results:
        training = f"{result.run.base}, " if len(bases[result.base]) > 1 else ""
        for name, figure in CURVES.items():
            points = metric_curve(result.records, figure)
            if points[0]:
                title = f"{result.base}, {result.run.mix}: {name}"
                picture = pictures.setdefault(title, {"title": title, "x": "step", "y": name, "series": {}})
                picture["series"][f"{training}seed {result.run.seed}"] = points
    return list(pictures.values())
