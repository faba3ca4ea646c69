"""Significance: differences between arms of the lab beside the noise of their questions and seeds.

`Scores` of an arm on a benchmark: array (seeds, questions), each the share of right answers over the repeats, 0 to 1.
All means, errors and deviations are shares too; times 100 they are points. A table holds the differences of a lab from
the reference of the same base: (base, mix, benchmark) -> Difference; the reference itself has none.

- pooled_seed_variance(cells): variance of a seed's mean score and its degrees of freedom, over the arms of a benchmark.
- contrast(plus, minus, variance, freedom) -> Difference: sum of the means of some arms, less those of others. A cell is
  contrast([arm], []), a difference contrast([arm], [reference]), a synergy contrast([both, reference], [one, other]).
- adjust(table): the same table with p corrected by Holm; holm(p_values) alone.
- recommend(table, least_gain, scaled): a verdict and a sentence for each base and mix of an adjusted table, by RULE.
- base_notes(table, least_gain): sentences for gains that are found on one base only, of several.
- smallest_difference(questions, seeds, repeats, arms, tests): shown with 80 % power, under ASSUMED.
- best_of(mean, deviation, n): expected best of n seeds, by luck alone.
- repeats_noise(models) -> Noise: a row of the noise table.

Pure functions: no files are read.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.05  # of an error of the first kind, two-sided
POWER = 0.8
# Assumed before anything is measured.
ACCURACY = 0.5  # has the largest spread
CORRELATION = 0.6  # between answers of two arms to the same question
LASTING = 0.25  # share of the remaining spread that belongs to an arm and a question: no further answer calms it
SEED_DEVIATION = 0.01  # between the means of seeds, beyond the noise of answers
ASSUMED = (
    f"{POWER:.0%} power at {LEVEL:.0%} over the table; assumed: accuracy {ACCURACY:.0%}, correlation {CORRELATION} "
    f"between two arms' answers to a question, a deviation of {100 * SEED_DEVIATION:g} points between seeds"
)
# Deviations over repeats: the bounds of the noise table's classes.
HIGH_NOISE = 0.007
LITTLE_NOISE = 0.0035
RULE = (
    "Each mix is compared with the reference on the same base. A difference counts if p, corrected over the whole "
    f"table (Holm), is at most {LEVEL}, and if it is no smaller than the least gain. Gains and no harm: keep. Harm and "
    "no gain: drop. Both: trade-off, for a person to decide. Neither: not distinguishable, so scale up and evaluate "
    "again; in a lab at full size drop, since the reference does as well without the mix."
)

Scores = np.ndarray  # (seeds, questions)


class Difference(NamedTuple):
    """A sum of arm means with signs: the score of an arm, the difference of two, or a synergy."""

    mean: float
    error: float  # standard error, from questions and seeds; from questions alone if no arm has two seeds
    freedom: float  # degrees of freedom of the error
    p: float  # two-sided, for a true sum of 0; nan if no arm has two seeds
    low: float  # 95 % interval
    high: float
    adjusted: float = math.nan  # p, corrected over the table

    def counts(self, least: float) -> bool:
        """Return True for a significant difference, positive or negative, of a size that matters."""
        return self.adjusted <= LEVEL and abs(self.mean) >= least  # False for nan

    def __str__(self) -> str:
        return f"{100 * self.mean:+.1f} ± {100 * self.error:.1f} points (corrected p {self.adjusted:.2g})"


Table = Mapping[tuple[str, str, str], Difference]  # (base, mix, benchmark); no rows for the reference


class Recommendation(NamedTuple):
    """The verdict on a mix for a base."""

    base: str
    mix: str
    verdict: str  # keep, drop, trade-off, scale up
    sentence: str
    is_found: bool  # True if a difference counts; otherwise nothing is changed because of this lab


class Noise(NamedTuple):
    """The noise of a benchmark over repeated evaluations of the same models."""

    deviation: float  # of the score of one evaluation
    error: float  # of the deviation
    freedom: int
    explained: float  # share of the variance that so many questions have anyway, answered independently

    @property
    def kind(self) -> str:
        if self.deviation >= HIGH_NOISE:
            return "high"
        return "stable" if self.deviation >= LITTLE_NOISE else "very stable"

    def repeats_for(self, target: float) -> int:
        """Return the smallest k for which the deviation of Avg@k is at most the target, which is above 0."""
        # The slack is for rounding: a target of deviation / √k gives k.
        return max(1, math.ceil((self.deviation / target) ** 2 - 1e-9))


# ---- means and differences ----


def pooled_seed_variance(cells: Sequence[Scores]) -> tuple[float, int]:
    """Return the variance of a seed's mean score, pooled over arms, and its degrees of freedom.

    (nan, 0) if no arm has two seeds. The variance includes the noise of the answers.
    """
    freedom = sum(len(scores) - 1 for scores in cells)
    # NumPy's variance divides by the number of seeds.
    squares = sum(len(scores) * scores.mean(axis=1).var() for scores in cells)
    return (float(squares) / freedom, freedom) if freedom else (math.nan, 0)


def answer_variance(scores: Scores) -> float:
    """Return the variance of a row's mean if its answers were independent, from the spread within questions."""
    return float(scores.var(axis=0, ddof=1).mean()) / scores.shape[1] if len(scores) > 1 else 0.0


def contrast(plus: Sequence[Scores], minus: Sequence[Scores], variance: float, freedom: int) -> Difference:
    """Return the sum of the means of some arms, less those of others.

    All have the same questions in the same order. variance, freedom: of a seed's mean, from pooled_seed_variance.
    """
    from scipy import stats  # a slow import, which must not delay --help

    arms = [*plus, *minus]
    questions = arms[0].shape[1]
    if questions < 2 or any(scores.shape[1] != questions for scores in arms):
        raise ValueError("arms are compared over the same questions, of which there are at least two")
    # Questions on which the arms agree cancel here.
    by_question = sum(scores.mean(axis=0) for scores in plus) - sum(scores.mean(axis=0) for scores in minus)
    # If all questions agree, one answer might have been another all the same.
    least = min(scores.size for scores in arms) ** -2
    from_questions = max(float(by_question.var(ddof=1)) / questions, least)
    from_seeds = sum(variance / len(scores) for scores in arms)
    answers = sum(answer_variance(scores) / len(scores) for scores in arms)
    error, degrees = _total_error(from_questions, questions - 1, from_seeds, freedom, answers)
    mean = float(by_question.mean())
    p = 2 * float(stats.t.sf(abs(mean) / error, degrees)) if freedom else math.nan
    half = error * float(stats.t.ppf(1 - LEVEL / 2, degrees))
    return Difference(mean, error, degrees, p, mean - half, mean + half)


def _total_error(
    questions: float, question_freedom: int, seeds: float, seed_freedom: int, answers: float
) -> tuple[float, float]:
    """Return the standard error from two variances, and its degrees of freedom (Satterthwaite).

    Questions and seeds are both samples of more (a two-way layout). answers: the part that both variances contain, of
    which one is taken off; the total is never below the larger of the two.
    """
    if not seed_freedom:
        return math.sqrt(questions), question_freedom
    total = max(questions, seeds, questions + seeds - answers)
    return math.sqrt(total), total**2 / (questions**2 / question_freedom + seeds**2 / seed_freedom)


# ---- many tests ----


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number by Holm's method; nan stays nan, and does not count as a test."""
    found = np.array(p_values, dtype=float)
    order = found.argsort()  # nan last
    tests = int((~np.isnan(found)).sum())
    # A larger p never gets a smaller correction.
    steps = np.maximum.accumulate(found[order] * (tests - np.arange(len(found))))
    found[order] = np.minimum(steps, 1.0)
    return found.tolist()


def adjust(table: Table) -> dict[tuple[str, str, str], Difference]:
    """Return a table with the corrected p values of its differences."""
    adjusted = holm([one.p for one in table.values()])
    return {key: one._replace(adjusted=p) for (key, one), p in zip(table.items(), adjusted, strict=True)}


# ---- recommendation ----


def recommend(table: Table, least_gain: float = 0.0, scaled: bool = False) -> list[Recommendation]:
    """Return a recommendation for each base and mix of an adjusted table, by RULE.

    least_gain: smallest difference that matters, a share. scaled: the lab is the second one, at full size.
    """
    found = []
    for base, mix in dict.fromkeys(key[:2] for key in table):
        own = {key[2]: one for key, one in table.items() if key[:2] == (base, mix)}
        counted = {name: one for name, one in own.items() if one.counts(least_gain)}
        signs = {one.mean > 0 for one in counted.values()}
        if not counted:
            verdict, sentence = "drop" if scaled else "scale up", _undecided(own, scaled)
        else:
            verdict = "trade-off" if len(signs) > 1 else "keep" if True in signs else "drop"
            sentence = ", ".join(f"{name} {one}" for name, one in counted.items())
        found.append(Recommendation(base, mix, verdict, f"{mix} on {base}: {verdict}; {sentence}", bool(counted)))
    return found


def _undecided(differences: Mapping[str, Difference], scaled: bool) -> str:
    if all(math.isnan(one.p) for one in differences.values()):
        return "nothing is tested, since no arm has two seeds: add a seed"
    name = min(differences, key=lambda name: differences[name].adjusted)
    # The end of the interval may be below 0.
    most = max(0.0, *(100 * one.high for one in differences.values()))
    sentence = f"not distinguishable, closest is {name} {differences[name]}; gains above {most:.1f} points are unlikely"
    return sentence if scaled else f"{sentence} at this size"


def base_notes(table: Table, least_gain: float = 0.0) -> list[str]:
    """Return a sentence for each mix and benchmark of an adjusted table with a gain on one base only, of several."""
    notes = []
    for place in dict.fromkeys(key[1:] for key in table):
        by_base = {key[0]: one for key, one in table.items() if key[1:] == place}
        gaining = [base for base, one in by_base.items() if one.mean > 0 and one.counts(least_gain)]
        if len(gaining) == 1 < len(by_base):
            shown = ", ".join(f"{one} on {base}" for base, one in by_base.items())
            notes.append(f"{place[0]} is shown to help {gaining[0]} only: {place[1]} {shown}")
    return notes


# ---- plans, luck and noise ----


def smallest_difference(
    questions: int,
    seeds: int,
    repeats: int = 1,
    arms: int = 2,
    tests: int = 1,
    accuracy: float = ACCURACY,
    seed_deviation: float = SEED_DEVIATION,
) -> float:
    """Return the true difference between two arms that is found with 80 % power, a share; inf with one seed.

    arms: all of the lab, since their seeds are pooled. tests: differences in the table. seed_deviation: between the
    means of seeds, beyond the noise of answers.
    """
    from scipy import stats

    freedom = arms * (seeds - 1)
    if not freedom:
        return math.inf
    spread = (1 - CORRELATION) * accuracy * (1 - accuracy)  # variance of an answer, less the part shared by the arms
    lasting = LASTING * spread
    noise = (spread - lasting) / repeats
    answers = 2 * noise / (seeds * questions)  # of two arms
    from_seeds = 2 * seed_deviation**2 / seeds + answers
    error, degrees = _total_error(2 * lasting / questions + answers, questions - 1, from_seeds, freedom, answers)
    # The level of Bonferroni is that of the first step of Holm.
    return error * float(stats.t.ppf([1 - LEVEL / 2 / tests, POWER], degrees).sum())


def best_of(mean: float, deviation: float, n: int) -> float:
    """Return the expected best of n seeds that differ by luck alone. deviation: of a seed's mean."""
    from scipy import stats

    # The density of the highest of n is n φ(x) Φ(x)ⁿ⁻¹.
    return mean + deviation * float(stats.norm.expect(lambda x: n * x * stats.norm.cdf(x) ** (n - 1)))


def repeats_noise(models: Sequence[Scores]) -> Noise:
    """Return the noise of a benchmark. models: for each an array (repeats, questions) of verdicts or shares.

    With batch sizes or slots of the engine as rows, in place of repeats, it is the noise of these settings.
    """
    variance, freedom = pooled_seed_variance(models)
    if not freedom:
        raise ValueError("the noise of a benchmark needs two repeats, add --repeats=3")
    expected = float(np.mean([answer_variance(scores) for scores in models if len(scores) > 1]))
    deviation = math.sqrt(variance)
    # The estimates may cross.
    explained = min(1.0, expected / variance) if variance else 1.0
    return Noise(deviation, deviation / math.sqrt(2 * freedom), freedom, explained)
