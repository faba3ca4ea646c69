"""Significance: differences between arms of the lab beside the noise of their questions and seeds.

`Scores` of an arm on a benchmark: array (seeds, questions), each the share of right answers over the repeats, 0 to 1.
All means, errors and deviations are shares too; times 100 they are points.

- pooled_seed_variance(cells): variance of a seed's mean score with its degrees of freedom, over the arms of one
  benchmark. It goes into all functions below.
- cell, difference, interaction: means with errors from questions and from seeds, `low` and `high` of the 95 % interval.
- adjust(table): the table base -> mix -> benchmark -> Difference with p corrected by Holm; holm(p_values) alone.
- recommend(table, least_gain, scaled): a verdict and a sentence for each mix and base, by RULE; base_notes(table,
  least_gain): a sentence for each gain in one base only.
- smallest_difference(questions, seeds, ...): shown with 80 % power, under ASSUMED.
- best_of(mean, deviation, n): expected best of n seeds, by luck alone.
- repeats_noise(models): Noise of a benchmark over repeats, for the noise table.

Pure functions: no files are read.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.05  # two-sided
POWER = 0.8
# Assumed before anything is measured.
ACCURACY = 0.5  # has the largest spread
CORRELATION = 0.6  # between answers of two arms to the same question
LASTING = 0.25  # share of the remaining spread that belongs to an arm and a question: no further answer calms it
SEED_DEVIATION = 0.01  # between the means of seeds, beyond the noise of answers
ASSUMED = (
    f"{POWER:.0%} power at {LEVEL:.0%}, two-sided, corrected over the table; assumed: accuracy {ACCURACY:.0%}, "
    f"correlation {CORRELATION} between answers of two arms to a question, seeds {100 * SEED_DEVIATION:g} points apart"
)
# Deviation over repeats, as a share.
HIGH_NOISE = 0.007
LITTLE_NOISE = 0.0035
RULE = (
    f"Each mix is compared with the reference on the same base. A difference counts if its p value, corrected over the "
    f"whole table (Holm), is at most {LEVEL}, and if it is no smaller than the least gain of the spec. Gains and no "
    "harm: keep. Harm and no gain: drop. Both: trade-off, for a person to decide. Neither: not distinguishable, so "
    "scale up and evaluate again; in a lab at full size, drop, since the reference does as well without it."
)
KEEP, DROP, SCALE_UP, TRADE_OFF, UNTESTED = "keep", "drop", "scale up", "trade-off", "not tested"

Scores = np.ndarray  # (seeds, questions)


class Cell(NamedTuple):
    """The mean score of an arm on a benchmark."""

    mean: float
    error: float  # standard error, from questions and seeds; from questions alone if no arm has two seeds
    freedom: float  # degrees of freedom of the error
    seeds: int
    questions: int

    @property
    def low(self) -> float:
        return self.mean - _half(self.error, self.freedom)

    @property
    def high(self) -> float:
        return self.mean + _half(self.error, self.freedom)


class Difference(NamedTuple):
    """The mean difference of two arms, or a synergy."""

    mean: float
    error: float
    freedom: float
    p: float  # two-sided; nan if the noise of seeds is not known
    adjusted: float = math.nan  # p, corrected over the table

    @property
    def low(self) -> float:
        return self.mean - _half(self.error, self.freedom)

    @property
    def high(self) -> float:
        return self.mean + _half(self.error, self.freedom)

    @property
    def counts(self) -> bool:
        """Return True if the difference is significant in its table."""
        return self.adjusted <= LEVEL  # False for nan

    def __str__(self) -> str:
        """Return points with a standard error, like +1.5 ± 0.4 points (p 0.0012)."""
        p = self.p if math.isnan(self.adjusted) else self.adjusted
        tested = "seeds not measured" if math.isnan(p) else f"p {p:.2g}"
        return f"{100 * self.mean:+.1f} ± {100 * self.error:.1f} points ({tested})"


Table = Mapping[str, Mapping[str, Mapping[str, Difference]]]  # base -> mix -> benchmark; the reference has no row


class Recommendation(NamedTuple):
    """The verdict on a mix for a base."""

    base: str
    mix: str
    verdict: str  # keep, drop, scale up, trade-off, not tested
    sentence: str
    gains: tuple[str, ...]  # benchmarks
    harms: tuple[str, ...]


class Noise(NamedTuple):
    """The noise of a benchmark over repeated evaluations of the same models."""

    deviation: float  # of one evaluation's score
    error: float  # of the deviation
    freedom: int
    explained: float  # share of the variance that this number of questions, answered independently, has anyway

    @property
    def kind(self) -> str:
        if self.deviation >= HIGH_NOISE:
            return "high"
        return "very stable" if self.deviation < LITTLE_NOISE else "stable"

    def repeats_for(self, target: float) -> int:
        """Return the smallest k for which the deviation of Avg@k is at most the target, which is above 0."""
        # A little slack: a target equal to the deviation over √k must give k in spite of rounding.
        return max(1, math.ceil((self.deviation / target) ** 2 - 1e-9))


# ---- means and differences ----


def pooled_seed_variance(cells: Sequence[Scores]) -> tuple[float, int]:
    """Return the variance of a seed's mean score, pooled over arms, and its degrees of freedom.

    (nan, 0) if no arm has two seeds. The variance includes the noise of the answers.
    """
    means = [scores.mean(axis=1) for scores in cells]
    freedom = sum(len(each) - 1 for each in means)
    squares = sum(float(((each - each.mean()) ** 2).sum()) for each in means)
    return (squares / freedom, freedom) if freedom else (math.nan, 0)


def cell(scores: Scores, variance: float, freedom: int) -> Cell:
    """Return the mean of an arm with its error. variance, freedom: from pooled_seed_variance."""
    mean, error, degrees = _contrast([scores], [1], variance, freedom)
    return Cell(mean, error, degrees, *scores.shape)


def difference(
    scores: Scores, reference: Scores, variance: float, freedom: int, is_paired: bool = True
) -> Difference:
    """Return scores - reference. is_paired: both have the same questions, in the same order."""
    return _tested(*_contrast([scores, reference], [1, -1], variance, freedom, is_paired), freedom)


def interaction(
    both: Scores, one: Scores, other: Scores, reference: Scores, variance: float, freedom: int
) -> Difference:
    """Return the synergy of two mixes: the gain of both together, less the gains of each; the same questions in all."""
    return _tested(*_contrast([both, one, other, reference], [1, -1, -1, 1], variance, freedom), freedom)


def _contrast(
    arms: Sequence[Scores], signs: Sequence[int], variance: float, freedom: int, is_paired: bool = True
) -> tuple[float, float, float]:
    """Return a sum of arm means with signs, its standard error, and the degrees of freedom of the error.

    Questions and seeds are both samples of more (two-way layout). The spread over questions holds the noise of the
    answers, and so does the spread over seeds: one of the two is taken off.
    """
    means = [sign * scores.mean(axis=0) for scores, sign in zip(arms, signs, strict=True)]  # by question
    if is_paired and len({len(each) for each in means}) > 1:
        raise ValueError("arms with other questions cannot be paired")
    groups = [sum(means)] if is_paired else means
    if min(map(len, groups)) < 2:
        raise ValueError("a benchmark needs two questions for an error")
    # If all questions agree, one of the answers might have fallen otherwise all the same.
    least = min(scores.size for scores in arms) ** -2
    by_questions = [max(float(each.var(ddof=1)) / len(each), least) for each in groups]
    question_freedom = [len(each) - 1 for each in groups]
    noise = _answer_noise(arms)
    answers = sum(noise / scores.size for scores in arms)
    seeds = sum(variance / len(scores) for scores in arms)
    total, degrees = _add(by_questions, question_freedom, seeds, freedom, answers)
    return float(sum(each.mean() for each in means)), math.sqrt(total), degrees


def _answer_noise(arms: Sequence[Scores]) -> float:
    """Return the variance that belongs neither to a question nor to a seed; 0 if it is not known, with one seed each."""
    squares, freedom = 0.0, 0
    for scores in arms:
        rest = scores - scores.mean(axis=0) - scores.mean(axis=1, keepdims=True) + scores.mean()
        squares += float((rest**2).sum())
        freedom += (scores.shape[0] - 1) * (scores.shape[1] - 1)
    return squares / freedom if freedom else 0.0


def _add(
    questions: Sequence[float], question_freedom: Sequence[int], seeds: float, freedom: int, answers: float
) -> tuple[float, float]:
    """Return the variance of both sources together, and its degrees of freedom (Satterthwaite).

    questions: variances of independent groups of questions. answers: the noise that both sources hold. The total is
    never below the larger source.
    """
    both = sum(questions)
    uncertain = sum(part**2 / degrees for part, degrees in zip(questions, question_freedom, strict=True))
    if not freedom:  # no seed was repeated
        return both, both**2 / uncertain
    total = max(both, seeds, both + seeds - answers)
    return total, total**2 / (uncertain + seeds**2 / freedom)


def _tested(mean: float, error: float, degrees: float, seed_freedom: int) -> Difference:
    from scipy import stats  # a slow import, which must not delay --help

    p = 2 * float(stats.t.sf(abs(mean) / error, degrees)) if seed_freedom else math.nan
    return Difference(mean, error, degrees, p)


def _half(error: float, freedom: float) -> float:
    """Return half the width of a 95 % interval."""
    from scipy import stats

    return error * float(stats.t.ppf(1 - LEVEL / 2, freedom))


# ---- many tests ----


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number by Holm's method; nan stays nan, and does not count as a test."""
    adjusted = list(p_values)
    in_order = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    highest = 0.0
    for rank, (p, place) in enumerate(in_order):
        # A larger p never gets a smaller correction.
        highest = max(highest, min(1.0, (len(in_order) - rank) * p))
        adjusted[place] = highest
    return adjusted


def adjust(table: Table) -> dict[str, dict[str, dict[str, Difference]]]:
    """Return a table with the corrected p values of all its differences."""
    places = [(base, mix, name) for base in table for mix in table[base] for name in table[base][mix]]
    adjusted = holm([table[base][mix][name].p for base, mix, name in places])
    found = {base: {mix: {} for mix in mixes} for base, mixes in table.items()}
    for (base, mix, name), p in zip(places, adjusted, strict=True):
        found[base][mix][name] = table[base][mix][name]._replace(adjusted=p)
    return found


# ---- recommendation ----


def recommend(table: Table, least_gain: float = 0.0, scaled: bool = False) -> list[Recommendation]:
    """Return a recommendation for each base and mix of an adjusted table, by RULE.

    least_gain: smallest difference that matters, a share. scaled: this is the second lab, at full size.
    """
    found = []
    for base, mixes in table.items():
        for mix, differences in mixes.items():
            found.append(_recommend_mix(base, mix, differences, least_gain, scaled))
    return found


def _recommend_mix(
    base: str, mix: str, differences: Mapping[str, Difference], least_gain: float, scaled: bool
) -> Recommendation:
    gains = tuple(name for name, one in differences.items() if _gains(one, least_gain))
    harms = tuple(name for name, one in differences.items() if one.counts and one.mean <= -least_gain)
    shown = ", ".join(f"{name} {differences[name]}" for name in (*gains, *harms))
    if gains and harms:
        verdict, sentence = TRADE_OFF, f"gains and harms: {shown}"
    elif gains:
        verdict, sentence = KEEP, f"gains, and harms nothing: {shown}"
    elif harms:
        verdict, sentence = DROP, f"harms, and gains nothing: {shown}"
    elif all(math.isnan(one.p) for one in differences.values()):
        verdict, sentence = UNTESTED, "no arm has two seeds, so the noise of seeds is not known: add a seed"
    else:
        verdict, sentence = DROP if scaled else SCALE_UP, _undecided(differences, scaled)
    return Recommendation(base, mix, verdict, f"{mix} on {base}: {verdict}; {sentence}", gains, harms)


def _gains(one: Difference, least_gain: float) -> bool:
    return one.counts and one.mean > 0 and one.mean >= least_gain


def _undecided(differences: Mapping[str, Difference], scaled: bool) -> str:
    tested = {name: one for name, one in differences.items() if not math.isnan(one.p)}
    name = min(tested, key=lambda name: tested[name].p)
    highest = 100 * max(one.high for one in tested.values())
    sentence = f"not distinguishable from the reference, the clearest difference is {name} {tested[name]}"
    if any(one.counts for one in tested.values()):
        sentence = f"no difference that matters, the clearest is {name} {tested[name]}"
    # The upper end of the interval, which may be below 0.
    sentence += f"; a gain above {max(highest, 0.0):.1f} points is unlikely"
    return sentence if scaled else f"{sentence}; evaluate it again at full size"


def base_notes(table: Table, least_gain: float = 0.0) -> list[str]:
    """Return a sentence for each mix and benchmark with a gain in one base only, of several; the table is adjusted."""
    notes = []
    for mix in dict.fromkeys(mix for mixes in table.values() for mix in mixes):
        for name in dict.fromkeys(name for mixes in table.values() for name in mixes.get(mix, {})):
            by_base = {base: mixes[mix][name] for base, mixes in table.items() if name in mixes.get(mix, {})}
            gaining = [base for base, one in by_base.items() if _gains(one, least_gain)]
            if len(gaining) == 1 and len(by_base) > 1:
                own = by_base.pop(gaining[0])
                others = ", ".join(_beside(own, base, one) for base, one in by_base.items())
                notes.append(f"{mix} helps {gaining[0]} only: {name} {own}, but {others}")
    return notes


def _beside(own: Difference, base: str, other: Difference) -> str:
    # As if the bases had other questions: their common noise only makes this more careful.
    error = math.hypot(own.error, other.error)
    degrees = error**4 / (own.error**4 / own.freedom + other.error**4 / other.freedom)
    p = _tested(own.mean - other.mean, error, degrees, 1).p
    differ = "the bases differ" if p <= LEVEL else "which does not show that the bases differ"
    return f"{other} on {base}; {differ} (p {p:.2g})"


# ---- plans ----


def smallest_difference(
    questions: int,
    seeds: int,
    repeats: int = 1,
    arms: int = 2,
    tests: int = 1,
    accuracy: float = ACCURACY,
    correlation: float = CORRELATION,
    variance: float = math.nan,
    freedom: int = 0,
) -> float:
    """Return the true difference of two arms that is found with 80 % power, a share; inf if none can be.

    arms: all of the lab, whose seeds are pooled. tests: differences in the table. variance, freedom: measured by
    pooled_seed_variance at these questions and repeats; without them the seeds are as in ASSUMED, and counted here.
    """
    from scipy import stats

    spread = (1 - correlation) * accuracy * (1 - accuracy)  # variance of an answer, less the question's own
    lasting, noise = LASTING * spread, (1 - LASTING) * spread / repeats
    if not freedom:
        variance, freedom = SEED_DEVIATION**2 + noise / questions, arms * (seeds - 1)
    if not freedom:
        return math.inf
    by_questions = 2 * (lasting + noise / seeds) / questions
    answers = 2 * noise / (seeds * questions)
    total, degrees = _add([by_questions], [questions - 1], 2 * variance / seeds, freedom, answers)
    # Bonferroni's level, the first step of Holm's.
    quantiles = stats.t.ppf([1 - LEVEL / 2 / tests, POWER], degrees)
    return float(quantiles.sum()) * math.sqrt(total)


# ---- luck and noise ----


def best_of(mean: float, deviation: float, n: int) -> float:
    """Return the expected best of n seeds that differ by luck alone. deviation: of a seed's mean."""
    from scipy import integrate, stats

    # Density of the highest of n: n φ(x) Φ(x)ⁿ⁻¹.
    highest, _ = integrate.quad(lambda x: x * n * stats.norm.pdf(x) * stats.norm.cdf(x) ** (n - 1), -10, 10)
    return mean + deviation * highest


def repeats_noise(models: Sequence[Scores]) -> Noise:
    """Return the noise of a benchmark. models: for each, an array (repeats, questions) of verdicts or shares.

    Other settings of an engine, as rows in place of repeats, give the noise of these settings.
    """
    variance, freedom = pooled_seed_variance(models)
    if not freedom:
        raise ValueError("the noise of a benchmark needs two repeats, add --repeats=3")
    deviation = math.sqrt(variance)
    # Independent answers: their variances add up over questions.
    expected = [float(scores.var(axis=0, ddof=1).mean()) / scores.shape[1] for scores in models if len(scores) > 1]
    explained = min(1.0, sum(expected) / len(expected) / variance) if variance else 1.0
    return Noise(deviation, deviation / math.sqrt(2 * freedom), freedom, explained)
