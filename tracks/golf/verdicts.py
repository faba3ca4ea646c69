"""Compare the arms of the seed's claims with its row: gains, losses and what cannot be told, for the report card.

python -m tracks.golf.verdicts --tag=claims-cpu

`tracks.golf.claims` makes the runs TAG-ARM-SEED and calls this command last.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.jobs.scales import flag_words
from nanochat.log import Record, table_of
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir
from nanochat.settings import TagSettings
from nanochat.statistics import Metrics, measured
from tracks.golf.arms import SEED_NAME, STRIDE, Arm, arm_flags, arms_of, trained
from tracks.golf.documents import FILE, TextName
from tracks.golf.entries import MARGIN, SCALES, undo
from tracks.golf.series import checked_figures, checks_table

if TYPE_CHECKING:
    import numpy as np

    from tracks.golf.differences import Difference

EQUAL = ("Scale", "Text")  # metrics that runs share, or their scores cannot be compared
COLUMNS = (
    "Claim | The seed's figure | Instead | Gain, selection text:+.4f | ±:.4f | p:.2g | Gain, reporting text:+.4f"
    " | ± of it:.4f | Seeds | Steps:,.0f | Seconds per step:.3g | Seconds:,.0f | Bytes:,.0f | Verdict"
)
DRIFT = 0.05  # of the row's seconds per step, by which those of an arm of its shape may differ
TITLES: dict[TextName, str] = {"choose": "selection text", "report": "reporting text"}


@options("verdicts")
class Config(TagSettings):
    """Compare arms with the seed's row, over the documents and the seeds that they have."""

    tag = "claims-cpu"
    arms: str = option("", "some of the arms, with commas between them (default: all)")
    seeds: Count = option(3, "seeds 1 to N of the row, and of the arms that one seed does not reject", least=1)


@dataclass(frozen=True)
class Found:
    """The runs of a study on one text, and the outcomes of their scores."""

    row: "dict[int, np.ndarray]"  # seed -> bits of each document
    trained: "dict[str, dict[int, np.ndarray]]"  # arm -> the same
    rescored: "dict[str, dict[int, np.ndarray]]"  # the row's runs with other strides
    sizes: "np.ndarray"  # bytes of each document
    outcomes: dict[str, list[Outcome]]  # arm, or SEED_NAME -> of its runs
    checked: dict[str, list[Record]]  # the same -> what was checked before each score

    def verdicts(self) -> "dict[str, Difference]":
        from tracks.golf.differences import verdicts

        return verdicts(self.row, self.trained, self.rescored, self.sizes)


def scores_folder(tag: str, name: str, seed: int, text: TextName) -> Path:
    """Return the folder of a run's scores. name: of the arm, or SEED_NAME."""
    return stage_dir("golf_documents", f"{tag}-{name}-{seed}-{text}")


def read_scores(tag: str, counts: Mapping[str, int], text: TextName) -> dict[str, dict[int, Outcome]]:
    """Return the outcomes of the first seeds of each arm; UserError if one is missing, or if texts differ.

    counts: seeds of each arm, and of SEED_NAME.
    """
    found = {}
    for name, count in counts.items():
        found[name] = {}
        for seed in range(1, count + 1):
            path = scores_folder(tag, name, seed, text) / "outcome.json"
            if not path.exists():
                raise UserError(f"{tag}-{name}-{seed} has no scores of the {TITLES[text]}: run tracks.golf.claims")
            found[name][seed] = Outcome.load(path)
    for metric in EQUAL:
        values = sorted({str(run.figure(metric)) for runs in found.values() for run in runs.values()})
        if len(values) > 1:
            raise UserError(
                f"the runs differ in {metric} ({', '.join(values)}), and cannot be compared: use another --tag"
            )
    return found


def stopped_after_one(tag: str, arms: Sequence[Arm], seeds: int) -> list[str]:
    """Return the arms that get no further seeds: what one seed rejects, beside the noise of the row's seeds."""
    from tracks.golf.differences import first_look, rejected

    counts = {SEED_NAME: seeds, **{arm.name: 1 for arm in trained(arms)}}
    found = read_study(tag, arms, counts, "choose")
    return rejected(first_look(found.row, found.trained, found.sizes))


def seed_counts(tag: str, arms: Sequence[Arm], seeds: int) -> dict[str, int]:
    """Return how many seeds the row and each arm have in the end."""
    stopped = stopped_after_one(tag, arms, seeds)
    own = {arm.name: 1 if arm.name in stopped else seeds for arm in trained(arms)}
    return {SEED_NAME: seeds, **own}


def read_study(tag: str, arms: Sequence[Arm], counts: Mapping[str, int], text: TextName) -> Found:
    """Return what has been scored on a text. counts: seeds of each arm, and of SEED_NAME.

    A score counts only if the artifact was checked before: a UserError for one of an earlier version.
    """
    import numpy as np

    outcomes = read_scores(tag, counts, text)
    sums = {
        (name, seed): json.loads((run.folder / FILE).read_bytes())
        for name, runs in outcomes.items()
        for seed, run in runs.items()
    }
    unchecked = [f"{tag}-{name}-{seed}-{text}" for (name, seed), scores in sums.items() if "checked" not in scores]
    if unchecked:
        folders = ", ".join(f"golf_documents/{name}" for name in unchecked)
        raise UserError(
            f"these scores were made before artifacts were checked, by an earlier version: remove {folders} and run"
            f" tracks.golf.claims again"
        )

    def bits(name: str, stride: int) -> "dict[int, np.ndarray]":
        by_stride = {seed: sums[name, seed]["nats"] for seed in outcomes[name]}
        missing = [seed for seed, nats in by_stride.items() if str(stride) not in nats]
        if missing:
            raise UserError(f"{tag}-{name}-{missing[0]} was not scored with stride {stride}: run tracks.golf.claims")
        return {seed: np.array(nats[str(stride)]) / math.log(2) for seed, nats in by_stride.items()}

    return Found(
        bits(SEED_NAME, STRIDE),
        {arm.name: bits(arm.name, STRIDE) for arm in trained(arms)},
        {arm.name: bits(SEED_NAME, arm.stride) for arm in arms if arm.stride is not None},
        np.array(sums[SEED_NAME, 1]["bytes"], dtype=np.float64),
        {name: list(runs.values()) for name, runs in outcomes.items()},
        {name: [sums[name, seed]["checked"] for seed in runs] for name, runs in outcomes.items()},
    )


def _mean(runs: Sequence[Outcome], *metrics: str) -> float:
    """Return the mean over runs of the sum of some metrics."""
    return statistics.fmean(sum(run.figure(metric) for metric in metrics) for run in runs)


def seconds_per_step(runs: Sequence[Outcome]) -> float:
    """Return the seconds of training per step, over all steps of some runs."""
    return _mean(runs, "Training seconds") / _mean(runs, "Steps")


def bytes_over(arm: Arm, found: Found) -> int:
    """Return by how many bytes an arm's largest file is over the budget; below 0 for bytes to spare."""
    runs = found.outcomes[arm.name if arm.stride is None else SEED_NAME]
    return max(run.figure("Bytes") for run in runs) - SCALES[runs[0].figure("Scale")].bytes


def takes_too_long(stride: int, found: Found) -> bool:
    """Return True for a stride whose scores would take more than the scale's time, with the margin of golf.eval."""
    runs = found.outcomes[SEED_NAME]
    scale = SCALES[runs[0].figure("Scale")]
    share = scale.eval_bytes / _mean(runs, "Bytes of text")  # the study's texts may have another size
    return MARGIN * share * _mean(runs, f"Scoring seconds, stride {stride}") > scale.scoring


def is_slow(arm: Arm, found: Found) -> bool:
    """Return True for an arm that scores with a stride of its own, which takes too long."""
    return arm.stride is not None and takes_too_long(arm.stride, found)


def remarks(arm: Arm, found: Found) -> list[str]:
    """Return what has to be known beside a verdict: a file over the budget, slow scores, steps of another duration."""
    runs = found.outcomes[arm.name if arm.stride is None else SEED_NAME]
    said = []
    over = bytes_over(arm, found)
    if over > 0:
        said.append(f"{over:,} bytes over the budget")
    if is_slow(arm, found):
        said.append("scoring takes more than half of its time limit")
    if arm.stride is None and arm.has_the_rows_shape:
        # Over the same seeds, so that a later seed of the row is not compared with an earlier one of the arm.
        change = seconds_per_step(runs) / seconds_per_step(found.outcomes[SEED_NAME][: len(runs)]) - 1
        if abs(change) > DRIFT:
            said.append(
                f"{100 * abs(change):.1f} % {'more' if change > 0 else 'fewer'} seconds per step than the baseline"
            )
    return said


def arm_row(arm: Arm, chosen: "Difference", reported: "Difference", found: Found) -> list[Any]:
    """Return the row of the table for an arm."""
    runs = found.outcomes[arm.name if arm.stride is None else SEED_NAME]
    if arm.stride is None:
        seconds = _mean(runs, "Training seconds", "Packing seconds")
    else:
        seconds = _mean(runs, f"Scoring seconds, stride {arm.stride}")
    return [
        arm.claim,
        arm.figure or None,
        arm.instead,
        chosen.gain,
        chosen.error,
        chosen.adjusted,
        reported.gain,
        reported.error,
        chosen.seeds,
        _mean(runs, "Steps"),
        seconds_per_step(runs),
        seconds,
        _mean(runs, "Bytes"),
        "; ".join([chosen.verdict, *remarks(arm, found)]),
    ]


def claims_table(arms: Sequence[Arm], choose: Found, report: Found) -> Record:
    """Return the table of all claims."""
    from tracks.golf.differences import RULE, compare

    chosen = choose.verdicts()
    reported = compare(report.row, report.trained, report.rescored, report.sizes)
    rows = [arm_row(arm, chosen[arm.name], reported[arm.name], choose) for arm in arms]
    note = (
        f"{RULE} Seconds: of training and packing; with another stride, of scoring the text. Runs end by the clock: an"
        f" arm of the baseline's shape whose seconds per step differ from the baseline's, over the same seeds, by more"
        f" than {100 * DRIFT:.0f} % is named in its verdict: its code or the machine was slower or faster."
    )
    return table_of("Claims of the seed, in bits per byte", COLUMNS, rows, note)


def entry_table(arms: Sequence[Arm], chosen: "Mapping[str, Difference]", found: Found) -> Record:
    """Return the table of what the verdicts make of the row, and the flags of that entry.

    A claim that loses is replaced by the arm that beats it most and fits into bytes and scoring time. Of each claim
    alone: that the changes help together was not measured.
    """
    rows = []
    scale = found.outcomes[SEED_NAME][0].figure("Scale")
    flags, stride = arm_flags(scale, None, {}), STRIDE
    for claim in dict.fromkeys(arm.claim for arm in arms):
        own = [arm for arm in arms if arm.claim == claim]
        better = [arm for arm in own if chosen[arm.name].verdict == "loses"]
        fitting = [arm for arm in better if bytes_over(arm, found) <= 0 and not is_slow(arm, found)]
        if fitting:
            best = min(fitting, key=lambda arm: chosen[arm.name].gain)
            flags = undo(flags, best.trick)
            stride = stride if best.stride is None else best.stride
            rows.append([claim, best.instead, "the claim loses"])
        elif better:
            rows.append([claim, "the claim", "it loses, but what beats it is over the budget of bytes or scoring time"])
        elif all(chosen[arm.name].verdict == "gains" for arm in own):
            rows.append([claim, "the claim", "it gains"])
        else:
            rows.append([claim, "the claim", "as in the row: not all of its arms show a gain, and none a loss"])
    slow = ", which takes more than half of its time limit here" if takes_too_long(stride, found) else ""
    note = (
        f"The entry that follows, scored with stride {stride}{slow}: `{' '.join(flag_words(flags))}`. Each claim was"
        " judged alone, in the row; what the changes do together was not measured, and flags that were given beside"
        " --scale are not in it."
    )
    return table_of("The entry by these verdicts", "Claim | Taken | Why", rows, note)


def checks_of(choose: Found, report: Found) -> dict[str, list[list[Any]]]:
    """Return what was checked of the runs of each arm, on both texts, before their scores."""
    return {name: [checked_figures(one) for one in own + report.checked[name]] for name, own in choose.checked.items()}


def figures(choose: Found, report: Found) -> Metrics:
    """Return the metrics for the report card."""
    from tracks.golf.differences import bits_per_byte, noise_of_runs

    rows = choose.outcomes[SEED_NAME]
    scale = rows[0].figure("Scale")
    found: Metrics = {"Scale": scale, "Stride": STRIDE, "Seeds of the baseline": len(rows)}
    for purpose, study in (("selection", choose), ("reporting", report)):
        scores = [bits_per_byte(bits, study.sizes) for bits in study.row.values()]
        spread = statistics.stdev(scores) if len(scores) > 1 else None
        first = study.outcomes[SEED_NAME][0]
        found[f"bpb of the baseline, text for {purpose}"] = measured(statistics.fmean(scores), spread)
        found[f"Text for {purpose}"] = (
            f"{first.figure('Text')}, {first.figure('Documents'):,} documents, {first.figure('Bytes of text'):,} bytes"
        )
    noise, freedom = noise_of_runs(choose.row, list(choose.trained.values()), choose.sizes)
    runs = [run for some in choose.outcomes.values() for run in some]
    seconds = sum(run.figure("Training seconds") + run.figure("Packing seconds") for run in runs)
    return found | {
        "Deviation of a run": measured(math.sqrt(noise) if freedom else None),
        "Degrees of freedom of it": freedom,
        "Bytes": round(_mean(rows, "Bytes")),
        "Budget": SCALES[scale].bytes,
        "Steps": round(_mean(rows, "Steps")),
        "Seconds per step": measured(seconds_per_step(rows), spec=".3g"),
        "Runs": len(runs),
        "Hours of training and packing": measured(seconds / 3600, spec=".2f"),
    }


def main(config: Config) -> None:
    outcome = Outcome.begin("golf_claims", config.tag, config)
    arms = arms_of(config.arms)
    counts = seed_counts(config.tag, arms, config.seeds)
    choose = read_study(config.tag, arms, counts, "choose")
    report = read_study(config.tag, arms, counts, "report")
    outcome.metrics = figures(choose, report)
    entry = entry_table(arms, choose.verdicts(), choose)
    outcome.tables = [claims_table(arms, choose, report), checks_table(checks_of(choose, report)), entry]
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
