"""How long the runs of a trial are, and on which text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TrialScale:
    """The runs of a scale."""

    description: str
    data: str  # a corpus; empty: an embedded world of a seed that nobody knows
    vocab_size: int
    train_bytes: int  # of text to learn from
    eval_bytes: int  # of validation text, and as many of the holdout's
    flags: Mapping[str, str]  # of scripts.base_train
    depths: tuple[int, int]  # of a trial, and the second one
    flops: float  # of a run at the first depth
    steps: int
    seconds: float
    patience: float  # seconds after which a run by FLOPs or steps has hung
    floor: int = 6  # runs of the incumbent, for the noise floor

    def budget(self, name: str, depth: int) -> str:
        """Return the flag that ends a run. A deeper model has more FLOPs or seconds, in proportion to its layers."""
        factor = depth / self.depths[0]
        if name == "steps":
            return f"--num-iterations={self.steps}"
        if name == "seconds":
            return f"--target-seconds={self.seconds * factor:g}"
        return f"--target-flops={self.flops * factor**2:g}"


ScaleName = Literal["tiny", "embedded", "cpu"]  # the keys
SCALES = {
    "tiny": TrialScale(
        "the embedded world, seconds a run: a look at how a trial goes",
        data="",
        vocab_size=512,
        train_bytes=300_000,
        eval_bytes=4_000,
        flags={
            "--head-dim": "32",
            "--aspect-ratio": "32",
            "--max-seq-len": "128",
            "--window-pattern": "L",
            "--total-batch-size": "1024",
            "--warmup-steps": "5",
        },
        depths=(1, 2),
        flops=2.5e10,
        steps=60,
        seconds=5,
        patience=300,
        floor=3,
    ),
    "embedded": TrialScale(
        "the embedded world, a minute and a half a run on two cores",
        data="",
        vocab_size=1024,
        train_bytes=6_000_000,
        eval_bytes=60_000,
        flags={
            "--model": "induction",
            "--width": "128",
            "--head-dim": "32",
            "--max-seq-len": "256",
            "--window-pattern": "L",
            "--unembedding-lr": "0.015",
            "--scalar-lr": "0.125",
            "--warmup-steps": "20",
            "--total-batch-size": "2048",
        },
        depths=(4, 6),
        flops=3e12,
        steps=200,
        seconds=45,
        patience=900,
    ),
    "cpu": TrialScale(
        "real text, ten minutes a run on two cores",
        data="auto",
        vocab_size=4096,
        train_bytes=40_000_000,
        eval_bytes=200_000,
        flags={
            "--head-dim": "64",
            "--max-seq-len": "512",
            "--window-pattern": "L",
            "--total-batch-size": "8192",
        },
        depths=(4, 6),
        flops=6e13,
        steps=300,
        seconds=600,
        patience=7200,
    ),
}
BudgetName = Literal["flops", "steps", "seconds"]
