"""Unsafe outputs as unions of intersections of half-spaces, one union per instance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InvalidInput, unknown


@dataclass(frozen=True)
class Unsafe:
    """Outputs y of instance b are unsafe when all rows of some group have ``<rows[s, b], y> - offsets[s, b] < 0``.

    ``rows [S, B, outputs]``, ``offsets [S, B]``, ``group [S]`` numbers from 0. A group is excluded by one of its rows
    that is positive on the whole region.
    """

    rows: Tensor
    offsets: Tensor
    group: Tensor

    @property
    def groups(self) -> int:
        return int(self.group.max()) + 1 if len(self.group) else 0

    def take(self, instances: Tensor) -> Unsafe:
        return Unsafe(self.rows[:, instances], self.offsets[:, instances], self.group)

    def best_rows(self, bounds: Tensor) -> tuple[Tensor, Tensor]:
        """For bounds ``[S, B]`` the best one of every group and its row: ``[groups, B]`` each."""
        best = bounds.new_full((self.groups, bounds.shape[1]), -torch.inf)
        row = torch.zeros(best.shape, dtype=torch.long, device=bounds.device)
        for number in range(self.groups):
            members = (self.group == number).nonzero()[:, 0]
            best[number], place = bounds[members].max(0)
            row[number] = members[place]
        return best, row

    def margins(self, outputs: Tensor, instances: Tensor, groups: Tensor) -> Tensor:
        """The largest row of one group per entry: ``outputs [P, n]`` of ``instances [P]`` give ``[P]``."""
        values = (self.rows[:, instances] * outputs).sum(-1) - self.offsets[:, instances]
        mine = self.group[:, None] == groups
        return torch.where(mine, values, torch.full_like(values, -torch.inf)).amax(0)


def class_change(labels: Tensor, logits: Tensor, kind: str, targets: Tensor | None = None) -> Unsafe:
    """The outputs that break a class property, for labels ``[B]`` and clean logits ``[B, K]``.

    ``all``: any other class overtakes the label; ``targets``: one of the given classes does; ``runner-up``: the
    clean runner-up class becomes the largest of all. A single logit has the classes 0 (negative) and 1 (positive).
    """
    B, K = logits.shape
    if K == 1:
        sign = (2 * labels - 1).to(logits).reshape(1, B, 1)
        return Unsafe(sign, sign.new_zeros(1, B), labels.new_zeros(1))
    eye = torch.eye(K, dtype=logits.dtype, device=logits.device)
    own = eye[labels]
    if kind == "runner-up":
        runner_up = logits.masked_fill(own.bool(), -torch.inf).argmax(1)
        rivals = _without(runner_up, K)
        rows = eye[rivals] - eye[runner_up]
        return Unsafe(rows, rows.new_zeros(K - 1, B), labels.new_zeros(K - 1))
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
    return Unsafe(rows, offsets, torch.arange(len(rivals), device=rivals.device))


def _without(excluded: Tensor, K: int) -> Tensor:
    """All classes but one per instance: ``[K - 1, B]``."""
    classes = torch.arange(K - 1, device=excluded.device)[:, None]
    return classes + (classes >= excluded)
