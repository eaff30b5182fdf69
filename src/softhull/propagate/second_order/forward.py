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
from typing import Self

import torch
from torch import Tensor

from ...graph.graph import Graph
from ...graph.operator import Bilinear, Elementwise, Interval, Operator
from ...graph.ops.conv import Conv
from ...graph.ops.matmul import MatMul
from ...graph.ops.normalize import Normalized
from ...graph.ops.relu import Relu
from ...graph.ops.softmax import Softmax
from ...graph.rounding import share, underflow
from ..crown import LinearBounds, reorder
from ..softmax_steps import DensePlanes
from .affine_form import AffineForm, Basis, input_noise, own_form, worth_noise
from .kinks import Kinks
from .logits import LogitRows, ProductLogits
from .remainders import Gauge
from .rules import NoAffineForms as NoAffineForms
from .rules import affine_form

# Affine forms may take this many times what one coefficient tensor of the linear bounds may.
TENSORS = 32
# A basis with products of up to so many entries goes on through a narrow layer: steps take about their cube.
_SETTLED = 1024


@dataclass(frozen=True)
class Factors:
    """Both factors of one product as forms over the basis of number ``basis``.

    Where the rows of one of them are probabilities, ``kept`` is that side (0 or 1), ``axis`` the axis along which they
    sum to one, ``error`` the radius of the fresh noise of each, in the shape of the factor, and
    ``metric [B or 1, r', r']`` a scalar product of slopes over the first r' of the basis. ``spreads`` are those of the
    forms, once all are there.
    """

    x: AffineForm
    y: AffineForm
    basis: int
    kept: int = 0
    axis: int = -1
    error: Tensor | None = None
    metric: Tensor | None = None
    spreads: tuple[Tensor, ...] = ()

    def take(self, instances: Tensor) -> Factors:
        """The factors of some of the instances."""
        error, metric = None if self.error is None else self.error[instances], self.metric
        if metric is not None and len(metric) > 1:  # that of one instance is shared, not copied
            metric = metric[instances]
        x, y, spreads = self.x.take(instances), self.y.take(instances), tuple(t[instances] for t in self.spreads)
        return replace(self, x=x, y=y, error=error, metric=metric, spreads=spreads)

    def measured(self, basis: Basis) -> Factors:
        """The same with its spreads known."""
        return replace(self, spreads=(self.x.spread(basis), self.y.spread(basis)))


class Forms:
    """The affine forms that the products of a graph need, over the region of ``bounds``.

    ``factors`` are the factors of the products (of all of them, if ``memory`` bytes suffice), ``bases`` the bases they
    are written in, by number, over ``noise_count`` noise numbers. ``bounds`` know the logit differences found on the
    way, so that their planes are at least as good as before.
    """

    def __init__(
        self, bounds: LinearBounds, memory: int | None = None, rectified: bool = False, sharp: bool = False
    ) -> None:
        self.bounds = bounds
        self.graph = bounds.graph
        self.memory = TENSORS * bounds.memory if memory is None else memory
        size = math.prod(self.graph.input_shape)
        centre, basis, self.noise = input_noise(bounds.region)
        self.noise_count = basis.noise
        # What every noise number stands for, -1 for nothing: an input, or an entry of what was relaxed, out of so many.
        self._names, self.entries = torch.arange(size, device=bounds.region.lower.device)[None], size
        self.named: dict[int, int] = {}  # by node that was relaxed: what its first entry stands for
        self.bases = {0: basis}
        self.current = 0
        self.factors: dict[int, Factors] = {}
        self.forgotten = 0  # products whose factors did not fit
        self.errors: dict[int, Tensor] = {}  # radii of the fresh noise of probabilities
        self.logits: dict[int, LogitRows] = {}
        self.parallel: dict[int, DensePlanes] = {}  # planes of a softmax that know the noise of its logits together
        # Where asked for, by rectifier: the form of what it is applied to, and the number of its basis.
        self.rectified: dict[int, tuple[AffineForm, int]] = {}
        # Whether what is dear is wanted: differences of logits of short rows one by one, and rectifiers that stay.
        self.sharp, self.kinks = sharp, dict[int, Kinks]()
        nodes = enumerate(self.graph.nodes)
        self._rectifiers = {i for i, node in nodes if rectified and isinstance(node.operator, Relu)}
        self._forms: dict[int, AffineForm] = {}
        self._gauge: Gauge | None = None
        self._metric: Tensor | None = None
        self._effect: Tensor | None = None  # of the noise [B, n] on the last narrow layer, where that is no basis
        self._start(centre)

    def _start(self, centre: Tensor) -> None:
        """The form of the inputs or, where a first layer cuts these into patches, of that layer, which is narrower."""
        each, size, stem = self.bounds.region.lower.element_size(), self.noise.inputs, self.bounds.structure.stem
        if stem is None or math.prod(self.graph.nodes[stem].shape) >= size:
            self._refuse_beyond(each * size * size, "the input")
            self._forms[-1] = own_form(centre, torch.zeros_like(centre))
            return
        node = self.graph.nodes[stem]
        operator, outputs = node.operator, math.prod(node.shape)
        assert isinstance(operator, Conv)
        self._refuse_beyond(each * len(centre) * outputs * size, node.label)
        units = torch.eye(outputs, dtype=centre.dtype, device=centre.device).reshape(outputs, 1, *node.shape)
        (back,), _ = operator.backward(units, (self.graph.input_shape,))
        radius = self.basis.map
        mapping = back.flatten(2).transpose(0, 1) * radius[:, None]
        # The layer at the centre, and a product for every entry of the map.
        terms = operator.terms(tuple(centre.shape[1:])) + 4
        error = self.share(terms) * operator.magnitude(centre.abs() + radius.reshape(centre.shape)) + operator.slack
        error = error + (terms + size) * underflow(error.dtype)
        self._forms[stem] = own_form(operator.value(centre), error)
        self.current += 1
        self.bases = {self.current: Basis(mapping).in_parts()}

    def build(self) -> Self:
        """All forms that are needed, first to last; at the end the bounds know better differences."""
        bounds = self.bounds
        products = {i for i, node in enumerate(self.graph.nodes) if collected(node.operator)}
        asking = products | self._rectifiers
        needed = needed_forms(self.graph, asking)
        last_use = last_uses(self.graph, needed, asking)
        for index in range(-1, max(asking, default=-1)):
            bounds.check_time()
            if index >= 0 and index in needed and index not in self._forms:
                node = self.graph.nodes[index]
                entries = bounds.region.lower.element_size() * bounds.size * math.prod(node.shape)
                self._refuse_beyond(entries * self.basis.size, node.label)
                self._forms[index] = self.rule(index)
            if index in self._forms and is_bottleneck(self.graph, index):
                self._pass(index)
            self._collect(index + 1)
            self._forms = {i: form for i, form in self._forms.items() if last_use[i] > index}
            self._fit()
        self._renumber()
        self.bases = {number: basis.in_parts() for number, basis in self.bases.items()}
        self.factors = {i: found.measured(self.bases[found.basis]) for i, found in self.factors.items()}
        return self

    @property
    def basis(self) -> Basis:
        """The basis that forms are written in at this point of the network."""
        return self.bases[self.current]

    def _settled(self) -> bool:
        """Whether the current basis stays: products are written in it, so that another only adds to what they take.

        The input itself never does, whose noise could not be merged, and none does where memory may become short.
        """
        used = any(found.basis == self.current for found in self.factors.values())
        small = self.basis.size <= _SETTLED and 4 * self.held() <= self.memory
        return used and small and self.basis.map.ndim == 3

    def form(self, index: int) -> AffineForm:
        """The form of a node at hand."""
        return self._forms[index]

    def interval(self, index: int) -> Interval:
        """The range of the form of a node at hand."""
        form = self._forms[index]
        radius = self.radius(form) + share(4, form.centre.dtype) * form.centre.abs().nan_to_num(posinf=0.0)
        return form.centre - radius, form.centre + radius

    # What is held

    def held(self) -> int:
        """The bytes of all slopes and maps that are kept."""
        forms = [*self._forms.values(), *(form for found in self.factors.values() for form in (found.x, found.y))]
        rows = self.logits.values()
        metrics = [found.metric for found in self.factors.values() if found.metric is not None]
        forms += [form for form, _ in self.rectified.values()]
        forms += [form for found in self.kinks.values() for form in (found.x, found.y)]
        tensors = [*(form.slope for form in forms), *(t for row in rows for t in (row.slope, *row.remainder)), *metrics]
        return sum(basis.bytes for basis in self.bases.values()) + _bytes(tensors)

    def _refuse_beyond(self, size: int, where: str) -> None:
        if size > self.memory:
            raise NoAffineForms(f"affine forms of {where} take {size:,} bytes, more than the {self.memory:,} allowed")

    def _fit(self) -> None:
        """Reduce what is held to the memory allowed."""
        self._release_bases()
        if self.held() > self.memory:  # products matter more
            self.rectified.clear()
            self.kinks.clear()
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

        before = self._forms, self.bases.copy(), self.current, self.noise_count, self._gauge, self._metric, self._effect
        most = at_hand()
        self._rebase(list(self._forms))
        self._release_bases()
        self._merge_noise()
        if at_hand() >= most:
            self._forms, self.bases, self.current, self.noise_count, self._gauge, self._metric, self._effect = before

    def _release_bases(self) -> None:
        """Drop the bases in which nothing is written any more."""
        products, rows = self.factors.values(), self.logits.values()
        used = {self.current, *(found.basis for found in products), *(found.basis for found in rows)}
        used |= {number for _, number in self.rectified.values()} | {found.basis for found in self.kinks.values()}
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
                self._gauge = self._effect = None

    def _forget(self, index: int) -> None:
        """Leave a product, and the rows of probabilities before it, to linear relaxations."""
        del self.factors[index]
        self.forgotten += 1
        self.logits = {i: rows for i, rows in self.logits.items() if i > index}
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

    def radius(self, form: AffineForm) -> Tensor:
        """How far an entry may be from its centre."""
        radius = self.noise.radius(form.noise_slope(self.basis)).reshape(form.centre.shape)
        return (radius + form.error + self._rounded(form)) * (1 + self.share(2))

    def _rounded(self, form: AffineForm) -> Tensor:
        """What writing a form over the noise costs."""
        r = form.slope.shape[1]
        lost = (r if self.basis.map.ndim == 3 else 1) * self.basis.noise * underflow(form.error.dtype)
        return self.share(r + 1) * form.spread(self.basis) + lost

    @property
    def names(self) -> Tensor | None:
        """What every noise number stands for ``[B or 1, n]``, the same in all regions of a network; -1 for nothing.

        None where noise was merged.
        """
        return self._names if self._names.shape[1] == self.noise_count else None

    def share(self, operations: int) -> float:
        """The relative error of so many operations in the dtype of the forms."""
        return share(operations, self.basis.map.dtype)

    def _collect(self, index: int) -> None:
        """Keeps the forms of both factors of a product, and the errors of those that are probabilities."""
        node = self.graph.nodes[index]
        if index in self._rectifiers:
            self.rectified[index] = self._forms[node.inputs[0]], self.current
        if not collected(node.operator):
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
        first = self.entries
        form = affine_form(self.graph.nodes[index].operator, self, index)
        if self.entries > first:
            self.named[index] = first
        return form

    def know_differences(self, index: int, rows: LogitRows, shown: Tensor) -> None:
        """The rows of one softmax; planes and probabilities of the linear bounds may use their differences.

        ``shown [K']`` are the logits that some row sees; of the others nothing is known.
        """
        self.logits[index] = rows
        low, high = rows.differences
        node = self.graph.nodes[index]
        assert isinstance(node.operator, Softmax)
        length = node.shape[node.operator.axis]
        if len(shown) < length:
            nothing = low.new_full((*low.shape[:2], length, length), math.inf)
            least, most = -nothing, nothing
            least[..., shown[:, None], shown], most[..., shown[:, None], shown] = low, high
            low, high = least, most
        knowledge = self.bounds.knowledge.with_differences(index, (low, high), renew=False)
        self.bounds = self.bounds.knowing(knowledge)

    def with_noise(self, centre: Tensor, slope: Tensor, radius: Tensor, error: Tensor) -> AffineForm:
        """A form plus, for every entry with a positive radius, one fresh noise number, which takes the error in."""
        noisy, whole = worth_noise(radius, centre), (radius + error) * (1 + self.share(2))
        radius, error = torch.where(noisy, whole, 0.0), torch.where(noisy, 0.0, whole)
        flat = radius.flatten(1)
        fresh = flat > 0
        count = int(fresh.sum(1).max()) if flat.numel() else 0
        first, self.entries = self.entries, self.entries + flat.shape[1]
        r = self.basis.size
        slope = AffineForm(centre, slope, error).padded(r)
        if not count:
            return AffineForm(centre, slope, error)
        B, size = flat.shape
        own = flat.new_zeros(B, count, size)
        instance, entry = fresh.nonzero(as_tuple=True)
        number = fresh.cumsum(1)[instance, entry] - 1
        own[instance, number, entry] = flat[instance, entry]
        names = torch.full((B, count), -1, device=flat.device)
        names[instance, number] = first + entry
        self._names = torch.cat((self._names.expand(B, -1), names), 1)
        self.bases[self.current] = self.basis.extended(count, self.noise_count)
        self.noise_count += count
        self._gauge = None
        slope = torch.cat((slope.expand(B, *slope.shape[1:]), own.reshape(B, count, *radius.shape[1:])), 1)
        return AffineForm(centre, slope, error)

    def _pass(self, index: int) -> None:
        """Everything later goes through this node: its entries become the basis, or at least the measure of noise."""
        if not self._settled():
            self._rebase([index])
            return
        self._effect = self._forms[index].noise_slope(self.basis).norm(dim=1)
        self._gauge = self._metric = None

    def _rebase(self, nodes: list[int]) -> None:
        """Let the entries of the nodes through which everything later passes be the basis, if they are fewer."""
        forms = [self._forms[i] for i in nodes]
        moving = [(form.slope != 0).any(1).flatten(1).sum(1) for form in forms]
        if int(torch.stack([each.amax() for each in moving]).sum()) >= self.basis.size:
            return
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
                (form.error + self._rounded(form)) * (1 + self.share(2)),
            )
            for i, form, part in zip(nodes, forms, slopes)
        }
        numbers = self.basis.numbers
        self.current += 1
        self.bases[self.current] = Basis(rows, numbers).in_parts()
        self._effect = self._gauge = self._metric = None

    @property
    def gauge(self) -> Gauge:
        """How large quadratics in the current basis can get, worked out once."""
        if self._gauge is None:
            self._gauge = Gauge(self.basis, self.noise, effect=self._effect)
            self._metric = self._gauge.gram
        return self._gauge

    def gauge_of(self, *slopes: Tensor) -> Gauge:
        """The same for products of slopes ``[B or 1, ..., r]``, without the noise that moves none of them."""
        whole, basis = self.gauge, self.basis
        used = torch.zeros(len(basis.map), basis.size, dtype=torch.bool, device=basis.map.device)
        for slope in slopes:
            used[:, : slope.shape[-1]] |= (slope != 0).flatten(1, -2).any(1)
        return whole if bool(used.all()) else Gauge(basis, self.noise, used, self._effect)


def collected(operator: Operator) -> bool:
    """Whether the deviations of both factors of a product go into the quadratic.

    Those of normalised rows do not: the plane that a walk chooses for a row is better than its tangent at the centre.
    """
    return isinstance(operator, Bilinear) and not isinstance(operator, Normalized)


def needed_forms(graph: Graph, asking: set[int]) -> set[int]:
    """The nodes whose forms some need of their inputs; logits that are a product are taken from its factors."""
    needed: set[int] = set()
    waiting = [i for index in asking for i in graph.nodes[index].inputs]
    while waiting:
        index = waiting.pop()
        if index < 0 or index in needed:
            continue
        needed.add(index)
        node = graph.nodes[index]
        logits = node.inputs[0] if isinstance(node.operator, Softmax) else -1
        if logits >= 0 and ProductLogits.fits(graph, index):
            waiting.extend(graph.nodes[logits].inputs)
        else:
            waiting.extend(node.inputs)
    return needed


def last_uses(graph: Graph, needed: set[int], asking: set[int]) -> dict[int, int]:
    """The last node whose rule, or whose place among those asking, asks for the form of a node (-1 is the input)."""
    found = dict.fromkeys((-1, *needed), -1)
    for index, node in enumerate(graph.nodes):
        asked = node.inputs if index in needed or index in asking else ()
        if index in needed and ProductLogits.fits(graph, index):
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
