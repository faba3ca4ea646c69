"""Differences between arms on the same documents and seeds, and what they show: pure functions.

A run's bits are an array over documents. Two runs of a seed are compared document by document, and then over seeds:
the error has a part from the documents, and a part from the runs, each of which would come out a little different
if it were trained again. The second part is pooled over the arms (`noise_of_runs`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from nanochat.evals.bpb import ratio
from nanochat.statistics import holm

LEVEL = 0.05  # of an error of the first kind over the whole table, two-sided
LOOKS = 2  # at the table: after one seed of each arm, and after all of them
RULE = (
    "Gain: bits per byte of what the arm has instead, minus those of the baseline, the seed's row; above 0 the seed is "
    "right. ±: "
    "standard error, from the documents (paired within a seed) and from the runs (what neither arm nor seed explains). "
    f"A gain or a loss is shown if p, corrected for the arms (Holm) and for {LOOKS} looks at the table, is at most "
    f"{LEVEL}, on the selection text. At the interim look one seed rejects a claim if it shows a loss: that arm gets "
    "no further seeds, and all others do. The reporting text was opened once, after all verdicts."
)

Runs = Mapping[int, np.ndarray]  # seed -> bits of each document


@dataclass(frozen=True)
class Difference:
    """The bits per byte of an arm minus those of the row."""

    gain: float
    error: float  # standard error; without the part of the runs where no arm has two seeds
    seeds: int
    p: float  # two-sided, for a true gain of 0; 1 where no arm has two seeds, since nothing can be shown then
    needed: float | None  # the smallest measured gain that p would show, were it the first of the table
    adjusted: float = 1.0  # p, corrected for all arms and looks

    @property
    def verdict(self) -> str:
        if self.adjusted <= LEVEL:
            return "gains" if self.gain > 0 else "loses"
        if self.needed is None:
            return "not distinguishable (one seed)"
        return f"not distinguishable (smallest difference that would show: {self.needed:.4f})"


def bits_per_byte(bits: np.ndarray, sizes: np.ndarray) -> float:
    """Return the bits per byte of a text. sizes: bytes of each document."""
    return float(bits.sum() / sizes.sum())


def noise_of_runs(row: Runs, arms: Sequence[Runs], sizes: np.ndarray) -> tuple[float, int]:
    """Return the variance of a run's score that neither arm nor seed explains, and its degrees of freedom.

    That is the residual of a two-way table of the arms that have all seeds of the row. If no other arm has them yet, it
    is the variance of the row's own runs, which is larger: it has in it what a seed does to all arms alike. Zeros for
    one seed.
    """
    seeds = sorted(row)
    if len(seeds) < 2:
        return 0.0, 0
    whole = [row, *(runs for runs in arms if runs.keys() >= row.keys())]
    table = np.array([[bits_per_byte(runs[seed], sizes) for seed in seeds] for runs in whole])
    rest = table - table.mean(axis=1, keepdims=True)
    freedom = len(seeds) - 1
    if len(whole) > 1:
        rest -= rest.mean(axis=0)
        freedom *= len(whole) - 1
    return float((rest**2).sum() / freedom), freedom


def difference(row: Runs, arm: Runs, sizes: np.ndarray, noise: tuple[float, int], tests: int) -> Difference:
    """Return the difference of an arm from the row, over the seeds that both have.

    noise: variance of the mean gain over the runs, and its degrees of freedom. tests: differences in the table. p is
    the mean of those with the degrees of freedom of documents and runs, weighted by their variances (Cochran), as in
    the lab: Satterthwaite's formula trusts a variance of few seeds too much.
    """
    from scipy.optimize import brentq
    from scipy.special import stdtr, stdtrit  # Student's t

    seeds = sorted(row.keys() & arm.keys())
    bits = np.mean([arm[seed] - row[seed] for seed in seeds], axis=0)
    gain, text_error = ratio(torch.from_numpy(np.stack([bits, sizes], axis=1)))
    variance, freedom = noise
    sources = np.array([text_error**2, variance])
    error = math.sqrt(sources.sum())
    if not freedom or not error:
        return Difference(gain, error, len(seeds), 1.0, None)
    weights = sources / sources.sum()
    degrees = np.array([len(sizes) - 1, freedom])

    def chance(ratio_to_error: float) -> float:
        return float(weights @ (2 * stdtr(degrees, -ratio_to_error)))

    # A mean of critical values would not be the value at which this mean of tails is at the level.
    level = LEVEL / tests / LOOKS
    largest = 1.01 * float(stdtrit(degrees, 1 - level / 2).max())
    needed = error * brentq(lambda ratio_to_error: chance(ratio_to_error) - level, 0, largest)
    return Difference(gain, error, len(seeds), chance(abs(gain) / error), needed)


def compare(
    row: Runs, trained: Mapping[str, Runs], rescored: Mapping[str, Runs], sizes: np.ndarray
) -> dict[str, Difference]:
    """Return the difference of each arm from the row, with p corrected for their number.

    trained: arms with runs of their own. rescored: the row's runs, scored in another way; the variance of such a gain
    is that over its own seeds.
    """
    tests = len(trained) + len(rescored)
    noise, freedom = noise_of_runs(row, list(trained.values()), sizes)
    found = {}
    for name, runs in trained.items():
        # A gain is the difference of two runs, for each of the seeds.
        of_gain = 2 * noise / len(row.keys() & runs.keys()), freedom
        found[name] = difference(row, runs, sizes, of_gain, tests)
    for name, runs in rescored.items():
        gains = [bits_per_byte(runs[seed] - row[seed], sizes) for seed in sorted(row)]
        of_gain = (float(np.var(gains, ddof=1)) / len(gains), len(gains) - 1) if len(gains) > 1 else (0.0, 0)
        found[name] = difference(row, runs, sizes, of_gain, tests)
    adjusted = holm([one.p for one in found.values()], LOOKS)
    return {name: replace(one, adjusted=p) for (name, one), p in zip(found.items(), adjusted, strict=True)}


def first_look(row: Runs, trained: Mapping[str, Runs], sizes: np.ndarray) -> dict[str, Difference]:
    """Return the differences after one seed of each arm, beside the noise of the row's own runs."""
    return compare(row, {name: {min(runs): runs[min(runs)]} for name, runs in trained.items()}, {}, sizes)


def rejected(first: Mapping[str, Difference]) -> list[str]:
    """Return the arms whose claim one seed rejects."""
    return [name for name, one in first.items() if one.verdict == "loses"]


def verdicts(
    row: Runs, trained: Mapping[str, Runs], rescored: Mapping[str, Runs], sizes: np.ndarray
) -> dict[str, Difference]:
    """Return the differences by which the verdicts are made: those of the first look where it has rejected a claim."""
    first = first_look(row, trained, sizes)
    return compare(row, trained, rescored, sizes) | {name: first[name] for name in rejected(first)}
