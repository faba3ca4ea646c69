"""Scales for the main job: flags for each stage, by machine size."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from nanochat.hardware import Accelerator

Flags = Mapping[str, str]  # flag -> value; empty for a switch

# Flags that several scales share.
VOCABULARY = {"--max-chars": "2e9", "--doc-cap": "10000"}  # text that the tokenizer learns from
# Steps on a CPU are few and long, so checkpoints are saved often.
CPU_TUNING = {"--eval-metrics-max-problems": "50", "--save-every": "100"}
EMBEDDED_TUNING = {"--eval-tokens": "30000", **CPU_TUNING}
CPU_RL = {"--eval-examples": "100", "--save-every": "10"}
GPU_TUNING = {
    "mid_train": {"--keep-last": "1"},
    # The mixture has about 12 M tokens: in base training's batches they would be a dozen steps. Learning rates follow
    # the batch: they begin at a fifth of base training's.
    "chat_sft": {
        "--keep-last": "1",
        "--total-batch-size": "65536",
        "--eval-every": "50",
        "--eval-metrics-every": "100",
    },
    "chat_rl": {"--keep-last": "1", "--num-samples": "16"},
}


@dataclass(frozen=True)
class Scale:
    """Settings for all stages, for one machine size."""

    description: str
    depth: int  # layers in the model; 0: chosen by GPU memory
    flags: Mapping[str, Flags]  # script -> flags
    world: bool = False  # the embedded world is the text
    training_seconds: float = 1.0  # base training's; on GPUs no other stage has a horizon that follows it
    disk: float = 0  # GB, as measured; 0: estimated from the parameter count


ScaleName = Literal["embedded", "cpu", "1gpu", "8xh100"]  # the keys
SCALES = {
    "embedded": Scale(
        "the embedded world or a folder on a CPU, some minutes of training, 1.5 GB of memory",
        world=True,
        depth=8,
        flags={
            "tok_train": {"--vocab-size": "4096", **VOCABULARY},
            # Minutes on two cores: deep, narrow, large steps, so that the model soon learns to copy from the context; a
            # fixed step count, so that a slow machine takes longer and learns the same. Scalars keep the rate of the
            # plain square-root rule: its lower limit would give four times as much. The reasons are in dev/LOG.md.
            "base_train": {
                "--model": "induction",
                "--width": "128",
                "--head-dim": "32",
                "--max-seq-len": "256",
                "--window-pattern": "L",
                "--eval-bytes": "100000",
                "--unembedding-lr": "0.015",
                "--scalar-lr": "0.125",
                "--warmup-steps": "20",
                "--total-batch-size": "2048",
                "--save-every": "100",
                "--num-iterations": "560",
            },
            "mid_train": {
                "--num-iterations": "130",
                "--init-lr-frac": "0.4",
                # At a temperature of 0.6 a model of this size often samples a wrong fact.
                "--chat-temperature": "0.2",
                **EMBEDDED_TUNING,
            },
            "chat_sft": {"--num-iterations": "90", "--init-lr-frac": "0.25", **EMBEDDED_TUNING},
            "chat_rl": {
                "--num-iterations": "22",
                "--max-new-tokens": "100",
                "--init-lr-frac": "0.085",
                # A guard for plain sums and small talk, which a reward for word problems does not ask for.
                "--replay-rows": "16",
                "--replay-weight": "0.5",
                **CPU_RL,
            },
            "base_loss": {"--eval-bytes": "200000"},
            "base_eval": {"--max-per-task": "100"},  # a CPU has no time for all problems from every task
            "chat_eval": {"--max-problems": "200", "--max-new-tokens": "128"},
        },
        training_seconds=261,
        disk=1.5,
    ),
    "cpu": Scale(
        "real text on a CPU, an evening, 2 GB of memory",
        depth=4,
        training_seconds=7200,
        flags={
            "tok_train": {"--vocab-size": "8192", **VOCABULARY},
            "base_train": {
                "--head-dim": "64",
                "--max-seq-len": "512",
                "--window-pattern": "L",
                "--eval-bytes": "500000",
                "--save-every": "100",
                "--total-batch-size": "8192",
                "--target-seconds": "7200",
            },
            "mid_train": {"--target-seconds": "1800", **CPU_TUNING},
            "chat_sft": {"--target-seconds": "1800", **CPU_TUNING},
            "chat_rl": {"--num-iterations": "100", "--max-new-tokens": "128", **CPU_RL},
            "base_loss": {"--eval-bytes": "500000"},
            "base_eval": {"--max-per-task": "100"},
            "chat_eval": {"--max-problems": "400", "--max-new-tokens": "128"},
        },
    ),
    "1gpu": Scale(
        "a depth that fits the GPU's memory, an evening",
        depth=0,
        flags={
            "tok_train": {"--vocab-size": "65536", **VOCABULARY},
            "base_train": {"--target-param-data-ratio": "12", "--core-metric-every": "2000"},
            **GPU_TUNING,
        },
    ),
    "8xh100": Scale(
        "depth 22 with fp8; time and quality are not measured yet",
        depth=22,
        # Depth and vocabulary of the public nanochat's fastest run, its pull request 830. The schedule is that of its
        # main branch, our default. That run had gains in its norms, and a ratio of 9.4: 10 until a machine decides.
        flags={
            "tok_train": {"--vocab-size": "49152", **VOCABULARY},
            "base_train": {
                "--target-param-data-ratio": "10",
                "--fp8": "",
                "--core-metric-every": "2000",
            },
            **GPU_TUNING,
        },
    ),
}
CPU_SCALES = ("embedded", "cpu")
OWN_TEXT_TEMPERATURE = "0.6"  # lower temperatures suit facts; in free text they repeat words
EVENING_DEPTHS = ((70, 16), (30, 12), (20, 10), (10, 8), (0, 6))  # GPU memory in GB, depth that trains in an evening
# From so many GPUs with so many GB: the scale 8xh100.
LARGE_GPUS = 8
LARGE_MEMORY = 79
HORIZONS = ("--num-iterations", "--target-param-data-ratio")  # replaced if --seconds gives the time


def choose_scale(gpus: int, accelerator: Accelerator | None, has_text: bool) -> tuple[str, str]:
    """Return the scale for --scale=auto, and the reason."""
    if not gpus:
        return "embedded", "this machine has no GPU"
    if not has_text:
        return "embedded", "there is no text on this machine, and no network to download any"
    memory = accelerator.memory if accelerator else None
    if gpus >= LARGE_GPUS and (memory or 0) >= LARGE_MEMORY:
        return "8xh100", f"{gpus} GPUs of {memory:g} GB"
    return "1gpu", f"fewer than {LARGE_GPUS} GPUs of 80 GB"


def evening_depth(accelerator: Accelerator | None) -> int:
    """Return the depth that one GPU trains in an evening; the least if the memory is not known."""
    memory = (accelerator.memory or 0) if accelerator else 0
    # The table starts with the largest memory and ends with zero, so one row fits.
    return next(depth for least, depth in EVENING_DEPTHS if memory >= least)


def scale_flags(scale: Scale, script: str, seconds: float = 0) -> dict[str, str]:
    """Return the flags for a script.

    seconds: time for base training, if given; all other horizons change in proportion.
    """
    flags = dict(scale.flags.get(script, {}))
    if not seconds:
        return flags
    factor = time_factor(scale, seconds)
    if script == "base_train":
        # A run has one horizon: the clock takes the place of steps or ratio.
        for name in HORIZONS:
            flags.pop(name, None)
        flags["--target-seconds"] = f"{seconds:g}"
    elif "--target-seconds" in flags:
        flags["--target-seconds"] = f"{float(flags['--target-seconds']) * factor:g}"
    elif "--num-iterations" in flags:
        # Zero steps would be an error.
        flags["--num-iterations"] = str(max(1, round(int(flags["--num-iterations"]) * factor)))
    return flags


def joined_flags(words: Iterable[str]) -> list[str]:
    """Return the words of a command line, where a value that is a word of its own is joined to its flag: --depth=4."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1].startswith("--") and "=" not in joined[-1] and not word.startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def read_flags(words: Iterable[str]) -> dict[str, str]:
    """Return flag -> value for the words of a command line."""
    flags = {}
    for word in joined_flags(words):
        flag, _, value = word.partition("=")
        flags[flag] = value
    return flags


def flag_words(flags: Flags) -> list[str]:
    """Return flags as the words of a command line."""
    return [f"{flag}={value}" if value else flag for flag, value in flags.items()]


def time_factor(scale: Scale, seconds: float) -> float:
    """Return --seconds relative to the scale's usual base training; 1 if --seconds is 0."""
    return seconds / scale.training_seconds if seconds else 1.0
