"""The published figures of a scale, and whether other runs still get them.

`bench/golden.json` has them: of every run its figures, and what the runs were. New runs are judged by their mean. A
figure's interval is where the mean of so many new runs of the same code lies, given the spread of the published ones (a
prediction interval, by Student's t). The intervals of all figures together hold with 95 % (Bonferroni), so runs that
are right fail once in 20 times at most, however the figures depend on each other.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from nanochat.config import flag_of
from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.outcome import Outcome
from nanochat.paths import read_json, stage_dir
from nanochat.stages import MEANS, SHOWN, STAGES

CHANCE = 0.05  # that runs of the same code have any figure outside its interval
FEWEST = 3  # published runs: two say too little about their spread
# Flags without which a run is another experiment: how long it is, and what it is asked. Others are the recipe's.
CONDITIONS = (
    "depth",
    "num_iterations",
    "num_epochs",
    "target_supervised_tokens",
    "target_seconds",
    "target_flops",
    "target_param_data_ratio",
    "eval_bytes",
    "eval_tokens",
    "tasks",
    "max_per_task",
    "max_problems",
    "max_new_tokens",
    "temperature",
    "repeats",
    "quant",
)
BY_STAGE = {stage.name: stage for stage in STAGES}

Key = tuple[str, str]  # stage and name of a figure


@dataclass(frozen=True)
class Run:
    """A finished run."""

    name: str
    seed: int
    text: str  # hash of the validation text
    data: str  # the text in words
    precision: str
    conditions: Mapping[str, Record]  # stage -> flag -> value
    figures: Mapping[Key, float]
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Record = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """The published figures of a scale."""

    commit: str
    date: str
    text: str
    data: str
    precision: str
    machine: Record
    versions: Mapping[str, str]
    conditions: Mapping[str, Record]
    seeds: Sequence[int]
    figures: Mapping[Key, Sequence[float]]  # a value for each seed

    def record(self) -> Record:
        """Return what the file has. Mean and deviation are there for readers: they follow from the values."""
        rows = [
            {
                "stage": stage,
                "figure": name,
                "mean": statistics.fmean(values),
                "deviation": statistics.stdev(values),
                "values": list(values),
            }
            for (stage, name), values in self.figures.items()
        ]
        return {**vars(self), "figures": rows}


@dataclass(frozen=True)
class Judged:
    """What became of a figure."""

    key: Key
    published: float  # mean
    half: float  # of the interval; 0: the published runs do not differ
    here: float  # mean

    @property
    def difference(self) -> float:
        return self.here - self.published

    @property
    def is_judged(self) -> bool:
        """Return False where the published runs do not differ and these do: by how much they may is not known."""
        return self.half > 0 or not math.isfinite(self.here) or self.difference == 0

    @property
    def answer(self) -> str:
        """Return "published", "worse", "better" or "not judged"."""
        if not self.is_judged:
            return "not judged"
        if abs(self.difference) <= self.half:  # False for what is no number
            return "published"
        is_better = (self.difference < 0) == less_is_better(self.key[1])
        return "better" if is_better and math.isfinite(self.here) else "worse"

    @property
    def words(self) -> str:
        """Return the answer for people."""
        if self.answer == "published":
            return "as published"
        if self.answer == "not judged":
            return "not judged: the published runs do not differ"
        return f"{self.answer} by {abs(self.difference):.4f}" if math.isfinite(self.here) else "worse: it is no number"


def less_is_better(name: str) -> bool:
    return name.endswith((" bpb", " loss"))


# ---- the interval ----


@lru_cache
def quantile(figures: int, freedom: int) -> float:
    """Return the quantile of Student's t for one of so many figures, two-sided."""
    from scipy import stats

    return float(stats.t.ppf(1 - CHANCE / figures / 2, freedom))


def half_width(values: Sequence[float], runs: int, figures: int) -> float:
    """Return half of a figure's interval for the mean of so many new runs. values: the published ones."""
    count = len(values)
    return quantile(figures, count - 1) * statistics.stdev(values) * math.sqrt(1 / count + 1 / runs)


def judge(published: Mapping[Key, Sequence[float]], runs: Sequence[Mapping[Key, float]]) -> list[Judged]:
    """Compare the mean of some runs with the published ones, figure by figure."""
    # A figure that is the same in all published runs has no interval, and takes nothing from the others.
    figures = max(1, sum(len(set(values)) > 1 for values in published.values()))
    return [
        Judged(
            key,
            statistics.fmean(values),
            half_width(values, len(runs), figures) if len(set(values)) > 1 else 0.0,
            statistics.fmean(run[key] for run in runs),
        )
        for key, values in published.items()
    ]


def overall(judged: Collection[Judged]) -> str:
    """Return the answer over all figures: a figure that is worse counts more than one that is better."""
    found = {one.answer for one in judged}
    return next((answer for answer in ("worse", "better") if answer in found), "published")


# ---- the file ----


def read_file(path: Path) -> Record:
    """Return what a file of published figures has, by scale; nothing without the file."""
    try:
        found = read_json(path) if path.exists() else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path} is no file of published figures: move it away, or name another one")
    return found


def load(path: Path, scale: str) -> Published:
    """Return the published figures of a scale; a UserError if there are none."""
    found = read_file(path).get(scale)
    if found is None:
        raise UserError(
            f"the scale {scale} has no published figures yet: python -m bench.golden --scale={scale} --write measures"
            " them"
        )
    try:
        figures = {(row["stage"], row["figure"]): row["values"] for row in found["figures"]}
        fields: dict[str, Any] = found | {"figures": figures}
        published = Published(**fields)
        if min(map(len, figures.values())) < FEWEST:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{path}: the figures of the scale {scale} are not of this version: measure them again"
        ) from None
    return published


def publish(runs: Sequence[Run], commit: str, date: str) -> Published:
    """Return what is to be published of some runs with different seeds; a UserError if they are not alike."""
    first = runs[0]
    for run in runs[1:]:
        if (run.figures.keys(), run.text, run.precision) != (first.figures.keys(), first.text, first.precision):
            raise UserError(f"the runs {first.name} and {run.name} differ in more than their seed")
    return Published(
        commit=commit,
        date=date,
        text=first.text,
        data=first.data,
        precision=first.precision,
        machine=first.machine,
        versions=first.versions,
        conditions=first.conditions,
        seeds=[run.seed for run in runs],
        figures={key: [run.figures[key] for run in runs] for key in first.figures},
    )


# ---- runs ----


def figure_names(stage: str) -> list[str]:
    """Return the figures of a stage that are judged: losses, bits per byte, and means over tasks.

    Single tasks are left out: of few questions chance decides much, and each figure more widens all intervals.
    """
    return [name for name in BY_STAGE[stage].headline if name in MEANS or name not in SHOWN]


def read_run(tag: str, stages: Collection[str] | None = None) -> Run:
    """Return the run `tag` below the base folder; a UserError unless all of these stages have finished.

    stages: None for those that have left a record.
    """
    outcomes: dict[str, Outcome] = {}
    if stages is None:
        stages = [stage for stage in BY_STAGE if (stage_dir(stage, tag) / "outcome.json").exists()]
    for stage in [name for name in BY_STAGE if name in stages]:  # parents first
        path = stage_dir(stage, tag) / "outcome.json"
        if not path.exists():
            raise UserError(f"the run {tag} has not finished: there is no {path}")
        outcome = outcomes[stage] = Outcome.load(path)
        parent = outcomes.get(BY_STAGE[stage].parent or "")
        if parent and datetime.fromisoformat(parent.timestamp) > datetime.fromisoformat(outcome.started):
            raise UserError(f"the run {tag} has not finished: its {stage} is older than its {parent.stage}")
        if "Ended early" in outcome.metrics:
            raise UserError(f"the run {tag} ended early in {stage}: {outcome.metrics['Ended early']}")
    base = outcomes["base_train"]
    return Run(
        name=tag,
        seed=base.config["seed"],
        text=base.figure("Validation text"),
        data=base.figure("Data"),
        precision=base.figure("Precision"),
        conditions={
            stage: {name: outcome.config[name] for name in CONDITIONS if name in outcome.config}
            for stage, outcome in outcomes.items()
        },
        figures={
            (stage, name): outcome.figure(name)
            for stage, outcome in outcomes.items()
            for name in figure_names(stage)
            if isinstance(outcome.metrics.get(name), dict)  # else text: n/a
        },
        versions=base.environment["Software"] | base.versions,
        machine=base.environment["Hardware"],
    )


def check_run(published: Published, run: Run) -> None:
    """Raise a UserError for a run that cannot be compared: of another length, other questions or other text."""
    for stage, flags in published.conditions.items():
        for name, value in flags.items():
            own: Any = run.conditions[stage].get(name, value)  # an option that this code does not have
            if own != value:
                raise UserError(
                    f"the run {run.name} is of another kind: {stage} had {flag_of(name)}={own}, and"
                    f" {flag_of(name)}={value} in the published runs"
                )
    if run.text != published.text:
        raise UserError(
            f"the run {run.name} has other validation text: {run.text} of {run.data}, not {published.text} of"
            f" {published.data}"
        )
    for stage, name in published.figures.keys() - run.figures.keys():
        raise UserError(f"the run {run.name} has no {name} in {stage}: files of its tasks may have been missing")


def check_seeds(runs: Sequence[Run]) -> None:
    """Raise a UserError for two runs with one seed: they say no more than one of them."""
    seen: dict[int, str] = {}
    for run in runs:
        if run.seed in seen:
            raise UserError(
                f"the runs {seen[run.seed]} and {run.name} have the same --seed={run.seed}: name one of them"
            )
        seen[run.seed] = run.name


def equal_runs(published: Published, runs: Sequence[Run]) -> int:
    """Return how many runs have every figure of the published run with their seed, to the last digit."""
    values = {
        seed: {key: own[number] for key, own in published.figures.items()}
        for number, seed in enumerate(published.seeds)
    }
    return sum(
        run.seed in values and all(run.figures[key] == value for key, value in values[run.seed].items()) for run in runs
    )
