"""Whether a candidate is better than an incumbent: the statistics of a trial, and of a series of trials.

A pair trains both with one seed; its gain is the incumbent's bits per byte minus the candidate's. A trial has two parts
with seeds of their own. The first is a filter: it stops what does not look better at SCREEN. What passes is confirmed
on seeds that nothing was chosen by, and that part alone decides: trial number k of a series may keep a change without
effect with a chance of `share(k)`, and the shares of all trials that there will ever be add up to ERROR. A second depth
then says how far the verdict reaches.

The filter knows the spread of a gain from the noise floor, runs of the incumbent that differ in their seed alone. The
confirmation has the spread of its own runs within each side, so it owes nothing to what was seen before, nor to whether
both sides spread alike (Welch's test). Both have a second test, at the spread of the pairs' differences: it is smaller
where a seed helps or harms both sides alike, but has fewer degrees of freedom. The smaller p counts twice. Many pairs
have the spread of their differences alone.

Without a confirmation the first part decides alone, and the floor says nothing of a candidate whose runs spread more.
So it has the spread of its own runs; where they are too few to show one, the candidate's is taken to be WIDER times the
incumbent's.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

ERROR = 0.05  # chance that a series ever keeps a change without effect
FIRST_TRIALS = 32  # have equal shares of half of it
SCREEN = 0.15  # level of the first part, which is a filter
WORSE = 0.05  # level at which a candidate is called worse, or too little better; the second depth's as well
PAIRED = 16  # from so many pairs on, a gain has the spread of their differences
OWN = 6  # so many pairs know the spread of their own runs, and have both tests
WIDER = 2.0  # times the spread of the incumbent's runs, which fewer are taken to have
ODD = 0.01  # few pairs whose spread is this unlikely, for the noise floor, are no pairs of it
POWER = 0.9  # a difference "shows" if it is kept with this chance
MOST_PAIRS = 256  # that an answer advises
SHARES = 32  # of the squares of two sides, over which a power is a mean
UNEQUAL = 0.001  # level at which pairs have to refute equal work, each time that one more is there
SLOWER = (1.1, 1.5)  # times the incumbent's time: below the first the work is equal, above the second never


class Noise(NamedTuple):
    """The spread of bits per byte over seeds, of one side alone."""

    sd: float
    freedom: int  # runs - 1


def noise_of(scores: Sequence[float]) -> Noise:
    """Return the spread of runs that differ in their seed alone."""
    mean = sum(scores) / len(scores)
    return Noise(math.sqrt(sum((score - mean) ** 2 for score in scores) / (len(scores) - 1)), len(scores) - 1)


class Gain(NamedTuple):
    """The mean gain of some pairs, in bits per byte: above 0 the candidate is better."""

    mean: float
    stderr: float
    freedom: float
    pairs: int
    tests: int = 1  # of which this is the one with the smaller p: p counts so many times

    def p_better(self) -> float:
        """Return the chance of such a gain, or a larger one, without an effect."""
        if not self.stderr:
            return 1.0  # without any spread nothing is known of chance
        from scipy import stats

        return min(1.0, self.tests * float(stats.t.sf(self.mean / self.stderr, self.freedom)))

    def p_worse(self) -> float:
        return self._replace(mean=-self.mean).p_better()

    def half(self, level: float = WORSE) -> float:
        """Return half the width of the interval that has the true gain with 1 - level."""
        from scipy import stats

        return float(stats.t.ppf(1 - level / 2 / self.tests, self.freedom)) * self.stderr

    def upper(self, level: float = WORSE) -> float:
        """Return the largest gain that is not refuted, one-sided."""
        from scipy import stats

        return self.mean + float(stats.t.ppf(1 - level / self.tests, self.freedom)) * self.stderr


Pair = tuple[float, float]  # bits per byte of the incumbent and of the candidate


def gain_of(pairs: Sequence[Pair], noise: Noise | None = None) -> Gain:
    """Return the mean gain of some pairs with its error. noise: the floor, for few pairs; None: their own runs."""
    from scipy import stats

    count = len(pairs)
    gains = [one - other for one, other in pairs]
    mean = sum(gains) / count
    own = count - 1
    if count >= PAIRED:
        return of_differences(gains)
    if noise is None and count == 1:
        return Gain(mean, math.inf, 1, count)
    if noise is None:
        one, other = (_squares(side) for side in zip(*pairs, strict=True))  # within each side
        of_sides = Gain(mean, math.sqrt((one + other) / own / count), welch_freedom(one, other, own), count)
        return of_sides if count < OWN else _smaller(of_sides, of_differences(gains))
    pair = 2 * noise.sd**2  # variance of the gain of one pair, if the seeds say nothing about both
    differences = _squares(gains)
    if own and pair and stats.f.sf(differences / own / pair, own, noise.freedom) < ODD:
        return of_differences(gains)
    freedom = noise.freedom + own
    return Gain(mean, math.sqrt((noise.freedom * pair + differences) / freedom / count), freedom, count)


def screened(pairs: Sequence[Pair], noise: Noise) -> Gain:
    """Return the gain of some pairs as the filter sees it: by the noise floor, or by their differences."""
    of_floor = gain_of(pairs, noise)
    if not 1 < len(pairs) < PAIRED:
        return of_floor
    return _smaller(of_floor, of_differences([one - other for one, other in pairs]))


def of_differences(gains: Sequence[float]) -> Gain:
    """Return the mean of two gains or more with the error that their spread gives it."""
    own = len(gains) - 1
    return Gain(sum(gains) / len(gains), math.sqrt(_squares(gains) / own / len(gains)), own, len(gains))


def _smaller(one: Gain, other: Gain) -> Gain:
    """Return the one of two tests with the smaller p, which counts twice."""
    return min(one, other, key=lambda gain: min(gain.p_better(), gain.p_worse()))._replace(tests=2)


def welch_freedom(one: float, other: float, own: int) -> float:
    """Return the degrees of freedom of a gain's error (Welch, Satterthwaite).

    From `own`, those of a side, if one side spreads alone, to twice that if both spread alike. one, other: sums of
    squares within each side.
    """
    if not one + other:
        return 2 * own
    return own * (one + other) ** 2 / (one**2 + other**2)


def known_noise(noise: Noise, plan: "Plan") -> Noise | None:
    """Return the noise that the first part is judged by, for `gain_of`. noise: the floor."""
    if plan.confirming:
        return noise
    if plan.pairs >= OWN:
        return None
    return noise._replace(sd=noise.sd * math.sqrt((1 + WIDER**2) / 2))  # of both sides together


def _squares(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)


def slower(floor: Sequence[float], pairs: int) -> float:
    """Return how many times the incumbent's time a candidate may take, in the geometric mean of some pairs.

    floor: times of the noise floor, whose runs have the same work or the same seconds: their spread is chance.
    """
    from scipy import stats

    noise = noise_of(list(map(math.log, floor)))
    chance = float(stats.t.ppf(1 - UNEQUAL, noise.freedom)) * noise.sd * math.sqrt(2 / pairs)
    least, most = map(math.log, SLOWER)
    return math.exp(min(max(chance, least), most))


def longer(incumbent: Sequence[float], candidate: Sequence[float], floor: Sequence[float]) -> float:
    """Return how many times the incumbent's time a candidate takes, if that is more than chance explains; else 0.0.

    Both are of the same pairs. floor: as in `slower`; empty if both sides were not trained in turns.
    """
    times = statistics.median(candidate) / statistics.median(incumbent)
    if times > SLOWER[1]:
        return times
    times = statistics.geometric_mean(candidate) / statistics.geometric_mean(incumbent)
    return times if floor and times > slower(floor, len(incumbent)) else 0.0


def share(number: int) -> float:
    """Return what the trial of this number, from 1 on, may spend: the first 32 have half of ERROR, 64 a quarter …"""
    block = 0
    while number > FIRST_TRIALS * (2 ** (block + 1) - 1):
        block += 1
    return ERROR / (2 ** (block + 1) * FIRST_TRIALS * 2**block)


# ---- what a number of pairs can show ----


def power(gain: float, noise: Noise, plan: "Plan", number: int) -> float:
    """Return the chance that a trial keeps a true gain. noise: the floor, and the true spread of both sides."""
    known = known_noise(noise, plan)
    if not plan.confirming:
        return _passes(gain, noise, plan.pairs, share(number), known)
    # Where a seed says nothing about both sides, the floor's test is the stronger one of two.
    first = _passes(gain, noise, plan.pairs, SCREEN / 2 if 1 < plan.pairs < PAIRED else SCREEN, known)
    return first * _passes(gain, noise, plan.confirming, share(number), None)


def _passes(gain: float, noise: Noise, pairs: int, level: float, known: Noise | None) -> float:
    """Return the chance that pairs reach a level by the test of `gain_of(pairs, known)`."""
    import numpy as np
    from scipy import stats

    stderr = math.sqrt(2 * noise.sd**2 / pairs)
    if not stderr:
        return float(gain > 0)
    own = pairs - 1
    shift = gain / stderr
    if pairs >= PAIRED:
        return float(stats.nct.sf(stats.t.ppf(1 - level, own), own, shift))
    if known is None:
        # Where a seed says nothing about both sides, Welch's test is the stronger one, and has half of the level. Sides
        # with equal spreads: how much of the squares is each side's owes nothing to their sum, so the level is a mean
        # over equally likely shares.
        freedom = [welch_freedom(one, 1.0, own) for one in stats.f.ppf((np.arange(SHARES) + 0.5) / SHARES, own, own)]
        return float(stats.nct.sf(stats.t.ppf(1 - level / 2, freedom), 2 * own, shift).mean())
    freedom = known.freedom + own
    # The part of the error that is the floor's may be taken to be wider than it is.
    wider = (known.sd / noise.sd) ** 2
    least = float(stats.t.ppf(1 - level, freedom)) * math.sqrt((known.freedom * wider + own) / freedom)
    return float(stats.nct.sf(least, freedom, shift))


def smallest(noise: Noise, plan: "Plan", number: int) -> float:
    """Return the smallest true gain that a trial keeps with POWER."""
    low, high = 0.0, max(noise.sd, 1e-9)
    while power(high, noise, plan, number) < POWER and high < 1e6 * noise.sd:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        if power(middle, noise, plan, number) < POWER:
            low = middle
        else:
            high = middle
    return high


def pairs_for(gain: float, noise: Noise, plan: "Plan", number: int) -> int | None:
    """Return how many pairs of the first part, more than now, keep a true gain with POWER; None for over MOST_PAIRS."""
    low, high = plan.pairs + 1, MOST_PAIRS
    if low > high or power(gain, noise, plan.with_pairs(high), number) < POWER:
        return None
    while low < high:
        middle = (low + high) // 2
        if power(gain, noise, plan.with_pairs(middle), number) >= POWER:
            high = middle
        else:
            low = middle + 1
    return high


def confirming_pairs(pairs: int) -> int:
    """Return how many pairs confirm what so many have found: the level is lower, so it takes more."""
    return max(3 * pairs, 6)


# ---- a trial ----


class NoPairs(Exception):
    """A part has no pairs, as the candidate fails there; the words say why."""


class Part(Enum):
    """What pairs are for. Each part has seeds of its own."""

    SCREEN = "screen"
    BESIDE = "beside"  # the first part of a series by the clock: its incumbents are trained beside the candidates
    CONFIRM = "confirm"
    DEPTH = "depth"
    AGAIN = "again"  # the incumbent alone, for its processor time: nothing is decided by its scores


class Answer(Enum):
    """As the ledger and programs have it; answers.ANSWERS has the words for people."""

    KEEP = "keep"
    DISCARD = "discard"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Plan:
    """How many pairs a trial has."""

    pairs: int
    confirming: int  # 0: nothing is confirmed, and the first part has the whole level
    deeper: int  # at the second depth; 0: it is not asked
    least: float  # gains below this, in bits per byte, are not worth a line of code

    @property
    def runs(self) -> int:
        """Return the runs of a trial that comes to its end, beside the noise floor."""
        return 2 * (self.pairs + self.confirming + self.deeper)

    def with_pairs(self, pairs: int) -> "Plan":
        """Return the plan of the same question with other pairs."""
        confirming = confirming_pairs(pairs) if self.confirming else 0
        return Plan(pairs, confirming, pairs if self.deeper else 0, self.least)


@dataclass(frozen=True)
class Verdict:
    """What a trial has found. gain: of the part that decided."""

    answer: Answer
    reason: str  # of "undecided" what came before the words about more pairs; may be empty
    gain: Gain
    p: float
    level: float  # that p had to reach to go on, or to be kept
    part: str  # that decided: "filter", "confirmation", or "first" if nothing is confirmed
    holds: str = ""  # where, for "keep"
    aim: float = 0.0  # for "not distinguishable yet": the gain that more pairs could show
    second: Gain | None = None  # at the second depth
    failed: str = ""  # why there is none


def decide(
    plan: Plan,
    number: int,
    noise: Noise,
    draw: Callable[[Part, int], Sequence[Pair]],
    depths: tuple[int, int],
) -> Verdict:
    """Return the verdict of a series' trial of this number.

    noise: the noise floor. draw: trains so many pairs of a part, and returns their scores; NoPairs at the second depth
    does not undo what was confirmed. depths: of the trial, and the second one.
    """
    here, second_depth = depths
    part, level = ("filter", SCREEN) if plan.confirming else ("first", share(number))
    pairs = draw(Part.SCREEN, plan.pairs)
    if all(one == other for one, other in pairs):
        none = Gain(0.0, 0.0, max(noise.freedom, 1), len(pairs))
        return Verdict(Answer.DISCARD, "every pair has equal figures, to the last bit", none, 1.0, level, part)
    found = screened(pairs, noise) if plan.confirming else gain_of(pairs, known_noise(noise, plan))
    p = found.p_better()
    if not p <= level or found.upper() < plan.least:  # also for a figure that is no number
        return _not_kept(found, level, part, plan)
    if not plan.confirming:
        return Verdict(Answer.KEEP, "on seeds that it was found by", found, p, level, part, "not confirmed")
    confirmed = gain_of(draw(Part.CONFIRM, plan.confirming))
    part, level = "confirmation", share(number)
    p = confirmed.p_better()
    if not p <= level or confirmed.upper() < plan.least:
        return _not_kept(confirmed, level, part, plan, "not confirmed on other seeds; ")
    keep = Verdict(Answer.KEEP, "confirmed on other seeds", confirmed, p, level, part, f"at depth {here} only")
    if not plan.deeper:
        return keep
    try:
        second = gain_of(draw(Part.DEPTH, plan.deeper))
    except NoPairs as reason:
        holds = f"{keep.holds}: at depth {second_depth} {reason}"
        return dataclasses.replace(keep, holds=holds, failed=str(reason))
    if second.p_better() <= WORSE:
        holds = f"at depths {here} and {second_depth}"
    elif second.p_worse() <= WORSE:
        holds = f"{keep.holds}, and it is worse at depth {second_depth}"
    else:
        holds = f"{keep.holds}, as far as depth {second_depth} can show"
    return dataclasses.replace(keep, holds=holds, second=second)


def _not_kept(found: Gain, level: float, part: str, plan: Plan, before: str = "") -> Verdict:
    """Return "discard" if the candidate is worse, or surely not better by what matters."""
    p = found.p_better()
    if not math.isfinite(found.mean):
        return Verdict(Answer.DISCARD, f"{before}a figure is no number", found, 1.0, level, part)
    if found.p_worse() <= WORSE:
        return Verdict(Answer.DISCARD, f"{before}it is worse", found, p, level, part)
    if found.upper() < plan.least:
        return Verdict(Answer.DISCARD, f"{before}a gain of {plan.least:g} is refuted", found, p, level, part)
    return Verdict(Answer.UNDECIDED, before, found, p, level, part, aim=max(found.mean, plan.least))
