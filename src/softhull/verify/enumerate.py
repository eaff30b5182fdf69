"""Regions of finitely many inputs: where cheap bounds leave an instance open, every one of its inputs is bounded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..deadlines import passed
from ..propagate.interval import interval_bounds
from ..propagate.methods import Linear, Method
from ..propagate.structure import pieces, positions
from ..regions import Region
from .engine import Work, stages
from .margins import Margins

MOST = 4096  # inputs of one instance
_TOGETHER = 256


@dataclass(frozen=True)
class Enumerate:
    """Linear bounds and an attack, then all inputs of what stays open, then ``inner`` on what has too many of them."""

    inner: Method


@stages.register(Enumerate)
def _(method: Enumerate, work: Work) -> Iterator[Any]:
    yield from stages(Linear(optimize=0, rounding=method.inner.rounding), work)
    for place in work.open().tolist():
        if passed(work.effort.deadline):
            return
        _try_all(work, place)
        work.found.spent.charge({place: 1.0})
    work.instances = work.open()
    if len(work.instances):
        yield from stages(method.inner, work)


def _try_all(work: Work, place: int) -> None:
    """Raise the bounds of an instance to the least over all its inputs, and keep the input with the least margin.

    A region of one input is its box, and intervals of a point are as wide as rounding makes them. An instance with more
    than ``MOST`` inputs stays as it is.
    """
    graph, region, margins, found = work.problem.graph, work.problem.region, work.claims, work.found
    assert isinstance(margins, Margins)
    own = torch.tensor([place], device=found.worst.device)
    points = region.take(own).points(MOST)
    if points is None:
        return
    points, rows = points.to(region.lower), torch.full_like(found.bounds[:, place], math.inf)
    for part in pieces(positions(points), _TOGETHER):
        here, asked = points[part], margins.take(own.expand(len(part)))
        lower, upper = interval_bounds(graph, (here, here))[-1]
        outputs = graph(here).flatten(1)
        outside = Region(lower.flatten(1), upper.flatten(1)).minimum(asked.rows) - asked.offsets
        down = torch.nextafter(outside, torch.full_like(outside, -math.inf))
        rows = torch.minimum(rows, torch.where(asked.offsets == 0, outside, down).amin(1))
        instances = positions(here)
        groups = [asked.at(outputs, instances, torch.full_like(instances, g)) for g in range(margins.groups)]
        smallest = torch.stack(groups).amin(0)
        least = int(smallest.argmin())
        if smallest[least] < found.attack[place]:
            found.attack[place], found.worst[place] = smallest[least], here[least]
    found.bounds[:, place] = torch.maximum(found.bounds[:, place], rows)
