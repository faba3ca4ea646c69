"""The statistics of a trial: levels are kept over whole series, and gains that an answer promises to show are kept."""

import math
import random
from collections.abc import Callable, Sequence

import pytest
from scipy import stats

from nanochat.trial import decision
from nanochat.trial.decision import (
    Answer,
    Noise,
    Pair,
    Part,
    Plan,
    Verdict,
    confirming_pairs,
    decide,
    gain_of,
    noise_of,
)

DEPTHS = (4, 6)
PLAN = Plan(pairs=2, confirming=6, deeper=2, least=0.001)
SD = 0.004  # of a run over seeds
TRIALS = 2000  # whose times are simulated


class Night:
    """A series of simulated trials: runs are a mean and chance, and the incumbent's are there once and for all."""

    def __init__(self, seed: int, shared: float = 0.0, spread: float = 1.0) -> None:
        self.dice = random.Random(seed)
        self.shared = shared  # part of a run's variance that both sides of a pair have in common
        self.spread = spread  # of a candidate's runs, beside an incumbent's
        self.floor = [self.run(0.0, self.luck()) for _ in range(6)]
        self.number = 0

    def luck(self) -> float:
        return self.dice.gauss(0, SD * math.sqrt(self.shared))

    def run(self, gain: float, luck: float, spread: float = 1.0) -> float:
        return 0.5 - gain + luck + self.dice.gauss(0, spread * SD * math.sqrt(1 - self.shared))

    def trial(self, gain: float, plan: Plan = PLAN, deeper: float | None = None) -> Verdict:
        """Ask about a candidate with a true gain. deeper: its gain at the second depth."""
        self.number += 1

        def draw(part: Part, count: int) -> list[Pair]:
            if part is Part.SCREEN and not self.shared:  # the incumbent's runs are those of the noise floor
                fresh = [self.run(gain, 0.0, self.spread) for _ in range(count)]
                return list(zip(self.floor, fresh, strict=False))
            effect = gain if part is not Part.DEPTH or deeper is None else deeper
            lucks = [self.luck() for _ in range(count)]
            return [(self.run(0.0, luck), self.run(effect, luck, self.spread)) for luck in lucks]

        return decide(plan, self.number, noise_of(self.floor), draw, DEPTHS)


def nights_with_a_keep(count: int, edits: int, plan: Plan, **kind: float) -> int:
    found = 0
    for seed in range(count):
        night = Night(seed, **kind)
        found += any(night.trial(0.0, plan).answer is Answer.KEEP for _ in range(edits))
    return found


@pytest.mark.parametrize("plan", [PLAN, Plan(3, 9, 0, 0.001), Plan(16, 0, 0, 0.001)])
def test_of_200_nights_with_30_edits_that_change_nothing_at_most_one_in_twenty_keeps_one(plan: Plan) -> None:
    assert nights_with_a_keep(200, 30, plan) <= 10


@pytest.mark.parametrize("kind", [{"spread": 2.0}, {"shared": 0.8}, {"shared": 0.98}, {"spread": 0.5}])
def test_the_level_is_kept_for_candidates_whose_runs_spread_otherwise(kind: dict[str, float]) -> None:
    assert nights_with_a_keep(100, 30, PLAN, **kind) <= 5


def test_an_unlucky_noise_floor_lets_nothing_through() -> None:
    """Of 400 floors an adversary takes the one whose first runs were the worst, and asks there alone."""
    nights = [Night(seed) for seed in range(400)]
    worst = max(nights, key=lambda night: sum(night.floor[:2]) / 2 - noise_of(night.floor).sd)
    assert not any(worst.trial(0.0).answer is Answer.KEEP for _ in range(300))


@pytest.mark.parametrize("shared", [0.0, 0.8])
def test_twice_the_difference_that_is_promised_is_kept(shared: float) -> None:
    kept = 0
    for seed in range(100):
        night = Night(seed, shared)
        promised = decision.smallest(noise_of(night.floor), PLAN, number=1)
        kept += night.trial(2 * promised).answer is Answer.KEEP
    assert kept >= 90


def test_the_promised_difference_itself_is_kept_in_nine_of_ten() -> None:
    """With the true noise; an estimate from six runs promises too much or too little."""
    plan = Plan(3, 9, 0, 0.0)
    noise = Noise(SD, 1000)
    gain = decision.smallest(noise, plan, number=1)
    assert decision.power(gain, noise, plan, number=1) == pytest.approx(0.9, abs=1e-6)
    kept = 0
    for seed in range(300):
        dice = random.Random(seed)

        def draw(_: Part, count: int, dice: random.Random = dice) -> list[Pair]:
            return [(dice.gauss(0.5, SD), dice.gauss(0.5 - gain, SD)) for _ in range(count)]

        kept += decide(plan, 1, noise, draw, DEPTHS).answer is Answer.KEEP
    assert 0.84 <= kept / 300 <= 0.97


@pytest.mark.parametrize("pairs", [1, 2, 3, 6, 16])
def test_the_promise_is_that_of_the_test_which_decides(pairs: int) -> None:
    """Without a confirmation; each has a noise floor of its own."""
    plan = Plan(pairs, 0, 0, 0.0)
    gain = decision.smallest(Noise(SD, 5), plan, number=1)
    kept = 0
    for seed in range(400):
        dice = random.Random(seed)
        noise = noise_of([dice.gauss(0.5, SD) for _ in range(6)])
        drawn = [(dice.gauss(0.5, SD), dice.gauss(0.5 - gain, SD)) for _ in range(pairs)]
        kept += decide(plan, 1, noise, lambda _, __, drawn=drawn: drawn, DEPTHS).answer is Answer.KEEP
    assert 0.85 <= kept / 400 <= 0.95


@pytest.mark.parametrize(("pairs", "spread"), [(1, 2.0), (2, 2.0), (3, 2.0), (6, 2.0), (6, 0.1), (6, 10.0), (9, 10.0)])
def test_without_confirmation_runs_that_spread_otherwise_keep_the_level(pairs: int, spread: float) -> None:
    """Of 4000 candidates without an effect 3 are kept by chance; by the floor's spread alone 17 and more would be.

    With the degrees of freedom of two sides that spread alike 14 and 10 are, of 6 and 9 pairs of unlike sides.
    """
    plan = Plan(pairs, 0, 0, 0.001)
    nights = (Night(seed, spread=spread) for seed in range(4000))
    assert sum(night.trial(0.0, plan).answer is Answer.KEEP for night in nights) <= 9


def test_the_freedom_of_a_gain_is_that_of_welch() -> None:
    assert decision.welch_freedom(1.0, 1.0, 5) == 10
    assert decision.welch_freedom(1.0, 0.0, 5) == decision.welch_freedom(0.0, 3.0, 5) == 5
    assert decision.welch_freedom(1.0, 3.0, 5) == pytest.approx(5 * 16 / 10)  # by hand
    one, other = [0.50, 0.51, 0.53], [0.48, 0.49, 0.41]
    found = gain_of(list(zip(one, other, strict=True)))
    welch = stats.ttest_ind(one, other, equal_var=False, alternative="greater")
    assert found.p_better() == pytest.approx(welch.pvalue)
    assert found.freedom == pytest.approx(welch.df)


def test_of_two_tests_the_smaller_p_counts_twice() -> None:
    """Runs of six seeds at the embedded scale: one seed in three is hard for both sides, by more than the gain."""
    one = [0.6074, 0.6621, 0.6424, 0.5906, 0.6043, 0.5785]
    other = [0.5672, 0.6057, 0.5935, 0.5576, 0.5690, 0.5468]
    alike = gain_of(list(zip(one, other, strict=True)))
    paired = stats.ttest_rel(one, other, alternative="greater")
    assert alike.p_better() == pytest.approx(2 * paired.pvalue)
    assert alike.p_better() < decision.share(1) < stats.ttest_ind(one, other, equal_var=False).pvalue
    assert alike.p_worse() == 1.0
    high = stats.ttest_rel(one, other).confidence_interval(1 - 0.05 / 2).high
    assert alike.half(0.05) == pytest.approx(high - alike.mean)
    assert alike.upper(0.025) == pytest.approx(high)
    other = [0.5690, 0.5468, 0.5576, 0.6057, 0.5672, 0.5935]
    unlike = gain_of(list(zip(one, other, strict=True)))
    welch = stats.ttest_ind(one, other, equal_var=False, alternative="greater")
    assert unlike.p_better() == pytest.approx(2 * welch.pvalue)
    # Fewer pairs are judged by the sides alone: their differences have too few degrees of freedom.
    few = gain_of(list(zip(one[:5], other[:5], strict=True)))
    assert few.p_better() == pytest.approx(
        stats.ttest_ind(one[:5], other[:5], equal_var=False, alternative="greater").pvalue
    )


@pytest.mark.parametrize(("floor", "confirming", "gain"), [(SD, 4 * SD, 10 * SD), (4 * SD, SD, 10 * SD)])
def test_a_gain_shows_where_seeds_differ_by_more_than_it(floor: float, confirming: float, gain: float) -> None:
    """As above: what a seed does to both sides cancels in a pair, if the floor or the confirmation has such seeds."""
    kept = 0
    for seed in range(200):
        dice = random.Random(seed)
        noise = noise_of([dice.gauss(0.5, floor) for _ in range(6)])

        def draw(part: Part, count: int, dice: random.Random = dice) -> list[Pair]:
            lucks = [dice.gauss(0.5, confirming if part is Part.CONFIRM else floor) for _ in range(count)]
            return [(luck + dice.gauss(0, SD / 2), luck - gain + dice.gauss(0, SD / 2)) for luck in lucks]

        kept += decide(PLAN, 1, noise, draw, DEPTHS).answer is Answer.KEEP
    assert kept >= 180


def test_the_filter_sees_a_gain_that_two_pairs_agree_on() -> None:
    """Of an incumbent whose floor has a hard seed."""
    noise = Noise(0.0304, 5)
    found = decision.screened([(0.5981, 0.5813), (0.5902, 0.5784)], noise)
    assert found.p_better() <= decision.SCREEN < gain_of([(0.5981, 0.5813), (0.5902, 0.5784)], noise).p_better()
    assert found.freedom == 1
    assert decision.screened([(0.6, 0.5)], noise) == gain_of([(0.6, 0.5)], noise)  # one pair has no spread
    alike = decision.screened([(0.60, 0.56), (0.59, 0.60)], noise)  # they do not agree: by the floor
    assert alike == gain_of([(0.60, 0.56), (0.59, 0.60)], noise)._replace(tests=2)


def test_a_harm_is_never_kept_and_mostly_named() -> None:
    answers = [Night(seed).trial(-4 * SD) for seed in range(100)]
    assert not any(verdict.answer is Answer.KEEP for verdict in answers)
    assert sum(verdict.reason == "it is worse" for verdict in answers) >= 80


def test_a_gain_that_is_not_worth_a_line_is_not_kept_however_sure_it_is() -> None:
    """Pairs that agree to the last digits, as of code with other rounding."""
    tiny = [0.0002, 0.00021, 0.00019, 0.0002, 0.00021, 0.00019]
    draw = script(screen=[0.05, 0.051], confirm=tiny)
    verdict = decide(PLAN, 1, Noise(SD, 5), draw, DEPTHS)
    assert verdict.p < verdict.level
    assert (verdict.answer, verdict.part) == (Answer.DISCARD, "confirmation")
    assert verdict.reason == "not confirmed on other seeds; a gain of 0.001 is refuted"
    draw = script(screen=[0.05, 0.051], confirm=tiny, depth=tiny[:2])
    assert decide(Plan(2, 6, 2, 0.0001), 1, Noise(SD, 5), draw, DEPTHS).answer is Answer.KEEP


def test_equal_figures_are_no_gain() -> None:
    verdict = decide(PLAN, 1, Noise(SD, 5), lambda _, count: [(0.5, 0.5)] * count, DEPTHS)
    assert (verdict.answer, verdict.reason) == (Answer.DISCARD, "every pair has equal figures, to the last bit")


@pytest.mark.parametrize("score", [math.inf, math.nan, -math.inf])
def test_a_figure_that_is_no_number_is_never_kept(score: float) -> None:
    verdict = decide(PLAN, 1, Noise(SD, 5), lambda _, count: [(0.5, score)] * count, DEPTHS)
    assert (verdict.answer, verdict.reason) == (Answer.DISCARD, "a figure is no number")


def script(**gains: Sequence[float]) -> Callable[[Part, int], Sequence[Pair]]:
    """Pairs with these gains, where the runs of a side differ by a little."""

    def draw(part: Part, count: int) -> list[Pair]:
        return [(0.5 + 0.001 * number, 0.5 + 0.001 * number - gain) for number, gain in enumerate(gains[part.value])]

    return draw


@pytest.mark.parametrize(
    ("deeper", "holds"),
    [
        ([0.05, 0.05], "at depths 4 and 6"),
        ([0.0001, -0.0001], "at depth 4 only, as far as depth 6 can show"),
        ([-0.05, -0.05], "at depth 4 only, and it is worse at depth 6"),
    ],
)
def test_a_second_depth_says_how_far_a_keep_reaches(deeper: list[float], holds: str) -> None:
    draw = script(screen=[0.05, 0.051], confirm=[0.049, 0.05, 0.051, 0.05, 0.05, 0.051], depth=deeper)
    verdict = decide(PLAN, 1, Noise(SD, 5), draw, DEPTHS)
    assert (verdict.answer, verdict.holds) == (Answer.KEEP, holds)
    assert verdict.second
    assert verdict.second.pairs == 2


def test_a_second_depth_without_pairs_undoes_nothing() -> None:
    confirmed = script(screen=[0.05, 0.051], confirm=[0.049, 0.05, 0.051, 0.05, 0.05, 0.051])

    def draw(part: Part, count: int) -> Sequence[Pair]:
        if part is Part.DEPTH:
            raise decision.NoPairs("its run failed")
        return confirmed(part, count)

    verdict = decide(PLAN, 1, Noise(SD, 5), draw, DEPTHS)
    assert (verdict.answer, verdict.second, verdict.failed) == (Answer.KEEP, None, "its run failed")
    assert verdict.holds == "at depth 4 only: at depth 6 its run failed"
    with pytest.raises(decision.NoPairs):  # nothing was confirmed
        decide(PLAN, 1, Noise(SD, 5), lambda *_: draw(Part.DEPTH, 2), DEPTHS)


def test_a_verdict_names_the_part_that_decided_and_its_level() -> None:
    stopped = decide(PLAN, 1, Noise(SD, 5), script(screen=[0.0, 0.001]), DEPTHS)
    assert (stopped.part, stopped.level) == ("filter", decision.SCREEN)
    draw = script(screen=[0.05, 0.051], confirm=[0.001, -0.002, 0.003, -0.001, 0.002, -0.003])
    unconfirmed = decide(PLAN, 1, Noise(SD, 5), draw, DEPTHS)
    assert (unconfirmed.part, unconfirmed.level) == ("confirmation", decision.share(1))
    alone = decide(Plan(2, 0, 0, 0.001), 1, Noise(SD, 5), draw, DEPTHS)
    assert (alone.part, alone.level) == ("first", decision.share(1))


def test_one_pair_at_the_second_depth_shows_nothing() -> None:
    assert gain_of([(0.6, 0.5)]).p_better() == 0.5


def test_what_other_seeds_do_not_confirm_is_not_kept() -> None:
    draw = script(screen=[0.05, 0.051], confirm=[0.001, -0.002, 0.003, -0.001, 0.002, -0.003])
    verdict = decide(PLAN, 1, Noise(SD, 5), draw, DEPTHS)
    assert verdict.answer is not Answer.KEEP
    assert verdict.reason.startswith("not confirmed on other seeds")


def test_without_confirmation_the_first_part_has_the_whole_level() -> None:
    found = []
    for gain in (0.015, 0.05):
        verdict = decide(Plan(2, 0, 0, 0.001), 1, Noise(SD, 5), script(screen=[gain, gain]), DEPTHS)
        found.append(verdict)
        assert verdict.level == decision.share(1)
    assert [verdict.answer for verdict in found] == [Answer.UNDECIDED, Answer.KEEP]
    assert found[1].holds == "not confirmed"


def test_shares_of_all_trials_together_are_the_error() -> None:
    assert sum(decision.share(number) for number in range(1, 33)) == pytest.approx(decision.ERROR / 2)
    assert sum(decision.share(number) for number in range(1, 32 * (2**10 - 1) + 1)) < decision.ERROR
    assert decision.share(1) == decision.share(32) > decision.share(33)


def test_the_error_of_few_pairs_is_that_of_the_floor_or_of_both_sides_and_of_many_their_own() -> None:
    few = gain_of([(0.52, 0.5), (0.53, 0.51)], Noise(0.01, 5))
    # By hand: (5 x 2 x 0.01² + 0) / 6, over 2 pairs.
    assert few.stderr == pytest.approx(math.sqrt(5 * 2e-4 / 6 / 2))
    assert few.freedom == 6
    # Within each side 2 x 0.005² over one degree of freedom each: a variance of 5e-5, twice, over 2 pairs.
    assert gain_of([(0.52, 0.5), (0.53, 0.51)]).stderr == pytest.approx(math.sqrt(2 * 5e-5 / 2))
    pairs = [(0.5 + 0.02 + step, 0.5) for step in 2 * (0.0, 0.001, -0.001, 0.0, 0.001, -0.001, 0.0, 0.0)]
    many = gain_of(pairs)
    assert many.stderr == pytest.approx(math.sqrt(8e-6 / 15 / 16))
    assert many.freedom == 15


def test_pairs_that_are_no_pairs_of_the_floor_have_their_own_error() -> None:
    wild = gain_of([(1.0, 0.5), (0.5, 0.9), (0.8, 0.5)], Noise(0.001, 5))
    assert wild.freedom == 2
    assert wild.stderr > 0.2


def test_the_advice_is_a_further_question_and_enough() -> None:
    wanted = decision.pairs_for(0.006, Noise(SD, 5), PLAN, number=2)
    assert wanted
    assert wanted > PLAN.pairs
    assert decision.power(0.006, Noise(SD, 5), PLAN.with_pairs(wanted), 2) >= decision.POWER
    assert PLAN.runs == 2 * (2 + 6 + 2)
    assert PLAN.with_pairs(wanted) == Plan(wanted, confirming_pairs(wanted), wanted, 0.001)
    assert decision.pairs_for(1e-6, Noise(SD, 5), PLAN, 2) is None  # at the bound nearly nothing of it would show
    assert decision.pairs_for(0.006, Noise(SD, 5), PLAN.with_pairs(decision.MOST_PAIRS), 2) is None  # nor fewer
    assert decision.pairs_for(1.0, Noise(SD, 5), PLAN, 2) == PLAN.pairs + 1


def test_the_bound_on_work_follows_the_spread_of_the_floor_between_two_limits() -> None:
    least, most = decision.SLOWER
    assert most == 1.5
    assert decision.slower([12.0, 12.0, 12.0], 1) == pytest.approx(least)
    floor = [12.0, 12.5, 11.9, 12.2, 12.4, 12.1]
    # By hand: the logarithms' spread is 0.0188, and 5.893 the quantile of t at 0.001 with 5 degrees of freedom.
    assert decision.slower(floor, 1) == pytest.approx(math.exp(5.893 * 0.0188 * math.sqrt(2)), rel=2e-3)
    bounds = [decision.slower(floor, pairs) for pairs in (1, 2, 6, 100)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] == pytest.approx(least)
    assert decision.slower([10.0, 15.0, 12.0], 1) == pytest.approx(most)


@pytest.mark.parametrize(
    ("floor", "spread", "share"),
    [(6, 0.02, 0.01), (6, 0.037, 0.01), (6, 0.08, 0.01), (3, 0.037, 0.01), (3, 0.08, 0.01), (6, 0.12, 0.03)],
)
def test_of_honest_candidates_few_are_refused_for_their_work(floor: int, spread: float, share: float) -> None:
    """After each of six pairs, and of two at the second depth. Spreads of 0.037, 0.08 and 0.12 were seen."""
    dice = random.Random(0)

    def run() -> float:
        return 12 * math.exp(dice.gauss(0, spread))

    refused = 0
    for _ in range(TRIALS):
        known = [run() for _ in range(floor)]
        refused += any(work_is_refused([run() for _ in range(2 * pairs)], known) for pairs in (6, 2))
    assert refused < share * TRIALS


def work_is_refused(times: Sequence[float], floor: Sequence[float]) -> bool:
    """Whether pairs are refused, with the first one or later. times: of the incumbent and of the candidate in turns."""
    one, other = times[::2], times[1::2]
    found = 0.0
    for pairs in range(1, len(one) + 1):
        gap = sum(map(math.log, other[:pairs])) - sum(map(math.log, one[:pairs]))
        if gap > pairs * math.log(decision.SLOWER[0]):  # else it is not: the quantiles take long
            found = found or decision.longer(one[:pairs], other[:pairs], floor)
    return bool(found)


@pytest.mark.parametrize("spread", [0.01, 0.02])
def test_a_fifth_more_work_is_refused_where_times_are_steady(spread: float) -> None:
    dice = random.Random(0)
    refused = 0
    for _ in range(100):
        floor = [12 * math.exp(dice.gauss(0, spread)) for _ in range(6)]
        times = [12 * (1.2 if number % 2 else 1) * math.exp(dice.gauss(0, spread)) for number in range(12)]
        refused += work_is_refused(times, floor)
    assert refused >= 95


def test_extra_work_in_a_few_runs_is_seen_where_sides_train_in_turns_and_half_as_much_again_is_seen_anywhere() -> None:
    floor = [12.0, 12.1, 12.0, 11.9, 12.0, 12.1]
    some = [12.0, 12.0, 12.0, 12.0, 24.0, 24.0]
    assert decision.longer([12.0] * 6, some, floor) == pytest.approx(2 ** (1 / 3))
    assert not decision.longer([12.0] * 6, some, [])
    assert decision.longer([12.0] * 6, [18.1] * 6, []) == pytest.approx(18.1 / 12)
    assert not decision.longer([12.0] * 6, [13.1] * 6, floor)
