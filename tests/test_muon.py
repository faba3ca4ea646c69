import math
import random

import pytest
import torch
from torch import Tensor

from nanochat.muon import POLAR_EXPRESS, muon_update

SEED = 20261123  # fixed: where an update is nearly 0, rounding decides whether the weight decays


class PlainMuon:
    """One matrix at a time, in float64, each stage as it is described."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.momentum = matrix.double(), torch.zeros_like(matrix, dtype=torch.float64)
        self.variance = 0.0
        self.sure = torch.ones_like(matrix, dtype=torch.bool)  # where rounding does not decide whether weights decay

    def step(self, gradient: Tensor, lr: float, beta: float, beta2: float, weight_decay: float) -> None:
        m, n = gradient.shape
        gradient = gradient.double()
        self.momentum = beta * self.momentum + (1 - beta) * gradient
        x = beta * self.momentum + (1 - beta) * gradient
        if x.any():
            norms = [float(row.norm()) for row in x]
            floor = 1e-4 * math.sqrt(sum(norm**2 for norm in norms) / m)
            x = torch.stack([row / max(norm, floor) for row, norm in zip(x, norms, strict=True)])
            x = x / (x.norm() * 1.01)
            for a, b, c in POLAR_EXPRESS:
                x = a * x + b * (x @ x.T @ x) + c * (x @ x.T @ x @ x.T @ x)
            x = x * math.sqrt(min(m, n)) / x.norm()
        squares = (x**2).mean(1, keepdim=True) if m >= n else (x**2).mean(0, keepdim=True)
        self.variance = beta2 * self.variance + (1 - beta2) * squares
        scaled = x / self.variance.clamp_min(1e-10).sqrt()
        x = scaled * (x.norm() / scaled.norm()) if x.any() else x
        self.sure &= (x.abs() > 1e-4) | (x == 0)
        decay = weight_decay * self.matrix * (x * self.matrix >= 0)
        self.matrix = self.matrix - lr * (x + decay)


# The first rows, and the factor of their gradients.
QUIET = {"all rows alike": (0, 1.0), "a silent row": (1, 0.0), "a faint row": (1, 1e-6), "a silent matrix": (99, 0.0)}


@pytest.mark.parametrize("case", QUIET)
def test_a_step_equals_its_plain_twin(case) -> None:
    torch.manual_seed(SEED)
    random.seed(SEED)
    quiet, loudness = QUIET[case]
    for _ in range(4):
        k, m, n = random.randint(1, 3), random.randint(1, 24), random.randint(1, 24)
        values, momenta = torch.randn(k, m, n), torch.zeros(k, m, n)
        variances = torch.zeros((k, m, 1) if m >= n else (k, 1, n))
        twins = [PlainMuon(matrix) for matrix in values.clone()]
        lr, momentum, weight_decay = random.uniform(0.01, 0.1), random.uniform(0.8, 0.97), 0.3
        for _ in range(3):
            gradients = torch.randn(k, m, n)
            gradients[:, :quiet] *= loudness
            factors = lr, momentum, 0.9, weight_decay
            muon_update(values, gradients, [momenta, variances], torch.tensor(0.01), factors, torch.float32)
            for twin, gradient in zip(twins, gradients, strict=True):
                twin.step(0.01 * gradient, *factors)
            lr, momentum, weight_decay = lr * 0.9, momentum * 0.98, weight_decay * 0.8
        for matrix, twin in zip(values, twins, strict=True):
            different = (matrix.double() - twin.matrix).abs() * twin.sure
            assert different.max() < 1e-4 * lr * max(1, math.sqrt(m * n)), (m, n)
            assert twin.sure.float().mean() > 0.7
