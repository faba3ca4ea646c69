"""Differences between arms: made numbers with known answers, and few false verdicts where nothing differs."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tracks.golf.differences import Difference, compare, difference, first_look, noise_of_runs, rejected, verdicts

SIZES = np.full(10, 100.0)  # bytes of the documents
SPREAD = np.array([3.0, -1, 2, 0, 4, 1, -2, 5, 2, 6])  # bits, over the documents


def runs(*scores: float) -> dict[int, np.ndarray]:
    """Return a run for each seed with this score in every document."""
    return {seed: score * SIZES for seed, score in enumerate(scores, 1)}


def test_with_equal_documents_a_gain_is_the_paired_test_over_seeds() -> None:
    row, arm = (1.0, 1.1, 1.3), (1.2, 1.25, 1.6)
    found = compare(runs(*row), {"arm": runs(*arm)}, {}, SIZES)["arm"]
    expected = stats.ttest_rel(arm, row)
    assert found.gain == pytest.approx(0.65 / 3)
    assert found.error == pytest.approx(stats.sem(np.subtract(arm, row)))
    assert found.p == pytest.approx(expected.pvalue)
    assert found.adjusted == pytest.approx(min(1, 2 * expected.pvalue))  # one arm, two looks
    assert found.seeds == 3
    # The same gain is shown if it is as large as needed, and not if it is a little smaller.
    assert found.needed == pytest.approx(found.error * stats.t.ppf(1 - 0.05 / 4, 2))


def test_another_score_of_the_same_runs_is_the_paired_test_over_documents() -> None:
    row = runs(1.0, 1.1)
    other = {seed: bits + SPREAD for seed, bits in row.items()}
    found = compare(row, {}, {"stride": other}, SIZES)["stride"]
    assert found.gain == pytest.approx(SPREAD.sum() / SIZES.sum())
    assert found.error == pytest.approx(stats.sem(SPREAD) / 100)
    assert found.p == pytest.approx(stats.ttest_1samp(SPREAD, 0).pvalue)


def test_the_needed_gain_is_where_p_begins_to_show() -> None:
    """With noise of documents and of runs, whose degrees of freedom differ: neither alone decides."""
    row = runs(1.0, 1.0, 1.0)

    def gaining(gain: float, variance: float) -> Difference:
        arm = {seed: bits + 100 * gain + SPREAD - SPREAD.mean() for seed, bits in row.items()}
        return difference(row, arm, SIZES, (variance, 2), tests=6)

    for variance in (1e-6, 5e-5, 1e-3):
        needed = gaining(0.1, variance).needed
        level = 0.05 / 6 / 2
        assert gaining(needed * 1.001, variance).p < level < gaining(needed * 0.999, variance).p


def test_documents_count_by_their_bytes() -> None:
    sizes = np.array([100.0, 300.0])
    row, arm = {1: np.array([100.0, 300.0])}, {1: np.array([110.0, 310.0])}
    assert difference(row, arm, sizes, (0.0, 0), 1).gain == pytest.approx(20 / 400)


def test_the_noise_of_runs_is_what_neither_arm_nor_seed_explains() -> None:
    row, arms = runs(1.0, 1.2, 1.7), [runs(2.0, 2.2, 2.7), runs(0.5, 0.7, 1.2)]
    assert noise_of_runs(row, arms, SIZES) == (pytest.approx(0, abs=1e-12), 4)
    # One value off by e leaves e² (1 - 1/A) (1 - 1/S) of it.
    off = [arms[0], runs(0.5, 0.7, 1.2 + 0.3)]
    assert noise_of_runs(row, off, SIZES) == (pytest.approx(0.3**2 * (2 / 3) * (2 / 3) / 4), 4)
    # An arm with one seed does not count; alone, the row has its own variance; one seed has none.
    assert noise_of_runs(row, [runs(9.0)], SIZES) == (pytest.approx(np.var([1.0, 1.2, 1.7], ddof=1)), 2)
    assert noise_of_runs(runs(1.0), [runs(9.0)], SIZES) == (0.0, 0)


def test_one_seed_rejects_a_loss_beyond_the_noise_and_its_verdict_stays() -> None:
    row = runs(1.0, 1.001, 0.999)
    arms = {"lost": runs(0.9), "gained": runs(1.1, 1.102, 1.098), "unclear": runs(0.999, 1.002, 0.9995)}
    first = first_look(row, arms, SIZES)
    assert {name: one.verdict.partition(" (")[0] for name, one in first.items()} == {
        "lost": "loses",
        "gained": "gains",
        "unclear": "not distinguishable",
    }
    assert rejected(first) == ["lost"]
    found = verdicts(row, arms, {}, SIZES)
    assert found["lost"] == first["lost"]
    assert (found["gained"].verdict, found["gained"].seeds) == ("gains", 3)
    assert found["gained"].error < first["gained"].error
    assert found["unclear"].verdict == (
        f"not distinguishable (smallest difference that would show: {found['unclear'].needed:.4f})"
    )
    # A difference of the first look is corrected for the arms and for two looks: p = 3 · 2 · P(|t| > 0.1 / 0.001 / √2).
    assert first["lost"].adjusted == pytest.approx(6 * 2 * stats.t.sf(0.1 / 0.001 / 2**0.5, 2), rel=1e-6)


def test_one_seed_alone_shows_nothing() -> None:
    found = verdicts(runs(1.0), {"arm": runs(2.0)}, {"stride": runs(3.0)}, SIZES)
    assert {one.verdict for one in found.values()} == {"not distinguishable (one seed)"}
    assert {one.p for one in found.values()} == {1.0}


def test_a_verdict_is_made_by_the_corrected_p() -> None:
    one = Difference(gain=0.1, error=0.02, seeds=3, p=0.001, needed=0.08)
    assert one.verdict.startswith("not distinguishable")  # not corrected yet
    assert replace(one, adjusted=0.05).verdict == "gains"
    assert replace(one, adjusted=0.05, gain=-0.1).verdict == "loses"


def test_where_nothing_differs_few_tables_show_anything() -> None:
    """Six arms like the row, with noise of documents, of seeds and of runs: an error of the first kind in 5 %."""
    random = np.random.default_rng(3)
    shown = below = 0
    for _ in range(400):
        by_seed = random.normal(0, 0.02, 3)

        def made(by_seed: np.ndarray = by_seed) -> dict[int, np.ndarray]:
            texts = random.normal(0, 2, len(SIZES))
            scores = 1 + by_seed + random.normal(0, 0.01, 3)
            return {seed: score * SIZES + texts for seed, score in enumerate(scores, 1)}

        table = verdicts(made(), {str(number): made() for number in range(6)}, {}, SIZES)
        shown += any(one.verdict in ("gains", "loses") for one in table.values())
        below += sum(one.p <= 0.05 for one in table.values())
    assert shown <= 400 * 0.08
    assert 0.02 <= below / (400 * 6) <= 0.06  # p itself, of single arms
