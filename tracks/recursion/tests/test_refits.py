"""Refits that are kept, and how long they are expected to take."""

from pathlib import Path

import pytest
from outcomes import leave

from nanochat.paths import write_json
from nanochat.statistics import Estimate
from tracks.recursion.depth import DepthResult
from tracks.recursion.refits import Refit, measured_seconds, refit_file, refit_time, save_refit, saved_refit

ESTIMATES = [Estimate(1.5, 0.1), Estimate(1.25, 0.2)]
DEPTH = DepthResult(
    ESTIMATES, trained=1, chosen=2, test_trained=ESTIMATES[0], test_chosen=ESTIMATES[1], gain=ESTIMATES[0]
)
SETTINGS = {"depth": 2, "width": 128, "num_iterations": 300}


@pytest.mark.parametrize("depth", [DEPTH, None])
def test_a_refit_comes_back_as_it_was_and_for_its_basis_alone(depth: DepthResult | None, tmp_path) -> None:
    path = tmp_path / "made/refit-1.json"
    basis = {"checkpoint": "abc", "rates": [1.0, 0.25]}
    assert saved_refit(path, basis) is None
    found = Refit(1.7, 1.6, 900, depth, 500.0)
    save_refit(path, basis, found)
    assert saved_refit(path, basis) == found
    assert saved_refit(path, basis | {"checkpoint": "other"}) is None
    assert saved_refit(path, basis | {"new": 1}) is None


def test_the_time_is_that_of_the_card_or_of_finished_seeds(base: Path) -> None:
    # The card: 183 seconds for 300 steps of R; 25 minutes for the refits of three seeds.
    seconds, source = refit_time([], 183, 300)
    assert seconds == pytest.approx(25 * 60 / 3, rel=0.01)
    assert "1,000 steps of each head, and 0.82 of R's training step" in source
    assert refit_time([], None, 300)[0] is None
    assert refit_time([300.0, 400.0], None, 300) == (
        350.0,
        "Their seconds are the mean of 2 that this series has made.",
    )
    for seed, sha256 in enumerate(["first", "again"], 1):
        run = leave(base, "base_train", f"small-R-{seed}").parent
        write_json(run / "step_000300/manifest.json", {"sha256": sha256, "config": SETTINGS | {"seed": seed}})
        basis = {"checkpoint": "second" if seed == 2 else sha256}
        save_refit(refit_file("small", seed), basis, Refit(1.7, 1.6, 900, None, 300.0 * seed))
    # R of the second seed was trained again since, and there is no third one.
    assert measured_seconds("small", 3, SETTINGS) == [300.0]
    assert measured_seconds("small", 3, SETTINGS | {"width": 256}) == []
