"""Compute multipliers: exact on power laws, and intervals that have the truth as often as they say."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from nanochat.multiplier import Curve, Multiplier, Rung, can_pair, in_words, multipliers, spread_of

DEPTHS = (2, 4, 6)
FLOPS = np.array([1e12, 6e12, 2e13])
ALPHA = 0.08  # bits per byte fall as FLOPs^-ALPHA


def law(flops: np.ndarray) -> np.ndarray:
    return 3 * (flops / 1e12) ** -ALPHA


def ladder(flops: np.ndarray, bpb: np.ndarray, noise: np.ndarray) -> list[Rung]:
    """The rungs of a ladder. noise: (depths, seeds), relative."""
    seeds = tuple(range(noise.shape[1]))
    return [
        Rung(depth, budget, tuple(score * np.exp(own)), seeds)
        for depth, budget, score, own in zip(DEPTHS, flops, bpb, noise, strict=True)
    ]


QUIET = np.zeros((3, 1))

# What is planted -> FLOPs and bits per byte of the candidate, and the true multipliers.
PLANTED: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {
    "a tenth of the FLOPs is wasted": (1.1 * FLOPS, law(FLOPS), np.full(3, 1 / 1.1)),
    "a field is left out": (FLOPS, 1.01 * law(FLOPS), np.full(3, 1.01 ** (-1 / ALPHA))),
    "it helps large models alone": (
        FLOPS,
        law(FLOPS) * [1, 0.995, 0.99],
        np.array([1, 0.995, 0.99]) ** (-1 / ALPHA),
    ),
    "no difference": (FLOPS, law(FLOPS), np.ones(3)),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_without_noise_a_power_law_gives_the_planted_multiplier(planted) -> None:
    flops, bpb, truth = PLANTED[planted]
    found = multipliers(ladder(FLOPS, law(FLOPS), QUIET), ladder(flops, bpb, QUIET))
    assert [one.value for one in found] == pytest.approx(list(truth), rel=1e-9)
    assert all(one.low is None for one in found)  # a single seed has no spread


def coverage(planted: str, seeds: int, alike: float, paired: bool, count: int) -> float:
    """The share of 90 % intervals with the truth. alike: share of the variance that both ladders have in common."""
    draws = np.random.default_rng((seeds, paired, *planted.encode()))
    flops, bpb, truth = PLANTED[planted]
    hits = 0
    for _ in range(count):
        shared = math.sqrt(alike) * draws.standard_normal((3, seeds))
        one, other = (0.003 * (shared + math.sqrt(1 - alike) * draws.standard_normal((3, seeds))) for _ in range(2))
        found = multipliers(ladder(FLOPS, law(FLOPS), one), ladder(flops, bpb, other), paired=paired)
        for got, true in zip(found, truth, strict=True):
            hits += got.low is not None and got.high is not None and got.low <= true <= got.high
    return hits / (3 * count)


DESIGNS = [(2, 0.0, False), (3, 0.0, False), (2, 0.7, True), (3, 0.7, True)]  # as the arguments of `coverage`


@pytest.mark.parametrize("planted", PLANTED)
def test_nine_of_ten_intervals_have_the_planted_multiplier(planted) -> None:
    shares = [coverage(planted, *design, count=250) for design in DESIGNS]
    assert 0.88 <= sum(shares) / len(shares) <= 0.92, shares
    assert all(0.86 <= share <= 0.94 for share in shares), shares  # of 750 intervals


def test_pairs_that_are_alike_make_the_interval_narrow() -> None:
    flops, bpb, _ = PLANTED["a tenth of the FLOPs is wasted"]
    noise = 0.003 * np.random.default_rng(0).standard_normal((3, 3))
    ladders = ladder(FLOPS, law(FLOPS), noise), ladder(flops, bpb, noise)
    assert can_pair(*ladders)
    for one, wide in zip(multipliers(*ladders, paired=True), multipliers(*ladders), strict=True):
        # The same runs, but for the FLOPs: nothing is left to chance.
        assert (one.low, one.value, one.high) == pytest.approx((1 / 1.1, 1 / 1.1, 1 / 1.1), rel=1e-6)
        assert wide.low < one.low
        assert wide.high > one.high


def plain_interval(baseline: Sequence[Rung], rung: Rung, quantile: float, variance: float) -> tuple[float, float]:
    """The interval, from every multiplier on a fine grid that a t test does not refute."""
    xs, ys = [one.x for one in baseline], [one.y for one in baseline]
    kept = []
    for multiplier in np.exp(np.linspace(-1.5, 1.5, 60_001)):
        x = rung.x + math.log(multiplier)
        right = 1 if x < xs[1] else 2
        weight = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
        height = (1 - weight) * ys[right - 1] + weight * ys[right]
        runs = len(rung.bpb)
        error = math.sqrt(variance * (1 / runs + (1 - weight) ** 2 / runs + weight**2 / runs))
        if abs(rung.y - height) <= quantile * error:
            kept.append(multiplier)
    return kept[0], kept[-1]


def test_the_interval_has_all_multipliers_that_a_t_test_does_not_refute() -> None:
    draws = np.random.default_rng(3)
    baseline, candidate = (ladder(FLOPS, law(FLOPS), 0.003 * draws.standard_normal((3, 2))) for _ in range(2))
    spread = spread_of(baseline, candidate, paired=False)
    logs = np.log([rung.bpb for rung in (*baseline, *candidate)])
    assert spread.freedom == 6
    assert spread.single == pytest.approx(logs.var(axis=1, ddof=1).mean())
    for rung, got in zip(candidate, multipliers(baseline, candidate), strict=True):
        # 1.943: of t with 6 degrees of freedom, 5 % lie above, from a printed table.
        assert (got.low, got.high) == pytest.approx(plain_interval(baseline, rung, 1.943, spread.single), abs=3e-4)


def test_beyond_the_baseline_a_multiplier_is_extrapolated() -> None:
    noise = 1e-4 * np.random.default_rng(1).standard_normal((2, 3, 2))
    baseline = ladder(FLOPS, law(FLOPS), noise[0])
    better = multipliers(baseline, ladder(FLOPS, 0.99 * law(FLOPS), noise[1]))
    assert [one.is_extrapolated for one in better] == [False, False, True]
    # That the deepest is cheaper at all, the baseline's own depth says.
    assert [one.verdict for one in better] == ["cheaper"] * 3
    larger = multipliers(baseline, ladder(2.5 * FLOPS, 0.99 * law(2.5 * FLOPS), noise[1]))
    assert [one.verdict for one in larger] == ["cheaper", "cheaper", "cheaper?"]
    assert in_words(larger, "a", "b") == (
        "b is cheaper than a at depths 2, 4 only; extrapolated: ? at depth 6, as a has no depth with so few or so many"
        " FLOPs."
    )


def test_a_curve_that_does_not_fall_has_no_multiplier_beyond_it() -> None:
    curve = Curve([0.0, 1.0, 2.0], [3.0, 2.0, 2.5])
    assert curve.crossing(2.5, near=0.0) == 0.5
    assert curve.crossing(2.5, near=2.0) == 2.0
    assert curve.crossing(3.5, near=0.0) == -0.5
    assert curve.crossing(1.9, near=2.0) is None
    flat = [Rung(2, 1e12, (2.0, 2.1)), Rung(4, 1e13, (2.0, 2.1))]
    [one, other] = multipliers(flat, [Rung(2, 1e12, (1.9, 1.8)), Rung(4, 1e13, (2.05, 2.0))])
    assert (one.value, one.verdict, other.value, other.verdict) == (None, "?", None, "?")
    expected = "unknown at depths 2, 4, as the curve of a does not fall to such bits per byte."
    assert in_words([one, other], "a", "b") == expected


def test_noise_that_hides_the_slope_leaves_an_interval_without_ends() -> None:
    draws = np.random.default_rng(3)
    baseline, candidate = (ladder(FLOPS, law(FLOPS), 0.3 * draws.standard_normal((3, 2))) for _ in range(2))
    for got in multipliers(baseline, candidate):
        assert (got.low, got.high) == (0, math.inf)
        assert got.verdict == "not distinguishable"


@pytest.mark.parametrize(
    ("seeds", "others", "expected"),
    [((1, 2), (2, 1), True), ((1, 2), (1, 3), False), ((1, None), (1, None), False), ((1, 1), (1, 1), False)],
)
def test_pairs_have_the_same_seeds(seeds, others, expected) -> None:
    one, other = (Rung(2, 1.0, (1.0, 2.0), own) for own in (seeds, others))
    assert can_pair([one], [other]) is expected
    assert can_pair([one], [Rung(4, 1.0, (1.0,), (1,))])  # no depth in common


def rung_with(verdict: str, depth: int) -> Multiplier:
    low, high = {"cheaper": (1.1, 1.2), "more expensive": (0.8, 0.9), "not distinguishable": (0.9, 1.1)}[verdict]
    return Multiplier(depth, (low + high) / 2, low, high, False, True, (0.1, 10))


WORDS: list[tuple[Callable[[int], str], str]] = [
    (lambda depth: "cheaper", "b is cheaper than a: holds at every depth, 2, 4, 6."),
    (lambda depth: "more expensive", "b is more expensive than a: holds at every depth, 2, 4, 6."),
    (
        lambda depth: "not distinguishable",
        "b and a are not distinguishable at any depth; more seeds narrow the intervals.",
    ),
    (
        lambda depth: "cheaper" if depth == 2 else "not distinguishable",
        "b is cheaper than a at depth 2 only; not distinguishable at depths 4, 6.",
    ),
    (
        lambda depth: "more expensive" if depth == 2 else "cheaper",
        "b is cheaper than a at depths 4, 6; b is more expensive than a at depth 2.",
    ),
]


@pytest.mark.parametrize(("verdict", "sentence"), WORDS)
def test_the_verdict_in_words(verdict, sentence) -> None:
    assert in_words([rung_with(verdict(depth), depth) for depth in DEPTHS], "a", "b") == sentence


def test_a_ladder_is_not_distinguishable_from_itself() -> None:
    noise = 0.003 * np.random.default_rng(0).standard_normal((3, 2))
    own = ladder(FLOPS, law(FLOPS), noise)
    for paired in (False, True):
        assert {one.verdict for one in multipliers(own, own, paired=paired)} == {"not distinguishable"}
