"""Significance, on made labs with known truth: the model of ASSUMED, drawn again and again. No models are trained."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from tracks.lab import significance

LABS = 200
FLOOR, CEILING = -100, 200  # accuracies that no seed moves from 0 and 100 %


class Setting(NamedTuple):
    """A setting of a lab: two arms, and others beside them."""

    accuracy: float
    seeds: int
    questions: int
    repeats: int
    deviation: float  # between seeds
    others: float | None = None  # accuracy of all arms but the reference and the first mix; None: the same

    def accuracies(self, arms: int) -> np.ndarray:
        """Return the accuracies of so many arms, without any effect of the first mix."""
        found = np.full(arms, float(self.accuracy if self.others is None else self.others))
        found[:2] = self.accuracy
        return found


SETTINGS = {
    "few questions": Setting(50, 2, 60, 1, 1.0),
    "many questions": Setting(50, 2, 1000, 1, 2.0),
    "unequal seeds": Setting(30, 2, 100, 1, 3.0),
    "repeats": Setting(80, 3, 300, 2, 1.0),
    "equal seeds": Setting(60, 3, 200, 1, 0.0),
    "others at the floor": Setting(50, 3, 200, 1, 6.0, FLOOR),
    "others at the ceiling": Setting(50, 2, 200, 1, 3.0, CEILING),
}


def made_scores(random, accuracies, seeds, questions, repeats=1, deviation=significance.SEED_DEVIATION) -> np.ndarray:
    """Return scores (arms, seeds, questions); an arm's expected score is its accuracy exactly.

    An answer is right if a normal variable lies below the accuracy's quantile. The variable is a sum of parts: of the
    question, of the arm and question, and of the answer. Two of them, correlated by sin(r π/2), have verdicts that are
    correlated by r at an accuracy of a half.
    """
    same_arm = significance.CORRELATION + significance.LASTING * (1 - significance.CORRELATION)
    common, lasting = np.sin(np.pi / 2 * np.array([significance.CORRELATION, same_arm]))
    arms = len(accuracies)
    hardness = np.sqrt(common) * random.standard_normal(questions)
    hardness = hardness + np.sqrt(lasting - common) * random.standard_normal((arms, 1, 1, questions))
    hardness = hardness + np.sqrt(1 - lasting) * random.standard_normal((arms, seeds, repeats, questions))
    by_seed = np.array(accuracies)[:, None] + deviation * random.standard_normal((arms, seeds))
    thresholds = stats.norm.ppf((by_seed / 100).clip(1e-6, 1 - 1e-6))
    return 100 * (hardness < thresholds[:, :, None, None]).mean(axis=2)


def made_table(random, setting: Setting, gain=0.0, bases=2, mixes=4, benchmarks=3) -> dict:
    """Return the adjusted table of a lab. gain: of the first mix, on the first base and benchmark."""
    table = {}
    for base in range(bases):
        for benchmark in range(benchmarks):
            accuracies = setting.accuracies(mixes + 1)
            if base == benchmark == 0:  # around the accuracy, so that its spread stays
                accuracies[:2] += -gain / 2, gain / 2
            scores = made_scores(random, accuracies, *setting[1:5])
            for mix in range(1, mixes + 1):
                table[base, mix, benchmark] = significance.contrast(dict(enumerate(scores)), [mix], [0])
    return significance.adjust(table)


# ---- simulations ----


@pytest.mark.parametrize("name", SETTINGS)
def test_labs_without_any_effect_recommend_no_change(name) -> None:
    seed = list(SETTINGS).index(name)
    random = np.random.default_rng(seed)
    changed = 0
    for _ in range(LABS):
        found = significance.recommend(made_table(random, SETTINGS[name]))
        # Others have an effect, where they are not as the reference.
        verdicts = {one.verdict for one in found if one.mix == 1 or SETTINGS[name].others is None}
        changed += verdicts != {"scale up"}
    print(f"{name}: {changed} of {LABS} labs without an effect recommend a change, seed {seed}")
    # Twice the deviation of a count above 5 %.
    assert changed <= LABS * significance.LEVEL + 2 * math.sqrt(LABS * significance.LEVEL * (1 - significance.LEVEL))


def test_more_seeds_where_nothing_is_shown_find_no_more_without_an_effect() -> None:
    """A lab that looks, adds two seeds to whatever is unclear and to the reference, and looks again, as it ships."""
    random = np.random.default_rng(6)
    accuracy, _, questions, repeats, deviation, _ = SETTINGS["unequal seeds"]
    changed = uncorrected = 0
    for _ in range(LABS):
        benchmarks = [made_scores(random, 5 * [accuracy], 4, questions, repeats, deviation) for _ in range(2)]
        for rounds in (1, 2):
            early = [{mix: arm[:2] for mix, arm in enumerate(scores)} for scores in benchmarks]
            first = two_tables(early, rounds)
            clear = {key[1] for key, one in first.items() if one.shown != significance.UNCLEAR}
            late = [{mix: arm[: 2 if mix in clear else 4] for mix, arm in enumerate(scores)} for scores in benchmarks]
            last = significance.first_shown(first, two_tables(late, rounds))
            found = any(one.shown != significance.UNCLEAR for one in last.values())
            changed += found and rounds == 2
            uncorrected += found and rounds == 1
    print(f"{changed} of {LABS} labs without an effect find one, {uncorrected} if looks are not counted, seed 6")
    assert changed < uncorrected
    assert changed <= LABS * significance.LEVEL + 2 * math.sqrt(LABS * significance.LEVEL * (1 - significance.LEVEL))


def lab_over_trainings(random, trainings: int, noise: float, gain: float = 0.0) -> list[dict[int, np.ndarray]]:
    """Return the cells of each training of a base on one benchmark: a reference and three mixes.

    noise: deviation of what a mix changes by chance in one training, beyond that of seeds. gain: of the first mix.
    """
    found = []
    for _ in range(trainings):
        accuracies = 50 + noise * random.standard_normal(4)
        accuracies[1] += gain
        found.append(dict(enumerate(made_scores(random, accuracies, 2, 300))))
    return found


def recommended_mixes(cells: list[dict[int, np.ndarray]]) -> set[int]:
    """Return the mixes for which a change is recommended."""
    table = {}
    for mix in (1, 2, 3):
        if len(cells) > 1:
            table["base", mix, "Task"] = significance.contrast_over_trainings(cells, [mix], [0])
        else:
            table["base", mix, "Task"] = significance.contrast(cells[0], [mix], [0])
    verdicts = significance.recommend(significance.adjust(table))
    return {one.mix for one in verdicts if one.verdict != "scale up"}


def test_a_base_that_was_trained_once_hides_its_noise_and_several_trainings_show_it() -> None:
    """Without any effect: with one training, what it does by chance is found, again and again; with more it is not."""
    random = np.random.default_rng(11)
    count = dict.fromkeys((1, 2, 3, 4), 0)
    for _ in range(LABS):
        for trainings in count:
            count[trainings] += bool(recommended_mixes(lab_over_trainings(random, trainings, noise=6.0)))
    print(f"labs of {LABS} without an effect that recommend a change, by trainings of the base: {count}, seed 11")
    assert count[1] > LABS / 3
    most = LABS * significance.LEVEL + 2 * math.sqrt(LABS * significance.LEVEL * (1 - significance.LEVEL))
    assert all(count[trainings] <= most for trainings in (2, 3, 4))


def test_an_effect_is_found_over_trainings() -> None:
    random = np.random.default_rng(12)
    found = [recommended_mixes(lab_over_trainings(random, 4, noise=3.0, gain=25.0)) for _ in range(50)]
    assert sum(1 in one for one in found) >= 40


def test_other_seeds_confirm_or_do_not() -> None:
    random = np.random.default_rng(13)
    scores = made_scores(random, [50, 75, 75], 2, 400)
    gains = significance.adjust(
        {("base", mix, "Task"): significance.contrast(dict(enumerate(scores)), [mix], [0]) for mix in (1, 2)}
    )
    verdicts = significance.recommend(gains, alone=["base"])
    assert [one.verdict for one in verdicts] == ["keep", "keep"]
    assert all(one.reason.endswith("; for this one training of the base") for one in verdicts)
    again = made_scores(random, [50, 75, 50], 2, 400)
    fresh = {("base", mix, "Task"): significance.contrast(dict(enumerate(again)), [mix], [0]) for mix in (1, 2)}
    again_run = {("base", 1), ("base", 2)}
    first, second = significance.confirm(verdicts, gains, fresh, again_run, alone=["base"])
    assert first.verdict == "keep"
    assert "; confirmed on other seeds of this training: Task +" in first.reason
    [several, _] = significance.confirm(verdicts, gains, fresh, again_run)
    assert "; confirmed on other seeds: Task +" in several.reason
    assert second.verdict == significance.UNCONFIRMED
    assert second.reason.startswith("not shown on other seeds: Task ")
    for one, open_one in zip(verdicts, significance.confirm(verdicts, gains, {}, set()), strict=True):  # not run
        assert open_one == replace(one, reason=f"{one.reason}; not confirmed on other seeds")
    failed = significance.confirm(verdicts, gains, {}, again_run)
    assert [one.verdict for one in failed] == 2 * [significance.UNCONFIRMED]
    assert "no run of them is intact" in failed[0].reason
    # The gain is there again, and a harm that was not seen before.
    harmed = fresh | {("base", 1, "Other"): replace(fresh["base", 1, "Task"], mean=-25.0)}
    assert significance.confirm(verdicts, gains, harmed, again_run)[0].verdict == significance.UNCONFIRMED


def test_other_seeds_of_one_training_confirm_what_its_noise_has_shown() -> None:
    """Without any effect: a base that was trained once does the same by chance again, and its reason says so."""
    random = np.random.default_rng(14)
    kept = confirmed = elsewhere = 0
    for _ in range(LABS):
        accuracies = 50 + 6.0 * random.standard_normal(4)

        def table(accuracies: np.ndarray = accuracies) -> significance.Table:
            cells = dict(enumerate(made_scores(random, accuracies, 3, 300)))
            return {("base", mix, "Task"): significance.contrast(cells, [mix], [0]) for mix in (1, 2, 3)}

        gains = significance.adjust(table())
        verdicts = significance.recommend(gains, alone=["base"])
        kept += sum(one.verdict == "keep" for one in verdicts)
        again = {("base", mix) for mix in (1, 2, 3)}
        found = significance.confirm(verdicts, gains, table(), again, alone=["base"])
        assert all("on other seeds of this training" in one.reason for one in found if one.verdict == "keep")
        confirmed += sum(one.verdict == "keep" for one in found)
        other = table(50 + 6.0 * random.standard_normal(4))
        elsewhere += sum(one.verdict == "keep" for one in significance.confirm(verdicts, gains, other, again))
    print(
        f"of {kept} keeps without an effect {confirmed} are confirmed on other seeds, {elsewhere} on another training"
    )
    assert kept > LABS / 4
    assert confirmed > 0.75 * kept
    assert elsewhere < 0.4 * kept


def two_tables(benchmarks, rounds) -> dict:
    """Return the adjusted table of some benchmarks' scores by mix; 0 is the reference."""
    table = {
        ("base", mix, number): significance.contrast(cells, [mix], [0])
        for number, cells in enumerate(benchmarks)
        for mix in range(1, 5)
    }
    return significance.adjust(table, rounds)


def smallest_of(monkeypatch, name) -> float:
    """Return the smallest difference with the accuracy and the deviation of a setting as those assumed."""
    accuracy, seeds, questions, repeats, deviation, others = SETTINGS[name]
    monkeypatch.setattr(significance, "ACCURACY", accuracy)
    monkeypatch.setattr(significance, "SEED_DEVIATION", deviation)
    return significance.smallest_difference(questions, seeds, repeats, 5 if others is None else 2, 12)


@pytest.mark.parametrize("name", SETTINGS)
def test_twice_the_smallest_difference_is_found(name, monkeypatch) -> None:
    seed = list(SETTINGS).index(name)
    random = np.random.default_rng(seed)
    smallest = smallest_of(monkeypatch, name)
    found = 0
    for _ in range(LABS):
        gain = made_table(random, SETTINGS[name], 2 * smallest, bases=1)[0, 1, 0]
        found += gain.shown == "gain"
    print(f"{name}: twice {smallest:.1f} points is found in {found} of {LABS} labs, seed {seed}")
    assert found >= 0.9 * LABS


@pytest.mark.parametrize(
    ("name", "least", "most"),
    # Where the others are at the floor, their harm is found first, and Holm corrects p for the few that are left.
    [("many questions", 0.68, 0.9), ("others at the floor", 0.68, 1.0), ("few questions", 0.5, 0.9)],
)
def test_the_printed_power_is_nearly_that_of_made_labs(name: str, least: float, most: float, monkeypatch) -> None:
    random = np.random.default_rng(9)
    smallest = smallest_of(monkeypatch, name)
    found = sum(made_table(random, SETTINGS[name], smallest, bases=1)[0, 1, 0].shown == "gain" for _ in range(LABS))
    print(f"{name}: {smallest:.1f} points are found in {found} of {LABS} labs, seed 9")
    assert least * LABS <= found <= most * LABS


# Places of arms: a cell, a difference, a synergy.
@pytest.mark.parametrize(("plus", "minus"), [([0], []), ([0], [1]), ([0, 3], [1, 2])])
def test_intervals_cover_the_truth(plus, minus) -> None:
    """In the settings, questions weigh more, or seeds."""
    seed = 10 * len(plus) + len(minus)
    random = np.random.default_rng(seed)
    covered = []
    for setting in SETTINGS.values():
        truth = setting.accuracy * (len(plus) - len(minus))
        for _ in range(420):
            scores = made_scores(random, setting.accuracies(6), *setting[1:5])
            found = significance.contrast(dict(enumerate(scores)), plus, minus)
            covered.append(found.low <= truth <= found.high)
    print(f"{plus} less {minus}: {sum(covered)} of {len(covered)} intervals cover the truth, seed {seed}")
    assert len(covered) >= 2000
    assert 0.93 <= np.mean(covered) <= 0.97


def test_averages_of_k_repeats_are_calmer_by_the_root_of_k() -> None:
    random = np.random.default_rng(0)
    # Models, repeats, questions; each question of a model has its own probability p, and the mean of p (1 - p) is 1/6.
    chances = random.random((60, 1, 150))
    for k in (1, 2, 4, 8, 16):
        answers = 100 * (random.random((60, 6 * k, 150)) < chances)
        found = significance.noise(answers.reshape(60, 6, k, 150).mean(axis=2))
        expected = 100 * math.sqrt(1 / 6 / 150 / k)
        print(f"Avg@{k}: {found.deviation:.3f} ± {found.error:.3f} points, expected {expected:.3f}")
        assert abs(found.deviation - expected) <= 3 * found.error
        # Answers are independent here, so the number of questions explains all.
        assert found.explained > 0.85
        assert found.repeats_for(found.deviation / 4) == 16


# ---- figures, checked by hand or by SciPy ----


def test_seed_variance_is_pooled_over_arms() -> None:
    cells = {
        "two": np.array([[0, 0], [1, 0]]),
        "one": np.array([[1, 1]]),
        "three": np.array([[0, 0], [0, 1], [1, 1]]),
    }
    # Means 0, 1/2 | 1 | 0, 1/2, 1: squares 1/8 and 1/2 with one and two degrees of freedom.
    both = (pytest.approx(0.625 / 3), 3)
    assert significance.pooled_seed_variance(cells, ["two", "three"]) == both
    # A single seed shows nothing of its variance: that of all others is taken.
    assert significance.pooled_seed_variance(cells, ["one"]) == both
    assert significance.pooled_seed_variance({"one": cells["one"]}, ["one"]) == (0.0, 0)


def test_arms_whose_seeds_answer_alike_are_not_pooled_with_others() -> None:
    random = np.random.default_rng(8)
    scores = made_scores(random, [50, 50, FLOOR, CEILING, 50, 5], 3, 400, 1, 4.0)
    cells = dict(zip(("one", "other", "floor", "ceiling", "letters", "low"), scores, strict=True))
    cells["letters"] = np.tile(scores[4][0], (3, 1))  # the same answers with each seed, half of them right
    two = [cells[name].mean(axis=1).var(ddof=1) for name in ("one", "other")]
    assert significance.pooled_seed_variance(cells, ["one", "other"]) == (pytest.approx(np.mean(two)), 4)
    assert significance.pooled_seed_variance(cells, ["one"]) == (pytest.approx(np.mean(two)), 4)
    # Of two, the one that changes more counts.
    assert significance.pooled_seed_variance(cells, ["floor", "one"]) == (pytest.approx(np.mean(two)), 4)
    assert significance.pooled_seed_variance(cells, ["floor"]) == (0, 6)
    low = cells["low"].mean(axis=1).var(ddof=1)
    assert significance.pooled_seed_variance(cells, ["low"]) == (pytest.approx(low), 2)


def test_with_equal_seeds_a_difference_is_the_paired_test_over_questions() -> None:
    one, other = 100 * np.random.default_rng(2).random((2, 50))
    # Three seeds with the same answers.
    found = significance.contrast({"one": np.tile(one, (3, 1)), "other": np.tile(other, (3, 1))}, ["one"], ["other"])
    expected = stats.ttest_rel(one, other)
    interval = expected.confidence_interval()
    assert (found.p, found.low, found.high) == pytest.approx((expected.pvalue, *interval))


def test_one_seed_each_shows_nothing() -> None:
    reference, arm = made_scores(np.random.default_rng(5), [20, 90], 1, 100)
    found = significance.contrast({"arm": arm, "reference": reference}, ["arm"], ["reference"])
    assert (found.freedom, found.p) == (0, 1.0)
    # The error is that of the questions. It does not vanish where all agree.
    assert found.error == pytest.approx(stats.sem(arm[0] - reference[0]))
    assert significance.contrast({"one": arm, "other": arm}, ["one"], ["other"]).error == pytest.approx(1)
    assert significance.smallest_difference(1000, seeds=1) == math.inf


def test_one_question_shows_nothing() -> None:
    """It is no sample of questions, and would be nan, before which Holm puts no other."""
    cells = {"arm": np.array([[100.0], [100.0]]), "reference": np.array([[0.0], [50.0]])}
    one = significance.contrast(cells, ["arm"], ["reference"])
    assert (one.mean, one.p) == (75, 1)
    assert [math.isnan(value) for value in (one.error, one.low, one.high)] == [True, True, True]
    assert str(one) == "+75.0 points of one question: no error, so nothing is shown"
    over = significance.contrast_over_trainings([cells, cells], ["arm"], ["reference"])
    assert (over.mean, over.p, str(over)) == (75, 1, str(one))
    table = {("base", "mix", "One"): one, ("base", "mix", "Task"): difference_of(10, 0.01)}
    [verdict] = significance.recommend(significance.adjust(table))
    assert verdict.verdict == "keep"
    assert "One +75.0 points of one question: no error, so nothing is shown" in verdict.reason
    assert significance.smallest_difference(1, seeds=3) == math.inf
    pair = significance.contrast_of_pairs({"arm": np.array([[1.5]])}, ["arm"])
    assert str(pair) == "+1.5000 bits per byte of one seed: no error, so nothing is shown"


@pytest.mark.parametrize("place", range(3))
def test_a_p_that_is_nan_harms_no_other(place: int) -> None:
    p_values = [0.01, 0.02]
    p_values.insert(place, math.nan)
    table = {("base", "mix", str(number)): difference_of(10, p) for number, p in enumerate(p_values)}
    found = [one.adjusted for one in significance.adjust(table).values()]
    expected = [0.03, 0.04]
    expected.insert(place, 1.0)
    assert found == pytest.approx(expected)


def difference_of(mean, p) -> significance.Difference:
    return significance.Difference(mean, 1.0, mean - 2, mean + 2, 10, p)


def test_p_values_are_corrected_by_holm() -> None:
    p_values = [0.01, 0.04, 0.03, 0.005, 0.9]
    table = {("base", "mix", str(place)): difference_of(10, p) for place, p in enumerate(p_values)}
    adjusted = significance.adjust(table)
    found = [adjusted["base", "mix", str(place)].adjusted for place in range(5)]
    # 5 × 0.005, 4 × 0.01, 3 × 0.03, then no less than that, and 0.9.
    assert found == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.9])
    assert [one.shown == "gain" for one in adjusted.values()] == [True, False, False, True, False]
    # What the first table has shown stays as it was.
    shown = significance.first_shown(adjusted, {key: replace(one, mean=-5.0) for key, one in adjusted.items()})
    assert [one.mean for one in shown.values()] == [10, -5, -5, 10, -5]
    twice = significance.adjust(table, rounds=2)
    assert [one.adjusted for one in twice.values()] == pytest.approx([0.08, 0.18, 0.18, 0.05, 1])


# ---- recommendations ----

GAIN, HARM, NOTHING = difference_of(10, 1e-6), difference_of(-10, 1e-6), difference_of(1, 0.3)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_rule(scaled) -> None:
    mixes = {"helper": (GAIN, NOTHING), "poison": (NOTHING, HARM), "mixed": (GAIN, HARM), "none": (NOTHING, NOTHING)}
    table = {("base", mix, f"task{place}"): mixes[mix][place] for mix in mixes for place in (0, 1)}
    found = {one.mix: one for one in significance.recommend(significance.adjust(table), scaled)}
    undecided = "drop" if scaled else "scale up"
    assert [found[mix].verdict for mix in mixes] == ["keep", "drop", "trade-off", undecided]
    assert found["helper"].reason == (
        "task0 +10.0 ± 1.0 points (corrected p 8e-06), task1 +1.0 ± 1.0 points (corrected p 1)"
    )
    assert "not distinguishable from the reference" in found["none"].reason


def test_a_mix_that_helps_one_base_only() -> None:
    table = {("first", "mix", "task"): GAIN, ("second", "mix", "task"): NOTHING}
    first, second = significance.recommend(significance.adjust(table))
    assert "helps this base only" in first.reason
    assert "only" not in second.reason
    for other in ({}, {("second", "mix", "task"): GAIN}, {("second", "another", "task"): NOTHING}):
        first, *_ = significance.recommend(significance.adjust({("first", "mix", "task"): GAIN} | other))
        assert "only" not in first.reason


# ---- plans ----


def test_the_best_of_n_by_luck() -> None:
    # Known values of the expected highest of n normal variables.
    expected = {1: 0.0, 2: 1 / math.sqrt(math.pi), 3: 1.5 / math.sqrt(math.pi), 10: 1.5388}
    for n, highest in expected.items():
        assert significance.best_by_luck(0.02, n) == pytest.approx(0.02 * highest, abs=1e-5)


def test_the_classes_of_noise() -> None:
    kinds = [
        significance.Noise(deviation, 0.0, 1.0).kind
        for deviation in (1.48, significance.HIGH_NOISE, 0.56, significance.LITTLE_NOISE, 0.22)
    ]
    assert kinds == ["high", "high", "stable", "stable", "very stable"]
    assert [significance.Noise(1.48, 0.0, 1.0).repeats_for(target) for target in (2, 1.48, 0.74, 0.5)] == [1, 1, 4, 9]


def test_noise_that_the_number_of_questions_does_not_explain() -> None:
    """All answers of a repeat rise or fall together, as with another batch size."""
    random = np.random.default_rng(6)
    together = random.choice([0.3, 0.7], (40, 5, 1))
    found = significance.noise(100 * (random.random((40, 5, 400)) < together))
    # 400 between repeats, 2100 / 400 within them.
    assert found.deviation == pytest.approx(20, abs=3 * found.error)
    assert found.explained < 0.05


def test_the_smallest_difference_falls_with_questions_seeds_and_repeats() -> None:
    def smallest(questions: int, seeds: int, **options: int) -> float:
        return significance.smallest_difference(questions, seeds, arms=6, **options)

    usual = smallest(200, 2)
    assert smallest(800, 2) < usual
    assert smallest(200, 4) < usual
    assert smallest(200, 2, repeats=4) < usual < smallest(200, 2, tests=10)
    # A hundred questions and two seeds do not show two points.
    assert smallest(100, 2) > 10
    # With endless questions, the deviation between seeds remains: 2.8 errors of √(2 / seeds) points.
    assert smallest(10**7, 50) == pytest.approx(2.8 * math.sqrt(2 / 50), rel=0.02)


def made_pairs(random: np.random.Generator, shift: float, seeds: int, mixes: int = 3) -> significance.Table:
    """Return the adjusted table of a lab of base models: pairs differ by 1 beside the shift of the first mix."""
    cells = {mix: random.normal(0, 5, seeds)[:, None] for mix in ("plain",)}
    for mix in range(mixes):
        own = random.normal(-shift if mix == 0 else 0, 1, seeds)[:, None]
        cells[mix] = cells["plain"] + own
    found = {("base", mix, "bpb"): significance.contrast_of_pairs(cells, [mix], ["plain"]) for mix in range(mixes)}
    return significance.adjust(found)


def test_pairs_without_an_effect_show_none() -> None:
    random = np.random.default_rng(11)
    wrong = sum(
        any(one.shown != significance.UNCLEAR for one in made_pairs(random, 0, 4).values()) for _ in range(1000)
    )
    assert 20 <= wrong <= 72  # of 1000, 50 expected at most: three standard errors above


@pytest.mark.parametrize("seeds", [2, 3, 5, 8])
def test_the_smallest_difference_of_pairs_is_found_four_times_in_five(seeds: int) -> None:
    random = np.random.default_rng(seeds)
    shift = significance.smallest_of_pairs(seeds, 1)
    found = [made_pairs(random, shift, seeds, mixes=1)["base", 0, "bpb"] for _ in range(1000)]
    assert np.mean([one.shown == "gain" for one in found]) == pytest.approx(0.8, abs=0.04)
    assert significance.smallest_of_pairs(seeds, 6) > shift


def test_pairs_by_hand() -> None:
    cells = {
        "plain": np.array([[1.0], [2.0], [np.nan], [4.0]]),
        "mix": np.array([[0.9], [1.8], [2.0], [3.7]]),
        "lost": np.array([[np.nan], [np.nan], [3.0], [np.nan]]),
    }
    one = significance.contrast_of_pairs(cells, ["mix"], ["plain"])
    expected = stats.ttest_rel([0.9, 1.8, 3.7], [1.0, 2.0, 4.0])
    assert (one.mean, one.freedom, one.p) == pytest.approx((-0.2, 2, expected.pvalue))
    assert (one.low, one.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert str(replace(one, adjusted=0.5)) == "-0.2000 ± 0.0577 bits per byte (corrected p 0.5)"
    assert math.isnan(significance.contrast_of_pairs(cells, ["lost"], ["plain"]).mean)
    same = significance.contrast_of_pairs(cells, ["plain"], ["plain"])
    assert (same.mean, same.p, str(same)) == (0, 1, "the same bits per byte, seed by seed")
    shown = significance.adjust({("b", "m", "bpb"): replace(one, p=0.001), ("b", "n", "x"): replace(one, p=0.001)})
    assert shown["b", "m", "bpb"].shown == "gain"
    more = significance.adjust({("b", "m", "bpb"): replace(one, mean=0.2, p=0.001)})
    assert more["b", "m", "bpb"].shown == "harm"


def test_seeds_that_change_nothing_show_nothing() -> None:
    cells = {"plain": np.full((4, 1), 1.3), "mix": np.full((4, 1), 1.1)}
    cells["mix"][2] += 1e-15  # rounding
    found = significance.contrast_of_pairs(cells, ["mix"], ["plain"])
    assert (found.mean, found.error, found.p) == (pytest.approx(-0.2), 0, 1)
    assert math.isnan(found.low)
    [verdict] = significance.recommend(significance.adjust({("base", "mix", "bpb"): found}))
    assert verdict.verdict == "scale up"
    assert "bpb -0.2000 bits per byte with every seed: seeds change nothing, so nothing is shown" in verdict.reason


@pytest.mark.parametrize(
    ("lost", "verdict", "reason"),
    [
        (0, "keep", "good"),
        (1, "keep", "good; 1 of 4 runs broke"),
        (2, "trade-off", "good; 2 of 4 runs broke, too many to keep it"),
    ],
)
def test_a_mix_whose_runs_break_is_not_kept(lost: int, verdict: str, reason: str) -> None:
    runs = {("base", "mix"): lost * [True] + (4 - lost) * [False], ("base", "plain"): 4 * [False]}
    [one] = significance.count_broken([significance.Recommendation("base", "mix", "keep", "good")], runs, "plain")
    assert (one.verdict, one.reason) == (verdict, reason)
    runs["base", "plain"][0] = True
    [one] = significance.count_broken([one], runs | {("base", "mix"): [False]}, "plain")
    assert one.reason == f"{reason}; 1 of 4 runs of plain broke"
