"""Quantization of weights: recipes as text, rounding, and GPTQ.

A recipe is a width and further parts, in this order: int6-row+clip-12+gptq. A plan gives patterns of names their
recipes: "attn|mlp=int6-row+clip-12,embed=int8-row"; each matrix matches exactly one. A new part is a group in RECIPE.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nanochat.errors import UserError
from nanochat.log import print0
from nanochat.quantized import Quantized, Stored, Tensors

if TYPE_CHECKING:
    from nanochat.gpt import GPT

Recipes = dict[str, str]  # matrix → recipe, as text


@dataclass(frozen=True)
class Recipe:
    """The treatment of a matrix."""

    bits: int = 0
    clip: float = 0.0  # the largest code's value, in standard deviations of the row; 0: the row's largest value
    gptq: bool = False

    @property
    def top(self) -> int:
        """The largest code."""
        return 2 ** (self.bits - 1) - 1


RECIPE = re.compile(r"int([568])-row(?:\+clip-(\d+(?:\.\d+)?))?(?:\+(gptq))?")


def parse_recipe(text: str) -> Recipe:
    """Return the recipe that a text describes."""
    match = RECIPE.fullmatch(text)
    if not match:
        raise UserError(
            f"the recipe {text} is not known: write int8-row, int6-row or int5-row, and after it, in this order, any of"
            " +clip-12.5, +gptq"
        )
    bits, clip, gptq = match.groups(0)
    return Recipe(int(bits), float(clip), bool(gptq))


def scale_clip(text: str, factor: float) -> str:
    """Return a recipe with its clip times a factor."""
    return re.sub(r"clip-([\d.]+)", lambda match: f"clip-{float(match[1]) * factor:.4g}", text)


def assign(plan: str, names: Collection[str]) -> Recipes:
    """Return the recipe of each matrix, as text; UserError if a pattern matches none, or a matrix not one pattern."""
    entries = [entry.rpartition("=") for entry in plan.split(",")]  # without a pattern: it matches all
    for pattern, found, recipe in entries:
        parse_recipe(recipe)
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(f"{pattern} in the plan is not a pattern: {error}") from None
        if not any(re.search(pattern, name) for name in names):
            raise UserError(f"{pattern}{found}{recipe} in the plan matches no tensor")
    recipes = {}
    for name in names:
        matches = [recipe for pattern, _, recipe in entries if re.search(pattern, name)]
        if len(matches) != 1:
            found = f"two recipes, {' and '.join(matches)}" if matches else "no recipe"
            raise UserError(f"{name} has {found} in the plan")
        [recipes[name]] = matches
    return recipes


# ---- a matrix ----


def quantize(weight: Tensor, recipe: Recipe, hessian: Tensor | None = None) -> Quantized:
    """Return a matrix (rows, columns) in codes. hessian: of its inputs, for GPTQ."""
    weight = weight.detach().float()
    largest = recipe.clip * weight.std(1, correction=0) if recipe.clip else weight.abs().amax(1)
    scales = (largest / recipe.top).clamp(2.0**-24, 65504.0).half()  # the range of fp16
    columns = scales.float()[:, None]
    if recipe.gptq:
        assert hessian is not None, "GPTQ needs the Hessian"
        codes = _gptq(weight, columns, recipe.top, hessian)
    else:
        codes = _round(weight, columns, recipe.top)
    return Quantized(codes.to(torch.int8), scales, recipe.bits)


def _round(weight: Tensor, scales: Tensor, top: int) -> Tensor:
    return (weight / scales).round().clamp(-top, top)


def _gptq(weight: Tensor, scales: Tensor, top: int, hessian: Tensor) -> Tensor:
    """Return codes, column by column: later columns make up for the error of earlier ones on the calibration text."""
    weight = weight.clone()
    hessian = hessian.double()
    diagonal = hessian.diagonal()
    # Damping.
    diagonal += 0.01 * diagonal.mean().clamp(min=torch.finfo(torch.float32).tiny)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    factor = torch.linalg.cholesky(inverse, upper=True).float()
    codes = []
    for column in range(weight.shape[1]):
        own = weight[:, column, None]
        codes.append(_round(own, scales, top))
        error = (own - codes[-1] * scales) / factor[column, column]
        weight[:, column:] -= error * factor[column, column:]
    return torch.cat(codes, 1)


def entropy(codes: Tensor) -> float:
    """Return the bits per code that the frequencies of the codes allow."""
    from scipy import stats

    _, counts = codes.unique(return_counts=True)
    return stats.entropy(counts, base=2)


# ---- a model ----


def matrices(model: nn.Module) -> Tensors:
    """Return the parameters that a recipe rounds. A smaller matrix stays fp16."""
    named = model.named_parameters()
    return {name: value.detach() for name, value in named if value.ndim == 2 and value.numel() >= 1024}


def quantize_weights(weights: Tensors, recipes: Recipes, hessians: Tensors) -> Stored:
    """Return all tensors of a model, matrices by their recipes.

    hessians: of matrices, the summed products of their inputs, (columns, columns).
    """
    stored = {}
    for name, weight in weights.items():
        if name not in recipes:
            stored[name] = weight.detach().float().cpu()
            continue
        recipe = parse_recipe(recipes[name])
        hessian = hessians.get(name)
        if recipe.gptq and hessian is None:
            raise UserError(f"{name} has no inputs for gptq, it is a table: give it another recipe")
        stored[name] = quantize(weight, recipe, hessian)
    return stored


@torch.no_grad()
def apply(model: "GPT", plan: str) -> dict[str, Quantized]:
    """Round a model's weights in place, by a plan; print how many, return their codes. An empty plan leaves them."""
    if not plan:
        return {}
    weights = matrices(model)
    recipes = assign(plan, weights)
    if "gptq" in plan:
        raise UserError(f"--quant={plan}: gptq needs training text, leave it out")
    stored = {}
    for name, recipe in recipes.items():
        rounded = quantize(weights[name], parse_recipe(recipe))
        weights[name].copy_(rounded.dequantize())
        stored[name] = rounded
    print0(f"quantization: {len(recipes)} matrices, {plan}")
    return stored


@torch.no_grad()
def collect_hessians(model: "GPT", batches: Iterable[Tensor]) -> Tensors:
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
