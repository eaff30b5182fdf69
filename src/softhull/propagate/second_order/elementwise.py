"""Entrywise functions as an affine function and a band: two parallel lines around the curve."""

from __future__ import annotations

import torch
from torch import Tensor

from ...graph.operator import Elementwise
from ...graph.rounding import ulps, underflow


def parallel_band(operator: Elementwise, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``(rate, middle, radius)`` with ``|f(x) - rate * x - middle| <= radius`` over ``[lower, upper]``.

    Any sound pair of lines gives a band for any rate; the narrowest of a few pairs is kept. The lower line parallel to
    the chord is what is best for a rectifier, tangents of both sides for smooth curves.
    """
    plain = operator.lines(lower, upper)
    parallel = torch.stack((plain.upper_slope, plain.upper_slope)).clamp(0, 1)
    steep = torch.stack((plain.lower_slope, plain.lower_slope)).clamp(0, 1)
    choices = [None, parallel, steep, *(torch.full_like(parallel, share) for share in (0.25, 0.5, 0.75))]
    best = None
    for free in choices:
        lines = plain if free is None else operator.lines(lower, upper, free)
        for rate in (lines.upper_slope, lines.lower_slope, (lines.upper_slope + lines.lower_slope) / 2):
            over, under = lines.upper_slope - rate, lines.lower_slope - rate
            above = lines.upper_offset + torch.maximum(over * lower, over * upper)
            below = lines.lower_offset + torch.minimum(under * lower, under * upper)
            radius = (above - below) / 2
            if best is None:
                best = rate, (above + below) / 2, radius
                continue
            better, middle = radius < best[2], (above + below) / 2
            rate, middle, radius = (torch.where(better, *pair) for pair in zip((rate, middle, radius), best))
            best = rate, middle, radius
    assert best is not None
    rate, middle, radius = best
    size = (rate * lower).abs() + (rate * upper).abs() + middle.abs()
    exact = (radius == 0) & (middle == 0)  # the identity, zero: nothing was rounded
    # Both ends of the band are a product and a sum, the middle and the radius one more of each.
    rounded = ulps(4, lower.dtype) * size + 4 * underflow(lower.dtype)
    radius = torch.where(exact, radius, radius.clamp(min=0) + rounded)
    return rate, middle, radius
