"""Regions of finitely many inputs: where cheap bounds leave an instance open, every one of its inputs is bounded."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..deadlines import passed
from ..graph.graph import Graph
from ..propagate.interval import interval_bounds
from ..propagate.methods import Linear, Method
from ..propagate.structure import Structure, pieces, positions
from ..regions import Choices, Region
from .bracket import Bracket, Effort
from .prove import prove
from .unsafe import Unsafe

MOST = 4096  # inputs of one instance
_TOGETHER = 256


def prove_choices(
    graph: Graph, structure: Structure, region: Choices, start: Tensor, unsafe: Unsafe, method: Method, effort: Effort
) -> Bracket:
    """Linear bounds and an attack, then all inputs of what stays open, then the method on what has too many of them."""
    found = prove(graph, structure, region, start, unsafe, Linear(optimize=0, rounding=method.rounding), effort)
    for place in _open(unsafe, found):
        if found.stopped or passed(effort.deadline):
            break
        _try_all(graph, region, unsafe, found, place)
    left = torch.tensor(_open(unsafe, found), dtype=torch.long, device=start.device)
    if len(left) and not found.stopped:
        better = prove(graph, structure, region.take(left), start[left], unsafe.take(left), method, effort)
        found.rows[:, left] = torch.maximum(found.rows[:, left], better.rows)
        lower = better.attack < found.attack[left]
        found.attack[left[lower]], found.worst[left[lower]] = better.attack[lower], better.worst[lower]
        found.notes |= {int(left[place]): note for place, note in better.notes.items()}
        found.cuts |= {int(left[place]): cuts for place, cuts in better.cuts.items()}
        found.stopped = better.stopped
    return found


def _open(unsafe: Unsafe, found: Bracket) -> list[int]:
    """Instances that are neither proved nor broken."""
    best, _ = unsafe.best_rows(found.rows)
    return [int(place) for place in (~(best > 0).all(0) & ~(found.attack < 0)).nonzero()[:, 0]]


def _try_all(graph: Graph, region: Choices, unsafe: Unsafe, found: Bracket, place: int) -> None:
    """Raise the bounds of an instance to the least over all its inputs, and keep the input with the least margin.

    A region of one input is its box, and intervals of a point are as wide as rounding makes them. An instance with more
    than ``MOST`` inputs stays as it is.
    """
    own = torch.tensor([place], device=found.worst.device)
    points = region.take(own).points(MOST)
    if points is None:
        return
    points, rows = points.to(region.lower), torch.full_like(found.rows[:, place], math.inf)
    for part in pieces(positions(points), _TOGETHER):
        here, asked = points[part], unsafe.take(own.expand(len(part)))
        with torch.no_grad():
            lower, upper = interval_bounds(graph, (here, here))[-1]
            outputs = graph(here).flatten(1)
        outside = Region(lower.flatten(1), upper.flatten(1)).minimum(asked.rows) - asked.offsets
        down = torch.nextafter(outside, torch.full_like(outside, -math.inf))
        rows = torch.minimum(rows, torch.where(asked.offsets == 0, outside, down).amin(1))
        instances = positions(here)
        groups = [asked.margins(outputs, instances, torch.full_like(instances, g)) for g in range(unsafe.groups)]
        margins = torch.stack(groups).amin(0)
        least = int(margins.argmin())
        if margins[least] < found.attack[place]:
            found.attack[place], found.worst[place] = margins[least], here[least]
    found.rows[:, place] = torch.maximum(found.rows[:, place], rows)
