"""Series: the finished runs TAG-ENTRY-SEED of golf, a few entries with several seeds each, and their comparison."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nanochat.errors import UserError
from nanochat.log import Record, table_of
from nanochat.outcome import Outcome
from nanochat.paths import stage_dir
from nanochat.statistics import Metrics, holm, measured, p_value
from tracks.golf.entries import BASELINES

SIGNIFICANT = 0.05  # a difference with a larger p, corrected for the table, is within the noise of the seeds
EQUAL = ("Scale", "Stride", "Text")  # metrics that runs share, or their scores cannot be compared
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


def read_arm(tag: str, name: str, seeds: int) -> Arm:
    """Return an arm with those of the seeds 1 to `seeds` that it has; UserError if it has none."""
    paths = [stage_dir("golf_eval", f"{tag}-{name}-{seed}") / "outcome.json" for seed in range(1, seeds + 1)]
    runs = [Outcome.load(path) for path in paths if path.exists()]
    if not runs:
        raise UserError(f"tracks.golf.eval has not finished for {tag}-{name}-1: run it first")
    return Arm(name, runs)


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
