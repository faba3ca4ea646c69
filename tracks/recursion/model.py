"""Recursion (TRM): the same blocks run several times, on two states, with a loss at every exit.

y is the answer so far, z a latent state, x the embedded tokens. For each supervision step all layers are swept: layer B
updates z ← z + B(norm(x + y + z)) `loops` times, then y ← y + B(norm(y + z)), and the head reads norm(y) at the exit.
With more than one pass, the sweeps before the last one have no gradient. Every attention call is causal.

Names and shapes of the parameters are GPT's. Value embeddings and the factors of the residual stream are part of a
block and act in every application; smear is a part of x, and backout acts on the sweep that ends at the exit.

A looped model is what recursion is compared with: the same blocks, run again and again on one state, with one loss.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nanochat.errors import UserError
from nanochat.gpt import GPT, Applications, GPTConfig, norm
from nanochat.induction import InductionConfig, InductionGPT
from nanochat.log import print0

if TYPE_CHECKING:
    from nanochat.decoder import Cache

# Activations that an application keeps beside those of a block, by token and channel: the norms around it are kept too,
# and with checkpointing only its input is. Found by rehearsals (bench/rehearse.py).
KEPT = 2.2
KEPT_WITH_CHECKPOINTING = -0.35


@dataclass(frozen=True)
class RecursiveConfig(InductionConfig):
    kind: ClassVar[str] = "recursive"

    supervision: int = 4  # exits, each with a loss
    loops: int = 2  # updates of the latent state before the answer is updated once
    passes: int = 1  # sweeps over the layers for each exit; the last one has a gradient
    detached: int = 0  # exits after which no gradient is passed back

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.supervision < 1 or self.passes < 1 or self.loops < 0:
            raise UserError("a recursive model needs at least one exit and one pass")

    @property
    def applications(self) -> Applications:
        sweeps = self.supervision * (self.loops + 1)
        return Applications(
            trained=sweeps,
            untrained=(self.passes - 1) * sweeps,
            heads=self.supervision,
            kept=KEPT,
            kept_with_checkpointing=KEPT_WITH_CHECKPOINTING,
        )


class RecursiveGPT(InductionGPT):
    """A GPT whose layers are applied again and again."""

    config: RecursiveConfig  # ty: ignore[incompatible-mutable-override]  # nobody replaces it
    config_class: ClassVar[type[GPTConfig]] = RecursiveConfig

    def __init__(self, config: RecursiveConfig, attention: str = "sdpa", checkpointing: bool = False) -> None:
        super().__init__(config, attention, checkpointing)
        self.steps = config.supervision  # exits of a forward: another number than was trained is possible

    @property
    def cached_layers(self) -> int:
        config = self.config
        return config.depth * self.steps * config.passes * (config.loops + 1)

    def choose_exits(self, exits: int) -> None:
        print0(f"recursion: {exits} exits, trained with {self.config.supervision}")
        self.steps = exits

    def end_like(self, model: GPT) -> None:
        assert isinstance(model, RecursiveGPT)
        self.steps = model.steps

    def hidden(self, ids: Tensor, cache: "Cache | None" = None) -> Tensor:
        """Return the head's input at the last exit, (B, T, width) in compute_dtype."""
        *_, last = self.exits(ids, cache)
        return last

    def exits(self, ids: Tensor, cache: "Cache | None" = None) -> Iterator[Tensor]:
        """Yield the head's input at each exit, (B, T, width) in compute_dtype."""
        config = self.config
        context = self.context(ids, cache)
        layers = list(self.layers(context))
        places = count()  # of keys and values in the cache: each application of a block has its own

        def apply(i: int, state: Tensor) -> Tensor:
            layer = layers[i]
            block = self.blocks[i]
            if cache is not None:
                layer = layer._replace(store=partial(cache.update, next(places)))
            elif self.checkpointing and torch.is_grad_enabled():
                # Keeps the state alone.
                run = partial(self.gather_and_call, block, recomputed=True)
                return checkpoint(lambda state: run(block, norm(state), layer), state, use_reentrant=False)
            return self.gather_and_call(block, block, norm(state), layer)

        y = x0 = middle = context.x0
        z = torch.zeros_like(y)
        for step in range(self.steps):
            for number in range(1, config.passes + 1):
                with torch.set_grad_enabled(torch.is_grad_enabled() and number == config.passes):
                    for i in range(config.depth):
                        for _ in range(config.loops):
                            z = z + apply(i, x0 + y + z)
                        y = y + apply(i, y + z)
                        if i == config.depth // 2:
                            middle = y
            yield self.last_state(y, middle)
            if step < config.detached:
                y = y.detach()
                z = z.detach()


@dataclass(frozen=True)
class LoopedConfig(InductionConfig):
    kind: ClassVar[str] = "looped"

    sweeps: int = 2  # times that the layers run

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sweeps < 1:
            raise UserError(f"sweeps={self.sweeps} has to be at least 1")

    @property
    def applications(self) -> Applications:
        return Applications(trained=self.sweeps)


class LoopedGPT(InductionGPT):
    """A GPT whose layers run several times on one state."""

    config: LoopedConfig  # ty: ignore[incompatible-mutable-override]  # nobody replaces it
    config_class: ClassVar[type[GPTConfig]] = LoopedConfig

    def hidden(self, ids: Tensor, cache: "Cache | None" = None) -> Tensor:
        context = self.context(ids, cache)
        x = context.x0
        for number in range(self.config.sweeps):
            x = self.sweep(x, context._replace(first=number * self.config.depth))
        return x


MODELS = {"recursive": RecursiveGPT, "looped": LoopedGPT}
