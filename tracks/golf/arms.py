"""The claims of golf's seed as a table of arms: its row at the small scales, and what each claim is compared with.

The seed is the entry that the track started from: ten minutes on one H100, 16 MB, one run. The rows keep its shape: 8
layers, an MLP of 3, two heads of queries for each of keys, half of a head's channels rotated, quantization as there.
They are smaller, so that the file has the bytes of the scale with 9 layers too. An arm is the row with one thing turned
off, or to the value that the seed had before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nanochat.config import check_names
from nanochat.jobs.scales import Flags
from tracks.golf.entries import SCALES, SEED_CODES, Trick, undo, with_flags

SEED_NAME = "seed"  # of the row, in tags
STRIDE = 128  # tokens; the seed's, with which all arms are scored
SHAPE = ("--depth", "--width", "--head-dim", "--kv-heads")

# The rates of matrices and of the embedding are those of the baselines, which were tuned at these scales.
SEED_ROW: Flags = {
    "--depth": "8",
    "--warmdown-ratio": "0.2",
    "--matrix-lr": "0.04",
    "--unembedding-lr": "0.016",
    "--scalar-lr": "0.32",
    # As the seed's text claims it. The log of its run has 0.15, like ("seed", "1gpu") in tracks/golf/entries.py and the
    # arm qat-15.
    "--qat-share": "0.1",
    "--qat": SEED_CODES,
    "--plan": SEED_CODES,
}
ROWS: dict[str, Flags] = {  # scale -> flags for tracks.golf.train, and --plan for tracks.golf.pack
    "embedded": {
        **SEED_ROW,
        "--model": "golf-seed,rope_dims=8",
        "--width": "32",
        "--head-dim": "16",
        "--kv-heads": "1",
    },
    "cpu": {
        **SEED_ROW,
        "--model": "golf-seed,rope_dims=28",
        "--width": "112",
        "--head-dim": "56",
        "--kv-heads": "1",
    },
}


@dataclass(frozen=True)
class Arm:
    """What a claim of the seed is compared with."""

    name: str  # in tags
    claim: str  # what the row has
    figure: str  # what the seed says that it gained; empty: it gives no figure
    instead: str  # what this arm has
    trick: Trick = field(default_factory=Trick)  # what undoes the claim in training
    stride: int | None = None  # of the score, where that alone differs: no run of its own

    @property
    def has_the_rows_shape(self) -> bool:
        """True if a step should take about as long as one of the row."""
        return self.trick.flags.keys().isdisjoint(SHAPE)


ARMS = (
    Arm("rope-all", "RoPE on half of the channels", "0.15 bpb", "all channels", Trick(model="rope_dims=0")),
    Arm("xsa-4", "XSA in the last 2 layers", "3 % less time", "the last 4 layers", Trick(model="exclusive_last=4")),
    Arm("no-xsa", "XSA in the last 2 layers", "", "no XSA", Trick(model="exclusive_last=0")),
    Arm("gain-before", "QK gain from 1.75", "", "from 1.5", Trick(model="query_gain=1.5")),
    Arm("no-gain", "QK gain from 1.75", "", "no gain", Trick(model="query_gain=0")),
    Arm("uniform", "orthogonal init", "", "the usual init", Trick(model="orthogonal=false")),
    # The eps that rms_norm chooses for numbers in bf16.
    Arm("eps-bf16", "attention eps 1e-6", "", f"eps {2**-7:.4f}, that of bf16", Trick(model=f"qk_eps={2**-7}")),
    Arm("layers-9", "8 layers", "300 steps more", "9 layers", Trick(flags={"--depth": "9"})),
    Arm("qat-15", "QAT in the last 10 %", "0.01 bpb", "the last 15 %", Trick(flags={"--qat-share": "0.15"})),
    Arm("no-qat", "QAT in the last 10 %", "", "no QAT", Trick(dropped=["--qat", "--qat-share"])),
    Arm("no-overlap", "score with stride 128", "", "rows that do not overlap", stride=0),
    Arm("stride-96", "score with stride 128", "96 would be better", "stride 96", stride=96),
    # 128 is a sixteenth of the seed's context.
    Arm("stride-16", "score with stride 128", "", "stride 16, a sixteenth of the context", stride=16),
)


def arms_of(names: str) -> list[Arm]:
    """Return the arms of a list of names with commas between them; all for an empty text."""
    known = {arm.name: arm for arm in ARMS}
    if not names:
        return list(ARMS)
    asked = list(dict.fromkeys(names.split(",")))
    check_names("--arms:", asked, known)
    return [arm for arm in ARMS if arm.name in asked]


def trained(arms: Sequence[Arm]) -> list[Arm]:
    """Return the arms that have runs of their own."""
    return [arm for arm in arms if arm.stride is None]


def strides_of(arms: Sequence[Arm]) -> list[int]:
    """Return the strides with which the row is scored, its own first."""
    return [STRIDE, *(arm.stride for arm in arms if arm.stride is not None)]


def arm_flags(scale: str, arm: Arm | None, given: Flags) -> dict[str, str]:
    """Return the flags of an arm, or of the row for None; given flags win over the row's, the arm's over both."""
    flags = with_flags(SCALES[scale], ROWS[scale], given)
    return undo(flags, arm.trick) if arm else flags
