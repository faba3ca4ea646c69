"""Series: the finished runs TAG-ARM-SEED of a stage, a few arms with several seeds each, and their comparison."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nanochat.lab.intervals import p_value
from nanochat.log import Record, table_of
from nanochat.outcome import Metrics, Outcome, measured
from nanochat.paths import stage_dir

SIGNIFICANT = 0.05  # a difference with a larger p is within the noise of the seeds


class Arm(NamedTuple):
    """An arm of a series."""

    name: str
    runs: Sequence[Outcome]  # one for each seed that the arm has

    def values(self, metric: str) -> list:
        """Return a metric of each run, without its format."""
        for run in self.runs:
            if metric not in run.metrics:
                raise ValueError(f"{run.tag} has no {metric}, its record is of an earlier version: run its stage again")
        found = [run.metrics[metric] for run in self.runs]
        return [value["value"] if isinstance(value, dict) else value for value in found]

    def against(self, other: "Arm", metric: str) -> tuple[float | None, float | None]:
        """Return the difference to another arm in the means of a metric, and p; None where there is none."""
        if self.name == other.name:
            return None, None
        own, others = self.values(metric), other.values(metric)
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


def read_arm(stage: str, tag: str, name: str, seeds: int) -> Arm:
    """Return an arm with those of the seeds 1 to `seeds` that it has; ValueError if it has none."""
    runs = []
    for seed in range(1, seeds + 1):
        path = stage_dir(stage, f"{tag}-{name}-{seed}") / "outcome.json"
        if path.exists():
            runs.append(Outcome.load(path))
    if not runs:
        raise ValueError(f"scripts.{stage} has not finished for {tag}-{name}-1: run it first")
    return Arm(name, runs)


def require_equal(arms: Sequence[Arm], metrics: Sequence[str]) -> None:
    """Raise a ValueError if the runs differ in one of the metrics."""
    for metric in metrics:
        values = sorted({str(run.metrics.get(metric)) for arm in arms for run in arm.runs})
        if len(values) > 1:
            found = f"the runs differ in {metric} ({', '.join(values)}), and cannot be compared"
            raise ValueError(f"{found}: run their stage again, with the same flags")


def comparison_table(title: str, metric: str, arms: Sequence[Arm], other: Arm, costs: Mapping[str, str]) -> Record:
    """Return the table of arms, each compared with another one in a metric. costs: other metrics and their formats."""
    rows = []
    for arm in arms:
        values = arm.values(metric)
        difference, p = arm.against(other, metric)
        row = [
            arm.name,
            statistics.fmean(values),
            statistics.stdev(values) if len(values) > 1 else None,
            difference,
            p,
            None if p is None else "yes" if p > SIGNIFICANT else "no",
        ]
        for name in costs:
            row.append(statistics.fmean(arm.values(name)))
        row.append(len(values))
        rows.append(row)
    columns = [
        "Arm",
        f"{metric}:.4f",
        "±:.4f",
        "Difference:+.4f",
        "p:.2g",
        "Within noise",
        *(f"{name}:{spec}" for name, spec in costs.items()),
        "Seeds",
    ]
    return table_of(title, " | ".join(columns), rows)
