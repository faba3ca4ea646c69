"""Quantization of weights: recipes as text, rounding, GPTQ, low-rank corrections, and fake quantization in training.

A recipe is made of PARTS joined by "+": int6-row+clip-12+gptq. A plan gives patterns of names their recipes:
"attn|mlp=int6-row+clip-12,embed=int8-row"; each matrix matches exactly one. A new part is an entry in PARTS.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from nanochat.artifact import CORRECTION, Quantized, Stored
from nanochat.log import print0

if TYPE_CHECKING:
    from nanochat.gpt import GPT

LEAST_SCALE, LARGEST_SCALE = 2.0**-24, 65504.0  # of fp16
LEAST_VALUES = 1024  # a smaller matrix stays fp16
DAMPING = 0.01  # GPTQ: part of the mean diagonal that is added to the diagonal
Hessians = Mapping[str, Tensor]  # tensor → summed products of its inputs, (columns, columns)


class Recipe(NamedTuple):
    """The treatment of a matrix."""

    bits: int = 0
    clip: float = 0.0  # the largest code's value, in standard deviations of the row; 0: the row's largest value
    gptq: bool = False
    rank: int = 0  # of the correction that is added; 0: none

    @property
    def top(self) -> int:
        """The largest code."""
        return 2 ** (self.bits - 1) - 1


Part = Callable[[Recipe, float], Recipe]  # from a recipe, and the number after the part's name
PARTS: dict[str, Part] = {
    "int8-row": lambda recipe, _: recipe._replace(bits=8),
    "int6-row": lambda recipe, _: recipe._replace(bits=6),
    "int5-row": lambda recipe, _: recipe._replace(bits=5),
    "clip": lambda recipe, number: recipe._replace(clip=number),
    "gptq": lambda recipe, _: recipe._replace(gptq=True),
    "lqer": lambda recipe, number: recipe._replace(rank=int(number)),
}
NUMBERED = ("clip", "lqer")


def parse_recipe(text: str) -> Recipe:
    """Return the recipe that a text describes."""
    recipe = Recipe()
    for word in text.split("+"):
        name, number = word, "0"
        if word not in PARTS:
            name, _, number = word.rpartition("-")
        is_numbered = word not in PARTS
        is_number = re.fullmatch(r"\d+(\.\d+)?", number)
        if name not in PARTS or (name in NUMBERED) != is_numbered or not is_number:
            raise ValueError(f"the recipe {text} has an unknown part {word}, take {', '.join(PARTS)} (clip-12, lqer-4)")
        if recipe.bits and name.startswith("int"):
            raise ValueError(f"the recipe {text} has two widths, keep one")
        if name == "lqer" and "." in number:
            raise ValueError(f"the recipe {text}: the rank in {word} has to be a whole number")
        recipe = PARTS[name](recipe, float(number))
    if not recipe.bits:
        raise ValueError(f"the recipe {text} has no width: add int8-row, int6-row or int5-row")
    return recipe


def scale_clip(text: str, factor: float) -> str:
    """Return a recipe with its clip times a factor."""
    return re.sub(r"clip-([\d.]+)", lambda match: f"clip-{float(match[1]) * factor:.4g}", text)


def assign(plan: str, names: Iterable[str]) -> dict[str, str]:
    """Return the recipe of each matrix, as text; ValueError if a pattern matches none, or a matrix not one pattern."""
    entries = []
    for entry in plan.split(","):
        pattern, found, recipe = entry.rpartition("=")
        try:
            entries.append((re.compile(pattern), recipe, parse_recipe(recipe)))
        except re.error as error:
            raise ValueError(f"{pattern} in the plan is no pattern: {error}") from None
        if not found and len(plan.split(",")) > 1:
            raise ValueError(f"{entry} in the plan lacks a pattern, write PATTERN=RECIPE")
    recipes, used = {}, set()
    for name in names:
        matches = [number for number, (pattern, *_) in enumerate(entries) if pattern.search(name)]
        if len(matches) != 1:
            several = " and ".join(entries[number][1] for number in matches)
            raise ValueError(f"{name} has {f'two recipes, {several}' if matches else 'no recipe'} in the plan")
        used.update(matches)
        recipes[name] = entries[matches[0]][1]
    for number, (pattern, recipe, _) in enumerate(entries):
        if number not in used:
            raise ValueError(f"{pattern.pattern}={recipe} in the plan matches no tensor")
    return recipes


# ---- a matrix ----


def quantize(weight: Tensor, recipe: Recipe, hessian: Tensor | None = None) -> Quantized:
    """Return a matrix (rows, columns) in codes. hessian: of its inputs, for GPTQ."""
    weight = weight.detach().float()
    largest = recipe.clip * weight.std(1, correction=0) if recipe.clip else weight.abs().amax(1)
    scales = (largest / recipe.top).clamp(LEAST_SCALE, LARGEST_SCALE).half()
    if recipe.gptq:
        codes = _gptq(weight, scales.float()[:, None], recipe.top, hessian)
    else:
        codes = _round(weight, scales.float()[:, None], recipe.top)
    return Quantized(codes.to(torch.int8), scales, recipe.bits)


def _round(weight: Tensor, scales: Tensor, top: int) -> Tensor:
    return (weight / scales).round().clamp(-top, top)


def _gptq(weight: Tensor, scales: Tensor, top: int, hessian: Tensor) -> Tensor:
    """Return codes, column by column: later columns make up for the error of earlier ones on the calibration text."""
    weight, hessian = weight.clone(), hessian.double()
    diagonal = hessian.diagonal()
    diagonal += DAMPING * diagonal.mean().clamp(min=torch.finfo(torch.float32).tiny)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    factor = torch.linalg.cholesky(inverse, upper=True).float()
    codes = torch.empty_like(weight)
    for column in range(weight.shape[1]):
        own = weight[:, column : column + 1]
        rounded = _round(own, scales, top)
        codes[:, column : column + 1] = rounded
        error = own - rounded * scales
        error = error / factor[column, column]
        weight[:, column:] -= error * factor[column, column:]
    return codes


def correction(error: Tensor, rank: int, hessian: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return factors (rows, rank) and (rank, columns) whose product is nearest to an error (LQER).

    hessian: of the inputs: columns with larger inputs weigh more.
    """
    weights = torch.ones(error.shape[1], device=error.device)
    if hessian is not None:
        weights = hessian.diagonal().float().sqrt().clamp(min=1e-6)
    left, values, right = torch.linalg.svd(error * weights, full_matrices=False)
    root = values[:rank].sqrt()
    return left[:, :rank] * root, root[:, None] * right[:rank] / weights


def entropy(codes: Tensor) -> float:
    """Return the bits per code that the frequencies of the codes allow."""
    counts = codes.int().flatten().add(128).bincount()
    shares = counts.double() / codes.numel()
    logs = shares.clamp(min=1e-300).log2()
    return float(-(shares * logs).sum())


# ---- a model ----


def matrices(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that take a recipe."""
    named = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {name: value for name, value in named.items() if value.ndim == 2 and value.numel() >= LEAST_VALUES}


def quantize_weights(
    weights: Mapping[str, Tensor], recipes: Mapping[str, str], hessians: Hessians, corrected: int = 0
) -> Stored:
    """Return all tensors of a model, matrices by their recipes. corrected: tensors that get lqer, 0: all with it."""
    stored, errors = {}, {}
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise ValueError(f"{name} has values that are not finite: train the model again")
        if name not in recipes:
            stored[name] = weight.detach().float().cpu()
            continue
        recipe, hessian = parse_recipe(recipes[name]), hessians.get(name)
        if recipe.gptq and hessian is None:
            raise ValueError(f"{name} has no inputs for gptq, it is a table: give it another recipe")
        stored[name] = quantize(weight, recipe, hessian)
        if recipe.rank:
            errors[name] = weight.float() - stored[name].dequantize()
    size = {name: _weighted(error, hessians.get(name)) for name, error in errors.items()}
    for name in sorted(errors, key=size.get, reverse=True)[: corrected or None]:
        factors = correction(errors[name], parse_recipe(recipes[name]).rank, hessians.get(name))
        for ending, factor in zip(CORRECTION, factors, strict=True):
            stored[name + ending] = quantize(factor, Recipe(bits=8))
    return stored


@torch.no_grad()
def apply(model: "GPT", plan: str) -> None:
    """Round a model's weights in place, by a plan; print how many. An empty plan leaves them."""
    if not plan:
        return
    weights = dict(model.state_dict())
    recipes = assign(plan, matrices(model))
    if any(parse_recipe(recipe).gptq for recipe in recipes.values()):
        raise ValueError(f"--quant={plan}: gptq needs training text, leave it out")
    stored = quantize_weights({name: weights[name] for name in recipes}, recipes, {})
    for name, recipe in recipes.items():
        value = stored[name].dequantize()
        if parse_recipe(recipe).rank:
            left, right = (stored[name + ending].dequantize() for ending in CORRECTION)
            value += left @ right
        weights[name].copy_(value)
    print0(f"quantization: {len(recipes)} matrices, {plan}")


def _weighted(error: Tensor, hessian: Tensor | None) -> float:
    weights = 1.0 if hessian is None else hessian.diagonal().float().sqrt()
    return (error * weights).norm().item()


@torch.no_grad()
def collect_hessians(model: "GPT", batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """Return the Hessian of each matrix with inputs: of the linear layers, and of a tied embedding as the head."""
    hessians = {}

    def add(name: str, x: Tensor) -> None:
        x = x.flatten(0, -2).float()
        hessians[name] = hessians.get(name, 0) + x.mT @ x

    hooks = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: add(f"{name}.weight", inputs[0]))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name != "head"
    ]
    for ids in batches:
        add("embed.weight" if model.config.tie_embeddings else "head.weight", model.hidden(ids))
    for hook in hooks:
        hook.remove()
    return hessians


# ---- fake quantization in training ----


class _StraightThrough(torch.autograd.Function):
    """The rounded weight in the forward; the gradient goes to the weight as if it were not rounded."""

    @staticmethod
    def forward(ctx: FunctionCtx, weight: Tensor, rounded: Tensor) -> Tensor:
        return rounded.view_as(rounded)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Fake(nn.Module):
    """A layer whose weight acts as its quantized values do. No buffer: a checkpoint holds the weight alone."""

    def __init__(self, layer: nn.Module, recipe: Recipe):
        super().__init__()
        self.weight = layer.weight  # the same Parameter: optimizers notice nothing
        self.recipe = recipe
        self.rounded = torch.empty_like(layer.weight.detach())
        self.train(layer.training)

    @property
    def active_weight(self) -> Tensor:
        return _StraightThrough.apply(self.weight, self.rounded)


class FakeLinear(_Fake):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.active_weight.to(x.dtype))


class FakeEmbedding(_Fake):
    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.active_weight)


class FakeQuantization:
    """Quantization-aware training: replaces each matrix's layer by one with rounded weights, late in the run.

    It is called after each optimizer step, and begins when the share `start` of the run is over. Gradients and
    checkpoints are those of the weights that are not rounded.
    """

    def __init__(self, model: "GPT", plan: str, start: float):
        self.model, self.start = model, start
        self.layers = {}
        for name, text in assign(plan, matrices(model)).items():
            recipe = parse_recipe(text)
            if recipe.gptq or recipe.rank:
                raise ValueError(f"--qat={plan}: gptq and lqer cannot be used in training, leave them out")
            layer = model.get_submodule(name.removesuffix(".weight"))
            kind = FakeLinear if isinstance(layer, nn.Linear) else FakeEmbedding
            self.layers[name.removesuffix(".weight")] = kind(layer, recipe)
        self.originals = {name: model.get_submodule(name) for name in self.layers}
        self.active = False

    def __call__(self, progress: float) -> None:
        """Switch on if the run has come so far, and round the weights that the last step has changed."""
        if not self.active and progress >= self.start:
            self.switch(True)
        elif self.active:
            self.refresh()

    def switch(self, active: bool) -> None:
        for name, layer in (self.layers if active else self.originals).items():
            self.model.set_submodule(name, layer)
        self.active = active
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        for layer in self.layers.values():
            layer.rounded.copy_(quantize(layer.weight, layer.recipe).dequantize())
