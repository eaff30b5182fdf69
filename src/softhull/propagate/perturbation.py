"""The inputs a question speaks about: norm balls, clipped or not, and boxes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from ..errors import InvalidInput
from ..graph.operator import Interval
from ..graph.rounding import share, underflow


@dataclass(frozen=True)
class Perturbation:
    """All inputs within ``eps`` of a given one in the l_1, l_2 or l_inf norm, inside ``clip`` where it is given."""

    eps: float
    norm: float = math.inf
    clip: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.eps) and self.eps >= 0):
            raise InvalidInput(f"eps must be a finite number of at least 0, got {self.eps!r}")
        if self.norm not in (1, 2, math.inf):
            raise InvalidInput(f"norm must be 1, 2 or inf, got {self.norm!r}")
        if self.clip is not None and not self.clip[0] <= self.clip[1]:
            raise InvalidInput(f"clip must be (low, high) with low <= high, got {self.clip!r}")

    def around(self, x: Tensor, eps: Tensor | None = None, dtype: torch.dtype | None = None) -> Region:
        """The perturbed inputs around ``x [B, *shape]``, with an ``eps [B]`` of their own where given.

        The region holds the whole ball of real numbers, in the format of ``x`` or in a shorter one.
        """
        dtype = dtype or x.dtype
        size = self.eps if eps is None else eps.to(x.device)
        exact = x.double()
        wide = torch.as_tensor(size, dtype=torch.float64, device=x.device).reshape(-1, *[1] * (x.ndim - 1))
        (lower, least), (most, upper) = _sum_between(exact, -wide), _sum_between(exact, wide)
        if self.clip is not None:
            low, high = self.clip
            outside = (x < low) | (x > high)
            if outside.any():
                index = tuple(outside.nonzero()[0].tolist())
                raise InvalidInput(
                    f"input {float(x[index])!r} at index {index} lies outside the clip range {self.clip}"
                )
            lower, least, most, upper = (end.clamp(low, high) for end in (lower, least, most, upper))
        lower, upper = rounded_down(lower, dtype), -rounded_down(-upper, dtype)
        if self.norm == math.inf:
            return Region(lower, upper, inner=(least, most))
        return Region(lower, upper, x, size, self.norm, inner=(least, most))


def _sum_between(a: Tensor, b: Tensor) -> Interval:
    """The numbers of the format around the real sum: the largest that is not above it, the smallest not below."""
    total = a + b
    rounded = total - a
    error = (a - (total - rounded)) + (b - rounded)  # exact: the real sum is total + error
    infinite = torch.full_like(total, math.inf)
    below = torch.where(error < 0, torch.nextafter(total, -infinite), total)
    return below, torch.where(error > 0, torch.nextafter(total, infinite), total)


def rounded_down(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in another format, rounded down."""
    y = x.to(dtype)
    return torch.where(y.double() > x, torch.nextafter(y, torch.full_like(y, -math.inf)), y)


@dataclass(frozen=True)
class Region:
    """A box ``[B, *shape]``, met with the balls of radius ``eps`` (a number or ``[B]``) around ``centre`` if given.

    The box is rounded outward so that bounds speak about the whole ball; ``inner`` is its counterpart rounded inward
    (None: the box is meant as it is), which points that are to lie in the ball must not leave.
    """

    lower: Tensor
    upper: Tensor
    centre: Tensor | None = None
    eps: float | Tensor = math.inf
    norm: float = math.inf
    inner: Interval | None = None

    def __post_init__(self) -> None:
        if not (self.lower <= self.upper).all():
            raise InvalidInput("the input box has a lower bound above its upper bound, or a NaN")

    @property
    def size(self) -> int:
        return self.lower.shape[0]

    def minimum(self, coefficients: Tensor, outward: bool = True) -> Tensor:
        """A lower bound ``[S, B]`` on ``<coefficients, x>``, exact for boxes; coefficients ``[S, B or 1, *shape]``.

        For a ball met with a box it is the better of the two alone. ``outward`` lowers it by what rounding may cost.
        """
        flat = coefficients.flatten(2)
        middle, radius, padded = self._middle_and_radius
        best = inner(flat, middle) - inner(flat.abs(), padded if outward else radius)
        if self.centre is None:
            return best
        dual = {1: math.inf, 2: 2}[int(self.norm)]
        centre = self.centre.to(middle.dtype).flatten(1)
        cost = share(flat.shape[-1], middle.dtype) if outward else 0.0
        eps = torch.as_tensor(self.eps, dtype=middle.dtype, device=middle.device)
        ball = inner(flat, centre) - (1 + cost) * eps * flat.norm(p=dual, dim=-1)
        if outward:  # the centre and the radius may have been rounded to a shorter format, too
            ball = ball - cost * inner(flat.abs(), centre.abs())
        return torch.maximum(best, ball)

    @cached_property
    def _middle_and_radius(self) -> tuple[Tensor, Tensor, Tensor]:
        """The box as a middle and a radius, and the radius with the rounding of both scalar products added to it.

        What rounding costs grows with the absolute values of the coefficients exactly as the radius does.
        """
        lower, upper = self.lower.flatten(1), self.upper.flatten(1)
        radius = (upper - lower) / 2
        middle = lower + radius
        size = torch.maximum(lower.abs(), upper.abs())
        return middle, radius, radius + share(lower.shape[1], lower.dtype) * size + underflow(lower.dtype)

    def take(self, instances: Tensor) -> Region:
        """The regions of some instances, in the order given."""
        centre = None if self.centre is None else self.centre[instances]
        eps = self.eps[instances] if isinstance(self.eps, Tensor) else self.eps
        inner = self.inner and (self.inner[0][instances], self.inner[1][instances])
        return Region(self.lower[instances], self.upper[instances], centre, eps, self.norm, inner)

    def contains(self, x: Tensor) -> bool:
        """Whether a point ``[*shape]`` lies in the ball of the only instance, decided in exact arithmetic."""
        least, most = self.inner or (self.lower, self.upper)
        point = x.double()
        if not bool(((point >= least[0]) & (point <= most[0])).all()):
            return False
        if self.centre is None:
            return True
        steps = [
            abs(Fraction(a) - Fraction(b))
            for a, b in zip(point.flatten().tolist(), self.centre[0].double().flatten().tolist())
        ]
        eps = Fraction(float(torch.as_tensor(self.eps, dtype=torch.float64).reshape(-1)[0]))
        return sum(steps) <= eps if self.norm == 1 else sum(step * step for step in steps) <= eps * eps

    def project(self, x: Tensor) -> Tensor:
        """A point of the region near ``x``: inside the box always, inside the ball up to rounding."""
        if self.centre is not None:
            x = self.centre + _shrink((x - self.centre).flatten(1), self.eps, self.norm).reshape(x.shape)
        return torch.minimum(torch.maximum(x, self.lower), self.upper)

    def sample(self, generator: torch.Generator) -> Tensor:
        """One random point of every instance's region: the same place in each, whatever else is in the batch."""
        share = torch.rand(self.lower.shape[1:], generator=generator, dtype=self.lower.dtype).to(self.lower.device)
        return self.project(self.lower + share * (self.upper - self.lower))


def inner(coefficients: Tensor, x: Tensor) -> Tensor:
    """``[S, B or 1, n]`` with ``[B, n]`` gives ``[S, B]``."""
    if coefficients.shape[1] == 1:
        return coefficients[:, 0] @ x.T
    return torch.einsum("sbn,bn->sb", coefficients, x)


def _shrink(step: Tensor, eps: float | Tensor, norm: float) -> Tensor:
    """The steps ``[B, n]`` projected onto the balls of radius ``eps`` around zero."""
    eps = torch.as_tensor(eps, dtype=step.dtype, device=step.device).reshape(-1, 1)
    if norm == 2:
        length = step.norm(dim=1, keepdim=True)
        return torch.where(length > eps, step * (eps / torch.where(length > eps, length, 1.0)), step)
    descending = step.abs().sort(dim=1, descending=True).values
    excess = descending.cumsum(1) - eps
    count = torch.arange(1, step.shape[1] + 1, dtype=step.dtype, device=step.device)
    kept = (descending - excess / count > 0).sum(1, keepdim=True).clamp(min=1)
    threshold = (excess.gather(1, kept - 1) / kept).clamp(min=0)
    return step.sign() * (step.abs() - threshold).clamp(min=0)
