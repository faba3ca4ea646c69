"""The four criteria of the guide for a second, longer phase: what the first phase has to show."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from nanochat.log import Record
from tracks.recursion.alarms import refinement, validated_exits

LEAST_REFINEMENT = 0.15  # the guide expects 15 to 25 % of the preset aggressive
NORMS = (0.5, 1.5)  # of the gradient, in the median over steps
PARTS = 5  # of the run, from each of which to the next the loss has to fall


@dataclass(frozen=True)
class Criterion:
    """Whether a run meets a criterion, and what it has shown."""

    name: str
    is_met: bool
    shown: str


def criteria(records: Sequence[Record]) -> list[Criterion]:
    """Return the criteria for what a finished run has logged."""
    exits = validated_exits(records)
    steps = [record for record in records if "train/grad_norm" in record]
    if not exits or len(steps) < PARTS:
        return [Criterion("validations and steps", False, f"{len(exits)} validations and {len(steps)} steps")]
    last = exits[-1]
    fall = refinement(last)
    norms = [record["train/grad_norm"] for record in steps]
    median = statistics.median(norms)
    size = len(steps) // PARTS
    means = [statistics.fmean(record["train/loss"] for record in steps[i * size :][:size]) for i in range(PARTS)]
    return [
        Criterion(
            "each exit better than the one before",
            all(later < earlier for earlier, later in pairwise(last)),
            " > ".join(f"{bpb:.4f}" for bpb in last) + " bits per byte",
        ),
        Criterion(f"refinement of {LEAST_REFINEMENT:.0%} or more", fall >= LEAST_REFINEMENT, f"{fall:.1%}"),
        Criterion(
            f"gradient norm from {NORMS[0]} to {NORMS[1]}",
            NORMS[0] <= median <= NORMS[1],
            f"{median:.2f} in the median, {max(norms):.2f} at most",
        ),
        Criterion(
            "a loss that falls in each fifth of the run",
            all(later < earlier for earlier, later in pairwise(means)),
            ", ".join(f"{mean:.4f}" for mean in means),
        ),
    ]
