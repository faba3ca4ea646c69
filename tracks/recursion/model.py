"""Recursion (TRM): the same blocks run several times, on two states, with a loss at every exit.

y is the answer so far, z a latent state, x the embedded tokens. For each supervision step all layers are swept: layer B
updates z ← z + B(norm(x + y + z)) `loops` times, then y ← y + B(norm(y + z)), and the head reads norm(y) at the exit.
With more than one pass, the sweeps before the last one have no gradient. Every attention call is causal.

The model is GPT with the fields `supervision`, `loops`, `passes` and `detached`; names and shapes of the parameters are
GPT's. Value embeddings and the factors of the residual stream are part of a block and act in every application; smear
is a part of x, and backout acts on the sweep that ends at the exit.
"""

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nanochat.gpt import GPT, norm

if TYPE_CHECKING:
    from nanochat.decoder import Cache


class RecursiveGPT(GPT):
    """A GPT whose layers are applied again and again."""

    def hidden(self, ids: Tensor, cache: "Cache | None" = None) -> Tensor:
        """Return the head's input at the last exit, (B, T, width) in compute_dtype."""
        *_, last = self.exits(ids, cache)
        return last

    def exits(self, ids: Tensor, cache: "Cache | None" = None) -> Iterator[Tensor]:
        """Yield the head's input at each exit, (B, T, width) in compute_dtype."""
        config, context = self.config, self.context(ids, cache)
        layers = list(self.layers(context))
        places = count()  # of keys and values in the cache: each application of a block has its own

        def run(i: int, state: Tensor) -> Tensor:
            layer, block = layers[i], self.blocks[i]
            if cache is not None:
                layer = layer._replace(store=partial(cache.update, next(places)))
            elif self.checkpointing and torch.is_grad_enabled():
                # Keeps the state alone.
                run = partial(self.run, block, recomputed=True)
                return checkpoint(lambda state: run(block, norm(state), layer), state, use_reentrant=False)
            return self.run(block, block, norm(state), layer)

        y = x0 = context.x0
        z = torch.zeros_like(y)
        for step in range(self.steps):
            for number in range(1, config.passes + 1):
                with torch.set_grad_enabled(torch.is_grad_enabled() and number == config.passes):
                    for i in range(config.depth):
                        for _ in range(config.loops):
                            z = z + run(i, x0 + y + z)
                        y = y + run(i, y + z)
                        if i == config.depth // 2:
                            middle = y
            yield norm(self.back_out(y, middle))
            if step < config.detached:
                y, z = y.detach(), z.detach()
