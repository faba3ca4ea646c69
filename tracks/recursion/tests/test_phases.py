"""The two phases on H100: their plans. The tests of the training script have recursive runs."""

import pytest
from small_runs import SMALL


@pytest.mark.parametrize(("phase", "preset"), [("fast", "aggressive"), ("extreme", "extreme")])
def test_phases_are_presets(series, base, phase, preset):
    done = series("tracks.recursion.phases", f"--phase={phase}", "--data=letters", *SMALL, "--dry-run")
    assert f"recursion {preset}: each block runs 4 exits x 1 passes x (2 loops + 1) times" in done.stdout
    assert not (base / "tok_train").exists()
