"""Every exit that was validated has a curve, in the order of exits."""

from nanochat.log import MetricLog
from nanochat.metrics import training_curves


def test_every_exit_has_a_curve(tmp_path) -> None:
    with MetricLog(tmp_path) as log:
        for step in (1, 2):
            log.write("train", step, **{"train/loss": 3.0 / step, "total_training_tokens": 10 * step})
            exits = {f"val/bpb at exit {number}": 1.0 + number for number in range(12)}
            log.write("validation", step, **{"val/bpb": 1.0}, **exits)
    pictures = {picture["title"]: picture for picture in training_curves(log.path)}
    assert list(pictures) == ["Loss", "Validation", "Validation at each exit"]
    assert list(pictures["Validation at each exit"]["series"]) == [f"exit {number}" for number in range(12)]
    assert pictures["Validation at each exit"]["series"]["exit 11"] == [[10, 20], [12.0, 12.0]]
