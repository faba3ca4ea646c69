"""The scales of the main job: what each stage is asked for on a machine of a size. Its figures stand here alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nanochat.hardware import Accelerator

VOCABULARY = "--max-chars=2e9 --doc-cap=10000"  # text that the tokenizer learns from
EVENING = ((70, 16), (30, 12), (20, 10), (10, 8), (0, 6))  # GB of one GPU -> depth that it trains in about an evening
EIGHT = 8  # GPUs, of
HORIZONS = ("--num-iterations", "--target-param-data-ratio")
LARGE = 79  # GB at least: then the model is as good as GPT-2


@dataclass(frozen=True)
class Scale:
    """about: in a few words. world: whether its text is the embedded world, where none is named. depth: 0, by memory.

    flags: script -> its flags. tokens, seconds (by step; clock: those base training counts), memory, disk (GB): as
    measured on two cores, for the plan to expect; where there are none they are reckoned.
    """

    about: str
    world: bool
    depth: int
    flags: Mapping[str, str]
    tokens: float = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    clock: float = 0
    memory: float = 0
    disk: float = 0


# A CPU has no time for all problems of all tasks.
FEW = {
    "base_loss": "--eval-bytes=500000",
    "base_eval": "--max-per-task=100",
    "chat_eval": "--max-problems=100 --max-new-tokens=128",
}
# In minutes, on two cores: a model that learns soon to look things up, deep and narrow, by large steps, and chats in
# which choices are named with their letters, for by letters alone it has not learned to choose: dev/LOG.md. A number of
# steps each, so that a slow machine takes longer and learns the same.
SOON = "--model=induction --width=128 --head-dim=32 --max-seq-len=256 --window-pattern=L --eval-bytes=100000"
LARGE_STEPS = "--matrix-lr=0.08 --embedding-lr=1.2 --unembedding-lr=0.06 --warmup-steps=20 --total-batch-size=2048"
CHATS = "SmolTalk:0.33,Identity,GSM8K:0.15,AQUA-Rationale,MMLU:0.17,MMLU-Named:0.7,SimpleSpelling:0.2,SpellingBee:0.2"
# A CPU is better off with few words, and with a short context; saved often, since its steps are few and long.
SMALL = "--head-dim=64 --max-seq-len=512 --window-pattern=L --eval-bytes=500000 --save-every=100"
TUNED = "--eval-metrics-max-problems=50 --save-every=100"
TAUGHT = f"--mixture={CHATS} --eval-tokens=30000 {TUNED}"
REWARDED = "--task=GSM8K --eval-examples=100 --save-every=10"

SCALES = {
    "embedded": Scale(
        "the embedded world on a CPU, some minutes of training",
        world=True,
        depth=8,
        flags={
            "tok_train": f"--vocab-size=4096 {VOCABULARY}",
            "base_train": f"{SOON} {LARGE_STEPS} --save-every=100 --num-iterations=500",
            "mid_train": f"--num-iterations=110 {TAUGHT}",
            "chat_sft": f"--num-iterations=48 --init-lr-frac=0.2 {TAUGHT}",
            "chat_rl": f"--num-iterations=20 --max-new-tokens=100 --init-lr-frac=0.03 {REWARDED}",
            **FEW,
            "base_loss": "--eval-bytes=200000",
        },
        tokens=1e6,
        seconds={
            "world": 8,
            "tok_train": 1,
            "tok_eval": 4,
            "base_train": 265,
            "base_loss": 20,
            "base_eval": 9,
            "mid_train": 72,
            "chat_eval_mid": 13,
            "chat_sft": 42,
            "chat_eval_sft": 14,
            "chat_rl": 95,
            "chat_eval_rl": 14,
            "report": 1,
        },
        clock=248,
        memory=1.5,
        disk=1.5,
    ),
    "cpu": Scale(
        "real text on a CPU, an evening",
        world=False,
        depth=4,
        flags={
            "tok_train": f"--vocab-size=8192 {VOCABULARY}",
            "base_train": f"{SMALL} --total-batch-size=8192 --target-seconds=7200",
            "mid_train": f"--target-seconds=1800 {TUNED}",
            "chat_sft": f"--target-seconds=1800 {TUNED}",
            "chat_rl": f"--num-iterations=100 {REWARDED}",
            **FEW,
        },
        tokens=4e7,
        memory=2,
        disk=4,
    ),
    "1gpu": Scale(
        "a depth that fits the memory, an evening",
        world=False,
        depth=0,
        flags={
            "tok_train": f"--vocab-size=65536 {VOCABULARY}",
            "base_train": "--target-param-data-ratio=12 --core-metric-every=2000",
            "mid_train": "--keep-last=1",
            "chat_sft": "--keep-last=1",
            "chat_rl": "--task=GSM8K --keep-last=1",
        },
    ),
    "8xh100": Scale(
        "as good as GPT-2, in some hours",
        world=False,
        depth=24,
        flags={
            "tok_train": f"--vocab-size=65536 {VOCABULARY}",
            "base_train": "--target-param-data-ratio=8 --fp8 --core-metric-every=2000",
            "mid_train": "--keep-last=1",
            "chat_sft": "--keep-last=1",
            "chat_rl": "--task=GSM8K --keep-last=1",
        },
    ),
}


def choose(gpus: int, accelerator: Accelerator | None, has_text: bool) -> tuple[str, str]:
    """The scale of --scale=auto, and why it is that."""
    if not gpus:
        return "embedded", "no GPU is here"
    if not has_text:
        return "embedded", "no text is here, and no network to fetch some"
    if gpus >= EIGHT and (accelerator.memory or 0) >= LARGE:
        return "8xh100", f"{gpus} GPUs of {accelerator.memory:g} GB"
    return "1gpu", f"fewer than {EIGHT} GPUs of 80 GB"


def evening_depth(accelerator: Accelerator | None) -> int:
    """What one GPU trains in an evening; the least where its memory is not known."""
    memory = accelerator.memory or 0 if accelerator else 0
    return next(depth for least, depth in EVENING if memory >= least)


def flags_of(scale: Scale, script: str, seconds: float = 0) -> dict[str, str]:
    """Flag -> value ("": it has none). seconds: of base training, all clocks and counts of steps in proportion."""
    words = (word.partition("=") for word in scale.flags.get(script, "").split())
    flags = {name: value for name, _, value in words}
    if not seconds:
        return flags
    usual = flags_of(scale, "base_train").get("--target-seconds", scale.clock)
    share = float(usual) and seconds / float(usual)
    if script == "base_train":
        flags = {name: value for name, value in flags.items() if name not in HORIZONS}
        flags["--target-seconds"] = f"{seconds:g}"
    elif share and "--target-seconds" in flags:
        flags["--target-seconds"] = f"{float(flags['--target-seconds']) * share:g}"
    elif share and "--num-iterations" in flags:
        flags["--num-iterations"] = str(max(1, round(int(flags["--num-iterations"]) * share)))
    return flags
