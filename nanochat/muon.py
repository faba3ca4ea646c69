"""Muon's step: momentum, an orthogonal direction, rows of equal size, and cautious weight decay."""

from collections.abc import Sequence

import torch
from torch import Tensor

# Coefficients (a, b, c) for the odd polynomials a·x + b·x³ + c·x⁵. Applied one after the other, they bring singular
# values in (0, 1] near 1: Polar Express (arXiv 2505.16932) for 5 steps, safety factor 2e-2, cushion 2.
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
SAFETY = 1.01  # rounding must not lift a singular value above 1, where the polynomials diverge
ROW_FLOOR = 1e-4  # a row's smallest norm, in mean rows: a row without gradients fades away instead of growing
TINY = 1e-10  # keeps divisions and logarithms away from zero


def polar_express(x: Tensor) -> Tensor:
    """Return nearly the nearest semi-orthogonal matrix to each of x (k, m, n), whose singular values are at most 1."""
    tall = x.size(-2) > x.size(-1)
    for a, b, c in POLAR_EXPRESS:
        gram = x.mT @ x if tall else x @ x.mT  # the smaller of both
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # b·G + c·G²
        left, right = (x, polynomial) if tall else (polynomial, x)
        x = torch.baddbmm(x, left, right, beta=a)
    return x


def muon_update(
    values: Tensor,
    grads: Tensor,
    states: Sequence[Tensor],
    scale: Tensor,
    factors: Sequence[float | Tensor],
    polar_dtype: torch.dtype,
) -> None:
    """Update values (…, m, n) in place by one Muon step; gradients and momenta are (k, m, n).

    states: momenta and variances; the latter are (k, m, 1), or (k, 1, n) for matrices wider than tall. scale: a 0-d
    gradient factor. factors: lr, momentum, beta2, weight decay, as 0-d tensors where the step is compiled.
    """
    momenta, variances = states
    lr, momentum, beta2, weight_decay = factors
    update = nesterov(grads, momenta, scale, momentum)
    update = orthogonalize(update, variances, lr, beta2, polar_dtype)
    decay_and_step(values, update.view_as(values), lr * weight_decay)


def nesterov(grads: Tensor, momenta: Tensor, scale: Tensor, momentum: float | Tensor) -> Tensor:
    """Move momenta toward grads × scale; return Nesterov's direction."""
    gradients = grads * scale
    momenta.lerp_(gradients, 1 - momentum)  # exponential average
    return gradients.lerp(momenta, momentum)


def orthogonalize(
    update: Tensor, variances: Tensor, lr: float | Tensor, beta2: float | Tensor, polar_dtype: torch.dtype
) -> Tensor:
    """Return Muon's step for whole directions (k, m, n), in fp32, learning rate included; moves the variances."""
    m, n = update.shape[-2:]
    # MuonEq: every row gets the same norm, which conditions the matrix; then the whole matrix gets norm 1.
    rows = update.norm(dim=-1, keepdim=True)
    floor = rows.norm(dim=-2, keepdim=True) * (ROW_FLOOR / m**0.5)
    raised = rows.maximum(floor).clamp_min(TINY**2)
    whole = (rows / raised).norm(dim=-2, keepdim=True).clamp_min(1)
    update = polar_express((update / (raised * whole * SAFETY)).to(polar_dtype))
    # Muon+: snap to an exactly semi-orthogonal matrix's Frobenius norm, by way of the last factor below.
    # NorMuon: rows (or columns) that are always large are damped, the others raised; the matrix's norm stays.
    along = -1 if m >= n else -2
    squares = update.norm(dim=along, keepdim=True, dtype=torch.float32).square()
    snap = min(m, n) / _matrix_sum(squares).clamp_min(TINY)
    means = squares * snap / update.size(along)
    variances.lerp_(means, 1 - beta2)
    damping = variances.clamp_min(TINY).rsqrt()
    energy = _matrix_sum(means)
    damped = _matrix_sum(means * damping.square()).clamp_min(TINY)
    return update * (lr * damping * (snap * energy / damped).sqrt())  # fp32 again


def decay_and_step(values: Tensor, update: Tensor, decay: float | Tensor) -> None:
    """Subtract an update in place; weights decay only where the step shrinks them as well (cautious)."""
    shrinks = update * values >= 0
    values.mul_(1 - decay * shrinks).sub_(update)


def _matrix_sum(x: Tensor) -> Tensor:
    return x.sum(dim=(-2, -1), keepdim=True)
