"""Zonotopes: every node as an affine form of the inputs that move and of fresh noise, by one pass and no walk.

A walk for every entry of every node takes time with the square of the depth. Where few inputs move, forms of all nodes
cost as much as a few walks. What noise does to a node is bounded entry by entry, so that they lose more than walks
where relaxations are wide, and next to nothing where they are narrow. All they say of the nodes is made known to
bounds: ranges, differences of logits, mean squares, functions of the input. Walks on the output then start none of
their own.

A product of deviations is ``dx dy = hx hy (a^2 - b^2) / 4`` with ``a, b = dx / hx +- dy / hy``, whose ranges know how
both move together. Centres and slopes are rounded; ``error`` bounds what that, and nothing else, has cost an entry.
Forms are of one instance: the leading dimension of their tensors is 1.
"""

from __future__ import annotations

import math
from functools import singledispatchmethod
from typing import ClassVar, cast

import torch
from torch import Tensor

from ..graph.operator import Affine, Bilinear, Elementwise, Interval, Operator
from ..graph.ops.matmul import MatMul
from ..graph.ops.normalize import InverseDeviation, Normalized
from ..graph.ops.rsqrt import Rsqrt
from ..graph.ops.softmax import Softmax
from ..graph.rounding import extreme_eigenvalues, largest, outward, share, ulps, underflow
from .crown import LinearBounds
from .normalize import walked_mean_square
from .rules import tightest
from .second_order.affine_form import (
    AffineForm,
    Basis,
    Noise,
    centre_and_radius,
    product_error,
    vanishing,
    worth_noise,
)
from .second_order.elementwise import parallel_band
from .second_order.forward import TENSORS
from .second_order.probabilities import affine_probabilities, tangent_directions
from .second_order.rules import NoAffineForms, by_rows, far_below, leaking, mean_square_tangent
from .second_order.rules import affine_form as rule_of_forms
from .shadow import Shadow, moving_inputs
from .structure import pieces, positions

# Forms are made where at most this share of the entries of the widest node are inputs that move.
_FEW = 1 / 8
# Numbers of pairs of entries, about what the walks of all nodes have coefficients: with fewer they take no time, with
# more they take minutes.
_LITTLE, _MUCH = 1 << 26, 1 << 31
# Inputs of which products are also bounded by eigenvalues.
_SQUARED = 64
# A row whose form is wider than its box by this factor says less than the box.
_HOPELESS = 2.0
# Entries at least so wide, by the widest of the node, are worth a walk.
_WIDE = 0.1


def worth_forms(bounds: LinearBounds) -> bool:
    """Whether forms take much less than walks, or say more: few inputs move, through attention and what follows.

    That is more attention, or a normalisation.
    """
    nodes, last = bounds.graph.nodes, len(bounds.graph.nodes) - 1
    few = len(moving_inputs(bounds)) <= _FEW * bounds.structure.width(last)
    first = next((i for i, node in enumerate(nodes) if isinstance(node.operator, Softmax)), last)
    further = any(isinstance(node.operator, Softmax | InverseDeviation) for node in nodes[first + 1 :])
    return few and further and bounds.structure.volume(last) ** 2 > _LITTLE


def attends_often(bounds: LinearBounds) -> bool:
    """Whether there are several layers of attention, through which second order does not go at once."""
    return sum(isinstance(node.operator, Softmax) for node in bounds.graph.nodes) > 1


def dear_walks(bounds: LinearBounds) -> bool:
    """Whether walks for all entries of all nodes take minutes for one instance."""
    return bounds.structure.volume(len(bounds.graph.nodes) - 1) ** 2 > _MUCH


def known_by_forms(bounds: LinearBounds, walked: bool = False) -> LinearBounds:
    """The same bounds of one instance, which know all that forms say; raises ``NoAffineForms`` where there are none.

    ``walked``: met with walks for the widest entries, which rest on the forms of earlier nodes.
    """
    Zonotopes(bounds, walked).tell_all()
    return bounds


class Zonotopes:
    """The forms of the nodes at hand, over ``noise``: the inputs that move, then what was relaxed.

    The slopes of one node take at most ``tensors`` times the memory of one coefficient tensor.
    """

    tensors: ClassVar[int] = TENSORS // 2

    def __init__(self, bounds: LinearBounds, walked: bool = False) -> None:
        if bounds.size != 1:
            raise ValueError("forms are of one instance")
        self.bounds, self.graph, self.walked = bounds, bounds.graph, walked
        region = bounds.region
        self.moving = moving_inputs(bounds)
        self.centre, self.reach = (t.flatten(1) for t in centre_and_radius(region))
        self.count = len(self.moving)
        self.noise = Noise(self.count, region.norm if region.centre is not None and self.count else math.inf)
        self._shadows: dict[int, Shadow | None] = {}
        slope = torch.zeros(1, self.count, self.centre.shape[1], dtype=self.centre.dtype, device=self.centre.device)
        slope[0, torch.arange(self.count), self.moving] = self.reach[0, self.moving]
        still = torch.ones_like(self.reach, dtype=torch.bool)
        still[:, self.moving] = False
        structure, nodes = bounds.structure, self.graph.nodes
        # What relaxations are made over, with the function that is the only one to do so.
        self._relaxed: dict[int, Elementwise | None] = {}
        for node in nodes if walked else ():
            for i in node.inputs:
                source = structure.source(i)
                if isinstance(node.operator, Affine) or source < 0 or not isinstance(nodes[source].operator, Affine):
                    continue
                alone = source not in self._relaxed and source == i and isinstance(node.operator, Elementwise)
                self._relaxed[source] = cast("Elementwise", node.operator) if alone else None
        shape = (1, *self.graph.input_shape)
        error = torch.where(still, self.reach, 0.0).reshape(shape)
        self._forms = {-1: AffineForm(self.centre.reshape(shape), slope.reshape(1, self.count, *shape[1:]), error)}

    @property
    def basis(self) -> Basis:
        """The noise itself."""
        return Basis(torch.ones(1, self.count, dtype=self.centre.dtype, device=self.centre.device))

    def tell_all(self) -> None:
        """Forms of all nodes, one after the other, each let go after its last use; the bounds then know of them."""
        nodes = self.graph.nodes
        for index in range(len(nodes)):  # better known before work than after
            self._check_memory(index, self.count)
        last_use = {i: index for index, node in enumerate(nodes) for i in node.inputs}
        for index, node in enumerate(nodes):
            self.bounds.check_time()
            self.add(index)
            for i in set(node.inputs):
                if last_use[i] == index:
                    self.forget(i)
            if len(self._forms) == 1:
                self.settle(index)

    def settle(self, index: int) -> None:
        """Called where a node is all that later ones read: time to write its noise in another way."""

    def form(self, index: int) -> AffineForm:
        """The form of a node at hand."""
        return self._forms[index]

    def forget(self, index: int) -> None:
        """Lets the form of a node go."""
        del self._forms[index]

    def share(self, operations: int) -> float:
        """The relative error of so many operations."""
        return share(operations, self.centre.dtype)

    def add(self, index: int) -> None:
        """The form of the next node, of which the bounds then know."""
        self._check_memory(index, self.count)
        self._forms[index] = self.rule(self.graph.nodes[index].operator, index)
        self._tell(index)

    def _check_memory(self, index: int, count: int) -> None:
        """NoAffineForms where slopes of a node over so much noise would take too much."""
        node = self.graph.nodes[index]
        if self.centre.element_size() * count * math.prod(node.shape) > self.tensors * self.bounds.memory:
            raise NoAffineForms(f"forms of {node.label} do not fit the memory")

    # What forms say

    def radius(self, form: AffineForm) -> Tensor:
        """How far an entry may be from its centre."""
        return (self.radius_of(form.slope) + form.error) * (1 + self.share(2))

    def radius_of(self, slope: Tensor) -> Tensor:
        """How far noise moves what has slopes ``[1, r, ...]``, at most."""
        return self.noise.radius(slope.movedim(1, -1))

    def parts(self, slope: Tensor) -> tuple[Tensor, Tensor]:
        """The same for the inputs and for all other noise."""
        n = len(self.moving)
        return self.radius_of(slope[:, :n]), slope[:, n:].abs().sum(1) * (1 + self.share(slope.shape[1]))

    def interval(self, index: int) -> Interval:
        """The range of the form of a node at hand."""
        form = self._forms[index]
        radius = self.radius(form) + self.share(4) * form.centre.abs()
        return form.centre - radius, form.centre + radius

    def _tell(self, index: int) -> None:
        """Let the bounds know what the form of a node, and walks where they are asked for, say of it."""
        bounds, node = self.bounds, self.graph.nodes[index]
        knowledge, source = bounds.knowledge, bounds.structure.source(index)
        if 0 <= source != index:  # the same entries in another order
            order = bounds.structure.order(index)
            knowledge.find("rough", index, lambda: bounds.interval(index))
            known = self._shadows[source]
            knowledge.find("shadow", index, lambda: known and known.reordered(order.to(self.centre.device)))
            return
        if isinstance(node.operator, Softmax | InverseDeviation):
            low, high = tightest(node.operator, bounds, index, None)
        else:
            low, high = node.operator.interval(*(bounds.rough(i) for i in node.inputs))
        low, high = knowledge.met("rough", index, (low, high))
        least, most = self.interval(index)
        low, high = _met((low, high), (least, most))
        found = torch.minimum(low, high), torch.maximum(low, high)
        self._shadows[index] = knowledge.find("shadow", index, lambda: self._shadow(index))
        if index in self._relaxed:
            found = self._walked(index, *found)
        knowledge.find("rough", index, lambda: found)
        knowledge.find("interval", index, lambda: found)

    def _walked(self, index: int, lower: Tensor, upper: Tensor) -> Interval:
        """Better bounds on the widest entries of a node by walks, which cost little now."""
        low, high = lower.flatten(1).clone(), upper.flatten(1).clone()
        width = high - low
        wide = width > _WIDE * width.amax()
        consumer = self._relaxed[index]
        if consumer is not None:
            lines = consumer.lines(lower, upper)
            wide &= ~((lines.lower_slope == lines.upper_slope) & (lines.lower_offset == lines.upper_offset)).flatten(1)
        for entries in pieces(wide[0].nonzero()[:, 0], self.bounds.chunk(index)):
            units = low.new_zeros(len(entries), 1, low.shape[1])
            units[positions(entries), 0, entries] = 1
            least, most = self.between(index, units.reshape(len(entries), 1, *lower.shape[1:]))
            low[:, entries] = torch.maximum(low[:, entries], least.T)
            high[:, entries] = torch.minimum(high[:, entries], most.T)
        low, high = torch.minimum(low, high), torch.maximum(low, high)
        return low.reshape(lower.shape), high.reshape(upper.shape)

    def between(self, index: int, rows: Tensor) -> Interval:
        """Lower and upper bounds ``[S, 1]`` on ``<rows [S, 1, *shape], node>`` by walks."""
        return self.bounds.between(index, rows)

    def _shadow(self, index: int) -> Shadow | None:
        """The form as functions of the input: what it says of other noise is a constant above and below."""
        form, n = self._forms[index], len(self.moving)
        centre, slope = form.centre.flatten(1), form.slope.flatten(2)
        at, reach = self.centre[:, self.moving], self.reach[:, self.moving]
        rate = slope[:, :n].mT / reach[:, None]
        far = self.parts(slope)[1] + form.error.flatten(1)
        offset = centre - (rate @ at[..., None])[..., 0]
        size = (rate.abs() @ (at.abs() + reach)[..., None])[..., 0] + centre.abs() + far
        # A quotient, a product and a sum for every input; the sums with the centre and what is far. Quotients and
        # products may vanish.
        lost = (2 * underflow(size.dtype) * (1 + at.abs() + reach)).sum(-1, keepdim=True)
        far = far + self.share(3 * n + 4) * size + lost
        return Shadow(rate, offset - far, rate, offset + far, size, self.moving)

    # Rules

    @singledispatchmethod
    def rule(self, operator: Operator, index: int) -> AffineForm:
        """The form of a node from those of its inputs, which are at hand."""
        raise NoAffineForms(f"no forms for {operator.name} at {self.graph.nodes[index].label}")

    @rule.register
    def _(self, operator: Affine, index: int) -> AffineForm:
        return rule_of_forms(operator, self, index)  # type: ignore[arg-type]

    @rule.register
    def _(self, operator: Elementwise, index: int) -> AffineForm:
        (before,) = self.graph.nodes[index].inputs
        form = self.form(before)
        rate, middle, radius = parallel_band(operator, *self.bounds.interval(before))
        exact = ((rate == 0) | (rate == 1)) & (middle == 0)
        rounded = self.share(3) * (rate.abs() * form.size(self.basis) + middle.abs()) + vanishing(self.basis, rate)
        error = rate.abs() * form.error + torch.where(exact, 0.0, rounded)
        return self._with_noise(rate * form.centre + middle, form.slope, radius, error, rate)

    @rule.register
    def _(self, operator: Bilinear, index: int) -> AffineForm:
        x, y = (self.form(i) for i in self.graph.nodes[index].inputs)
        radius = operator.value(self.radius(x), self.radius(y))
        return self._with_noise(*self.tangent(operator, x, y, (-radius, radius)))

    @rule.register
    def _(self, operator: MatMul, index: int) -> AffineForm:
        left, right = self.graph.nodes[index].inputs
        x, y = self.form(left), self.form(right)
        if len(operator.left) < 2 or operator.left[:-2] != operator.right[:-2]:
            radius = operator.value(self.radius(x), self.radius(y))
            return self._with_noise(*self.tangent(operator, x, y, (-radius, radius)))
        low, high = self._products(operator, x, y, self._half(left), self._half(right))
        if self.bounds.structure.rows_are_softmax(left, len(operator.left) - 1):
            x, shifted = self._summing_to_one(x)
            # Products are those of deviations from the centre as it was.
            moved = operator.value(shifted, self.radius(y))
            low, high = low - moved, high + moved
        return self._with_noise(*self.tangent(operator, x, y, (low, high)))

    @rule.register
    def _(self, operator: Normalized, index: int) -> AffineForm:
        """A product; where the box of a row, which never leaves the normalised ball, is much narrower, a constant."""
        z, r = (self.form(i) for i in self.graph.nodes[index].inputs)
        dz, dr = (form.padded(self.count) for form in (z, r))
        hz, hr = (self._half(i) for i in self.graph.nodes[index].inputs)
        between = self._joint(dz, dr.expand(dz.shape), hz, hr.expand(z.centre.shape))
        centre, slope, radius, error = self.tangent(operator, z, r, between)
        least, most = operator.interval(*(self.bounds.rough(i) for i in self.graph.nodes[index].inputs))
        half = (most - least) / 2 + ulps(4, least.dtype) * largest(least, most)
        dims = tuple(axis + 1 for axis in operator.axes)
        whole = self.radius_of(slope) + radius + error
        flat = ~(whole.mean(dims, keepdim=True) <= _HOPELESS * half.mean(dims, keepdim=True)).expand(half.shape)
        return self._with_noise(
            torch.where(flat, least + (most - least) / 2, centre),
            torch.where(flat[:, None], 0.0, slope),
            torch.where(flat, half, radius),
            torch.where(flat, 0.0, error),
        )

    @rule.register
    def _(self, operator: InverseDeviation, index: int) -> AffineForm:
        """The mean square is a quadratic of the noise; its square part and the curve of the root are noise."""
        before = self.graph.nodes[index].inputs[0]
        form, dims = self.form(before), operator.dims
        d, r = operator.count(form.centre), form.slope.shape[1]
        mean, slope, error = mean_square_tangent(operator, form, self.basis)
        most = self._mean_square(form.slope, dims) * (1 + self.share(d + 8))
        centre = mean + most / 2
        reach = self.radius_of(slope) + most / 2 + error + self.share(4) * centre
        least, high = operator.mean_square(*self.bounds.interval(before))
        if self.walked:
            least, high = walked_mean_square(operator, self.bounds, index)
        low, high = _met((least, high), (centre - reach, centre + reach))
        low, high = torch.minimum(low, high).clamp(min=0), torch.maximum(low, high).clamp(min=0)
        self.bounds.knowledge.find("mean square", index, lambda: (low, high))
        rate, middle, radius = parallel_band(Rsqrt(), *outward(low + operator.epsilon, high + operator.epsilon))
        size = slope.abs().sum(1) + centre + operator.epsilon
        rounded = self.share(r + 8) * (rate.abs() * size + middle.abs()) + vanishing(self.basis, rate)
        return self._with_noise(
            rate * (centre + operator.epsilon) + middle,
            rate[:, None] * slope,
            radius + rate.abs() * most / 2,
            rate.abs() * error + rounded,
        )

    @rule.register
    def _(self, operator: Softmax, index: int) -> AffineForm:
        return self._with_noise(*self.probabilities(operator, index))

    def probabilities(self, operator: Softmax, index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Centres and slopes of probabilities, what they may be off by, and what is worth no noise of its own."""
        (before,), axis = self.graph.nodes[index].inputs, operator.axis
        form = self.form(before)
        K, shape = form.centre.shape[axis + 1], form.centre.movedim(axis + 1, -1).shape
        at = by_rows(form.centre, axis)
        moved = form.slope.movedim(axis + 2, -1).reshape(1, form.slope.shape[1], at.shape[1], K)
        cost = self.share(2 * K + form.slope.shape[1] + 8)
        slack = by_rows(form.error * (1 + cost) + cost * form.size(self.basis), axis)
        lost = K * vanishing(self.basis, at)
        apart = at[..., :, None] - at[..., None, :]
        far = self._apart(moved) + slack[..., :, None] + slack[..., None, :]
        known = differences = apart - far, apart + far
        self.bounds.knowledge.find("differences", index, lambda: known)

        def along(directions: Tensor) -> Tensor:
            return torch.einsum("brkj,bsrj->bsrk", directions, moved)

        def missed(directions: Tensor) -> Tensor:
            return (directions.abs() @ slack[..., None])[..., 0] + lost

        def reach(directions: Tensor) -> Interval:
            radius = self.radius_of(along(directions)) + missed(directions)
            return -radius, radius

        def variance(p: Tensor, weights: Tensor) -> Tensor:
            directions = torch.eye(K, dtype=p.dtype, device=p.device) - p[..., None, :]
            radius = reach(directions)[1]
            return (weights * radius.square()).sum(-1) * (1 + self.share(2 * K + 4)) + lost[..., 0]

        masked, leak = None, torch.zeros_like(at)
        if operator.masked is not None:
            masked = by_rows(operator.masked.expand(form.centre.shape), axis)
            at, differences = far_below(masked, at, differences)
        found = affine_probabilities(at, differences, tangent_directions(at), reach, variance)
        if masked is not None:
            leak = by_rows(operator.leak(*self.bounds.interval(before)), axis).expand(at.shape)
            found = leaking(masked, found, leak[..., :1])
        slope, error = along(found.slope), found.error + missed(found.slope)
        # Constants beside a mask are off by what leaks, which is worth no noise of its own.
        beside = torch.where(found.error == 0, leak, 0.0)

        def back(t: Tensor) -> Tensor:
            return t.reshape(*t.shape[:-2], *shape[1:]).movedim(-1, axis - len(shape) + 1)

        return back(found.value), back(slope), back(error), back(beside)

    def _apart(self, rows: Tensor) -> Tensor:
        """How far noise moves the differences ``[1, rows, K, K]`` within rows of slopes ``[1, r, rows, K]``."""
        return torch.stack([self.radius_of(rows - rows[..., k : k + 1]) for k in range(rows.shape[-1])], -1)

    # Products of deviations

    def tangent(
        self, operator: Bilinear, x: AffineForm, y: AffineForm, between: Interval
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The tangent of a product at the centres, and what is ``between`` it and the product; rounding costs."""
        by_x = operator.value(x.slope[0], y.centre.expand(x.slope.shape[1], *y.centre.shape[1:]))
        by_y = operator.value(x.centre.expand(y.slope.shape[1], *x.centre.shape[1:]), y.slope[0])
        slope, other = (by_x, by_y) if len(by_x) >= len(by_y) else (by_y, by_x)
        slope[: len(other)] += other
        (low, high), n, m = between, x.centre.shape[-1], y.centre.shape[-1]
        centre = operator.value(x.centre, y.centre) + (low + high) / 2
        error = product_error(operator, x, y, self.basis, n + m + len(slope))
        return centre, slope[None], (high - low) / 2 * (1 + self.share(n)), error

    def _joint(self, dx: Tensor, dy: Tensor, hx: Tensor, hy: Tensor) -> Interval:
        """The range of ``dx dy``, entry by entry, for slopes ``[1, r, ...]`` with radii of at most hx and hy."""
        one, other = (torch.where(h > 0, 1 / h, 0.0) for h in (hx, hy))
        whole = hx * hy * (1 + self.share(8))
        x, y = dx * one[:, None], dy * other[:, None]
        # Scaled deviations are off by a share of themselves, which are at most one.
        cost = 2 * self.share(8)
        low, high = (((self.radius_of(t) + cost).square() / 4).clamp(max=1) for t in (x - y, x + y))
        return -whole * low, whole * high

    def _half(self, index: int) -> Tensor:
        """How far the noise moves an entry at most, by its form and by all that is known."""
        form, (low, high) = self._forms[index], self.bounds.interval(index)
        known = torch.maximum(high - form.centre, form.centre - low) + form.error
        return torch.minimum(self.radius(form), known * (1 + self.share(4)) + self.share(4) * largest(low, high))

    def _products(self, operator: MatMul, x: AffineForm, y: AffineForm, hx: Tensor, hy: Tensor) -> Interval:
        """The range of ``sum_k dx_ik dy_kj``: term by term, or what inputs do by eigenvalues and the rest by radii."""
        dx, dy = (form.padded(self.count) for form in (x, y))
        low, high = (torch.zeros_like(operator.value(hx, hy)) for _ in range(2))
        for k in range(hx.shape[-1]):
            if not bool((hy[..., k, :] > 0).any()):
                continue
            rows = (hx[..., k] > 0).flatten(0, -2).any(0).nonzero()[:, 0]
            for i in rows.tolist():
                ends = self._joint(dx[..., i, k, None], dy[..., k, :], hx[..., i, k, None], hy[..., k, :])
                low[..., i, :] += ends[0]
                high[..., i, :] += ends[1]
        cost = 1 + self.share(hx.shape[-1])
        low, high = low * cost, high * cost
        n = len(self.moving)
        if not 0 < n <= _SQUARED:
            return low, high
        left = dx[0, :n].movedim(0, -1)  # [..., I, k, n]
        right = dy[0, :n].movedim(0, -1).transpose(-3, -2)  # [..., J, k, n]
        squares = torch.einsum("...ikm,...jkn->...ijmn", left, right)
        smallest, greatest = _eigenvalue_range((squares + squares.mT) / 2, hx.shape[-1])
        most = n if self.noise.norm == math.inf else 1
        (x1, x2), (y1, y2) = self.parts(dx), self.parts(dy)
        rest = operator.value(x1, y2) + operator.value(x2, y1 + y2)
        rest = rest * (1 + self.share(3 * hx.shape[-1] + 4)) + underflow(rest.dtype)
        least = smallest.clamp(max=0)[None] * most - rest
        greatest = greatest.clamp(min=0)[None] * most + rest
        return torch.maximum(low, least), torch.minimum(high, greatest)

    def _mean_square(self, slope: Tensor, dims: tuple[int, ...]) -> Tensor:
        """The largest mean square of deviations along some dimensions: of each on its own, or of inputs by their
        largest eigenvalue and the rest."""
        radius, d = self.radius_of(slope), math.prod(slope.shape[dim + 1] for dim in dims)
        alone = radius.square().mean(dims, keepdim=True)
        n = len(self.moving)
        if not 0 < n <= _SQUARED:
            return alone
        own, others = self.parts(slope)
        lines = slope[0, :n].movedim(0, -1).movedim([dim - 1 for dim in dims], list(range(-1 - len(dims), -1)))
        lines = lines.flatten(-1 - len(dims), -2)  # [..., d, n]
        _, most = _eigenvalue_range(lines.mT @ lines, d)
        most = most.clamp(min=0) * (n if self.noise.norm == math.inf else 1) / d
        most = torch.minimum(most.reshape(alone.shape), own.square().mean(dims, keepdim=True))
        # Squares may vanish, and roots of what they leave are much larger.
        most, rest = (t + underflow(t.dtype) for t in (most, others.square().mean(dims, keepdim=True)))
        together = (most.sqrt() + rest.sqrt()).square()
        return torch.minimum(alone, together * (1 + self.share(8)))

    def _summing_to_one(self, form: AffineForm) -> tuple[AffineForm, Tensor]:
        """Probabilities whose rows, along the last axis, sum to one exactly: the widest gives way.

        With them how far apart what noise does to an entry is in both forms.
        """
        widest = self.radius(form).argmax(-1, keepdim=True)
        chosen = torch.zeros_like(form.centre, dtype=torch.bool).scatter(-1, widest, True)
        centre = torch.where(chosen, 1 - form.centre.masked_fill(chosen, 0.0).sum(-1, keepdim=True), form.centre)
        chosen = chosen[:, None]
        slope = torch.where(chosen, -form.slope.masked_fill(chosen, 0.0).sum(-1, keepdim=True), form.slope)
        cost = self.share(centre.shape[-1])
        total = (form.error + cost * (1 + form.size(self.basis))).sum(-1, keepdim=True) * (1 + cost)
        chosen = chosen[:, 0]
        shifted = ((centre - form.centre).abs() + form.error + total) * (1 + self.share(3))
        return AffineForm(centre, slope, torch.where(chosen, total, form.error)), torch.where(chosen, shifted, 0.0)

    def _with_noise(
        self, centre: Tensor, slope: Tensor, radius: Tensor, error: Tensor, rate: Tensor | None = None
    ) -> AffineForm:
        """A form plus one fresh noise number for every entry with a radius that is more than rounding.

        It takes the error in, which would grow with every sum of absolute values that it goes through. Slopes are
        multiplied by ``rate`` where there is one.
        """
        noisy, radius = worth_noise(radius, centre), (radius + error) * (1 + self.share(2))
        error = torch.where(noisy, 0.0, radius)
        entries = noisy.flatten().nonzero()[:, 0]
        own = slope.new_zeros(len(entries), centre.numel())
        own[torch.arange(len(entries)), entries] = radius.flatten()[entries]
        return AffineForm(centre, self._with_rows(slope, own.unflatten(1, centre.shape[1:]), rate), error)

    def _with_rows(self, slope: Tensor, own: Tensor, rate: Tensor | None = None) -> Tensor:
        """Slopes, times ``rate``, and behind all noise there is those ``own [k, *shape]`` over more, by one copy."""
        first, r = self.count, slope.shape[1]
        self.count += len(own)
        found = slope.new_empty(1, self.count, *slope.shape[2:])
        if rate is None:
            found[:, :r] = slope
        else:
            torch.mul(slope, rate[:, None], out=found[:, :r])
        found[:, r:first] = 0
        found[:, first:] = own
        return found


def _met(known: Interval, found: Interval) -> Interval:
    """Both intervals at once; an end that overflowed on the way says nothing."""
    (low, high), (least, most) = known, found
    low = torch.where(least.isnan(), low, torch.maximum(low, least))
    return low, torch.where(most.isnan(), high, torch.minimum(high, most))


def _eigenvalue_range(matrices: Tensor, terms: int) -> Interval:
    """Below and above all eigenvalues of symmetric matrices ``[..., n, n]``; infinite where there are none.

    ``terms``: of the sums that the entries of the matrices are.
    """
    low, high = extreme_eigenvalues(matrices)
    # Rounding of the entries, and of eigenvalues by orthogonal steps.
    off = 4 * share(terms + matrices.shape[-1] ** 2, matrices.dtype) * matrices.abs().sum((-1, -2))
    off = off + underflow(matrices.dtype)
    return low - off, high + off
