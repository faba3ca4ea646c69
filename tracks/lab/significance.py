"""Significance: differences between arms of the lab beside the noise of their questions and seeds.

`Scores` of an arm on a benchmark: array (seeds, questions), each the right answers over the repeats, in points: 0 to
100. All means, errors and deviations are points too. A table holds the differences of a lab from the reference of the
same base: (base, mix, benchmark) -> Difference; the reference itself has none.

- pooled_seed_variance(cells, names): variance of a seed's mean score and its degrees of freedom, over the arms of a
  benchmark whose answers change between seeds like those of the named ones.
- contrast(cells, plus, minus) -> Difference: sum of the means of some arms, less those of others. A score is that of
  [arm] and [], a difference that of [arm] and [reference], a synergy that of [both, reference] and [one, other].
- adjust(table): the same table with p corrected for the number of differences (Holm), and gain or harm.
- first_shown(first, last): the table of a lab that has added seeds where nothing was shown.
- contrast_of_pairs(cells, plus, minus): the same for bits per byte, where seeds are pairs.
- contrast_over_trainings(trainings, plus, minus): the same, where a base was trained several times.
- confirm(verdicts, gains, fresh, again): the verdicts, those to keep a mix confirmed on other seeds.
- recommend(table, scaled, alone): a verdict and the reason for each base and mix of an adjusted table, by RULE; the
  reason also names a mix that is shown to help one base only, of several, or one training of it.
- count_broken(verdicts, broken, reference): the verdicts with the runs that broke; too many, and a mix is not kept.
- smallest_difference(questions, seeds, repeats, arms, tests): shown with 80 % power, under ASSUMED.
- smallest_of_pairs(seeds, tests): the same for contrast_of_pairs, in deviations.
- best_by_luck(seeds): the expected best of equally good seeds.
- noise(scores) -> Noise: of a benchmark, from repeated evaluations of the same models.

Pure functions: no files are read.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nanochat.statistics import holm

LEVEL = 0.05  # of an error of the first kind, two-sided
LEAST_SPREAD = 1e-9  # bits per byte, between seeds: anything smaller is rounding
MOST_BROKEN = 0.25  # share of an arm's runs; beyond it, those that are left do not speak for the mix
ALIKE = 2  # ratio of what changes between the seeds of two arms, up to which one variance is taken for both
POWER = 0.8
# Assumed before anything is measured.
ACCURACY = 50  # has the largest spread
CORRELATION = 0.6  # between answers of two arms to the same question
LASTING = 0.25  # share of the remaining spread that belongs to an arm and a question: no further answer calms it
SEED_DEVIATION = 1.0  # between the means of seeds, beyond the noise of answers
ASSUMED = (
    "80 % power at 5 % over the table; assumed: accuracy 50 %, correlation 0.6 between two arms' answers to a "
    "question, a deviation of 1 point between seeds, and all arms alike in it"
)
RULE = (
    "Each mix is compared with the reference on the same base. A difference counts if p, corrected over the whole "
    f"table (Holm), is at most {LEVEL}. Gains and no harm: keep. Harm and "
    "no gain: drop. Both: trade-off, for a person to decide. Neither: not distinguishable, so scale up and evaluate "
    "again; in a lab at full size (scaled) drop, since no gain is shown. With confirm_seeds, a mix to be kept has to "
    "show its gains on them again. With replicas, p and the errors are over the trainings of a base. Bits per byte are "
    "compared seed by seed, and fewer are a gain. A mix of which more than a quarter of the runs broke is not kept, "
    "but a trade-off."
)
# Whatever a mix is shown to do -> verdict.
VERDICTS = {"gain": "keep", "harm": "drop", "gain, harm": "trade-off"}
UNCLEAR = "not distinguishable"
UNCONFIRMED = "not confirmed"

# Bounds of the deviation of one evaluation: above the first it is high, below the second very stable.
HIGH_NOISE = 0.7
LITTLE_NOISE = 0.35
CLASSES = f"in points: high from {HIGH_NOISE}, very stable below {LITTLE_NOISE}"

Scores = np.ndarray  # (seeds, questions)


@dataclass(frozen=True)
class Difference:
    """A sum of arm means with signs: the score of an arm, the difference of two, or a synergy."""

    mean: float
    error: float  # standard error, from questions and seeds; from questions alone if no arm has two seeds; nan: unknown
    low: float  # 95 % interval
    high: float
    freedom: int  # degrees of freedom of the part from seeds, or from trainings of the base
    p: float  # two-sided, for a true sum of 0; 1 without two seeds and two questions, since nothing can be shown then
    adjusted: float = 1.0  # p, corrected over the table
    shown: str = UNCLEAR  # gain or harm, if the difference is significant
    in_bits: bool = False  # bits per byte, of which fewer are better; else points

    def __str__(self) -> str:
        if math.isnan(self.error):
            figure = f"{self.mean:+.4f} bits per byte" if self.in_bits else f"{self.mean:+.1f} points"
            return f"{figure} of one {self.single}: no error, so nothing is shown"
        if self.in_bits and self.error == 0:
            if abs(self.mean) < LEAST_SPREAD:
                return "the same bits per byte, seed by seed"
            return f"{self.mean:+.4f} bits per byte with every seed: seeds change nothing, so nothing is shown"
        if self.in_bits:
            return f"{self.mean:+.4f} ± {self.error:.4f} bits per byte (corrected p {self.adjusted:.2g})"
        return f"{self.mean:+.1f} ± {self.error:.1f} points (corrected p {self.adjusted:.2g})"

    @property
    def single(self) -> str:
        """What there is one of, if the error is nan: a seed of bits per byte, or a question."""
        return "seed" if self.in_bits else "question"


Table = dict[tuple[str, str, str], Difference]  # (base, mix, benchmark); no rows for the reference


@dataclass(frozen=True)
class Noise:
    """The noise of a benchmark over repeated evaluations of the same models."""

    deviation: float  # of the score of one evaluation
    error: float  # of the deviation
    explained: float  # share of the variance that so many questions have anyway, answered independently

    @property
    def kind(self) -> str:
        if self.deviation >= HIGH_NOISE:
            return "high"
        return "stable" if self.deviation >= LITTLE_NOISE else "very stable"

    def repeats_for(self, target: float) -> int:
        """Return the smallest k for which the deviation of Avg@k is at most the target."""
        return max(1, math.ceil((self.deviation / target) ** 2))


@dataclass(frozen=True)
class Recommendation:
    """The verdict on a mix for a base."""

    base: str
    mix: str
    verdict: str  # keep, drop, trade-off, scale up, not confirmed
    reason: str


# ---- means and differences ----


def change_between_seeds(scores: Scores) -> float:
    """Return the variance of the answers to a question between seeds, as a mean over questions; 0 for a single seed."""
    return float(scores.var(axis=0, ddof=1).mean()) if len(scores) > 1 else 0.0


def pooled_seed_variance(cells: Mapping[str, Scores], names: Sequence[str]) -> tuple[float, int]:
    """Return the variance of a seed's mean score for some arms, and its degrees of freedom; zeros for single seeds.

    Pooled over all arms whose answers change between seeds like those of the named ones, of which the one that changes
    most counts. Arms that answer the same with every seed, such as those with 0 or 100 %, would add degrees of freedom
    and no variance. The change of answers is measured over all questions, and so far better than the variance itself.
    The variance includes the noise of the answers.
    """
    most = max(change_between_seeds(cells[name]) for name in names)
    alike = [scores for scores in cells.values() if most / ALIKE <= change_between_seeds(scores) <= most * ALIKE]
    if all(len(cells[name]) == 1 for name in names):  # nothing is known of their seeds
        alike = list(cells.values())
    freedom = sum(len(scores) - 1 for scores in alike)
    # NumPy's variance divides by the number of seeds.
    squares = sum(len(scores) * scores.mean(axis=1).var() for scores in alike)
    return squares / max(freedom, 1), freedom


def contrast(cells: Mapping[str, Scores], plus: Sequence[str], minus: Sequence[str] = ()) -> Difference:
    """Return the sum of the means of some arms, less those of others.

    cells: of all arms, on the same questions in the same order, at least two; the variance of seeds is pooled over
    those that are alike in it. Questions and seeds are both samples of more (a two-way layout). p and interval are
    means of those with the degrees of freedom of each source, weighted by its variance (Cochran). Satterthwaite's
    formula trusts a variance of few seeds too much where it is small by chance: in the tail, where corrected p values
    lie, it is wrong by a factor of two to ten. One question is no sample of questions: it has no error, and p is 1.
    """
    from scipy.special import stdtr, stdtrit  # Student's t

    variance, freedom = pooled_seed_variance(cells, [*plus, *minus])
    arms = [cells[name] for name in [*plus, *minus]]
    # On the same questions, the part that the arms share cancels.
    by_question = np.repeat([1, -1], [len(plus), len(minus)]) @ [scores.mean(axis=0) for scores in arms]
    questions = len(by_question)
    if questions == 1:
        return Difference(float(by_question[0]), math.nan, math.nan, math.nan, freedom, 1.0)
    spread = by_question.var(ddof=1)
    # Where all questions agree, one of the answers might have differed all the same.
    least = (100 / min(map(len, arms))) ** 2 / questions
    from_questions = max(spread, least) / questions
    from_seeds = sum(variance / len(scores) for scores in arms)
    sources = np.array([from_questions, from_seeds])
    both = sources.sum()
    # The noise of answers is in both sources. It shows in the spread within a question, unless there is one seed.
    answers = sum(scores.var(axis=0).mean() / max(len(scores) - 1, 1) for scores in arms) / questions
    error = math.sqrt(max(*sources, both - answers))
    mean = by_question.mean()
    # Of questions and seeds; without two seeds the weight of seeds is 0.
    degrees = [questions - 1, max(freedom, 1)]
    weights = sources / both
    tails = 2 * stdtr(degrees, -abs(mean) / error)
    half = error * weights @ stdtrit(degrees, 1 - LEVEL / 2)
    p = weights @ tails if freedom else 1.0
    return Difference(mean, error, mean - half, mean + half, freedom, p)


def contrast_over_trainings(
    trainings: Sequence[Mapping[str, Scores]], plus: Sequence[str], minus: Sequence[str]
) -> Difference:
    """Return the sum of the means of some arms, less those of others, over several trainings of a base.

    trainings: the cells of each. A mix may help one training by chance: the trainings are what is sampled here, and
    their differences have the noise of seeds in them.
    """
    signs = np.repeat([1, -1], [len(plus), len(minus)])
    rows = [signs @ [arms[name].mean(axis=0) for name in [*plus, *minus]] for arms in trainings]
    one = contrast({"difference": np.array(rows)}, ["difference"])
    if math.isnan(one.error):  # of a single question
        return one
    # All of p has the degrees of freedom of the trainings: weighted as above, two that agree by chance would show it.
    from scipy.special import stdtr, stdtrit

    p = 2 * stdtr(one.freedom, -abs(one.mean) / one.error)
    half = one.error * stdtrit(one.freedom, 1 - LEVEL / 2)
    return replace(one, p=float(p), low=one.mean - half, high=one.mean + half)


def contrast_of_pairs(cells: Mapping[str, Scores], plus: Sequence[str], minus: Sequence[str] = ()) -> Difference:
    """Return the sum of the bits per byte of some arms, less those of others, seed by seed: a paired t test.

    cells: (seeds, 1), the same seeds in all arms; nan for a run that was left out, whose seed is then lost to each sum
    with its arm. Seeds that change nothing show nothing: the error is 0 and p is 1, without an interval. Runs with the
    same seed begin with the same weights, if shapes agree, and read text in the same order. The text that is scored is
    the same for all, and no sample of others here.
    """
    from scipy.special import stdtr, stdtrit

    signs = np.repeat([1, -1], [len(plus), len(minus)])
    by_seed = signs @ np.array([cells[name][:, 0] for name in [*plus, *minus]])
    whole = by_seed[np.isfinite(by_seed)]
    if not len(whole):
        return Difference(math.nan, math.nan, math.nan, math.nan, 0, 1.0, in_bits=True)
    mean = float(whole.mean())
    freedom = len(whole) - 1
    if not freedom:
        return Difference(mean, math.nan, math.nan, math.nan, 0, 1.0, in_bits=True)
    spread = float(whole.std(ddof=1))
    if spread < LEAST_SPREAD:
        return Difference(mean, 0.0, math.nan, math.nan, freedom, 1.0, in_bits=True)
    error = spread / math.sqrt(len(whole))
    half = error * float(stdtrit(freedom, 1 - LEVEL / 2))
    p = 2 * float(stdtr(freedom, -abs(mean) / error))
    return Difference(mean, error, mean - half, mean + half, freedom, p, in_bits=True)


# ---- many tests ----


def adjust(table: Table, rounds: int = 1) -> Table:
    """Return a table with p corrected for the number of differences (Holm's method), and with `shown`.

    rounds: tables of a lab that adds seeds where nothing is shown, each of which may find a difference (Bonferroni). A
    p that is nan shows nothing, and counts as 1: it has no place in an order.
    """
    adjusted = {}
    chances = [1.0 if math.isnan(one.p) else one.p for one in table.values()]
    for (key, one), p in zip(table.items(), holm(chances, rounds), strict=True):
        shown = UNCLEAR
        if p <= LEVEL:
            shown = "gain" if (one.mean < 0) == one.in_bits else "harm"
        adjusted[key] = replace(one, adjusted=p, shown=shown)
    return adjusted


def first_shown(first: Table, last: Table) -> Table:
    """Return the last table of a lab that has added seeds; differences that the first one has shown stay as they were.

    So each difference is shown by the first table that shows it, which `rounds` of both tables pay for.
    """
    shown = {key: one for key, one in first.items() if one.shown != UNCLEAR}
    return {**last, **shown}


# ---- recommendation ----


def recommend(table: Table, scaled: bool = False, alone: Collection[str] = ()) -> list[Recommendation]:
    """Return a recommendation for each base and mix of an adjusted table, by RULE.

    scaled: the lab is the second one, at full size. alone: bases with a single training, whose noise is in no error.
    """
    found = []
    for base, mix in dict.fromkeys(key[:2] for key in table):
        own = {key[2]: one for key, one in table.items() if key[:2] == (base, mix)}
        shown = sorted({one.shown for one in own.values()} - {UNCLEAR})
        verdict = VERDICTS.get(", ".join(shown), "drop" if scaled else "scale up")
        elsewhere = [one.shown for key, one in table.items() if key[1] == mix and key[0] != base]
        reason = ", ".join(f"{benchmark} {one}" for benchmark, one in own.items())
        if not shown:
            reason = f"{UNCLEAR} from the reference: {reason}"
        elif "gain" in shown and elsewhere and "gain" not in elsewhere:
            reason = f"helps this base only: {reason}"
        if shown and base in alone:
            reason += "; for this one training of the base"
        found.append(Recommendation(base, mix, verdict, reason))
    return found


def confirm(
    verdicts: Sequence[Recommendation],
    gains: Table,
    fresh: Table,
    again: Collection[tuple[str, str]],
    alone: Collection[str] = (),
) -> list[Recommendation]:
    """Return the verdicts, those to keep a mix confirmed, or not, by differences on seeds that were not used before.

    again: base and mix of runs on such seeds, also of those that failed. fresh: their differences; p is corrected over
    those of a mix (Holm). alone: bases with a single training: what a mix does to it by chance is confirmed too. A
    reason always says by what it is confirmed, or that it is not.
    """
    found = []
    for one in verdicts:
        if one.verdict != "keep":
            found.append(one)
            continue
        if (one.base, one.mix) not in again:
            found.append(replace(one, reason=f"{one.reason}; not confirmed on other seeds"))
            continue
        gained = [key for key, gain in gains.items() if key[:2] == (one.base, one.mix) and gain.shown == "gain"]
        seen = adjust({key: difference for key, difference in fresh.items() if key[:2] == (one.base, one.mix)})
        reason = ", ".join(f"{key[2]} {difference}" for key, difference in seen.items()) or "no run of them is intact"
        is_there = all(key in seen and seen[key].shown == "gain" for key in gained)
        if is_there and all(difference.shown != "harm" for difference in seen.values()):
            seeds = "other seeds of this training" if one.base in alone else "other seeds"
            found.append(replace(one, reason=f"{one.reason}; confirmed on {seeds}: {reason}"))
        else:
            found.append(replace(one, verdict=UNCONFIRMED, reason=f"not shown on other seeds: {reason}; {one.reason}"))
    return found


def breaks_often(broken: Sequence[bool]) -> bool:
    """True if too many runs of a mix broke to keep it. broken: for each run, whether it is left out."""
    return sum(broken) > MOST_BROKEN * len(broken)


def count_broken(
    verdicts: Sequence[Recommendation], broken: Mapping[tuple[str, str], Sequence[bool]], reference: str
) -> list[Recommendation]:
    """Return the verdicts with the runs that broke in their reasons; none is to keep a mix that breaks too often.

    broken: base and mix -> for each run, whether it is left out.
    """
    found = []
    for one in verdicts:
        own = broken[one.base, one.mix]
        if sum(own):
            one = replace(one, reason=f"{one.reason}; {sum(own)} of {len(own)} runs broke")
        if one.verdict == "keep" and breaks_often(own):
            one = replace(one, verdict="trade-off", reason=f"{one.reason}, too many to keep it")
        others = broken[one.base, reference]
        if sum(others):
            one = replace(one, reason=f"{one.reason}; {sum(others)} of {len(others)} runs of {reference} broke")
        found.append(one)
    return found


# ---- plans, luck and noise ----


def smallest_difference(questions: int, seeds: int, repeats: int = 1, arms: int = 2, tests: int = 1) -> float:
    """Return the true difference between two arms that is found with 80 % power; inf with one seed or question.

    arms: those of the lab whose seeds are pooled, the two among them. tests: differences in the table. The number of
    questions is taken for large: with 60, and two seeds, the power is less.
    """
    from scipy.special import ndtri, stdtrit

    if seeds < 2 or questions < 2:
        return math.inf
    # Variance of an answer, less the part shared by the arms.
    spread = (1 - CORRELATION) * ACCURACY * (100 - ACCURACY)
    # Parts of the variance of the difference of two means.
    lasting = 2 * LASTING * spread / questions
    answers = 2 * (1 - LASTING) * spread / (repeats * seeds * questions)
    by_seed = 2 * SEED_DEVIATION**2 / seeds
    sources = np.array([lasting + answers, by_seed + answers])
    error = math.sqrt(lasting + by_seed + answers)
    weights = sources / sources.sum()
    degrees = np.array([questions - 1, arms * (seeds - 1)])
    # The level of Bonferroni is that of the first step of Holm.
    bound = weights @ stdtrit(degrees, 1 - LEVEL / 2 / tests)
    # In units of the error, the difference varies by 1, and the bound with the variances as measured: it rises with the
    # error, and with the weight of the seeds.
    deviation = math.sqrt(1 + bound**2 * (weights**2 / degrees).sum())
    return error * (bound + deviation * ndtri(POWER))


def smallest_of_pairs(seeds: int, tests: int = 1) -> float:
    """Return the true difference in bits per byte that is found with 80 % power, in deviations of a seed's difference.

    tests: differences in the table. At least two seeds.
    """
    from scipy.optimize import brentq
    from scipy.special import chdtri, ndtr, stdtrit

    freedom = seeds - 1
    bound = float(stdtrit(freedom, 1 - LEVEL / 2 / tests))
    # The deviation as measured, relative to the true one: equally likely values.
    spreads = np.sqrt(chdtri(freedom, (np.arange(2000) + 0.5) / 2000) / freedom)

    def missing(shift: float) -> float:
        return float(ndtr(shift - bound * spreads).mean()) - POWER

    return brentq(missing, 0.0, 10 * bound) / math.sqrt(seeds)


def best_by_luck(deviation: float, n: int) -> float:
    """Return how far the best of n equally good seeds lies above their mean. deviation: of a seed's mean."""
    from scipy import stats

    return deviation * float(stats.order_statistic(stats.Normal(), r=n, n=n).mean())


def noise(scores: np.ndarray) -> Noise:
    """Return the noise of a benchmark. scores: (models, evaluations, questions)."""
    models, evaluations, questions = scores.shape
    variance = scores.mean(axis=2).var(axis=1, ddof=1).mean()
    # The variance of an evaluation's mean if its answers are independent.
    independent = scores.var(axis=1, ddof=1).mean() / questions
    # Both are estimates, and may cross. Without any noise there is nothing to explain.
    explained = min(independent / variance, 1.0) if variance else 1.0
    deviation = math.sqrt(variance)
    return Noise(deviation, deviation / math.sqrt(2 * models * (evaluations - 1)), explained)
