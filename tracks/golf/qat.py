"""Quantization-aware training: late in a run, each matrix acts as its rounded values do."""

import torch
from torch import Tensor, nn

from nanochat.errors import UserError
from nanochat.gpt import GPT, Embedding, Linear
from nanochat.quant import assign, matrices, parse_recipe, quantize


class _Rounded(nn.Module):
    """A layer that may act by rounded values, and takes over another layer's weight."""

    weight: Tensor
    rounded: Tensor | None  # values that act in place of the weight's

    def take_over(self, layer: Linear | Embedding) -> None:
        self.weight = layer.weight  # the same Parameter: optimizers and checkpoints notice nothing
        self.rounded = None
        self.train(layer.training)

    @property
    def active_weight(self) -> Tensor:
        """The weight, or its rounded values plus zero, by which the weight gets their gradient (straight-through)."""
        return self.weight if self.rounded is None else self.rounded + (self.weight - self.weight.detach())


class RoundedLinear(_Rounded, Linear):
    """A Linear that may act by rounded values."""


class RoundedEmbedding(_Rounded, Embedding):
    """An Embedding that may act by rounded values; then its gradient is dense."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) if self.rounded is None else nn.functional.embedding(ids, self.active_weight)


def rounded_layer(layer: Linear | Embedding) -> RoundedLinear | RoundedEmbedding:
    """Return a layer with the same weight that may act by rounded values."""
    with torch.device("meta"):
        if isinstance(layer, Linear):
            found = RoundedLinear(layer.in_features, layer.out_features)
        else:
            found = RoundedEmbedding(layer.num_embeddings, layer.embedding_dim)
    found.take_over(layer)
    return found


class FakeQuantization:
    """Quantization-aware training of a model, by a plan as in quant.py; an empty plan rounds nothing.

    It replaces the layers that the plan names. It is called after each optimizer step, and begins when the share
    `start` of the run is over. Gradients and checkpoints are those of the weights that are not rounded.
    """

    def __init__(self, model: GPT, plan: str, start: float) -> None:
        if "gptq" in plan:
            raise UserError(f"--qat={plan}: gptq cannot be used in training, leave it out")
        self.start = start
        self.layers = []  # layer, recipe, rounded weight
        for name, recipe in assign(plan, matrices(model)).items() if plan else ():
            place = name.removesuffix(".weight")
            plain = model.get_submodule(place)
            assert isinstance(plain, Linear | Embedding)
            layer = rounded_layer(plain)
            model.set_submodule(place, layer)
            self.layers.append((layer, parse_recipe(recipe), torch.empty_like(layer.weight.detach())))

    def __call__(self, progress: float) -> None:
        """Round the weights that the last step has changed, if the run has come so far."""
        if progress >= self.start:
            self.switch(True)

    @torch.no_grad()
    def switch(self, active: bool) -> None:
        """Let the layers act by rounded values, those of the present weights, or by their weights."""
        for layer, recipe, rounded in self.layers:
            rounded.copy_(quantize(layer.weight, recipe).dequantize())
            layer.rounded = rounded if active else None
