"""Scales: the choice for a machine, and the flags of the stages."""

from nanochat.hardware import parse_hardware
from nanochat.jobs.scales import SCALES, choose_scale, scale_flags
from nanochat.stages import STAGES


def test_the_scale_follows_the_hardware_and_horizons_the_time() -> None:
    for case in "8xH100 8xh100 | 8xA100-40GB 1gpu | 4xH100 1gpu | RTX-4090 1gpu".split(" | "):
        named, name = case.split()
        assert choose_scale(*parse_hardware(named), True)[0] == name
    assert choose_scale(*parse_hardware("8xH100"), False)[0] == "embedded"
    assert choose_scale(0, None, True) == choose_scale(0, None, False) == ("embedded", "this machine has no GPU")
    # The table names scripts that exist, and horizons follow the time of base training.
    for scale in SCALES.values():
        assert scale.flags.keys() <= {stage.script for stage in STAGES}
    scale = SCALES["cpu"]
    for script in ("base_train", "mid_train", "chat_sft"):
        whole, half = scale_flags(scale, script), scale_flags(scale, script, 3600)
        assert float(half["--target-seconds"]) == float(whole["--target-seconds"]) / 2
    assert scale_flags(scale, "chat_rl", 3600)["--num-iterations"] == "50"
    assert scale_flags(scale, "tok_train", 3600) == scale_flags(scale, "tok_train")
