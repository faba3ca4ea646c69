"""Series: the finished runs TAG-ENTRY-SEED of golf, a few entries with several seeds each, and their comparison."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from nanochat.config import flag_of
from nanochat.errors import UserError
from nanochat.log import Record, table_of
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir
from nanochat.statistics import Metrics, holm, measured, p_value
from tracks.golf.entries import BASELINES
from tracks.golf.train import Config as Training

SIGNIFICANT = 0.05  # a difference with a larger p, corrected for the table, is within the noise of the seeds
EQUAL = ("Scale", "Stride", "Text")  # metrics that runs share, or their scores cannot be compared
CHECKS = "Checks before the score"  # title of the table of what was checked of one artifact
CHECKED = "Places:,d | Normalised:.1e | Causal:.1e | Score first:.1e | Bytes:,d"
CHECKED_NOTE = (
    "An artifact is checked before each of its scores, and one that breaks a rule has none. Places: at which the"
    " probabilities of the whole vocabulary were added up. Normalised: the largest error of such a sum. Causal: the"
    " largest difference, in nats, before a changed token. Score first: the same for the same rows again, after which"
    " the weights are the same. Bytes: of the file, whose parts were the whole of it."
)
TIMED = ["compile"]  # settings of training that a run may change, but that change what it does on the clock
COSTS = ("Bytes", "Training seconds", "Packing seconds")
COLUMNS = (
    "Arm | bpb:.4f | ±:.4f | Difference:+.4f | p:.2g | p, corrected:.2g | Within noise"
    " | Bytes:,.0f | Training seconds:.1f | Packing seconds:.1f | Seeds"
)


@dataclass(frozen=True)
class Arm:
    """An entry of a series."""

    name: str
    runs: Sequence[Outcome]  # one for each seed that the entry has

    def values(self, metric: str = "bpb") -> list[Any]:
        """Return a metric of each run, without its format."""
        return [run.figure(metric) for run in self.runs]

    def against(self, other: "Arm") -> tuple[float | None, float | None]:
        """Return the difference to another arm in the mean score, and p; None where there is none."""
        if self.name == other.name:
            return None, None
        own = self.values()
        others = other.values()
        p = None if len(own) == len(others) == 1 else p_value(own, others)
        return statistics.fmean(own) - statistics.fmean(others), p

    def means(self) -> Metrics:
        """Return the metrics: what is equal in all runs, else the mean with the deviation, or all texts."""
        found = dict(self.runs[0].metrics)
        for name, first in found.items():
            values = self.values(name)
            if isinstance(first, str):
                found[name] = ", ".join(dict.fromkeys(values))
            elif len(set(values)) > 1:
                spec = first["format"] if isinstance(first, dict) else ",.0f"
                found[name] = measured(statistics.fmean(values), statistics.stdev(values), spec)
        return found


def deciding_flags(run: str) -> dict[str, Any]:
    """Return the flags that decide a run beside its seed: those of its training, its packing and its score."""
    names = {
        "base_train": [one.name for one in fields(Training) if not one.metadata["may_change"]] + TIMED,
        "golf_pack": ["scale", "plan", "model_bytes", "eval_bytes"],
        "golf_eval": ["count_tokenizer"],  # strides are compared over all arms
    }
    found = {}
    for stage, asked in names.items():
        path = stage_dir(stage, run) / "outcome.json"
        config = Outcome.load(path).config if path.exists() else {}
        found |= {f"{flag_of(name)} of {stage}": config[name] for name in asked if name in config and name != "seed"}
    return found


def require_one_series(runs: Sequence[str]) -> None:
    """Raise a UserError if a run of an arm has other flags than its first one: they are of two series."""
    first, *others = runs
    own = deciding_flags(first)
    for run in others:
        found = deciding_flags(run)
        # A flag that came with a later version is in one of the records alone.
        changed = [name for name in own if name in found and own[name] != found[name]]
        if changed:
            raise UserError(
                f"{run} was made with other flags than {first} ({', '.join(changed)}), and cannot be averaged with it:"
                f" make it again with the same flags, or compare fewer seeds"
            )


def read_arm(tag: str, name: str, seeds: int) -> Arm:
    """Return an arm with those of the seeds 1 to `seeds` that it has.

    A UserError if it has none, if they have different flags, or if one was scored without checks: a tag may have runs
    of an earlier series, or of an earlier version.
    """
    tags = [f"{tag}-{name}-{seed}" for seed in range(1, seeds + 1)]
    paths = {run: stage_dir("golf_eval", run) / "outcome.json" for run in tags}
    runs = {run: Outcome.load(path) for run, path in paths.items() if path.exists()}
    if not runs:
        raise UserError(f"tracks.golf.eval has not finished for {tag}-{name}-1: run it first")
    require_one_series(list(runs))
    for run, outcome in runs.items():
        if not any(table["title"] == CHECKS for table in outcome.tables):
            raise UserError(
                f"{run} was scored by an earlier version, without the figures of its checks, and an artifact that may"
                f" break a rule is not compared: run python -m tracks.golf.eval --tag={run}"
                f" --stride={outcome.figure('Stride')}"
            )
    return Arm(name, list(runs.values()))


def best_baseline(tag: str) -> str:
    """Return the baseline with the best score of the first seed, which all have."""
    return min(BASELINES, key=lambda name: read_arm(tag, name, 1).values()[0])


def require_equal(arms: Sequence[Arm]) -> None:
    """Raise a UserError if the runs differ in one of the metrics EQUAL."""
    for metric in EQUAL:
        values = sorted({str(run.metrics.get(metric)) for arm in arms for run in arm.runs})
        if len(values) > 1:
            found = f"the runs differ in {metric} ({', '.join(values)}), and cannot be compared"
            raise UserError(f"{found}: run their stage again, with the same flags")


def comparison_table(title: str, arms: Sequence[Arm], other: Arm) -> Record:
    """Return the table of arms, each compared with another one; p is corrected for the differences of the table."""
    against = [arm.against(other) for arm in arms]
    corrected = iter(holm([p for _, p in against if p is not None]))
    rows = []
    for arm, (difference, p) in zip(arms, against, strict=True):
        scores = arm.values()
        deviation = statistics.stdev(scores) if len(scores) > 1 else None
        adjusted = None if p is None else next(corrected)
        within_noise = None if adjusted is None else "yes" if adjusted > SIGNIFICANT else "no"
        costs = [statistics.fmean(arm.values(cost)) for cost in COSTS]
        figures = [statistics.fmean(scores), deviation, difference, p, adjusted]
        rows.append([arm.name, *figures, within_noise, *costs, len(scores)])
    return table_of(title, COLUMNS, rows)


def checked_figures(checked: Record) -> list[Any]:
    """Return what was checked of one artifact (tracks.golf.checks) as the columns of CHECKED."""
    return [checked[name] for name in ("places", "sum", "causal", "again", "bytes")]


def own_checks_table(checked: Record) -> Record:
    """Return the table of what was checked of one artifact."""
    return table_of(CHECKS, CHECKED, [checked_figures(checked)], CHECKED_NOTE)


def checks_table(checked: Mapping[str, Sequence[Sequence[Any]]]) -> Record:
    """Return the table of what was checked before the scores of each arm: the fewest places, the largest figures.

    checked: arm -> of each score, the columns of CHECKED.
    """
    rows = []
    for name, scores in checked.items():
        places, *largest = zip(*scores, strict=True)
        rows.append([name, len(scores), min(places), *map(max, largest)])
    note = f"{CHECKED_NOTE} Of each arm, the fewest places and the largest of the other figures."
    return table_of("Checks before the scores", f"Arm | Scores | {CHECKED}", rows, note)


def checks_of(arms: Sequence[Arm]) -> dict[str, list[list[Any]]]:
    """Return what was checked of the runs of each arm, for checks_table."""
    return {
        arm.name: [row for run in arm.runs for table in run.tables if table["title"] == CHECKS for row in table["rows"]]
        for arm in arms
    }
