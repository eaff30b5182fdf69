"""Rectifiers by quadratics: lines that are bent between the ends of an interval.

For ``x`` in ``[l, u]`` with ``l < 0 < u`` the product ``(x - l)(x - u)`` is at most 0. For any slope ``s`` and any
``k >= 0``

    relu(x)  >=  s x + o + k (x - l)(x - u),    o = min(-s l, (1 - s) u, -k l u),

because what is left over is concave on both sides of 0 and is not negative at l, 0 and u; and from above with ``o`` the
largest value of ``relu(x) - s x - k (x - l)(x - u)``, which is concave on both sides of 0 and has its peaks in closed
form. With ``x = c + d``, ``c`` the centre of its form, ``x^2 = 2 c x - c^2 + d^2``: a linear function that is walked on
with, and a square of the noise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...graph.rounding import share, ulps, underflow
from ..crown import LinearBounds
from ..free import Free
from .affine_form import AffineForm, Basis
from .bends import Rectifiers
from .terms import Term


class Bent:
    """Rectifiers met with coefficients ``A [P, *shape]``, by slopes and bends that are free."""

    def __init__(self, bounds: LinearBounds, index: int, A: Tensor, form: AffineForm, basis: Basis, free: Free) -> None:
        self.bounds, self.A, self.form, self.basis = bounds, A, form, basis
        self.before = bounds.graph.nodes[index].inputs[0]
        lower, upper = bounds.interval(self.before, None)
        crossing = (lower < 0) & (upper > 0) & (upper - lower).isfinite()
        width = torch.where(crossing, upper - lower, 1.0)
        low, high = torch.where(crossing, lower, -0.5), torch.where(crossing, upper, 0.5)
        chord = high / width
        # Side 0 is below the rectifier, side 1 above; a start without bends is what linear walks begin with.
        start = torch.stack(((upper > -lower).to(chord), chord))[:, None]
        slope = free(index, "slope", start, 2)[:, 0]
        # Bends make the quadratic indefinite where slopes do not: they move at a third of the pace.
        bend = free(index, "bend", torch.zeros_like(start), 2, high=3.0)[:, 0] / (3 * width)
        rising = A >= 0
        self.slope, self.bend = (torch.where(rising, side[0], side[1]) for side in (slope, bend))
        below = torch.minimum(torch.minimum(-slope[0] * low, (1 - slope[0]) * high), -bend[0] * low * high)
        above = _peak(slope[1], bend[1], low, high)
        with torch.no_grad():  # of numbers of at most this size some ten are multiplied and added up
            lost = ulps(32, width.dtype) * width * (1 + slope.abs() + bend * width) + underflow(width.dtype)
        offset = torch.where(rising, below - lost[0], above + lost[1])
        # What does not cross is zero or the identity, exactly.
        self.slope = torch.where(crossing, self.slope, (lower >= 0).to(chord))
        self.bend = torch.where(crossing, self.bend, 0.0)
        known = (lower >= 0) | (upper <= 0) | rising  # a rectifier is at least 0, but may be anything above that
        self.offset = torch.where(crossing, offset, torch.where(known, 0.0, math.inf))
        self.low, self.high, self.crossing = low, high, crossing

    def linear(self) -> tuple[Tensor]:
        """The coefficients on what the rectifiers are applied to, ``[1, P, *shape]``."""
        return (((self.slope + self.bend * (2 * self.form.centre - self.low - self.high)) * self.A)[None],)

    def shift(self) -> Tensor:
        """The constant ``[1, P]``, and what rounding costs it, the coefficients and the matrix."""
        A, bend, centre = self.A, self.bend, self.form.centre
        constant = (A * (self.offset + bend * (self.low * self.high - centre.square()))).flatten(1).sum(1)
        with torch.no_grad():
            size, spread, error = self.bounds.sizes(self.before), self.form.spread(self.basis), self.form.error
            ends = self.high - self.low
            entries = share(math.prod(A.shape[1:]) + 16, A.dtype)
            terms = share(math.prod(A.shape[1:]) + 2 * self.form.slope.shape[1] + 16, A.dtype)
            each = entries * (self.slope.abs() + bend * (2 * centre.abs() + 2 * ends)) * (size + error)
            each = each + entries * (self.offset.abs() + bend * (ends.square() + centre.square()))
            # The square of a deviation, which is that of the form up to its error.
            each = each + bend * (2 * spread * error + error.square()) * (1 + terms)
            each = each + 4 * terms * bend * spread.square()
            cost = torch.where(A == 0, 0.0, A.abs() * each).flatten(1).sum(1)
        return (constant - cost)[None]

    def taken(self, which: Tensor, noise: int) -> Rectifiers:
        """Some of the rectifiers of one problem, over so many noise numbers."""
        slope = self.A.new_zeros(len(which), noise)
        slope[:, self.basis.numbered()] = self.form.noise_slope(self.basis)[0, which]
        weight, centre, low, high = (t.flatten()[which] for t in (self.A, self.form.centre, self.low, self.high))
        return Rectifiers(weight.detach(), centre, slope, low, high)

    def coefficients(self, which: Tensor) -> Tensor:
        """The coefficients ``[3, entries]`` of 1, x and x^2 that they are bounded by, with those they are met with."""
        A, slope, bend, offset, low, high = (
            t.detach().flatten()[which] for t in (self.A, self.slope, self.bend, self.offset, self.low, self.high)
        )
        return A * torch.stack((offset + bend * low * high, slope - bend * (low + high), bend))

    def put(self, free: Free, index: int, which: Tensor, slope: Tensor, bend: Tensor) -> None:
        """Let the next walk bound some rectifiers of one problem by ``slope x + bend x^2`` and an offset."""
        side = (self.A.flatten()[which] < 0).long()
        low, high = (t.flatten()[which] for t in (self.low, self.high))
        free.put(index, "slope", (side, which), slope + bend * (low + high))
        free.put(index, "bend", (side, which), 3 * (high - low) * bend)

    def term(self) -> Term:
        """The squares by the rectifiers that are bent."""
        crossing = self.crossing.flatten(1).any(0).nonzero()[:, 0]
        slope, bend = self.form.slope.flatten(2)[..., crossing], (self.A * self.bend).flatten(1)[:, crossing]
        return Term(slope.mT.expand(len(bend), -1, -1), torch.diag_embed(bend))

    def matrix(self) -> Tensor:
        """The symmetric matrix ``[P, r, r]`` of the squares over the basis."""
        slope = self.form.slope.flatten(2)
        found = (slope * (self.A * self.bend).flatten(1)[:, None]) @ slope.mT
        missing = self.basis.size - found.shape[-1]
        return torch.nn.functional.pad(found, (0, missing, 0, missing)) if missing else found


def _peak(slope: Tensor, bend: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The largest ``relu(x) - slope x - bend (x - low)(x - high)`` between ``low`` and ``high``."""
    found = []
    for own, least, most in ((0.0, low, torch.zeros_like(low)), (1.0, torch.zeros_like(high), high)):
        with torch.no_grad():  # the slope of the peak in its place is 0
            at = (low + high) / 2 + (own - slope) / (2 * bend)
            at = torch.where(bend > 0, at, torch.where(own - slope > 0, most, least))
            at = torch.minimum(torch.maximum(at, least), most)
        found.append((own - slope) * at - bend * (at - low) * (at - high))
    return torch.maximum(*found)
