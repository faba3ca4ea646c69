"""Compare two ways to train a recursive model on the same rows of text, seed by seed.

python -m tracks.recursion.pairs --tag=carry --runs=carry --against=together --seeds=3

The runs are NAME-1, NAME-2 and so on of both, on the same text, such as with and without --carry or --curriculum.
"""

import statistics
from typing import TYPE_CHECKING

from nanochat.config import Count, option, options, run_script
from nanochat.errors import UserError
from nanochat.log import Record, table_of
from nanochat.outcome import Outcome
from nanochat.settings import TagSettings
from nanochat.statistics import Interval, Metrics, interval, measured
from tracks.recursion.settings import OWN_FIELDS
from tracks.recursion.shapes import BPB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracks.recursion.study import ArmRun

# Settings in which the two may differ. With --carry the same text takes as many steps more as a model has exits; so it
# does in smaller batches, which may have another weight decay. The rows of text, and their order, have to be the same.
FREE = {*OWN_FIELDS, "num_iterations", "eval_every", "save_every", "total_batch_size"}
COLUMNS = (
    "Runs | Bits per byte:.4f | ± 95 %:.4f | Minus the other:+.4f | ± of it:.4f | Steps:,.0f | Seconds:,.0f | Each seed"
)


@options("pairs")
class Config(TagSettings):
    """Compare the runs NAME-1 to NAME-N with others of the same seeds."""

    tag = option("", "name of the comparison (default: that of --runs)")
    runs: str = option("", "beginning of the tags of the runs, before the seed")
    against: str = option("", "the same of the runs that they are compared with")
    seeds: Count = option(3, "seeds 1 to N", least=1)

    def __post_init__(self) -> None:
        if not self.runs or not self.against:
            raise UserError(
                "name the runs to compare: --runs=carry --against=together for carry-1, together-1 and so on"
            )


def require_pairs(runs: "Sequence[ArmRun]", others: "Sequence[ArmRun]") -> None:
    """Raise a UserError if a run and its other one differ in more than FREE, or seeds in more than their seed."""
    from tracks.recursion.alarms import validated_exits  # torch

    for run in (*runs, *others):
        if "supervision" not in run.manifest["model"]:
            raise UserError(
                f"{run.outcome.tag} is no recursive model, and has one exit: compare runs of recursion.train"
            )
        if not validated_exits(run.records):
            raise UserError(
                f"{run.outcome.tag} has no validation of several exits: train it with --eval-every=0 and"
                " --supervision=2 or more"
            )
    for seed, (run, other) in enumerate(zip(runs, others, strict=True), 1):
        batches = {one.settings.get("total_batch_size") for one in (run, other)}
        free = FREE | ({"weight_decay"} if len(batches) > 1 else set())
        run.require_equal(other, free)
        other.require_equal(run, free)  # one may have settings that the other has not
        run.require_equal(runs[0], {"seed"})
        other.require_equal(others[0], {"seed"})
        if run.settings["seed"] != seed:
            raise UserError(f"{run.outcome.tag} was not trained with --seed={seed}: train it again")


def verdict(difference: Interval) -> str:
    """Return what a difference in bits per byte says, by its 95 % interval over seeds."""
    if difference.half is None:
        return "no verdict: one seed"
    if abs(difference.mean) <= difference.half:
        return "not distinguishable"
    return "better" if difference.mean < 0 else "worse"


def differences(runs: "Sequence[ArmRun]", others: "Sequence[ArmRun]", name: str) -> list[float]:
    """Return how much larger a figure of each run is than that of its other one."""
    return [run.outcome.figure(name) - other.outcome.figure(name) for run, other in zip(runs, others, strict=True)]


def pairs_table(runs: "Sequence[ArmRun]", others: "Sequence[ArmRun]", names: tuple[str, str]) -> Record:
    """Return the table of both sides. names: theirs."""
    rows = []
    for name, side in zip(names, (runs, others), strict=True):
        bits = [run.outcome.figure(BPB) for run in side]
        minus = interval(differences(runs, others, BPB)) if side is runs else (None, None)
        steps = statistics.fmean(run.manifest["loop"]["step"] for run in side)
        seconds = statistics.fmean(run.manifest["loop"]["seconds"] for run in side)
        rows.append([name, *interval(bits), *minus, steps, seconds, " ".join(f"{one:.4f}" for one in bits)])
    return table_of("Two ways to train the exits, over the same seeds and text", COLUMNS, rows)


def exits_table(runs: "Sequence[ArmRun]", others: "Sequence[ArmRun]", names: tuple[str, str]) -> Record:
    """Return the table of the bits per byte at each exit, in the mean over the seeds. names: of both sides."""
    from tracks.recursion.alarms import refinement  # torch

    most = max(len(run.exits) for run in (*runs, *others))
    rows = []
    for name, side in zip(names, (runs, others), strict=True):
        means = [statistics.fmean(bits) for bits in zip(*(run.exits for run in side), strict=True)]
        rows.append([name, *means, *[None] * (most - len(means)), refinement(means)])
    columns = " | ".join(f"Exit {number}:.4f" for number in range(1, most + 1))
    return table_of("Bits per byte at each exit", f"Runs | {columns} | Refinement:.1%", rows)


def figures(runs: "Sequence[ArmRun]", others: "Sequence[ArmRun]") -> Metrics:
    """Return the metrics for the report card, with 95 % intervals over seeds. The verdict is that of the last exit."""
    from tracks.recursion.study import SECONDS  # torch

    found = interval(differences(runs, others, BPB))
    best = interval([min(run.exits) - min(other.exits) for run, other in zip(runs, others, strict=True)])
    return {
        "Verdict": verdict(found),
        "bpb minus the other": measured(*found),
        "bpb of the best exit minus the other's": measured(*best),
        "Seconds minus the other": measured(*interval(differences(runs, others, SECONDS)), spec=".1f"),
    }


def main(config: Config) -> None:
    from tracks.recursion.study import ArmRun

    outcome = Outcome.begin("recursion_pairs", config.tag or config.runs, config)
    names = (config.runs, config.against)
    runs, others = ([ArmRun.read(f"{name}-{seed}") for seed in range(1, config.seeds + 1)] for name in names)
    require_pairs(runs, others)
    outcome.metrics = figures(runs, others)
    outcome.tables = [pairs_table(runs, others, names), exits_table(runs, others, names)]
    outcome.finish()


if __name__ == "__main__":
    run_script(main)
