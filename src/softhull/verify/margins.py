"""Claims that margins are positive: unsafe outputs are unions of intersections of half-spaces, one per instance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..attack.pgd import minimize_margin
from ..errors import InvalidInput, unknown
from ..propagate.structure import pieces, positions
from .problem import Effort, Problem, Solution
from .walks import ASCENDED, BENT, GRADIENT, Walks

# Attacked at once.
_TOGETHER = 4096


@dataclass(frozen=True)
class Margins:
    """Outputs y of instance b are unsafe when all rows of some group have ``<rows[s, b], y> - offsets[s, b] < 0``.

    ``rows [S, B, outputs]``, ``offsets [S, B]``, ``group [S]`` numbers from 0. A group is excluded by one of its rows
    that is positive on the whole region.
    """

    rows: Tensor
    offsets: Tensor
    group: Tensor

    ends: ClassVar[bool] = True

    @property
    def groups(self) -> int:
        """The number of groups; each is excluded by any one of its rows."""
        return int(self.group.max()) + 1 if len(self.group) else 0

    def take(self, instances: Tensor) -> Margins:
        """The margins of some of the instances."""
        return Margins(self.rows[:, instances], self.offsets[:, instances], self.group)

    def best_rows(self, bounds: Tensor) -> tuple[Tensor, Tensor]:
        """For bounds ``[S, B]`` the best one of every group and its row: ``[groups, B]`` each."""
        best = bounds.new_full((self.groups, bounds.shape[1]), -torch.inf)
        row = torch.zeros(best.shape, dtype=torch.long, device=bounds.device)
        for number in range(self.groups):
            members = (self.group == number).nonzero()[:, 0]
            best[number], place = bounds[members].max(0)
            row[number] = members[place]
        return best, row

    def at(self, outputs: Tensor, instances: Tensor, groups: Tensor) -> Tensor:
        """The largest row of one group per entry: ``outputs [P, n]`` of ``instances [P]`` give ``[P]``."""
        values = (self.rows[:, instances] * outputs).sum(-1) - self.offsets[:, instances]
        mine = self.group[:, None] == groups
        return torch.where(mine, values, torch.full_like(values, -torch.inf)).amax(0)

    @property
    def classes(self) -> Tensor:
        """No classes are singled out."""
        return self.group.new_zeros(self.offsets.shape[1], 0)

    # What is known of them

    def nothing(self) -> Tensor:
        """Bounds that say nothing."""
        return torch.full_like(self.offsets, -math.inf)

    def least(self, found: Solution) -> Tensor:
        """The smallest margin proved of every instance."""
        return self.best_rows(found.bounds)[0].amin(0)

    def open(self, found: Solution, tolerance: float = 0.0) -> Tensor:
        """Which instances are still undecided."""
        return self.open_groups(found).any(0)

    def open_groups(self, found: Solution) -> Tensor:
        """Mask ``[groups, B]`` of what is neither excluded nor already broken by the attack."""
        best, _ = self.best_rows(found.bounds)
        return ~(best > 0) & ~(found.attack < 0)

    def improve(self, stage: Walks, found: Solution) -> None:
        """The first look is at every row, later ones at the best row of every open group.

        Where a row is dear the worst of every instance comes first: where it cannot be proved the others need not be.
        """
        if stage.first:
            low = stage.lower(stage.ways[0], self.rows[:, stage.instances])
            found.raise_to(_less(low, self.offsets[:, stage.instances]), stage.instances)
            return
        wanted = torch.zeros_like(found.attack, dtype=torch.bool)
        wanted[stage.instances] = True
        if not stage.dear:
            self._bound(stage, found, *self.open_rows(found, wanted))
            return
        tried = torch.zeros_like(found.bounds, dtype=torch.bool)
        for _ in range(2):
            row, instance = self.open_rows(found, wanted)
            worst = _smallest(found.bounds[row, instance], instance)
            fresh = ~tried[row, instance]
            self._bound(stage, found, row[worst & fresh], instance[worst & fresh])
            broken = ~(found.bounds[row, instance] > 0) & worst
            wanted[instance[broken]] = False
            rest = ~worst & wanted[instance] & fresh
            self._bound(stage, found, row[rest], instance[rest])
            tried[row, instance] = True

    def open_rows(self, found: Solution, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """The best row of every open group of some instances ``[B]``, and its instance."""
        group, instance = (self.open_groups(found) & wanted).nonzero(as_tuple=True)
        _, row = self.best_rows(found.bounds)
        return row[group, instance], instance

    def worst_rows(self, found: Solution) -> tuple[Tensor, Tensor]:
        """Of every open instance the open row with the smallest bound, and the instance."""
        row, instance = self.open_rows(found, torch.ones_like(found.attack, dtype=torch.bool))
        worst = _smallest(found.bounds[row, instance], instance)
        return row[worst], instance[worst]

    def _bound(self, stage: Walks, found: Solution, row: Tensor, instance: Tensor) -> None:
        """Every way of a stage on those of the rows that those before it left unproved."""
        for way in stage.ways:
            left = ~(found.bounds[row, instance] > 0)
            row, instance = row[left], instance[left]
            if not len(row):
                return
            offsets = self.offsets[row, instance]
            places = stage.places(instance)
            low = stage.lower(way, self.rows[row, instance][None], places, offsets[None])[0]
            better = _less(low, offsets)
            for k in (better > 0).nonzero()[:, 0].tolist():
                proved = int(row[k]), int(instance[k])
                found.proved_by[proved] = way
                if stage.kept is not None and way in (GRADIENT, ASCENDED, BENT):
                    found.chosen[proved] = stage.kept.of(k, int(places[k]))
            known = found.bounds[row, instance]
            found.bounds[row, instance] = torch.maximum(known, torch.where(better.isnan(), -math.inf, better))

    def attack(self, problem: Problem, effort: Effort, found: Solution, instances: Tensor) -> None:
        """Every open group of some instances."""
        group, position = self.open_groups(found)[:, instances].nonzero(as_tuple=True)
        instance, how = instances[position], (effort.attack_steps, effort.restarts, effort.seed)
        for part in pieces(positions(group), _TOGETHER):
            start = found.worst[instance[part]]
            self.descend(problem, found, group[part], instance[part], start, *how, deadline=effort.deadline)

    def descend(
        self,
        problem: Problem,
        found: Solution,
        group: Tensor,
        instance: Tensor,
        start: Tensor,
        steps: int,
        restarts: int,
        seed: int,
        deadline: float = math.inf,
    ) -> None:
        """Look for the smallest margins of groups ``[P]`` of instances ``[P]`` from ``start [P, *input_shape]`` on."""
        graph = problem.graph

        def margin(x: Tensor, which: Tensor) -> Tensor:
            return self.at(graph(x).flatten(1), instance[which], group[which])

        region = problem.region.take(instance)
        value, x = minimize_margin(margin, region, start, steps, restarts, seed, deadline=deadline)
        for place in value.argsort(descending=True).tolist():  # the smallest of an instance is written last
            if value[place] < found.attack[instance[place]]:
                found.attack[instance[place]] = value[place]
                found.worst[instance[place]] = x[place]


def _less(low: Tensor, offset: Tensor) -> Tensor:
    """A bound less an offset, below the real difference where it is not exact, and of the same sign."""
    apart = low - offset
    below = torch.nextafter(apart, torch.full_like(apart, -math.inf))
    return torch.where((offset == 0) | (apart == 0) | ((apart > 0) & (below <= 0)), apart, below)


def _smallest(bound: Tensor, instance: Tensor) -> Tensor:
    """Mask of one row per instance, the one with the smallest bound."""
    worst = torch.zeros_like(instance, dtype=torch.bool)
    seen: set[int] = set()
    for place in bound.argsort().tolist():
        if int(instance[place]) not in seen:
            seen.add(int(instance[place]))
            worst[place] = True
    return worst


def class_change(labels: Tensor, logits: Tensor, kind: str, targets: Tensor | None = None) -> Margins:
    """The outputs that break a class property, for labels ``[B]`` and clean logits ``[B, K]``.

    ``all``: any other class overtakes the label; ``targets``: one of the given classes does; ``runner-up``: the
    clean runner-up class becomes the largest of all. A single logit has the classes 0 (negative) and 1 (positive).
    """
    B, K = logits.shape
    if K == 1:
        sign = (2 * labels - 1).to(logits).reshape(1, B, 1)
        return Margins(sign, sign.new_zeros(1, B), labels.new_zeros(1))
    eye = torch.eye(K, dtype=logits.dtype, device=logits.device)
    own = eye[labels]
    if kind == "runner-up":
        runner_up = logits.masked_fill(own.bool(), -torch.inf).argmax(1)
        rivals = _without(runner_up, K)
        rows = eye[rivals] - eye[runner_up]
        return Margins(rows, rows.new_zeros(K - 1, B), labels.new_zeros(K - 1))
    if kind == "all":
        rivals = _without(labels, K)
    elif kind == "targets":
        if targets is None or not len(targets):
            raise InvalidInput("property 'targets' needs targets, the classes that must not overtake the label")
        if ((targets < 0) | (targets >= K)).any():
            raise InvalidInput(f"targets must be classes from 0 to {K - 1}, got {targets.tolist()}")
        rivals = targets[:, None].expand(-1, B)
    else:
        raise InvalidInput(unknown("property", kind, ("all", "runner-up", "targets")))
    rows = own - eye[rivals]
    # The label cannot overtake itself: 0 * y + 1 > 0.
    offsets = -(rivals == labels).to(logits)
    return Margins(rows, offsets, torch.arange(len(rivals), device=rivals.device))


def _without(excluded: Tensor, K: int) -> Tensor:
    """All classes but one per instance: ``[K - 1, B]``."""
    classes = torch.arange(K - 1, device=excluded.device)[:, None]
    return classes + (classes >= excluded)
