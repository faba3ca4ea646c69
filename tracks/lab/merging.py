"""Merging: one model from several with the same parent, without training.

METHODS is a table of functions: linear, slerp, task, ties, soup; `greedy_soup` chooses the models of a soup by their
scores. The arithmetic is float64, rounded once to the precision of the checkpoints. Where all models agree the merge
has their value, so that a model merged with itself is itself, bit for bit; a model with weight 0 is left out.

`read_models` checks that the models can be merged. `write_merge` writes an ordinary checkpoint, whose manifest names
method, weights and all models with hashes under `merge`. It has no optimizer state: training that starts from it needs
--no-warm-start. tracks/lab/merge.py is the command; it writes an outcome of the stage `merge`.
"""

import math
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nanochat.checkpoint import Checkpoint, Saver, hold, learned_from
from nanochat.errors import UserError
from nanochat.log import Record
from nanochat.models import config_of, verified, weights_hash
from nanochat.paths import stage_dir
from nanochat.train import State

Tensors = Mapping[str, Tensor]  # name → weights

KEPT = 0.2  # share of the changes of a parameter that count for ties
TINY = 1e-30  # instead of a sum of no weights

# ---- methods: from changes (models, size) and shares (models), in float64, to a change (size) ----


def _mean(changes: Tensor, shares: Tensor) -> Tensor:
    """Return the weighted mean. From a parent this is task arithmetic (Ilharco et al. 2023)."""
    return shares @ changes


def _arc(changes: Tensor, shares: Tensor) -> Tensor:
    """Return the point on the arc between two vectors (Shoemake 1985)."""
    angle = F.cosine_similarity(changes[0], changes[-1], dim=0).clamp(-1, 1).arccos()
    # Parallel vectors have no arc, and a vector of zeros has no direction.
    if angle.sin() > 1e-6 and changes.any(dim=1).all():
        shares = (shares * angle).sin() / angle.sin()
    return shares @ changes


def _elected(changes: Tensor, shares: Tensor) -> Tensor:
    """Return the mean of the large changes that have the elected sign (Yadav et al. 2023).

    Large within the parameter: the scales of parameters differ. Of each model the share KEPT counts.
    """
    size = changes.shape[1]
    dropped = min(size - 1, round((1 - KEPT) * size))
    least = changes.abs().kthvalue(dropped + 1, dim=1, keepdim=True).values
    changes = torch.where(changes.abs() >= least, changes, 0)
    agrees = changes * (shares @ changes) > 0  # with the sign of the weighted sum
    weights = agrees * shares[:, None]
    return (weights * changes).sum(0) / weights.sum(0).clamp(min=TINY)


METHODS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": _mean,
    "slerp": _arc,
    "task": _mean,
    "ties": _elected,
    "soup": _mean,
}
# Methods that use changes since the parent; the others use the weights themselves.
FROM_PARENT = ("task", "ties")


def merge(
    models: Iterable[Tensors],
    weights: Collection[float],
    method: str = "linear",
    parent: Tensors | None = None,
    scale: float = 1.0,
) -> dict[str, Tensor]:
    """Return the merged weights of models.

    weights: divided by their sum. parent, for changes: their factor is `scale`; 2 adds those of two models.
    """
    used = [model for model, weight in zip(models, weights, strict=True) if weight]
    shares = torch.tensor(list(filter(None, weights)), dtype=torch.float64)
    shares /= shares.sum()
    merged = {}
    for name, first in used[0].items():
        values = torch.stack([model[name].double().flatten() for model in used])
        start = parent[name].double().flatten() if parent else 0.0
        found = start + scale * METHODS[method](values - start, shares)
        if scale == 1:  # without a conflict nothing is trimmed, elected or rounded
            found = torch.where((values == values[0]).all(0), values[0], found)
        merged[name] = found.view_as(first).to(first.dtype)
    return merged


def greedy_soup(models: Mapping[str, Tensors], score: Callable[[Tensors], float]) -> dict[str, float]:
    """Return the weights of a soup: 1 for a model that stays, else 0. The best model is tried first.

    A model that would lower the score of the soup so far is left out (Wortsman et al. 2022). score: from tensors to a
    number, the higher the better.
    """
    weights = dict.fromkeys(models, 0.0)
    best = -math.inf
    for name in sorted(models, key=lambda name: score(models[name]), reverse=True):
        larger = weights | {name: 1.0}
        found = score(merge(models.values(), larger.values()))
        if found >= best:
            weights = larger
            best = found
    return weights


# ---- checkpoints ----


def read_models(stage: str, text: str) -> dict[str, tuple[Checkpoint, float]]:
    """Return models of a stage and their weights by name, after reading and verifying all files.

    text: TAG or TAG@STEP, separated by commas, each perhaps with a weight: facts:0.7,sums@1000:0.3. A UserError if
    the models differ in shape, tokenizer or parent.
    """
    found = {}
    alike = {}
    for word in text.split(","):
        match = re.fullmatch(r"(([^@:]+)(?:@(\d+))?)(?::(\d+\.?\d*))?", word)
        if not match:
            raise UserError(f"--models: {word} is not a model like d8, d8@1000 or d8@1000:0.5")
        name, tag, step, weight = match.groups()
        model = verified(stage, tag, int(step or -1))
        manifest = model.manifest
        # Without a parent, only checkpoints of one run are alike.
        config = config_of(manifest)
        # One version of this code may have written another entry for the same model than the next.
        facts = {"kind": config.kind, **asdict(config)}
        facts |= {"tokenizer": manifest["tokenizer"]["hash"]} | _parent_facts(manifest, tag)
        for kind, value in facts.items():
            if value != alike.setdefault(kind, value):
                raise UserError(f"--models: {name} has another {kind} than the models before it, {value}")
        if name in found:
            raise UserError(f"--models: {name} is named twice, give it a weight instead")
        found[name] = model, float(weight or 1)
    return found


def _parent_facts(manifest: Record, tag: str) -> Record:
    """Return what models of one parent agree in; without a parent that is the run itself, of this tag."""
    parent = manifest["parent"]
    if not parent:
        return {"parent": tag}
    facts: Record = {"parent": {name: value for name, value in parent.items() if name != "sha256"}}
    if parent.get("sha256"):  # checkpoints of earlier versions do not have it
        facts["version of the parent"] = parent["sha256"]
    return facts


def _parent_record(models: Sequence[Checkpoint]) -> Record | None:
    """Return what models of one parent have recorded of it, with the hash of its weights if one of them has it."""
    records = [model.manifest["parent"] for model in models]
    return next((record for record in records if record and record.get("sha256")), records[0])


def read_parent(model: Checkpoint, *others: Checkpoint) -> Checkpoint:
    """Return the checkpoint that a model's training started from. others: further models of the same parent."""
    parent = _parent_record([model, *others])
    if not parent:
        raise UserError(f"{model.path} has no parent to compute changes from: --method=linear needs none")
    return verified(**parent)


def origin(model: Checkpoint) -> Record:
    """Return a model as the manifest of a merge names it."""
    facts = {"stage": model.manifest["stage"], "tag": model.path.parent.name, "step": model.step}
    return facts | {"sha256": weights_hash(model.manifest)}


def write_merge(tag: str, models: Sequence[Checkpoint], tensors: Tensors, facts: Record) -> Path:
    """Write merged weights as a run of the models' stage; returns its folder. Settings are those of the first model.

    facts: for the manifest, beside the models.
    """
    first = models[0]
    folder = stage_dir(first.manifest["stage"], tag)
    taken = ("stage", "config", "tokenizer", "dtype", "model")
    record = {name: first.manifest[name] for name in taken} | {"parent": _parent_record(models)}
    record["suggestions"] = first.manifest.get("suggestions", {})
    record["public"] = first.manifest.get("public", {})
    loop = first.manifest["loop"]
    record |= {
        "merge": facts | {"models": list(map(origin, models))},
        # Their ratio is the batch of a step, which models that are trained from this one inherit.
        "loop": asdict(State(step=loop["step"], tokens=loop["tokens"], progress=1.0)),
        # No run has this data: training does not resume in the folder.
        "data": None,
        "learned": [row for model in models for row in learned_from(model.manifest)],
        "source": {"setting": None},
    }
    with hold(folder), Saver(folder) as saver:
        for earlier in folder.glob("step_*"):  # of a merge that is made again
            shutil.rmtree(earlier)
        saver.save(first.step, tensors, [], record)
    return folder
