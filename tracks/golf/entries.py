"""The golf track: budgets, entries and tricks as tables, and the count of bytes.

An entry is a row of flags for tracks.golf.train and a plan for tracks.golf.pack. A trick is a change that can be
undone: `--without=NAME` gives the flags of the entry without it; the ablation does so for each.

python -m tracks.golf.entries --scale=cpu --entry=golf flags
python -m tracks.golf.entries --without=smear flags
python -m tracks.golf.entries --scale=1gpu tricks
"""

import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from nanochat.config import Positional, check_names, option, options, run_script
from nanochat.environment import ROOT
from nanochat.errors import UserError
from nanochat.jobs.scales import Flags, flag_words, read_flags
from nanochat.log import Record

DEFAULTS = {"--scale": "embedded", "--entry": "golf", "--without": ""}  # flags of this module
PARTS = ("baselines", "vocabulary", "data", "plan", "flags", "tricks")


@options("entry")
class Config:
    """Print a part of the tables for an entry; its flags are those of tracks.golf.train."""

    part: Positional[str] = option("", f"what to print: {', '.join(PARTS)} (default: none)", in_card=False)
    scale: str = option(DEFAULTS["--scale"], "budget", in_card=False)
    entry: str = option(DEFAULTS["--entry"], "row of the table of entries", in_card=False)
    without: str = option(DEFAULTS["--without"], "trick to leave out (default: none)", in_card=False)
    flags: str = option(
        "",
        "flags that win over the row's, in quotes; unknown flags are read as well (default: none)",
        rest=True,
        in_card=False,
    )

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise UserError(f"name what to print at the end: one of {', '.join(PARTS)}, not '{self.part}'")


@dataclass(frozen=True)
class Scale:
    """A budget, and the flags that all of its entries share."""

    bytes: int  # of the model and of the code that scores it
    seconds: float  # for training (its part is in the flags), calibration, quantization and packing
    scoring: float  # seconds
    stride: int  # tokens; the shortest that --stride=-1 chooses
    eval_bytes: int  # of validation text
    vocabulary: int
    flags: Flags
    device: str = "cpu"  # of the scoring process


MARGIN = 2.0  # allowed time of scoring over the estimate: the machine may become busy

# Validation is not on the clock; the card draws it over the clock.
QUIET = {"--eval-every": "400", "--save-every": "-1", "--eval-bytes": "100000", "--window-pattern": "L"}
SMALL = {**QUIET, "--head-dim": "32", "--max-seq-len": "256", "--warmup-steps": "20", "--weight-decay": "0.01"}
ScaleName = Literal["embedded", "cpu", "1gpu"]  # the keys
SCALES = {
    "embedded": Scale(  # one minute on two cores, the embedded world
        bytes=200_000,
        seconds=60,
        scoring=60,
        stride=32,
        eval_bytes=300_000,
        vocabulary=1024,
        flags={**SMALL, "--total-batch-size": "1024", "--target-seconds": "50", "--data": "world"},
    ),
    "cpu": Scale(  # ten minutes on two cores, text from a hub or a folder
        bytes=1_000_000,
        seconds=600,
        scoring=300,
        stride=64,
        eval_bytes=1_000_000,
        vocabulary=1024,
        flags={**SMALL, "--total-batch-size": "2048", "--target-seconds": "560", "--data": "mixed-text"},
    ),
    "1gpu": Scale(  # ten minutes on one GPU
        bytes=16_000_000,
        seconds=600,
        scoring=600,
        stride=64,
        eval_bytes=20_000_000,
        vocabulary=4096,
        flags={
            **QUIET,
            "--head-dim": "64",
            "--max-seq-len": "2048",
            "--total-batch-size": "131072",
            "--target-seconds": "540",
        },
        device="cuda",
    ),
}
BASELINES = ("naive-narrow", "naive-middle", "naive-wide")  # entries; the best of them is the baseline
NAIVE = {"--model": "october-2025,tie_embeddings=true", "--plan": "int8-row"}
# The best rates of three tried with a baseline, at both scales.
SMALL_NAIVE = {**NAIVE, "--matrix-lr": "0.04", "--unembedding-lr": "0.016"}
# Nearly the same steps in training and in the file: tracks.golf.pack scales the clips only a little to fill 200 kB.
CODES = "embed|head=int8-row+clip-37.9,blocks=int6-row+clip-11.4"
# A code of Gaussian weights has about 2.05 + log2(largest code / clip) bits, and LZMA needs 2.5 % more: 23 M codes are
# 15.8 MB. Six bits would clip at three deviations, so the codes are eight bits wide.
LARGE_CODES = "int8-row+clip-13.3"
SEED_CODES = "embed|head=int8-row,blocks=int6-row"
# Entry and scale → flags for tracks.golf.train, and --plan for tracks.golf.pack.
ENTRIES: dict[tuple[str, str], Flags] = {
    ("golf", "embedded"): {
        "--model": "golf,backout=false",
        "--unembedding-lr": "0.016",
        "--depth": "2",
        "--width": "96",
        "--qat": CODES,
        "--plan": CODES,
    },
    # Larger models have too few steps in the time of the scale cpu, so the bytes suffice for int8 without QAT.
    ("golf", "cpu"): {"--model": "golf", "--depth": "4", "--width": "128", "--plan": "int8-row"},
    ("golf", "1gpu"): {
        "--model": "golf",
        "--depth": "9",
        "--width": "512",
        "--kv-heads": "4",
        "--qat": LARGE_CODES,
        "--plan": LARGE_CODES,
    },
    # The seed of the track, as it was trained on one H100. Learning rates and decay are divided by the factors that
    # param_groups and scaling apply at this width and size.
    ("seed", "1gpu"): {
        "--model": "golf-seed",
        "--depth": "8",
        "--width": "512",
        "--kv-heads": "4",
        "--total-batch-size": "524288",
        "--warmdown-ratio": "0.2",
        "--matrix-lr": "0.032",
        "--unembedding-lr": "0.0327",
        "--scalar-lr": "0.32",
        "--weight-decay": "0.00542",
        # As its run's log has it: QAT began at step 1378 of 1621, 85 % of the ten minutes. Its text says the last 10 %,
        # which is the claim in tracks/golf/arms.py.
        "--qat-share": "0.15",
        "--qat": SEED_CODES,
        "--plan": SEED_CODES,
    },
    # Nothing scales a file without clips, so these leave some kB: for other seeds, for fewer steps on a slow machine,
    # which compress worse, and for the code, which grows.
    ("naive-narrow", "embedded"): {**SMALL_NAIVE, "--depth": "3", "--width": "44", "--head-dim": "22"},
    ("naive-narrow", "cpu"): {**SMALL_NAIVE, "--depth": "7", "--width": "96"},
    ("naive-narrow", "1gpu"): {**NAIVE, "--depth": "9", "--width": "384", "--kv-heads": "3"},
    ("naive-middle", "embedded"): {**SMALL_NAIVE, "--depth": "1", "--width": "64"},
    ("naive-middle", "cpu"): {**SMALL_NAIVE, "--depth": "4", "--width": "128"},
    ("naive-middle", "1gpu"): {**NAIVE, "--depth": "5", "--width": "512", "--kv-heads": "4"},
    ("naive-wide", "embedded"): {**SMALL_NAIVE, "--depth": "1", "--width": "68", "--head-dim": "34"},
    ("naive-wide", "cpu"): {**SMALL_NAIVE, "--depth": "2", "--width": "160"},
    ("naive-wide", "1gpu"): {**NAIVE, "--depth": "3", "--width": "640", "--kv-heads": "5"},
}
VOCABULARIES = {"seed": 1024}  # of entries that do not use the scale's


@dataclass(frozen=True)
class Trick:
    """A change of an entry, by what undoes it."""

    model: str = ""  # fields that are added to --model
    flags: Flags = field(default_factory=dict)  # these replace the entry's
    dropped: Sequence[str] = ()  # flags that the entry has because of the trick


TRICKS = {
    "tied embeddings": Trick(model="tie_embeddings=false"),
    "induction": Trick(model="induction=false"),
    "XSA": Trick(model="exclusive_last=0"),
    "leaky2": Trick(model="mlp=relu2"),
    "narrow MLP": Trick(model="mlp_ratio=4"),
    "partial RoPE": Trick(model="rope_dims=0"),
    "QK gain": Trick(model="query_gain=0"),
    "attention eps": Trick(model=f"qk_eps={2**-23}"),  # the eps of all norms
    "orthogonal init": Trick(model="orthogonal=false"),
    "smear": Trick(model="smear=false,induction=false"),
    "backout": Trick(model="backout=false"),
    "residual factors": Trick(model="residual_lambdas=false,x0_lambdas=false"),
    # GPTQ stands in for it.
    "late QAT": Trick(flags={"--plan": "embed|head=int8-row+clip-40,blocks=int6-row+clip-12+gptq"}, dropped=["--qat"]),
    "compilation": Trick(flags={"--no-compile": ""}),
}


HORIZONS = {  # flags that end a run
    "--num-iterations",
    "--target-seconds",
    "--target-flops",
    "--target-param-data-ratio",
}


def with_flags(scale: Scale, row: Flags, given: Flags) -> dict[str, str]:
    """Return the flags of a row at a scale; given ones win over them."""
    flags = {**scale.flags, **row}
    if given.keys() & HORIZONS:
        del flags["--target-seconds"]
    return {**flags, **given}


def undo(flags: Flags, trick: Trick) -> dict[str, str]:
    """Return the flags of an entry without a trick."""
    found = {**flags, **trick.flags}
    if trick.model:
        found["--model"] += f",{trick.model}"
    for flag in trick.dropped:
        found.pop(flag, None)
    return found


def expand(given: Flags) -> dict[str, str]:
    """Return the flags of an entry for --scale, --entry and --without; other given flags win over its own."""
    given = {**DEFAULTS, **given}
    entries = [entry for entry, scale in ENTRIES if scale == given["--scale"]]
    for flag, known in {"--scale": SCALES, "--entry": entries, "--without": ["", *TRICKS]}.items():
        check_names(f"{flag}:", [given[flag]], known)
    name, entry, without = (given.pop(flag) for flag in DEFAULTS)
    flags = with_flags(SCALES[name], ENTRIES[entry, name], given)
    return undo(flags, TRICKS[without]) if without else flags


def tricks_of(given: Flags) -> list[str]:
    """Return the tricks that an entry has."""
    from nanochat.models import config_fields, config_with

    def meaning(trick: str) -> Record:
        flags = expand({**given, "--without": trick})
        return flags | {"--model": config_with(config_fields(flags["--model"]))}

    own = meaning("")
    return [name for name, trick in TRICKS.items() if own.keys() >= set(trick.dropped) and meaning(name) != own]


# ---- size ----


def code_bytes() -> int:
    """Return the bytes of our own source that the scoring process imports, asked of such a process."""
    program = "from tracks.golf.score import sources; print(sum(sources().values()))"
    return int(subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True).stdout)


def check_size(groups: Mapping[str, int], budget: int) -> int:
    """Return the bytes of all groups; UserError if they are above the budget."""
    total = sum(groups.values())
    if total > budget:
        named = ", ".join(f"{group} {size:,}" for group, size in Counter(groups).most_common(3))
        raise UserError(f"{total:,} bytes are {total - budget:,} over the budget of {budget:,}; the largest: {named}")
    return total


def main(config: Config) -> None:
    given = read_flags(shlex.split(config.flags))
    given |= {"--scale": config.scale, "--entry": config.entry, "--without": config.without}
    flags = expand(given)
    plan = flags.pop("--plan")
    if config.part == "baselines":
        lines = list(BASELINES)
    elif config.part == "vocabulary":
        lines = [str(VOCABULARIES.get(config.entry, SCALES[config.scale].vocabulary))]
    elif config.part == "data":
        lines = [flags.get("--data", "auto")]
    elif config.part == "plan":
        lines = [plan]
    elif config.part == "flags":
        lines = flag_words(flags)
    else:
        lines = tricks_of(given)
    print(*lines, sep="\n")


if __name__ == "__main__":
    # Behind flags of training, tyro would read the part as one of them.
    *words, last = sys.argv
    if last in PARTS:
        sys.argv[1:] = [last, *words[1:]]
    run_script(main)
