"""A training on pairs has its curves."""

from nanochat.log import MetricLog
from nanochat.metrics import training_curves


def test_a_run_on_pairs_has_curves_of_pairs(tmp_path) -> None:
    with MetricLog(tmp_path) as log:
        for step in (1, 2):
            of_pairs = {"dpo/accuracy": 0.5, "dpo/margin": 0.1, "dpo/kl": 0.01}
            log.write("train", step, **{"train/loss": 0.7, "total_training_tokens": 10 * step}, **of_pairs)
        log.write("eval", 2, **{"eval/Pair accuracy": 0.6})
    pictures = {picture["title"]: picture["series"] for picture in training_curves(log.path)}
    assert list(pictures) == ["Loss", "Pair accuracy", "Margin", "KL to the parent"]
    assert pictures["Pair accuracy"] == {"train": [[1, 2], [0.5, 0.5]], "held out": [[2], [0.6]]}
    assert pictures["Margin"] == {"train": [[1, 2], [0.1, 0.1]]}
