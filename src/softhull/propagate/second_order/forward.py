"""Affine forms of the nodes of a graph, first to last: exact through affine operators, noise for every relaxation.

Forms grow with depth: every relaxation adds noise. What is held is kept within a number of bytes by three measures,
the mildest first. Noise of little effect is merged, in every basis. The entries of all forms still needed become the
basis, where they are few, and noise is merged again. The first products are forgotten: whoever meets them relaxes them
linearly. All of it is sound; each is looser than the one before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...errors import SofthullError
from ...graph.graph import Graph
from ...graph.operator import Affine, Bilinear, Elementwise, Interval
from ...graph.ops.matmul import MatMul
from ...graph.ops.softmax import Softmax
from ...graph.rounding import share
from ..crown import LinearBounds, reorder
from .affine_form import AffineForm, Basis, input_form
from .elementwise import parallel_band
from .probabilities import affine_probabilities, tangent_directions
from .remainders import Gauge
from .scores import ProductScores, ScoreRows

# Affine forms may take this many times what one coefficient tensor of the linear bounds may.
TENSORS = 32


class NoAffineForms(SofthullError):
    """Second order says nothing about a network or region; the message says why."""


@dataclass(frozen=True)
class Factors:
    """Both factors of one product as forms over the basis of number ``basis``.

    Where the rows of one of them are probabilities, ``kept`` is that side (0 or 1), ``axis`` the axis along which they
    sum to one, ``error`` the radius of the fresh noise of each, in the shape of the factor, and ``metric [B, r', r']``
    a scalar product of slopes over the first r' of the basis.
    """

    x: AffineForm
    y: AffineForm
    basis: int
    kept: int = 0
    axis: int = -1
    error: Tensor | None = None
    metric: Tensor | None = None

    def take(self, instances: Tensor) -> Factors:
        error, metric = (None if t is None else t[instances] for t in (self.error, self.metric))
        return replace(self, x=self.x.take(instances), y=self.y.take(instances), error=error, metric=metric)


class Forms:
    """The affine forms that the products of a graph need, over the region of ``bounds``.

    ``factors`` are the factors of the products (of all of them, if ``memory`` bytes suffice), ``bases`` the bases they
    are written in, by number, over ``noise_count`` noise numbers. Score differences found on the way are handed to
    ``bounds``, whose planes then are at least as good.
    """

    def __init__(self, bounds: LinearBounds, memory: int | None = None) -> None:
        self.bounds = bounds
        self.graph = bounds.graph
        self.memory = TENSORS * bounds.memory if memory is None else memory
        size = math.prod(self.graph.input_shape)
        self._refuse_beyond(bounds.region.lower.element_size() * size * size, "the input")
        form, basis, self.noise = input_form(bounds.region)
        self.noise_count = basis.noise
        self.bases = {0: basis}
        self.current = 0
        self.factors: dict[int, Factors] = {}
        self.forgotten = 0  # products whose factors did not fit
        self.errors: dict[int, Tensor] = {}  # radii of the fresh noise of probabilities
        self.scores: dict[int, ScoreRows] = {}
        self._forms: dict[int, AffineForm] = {-1: form}
        self._gauge: Gauge | None = None
        self._metric: Tensor | None = None
        needed = needed_forms(self.graph)
        last_use = last_uses(self.graph, needed)
        products = [i for i, node in enumerate(self.graph.nodes) if isinstance(node.operator, Bilinear)]
        for index in range(-1, max(products, default=-1)):
            bounds.check_time()
            if index >= 0 and index in needed:
                node = self.graph.nodes[index]
                entries = bounds.region.lower.element_size() * bounds.size * math.prod(node.shape)
                self._refuse_beyond(entries * self.basis.size, node.label)
                self._forms[index] = self.rule(index)
            if index in self._forms and is_bottleneck(self.graph, index):
                self._rebase([index])
            self._collect(index + 1)
            self._forms = {i: form for i, form in self._forms.items() if last_use[i] > index}
            self._fit()
        self._renumber()

    @property
    def basis(self) -> Basis:
        return self.bases[self.current]

    def form(self, index: int) -> AffineForm:
        """The form of a node at hand."""
        return self._forms[index]

    def interval(self, index: int) -> Interval:
        """The range of the form of a node at hand."""
        form = self._forms[index]
        radius = self._radius(form) + share(4, form.centre.dtype) * form.centre.abs().nan_to_num(posinf=0.0)
        return form.centre - radius, form.centre + radius

    # What is held

    def held(self) -> int:
        """The bytes of all slopes and maps that are kept."""
        forms = [*self._forms.values(), *(form for found in self.factors.values() for form in (found.x, found.y))]
        rows = self.scores.values()
        metrics = [found.metric for found in self.factors.values() if found.metric is not None]
        tensors = [*(form.slope for form in forms), *(t for row in rows for t in (row.slope, *row.remainder)), *metrics]
        return sum(basis.bytes for basis in self.bases.values()) + _bytes(tensors)

    def _refuse_beyond(self, size: int, where: str) -> None:
        if size > self.memory:
            raise NoAffineForms(f"affine forms of {where} take {size:,} bytes, more than the {self.memory:,} allowed")

    def _fit(self) -> None:
        """Reduce what is held to the memory allowed."""
        self._release_bases()
        if self.held() > self.memory:
            self._merge_noise()
        if self.held() > self.memory and self._forms:
            self._narrow()
        while self.held() > self.memory and self.factors:
            self._forget(min(self.factors))
        self._refuse_beyond(self.held(), "one layer")

    def _narrow(self) -> None:
        """The entries of all forms at hand as basis, where these then take less with the noise merged.

        What is kept of earlier products stays as it is; what follows is worked out in fewer dimensions.
        """

        def at_hand() -> int:
            return self.basis.bytes + _bytes(form.slope for form in self._forms.values())

        before = self._forms, self.bases.copy(), self.current, self.noise_count, self._gauge, self._metric
        most = at_hand()
        self._rebase(list(self._forms))
        self._release_bases()
        self._merge_noise()
        if at_hand() >= most:
            self._forms, self.bases, self.current, self.noise_count, self._gauge, self._metric = before

    def _release_bases(self) -> None:
        """Drop the bases in which nothing is written any more."""
        products, rows = self.factors.values(), self.scores.values()
        used = {self.current, *(found.basis for found in products), *(found.basis for found in rows)}
        self.bases = {number: basis for number, basis in self.bases.items() if number in used}

    def _merge_noise(self) -> None:
        """Merge the noise of least effect in every basis with more than its part of the memory, where that gains."""
        allowed = self.memory // (2 * len(self.bases))
        for number, basis in self.bases.items():
            if basis.map.ndim == 2 or basis.bytes <= allowed:
                continue
            fitting = allowed // (basis.map.element_size() * len(basis.map) * basis.size)
            effect = basis.map.abs().sum(1)
            effect = (effect / effect.sum(-1, keepdim=True)).nan_to_num(0.0).sum(0)
            effect[: self.noise.inputs] = math.inf
            kept = torch.zeros_like(effect, dtype=torch.bool)
            kept[effect.topk(min(basis.noise, max(self.noise.inputs, fitting - basis.size))).indices] = True
            merged = basis.merged(kept, self.noise_count)
            if merged.noise >= basis.noise:
                continue
            self.bases[number] = merged
            self.noise_count += merged.noise - int(kept.sum())
            if number == self.current:
                self._gauge = None

    def _forget(self, index: int) -> None:
        """Leave a product, and the rows of probabilities before it, to linear relaxations."""
        del self.factors[index]
        self.forgotten += 1
        self.scores = {i: rows for i, rows in self.scores.items() if i > index}
        self._release_bases()

    def _renumber(self) -> None:
        """Count only the noise that bases still refer to."""
        self._release_bases()
        if all(basis.numbers is None for basis in self.bases.values()):
            return
        used = torch.cat([basis.numbered() for basis in self.bases.values()]).unique()
        self.bases = {
            number: replace(basis, numbers=torch.searchsorted(used, basis.numbered()))
            for number, basis in self.bases.items()
        }
        self.noise_count = len(used)

    def _radius(self, form: AffineForm) -> Tensor:
        """How far an entry may be from its centre."""
        radius = self.noise.radius(form.noise_slope(self.basis)).reshape(form.centre.shape)
        return radius + form.error + self._share(form.slope.shape[1]) * form.spread(self.basis)

    def _share(self, operations: int) -> float:
        return share(operations, self.basis.map.dtype)

    def _collect(self, index: int) -> None:
        node = self.graph.nodes[index]
        if not isinstance(node.operator, Bilinear):
            return
        x, y = (self._forms[i] for i in node.inputs)
        self.factors[index] = Factors(x, y, self.current)
        if not isinstance(node.operator, MatMul):
            return
        structure = self.bounds.structure
        for side, factor in enumerate(node.inputs):
            shape = self.graph.shape_of(factor)
            axis = len(shape) - 1 - side
            source = structure.source(factor)
            if source in self.errors and structure.rows_are_softmax(factor, axis):
                error = reorder(self.errors[source], structure.order(factor), shape)
                metric = self._metric if self._metric is not None else self.gauge.gram
                self.factors[index] = replace(self.factors[index], kept=side, axis=axis, error=error, metric=metric)
                return

    def rule(self, index: int) -> AffineForm:
        """The form of a node from those of its inputs, which are at hand."""
        node = self.graph.nodes[index]
        operator = node.operator
        if isinstance(operator, Affine):
            return self._affine(operator, [self._forms[i] for i in node.inputs])
        if isinstance(operator, Elementwise):
            return self._elementwise(index)
        if isinstance(operator, Bilinear):
            return self._product(index)
        if isinstance(operator, Softmax):
            return self._softmax(index)
        raise NoAffineForms(f"no affine form for {operator.name} at {node.label}")

    def _affine(self, operator: Affine, inputs: list[AffineForm]) -> AffineForm:
        r = max(form.slope.shape[1] for form in inputs)
        slopes = [form.padded(r) for form in inputs]
        B = max(slope.shape[0] for slope in slopes)
        flat = [slope.expand(B, *slope.shape[1:]).flatten(0, 1) for slope in slopes]
        at_zero = operator.value(*(torch.zeros_like(part[:1]) for part in flat))
        # Entries masked by a constant of -inf do not move.
        slope = torch.where(at_zero.isfinite(), operator.value(*flat) - at_zero, 0.0)
        centre = operator.value(*(form.centre for form in inputs))
        constant = operator.magnitude(*(torch.zeros_like(form.error) for form in inputs))
        error = operator.magnitude(*(form.error for form in inputs)) - constant
        if terms := operator.terms(*(tuple(form.centre.shape[1:]) for form in inputs)):
            sizes = operator.magnitude(*(form.size(self.basis) for form in inputs))
            # The constant was subtracted from the slope of every basis entry.
            often = self.basis.reach.sum(-1).reshape(-1, *[1] * (centre.ndim - 1))
            error = error * (1 + self._share(terms)) + self._share(terms + 2) * (sizes + 2 * often * constant)
        return AffineForm(centre, slope.unflatten(0, (B, r)), torch.where(constant.isfinite(), error, 0.0))

    def _with_noise(self, centre: Tensor, slope: Tensor, radius: Tensor, error: Tensor) -> AffineForm:
        """A form plus, for every entry with a positive radius, one fresh noise number, which takes the error in."""
        noisy = radius > 0
        radius, error = torch.where(noisy, radius + error, 0.0), torch.where(noisy, 0.0, error)
        flat = radius.flatten(1)
        fresh = flat > 0
        count = int(fresh.sum(1).max()) if flat.numel() else 0
        r = self.basis.size
        slope = AffineForm(centre, slope, error).padded(r)
        if not count:
            return AffineForm(centre, slope, error)
        B, size = flat.shape
        own = flat.new_zeros(B, count, size)
        instance, entry = fresh.nonzero(as_tuple=True)
        number = fresh.cumsum(1)[instance, entry] - 1
        own[instance, number, entry] = flat[instance, entry]
        self.bases[self.current] = self.basis.extended(count, self.noise_count)
        self.noise_count += count
        self._gauge = None
        slope = torch.cat((slope.expand(B, *slope.shape[1:]), own.reshape(B, count, *radius.shape[1:])), 1)
        return AffineForm(centre, slope, error)

    def _rebase(self, nodes: list[int]) -> None:
        """Let the entries of the nodes through which everything later passes be the basis, if they are fewer."""
        forms = [self._forms[i] for i in nodes]
        mapping = torch.cat([form.noise_slope(self.basis) for form in forms], 1)
        alive = (mapping != 0).any(-1)
        count = max(1, int(alive.sum(1).max()))
        if count >= self.basis.size:
            return
        B, size = alive.shape
        slope = mapping.new_zeros(B, count, size)
        rows = mapping.new_zeros(B, count, mapping.shape[2])
        instance, entry = alive.nonzero(as_tuple=True)
        number = alive.cumsum(1)[instance, entry] - 1
        slope[instance, number, entry] = 1
        rows[instance, number] = mapping[instance, entry]
        slopes = slope.split([form.centre[0].numel() for form in forms], 2)
        self._forms = {
            i: AffineForm(
                form.centre,
                part.reshape(B, count, *form.centre.shape[1:]),
                form.error + self._share(form.slope.shape[1] + 1) * form.spread(self.basis),
            )
            for i, form, part in zip(nodes, forms, slopes)
        }
        numbers = self.basis.numbers
        self.current += 1
        self.bases[self.current] = Basis(rows, numbers)
        self._gauge = self._metric = None

    @property
    def gauge(self) -> Gauge:
        if self._gauge is None:
            self._gauge = Gauge(self.basis, self.noise)
            self._metric = self._gauge.gram
        return self._gauge

    def _elementwise(self, index: int) -> AffineForm:
        node = self.graph.nodes[index]
        assert isinstance(node.operator, Elementwise)
        form = self._forms[node.inputs[0]]
        lower, upper = self.bounds.interval(node.inputs[0], node.operator)
        least, most = self.interval(node.inputs[0])
        lower, upper = torch.maximum(lower, least), torch.minimum(upper, most)
        rate, middle, radius = parallel_band(node.operator, torch.minimum(lower, upper), torch.maximum(lower, upper))
        exact = ((rate == 0) | (rate == 1)) & (middle == 0)
        rounded = self._share(3) * (rate.abs() * form.size(self.basis) + middle.abs())
        error = rate.abs() * form.error + torch.where(exact, 0.0, rounded)
        return self._with_noise(rate * form.centre + middle, rate[:, None] * form.slope, radius, error)

    def _product(self, index: int) -> AffineForm:
        """The tangent of the product at the centres, and its remainder as noise."""
        node = self.graph.nodes[index]
        operator = node.operator
        assert isinstance(operator, Bilinear)
        x, y = (self._summing_to_one(i) for i in node.inputs)
        r = self.basis.size
        slopes = [form.padded(r) for form in (x, y)]
        B = x.centre.shape[0]

        def times(a: Tensor, b: Tensor) -> Tensor:
            flat = [t.expand(B, r, *t.shape[2:]).flatten(0, 1) for t in (a, b)]
            return operator.value(*flat).unflatten(0, (B, r))

        slope = times(slopes[0], y.centre[:, None]) + times(x.centre[:, None], slopes[1])
        radius = operator.value(self._radius(x), self._radius(y))
        low, high = -radius, radius
        if isinstance(operator, MatMul) and operator.left[:-2] == operator.right[:-2] and operator.left[-1] <= 64:
            least, most = self._remainders(*slopes)
            low, high = torch.maximum(low, least.reshape(low.shape)), torch.minimum(high, most.reshape(high.shape))
        centre = operator.value(x.centre, y.centre) + (low + high) / 2
        sizes = [form.size(self.basis) for form in (x, y)]
        error = 4 * self._share(x.centre.shape[-1] + y.centre.shape[-1] + r) * operator.value(*sizes)
        error = error + operator.value(x.error, sizes[1] + y.error) + operator.value(sizes[0], y.error)
        return self._with_noise(centre, slope, (high - low) / 2 + error, torch.zeros_like(error))

    def _remainders(self, x: Tensor, y: Tensor) -> Interval:
        """Ranges ``[B, groups, I, J]`` of ``sum_m dx_im dy_mj``."""
        left = x.movedim(1, -1).reshape(x.shape[0], -1, *x.shape[-2:], x.shape[1])  # [B, g, I, m, r]
        right = y.mT.movedim(1, -1).reshape(y.shape[0], -1, y.shape[-1], y.shape[-2], y.shape[1])  # [B, g, J, m, r]
        gauge = self.gauge
        own, other = gauge.inner(left, left), gauge.inner(right, right)
        found = []
        for i in range(left.shape[2]):
            cross = gauge.inner(left[:, :, i : i + 1], right)
            found.append(gauge.between(own[:, :, i : i + 1].expand(cross.shape), cross, other.expand(cross.shape)))
        return torch.stack([low for low, _ in found], 2), torch.stack([high for _, high in found], 2)

    def _summing_to_one(self, index: int) -> AffineForm:
        """A form of probabilities whose rows sum to one exactly: the one with the largest error gives way."""
        form = self._forms[index]
        source = self.bounds.structure.source(index)
        if source < 0 or source not in self.errors:
            return form
        operator = self.graph.nodes[source].operator
        assert isinstance(operator, Softmax)
        order = self.bounds.structure.order(index).to(form.centre.device)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        shape = self.graph.nodes[source].shape
        axis = operator.axis - len(shape)

        def rows(t: Tensor) -> Tensor:
            return t.flatten(-len(self.graph.shape_of(index)))[..., back].unflatten(-1, shape).movedim(axis, -1)

        def restored(t: Tensor) -> Tensor:
            return t.movedim(-1, axis).flatten(-len(shape))[..., order].unflatten(-1, self.graph.shape_of(index))

        centre, slope = rows(form.centre), rows(form.slope)
        loosest = self.errors[source].movedim(axis, -1).argmax(-1, keepdim=True)
        chosen = torch.zeros_like(centre, dtype=torch.bool).scatter(-1, loosest, True)
        centre = torch.where(chosen, 1 - centre.masked_fill(chosen, 0.0).sum(-1, keepdim=True), centre)
        chosen = chosen[:, None]
        slope = torch.where(chosen, -slope.masked_fill(chosen, 0.0).sum(-1, keepdim=True), slope)
        total = rows(form.error + self._share(centre.shape[-1]) * form.size(self.basis)).sum(-1, keepdim=True)
        error = torch.where(chosen[:, 0], total, rows(form.error))
        return AffineForm(restored(centre), restored(slope), restored(error))

    def _softmax(self, index: int) -> AffineForm:
        node = self.graph.nodes[index]
        assert isinstance(node.operator, Softmax)
        axis = node.operator.axis
        scores = ProductScores.of(self, index)
        lower, upper = self.bounds.interval(node.inputs[0])
        if not bool(lower.isfinite().all() and upper.isfinite().all()) or node.shape[axis] == 1:
            return self._constant_rows(index)
        rows = self.scores[index] = scores.rows(self.bounds.differences(index))
        # Planes and probabilities of the linear bounds may use better differences.
        self.bounds = self.bounds.knowing(self.bounds.knowledge.with_differences(index, rows.differences, renew=False))
        directions = tangent_directions(scores.at)
        affine = affine_probabilities(scores.at, rows.differences, directions, scores.reach)
        slope, (low, high) = scores.combined(affine.slope)
        return self._rows_to_form(index, affine.value + (low + high) / 2, slope, affine.error + (high - low) / 2)

    def _rows_to_form(self, index: int, value: Tensor, slope: Tensor, error: Tensor) -> AffineForm:
        """``slope [B, rows, K, r]``; where a constant is closer than the affine function, the constant."""
        node = self.graph.nodes[index]
        assert isinstance(node.operator, Softmax)
        axis = node.operator.axis
        moved = [s for i, s in enumerate(node.shape) if i != axis] + [node.shape[axis]]
        lower, upper = (end.movedim(axis + 1, -1).reshape(error.shape) for end in self.bounds.interval(index))
        flat = ~(error < (upper - lower) / 2)
        value = torch.where(flat, lower + (upper - lower) / 2, value)
        error = torch.where(flat, (upper - lower) / 2 + 4 * torch.finfo(lower.dtype).eps, error)
        slope = torch.where(flat[..., None], 0.0, slope)

        def back(t: Tensor) -> Tensor:
            return t.reshape(*t.shape[:-2], *moved).movedim(-1, axis - len(node.shape))

        self.errors[index] = back(error)
        return self._with_noise(
            back(value), back(slope.movedim(-1, 1)), self.errors[index], torch.zeros_like(self.errors[index])
        )

    def _constant_rows(self, index: int) -> AffineForm:
        node = self.graph.nodes[index]
        assert isinstance(node.operator, Softmax)
        lower, upper = self.bounds.interval(index)
        slope = lower.new_zeros(1, self.basis.size, *node.shape)
        radius = (upper - lower) / 2
        self.errors[index] = radius
        radius = radius + 4 * torch.finfo(radius.dtype).eps
        return self._with_noise(lower + radius, slope, radius, torch.zeros_like(radius))


def needed_forms(graph: Graph) -> set[int]:
    """The nodes whose forms the products need; scores that are a product themselves are taken from its factors."""
    needed: set[int] = set()
    waiting = [i for node in graph.nodes if isinstance(node.operator, Bilinear) for i in node.inputs]
    while waiting:
        index = waiting.pop()
        if index < 0 or index in needed:
            continue
        needed.add(index)
        node = graph.nodes[index]
        scores = node.inputs[0] if isinstance(node.operator, Softmax) else -1
        if scores >= 0 and ProductScores.fits(graph, index):
            waiting.extend(graph.nodes[scores].inputs)
        else:
            waiting.extend(node.inputs)
    return needed


def last_uses(graph: Graph, needed: set[int]) -> dict[int, int]:
    """The last node whose rule, or whose place among the products, asks for the form of a node (-1 is the input)."""
    found = dict.fromkeys((-1, *needed), -1)
    for index, node in enumerate(graph.nodes):
        asked = node.inputs if index in needed or isinstance(node.operator, Bilinear) else ()
        if index in needed and ProductScores.fits(graph, index):
            asked = graph.nodes[node.inputs[0]].inputs
        found |= dict.fromkeys(asked, index)
    return found


def _bytes(tensors: Iterable[Tensor]) -> int:
    """What tensors take in memory; those that share it count once."""
    return sum({(s := t.untyped_storage()).data_ptr(): s.nbytes() for t in tensors}.values())


def is_bottleneck(graph: Graph, index: int) -> bool:
    """Whether everything after a node depends on the input through it alone; of a node and its curve, the curve."""
    later = graph.nodes[index + 1 :]
    consumers = [node.operator for node in later if index in node.inputs]
    if all(isinstance(operator, Elementwise) for operator in consumers):
        return False
    return all(i >= index for node in later for i in node.inputs)
