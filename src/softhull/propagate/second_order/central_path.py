"""Multipliers of a quadratic of the noise by Newton steps along the central path of its dual.

The dual ``-sum d - l'M^-1 l / 4`` over ``d > 0`` with ``M = diag(d) + B`` positive definite is concave. With a barrier,

    f(d)  =  -sum d - l'M^-1 l / 4 + mu (log det M + sum log d),

it has one maximum, next to which it is nearly quadratic; as ``mu`` shrinks, the maximum moves to that of the dual, and
is never further below it than ``2 n mu``. With ``x = M^-1 l / 2`` and ``W = M^-1`` the slope of f is
``x^2 - 1 + mu (diag W + 1 / d)`` and minus its second derivative ``W * (2 x x' + mu W) + mu / d^2``, so that a step
takes three factorisations. Fixed points of single multipliers are cheaper, but stop short of the maximum wherever M is
nearly singular in a direction of many of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Where the path begins: equal multipliers, at first this share of the largest row sum of |B|, growing until M is
# definite, then a little further inside, where the path is for this share of them as mu.
_SHARE, _GROW, _INSIDE, _FIRST = 0.1, 1.4, 1.2, 0.4
# A step is near the path where its length in the metric of f is below this, and then mu shrinks.
_NEAR, _SHRINK = 3.0, 0.2
# Steps end short of where a multiplier or a factorisation fails.
_SHORT, _BACK, _TRIES = 0.9, 0.6, 10


def followed(linear: Tensor, B: Tensor, steps: Tensor, target: Tensor, enough: float) -> Tensor:
    """Multipliers ``[P, n]`` by at most ``steps [P]`` steps each; NaN where none were found.

    Work on one ends when its dual exceeds its ``target [P]``, or when what is left to gain is a share ``enough`` of it.
    """
    # For a large mu all multipliers on the path are nearly equal; a start with unequal ones is far from it.
    d = (_SHARE * (B.abs().sum(-1) + linear.abs() / 2).amax(-1, keepdim=True)).expand(linear.shape)
    info = torch.ones(len(d), device=d.device)
    for _ in range(_TRIES):
        _, info = torch.linalg.cholesky_ex(B + torch.diag_embed(d))
        if not bool((info != 0).any()):
            break
        d = torch.where((info != 0)[:, None], _GROW * d, d)
    d = _INSIDE * d
    best, best_value = torch.full_like(d, math.nan), linear.new_full(linear.shape[:1], -math.inf)
    mu = _FIRST * d.mean(-1)
    active = torch.arange(len(linear), device=linear.device)
    factor, info = torch.linalg.cholesky_ex(B + torch.diag_embed(d))
    for taken in range(1, int(steps.max()) + 2):
        l, W = linear[active], torch.cholesky_inverse(_usable(factor, info))  # noqa: E741
        x = (W @ l[..., None])[..., 0] / 2
        value = -(d.sum(-1) + (l * x).sum(-1) / 2)
        better = (info == 0) & (value > best_value[active])
        best[active[better]], best_value[active[better]] = d[better], value[better]
        more = (info == 0) & ~(value > target[active]) & (steps[active] >= taken)
        more &= 2 * d.shape[-1] * mu > enough * value.abs()
        left = more.nonzero()[:, 0]
        if not len(left):
            break
        active, d, x, W, mu = active[left], d[left], x[left], W[left], mu[left]
        d, factor, info, mu = _step(B[active], d, x, W, mu)
    return best


def _step(B: Tensor, d: Tensor, x: Tensor, W: Tensor, mu: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Multipliers after one step, a factor of their M and whether it is one, and the next mu."""
    m = mu[:, None]
    slope = x.square() - 1 + m * (W.diagonal(dim1=-2, dim2=-1) + 1 / d)
    bent = W * (2 * x[:, :, None] * x[:, None] + m[..., None] * W) + torch.diag_embed(m / d.square())
    half, info = torch.linalg.cholesky_ex(bent)
    step = torch.cholesky_solve(slope[..., None], _usable(half, info))[..., 0]
    step = torch.where(((info == 0) & step.isfinite().all(-1))[:, None], step, 0.1 * d)
    length = ((slope * step).sum(-1) / mu).clamp(min=0).sqrt()
    falling = step < 0
    share = torch.where(falling, -_SHORT * d / torch.where(falling, step, -1.0), math.inf).amin(-1).clamp(max=1)
    for _ in range(_TRIES):
        moved = d + share[:, None] * step
        factor, info = torch.linalg.cholesky_ex(B + torch.diag_embed(moved))
        if not bool((info != 0).any()):
            break
        share = torch.where(info != 0, _BACK * share, share)
    else:  # nowhere near: stay, and come from further inside
        moved = torch.where((info != 0)[:, None], 1.1 * d, moved)
        factor, info = torch.linalg.cholesky_ex(B + torch.diag_embed(moved))
    return moved, factor, info, torch.where(length < _NEAR, _SHRINK * mu, torch.where(share > _SHORT, mu / 2, mu))


def _usable(factor: Tensor, info: Tensor) -> Tensor:
    """Factors that can be worked with, whatever they are worth."""
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.where(((info == 0) & factor.isfinite().flatten(1).all(-1))[:, None, None], factor, eye)
