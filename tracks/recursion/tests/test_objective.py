"""The objective against its formula written out, and on several ranks."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from forks import Forked
from loop_parts import ALONE, EXACT, Cases, Rows, furthest, small_model, train, uneven
from models import lively, tokens
from safetensors.torch import load_file
from test_sharding import train_both
from torch.testing import assert_close

from nanochat.log import read_metrics
from nanochat.objectives import Moment
from nanochat.runtime import setup
from tracks.recursion.objective import Curriculum, DeepSupervision
from tracks.recursion.tests.recursive_models import CONFIGS
from tracks.recursion.tests.written_out import written_out

DEEP = DeepSupervision(5.0, 1.0)


def test_the_loss_is_the_seeds_formula() -> None:
    """Of one row: (Σ wᵢ·Lᵢ − s·Σ (Lᵢ₋₁ − Lᵢ)/Lᵢ₋₁) / exits, wᵢ = bⁱ/Σb; the earlier loss is a constant."""
    model, ids = lively(CONFIGS["recursive"]), tokens(1)
    targets = ids.roll(-1, dims=1)
    losses = [F.cross_entropy(logits[0], targets[0]) for logits in written_out(model, ids)]
    weights = torch.tensor([5.0**i for i in range(3)]) / 31
    expected = sum(w * loss for w, loss in zip(weights, losses, strict=True))
    expected = expected - 2 * sum((a.detach() - b) / a.detach() for a, b in pairwise(losses))
    expected = expected / 3
    expected.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    total, count, metrics = DeepSupervision(5.0, 2.0)(model, (ids, targets))
    (total / count).backward()
    assert_close(total / count, expected)
    assert_close([p.grad for p in model.parameters() if p.grad is not None], gradients)
    for i, loss in enumerate(losses):
        assert float(metrics[f"train/exit_{i}"][0] / count) == pytest.approx(loss.item(), rel=1e-5)
    refinement = metrics["train/refinement"]
    assert float(refinement[0] / refinement[1]) == pytest.approx(1 - (losses[2] / losses[0]).item(), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("base", [1e200, 1.0, 0.0])
def test_any_base_weighs_the_exits(base) -> None:
    model, ids = lively(CONFIGS["recursive"]), tokens(1)
    total, _, metrics = DeepSupervision(base, 0.0)(model, (ids, ids))
    losses = torch.stack([metrics[f"train/exit_{i}"][0] for i in range(3)])
    expected = {1e200: losses[-1], 1.0: losses.mean(), 0.0: losses[0]}[base] / 3
    assert_close(total, expected)


def test_a_curriculum_trains_the_first_exits() -> None:
    model, ids = lively(CONFIGS["recursive"]), tokens(1)
    curriculum = Curriculum(DeepSupervision(5.0, 1.0), (1, 2, 3))
    seen = [curriculum.at(Moment(step, step / 9)).exits for step in range(9)]
    assert seen == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert curriculum.at(Moment(9, 1.0)).exits == 3
    total, count, metrics = curriculum.at(Moment(4, 0.5))(model, (ids, ids))
    assert set(metrics) == {"train/exit_0", "train/exit_1", "train/refinement", "train/exits"}
    assert float(metrics["train/exits"].total) == 2
    model.steps = 2
    expected, expected_count, _ = DeepSupervision(5.0, 1.0)(model, (ids, ids))
    assert torch.equal(total, expected)
    assert torch.equal(count, expected_count)


# ---- on several ranks ----


def train_deep(folder: Path) -> None:
    with setup("cpu", "fp32") as runtime:
        cases = Cases(folder, runtime)
        source = Rows(runtime, uneven)
        cases.train("deep", model=small_model(supervision=3), objective=DEEP, device_batch=1, source=source)


def test_the_number_of_ranks_does_not_matter(tmp_path) -> None:
    Forked(tmp_path / "out", train_deep, tmp_path, ranks=4).done()
    alone = train(tmp_path / "alone", model=small_model(supervision=3), objective=DEEP, source=Rows(ALONE, uneven))
    assert furthest(load_file(tmp_path / "deep.safetensors"), alone.parameters) < EXACT
    records = read_metrics(tmp_path / "deep/metrics.jsonl")
    for record, other in zip(records, alone.records, strict=True):
        for name in ("train/loss", "train/grad_norm", "train/exit_0", "train/exit_2", "train/refinement"):
            assert record[name] == pytest.approx(other[name], rel=1e-5, abs=1e-6)


# Gradients of backout are rounding.
SHARDED = {
    "recursion": {"fields": CONFIGS["recursive"] | {"backout": False}, "steps": 6},
    "passes": {"fields": CONFIGS["recursive passes"] | {"backout": False}, "steps": 6, "checkpointing": True},
}


def test_sharded_weights_train_alike(tmp_path) -> None:
    cases = {name: options | {"objective": DeepSupervision(2.0, 0.5)} for name, options in SHARDED.items()}
    Forked(tmp_path, train_both, tmp_path, cases, ranks=2).done()
