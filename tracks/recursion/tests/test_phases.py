"""The two phases on H100: their plans. The tests of the training script have recursive runs."""

from pathlib import Path
from typing import get_args

import pytest
from small_runs import SMALL

from tracks.recursion.phases import PHASES, Config, PhaseName, steps
from tracks.recursion.settings import PRESETS, PresetName


@pytest.mark.parametrize(("phase", "preset"), [("fast", "aggressive"), ("extreme", "extreme")])
def test_phases_are_presets(series, base, phase, preset) -> None:
    done = series("tracks.recursion.phases", f"--phase={phase}", "--data=letters", *SMALL, "--dry-run")
    assert f"recursion {preset}: each block runs 4 exits x 1 passes x (2 loops + 1) times" in done.stdout
    assert not (base / "tok_train").exists()


@pytest.mark.parametrize(("out", "name"), [("", "h100-extreme.md"), ("card.md", "card.md")])
def test_a_card_ends_the_series(base, out, name) -> None:
    *_, trained, card = steps(Config(phase="extreme", out=out), "letters", [])
    assert trained.output == "base_train/h100-extreme"
    assert card.command == ["nanochat.report", "--tag=h100-extreme", f"--out={Path.cwd() / name}"]


def test_the_types_of_phases_and_presets_name_the_keys() -> None:
    assert get_args(PhaseName) == tuple(PHASES)
    assert get_args(PresetName) == tuple(PRESETS)
