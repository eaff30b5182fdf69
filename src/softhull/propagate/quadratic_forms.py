"""Forms of second order: every node as a quadratic of the few inputs that move, and of noise that is itself bounded so.

Affine forms bound what they leave out by a number, each at its own worst, which no input is for all of them. Networks
are nearly quadratic in regions of interest, and what is left is of third order: here it is bounded by another quadratic
of the same inputs. Sums of such bounds are bounded once, in the end, and then jointly.

The noise of a form is, in this order: the inputs ``t_1 .. t_n``, their products ``t_i t_j`` for ``i <= j``, and fresh
numbers ``e`` of which ``|e| <= M(t)`` is known, ``M`` being a quadratic, written as a matrix over ``(1, t)``. All of
them are at most one, so that all that holds for affine forms holds here as well. Numbers may come in groups of n: then
they are ``t_1 u, .., t_n u`` of one fresh u, and what a form makes of them is a linear function of t times u.

Third order comes from products: with a linear function ``a`` and ``|u| <= M``, which is at most m,

    |a u| <= max |a| M    and    |a u| <= (s a^2 + m M / s) / 2    for any s > 0,

of which the smaller one is taken. What is small is decided by the mean over the corners, which is the trace of the
matrix, and by the largest value, which counts ``WORST`` of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import singledispatchmethod

import torch
from torch import Tensor

from ..graph.operator import Affine, Interval, Operator
from ..graph.ops.matmul import MatMul
from ..graph.ops.normalize import InverseDeviation, Normalized
from ..graph.ops.product import Product
from ..graph.ops.relu import Relu
from ..graph.ops.softmax import Softmax
from ..graph.rounding import euclidean, largest, ulps, underflow
from .crown import LinearBounds, LinearWalk
from .normalize import walked_mean_square
from .parabolas import (
    EXPONENTIAL,
    LOGARITHM,
    WORST,
    Parabola,
    Parabolas,
    inverse_root,
    rectifier_parabolas,
    sigmoid_parabolas,
)
from .second_order.affine_form import AffineForm, worth_noise
from .second_order.dual import Pursuit, bound
from .second_order.quadratic import DenseQuadratic
from .second_order.rules import NoAffineForms
from .shadow import Shadow, moving_inputs
from .structure import pieces, positions
from .walk import Claim
from .zonotopes import Zonotopes, worth_forms

# Inputs that move of which all products are kept.
_INPUTS = 64
# Factorisations spent on one end of a range, problems worked on at once.
_STEPS, _TOGETHER = 12, 2048
# Rows of logits with more pairs than this are told apart by both ends alone.
_PAIRS = 1 << 13
# What is at least this share of a product gets a group of numbers, the rest one number an entry.
_GROUPED = 0.1
# A row whose form is wider than its box by this factor says less than the box; and the ball of normalised rows says
# more than a box of this half width, on average.
_HOPELESS, _ROUND = 2.0, 1.25
# Rows of logits that move further than this against each other are of no use for parabolas.
_WIDE = 16.0
# Sums of entries that are bounded at once by the forms of a node.
_FEW = 64
# Squares of smaller numbers lose digits, or all of them; so do powers of larger ones, and of their inverses.
_SMALLEST, _LARGEST = 1e-140, 1e90


# Linear functions in some entries times one number, what bounds that, and its largest value.
Group = tuple[Tensor, Tensor, Tensor, Tensor]


def worth_quadratic_forms(bounds: LinearBounds) -> bool:
    """Whether products of inputs are few, and digits many: remainders of third order are small differences."""
    few = 0 < len(moving_inputs(bounds)) <= _INPUTS
    return few and bounds.region.lower.dtype == torch.float64 and worth_forms(bounds)


def output_form(bounds: LinearBounds) -> QuadraticForms:
    """The last forms of one instance: the bounds know what all said; NoAffineForms where there are none."""

    def made() -> QuadraticForms:
        forms = QuadraticForms(bounds)
        try:
            forms.tell_all()
        except BaseException:
            forms.close()
            raise
        return forms

    return bounds.knowledge.find("output", len(bounds.graph.nodes) - 1, made)


@dataclass(frozen=True)
class Rest:
    """Entries ``[E]`` of a form without their centres: ``a . t + t'H t + noise``, with ``|noise| <= N(t)``.

    ``linear [E, n]``, ``square [E, n, n]``, ``noise [E, q, q]`` over ``(1, t)``; ``beside [E, q, q]`` bounds all but
    the linear part, which is at most ``far [E]``, and ``reach [E]`` bounds that; where there is a ``shift [E]``, they
    bound its distance from that.
    """

    linear: Tensor
    square: Tensor
    noise: Tensor
    beside: Tensor
    far: Tensor
    reach: Tensor
    shift: Tensor | None = None

    def __getitem__(self, entries: Tensor) -> Rest:
        assert self.shift is None
        return Rest(
            *(each[entries] for each in (self.linear, self.square, self.noise, self.beside, self.far, self.reach))
        )

    @property
    def mean(self) -> Tensor:
        """The mean of what bounds all but the linear part, over the corners."""
        return trace(self.beside)

    @property
    def outer(self) -> Tensor:
        """The squares of the linear parts, with what they are shifted by, as matrices over ``(1, t)``."""
        found = _outer(self.linear, self.linear)
        if self.shift is not None:
            found[:, 0, 1:] = found[:, 1:, 0] = self.shift[:, None] * self.linear
            found[:, 0, 0] = self.shift.square()
        return found


def trace(matrices: Tensor) -> Tensor:
    """Their traces, which are the means of the quadratics over the corners."""
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


class QuadraticForms(Zonotopes):
    """The forms of the nodes at hand, over the inputs that move, their products, and numbers bounded by quadratics."""

    tensors = 4 * Zonotopes.tensors

    def __init__(self, bounds: LinearBounds) -> None:
        super().__init__(bounds, walked=True)
        n = len(self.moving)
        self.rows, self.columns = torch.triu_indices(n, n, device=self.centre.device)
        # Of fresh numbers: what bounds them [k, q, q] (zero for those in groups), and the sums of its entries [k].
        self._metrics = self.centre.new_zeros(0, n + 1, n + 1)
        self._sizes = self.centre.new_zeros(0)
        self._groups: list[tuple[int, Tensor]] = []  # the first of n numbers t_i u, and what bounds u
        self._balls: list[tuple[int, int]] = []  # numbers from a first to behind a last that lie in the unit ball
        self._rests: dict[int, Rest] = {}
        self.count = n + len(self.rows)
        nodes, structure = self.graph.nodes, bounds.structure
        read = {structure.source(i) for node in nodes if not isinstance(node.operator, Affine) for i in node.inputs}
        self._told = read | {len(nodes) - 1}
        # Sets of nodes that all later ones are made of, since the last rows of probabilities, and those among them that
        # are at hand for that alone.
        self._cuts: list[set[int]] = []
        self._late: set[int] = set()
        self._read = {structure.source(i) for node in nodes if isinstance(node.operator, Softmax) for i in node.inputs}

    def close(self) -> None:
        """Lets go of all forms: bounds know of them and they of bounds, which is not found out for a long time."""
        self._forms.clear()
        self._rests.clear()
        self._cuts.clear()
        self._metrics, self._groups = self._metrics[:0], []

    # What forms say

    def rest(self, index: int) -> Rest:
        """What the form of a node is without its centre, worked out once for all orders of its entries."""
        source = self.bounds.structure.source(index)
        if source not in self._rests:
            if source != index:
                return self._rest(self._forms[index])
            self._rests[index] = self._rest(self._forms[index])
        found = self._rests[source]
        return found if source == index else found[self.bounds.structure.order(index).to(self.centre.device)]

    def add(self, index: int) -> None:
        super().add(index)
        nodes = self.graph.nodes
        if isinstance(nodes[index].operator, Affine):
            return
        cut = {i for later in nodes[index + 1 :] for i in later.inputs if i <= index} or {index}
        self._cuts = [cut] if isinstance(nodes[index].operator, Softmax) else [*self._cuts, cut]
        room = self.tensors * self.bounds.memory
        while self._cuts and sum(self._forms[i].slope.nbytes for i in set.union(*self._cuts)) > room:
            self._cuts = self._cuts[1:]
        for i in self._late - set().union(*self._cuts):
            self._late.remove(i)
            self.forget(i)

    def forget(self, index: int) -> None:
        if any(index in cut for cut in self._cuts):
            self._late.add(index)
            return
        super().forget(index)
        left = {self.bounds.structure.source(i) for i in self._forms}
        self._rests = {i: rest for i, rest in self._rests.items() if i in left}

    def lower(self, index: int, rows: Tensor) -> Tensor:
        """Lower bounds ``[S, 1]`` on ``<rows [S, 1, *shape], node>`` by walks to the input, or to forms on the way.

        Walks know what relaxations are for, and forms where noise comes from: a few of the former and then the latter
        say more than either.
        """
        found = [self.bounds.lower(index, rows)]
        found += [self._least_from(index, rows, cut) for cut in self._cuts if max(cut) <= index]
        return torch.stack(found).amax(0)

    def between(self, index: int, rows: Tensor) -> Interval:
        least, most = super().between(index, rows)
        for cut in self._cuts[:1]:
            if max(cut) <= index:
                found = self._least_from(index, torch.cat((rows, -rows)), cut)
                least, most = torch.maximum(least, found[: len(rows)]), torch.minimum(most, -found[len(rows) :])
        return least, most

    def _least_from(self, index: int, rows: Tensor, sources: set[int]) -> Tensor:
        """The same by walks to nodes whose forms are at hand."""
        walk = LinearWalk(self.bounds)
        walk.sources = sources
        claim = walk.back(Claim.on(index, rows))
        r = max(self._forms[i].slope.shape[1] for i in claim.pending)
        centre, error, size = (rows.new_zeros(len(rows)) for _ in range(3))
        slope = rows.new_zeros(r, len(rows))
        for i, A in claim.pending.items():
            form, C = self._forms[i], A.flatten(2)[:, 0]
            centre, error = centre + C @ form.centre.flatten(), error + C.abs() @ form.error.flatten()
            size = size + C.abs() @ form.size(self.basis).flatten()
            slope[: form.slope.shape[1]] += form.slope.flatten(2)[0] @ C.T
        cost = self.share(sum(A[0].numel() for A in claim.pending.values()) + r + 8)
        error = error * (1 + cost) + cost * size
        found = self._lowest(AffineForm(centre[None], slope[None], error[None]))
        found = centre + found - error - self.share(4) * (size + error + found.abs())
        return _or_nothing(claim.bound + found[:, None] - self.share(2) * (claim.bound.abs() + found[:, None].abs()))

    def interval(self, index: int) -> Interval:
        form, rest = self._forms[index], self.rest(index)
        low, high = (t.reshape(form.centre.shape) for t in self._range(rest))
        off = form.error + self.share(4) * (form.centre.abs() + largest(low, high) + form.error)
        return form.centre + low - off, form.centre + high + off

    def _range(self, rest: Rest) -> Interval:
        """Between which numbers ``[E]`` entries without their centres lie."""
        whole = _whole(rest.linear, rest.square)
        return self._least(whole - rest.noise), -self._least(-whole - rest.noise)

    def _lowest(self, form: AffineForm) -> Tensor:
        """The least values ``[E]`` of entries without their centres, or less."""
        linear, square, noise = self._parts(form)
        return self._least(_whole(linear, square) - noise)

    def _least(self, matrices: Tensor) -> Tensor:
        """Certified lower bounds ``[E]`` on quadratics ``[E, q, q]`` over all inputs."""
        found = matrices[:, 0, 0].clone()
        ball = self.noise.ball(matrices.shape[-1] - 1, matrices.device)
        moves = (matrices[:, 0, 1:] != 0).any(-1) | (matrices[:, 1:, 1:] != 0).flatten(1).any(-1)
        for part in pieces(moves.nonzero()[:, 0], _TOGETHER):
            self.bounds.check_time()
            problem = DenseQuadratic(2 * matrices[part, 0, 1:], matrices[part, 1:, 1:], ball)
            value, _ = bound(problem, Pursuit(_STEPS, found.new_full((len(part),), math.inf)))
            found[part] = found[part] + value - self.share(1) * (found[part].abs() + value.abs())
        return _or_nothing(found)

    def _most(self, matrices: Tensor) -> Tensor:
        """The largest values ``[E]`` of quadratics that are nowhere negative, or more."""
        return (-self._least(-matrices)).clamp(min=0)

    def _rest(self, form: AffineForm) -> Rest:
        """The parts of a form, with what bounds them; rounding is charged to the bounds."""
        linear, square, noise = self._parts(form)
        beside = noise + self._absolute(square)
        return Rest(linear, square, noise, beside, self.noise.radius(linear), self._most(beside))

    def _parts(self, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
        """The linear part, the square, and what bounds the noise."""
        n, slope = len(self.moving), form.slope.flatten(2)[0]
        pairs = slope[n : n + len(self.rows)]
        return slope[:n].T, self._matrices(pairs), self._noise(slope[n + len(self.rows) :])

    def _matrices(self, slope: Tensor) -> Tensor:
        """Slopes ``[pairs or less, E]`` over products of inputs as symmetric matrices ``[E, n, n]``."""
        n = len(self.moving)
        found = slope.new_zeros(slope.shape[1], n, n)
        if len(slope):
            found[:, self.rows, self.columns] = slope.T / 2
        return found + found.mT

    def _pairs(self, square: Tensor) -> Tensor:
        """Matrices ``[E, n, n]`` as slopes ``[pairs, E]`` over products of inputs."""
        both = (square + square.mT)[:, self.rows, self.columns]
        return torch.where(self.rows == self.columns, both / 2, both).T

    def _noise(self, slope: Tensor) -> Tensor:
        """What bounds all fresh numbers in sums with slopes ``[k, E]``, as matrices ``[E, q, q]``."""
        k, (n, E) = len(slope), (len(self.moving), slope.shape[1])
        q = n + 1
        found = slope.new_zeros(E, q, q)
        used = (slope != 0).any(1)
        alone = used & (self._sizes[:k] > 0)
        if bool(alone.any()):
            size = slope[alone].abs().T
            found += (size @ self._metrics[:k][alone].flatten(1)).unflatten(1, (q, q))
            found[:, 0, 0] += self.share(k) * (size @ self._sizes[:k][alone])
        for first, last in self._balls:
            if first < k and bool(used[first:last].any()):
                found[:, 0, 0] += euclidean(slope[first:last], 0) * (1 + self.share(last - first))
        for first, metric in self._groups:
            if first < k and bool(used[first : first + n].any()):
                entries = (slope[first : first + n] != 0).any(0).nonzero()[:, 0]
                linear = slope[first : first + n, entries].T
                one = metric.new_ones(len(entries))
                weights = self._weights(linear.square().sum(-1), self.noise.radius(linear), one, trace(metric) * one)
                found[entries] += _times(weights[0], _outer(linear, linear)) + _times(weights[1], metric)
                sizes = weights[0] * linear.abs().sum(-1).square() + weights[1] * metric.abs().sum()
                found[entries, 0, 0] += self.share(8) * sizes
        return found

    def _weights(self, squares: Tensor, far: Tensor, most: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of ``a^2`` and of M with which their sum is at least ``|a u|``.

        ``|a|`` is at most ``far``, and ``|u|`` at most M, which is at most ``most``. ``squares`` and ``mean`` are the
        means of ``a^2`` and M over the corners.
        """
        squares, mean = squares + WORST * far.square(), mean + WORST * most
        both = (squares * most * mean).sqrt()
        rate = (most * mean / squares).sqrt()
        good = (both < far * mean) & (rate > 0) & (rate < math.inf) & (most / rate < math.inf)
        good &= squares > underflow(squares.dtype) / ulps(1, squares.dtype)  # which has all its digits
        up = 1 + self.share(8)
        return torch.where(good, rate / 2 * up, 0.0), torch.where(good, most / (2 * rate) * up, far * up)

    def _absolute(self, square: Tensor) -> Tensor:
        """Matrices ``[E, q, q]`` whose quadratics are at least the absolute values of those of ``square [E, n, n]``.

        ``sum_i |w_i| (v_i . t)^2`` bounds ``sum_i w_i (v_i . t)^2`` for any v and w; what that misses of the quadratic
        is charged.
        """
        n = square.shape[-1]
        found = square.new_zeros(len(square), n + 1, n + 1)
        for part in pieces((square != 0).flatten(1).any(-1).nonzero()[:, 0], _TOGETHER):
            values, vectors = torch.linalg.eigh(square[part])
            found[part, 1:, 1:] = (vectors * values.abs()[:, None]) @ vectors.mT
            missed = (square[part] - (vectors * values[:, None]) @ vectors.mT).abs().sum((-1, -2))
            size = ((vectors.abs() * values.abs()[:, None]) @ vectors.abs().mT).sum((-1, -2))
            found[part, 0, 0] += (
                missed * (1 + self.share(n * n)) + 4 * self.share(n) * size + n * n * underflow(size.dtype)
            )
        return found

    def _tell(self, index: int) -> None:
        """As for affine forms, for nodes that relaxations are made over; others are left to interval arithmetic."""
        bounds, node = self.bounds, self.graph.nodes[index]
        source = bounds.structure.source(index)
        if not bool(self._forms[index].centre.isfinite().all() & self._forms[index].slope.isfinite().all()):
            raise NoAffineForms(f"forms of {node.label} overflow")
        if source == index and index not in self._told:
            found = bounds.knowledge.met(
                "rough", index, node.operator.interval(*(bounds.rough(i) for i in node.inputs))
            )
            self._shadows[index] = None
            self._know("rough", index, found)
            return
        if source != index and source not in self._told:
            self._shadows.setdefault(source, None)
            return
        super()._tell(index)
        if index in self._read:
            self._tell_apart(index)

    def _know(self, kind: str, index: int, fact: Interval) -> None:
        self.bounds.knowledge.find(kind, index, lambda: fact)

    def _tell_apart(self, index: int) -> None:
        """Differences within rows of logits, where these are few."""
        for after, node in enumerate(self.graph.nodes):
            operator = node.operator
            if not isinstance(operator, Softmax) or self.bounds.structure.source(node.inputs[0]) != index:
                continue
            if node.inputs[0] != index or operator.axis != len(node.shape) - 1 or operator.masked is not None:
                continue
            form, K = self._forms[index], node.shape[-1]
            centre, slope = form.centre.reshape(-1, K), form.slope[0].reshape(form.slope.shape[1], -1, K)
            if centre.numel() * K > _PAIRS:
                continue
            one, other = torch.triu_indices(K, K, 1, device=centre.device)
            apart, off = centre[:, one] - centre[:, other], form.error.reshape(-1, K)
            moved = (slope[..., one] - slope[..., other])[None]
            size = slope.abs().sum(0)
            off = off[:, one] + off[:, other] + self.share(4) * (size[:, one] + size[:, other] + apart.abs())
            low, high = (
                sign * self._lowest(AffineForm(apart[None], sign * moved, off[None])).reshape(apart.shape)
                for sign in (1, -1)
            )
            off = off + self.share(2) * (apart.abs() + largest(low, high))
            least, most = (apart.new_zeros(len(centre), K, K) for _ in range(2))
            least[:, one, other], most[:, one, other] = apart + low - off, apart + high + off
            least[:, other, one], most[:, other, one] = -most[:, one, other], -least[:, one, other]
            self._know("differences", after, (least[None], most[None]))

    def _shadow(self, index: int) -> Shadow | None:
        form, n = self._forms[index], len(self.moving)
        rest = self.rest(index)
        plain = AffineForm(form.centre, form.slope[:, :n], form.error + rest.reach.reshape(form.error.shape))
        kept, self._forms[index] = form, plain
        try:
            found = super()._shadow(index)
            return found and replace(found, closer=lambda lines, C: self._closer(index, lines, C))
        finally:
            self._forms[index] = kept

    def _closer(self, index: int, lines: Tensor, C: Tensor) -> Tensor:
        """Lower ends ``[S, 1, rows]`` of ``C [S, 1, rows or 1, d]`` times entries ``lines [rows, d]``, if they are few.

        By the form of the node, as long as it is at hand.
        """
        S, (rows, d) = len(C), lines.shape
        if index not in self._forms or S * rows > _FEW:
            return C.new_full((S, 1, rows), -math.inf)
        form, C = self._forms[index], C[:, 0].expand(S, rows, d)
        centre = (C * form.centre.flatten()[lines]).sum(-1)
        slope = torch.einsum("srd,krd->ksr", C, form.slope.flatten(2)[0][:, lines])
        size, error = ((C.abs() * t.flatten()[lines]).sum(-1) for t in (form.size(self.basis), form.error))
        cost = self.share(d + form.slope.shape[1] + 8)
        error = error * (1 + cost) + cost * size
        low = self._lowest(AffineForm(centre[None], slope[None], error[None])).reshape(centre.shape)
        return _or_nothing(centre + low - error - self.share(4) * (size + error + low.abs()))[:, None]

    # What rules are made of

    def _curved(self, rest: Rest, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """``k D^2`` for entries D without their centres and some k between ``low`` and ``high``, neither negative.

        As the quadratic in the middle and how far from it that may be, both ``[E, q, q]``. For a linear a, all else u,
        and any s up to one, ``(1 - s) a^2 - (1/s - 1) u^2 <= (a + u)^2 <= (1 + s) a^2 + (1 + 1/s) u^2``.
        """
        squares = rest.linear.square().sum(-1) + WORST * rest.far.square()
        other = rest.reach * (rest.mean + WORST * rest.reach)
        rate = (other / squares).sqrt().clamp(1e-9, 1.0)
        rate = torch.where(rate.isnan(), 1.0, rate)
        none = rest.reach == 0
        by_u = torch.where(none, 0.0, 1 / rate)
        rate = torch.where(none, 0.0, rate)
        outer, square = rest.outer, _times(rest.reach * (1 + self.share(4)), rest.beside)
        above = _times(high * (1 + rate), outer) + _times(high * torch.where(none, 0.0, 1 + by_u), square)
        below = _times(low * (1 - rate), outer) - _times(low * torch.where(none, 0.0, by_u - 1), square)
        middle, half = (above + below) / 2, (above - below) / 2
        half[:, 0, 0] += self.share(16) * (above.abs().sum((-1, -2)) + below.abs().sum((-1, -2))) + underflow(
            half.dtype
        )
        return middle, half

    def _through(
        self, parabolas: Parabolas, form: AffineForm, rest: Rest, low: Tensor, high: Tensor
    ) -> tuple[AffineForm, Tensor]:
        """A curve of a form whose entries lie between ``low`` and ``high``, as ``_between`` has it."""
        squares = rest.linear.square().sum(-1) + trace(rest.noise)
        centre, least, most = (t.flatten() for t in (form.centre, low, high))
        return self._between(
            form, rest, *parabolas(centre, least, most, squares), largest(low - form.centre, high - form.centre)
        )

    def _between(
        self, form: AffineForm, rest: Rest, above: Parabola, below: Parabola, far: Tensor
    ) -> tuple[AffineForm, Tensor]:
        """What lies between two parabolas of the entries of a form, which are at most ``far`` from their centres.

        As the form in the middle, and what bounds how far from it that may be ``[E, q, q]``.
        """
        (over, more), (under, less) = (self._bent(rest, each.bend) for each in (above, below))
        over, under = over + more, under - less
        tilt, rate = (above.slope - below.slope) / 2, (above.slope + below.slope) / 2
        half = (over - under) / 2 + _times(tilt, _whole(rest.linear, rest.square)) + _times(tilt.abs(), rest.noise)
        half[:, 0, 0] += (above.value - below.value) / 2
        off, wide = form.error.flatten(), far.flatten()
        sizes = (
            above.value.abs() + below.value.abs() + (above.slope.abs() + below.slope.abs()) * (rest.far + rest.reach)
        )
        sizes = sizes + over.abs().sum((-1, -2)) + under.abs().sum((-1, -2)) + half.abs().sum((-1, -2))
        # The form is off by its error, and so are both parabolas.
        bends = above.bend.abs() + below.bend.abs()
        paid = off * (above.slope.abs() + below.slope.abs() + bends * (2 * wide + off))
        half[:, 0, 0] += (paid + self.share(16) * (sizes + rate.abs() * form.size(self.basis).flatten())) * (
            1 + self.share(8)
        )
        shape = form.centre.shape
        middle = AffineForm(
            ((above.value + below.value) / 2).reshape(shape),
            rate.reshape(shape)[:, None] * form.slope,
            torch.zeros_like(form.error),
        )
        return self._plus(middle, (over + under) / 2), half

    def _bent(self, rest: Rest, bend: Tensor) -> tuple[Tensor, Tensor]:
        """``bend D^2`` for entries D without their centres, as ``_curved`` has it."""
        middle, half = self._curved(rest, bend.abs(), bend.abs())
        return _times(bend.sign(), middle), half

    def _plus(self, form: AffineForm, matrices: Tensor) -> AffineForm:
        """A form plus quadratics ``[E, q, q]`` of the inputs."""
        shape = form.centre.shape
        own = torch.cat((matrices[:, 0, 1:].T + matrices[:, 1:, 0].T, self._pairs(matrices[:, 1:, 1:])))
        slope = form.padded(max(form.slope.shape[1], len(own))).clone()
        slope[0, : len(own)] += own.unflatten(1, shape[1:])
        centre = form.centre + matrices[:, 0, 0].reshape(shape)
        size = form.size(self.basis) + matrices.abs().sum((-1, -2)).reshape(shape)
        return AffineForm(centre, slope, form.error + self.share(4) * size)

    def _with_numbers(self, form: AffineForm, matrices: Tensor) -> AffineForm:
        """A form plus one fresh number for every entry, which the quadratics ``[E, q, q]`` bound.

        It takes the error in, which would grow with every sum of absolute values that it goes through.
        """
        matrices = matrices.clone()
        matrices[:, 0, 0] += self.share(4) * matrices.abs().sum((-1, -2))
        most, error = self._most(matrices), form.error.flatten() * (1 + self.share(2))
        noisy = worth_noise(most, form.centre.flatten())
        most = (most + error) * (1 + self.share(1))
        matrices[:, 0, 0] += error
        if not bool(most.isfinite().all()):
            raise NoAffineForms("quadratic forms are unbounded")
        entries = noisy.nonzero()[:, 0]
        error = torch.where(noisy, 0.0, most).reshape(form.error.shape)
        own = form.slope.new_zeros(len(entries), len(most))
        own[positions(entries), entries] = most[entries]
        self._keep(matrices[entries] / most[entries, None, None])
        return AffineForm(form.centre, self._with_rows(form.slope, own.unflatten(1, form.centre.shape[1:])), error)

    def _keep(self, metrics: Tensor) -> None:
        """What bounds further numbers, each at most one; rounding of quotients is charged."""
        sizes = metrics.abs().sum((-1, -2))
        metrics = metrics.clone()
        metrics[:, 0, 0] += self.share(4) * sizes
        held = metrics.element_size() * (len(self._metrics) + len(metrics)) * metrics[:1].numel()
        if held > self.tensors * self.bounds.memory:
            raise NoAffineForms("what bounds the noise of quadratic forms does not fit the memory")
        self._metrics = torch.cat((self._metrics, metrics))
        self._sizes = torch.cat((self._sizes, sizes * (1 + self.share(8))))

    def _with_groups(self, form: AffineForm, groups: list[Group]) -> AffineForm:
        """A form plus, for every group, linear functions ``[entries, n]`` of some entries times one number."""
        if not groups:
            return form
        n = len(self.moving)
        own = form.slope.new_zeros(len(groups) * n, form.centre.numel())
        for k, (entries, linear, matrix, most) in enumerate(groups):
            self._groups.append((len(self._metrics) + k * n, matrix / most * (1 + self.share(4))))
            own[k * n : (k + 1) * n, entries] = linear.T * most * (1 + self.share(4))
        self._keep(self._metrics.new_zeros(len(own), *self._metrics.shape[1:]))
        error = form.error + self.share(4) * own.abs().sum(0).reshape(form.error.shape)
        return AffineForm(form.centre, self._with_rows(form.slope, own.unflatten(1, form.centre.shape[1:])), error)

    def _with_ball(self, form: AffineForm, entries: Tensor) -> AffineForm:
        """A form whose ``entries`` are anything in the ball around zero that normalised rows do not leave."""
        d, centre, slope = len(entries), form.centre.clone(), form.slope.clone()
        centre.view(-1)[entries], slope.flatten(2)[..., entries] = 0.0, 0.0
        error = form.error.clone()
        error.view(-1)[entries] = 0.0
        self._balls.append((len(self._metrics), len(self._metrics) + d))
        self._keep(self._metrics.new_zeros(d, *self._metrics.shape[1:]))
        own = slope.new_zeros(d, centre.numel())
        own[positions(entries), entries] = math.sqrt(d) * (1 + self.share(4))
        return AffineForm(centre, self._with_rows(slope, own.unflatten(1, centre.shape[1:])), error)

    # Rules

    @singledispatchmethod
    def rule(self, operator: Operator, index: int) -> AffineForm:
        """The form of a node from those of its inputs; by the rules of affine forms where there is no better one."""
        return super().rule(operator, index)

    def _with_noise(
        self, centre: Tensor, slope: Tensor, radius: Tensor, error: Tensor, rate: Tensor | None = None
    ) -> AffineForm:
        slope = slope if rate is None else slope * rate[:, None]
        constant = self._constants((radius + error).flatten() * (1 + self.share(2)))
        return self._with_numbers(AffineForm(centre, slope, torch.zeros_like(error)), constant)

    def _constants(self, values: Tensor) -> Tensor:
        """Numbers ``[E]`` as quadratics ``[E, q, q]``."""
        q = len(self.moving) + 1
        found = values.new_zeros(len(values), q, q)
        found[:, 0, 0] = values
        return found

    @rule.register
    def _(self, operator: Relu, index: int) -> AffineForm:
        """Between parabolas; those of one sign are exact."""
        (before,) = self.graph.nodes[index].inputs
        form, rest, (lower, upper) = self.form(before), self.rest(before), self.bounds.interval(before)
        bends = ~((lower >= 0) | (upper <= 0))
        if bool((bends & (upper - lower < _SMALLEST)).any()):
            raise NoAffineForms("rectifiers of numbers whose squares vanish")
        rate = torch.where(lower >= 0, 1.0, 0.0).to(lower.dtype)
        if not bool(bends.any()):
            return AffineForm(rate * form.centre, rate[:, None] * form.slope, rate * form.error)
        ends = (torch.where(bends, t, one) for t, one in ((lower, -1.0), (upper, 1.0)))
        found, half = self._through(rectifier_parabolas, form, rest, *ends)
        slope = torch.where(
            bends[:, None], found.slope, AffineForm(*(rate[:, None] * form.slope,) * 3).padded(found.slope.shape[1])
        )
        form = AffineForm(
            torch.where(bends, found.centre, rate * form.centre),
            slope,
            torch.where(bends, found.error, rate * form.error),
        )
        return self._with_numbers(form, half.masked_fill(~bends.flatten()[:, None, None], 0.0))

    @rule.register
    def _(self, operator: MatMul, index: int) -> AffineForm:
        left, right = self.graph.nodes[index].inputs
        masked = self.bounds.structure.masked(left) is not None or self.bounds.structure.masked(right) is not None
        if masked or len(operator.left) < 2 or operator.left[:-2] != operator.right[:-2]:
            return super().rule(operator, index)
        x, y = self.form(left), self.form(right)
        zero = torch.zeros_like(operator.value(x.centre, y.centre))
        centre, slope, _, error = self._tangent(operator, x, y, (zero, zero))
        mixes = self.bounds.structure.rows_are_softmax(left, len(operator.left) - 1)
        if mixes:
            # Rows sum to one: what is mixed counts from its mean.
            mean, total = operator.value(x.centre, y.centre), x.slope.sum(-1)
            slope[:, : total.shape[1]] -= total[..., None] * mean[:, None]
            centre = centre + mean * (1 - x.centre.sum(-1, keepdim=True))
            k = x.centre.shape[-1]
            size = (x.error + self.share(k + 4) * (1 + x.size(self.basis))).sum(-1, keepdim=True)
            error = error + mean.abs() * (size + self.share(4)) * (1 + self.share(k)) + self.share(4) * centre.abs()
        form = AffineForm(centre, slope, error)
        groups, (rows, k), width = math.prod(operator.left[:-2]), operator.left[-2:], operator.right[-1]
        one, other = self.rest(left), self.rest(right)
        columns = torch.arange(groups * k * width, device=centre.device).reshape(groups, k, width).mT
        square, beside, grouped = [], [], list[Group]()
        for group in range(groups):
            a = one[torch.arange(group * rows * k, (group + 1) * rows * k, device=centre.device)]
            b = other[columns[group].flatten()]
            found = self._sums(a, b, (rows, width, k), mixes)
            square.append(found[0])
            beside.append(found[1])
            grouped += [(group * rows * width + entries, a, u, m) for entries, a, u, m in found[2]]
        form = self._plus(form, _squares(torch.cat(square)))
        return self._with_numbers(self._with_groups(form, grouped), torch.cat(beside))

    def _sums(self, x: Rest, y: Rest, sizes: tuple[int, int, int], grouped: bool) -> tuple[Tensor, Tensor, list[Group]]:
        """Sums over k of products of entries ``x [rows k]`` and ``y [columns k]`` without their centres.

        Their squares ``[rows columns, n, n]``, what bounds all else ``[.., q, q]``, and what is to come in groups.
        """
        (rows, columns, k), q = sizes, x.beside.shape[-1]
        lines = x.linear.reshape(rows, k, -1), y.linear.reshape(columns, k, -1)
        square = torch.einsum("ikm,jkn->ijmn", *lines)
        square = (square + square.mT) / 2
        ends = [
            {name: getattr(rest, name).reshape(shape) for name in ("far", "reach", "mean")}
            | {"squares": rest.linear.square().sum(-1).reshape(shape)}
            for rest, shape in ((x, (rows, 1, k)), (y, (1, columns, k)))
        ]
        one, other = ends

        def weights(a: dict[str, Tensor], u: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            parts = torch.broadcast_tensors(a["squares"], a["far"], u["reach"], u["mean"])
            return self._weights(*parts)

        on_xx, on_y = weights(one, other)
        on_yy, on_x = weights(other, one)
        by_x = one["reach"] * other["mean"] < other["reach"] * one["mean"]
        on_y = on_y + torch.where(by_x, one["reach"], 0.0)
        rest_x = torch.where(by_x, 0.0, other["reach"])
        groups: list[Group] = []
        if grouped:
            # What is mixed times one probability, [rows, k].
            dear = (on_yy * other["squares"] + on_x * one["mean"]).sum(1)
            for i, m in (dear > _GROUPED * dear.sum(1, keepdim=True)).nonzero().tolist():
                entry = i * k + m
                if float(x.reach[entry]) > 0:
                    entries = i * columns + torch.arange(columns, device=dear.device)
                    groups.append((entries, lines[1][:, m], x.beside[entry], x.reach[entry]))
                    on_yy[i, :, m] = on_x[i, :, m] = 0.0
        on_x = on_x + rest_x
        total = x.linear.new_zeros(rows, columns, q, q)
        size = total.new_zeros(rows, columns)
        for weight, matrices, side in (
            (on_xx, x.outer, "i"),
            (on_x, x.beside, "i"),
            (on_yy, y.outer, "j"),
            (on_y, y.beside, "j"),
        ):
            matrices = matrices.unflatten(0, (-1, k))
            size += torch.einsum(f"ijk,{side}k->ij", weight, matrices.abs().sum((-1, -2)))
            total += torch.einsum(f"ijk,{side}kpq->ijpq", weight, matrices)
        squares = torch.einsum("ik,jk->ij", *(t.abs().sum(-1) for t in lines))
        total[..., 0, 0] += self.share(2 * k + 16) * (size + squares) + k * q * q * underflow(size.dtype)
        return square.flatten(0, 1), total.flatten(0, 1), groups

    @rule.register
    def _(self, operator: InverseDeviation, index: int) -> AffineForm:
        """The mean square is a quadratic of the noise, and its root another one of that."""
        (before,) = self.graph.nodes[index].inputs
        form, rest, dims = self.form(before), self.rest(before), operator.dims
        d = operator.count(form.centre)
        one = torch.ones_like(rest.far)
        over, half = (self._along(t, form, dims) / d for t in self._curved(rest, one, one))
        centre = form.centre.square().mean(dims, keepdim=True)
        slope = (2 * form.centre[:, None] * form.slope).mean(tuple(dim + 1 for dim in dims), keepdim=True)
        sizes = form.size(self.basis)
        cost = self.share(4 * d + form.slope.shape[1] + 8)
        error = ((2 * sizes + form.error) * form.error).mean(dims, keepdim=True) * (1 + cost)
        error = error + cost * sizes.square().mean(dims, keepdim=True) + d * underflow(sizes.dtype)
        half[:, 0, 0] += cost * (over.abs().sum((-1, -2)) + half.abs().sum((-1, -2)))
        mean = self._with_numbers(self._plus(AffineForm(centre, slope, error), over), half)
        rest = self._rest(mean)
        low, high = (t.reshape(mean.centre.shape) for t in self._range(rest))
        off = mean.error + self.share(4) * (mean.centre.abs() + largest(low, high))
        low, high = mean.centre + low - off, mean.centre + high + off
        least, most = walked_mean_square(operator, self.bounds, index, self.lower)
        low, high = torch.maximum(low, least), torch.minimum(high, most)
        low, high = torch.minimum(low, high).clamp(min=0), torch.maximum(low, high).clamp(min=0)
        self._know("mean square", index, (low, high))
        if bool((mean.centre < 0).any()):  # by rounding
            raise NoAffineForms("a mean square is all but zero")
        if bool(((low + operator.epsilon < 1 / _LARGEST) | (high > _LARGEST)).any()):
            raise NoAffineForms("powers of a mean square vanish or overflow")
        return self._with_numbers(
            *self._through(inverse_root(operator.epsilon).parabolas, mean, self._centred(rest), low, high)
        )

    def _centred(self, rest: Rest) -> Rest:
        """The same with what is beside the linear part counted from half of what ``c |t|^2`` may be.

        c is such that eigenvalues are close to it: squares of one sign are then half as far.
        """
        n = rest.square.shape[-1]
        top = n if self.noise.norm > 2 else 1  # |t|^2 is at most that
        values = torch.linalg.eigvalsh(rest.square)
        ways = torch.cat((values, torch.zeros_like(values[:, :1])), 1)
        cost = (values[:, None] - ways[..., None]).abs().sum(-1) + ways.abs() * n / 2
        c = ways.gather(1, cost.argmin(1)[:, None])[:, 0]
        left = rest.square - _times(c, torch.eye(n, dtype=c.dtype, device=c.device))
        beside = rest.noise + self._absolute(left)
        size = rest.square.diagonal(dim1=-2, dim2=-1).abs().sum(-1) + n * c.abs()
        beside[:, 0, 0] += c.abs() * top / 2 + self.share(8) * size
        return replace(rest, beside=beside, reach=self._most(beside), shift=c * top / 2)

    def _along(self, matrices: Tensor, form: AffineForm, dims: tuple[int, ...]) -> Tensor:
        """Quadratics of the entries of a form, added up along some dimensions."""
        return (
            matrices.unflatten(0, form.centre.shape[1:]).sum([dim - 1 for dim in dims]).reshape(-1, *matrices.shape[1:])
        )

    @rule.register
    def _(self, operator: Normalized, index: int) -> AffineForm:
        """A product with one number for a row; a constant where the box of a row is much narrower."""
        before, scale = self.graph.nodes[index].inputs
        z, r = self.form(before), self.form(scale)
        x, y = self.rest(before), self.rest(scale)
        shape = z.centre.shape
        form, inner, outer, row = self._scaled(z, r, x, y)
        least, most = operator.interval(*(self.bounds.rough(i) for i in self.graph.nodes[index].inputs))
        half = (most - least) / 2 + self.share(4) * largest(least, most)
        radius = self._rest(form)
        whole = (radius.far + radius.reach + trace(outer + inner) + form.error.flatten()).reshape(shape)
        dims = tuple(axis + 1 for axis in operator.axes)
        flat = ~(whole.mean(dims, keepdim=True) <= _HOPELESS * half.mean(dims, keepdim=True).clamp(max=_ROUND)).expand(
            shape
        )
        still = flat.flatten()
        form = AffineForm(
            torch.where(flat, least + (most - least) / 2, form.centre),
            torch.where(flat[:, None], 0.0, form.slope),
            torch.where(flat, 0.0, form.error),
        )
        inner = torch.where(still[:, None, None], self._constants(half.flatten()), inner)
        outer = outer.masked_fill(still[:, None, None], 0.0)
        for k in row[still].unique().tolist():
            entries = (row == k).nonzero()[:, 0]
            if float(half.flatten()[entries].mean()) > _ROUND:
                form = self._with_ball(form, entries)
                inner[entries] = 0.0
        dear = trace(outer).new_zeros(r.centre.numel()).index_add(0, row, trace(outer))
        groups: list[Group] = []
        for k in ((dear > _GROUPED * dear.sum()) & (y.reach > 0)).nonzero()[:, 0].tolist():
            entries = (row == k).nonzero()[:, 0]
            groups.append((entries, x.linear[entries], y.beside[k], y.reach[k]))
            outer[entries] = 0.0
        form = self._with_groups(form, groups)
        return self._with_numbers(form, inner + outer)

    def _scaled(self, z: AffineForm, r: AffineForm, x: Rest, y: Rest) -> tuple[AffineForm, Tensor, Tensor, Tensor]:
        """Rows z, each times one number r, from forms without their centres x and y."""
        zero, n = torch.zeros_like(z.centre), len(self.moving)
        form = AffineForm(
            *(
                t
                for i, t in enumerate(
                    self._tangent(Product(z.centre.shape[1:], r.centre.shape[1:]), z, r, (zero, zero))
                )
                if i != 2
            )
        )
        row = (
            torch.arange(r.centre.numel(), device=zero.device)
            .reshape(r.centre.shape[1:])
            .expand(z.centre.shape[1:])
            .flatten()
        )
        wide = y[row]
        form = self._plus(form, _outer(x.linear, wide.linear))
        squares = [rest.linear.square().sum(-1) for rest in (x, wide)]
        on_xx, on_y = self._weights(squares[0], x.far, wide.reach, wide.mean)
        on_yy, on_x = self._weights(squares[1], wide.far, x.reach, x.mean)
        by_x = x.reach * wide.mean < wide.reach * x.mean
        outer = _times(on_xx, x.outer) + _times(on_y, wide.beside)
        inner = _times(on_yy, wide.outer) + _times(on_x, x.beside)
        inner = inner + torch.where(by_x[:, None, None], _times(x.reach, wide.beside), _times(wide.reach, x.beside))
        for part in (outer, inner):
            part[:, 0, 0] += 2 * self.share(16) * part.abs().sum((-1, -2)) + n * underflow(zero.dtype)
        inner[:, 0, 0] += self.share(16) * x.linear.abs().sum(-1) * wide.linear.abs().sum(-1)
        return form, inner, outer, row

    @rule.register
    def _(self, operator: Softmax, index: int) -> AffineForm:
        """By parabolas, or by planes in rows that are wide or better so."""
        (before,) = self.graph.nodes[index].inputs
        form, K = self.form(before), self.graph.nodes[index].shape[-1]
        if operator.masked is not None or operator.axis != len(form.centre.shape) - 2 or K < 2:
            return super().rule(operator, index)
        value, slope, radius, _ = self._probabilities(operator, index)
        centre, r = value.reshape(1, -1, K).clone(), form.slope.shape[1]
        at = AffineForm(
            form.centre.reshape(centre.shape), form.slope.reshape(1, r, -1, K), form.error.reshape(centre.shape)
        )
        known = self.bounds.differences(index)
        assert known is not None  # they are told with the logits or with the planes
        narrow = ((known[1][0] - at.centre[0, ..., None] + at.centre[0, :, None]).flatten(1).amax(1) < _WIDE).nonzero()[
            :, 0
        ]
        metrics = self._constants(radius.flatten()).unflatten(0, (-1, K))
        best = AffineForm(centre, slope.reshape(1, r, -1, K), torch.zeros_like(centre))
        logits, cost = _rows(at, narrow), self._burden(_rows(best, narrow), metrics[narrow])
        for found, beside in (self._exponentials(logits)[:2], self._set_apart(logits)) if len(narrow) else ():
            burden = self._burden(found, beside)
            better = burden < cost
            cost, chosen = torch.where(better, burden, cost), narrow[better]
            slope = best.padded(max(best.slope.shape[1], found.slope.shape[1])).clone()
            slope[:, :, chosen] = found.padded(slope.shape[1])[:, :, better]
            best = AffineForm(best.centre.clone(), slope, best.error.clone())
            best.centre[:, chosen], best.error[:, chosen] = found.centre[:, better], found.error[:, better]
            metrics[chosen] = beside[better]
        whole = form.centre.shape
        best = AffineForm(best.centre.reshape(whole), best.slope.reshape(1, -1, *whole[1:]), best.error.reshape(whole))
        return self._with_numbers(best, metrics.flatten(0, 1))

    def _burden(self, form: AffineForm, matrices: Tensor) -> Tensor:
        """How much noise there is in rows ``[1, rows, K]`` that ``matrices`` are still to be added to, as numbers."""
        noise = self._noise(form.slope.flatten(2)[0, len(self.moving) + len(self.rows) :]) + matrices.flatten(0, 1)
        return (trace(noise) + WORST * self._most(noise)).reshape(form.centre.shape[1:]).sum(-1) + form.error[0].sum(-1)

    def _exponentials(self, logits: AffineForm) -> tuple[AffineForm, Tensor, AffineForm]:
        """``p_j = p_j(centre) exp(X_j - L)`` for rows ``[1, rows, K]``, and what bounds all else ``[rows, K, q, q]``.

        X are deviations from their mean, L is the logarithm of the mean of their exponentials: one number for a row,
        which cancels where rows mix values. It comes last.
        """
        at, r = logits.centre, logits.slope.shape[1]
        K, p = at.shape[-1], at.softmax(-1)
        cost = self.share(2 * K + 16)
        # The mean by the weights as they are rounded: any would do, and what they are off by is charged.
        moved = logits.slope - (p[:, None] * logits.slope).sum(-1, keepdim=True)
        size = logits.spread(self.basis)
        error = logits.error + logits.error.amax(-1, keepdim=True) * (1 + cost)
        error = error + cost * (size + size.amax(-1, keepdim=True))
        mean = self._log_mean(
            AffineForm(torch.zeros_like(at), moved, error), p, cost * (size + error).sum(-1).flatten()
        )
        slope = -mean.slope[..., None].expand(-1, -1, -1, K).clone()
        slope[:, :r] += moved
        error = error + mean.error[..., None] + self.share(4) * (size + 1 + mean.size(self.basis)[..., None])
        exponents = AffineForm(-mean.centre[..., None].expand(at.shape), slope, error)
        rest = self._rest(exponents)
        low, high = (exponents.centre + t.reshape(at.shape) for t in self._range(rest))
        far = cost * (1 + largest(low, high))
        # No probability exceeds one.
        high = torch.minimum(high + error + far, -p.log() + cost * (1 + p.log().abs()))
        low = torch.minimum(low - error - far, high)
        found, half = self._through(EXPONENTIAL.parabolas, exponents, rest, low, high)
        # Exponents of probabilities are rounded, and so is their product.
        off = self.share(4) * (at.amax(-1, keepdim=True) - at) + cost
        error = found.error + off * found.size(self.basis)
        half = _times((p * (1 + cost + off)).flatten(), half)
        return (
            AffineForm(p * found.centre, p[:, None] * found.slope, p * error * (1 + cost) + underflow(p.dtype)),
            half.unflatten(0, (-1, K)),
            mean,
        )

    def _set_apart(self, logits: AffineForm) -> tuple[AffineForm, Tensor]:
        """The same with the column of a row that moves most as a sigmoid, and what it leaves times the softmax of the
        others."""
        at, K = logits.centre, logits.centre.shape[-1]
        cost = self.share(2 * K + 16)
        one = (logits.slope - (at.softmax(-1)[:, None] * logits.slope).sum(-1, keepdim=True)).abs().sum(1)[0].argmax(-1)
        others = torch.arange(K - 1, device=one.device).expand(len(one), -1)
        others = others + (others >= one[:, None])
        rows = positions(one)[:, None]
        own, left = (
            AffineForm(*(t[..., rows, columns] for t in (at, logits.slope, logits.error)))
            for columns in (one[:, None], others)
        )
        shares, beside, mean = self._exponentials(left)
        shares = self._with_numbers(shares, beside.flatten(0, 1))
        weights = left.centre.softmax(-1)
        slope = -mean.slope[..., None]
        slope[:, : own.slope.shape[1]] += own.slope - (weights[:, None] * left.slope).sum(-1, keepdim=True)
        size = logits.size(self.basis)
        error = own.error + (left.error.amax(-1) * (1 + cost) + mean.error)[..., None]
        error = error + cost * (size.sum(-1) + mean.size(self.basis) + 1)[..., None]
        apart = AffineForm(own.centre - (left.centre.logsumexp(-1) + mean.centre)[..., None], slope, error)
        rest = self._rest(apart)
        low, high = (apart.centre + t.reshape(apart.centre.shape) for t in self._range(rest))
        off = error + cost * (1 + largest(low, high))
        share = self._with_numbers(*self._through(sigmoid_parabolas, apart, rest, low - off, high + off))
        less = AffineForm(1 - share.centre, -share.slope, share.error + self.share(2))
        found, inner, outer, _ = self._scaled(shares, less, self._rest(shares), self._rest(less))
        slope = at.new_zeros(1, found.slope.shape[1], *at.shape[1:])
        whole = AffineForm(torch.zeros_like(at), slope, torch.zeros_like(at))
        for part, columns in ((found, others), (share, one[:, None])):
            for to, of in (
                (whole.centre, part.centre),
                (whole.error, part.error),
                (whole.slope, part.padded(slope.shape[1])),
            ):
                to[..., rows, columns] = of
        matrices = inner.new_zeros(*at.shape[1:], *inner.shape[1:])
        matrices[rows, others] = (inner + outer).unflatten(0, others.shape)
        return whole, matrices

    def _log_mean(self, deviation: AffineForm, p: Tensor, off: Tensor) -> AffineForm:
        """``log(sum_j p_j exp(X_j))`` of deviations ``[1, rows, K]`` with means of at most ``off [rows]``.

        ``sum_j p_j exp(X_j) = 1 + U`` with ``U = sum_j p_j k_j X_j^2``, up to the mean; the logarithm lies between U
        and its chord.
        """
        rest, K, cost = self._rest(deviation), p.shape[-1], self.share(2 * p.shape[-1] + 16)
        low, high = (t.reshape(p.shape) for t in self._range(rest))
        low, high = (end + sign * (deviation.error + cost * end.abs()) for end, sign in zip((low, high), (-1, 1)))
        each, half = self._through(EXPONENTIAL.parabolas, deviation, rest, low, high)
        size = (p * (1 + each.size(self.basis))).sum(-1)
        error = ((p * each.error).sum(-1) + cost * size) * (1 + cost)
        mean = AffineForm((p * (each.centre - 1)).sum(-1), (p[:, None] * each.slope).sum(-1), error)
        half = _times(p.flatten() * (1 + cost), half).unflatten(0, (-1, K))
        paid = cost * half.abs().sum((1, 2, 3))
        half = half.sum(1)
        half[:, 0, 0] += paid
        mean = self._with_numbers(mean, half)
        rest = self._rest(mean)
        low, high = (mean.centre + t.reshape(mean.centre.shape) for t in self._range(rest))
        paid = mean.error + cost * (1 + largest(low, high))
        # By Jensen's inequality it is not negative, up to the mean and to what the weights add up to.
        low, high = torch.maximum(low - paid, -2 * off.reshape(low.shape) - cost), torch.maximum(high + paid, paid)
        return self._with_numbers(*self._through(LOGARITHM.parabolas, mean, rest, low, high))


def _or_nothing(least: Tensor) -> Tensor:
    """Lower bounds, which are none where they are not numbers."""
    return torch.where(least < math.inf, least, -math.inf)


def _times(weights: Tensor, matrices: Tensor) -> Tensor:
    """Matrices, each times a number."""
    return weights[..., None, None] * matrices


def _rows(form: AffineForm, rows: Tensor) -> AffineForm:
    """Some rows of a form ``[1, rows, K]``."""
    return AffineForm(form.centre[:, rows], form.slope[:, :, rows], form.error[:, rows])


def _squares(square: Tensor) -> Tensor:
    """Quadratics ``[E, n, n]`` of t as such over ``(1, t)``."""
    return torch.nn.functional.pad(square, (1, 0, 1, 0))


def _whole(linear: Tensor, square: Tensor) -> Tensor:
    """``linear . t + t' square t`` as matrices ``[E, q, q]`` over ``(1, t)``."""
    found = _squares(square)
    found[:, 0, 1:] = found[:, 1:, 0] = linear / 2
    return found


def _outer(one: Tensor, other: Tensor) -> Tensor:
    """Products of two linear functions ``[E, n]`` as matrices ``[E, q, q]`` over ``(1, t)``."""
    square = one[..., :, None] * other[..., None, :]
    return _squares((square + square.mT) / 2)
