"""Bounds on the mean class probabilities of networks of any kind, by walks back through them.

The planes of a score take the place of a class margin: a row on the probabilities walks through planes of the final
softmax to the logits and on to the input. How good these planes are depends on what is known of differences of logits.
Second order bounds the differences that matter first, each as one quadratic of the input noise, then the row itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..errors import SofthullError
from ..graph.operator import Interval
from ..graph.rounding import share, underflow
from ..propagate import softmax as softmaxes
from ..propagate.crown import LinearBounds
from ..propagate.methods import Linear, SecondOrder
from ..propagate.optimize import optimized_lower, with_better_differences
from ..propagate.second_order.specification import SecondOrderBounds, bound_quadratic
from ..propagate.second_order.sums import sum_of
from ..regions import Region
from ..solve.solution import Solution, simplex_bound
from .ensemble import Ensemble

# Bytes of one coefficient tensor.
MEMORY = 1 << 24
# Factorisations spent on one difference of logits: twelve instead of four gain a percent of a score.
STEPS = 4
# A class whose probability stays below this share of that of another rival does not move a score.
NEGLIGIBLE = 1e-3


class Simplex:
    """What is known of any distributions: probabilities are at least 0 and sum to one. ``at [B, K]`` are some."""

    def __init__(self, at: Tensor, outward: bool) -> None:
        self.at, self.outward = at, outward

    @property
    def together(self) -> int:
        """How many rows may be solved for at once, whatever the number of instances."""
        return 1

    def probabilities(self) -> Interval:
        """Ranges ``[B, K]`` of the mean probabilities."""
        return torch.zeros_like(self.at), torch.ones_like(self.at)

    def logits(self) -> list[Interval]:
        """Ranges ``[B, K]`` of the logits of every network; empty where nothing is known of them."""
        return []

    def trivial(self, coefficients: Tensor) -> Tensor:
        """Bounds ``[B]`` on the maximum of ``coefficients . p`` by ranges and simplex alone."""
        return simplex_bound(coefficients, *self.probabilities(), self._share(coefficients.shape[1] + 4))

    def solve(self, coefficients: Tensor, instances: Tensor) -> Solution:
        """Bounds ``[b]`` on the maximum of ``coefficients . p`` for some of the instances."""
        least, most = (end[instances] for end in self.probabilities())
        bound = simplex_bound(coefficients, least, most, self._share(coefficients.shape[1] + 4))
        return self._solution(bound, coefficients, instances)

    def _solution(self, bound: Tensor, coefficients: Tensor, instances: Tensor) -> Solution:
        """The bound, and as a place where it is attained the middle between the attack and the worst of the ranges."""
        least, most = (end[instances] for end in self.probabilities())
        order = coefficients.argsort(-1, descending=True)
        room = (most - least).gather(-1, order)
        taken = (1 - least.sum(-1, keepdim=True) - room.cumsum(-1) + room).clamp(min=0)
        worst = least.scatter_add(-1, order, torch.minimum(room, taken))
        return Solution(bound, (self.at[instances] + worst) / 2, self.at[instances, :0], {})

    def _share(self, operations: int) -> float:
        return share(operations, self.at.dtype) if self.outward else 0.0


class Walks(Simplex):
    """Linear walks through ``ensembles``, whose probabilities are averaged; each has an input of its own.

    ``worst`` are attacked inputs: planes of the final softmax are tangent at their logits.
    """

    def __init__(
        self, ensembles: Sequence[Ensemble], bounds: Sequence[LinearBounds], method: Linear, worst: Tensor
    ) -> None:
        super().__init__(mean_probabilities(ensembles, worst), method.rounding == "outward")
        self.ensembles, self.bounds, self.method, self.worst = ensembles, bounds, method, worst
        self.networks = sum(ensemble.networks for ensemble in ensembles)

    @staticmethod
    def of(ensembles: Sequence[Ensemble], region: Region, method: Linear, worst: Tensor, deadline: float) -> Walks:
        found = []
        for ensemble in ensembles:
            bounds = LinearBounds(ensemble.graph, region, method, ensemble.structure, MEMORY, deadline)
            bounds.check_time()
            bounds.prepare(len(ensemble.graph.nodes) - 1)
            for index in ensemble.softmaxes:
                bounds.differences(index)
            if method.optimize:
                bounds = with_better_differences(bounds, max(1, method.optimize // 2), method.learning_rate)
            found.append(_touching(ensemble, bounds, worst))
        return Walks(ensembles, found, method, worst)

    def probabilities(self) -> Interval:
        ends = [bounds.interval(i) for e, bounds in zip(self.ensembles, self.bounds) for i in e.softmaxes]
        least, most = (torch.stack(side).mean(0) for side in zip(*ends))
        if not self.outward:
            return least, most
        cost, lost = self._share(self.networks), underflow(least.dtype)
        return (least * (1 - cost) - lost).clamp(min=0), (most * (1 + cost) + lost).clamp(max=1)

    def logits(self) -> list[Interval]:
        ends = [bounds.interval(i) for e, bounds in zip(self.ensembles, self.bounds) for i in e.logits]
        return [(low.flatten(1), high.flatten(1)) for low, high in ends]

    def solve(self, coefficients: Tensor, instances: Tensor) -> Solution:
        bound = torch.zeros_like(coefficients[:, 0])
        size = torch.zeros_like(bound)
        for number in range(len(self.bounds)):
            low = self._lower(number, -coefficients, instances)
            bound, size = bound - low, size + low.abs()
        bound = (bound + self._share(len(self.bounds)) * size) / self.networks
        bound = bound + self._share(2) * bound.abs()
        # Where a walk overflowed, nothing is known.
        return self._solution(torch.where(bound.isfinite(), bound, math.inf), coefficients, instances)

    def _lower(self, number: int, rows: Tensor, instances: Tensor) -> Tensor:
        """Lower bounds ``[b]`` on ``<rows, sum of the probabilities>`` of one ensemble."""
        bounds, last = self.bounds[number].take(instances), len(self.ensembles[number].graph.nodes) - 1
        low = bounds.lower(last, rows[None], contract=self.method.contract)[0]
        if self.method.optimize:
            never = torch.full_like(low, math.inf)
            better = optimized_lower(bounds, last, rows[None], self.method.optimize, self.method.learning_rate, never)
            low = torch.maximum(low, better[0])
        return low


class SecondOrderWalks(Walks):
    """Linear walks with second order for differences of logits and for rows.

    ``second``: for every ensemble its networks, None where there are no affine forms for a network or region and the
    linear bounds stand; ``pairs [B, K, K]``: the differences of logits that were bounded first; ``note``: what of the
    method could not be used.
    """

    def __init__(
        self,
        first: Walks,
        bounds: Sequence[LinearBounds],
        second: Sequence[Sequence[SecondOrderBounds | None]],
        method: SecondOrder,
        pairs: Tensor,
        note: str,
    ) -> None:
        super().__init__(first.ensembles, bounds, first.method, first.worst)
        self.second, self.second_order, self.pairs, self.note = second, method, pairs, note

    @staticmethod
    def after(first: Walks, method: SecondOrder, classes: Tensor) -> SecondOrderWalks:
        """What second order adds to linear walks, whose knowledge is taken over.

        The differences are those between ``classes [B, n]`` (the label, the prediction) and all others that matter.
        """
        pairs = _pairs_that_matter(classes, first.probabilities()[1])
        note, found, seconds = "", [], []
        for ensemble, bounds in zip(first.ensembles, first.bounds):
            members: list[SecondOrderBounds | None] = []
            # Networks alone pass through narrow layers that all of them together do not.
            for place, member in enumerate(ensemble.alone):
                try:
                    second = _second_order(ensemble, bounds, member)
                except (SofthullError, torch.linalg.LinAlgError) as problem:
                    note = f"linear bounds only: {' '.join(str(problem).split())}"
                    members.append(None)
                    continue
                if second.forms.forgotten:
                    note = f"{second.forms.forgotten} products relaxed linearly to save memory"
                bounds = bounds if ensemble.members else second.bounds
                (index,), (logits,) = member.softmaxes, member.logits
                known = second.bounds.differences(index)
                if known is not None and logits >= 0:
                    better = _differences(second, logits, known, pairs, min(STEPS, method.steps))
                    second = second.knowing(second.bounds.knowledge.with_differences(index, better))
                    bounds = bounds.knowing(bounds.knowledge.with_differences(ensemble.softmaxes[place], better))
                members.append(second.knowing(_touching(member, second.bounds, first.worst).knowledge))
            seconds.append(members)
            found.append(_touching(ensemble, bounds, first.worst))
        return SecondOrderWalks(first, found, seconds, method, pairs, note)

    def solve(self, coefficients: Tensor, instances: Tensor) -> Solution:
        found = super().solve(coefficients, instances)
        notes = dict.fromkeys(range(len(instances)), self.note) if self.note else {}
        return replace(found, notes=notes, certificate={"pairs": self.pairs[instances]})

    def _lower(self, number: int, rows: Tensor, instances: Tensor) -> Tensor:
        low = super()._lower(number, rows, instances)
        found = [second for second in self.second[number] if second is not None]
        if len(found) < len(self.second[number]):
            return low
        never, steps = torch.full_like(low, math.inf), self.second_order.steps
        if len(found) > 1:
            noise = found[0].forms.noise
            total = sum_of([second.quadratic(rows, instances) for second in found], noise.inputs)
            return torch.maximum(low, bound_quadratic(total, noise, steps, never))
        for fitted in (False, True) if self.second_order.row_fit else (False,):
            low = torch.maximum(low, found[0].lower(rows, instances, steps, never, fitted))
        return low


def _second_order(whole: Ensemble, shared: LinearBounds, member: Ensemble) -> SecondOrderBounds:
    """Second order for one network of an ensemble; where it is the only one, its bounds are those of the whole."""
    if not whole.members:
        return SecondOrderBounds.of(shared)
    bounds = LinearBounds(member.graph, shared.region, shared.method, member.structure, MEMORY, shared.deadline)
    bounds.prepare(len(member.graph.nodes) - 1)
    return SecondOrderBounds.of(bounds)


def _differences(second: SecondOrderBounds, logits: int, known: Interval, pairs: Tensor, steps: int) -> Interval:
    """What is known of differences of logits, met with second order on logit j less logit k for all pairs j, k."""
    instance, j, k = pairs.nonzero(as_tuple=True)
    rows = torch.zeros(len(instance), pairs.shape[1], dtype=known[0].dtype, device=pairs.device)
    rows.scatter_(1, j[:, None], 1.0).scatter_(1, k[:, None], -1.0)
    apart = second.lower(rows, instance, steps, torch.full_like(rows[:, 0], math.inf), index=logits)
    least, most = known[0].clone(), known[1].clone()
    least[instance, 0, j, k] = torch.maximum(least[instance, 0, j, k], apart)
    most[instance, 0, k, j] = torch.minimum(most[instance, 0, k, j], -apart)
    return least, most


def _touching(ensemble: Ensemble, bounds: LinearBounds, x: Tensor) -> LinearBounds:
    """Bounds with planes of every final softmax that are tangent at the logits of some inputs."""
    values = ensemble.graph.values(x)
    for index, logits in zip(ensemble.softmaxes, ensemble.logits):
        bounds = softmaxes.touching(bounds, index, (x if logits < 0 else values[logits])[:, None])
    return bounds


def mean_probabilities(ensembles: Sequence[Ensemble], x: Tensor) -> Tensor:
    """Mean class probabilities ``[B, K]`` of all networks."""
    total = torch.stack([ensemble.graph(x) for ensemble in ensembles]).sum(0)
    return total / sum(ensemble.networks for ensemble in ensembles)


def _pairs_that_matter(classes: Tensor, most: Tensor) -> Tensor:
    """Mask ``[B, K, K]`` of the pairs of one of ``classes [B, n]`` and a rival that ``most [B, K]`` leaves a chance."""
    own = torch.zeros_like(most, dtype=torch.bool).scatter(1, classes, True)
    rivals = most.masked_fill(own, 0.0)
    there = own | (rivals > NEGLIGIBLE * rivals.amax(1, keepdim=True))
    apart = ~torch.eye(most.shape[1], dtype=torch.bool, device=most.device)
    return apart & (own[:, :, None] | own[:, None, :]) & there[:, :, None] & there[:, None, :]
