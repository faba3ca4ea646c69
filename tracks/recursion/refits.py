"""Refits of R's exits, kept by seed, so that a comparison that was stopped goes on; and the time that they take.

They do not lie in the comparison's folder, which is archived when another seed or arm is added: a refit is valid as
long as its run and its settings are the same.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from nanochat.log import Record, print0
from nanochat.paths import newest_manifest, read_json, stage_dir, write_json
from nanochat.statistics import Estimate
from tracks.recursion.depth import DepthResult

# What the committed card (card.md) took, where no refit has been measured yet: 25 minutes for 3,000 steps of both
# heads, with their validations, where a training step of R took 0.61 seconds.
CARD_STEPS = 1000  # of each head: 900, 1,000 and 1,100
CARD_SHARE = 0.82  # of a training step of R, for a step of both heads


@dataclass(frozen=True)
class Refit:
    """What was found for R of a seed: its first and last exit with heads of their own, and its number of exits."""

    first: float  # bits per byte
    last: float
    steps: int  # that each of the heads was trained
    depth: DepthResult | None  # None: no text was left for it
    seconds: float  # of all that


def refit_file(tag: str, seed: int) -> Path:
    """Return the file of a seed's refit, in a series of this tag."""
    return stage_dir("recursion_refit", tag) / f"refit-{seed}.json"


def save_refit(path: Path, basis: Record, found: Refit) -> None:
    """Write a refit with what it follows from."""
    write_json(path, {"basis": basis, "found": asdict(found)})


def saved_refit(path: Path, basis: Record) -> Refit | None:
    """Return the refit in a file; None without one, or if it follows from another run or other settings."""
    saved = read_json(path) if path.exists() else {}
    if not saved:
        return None
    if saved["basis"] != basis:
        names = (name for name in basis if saved["basis"].get(name) != basis[name])
        print0(f"refit: the one in {path.name} is not of this comparison, it differs in {', '.join(names)}")
        return None
    found = saved["found"]
    return Refit(**found | {"depth": depth_of_record(found["depth"])})


def depth_of_record(saved: Record | None) -> DepthResult | None:
    """Return the test-time depth that `asdict` has made a record of."""
    if saved is None:
        return None
    return DepthResult(
        validation=[Estimate(*one) for one in saved["validation"]],
        trained=saved["trained"],
        chosen=saved["chosen"],
        test_trained=Estimate(*saved["test_trained"]),
        test_chosen=Estimate(*saved["test_chosen"]),
        gain=Estimate(*saved["gain"]),
    )


# ---- their time ----


def measured_seconds(tag: str, seeds: int, settings: Record) -> list[float]:
    """Return the seconds of the refits that a series has made, of the seeds whose R has these settings."""
    found = []
    for seed in range(1, seeds + 1):
        path = refit_file(tag, seed)
        run = stage_dir("base_train", f"{tag}-R-{seed}")
        if path.exists() and (run / "outcome.json").exists():
            saved = read_json(path)
            manifest = newest_manifest(run)
            is_of_run = saved["basis"]["checkpoint"] == manifest["sha256"]
            if is_of_run and settings.items() <= manifest["config"].items():
                found.append(saved["found"]["seconds"])
    return found


def refit_time(measured: Sequence[float], training: float | None, steps: int) -> tuple[float | None, str]:
    """Return the seconds of a seed's refits, None if nothing is known, and where they come from, as a sentence.

    measured: seconds of seeds that have theirs. training: seconds of R's training, with all its exits; steps: of it.
    """
    if measured:
        return fmean(measured), f"Their seconds are the mean of {len(measured)} that this series has made."
    seconds = None if training is None else CARD_STEPS * CARD_SHARE * training / steps
    return seconds, (
        "They end when validation stops falling, so there is no most: assumed are"
        f" {CARD_STEPS:,} steps of each head, and {CARD_SHARE:g} of R's training step for one of both, as in card.md."
    )
