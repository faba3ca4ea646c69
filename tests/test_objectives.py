"""What training minimises, against torch's own cross-entropy."""

import pytest
import torch
import torch.nn.functional as F
from loop_parts import Rows, small_model, uneven

from nanochat.objectives import next_token


def test_the_sum_and_the_count_of_the_targets_that_there_are():
    model, (inputs, targets) = small_model(), next(Rows(targets=uneven))
    loss, count = next_token(model, (inputs, targets))
    assert int(count) == int((targets >= 0).sum()) < targets.numel()
    plain = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    parts = [next_token(model, (inputs[i : i + 1], targets[i : i + 1])) for i in range(len(inputs))]
    assert sum(loss.item() for loss, _ in parts) == pytest.approx(loss.item(), rel=1e-5)
    assert sum(int(count) for _, count in parts) == int(count)


def test_rows_without_a_target_teach_nothing():
    model, (inputs, targets) = small_model(), next(Rows())
    loss, count = next_token(model, (inputs, torch.full_like(targets, -1)))
    loss.backward()
    assert (loss.item(), int(count)) == (0, 0)
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
