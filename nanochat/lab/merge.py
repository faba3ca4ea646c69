"""Merging: one model from several with the same parent, without training.

METHODS is a table of functions: linear, slerp, task, ties. `greedy_soup` chooses the models of a linear merge by their
score on development benchmarks. The arithmetic is float64, rounded once to the precision of the checkpoints. Where all
models agree the merge has their value, so that a model merged with itself is itself, bit for bit; a model with weight 0
is left out.

`read_models` checks that the models can be merged. `write_merge` writes an ordinary checkpoint, whose manifest names
method, weights and all models with hashes under `merge`. It has no optimizer state: training that starts from it needs
--no-warm-start. scripts/merge.py is the command; it writes an outcome of the stage `merge`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nanochat.checkpoint import MODEL, Checkpoint, Saver, hold, steps, verified
from nanochat.log import Record
from nanochat.paths import stage_dir
from nanochat.train import State

Tensors = Mapping[str, Tensor]  # name → weights

PARALLEL = 1e-6  # sine of the angle between two vectors: below, an arc is a line

# ---- methods: from changes (models, size) and shares (models), in float64, to a change (size) ----


def _mean(changes: Tensor, shares: Tensor, density: float) -> Tensor:
    """Return the weighted mean. From a parent this is task arithmetic (Ilharco et al. 2023)."""
    return shares @ changes


def _arc(changes: Tensor, shares: Tensor, density: float) -> Tensor:
    """Return the point on the arc between two vectors (Shoemake 1985)."""
    norms = changes.norm(dim=1)
    if len(changes) == 2 and norms.all():  # a vector of zeros has no direction
        cosine = changes[0] @ changes[1] / norms.prod()
        angle = cosine.clamp(-1, 1).arccos()
        if angle.sin() > PARALLEL:
            shares = (shares * angle).sin() / angle.sin()
    return shares @ changes


def _elected(changes: Tensor, shares: Tensor, density: float) -> Tensor:
    """Return the mean of the large changes that have the elected sign (Yadav et al. 2023).

    Large within the parameter: the scales of parameters differ. Of each model the share `density` counts.
    """
    size = changes.shape[1]
    dropped = min(size - 1, round((1 - density) * size))
    least = changes.abs().kthvalue(dropped + 1, dim=1, keepdim=True).values
    changes = torch.where(changes.abs() >= least, changes, 0)
    agrees = changes * (shares @ changes) > 0  # with the sign of the weighted sum
    weights = agrees * shares[:, None]
    total = weights.sum(0)
    return (weights * changes).sum(0) / total.where(total > 0, 1)


class Method(NamedTuple):
    """A way to merge."""

    combine: Callable[[Tensor, Tensor, float], Tensor]
    from_parent: bool  # the changes are those since the parent; otherwise, the weights themselves


METHODS = {
    "linear": Method(_mean, False),
    "slerp": Method(_arc, False),
    "task": Method(_mean, True),
    "ties": Method(_elected, True),
}


@dataclass(frozen=True)
class Recipe:
    """The settings of a merge."""

    method: str = "linear"
    scale: float = 1.0  # factor of the change from the parent: 2 adds the changes of two models
    density: float = 0.2  # share of each model's changes that count for ties


def merge(models: Sequence[Tensors], weights: Sequence[float], recipe: Recipe, parent: Tensors) -> dict[str, Tensor]:
    """Return the merged weights. weights: divided by their sum. parent: empty for methods without."""
    used = [model for model, weight in zip(models, weights, strict=True) if weight]
    shares = torch.tensor([weight for weight in weights if weight], dtype=torch.float64)
    shares /= shares.sum()
    combine = METHODS[recipe.method].combine
    merged = {}
    for name, first in used[0].items():
        values = torch.stack([model[name].double().flatten() for model in used])
        start = parent[name].double().flatten() if parent else 0.0
        found = start + recipe.scale * combine(values - start, shares, recipe.density)
        if recipe.scale == 1:  # without a conflict nothing is trimmed, elected or rounded
            found = torch.where((values == values[0]).all(0), values[0], found)
        merged[name] = found.view_as(first).to(first.dtype)
    return merged


class Trial(NamedTuple):
    """A model that was tried in a soup."""

    model: int  # its number
    alone: float  # its score
    together: float  # score of the soup with it
    kept: bool


def greedy_soup(models: Sequence[Tensors], score: Callable[[Tensors], float]) -> list[Trial]:
    """Return the trials, the best model first: a model stays if the mean with it scores no lower (Wortsman 2022)."""
    alone = [score(model) for model in models]
    trials = []
    soup = []  # numbers
    best = -math.inf
    for number in sorted(range(len(models)), key=lambda number: -alone[number]):
        chosen = [models[one] for one in (*soup, number)]
        together = score(merge(chosen, [1.0] * len(chosen), Recipe(), {})) if soup else alone[number]
        kept = together >= best
        trials.append(Trial(number, alone[number], together, kept))
        if kept:
            soup.append(number)
            best = together
    return trials


# ---- checkpoints ----


def read_models(stage: str, names: Sequence[str]) -> list[Checkpoint]:
    """Return the models of a stage by their names, TAG or TAG@STEP, after reading and verifying all files.

    A ValueError if they differ in shape, tokenizer or parent.
    """
    models = []
    for name in names:
        tag, _, step = name.partition("@")
        if not (step or "0").isdecimal():
            raise ValueError(f"--models: {name} has to be a tag, or a tag and a step like {tag}@1000")
        models.append(verified(stage, tag, int(step or -1)))
    first = _identity(models[0])
    for name, model in zip(names, models, strict=True):
        for what, value in _identity(model).items():
            if value != first[what]:
                raise ValueError(f"--models: {name} has another {what} than {names[0]}: {value}, not {first[what]}")
    return models


def _identity(model: Checkpoint) -> Record:
    """Return what models that are merged have in common."""
    manifest = model.manifest
    parent = manifest["parent"] or {"stage": manifest["stage"], "tag": model.path.parent.name}
    return {
        "shape": manifest["model"],
        "tokenizer": manifest["tokenizer"]["hash"][:12],
        # A model without a parent has steps of its own run beside it.
        "parent": " ".join(map(str, parent.values())),
    }


def read_parent(model: Checkpoint) -> Checkpoint:
    """Return the checkpoint that a model's training started from."""
    parent = model.manifest["parent"]
    if not parent:
        raise ValueError(f"{model.path} has no parent to take changes from: --method=linear needs none")
    return verified(**parent)


def origin(model: Checkpoint) -> Record:
    """Return a model as the manifest of a merge names it."""
    files = model.manifest["files"]
    return {
        "stage": model.manifest["stage"],
        "tag": model.path.parent.name,
        "step": model.step,
        "sha256": files[MODEL]["sha256"],
    }


def write_merge(tag: str, models: Sequence[Checkpoint], tensors: Tensors, facts: Record) -> Path:
    """Write merged weights as a run of the models' stage; returns its folder. Settings are those of the first model.

    facts: for the manifest, beside the models.
    """
    first = models[0]
    folder = stage_dir(first.manifest["stage"], tag)
    taken = ("stage", "parent", "config", "tokenizer", "dtype", "model", "suggestions")
    record = {name: first.manifest[name] for name in taken if name in first.manifest}
    loop = first.manifest["loop"]
    record |= {
        "merge": facts | {"models": list(map(origin, models))},
        # Their ratio is the batch of a step, which models that are trained from this one inherit.
        "loop": asdict(State(step=loop["step"], tokens=loop["tokens"])),
        # No run has this data: training does not resume in the folder.
        "data": None,
        "source": {"setting": None},
    }
    with hold(folder):
        if steps(folder):
            raise ValueError(f"{folder} holds a run, take another --tag")
        with Saver(folder) as saver:
            saver.save(first.step, tensors, [], record)
    return folder
