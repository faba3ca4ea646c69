"""Recursion (TRM): the same blocks run several times, on two states, with a loss at every exit.

y is the answer so far, z a latent state, x the embedded tokens. For each supervision step all layers are swept: layer B
updates z ← z + c·B(norm(x + y + z)) `loops` times, then y ← y + c·B(norm(y + z)), and the head reads norm(y) at the
exit. With more than one pass, the sweeps before the last one have no gradient. Every attention call is causal. c is 1,
or a power of the number of all applications (`residual_power`), which keeps the states small where depth is tied.

Names and shapes of the parameters are GPT's. Value embeddings and the factors of the residual stream are part of a
block and act in every application; smear is a part of x, and backout acts on the sweep that ends at the exit.

A looped model is what recursion is compared with: the same blocks, run again and again on one state, with one loss.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nanochat.errors import UserError
from nanochat.gpt import GPT, Applications, Context, GPTConfig, norm
from nanochat.induction import InductionConfig, InductionGPT
from nanochat.log import print0

if TYPE_CHECKING:
    from nanochat.decoder import Cache

# Activations that an application keeps beside those of a block, by token and channel: the norms around it are kept too,
# and with checkpointing only its input is. Found by rehearsals (bench/rehearse.py).
KEPT = 2.2
KEPT_WITH_CHECKPOINTING = -0.35


Application = Callable[[int, Tensor], Tensor]  # of block i to a state, both (B, T, width)


class States(NamedTuple):
    """What a supervision step goes on from, (B, T, width) each."""

    y: Tensor  # the answer so far
    z: Tensor  # the latent state


@dataclass(frozen=True)
class RecursiveConfig(InductionConfig):
    kind: ClassVar[str] = "recursive"

    supervision: int = 4  # exits, each with a loss
    loops: int = 2  # updates of the latent state before the answer is updated once
    passes: int = 1  # sweeps over the layers for each exit; the last one has a gradient
    detached: int = 0  # exits after which no gradient is passed back
    residual_power: float = 0.0  # updates are scaled by the applications of all layers to minus this power

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.supervision < 1 or self.passes < 1 or self.loops < 0:
            raise UserError("a recursive model needs at least one exit and one pass")

    @property
    def update_scale(self) -> float:
        """The factor for each update of a state; other numbers of exits than were trained leave it as it is."""
        applications = self.depth * self.supervision * self.passes * (self.loops + 1)
        return applications**-self.residual_power

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
        context = self.context(ids, cache)
        apply = self.application(context, cache)
        y = context.x0
        z = torch.zeros_like(y)
        for step in range(self.steps):
            y, z, hidden = self.advance(y, z, context.x0, apply)
            yield hidden
            if step < self.config.detached:
                y = y.detach()
                z = z.detach()

    def next_exit(self, ids: Tensor, states: States | None) -> tuple[States, Tensor]:
        """Return the states after one supervision step from `states`, and the head's input; None: the first step."""
        context = self.context(ids)
        y, z = states or (context.x0, torch.zeros_like(context.x0))
        y, z, hidden = self.advance(y, z, context.x0, self.application(context))
        return States(y, z), hidden

    def application(self, context: Context, cache: "Cache | None" = None) -> Application:
        """Return the function that runs block i on a state; a cache keeps keys and values for each of its calls."""
        layers = list(self.layers(context))
        places = count()  # of keys and values in the cache: each application of a block has its own

        def apply(i: int, state: Tensor) -> Tensor:
            layer = layers[i]
            block = self.blocks[i]
            if cache is not None:
                layer = layer._replace(store=partial(cache.update, next(places)))
            if self.checkpointing and torch.is_grad_enabled():
                # Keeps the state alone.
                run = partial(self.gather_and_call, block, recomputed=True)
                return checkpoint(lambda state: run(block, norm(state), layer), state, use_reentrant=False)
            return self.gather_and_call(block, block, norm(state), layer)

        return apply

    def advance(self, y: Tensor, z: Tensor, x0: Tensor, apply: Application) -> tuple[Tensor, Tensor, Tensor]:
        """Return y and z after a supervision step, and the head's input at its exit."""
        config = self.config
        scale = config.update_scale
        middle = x0
        for number in range(1, config.passes + 1):
            with torch.set_grad_enabled(torch.is_grad_enabled() and number == config.passes):
                for i in range(config.depth):
                    for _ in range(config.loops):
                        z = torch.add(z, apply(i, x0 + y + z), alpha=scale)
                    y = torch.add(y, apply(i, y + z), alpha=scale)
                    if i == config.depth // 2:
                        middle = y
        return y, z, self.last_state(y, middle)


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
