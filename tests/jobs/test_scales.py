"""Which scale a machine gets, and what it asks of the stages."""

import pytest

from nanochat.hardware import Accelerator, parse_named
from nanochat.jobs.scales import EVENING, SCALES, choose, evening_depth, flags_of
from nanochat.stages import STAGES


@pytest.mark.parametrize(
    ("named", "has_text", "name"),
    [
        ("8xH100", True, "8xh100"),
        ("16xB200", True, "8xh100"),
        ("8xA100-40GB", True, "1gpu"),
        ("4xH100", True, "1gpu"),
        ("RTX-4090", True, "1gpu"),
        ("8xH100", False, "embedded"),
    ],
)
def test_what_auto_chooses(named, has_text, name):
    assert choose(*parse_named(named), has_text)[0] == name
    assert choose(0, None, has_text) == ("embedded", "no GPU is here")


def test_depth_follows_the_memory():
    depths = [evening_depth(Accelerator("some", memory=memory)) for memory in (8, 12, 24, 48, 80, 192)]
    assert depths == sorted(set(depths)) + depths[-1:]
    assert evening_depth(None) == evening_depth(Accelerator("unknown")) == EVENING[-1][1]


def test_the_table_names_stages_that_exist():
    scripts, steps = {stage.script for stage in STAGES}, {stage.name for stage in STAGES} | {"world", "report"}
    for scale in SCALES.values():
        assert scale.flags.keys() <= scripts
        assert scale.seconds.keys() <= steps


def test_all_clocks_go_with_that_of_base_training():
    scale = SCALES["cpu"]
    whole = {script: flags_of(scale, script) for script in scale.flags}
    half = {script: flags_of(scale, script, float(whole["base_train"]["--target-seconds"]) / 2) for script in whole}
    for script in ("base_train", "mid_train", "chat_sft"):
        assert float(half[script]["--target-seconds"]) == float(whole[script]["--target-seconds"]) / 2
    assert int(half["chat_rl"]["--num-iterations"]) == int(whole["chat_rl"]["--num-iterations"]) / 2
    assert half["tok_train"] == whole["tok_train"]
    scale = SCALES["embedded"]  # which counts steps
    seconds = scale.clock
    assert flags_of(scale, "base_train", seconds / 2)["--target-seconds"] == f"{seconds / 2:g}"
    assert "--num-iterations" not in flags_of(scale, "base_train", seconds / 2)
    for script in ("mid_train", "chat_sft", "chat_rl"):
        whole, half = (int(flags_of(scale, script, over)["--num-iterations"]) for over in (0, seconds / 2))
        assert half == pytest.approx(whole / 2, abs=1)
    short = flags_of(SCALES["8xh100"], "base_train", 60)
    assert (short["--target-seconds"], short["--fp8"], "--target-param-data-ratio" in short) == ("60", "", False)
