"""Walks back through networks of any kind: linear, contracted, by forms, second order, gradient steps.

A stage bounds rows of the output of every network from below, be they margins of a class or planes of a score. For a
score a row on the probabilities walks through planes of the final softmax to the logits and on to the input; how good
these planes are depends on what is known of differences of logits. Second order bounds the differences that matter
first, each as one quadratic of the input noise, then the row itself. Which stages follow each other is said in
``walk_stages.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import torch
from torch import Tensor

from ..branch.cut_leaves import CutLeaves
from ..errors import SofthullError
from ..graph.operator import Interval
from ..graph.rounding import share, underflow
from ..propagate import softmax_steps as softmaxes
from ..propagate.crown import LinearBounds
from ..propagate.methods import SecondOrder
from ..propagate.optimize import Apart, Chosen, optimized_lower
from ..propagate.quadratic_forms import output_form
from ..propagate.second_order.ascent import LARGEST, ascended_lower
from ..propagate.second_order.forward import TENSORS
from ..propagate.second_order.rectified import bent_lower, rectified
from ..propagate.second_order.sharpen import sharpened
from ..propagate.second_order.specification import SecondOrderBounds, bound_quadratic, sum_below
from ..propagate.second_order.sums import sum_of
from ..propagate.shadow import least_combined
from ..propagate.structure import pieces, positions
from .engine import Work
from .ensemble import Ensemble
from .simplex import MeanProbabilities

if TYPE_CHECKING:
    from .margins import Margins

# The ways in which a stage may bound a row.
LINEAR, CONTRACTED, GRADIENT, QUADRATIC, FITTED = "linear", "contracted", "gradient", "second order", "fitted rows"
ASCENDED, BENT = "second order, gradient", "second order, bent rectifiers"
FUNCTIONS = "functions between activations"
FORMS, SQUARES = "affine forms", "quadratic forms"
SPREAD = "factors that move together"
# Factorisations spent on one difference of logits: twelve instead of four gain a percent of a score.
STEPS = 4
# Gradient steps on all that is free in one quadratic, and how far they go.
ASCENTS, RATE = 30, 0.1
# A class whose probability stays below this share of that of another rival does not move a score.
NEGLIGIBLE = 1e-3


@dataclass
class Kept:
    """What gradient steps chose: for logit differences, and in the last walks on rows, piece by piece."""

    apart: Apart = field(default_factory=dict)
    rows: list[Chosen] = field(default_factory=list)

    def of(self, row: int, place: int) -> tuple[Chosen, Apart]:
        """The choices for one of the rows of the last walks, which is about one place of their stage."""
        for part in self.rows:
            if row < part.rows.shape[1]:
                break
            row -= part.rows.shape[1]
        return part.of(row), {i: [each.of(place) for each in found] for i, found in self.apart.items()}


@dataclass(frozen=True, eq=False)
class Walks:
    """Linear walks through ``graphs``, each with an input of its own, for some ``instances`` of a batch.

    ``ways`` are tried one after the other; ``first``: nothing was bounded before.
    """

    graphs: tuple[Ensemble, ...]
    instances: Tensor
    bounds: tuple[LinearBounds, ...]
    ways: tuple[str, ...]
    first: bool = False
    kept: Kept | None = field(default=None, kw_only=True)  # what gradient steps chose, where it is asked for

    dear: ClassVar[bool] = False  # whether a row costs more than all that was done to get here

    def among(self, instances: Tensor, *ways: str) -> Walks:
        """The same for some of the instances, a later stage by other ways."""
        bounds = self.bounds
        if len(instances) < len(self.instances):
            places = self.places(instances)
            bounds = tuple(each.take(places) for each in bounds)
        return replace(self, instances=instances, bounds=bounds, ways=ways or self.ways, first=False)

    def knowing(self, bounds: Sequence[LinearBounds], worst: Tensor) -> Self:
        """The same with better bounds, and planes of every final softmax that are tangent at some inputs."""
        touching = (_touching(each, found, worst) for each, found in zip(self.graphs, bounds))
        return replace(self, bounds=tuple(touching))

    def places(self, instances: Tensor) -> Tensor:
        """Where instances of the batch are among those of this stage, which are in order."""
        return torch.searchsorted(self.instances, instances)

    def lower(
        self,
        way: str,
        rows: Tensor,
        places: Tensor | None = None,
        target: Tensor | None = None,
        number: int = 0,
    ) -> Tensor:
        """Lower bounds ``[S, b]`` on ``<rows [S, b, outputs], output>`` of one graph, for some places or all of them.

        Work on a row ends when its bound exceeds its target ``[S, b]``.
        """
        bounds = self.bounds[number]
        rows = rows.reshape(*rows.shape[:2], *bounds.graph.output_shape)
        target = rows.new_full(rows.shape[:2], math.inf) if target is None else target
        if places is None:
            parts = pieces(positions(rows), bounds.chunk(len(bounds.graph.nodes) - 1))
            return torch.cat([self._walk(bounds, way, rows[part], target[part]) for part in parts])
        if way in (
            FORMS,
            SQUARES,
        ):  # those of one instance, all that is known of which need not be copied for every row
            flat = rows.flatten(0, 1)[:, None]
            parts = pieces(positions(flat), bounds.chunk(len(bounds.graph.nodes) - 1))
            return torch.cat([self._walk(bounds, way, flat[part], target) for part in parts]).reshape(rows.shape[:2])
        found = []
        if self.kept is not None:
            self.kept.rows.clear()
        for part in pieces(positions(places), _pairs_together(bounds, way)):
            bounds.check_time()
            found.append(self._walk(bounds.take(places[part]), way, rows[:, part], target[:, part]))
        return torch.cat(found, 1)

    def _walk(self, bounds: LinearBounds, way: str, rows: Tensor, target: Tensor) -> Tensor:
        """Lower bounds ``[S, b]`` on rows that fit the memory together, in the given way."""
        method, last = bounds.method, len(bounds.graph.nodes) - 1
        if way == GRADIENT:
            chosen = None if self.kept is None else Chosen(rows)
            if self.kept is not None and chosen is not None:
                self.kept.rows.append(chosen)
            return optimized_lower(bounds, last, rows, method.optimize, method.learning_rate, target[0], chosen)
        if way == SQUARES:
            return output_form(bounds).lower(last, rows)
        found = bounds.lower(last, rows, contract=way == CONTRACTED)
        if way == FORMS:  # the form of the output itself may say more than a walk over all that is relaxed
            lines = torch.arange(math.prod(rows.shape[2:]), device=rows.device)[None]
            found = torch.maximum(found, least_combined(bounds, last, lines, rows.flatten(2)[:, :, None])[..., 0])
        return found

    # What a score asks for

    def relaxed(self, at: Tensor, outward: bool) -> MeanProbabilities:
        """What is known of the mean probabilities; ``at [b, K]`` are some."""
        return MeanProbabilities(at, outward, self)

    def best(self, number: int, rows: Tensor, places: Tensor) -> Tensor:
        """The best bounds ``[b]`` of all ways on ``<rows [b, K], sum of the probabilities>`` of one graph."""
        found = [self.lower(way, rows[None], places, None, number)[0] for way in self._ways(number)]
        return torch.stack(found).amax(0)

    def _ways(self, number: int) -> tuple[str, ...]:
        """The ways that bound the probabilities of one graph."""
        return self.ways

    def probabilities(self, outward: bool) -> Interval:
        """Ranges ``[b, K]`` of the mean probabilities."""
        ends = [bounds.interval(i) for each, bounds in zip(self.graphs, self.bounds) for i in each.softmaxes]
        least, most = (torch.stack(side).mean(0) for side in zip(*ends))
        if not outward:
            return least, most
        cost, lost = share(len(ends), least.dtype), underflow(least.dtype)
        return (least * (1 - cost) - lost).clamp(min=0), (most * (1 + cost) + lost).clamp(max=1)

    def logits(self) -> list[Interval]:
        """Ranges ``[b, K]`` of the logits of every network."""
        ends = [bounds.interval(i) for each, bounds in zip(self.graphs, self.bounds) for i in each.logits]
        return [(low.flatten(1), high.flatten(1)) for low, high in ends]

    def choices(self, places: Tensor) -> dict[str, Any]:
        """What was chosen for some of the instances, for certificates."""
        return {}


@dataclass(frozen=True, eq=False)
class Proving(Walks):
    """Walks that say nothing of a row that they do not prove."""

    def lower(
        self,
        way: str,
        rows: Tensor,
        places: Tensor | None = None,
        target: Tensor | None = None,
        number: int = 0,
    ) -> Tensor:
        assert target is not None
        found = super().lower(way, rows, places, target, number)
        return torch.where(found > target, found, -math.inf)


@dataclass(frozen=True, eq=False)
class Shortened(Walks):
    """Gradient steps on the lines of activations alone: all that is between them is passed once."""

    dear: ClassVar[bool] = True

    def lower(
        self,
        way: str,
        rows: Tensor,
        places: Tensor | None = None,
        target: Tensor | None = None,
        number: int = 0,
    ) -> Tensor:
        assert places is not None
        assert target is not None
        flat = rows[0].reshape(-1, *self.bounds[number].graph.output_shape)
        found = CutLeaves(self.bounds[number], places, flat, target[0], sharpen=True).roots()
        return sum_below(target[0].new_tensor([each.bound for each in found]), target[0])[None]


@dataclass(frozen=True, eq=False)
class Quadratics(Walks):
    """Second order for rows, and before them for the differences of logits that a score depends on.

    ``second``: for every graph its networks, None where there are no affine forms for a network or region and the
    linear bounds stand; ``pairs [b, K, K]``: the differences of logits that were bounded first.
    """

    second: tuple[tuple[SecondOrderBounds | None, ...], ...] = ()
    steps: int = 0
    pairs: Tensor | None = None

    dear: ClassVar[bool] = True

    @staticmethod
    def after(work: Work, walks: Walks, method: SecondOrder) -> Quadratics | None:
        """What second order adds to linear walks, whose knowledge is taken over; None where it adds nothing."""
        here, worst, pairs = walks.instances, work.found.worst[walks.instances], None
        if walks.graphs[0].softmaxes:
            classes = work.claims.classes[here]  # the label, the prediction
            pairs = _pairs_that_matter(classes, walks.probabilities(True)[1])
        found, seconds = [], []
        for each, bounds in zip(walks.graphs, walks.bounds):
            members: list[SecondOrderBounds | None] = []
            # Networks alone pass through narrow layers that all of them together do not.
            for place, member in enumerate(each.alone):
                try:
                    second = _second_order(each, bounds, member)
                except (SofthullError, torch.linalg.LinAlgError) as problem:
                    work.note(here.tolist(), f"linear bounds only: {' '.join(str(problem).split())}")
                    members.append(None)
                    continue
                if second.forms.forgotten:
                    line = f"{second.forms.forgotten} products relaxed linearly to save memory"
                    work.note(here.tolist(), line)
                bounds = bounds if each.members else second.bounds
                if pairs is not None:
                    (index,), (logits,) = member.softmaxes, member.logits
                    known = second.bounds.differences(index)
                    if known is not None and logits >= 0:
                        better = _differences(second, logits, known, pairs, min(STEPS, method.steps))
                        second = second.knowing(second.bounds.knowledge.with_differences(index, better))
                        bounds = bounds.knowing(bounds.knowledge.with_differences(each.softmaxes[place], better))
                    second = second.knowing(_touching(member, second.bounds, worst).knowledge)
                members.append(second)
            seconds.append(tuple(members))
            found.append(bounds)
        if not any(second for members in seconds for second in members):
            return None
        # What is known of the final softmax by now is worth a linear walk of its own.
        ways = (LINEAR, QUADRATIC) if pairs is not None else (QUADRATIC,)
        ways = (*ways, FITTED) if method.row_fit else ways
        stage = Quadratics(walks.graphs, here, walks.bounds, ways, False, tuple(seconds), method.steps, pairs)
        return stage.knowing(found, worst)

    def lower(
        self,
        way: str,
        rows: Tensor,
        places: Tensor | None = None,
        target: Tensor | None = None,
        number: int = 0,
    ) -> Tensor:
        found = [second for second in self.second[number] if second is not None]
        if way == LINEAR or len(found) < len(self.second[number]):
            return super().lower(LINEAR, rows, places, target, number)
        assert places is not None
        flat = rows[0].reshape(-1, *self.bounds[number].graph.output_shape)
        goal = flat.new_full((len(flat),), math.inf) if target is None else target[0]
        if way in (BENT, ASCENDED):
            kept = None
            if self.kept is not None:
                kept = self.kept.rows
                kept.clear()
            if way == BENT:
                return bent_lower(found[0], flat, goal, kept)[None]
            return ascended_lower(found[0], flat, places, ASCENTS, RATE, goal, kept)[None]
        if len(found) == 1:
            return found[0].lower(flat, places, self.steps, goal, way == FITTED)[None]
        noise = found[0].forms.noise
        total = sum_of([second.quadratic(flat, places) for second in found], noise.inputs)
        return bound_quadratic(total, noise, self.steps, goal)[None]

    def sharpened(self, work: Work) -> Quadratics | None:
        """The same with better intervals where they cost the open margins; None where there is nothing to do."""
        if len(self.second) != 1 or len(self.second[0]) != 1 or self.second[0][0] is None:
            return None
        claims = cast("Margins", work.claims)  # only they have ends
        wanted = torch.zeros_like(work.found.attack, dtype=torch.bool)
        wanted[self.instances] = True
        row, instance = claims.open_rows(work.found, wanted)
        if not len(row):
            return None
        rows = claims.rows[row, instance].reshape(-1, *self.bounds[0].graph.output_shape)
        again: dict[int, Tensor] = {}
        patient = work.effort.deadline < math.inf  # a time limit says that somebody waits
        better = sharpened(self.second[0][0], rows, self.places(instance), patient, again)
        if work.effort.proofs:
            for place, i in enumerate(self.instances.tolist()):
                work.found.sharpened[i] = {index: mask[place].nonzero()[:, 0] for index, mask in again.items()}
        return None if better is None else replace(self, second=((better,),))

    def bent(self, work: Work) -> Iterator[Quadratics]:
        """The same, instance by instance, with rectifiers bent together."""
        if len(self.second) != 1 or len(self.second[0]) != 1 or self.second[0][0] is None:
            return
        bounds = self.second[0][0].bounds
        for one in pieces(self.instances[torch.isin(self.instances, work.open())], 1):
            try:
                alone = rectified(SecondOrderBounds.of(bounds.take(self.places(one))))
            except (SofthullError, torch.linalg.LinAlgError):
                continue
            if alone is not None:
                seen = replace(self, instances=one, bounds=(alone.bounds,), second=((alone,),), pairs=None)
                yield replace(seen, ways=(BENT,), kept=Kept() if work.effort.proofs else None)

    def ascended(self, work: Work) -> Quadratics | None:
        """The same by gradient steps on all that is free in the quadratics of what is still open; None: nothing."""
        left = work.open()
        left = left[torch.isin(left, self.instances)]
        if not len(left) or len(self.second) != 1 or len(self.second[0]) != 1:
            return None
        second = self.second[0][0]
        if second is None or second.dimension > LARGEST:
            return None
        bounds = second.bounds.take(self.places(left))
        try:
            wider = SecondOrderBounds.of(bounds, rectified=True)
        except (SofthullError, torch.linalg.LinAlgError):
            return None
        kept = Kept() if work.effort.proofs else None
        seen = replace(self, instances=left, bounds=(wider.bounds,), second=((wider,),), pairs=None)
        return replace(seen, ways=(ASCENDED,), kept=kept)

    def _ways(self, number: int) -> tuple[str, ...]:
        if None in self.second[number]:
            return (LINEAR,)
        return self.ways if len(self.second[number]) == 1 else (LINEAR, QUADRATIC)

    def choices(self, places: Tensor) -> dict[str, Any]:
        return {} if self.pairs is None else {"pairs": self.pairs[places]}


def _second_order(whole: Ensemble, shared: LinearBounds, member: Ensemble) -> SecondOrderBounds:
    """Second order for one network of an ensemble; where it is the only one, its bounds are those of the whole."""
    if not whole.members:
        return SecondOrderBounds.of(shared)
    bounds = LinearBounds(member.graph, shared.region, shared.method, member.structure, shared.memory, shared.deadline)
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


def _pairs_that_matter(classes: Tensor, most: Tensor) -> Tensor:
    """Mask ``[B, K, K]`` of the pairs of one of ``classes [B, n]`` and a rival that ``most [B, K]`` leaves a chance."""
    own = torch.zeros_like(most, dtype=torch.bool).scatter(1, classes, True)
    rivals = most.masked_fill(own, 0.0)
    there = own | (rivals > NEGLIGIBLE * rivals.amax(1, keepdim=True))
    apart = ~torch.eye(most.shape[1], dtype=torch.bool, device=most.device)
    return apart & (own[:, :, None] | own[:, None, :]) & there[:, :, None] & there[:, None, :]


def instances_together(bounds: LinearBounds) -> int:
    """How many instances to hold affine forms of at once, with some ten tensors of slopes each."""
    slopes = math.prod(bounds.graph.input_shape) * bounds.structure.width(len(bounds.graph.nodes) - 1)
    return max(1, (TENSORS * bounds.memory) // (8 * 10 * slopes))


def _pairs_together(bounds: LinearBounds, way: str) -> int:
    """How many (row, instance) pairs to walk for at once; all but linear walks have some thousand factors each."""
    if way in (LINEAR, SPREAD):
        return max(1, bounds.memory // (8 * bounds.structure.width(len(bounds.graph.nodes) - 1)))
    return max(1, (32 * bounds.memory) // (8 * 1024 * bounds.structure.volume(len(bounds.graph.nodes) - 1)))
