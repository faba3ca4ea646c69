"""What a run takes beside its training steps: the start, the compiler, evaluations, sampling, saves. Without torch.

Each constant names its source: a table of dev/MEASURED.md, or it is assumed. They are for plans alone; the report card
has what a run took.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nanochat.log import duration

# Imports, joining the ranks, reading the first text. On a CPU: base_train with 10 steps in "The start of a process",
# one thread. On a GPU: assumed.
START_SECONDS = {"cpu": 8.0, "gpu": 20.0}
# The first step of a process without compiled code from earlier ones. On a GPU: 40 s at depth 12, 63 s at depth 20 ("On
# one GPU"), a line through both. On a CPU: "Training step on a CPU", depth 4; assumed for all depths.
COMPILE_SECONDS = {"cpu": 41.0, "gpu": 5.5}
COMPILE_LAYER_SECONDS = {"cpu": 0.0, "gpu": 2.9}
# With code of an earlier stage, in the same place; on a GPU it is not counted on, as shapes and precision differ.
WARM_SECONDS = {"cpu": 5.0}
# Assumed: the search for the device batch compiles one size that is too large; validation compiles the forward alone.
SEARCH_COMPILES = 1.0
VALIDATION_COMPILES = 0.5
FORWARD = 1 / 3  # of the FLOPs of forward and backward
UNCOMPILED = 0.5  # speed of evaluations whose batches differ in shape, relative to training; assumed
# Generation: a step gives each row a token. On a GPU its time follows from the layers: 1,103 tokens/s in one row,
# 26,108 in 32 rows, depth 12 ("On one GPU").
GPU_LAYER_SECONDS = 76e-6
GPU_ROW_SECONDS = 0.86e-6  # for each layer and row
# A training step of a small model waits for the host, too: forward, backward and update launch more; assumed.
GPU_LAUNCHES = 4  # relative to a step of generation
# On a CPU from the work, in tokens of training: 214 tokens/s in one row, 1,522 in 32 rows ("Generation on a CPU", depth
# 6), where training takes 1.5 ms a token. Weights are read for each token: who trains faster does not generate faster.
CPU_GENERATION_FLOPS = 2.5e10  # of a core
CPU_STEP_TOKENS = 2.8
CPU_ROW_TOKENS = 0.36
SLOTS = {"cpu": 64, "gpu": 256}  # rows at once, as engine.Engine has them
# Assumed, both in bytes a second: the copy of weights and states to main memory, for which training stops, and writing
# the last checkpoint, for which the end waits. A disk behind a network is slower.
COPY_SPEED = 1e10
DISK_SPEED = 1e9


@dataclass(frozen=True)
class Pace:
    """What the seconds of a model follow from."""

    depth: int
    flops: float  # of a token, forward and backward
    rate: float  # FLOP/s of a rank in training
    ranks: int
    on_gpu: bool
    cores: int = 2  # of a CPU, for each rank

    @property
    def device(self) -> str:
        return "gpu" if self.on_gpu else "cpu"

    def training(self, tokens: float) -> float:
        """Return the seconds to train on so many tokens, which the ranks share."""
        return tokens * self.flops / (self.rate * self.ranks)

    def step(self, tokens: float) -> float:
        """Return the seconds of a training step on so many tokens."""
        least = GPU_LAUNCHES * GPU_LAYER_SECONDS * self.depth if self.on_gpu else 0.0
        return max(self.training(tokens), least)

    def sampling(self, rows: float, length: int) -> float:
        """Return the seconds in which a rank writes so many answers of `length` tokens, side by side."""
        rounds = max(1.0, rows / SLOTS[self.device])
        rows /= rounds
        if self.on_gpu:
            step = self.depth * (GPU_LAYER_SECONDS + GPU_ROW_SECONDS * rows)
        else:
            step = (
                (CPU_STEP_TOKENS + CPU_ROW_TOKENS * rows)
                * self.flops
                / min(self.rate, CPU_GENERATION_FLOPS * self.cores)
            )
        return rounds * length * step

    def compiling(self, searches: bool, validates: bool) -> float:
        """Return the seconds of the compiler. searches: for the device batch. validates: with compiled blocks."""
        once = COMPILE_SECONDS[self.device] + COMPILE_LAYER_SECONDS[self.device] * self.depth
        if not self.on_gpu:  # there it neither tries sizes nor validates compiled
            return once
        return once * (1 + searches * SEARCH_COMPILES + validates * VALIDATION_COMPILES)


@dataclass(frozen=True)
class Pause:
    """An evaluation, or a save, between two steps. It is due when a train.Evaluation is.

    scored: tokens that pass forward, over all ranks. speed: relative to training. rows, length: answers that each rank
    writes, and the most tokens of one. seconds: besides.
    """

    name: str
    every: int  # steps; 0: only at the end, -1: never
    at_start: bool = False
    scored: float = 0.0
    speed: float = 1.0
    rows: float = 0.0
    length: int = 0
    seconds: float = 0.0

    def times(self, steps: int) -> int:
        """Return how often a run of so many steps pauses."""
        if self.every < 0:
            return 0
        between = (steps - 1) // self.every if self.every else 0
        return self.at_start + between + 1

    def cost(self, pace: Pace) -> float:
        """Return the seconds of one time."""
        seconds = self.seconds + pace.training(self.scored) * FORWARD / self.speed
        return seconds + (pace.sampling(self.rows, self.length) if self.rows else 0.0)


@dataclass(frozen=True)
class Part:
    """A share of a run's time."""

    name: str
    seconds: float  # together
    times: int = 1

    def __str__(self) -> str:
        often = f" ({self.times:,} times)" if self.times > 1 else ""
        return f"{self.name} {duration(self.seconds)}{often}"


def parts_of(
    pace: Pace,
    steps: int,
    training: float,
    sampling: float,
    compiling: float,
    pauses: Sequence[Pause],
    save_every: int,
    saved: float,
) -> list[Part]:
    """Return all shares of a run's time; those without seconds are left out.

    training, sampling, compiling: seconds, of all steps. save_every: steps, below 1 for a run that saves at its end
    alone. saved: bytes of a checkpoint.
    """
    parts = [
        Part("training", training),
        Part("sampling", sampling),
        Part("start", START_SECONDS[pace.device]),
        Part("compiling", compiling),
    ]
    for pause in [*pauses, Pause("saves", max(save_every, 0), seconds=saved / COPY_SPEED)]:
        times = pause.times(steps)
        parts.append(Part(pause.name, times * pause.cost(pace), times))
    parts.append(Part("last checkpoint on disk", saved / DISK_SPEED))
    return [part for part in parts if part.seconds]


def seconds_of(parts: Sequence[Part]) -> float:
    return sum(part.seconds for part in parts)


# ---- the evaluations of base training ----

BYTES_PER_TOKEN = 4.0  # of text; assumed, as in evals.chat.chat_validation
CORE_ITEM_TOKENS = 16_000  # one item of each task; counted
CORE_TOKENS = 48e6  # all items; counted
CORE_SECONDS = 10.0  # on the host, for 22 tasks; assumed
# Counted in the public data sets of the stages, one pass.
MID_TOKENS = 440e6
SFT_TOKENS = 14e6
GSM8K_PROMPTS = 7473  # to learn from
GSM8K_TESTS = 1319
SAMPLED_PROMPTS = 7  # evals.bpb.PROMPTS, 16 tokens after each
SAMPLED_TOKENS = 16
ENGINE_SECONDS = 1.0  # to pack the weights and capture graphs; assumed


def text_pause(every: int, size: int) -> Pause:
    """Return validation on so many bytes of text."""
    return Pause("validation", every, at_start=True, scored=size / BYTES_PER_TOKEN)


def core_pause(every: int, items: int) -> Pause:
    """Return the estimate of CORE. items: of each task, below 1 for all."""
    tokens = min(CORE_ITEM_TOKENS * items, CORE_TOKENS) if items > 0 else CORE_TOKENS
    return Pause("CORE estimate", every, scored=tokens, speed=UNCOMPILED, seconds=CORE_SECONDS)


def samples_pause(every: int) -> Pause:
    """Return the samples that base training prints."""
    return Pause("samples", every, rows=SAMPLED_PROMPTS, length=SAMPLED_TOKENS, seconds=ENGINE_SECONDS)
