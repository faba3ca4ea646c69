"""Whether a candidate is better than an incumbent: the statistics of a trial, and of a series of trials.

A pair trains both with one seed; its gain is the incumbent's bits per byte minus the candidate's. A trial has two parts
with seeds of their own. The first finds candidates that may be better, at SCREEN. Only those are confirmed, on seeds
that nothing was chosen by, at the level that is left: trial number k of a series may keep a change without effect with
a chance of `share(k)`, and the shares of all trials that there will ever be add up to ERROR. As the parts are
independent, the levels multiply. A second depth then says how far the verdict reaches.

The spread of a gain comes from the noise floor, runs of the incumbent that differ in their seed alone: two of them
differ by twice the variance of one. With few pairs their own spread is added to it; many pairs have their own alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

ERROR = 0.05  # chance that a series ever keeps a change without effect
FIRST_TRIALS = 32  # have equal shares of half of it
SCREEN = 0.1  # level of the first part
WORSE = 0.05  # level at which a candidate is called worse, or too little better; the second depth's as well
OWN_SPREAD = 6  # from so many pairs on, a test needs no noise floor
ODD = 0.01  # few pairs whose spread is this unlikely, for the noise floor, are no pairs of it
POWER = 0.9  # a difference "shows" if it is kept with this chance
MOST_PAIRS = 256  # that an answer advises


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
    freedom: int
    pairs: int

    def p_better(self) -> float:
        """Return the chance of such a gain, or a larger one, without an effect."""
        if not self.stderr:
            return float(self.mean <= 0)
        from scipy import stats

        return float(stats.t.sf(self.mean / self.stderr, self.freedom))

    def p_worse(self) -> float:
        return self._replace(mean=-self.mean).p_better()

    def half(self, level: float = WORSE) -> float:
        """Return half the width of the interval that has the true gain with 1 - level."""
        from scipy import stats

        return float(stats.t.ppf(1 - level / 2, self.freedom)) * self.stderr

    def upper(self, level: float = WORSE) -> float:
        """Return the largest gain that is not refuted, one-sided."""
        from scipy import stats

        return self.mean + float(stats.t.ppf(1 - level, self.freedom)) * self.stderr


def gain_of(gains: Sequence[float], noise: Noise) -> Gain:
    """Return the mean gain of some pairs with its error."""
    from scipy import stats

    count = len(gains)
    mean = sum(gains) / count
    squares = sum((gain - mean) ** 2 for gain in gains)
    own = count - 1
    pair = 2 * noise.sd**2  # variance of the gain of one pair, if the seeds say nothing about both
    is_odd = own and pair and stats.f.sf(squares / own / pair, own, noise.freedom) < ODD
    if count >= OWN_SPREAD or is_odd or not pair:
        return Gain(mean, math.sqrt(squares / max(own, 1) / count), max(own, 1), count)
    variance = (noise.freedom * pair + squares) / (noise.freedom + own)
    return Gain(mean, math.sqrt(variance / count), noise.freedom + own, count)


def share(number: int) -> float:
    """Return what the trial of this number, from 1 on, may spend: the first 32 have half of ERROR, 64 a quarter …"""
    block = 0
    while number > FIRST_TRIALS * (2 ** (block + 1) - 1):
        block += 1
    return ERROR / (2 ** (block + 1) * FIRST_TRIALS * 2**block)


# ---- what a number of pairs can show ----


def power(gain: float, noise: Noise, pairs: int, confirming: int, number: int) -> float:
    """Return the chance that a true gain is kept by so many pairs, and so many that confirm it."""
    chance = 1.0
    for count, level in ((pairs, SCREEN), (confirming, share(number) / SCREEN)):
        chance *= _passes(gain, noise, count, level)
    return chance


def _passes(gain: float, noise: Noise, pairs: int, level: float) -> float:
    from scipy import stats

    own = pairs >= OWN_SPREAD
    freedom = pairs - 1 if own else noise.freedom + pairs - 1
    stderr = math.sqrt(2 * noise.sd**2 / pairs)
    if not stderr:
        return float(gain > 0)
    return float(stats.nct.sf(stats.t.ppf(1 - level, freedom), freedom, gain / stderr))


def smallest(noise: Noise, pairs: int, confirming: int, number: int) -> float:
    """Return the smallest true gain that so many pairs keep with POWER."""
    low, high = 0.0, max(noise.sd, 1e-9)
    while power(high, noise, pairs, confirming, number) < POWER and high < 1e6 * noise.sd:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        if power(middle, noise, pairs, confirming, number) < POWER:
            low = middle
        else:
            high = middle
    return high


def pairs_for(gain: float, noise: Noise, number: int) -> int:
    """Return how many pairs, and twice as many that confirm them, keep a true gain with POWER; MOST_PAIRS if more."""
    low, high = 1, MOST_PAIRS
    while low < high:
        middle = (low + high) // 2
        if power(gain, noise, middle, confirming_pairs(middle), number) >= POWER:
            high = middle
        else:
            low = middle + 1
    return high


def confirming_pairs(pairs: int) -> int:
    """Return how many pairs confirm what so many have found: the level is lower, so it takes more."""
    return max(2 * pairs, 4)


# ---- a trial ----


class Part(Enum):
    """What pairs are for. Each part has seeds of its own."""

    SCREEN = "screen"
    CONFIRM = "confirm"
    DEPTH = "depth"


class Answer(Enum):
    KEEP = "keep"
    DISCARD = "discard"
    UNDECIDED = "not distinguishable yet"


@dataclass(frozen=True)
class Plan:
    """How many pairs a trial has."""

    pairs: int
    confirming: int  # 0: nothing is confirmed, and the first part has the whole level
    deeper: int  # at the second depth; 0: it is not asked
    least: float  # gains below this, in bits per byte, are not worth a line of code


@dataclass(frozen=True)
class Verdict:
    """What a trial has found. gain: of the part that decided."""

    answer: Answer
    reason: str
    gain: Gain
    p: float
    level: float  # that p had to reach for "keep"
    aim: float = 0.0  # for "not distinguishable yet": the gain that more pairs could show
    second: Gain | None = None  # at the second depth
    holds: str = ""  # where, for "keep"


def decide(
    plan: Plan, number: int, noises: Callable[[Part], Noise], draw: Callable[[Part, int], Sequence[float]]
) -> Verdict:
    """Return the verdict of a series' trial of this number.

    noises: the noise floor of a part. draw: trains so many pairs of a part, and returns their gains.
    """
    noise = noises(Part.SCREEN)
    gains = draw(Part.SCREEN, plan.pairs)
    if not any(gains):
        none = Gain(0.0, 0.0, max(noise.freedom, 1), len(gains))
        return Verdict(Answer.DISCARD, "every pair has equal figures, to the last bit", none, 1.0, 0.0)
    found = gain_of(gains, noise)
    level = SCREEN if plan.confirming else share(number)
    if found.p_better() > level:
        return _not_kept(found, level, plan)
    if not plan.confirming:
        return Verdict(
            Answer.KEEP, "not confirmed on other seeds", found, found.p_better(), level, holds="not confirmed"
        )
    confirmed = gain_of(draw(Part.CONFIRM, plan.confirming), noises(Part.CONFIRM))
    level = share(number) / SCREEN
    if confirmed.p_better() > level:
        return _not_kept(confirmed, level, plan, "not confirmed on other seeds; ")
    if not plan.deeper:
        return Verdict(
            Answer.KEEP, "confirmed on other seeds", confirmed, confirmed.p_better(), level, holds="at this depth only"
        )
    second = gain_of(draw(Part.DEPTH, plan.deeper), noises(Part.DEPTH))
    if second.p_better() <= WORSE:
        holds = "at both depths"
    elif second.p_worse() <= WORSE:
        holds = "at this depth only, and it is worse at the second"
    else:
        holds = "at this depth only, as far as the second can show"
    return Verdict(
        Answer.KEEP, "confirmed on other seeds", confirmed, confirmed.p_better(), level, second=second, holds=holds
    )


def _not_kept(found: Gain, level: float, plan: Plan, before: str = "") -> Verdict:
    """Return "discard" if the candidate is worse, or surely not better by what matters."""
    p = found.p_better()
    if found.p_worse() <= WORSE:
        return Verdict(Answer.DISCARD, f"{before}it is worse", found, p, level)
    if found.upper() < plan.least:
        return Verdict(Answer.DISCARD, f"{before}a gain of {plan.least:g} is refuted", found, p, level)
    return Verdict(Answer.UNDECIDED, f"{before}more pairs may tell", found, p, level, aim=max(found.mean, plan.least))
