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

of which the one with the smaller mean over the corners is taken: that of the matrix is its trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatchmethod

import torch
from torch import Tensor

from ..graph.operator import Affine, Interval, Operator
from ..graph.ops.matmul import MatMul
from ..graph.ops.normalize import InverseDeviation, Normalized
from ..graph.ops.relu import Relu
from ..graph.ops.softmax import Softmax
from ..graph.rounding import euclidean, largest, ulps, underflow
from .crown import LinearBounds
from .second_order.affine_form import AffineForm, worth_noise
from .second_order.dual import Pursuit, bound
from .second_order.quadratic import DenseQuadratic
from .second_order.rules import NoAffineForms
from .shadow import Shadow, moving_inputs
from .structure import pieces, positions
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
# Squares of smaller numbers lose digits, or all of them.
_SMALLEST = 1e-140
# Touching points of parabolas above a rectifier that are tried, between 0 and the farther end.
_TOUCHING = 33


# Linear functions in some entries times one number, what bounds that, and its largest value.
Group = tuple[Tensor, Tensor, Tensor, Tensor]


def worth_quadratic_forms(bounds: LinearBounds) -> bool:
    """Whether products of inputs are few, and digits many: remainders of third order are small differences."""
    few = 0 < len(moving_inputs(bounds)) <= _INPUTS
    return few and bounds.region.lower.dtype == torch.float64 and worth_forms(bounds)


def known_by_quadratic_forms(bounds: LinearBounds) -> LinearBounds:
    """The same bounds of one instance, which know all that quadratic forms say; NoAffineForms where there are none."""
    output_form(bounds)
    return bounds


def output_form(bounds: LinearBounds) -> QuadraticForms:
    """The forms of the output alone, which other nodes were told of."""

    def made() -> QuadraticForms:
        forms = QuadraticForms(bounds)
        forms.tell_all()
        return forms

    return bounds.knowledge.find("output", len(bounds.graph.nodes) - 1, made)


@dataclass(frozen=True)
class Rest:
    """Entries ``[E]`` of a form without their centres: ``a . t + t'H t + noise``, with ``|noise| <= N(t)``.

    ``linear [E, n]``, ``square [E, n, n]``, ``noise [E, q, q]`` over ``(1, t)``; ``beside [E, q, q]`` bounds all but
    the linear part, which is at most ``far [E]``, and ``reach [E]`` bounds that.
    """

    linear: Tensor
    square: Tensor
    noise: Tensor
    beside: Tensor
    far: Tensor
    reach: Tensor

    def __getitem__(self, entries: Tensor) -> Rest:
        return Rest(*(getattr(self, name)[entries] for name in self.__dataclass_fields__))

    @property
    def mean(self) -> Tensor:
        """The mean of what bounds all but the linear part, over the corners."""
        return trace(self.beside)

    @property
    def outer(self) -> Tensor:
        """The squares of the linear parts, as matrices over ``(1, t)``."""
        return _outer(self.linear, self.linear)


def trace(matrices: Tensor) -> Tensor:
    """Their traces, which are the means of the quadratics over the corners."""
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


class QuadraticForms(Zonotopes):
    """The forms of the nodes at hand, over the inputs that move, their products, and numbers bounded by quadratics."""

    tensors = 4 * Zonotopes.tensors

    def __init__(self, bounds: LinearBounds) -> None:
        super().__init__(bounds)
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
        self._told = (
            read | {i for i, node in enumerate(nodes) if not isinstance(node.operator, Affine)} | {len(nodes) - 1}
        )
        self._read = {structure.source(i) for node in nodes if isinstance(node.operator, Softmax) for i in node.inputs}

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

    def forget(self, index: int) -> None:
        super().forget(index)
        left = {self.bounds.structure.source(i) for i in self._forms}
        self._rests = {i: rest for i, rest in self._rests.items() if i in left}

    def least(self, rows: Tensor) -> Tensor:
        """Lower bounds ``[S, 1]`` on ``<rows [S, 1, *shape], output>``."""
        form = self._forms[len(self.graph.nodes) - 1]
        C = rows.flatten(2)[:, 0]
        centre, error = C @ form.centre.flatten(), C.abs() @ form.error.flatten()
        sizes = C.abs() @ form.size(self.basis).flatten()
        slope = (form.slope.flatten(2)[0] @ C.T)[None]
        found = self._range(self._rest(AffineForm(centre[None], slope, error[None])))[0]
        return (centre + found - error - self.share(C.shape[1] + form.slope.shape[1]) * (sizes + error + found.abs()))[
            :, None
        ]

    def interval(self, index: int) -> Interval:
        form, rest = self._forms[index], self.rest(index)
        low, high = (t.reshape(form.centre.shape) for t in self._range(rest))
        off = form.error + self.share(4) * (form.centre.abs() + largest(low, high) + form.error)
        return form.centre + low - off, form.centre + high + off

    def _range(self, rest: Rest) -> Interval:
        """Between which numbers ``[E]`` entries without their centres lie."""
        whole = _whole(rest.linear, rest.square)
        return self._least(whole - rest.noise), -self._least(-whole - rest.noise)

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
        return found

    def _most(self, matrices: Tensor) -> Tensor:
        """The largest values ``[E]`` of quadratics that are nowhere negative, or more."""
        return (-self._least(-matrices)).clamp(min=0)

    def _rest(self, form: AffineForm) -> Rest:
        """The parts of a form, with what bounds them; rounding is charged to the bounds."""
        n, slope = len(self.moving), form.slope.flatten(2)[0]
        linear, square = slope[:n].T, self._matrices(slope[n : n + len(self.rows)])
        noise = self._noise(slope[n + len(self.rows) :])
        beside = noise + self._absolute(square)
        return Rest(linear, square, noise, beside, self.noise.radius(linear), self._most(beside))

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
                t.reshape(apart.shape) for t in self._range(self._rest(AffineForm(apart[None], moved, off[None])))
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
            return super()._shadow(index)
        finally:
            self._forms[index] = kept

    # What rules are made of

    def _curved(self, rest: Rest, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """``k D^2`` for entries D without their centres and some k between ``low`` and ``high``, neither negative.

        As the quadratic in the middle and how far from it that may be, both ``[E, q, q]``. For a linear a, all else u,
        and any s up to one, ``(1 - s) a^2 - (1/s - 1) u^2 <= (a + u)^2 <= (1 + s) a^2 + (1 + 1/s) u^2``.
        """
        squares, other = rest.linear.square().sum(-1), rest.reach * rest.mean
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
        most, error = self._most(matrices), form.error.flatten() * (1 + self.share(2))
        noisy = worth_noise(most, form.centre.flatten())
        matrices, most = matrices.clone(), (most + error) * (1 + self.share(1))
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
        """``relu(s) = (s + |s|) / 2`` with ``|s|`` between two parabolas; stable ones are exact.

        Let s be turned so that its centre c is not negative, and lie in ``[-l, h]``. Above: ``s + k (s - b)^2`` with
        ``k = 2 l / (b + l)^2`` for ``b >= l``, which meets ``|s|`` at ``-l``, and ``k = 1 / (2 b)`` for any b. Below:
        ``s + k s (s - h)`` with ``k <= 2 / (h + l)``, which meets it at both ends and at 0.
        """
        (before,) = self.graph.nodes[index].inputs
        form, rest = self.form(before), self.rest(before)
        c, (lower, upper) = form.centre.flatten(), (t.flatten() for t in self.bounds.interval(before))
        bends = (lower < 0) & (upper > 0)
        if bool((bends & (upper - lower < _SMALLEST)).any()):
            raise NoAffineForms("rectifiers of numbers whose squares vanish")
        rising = torch.where(lower >= 0, 1.0, 0.0)
        turn = torch.where(c >= 0, 1.0, -1.0)
        at, low, high = c.abs(), torch.where(turn > 0, -lower, upper), torch.where(turn > 0, upper, -lower)
        low, high = (torch.where(bends, t, 1.0) for t in (low, high))
        squares = rest.linear.square().sum(-1) + trace(rest.noise)
        touch, above = self._touching(at, low, high, squares)
        below = torch.where(at * at + squares > at * high, 2 / (high + low) * (1 - self.share(4)), 0.0)
        # |s| = at + turn D + k (..) with D the entry without its centre.
        slope_above, slope_below = (turn + 2 * above * (at - touch) * turn), (turn + below * (2 * at - high) * turn)
        value_above, value_below = at + above * (at - touch).square(), at + below * at * (at - high)
        over, more = self._curved(rest, above, above)
        under, less = self._curved(rest, below, below)
        over, under = over + more, under - less
        tilt, lift = (slope_above - slope_below) / 4, (value_above - value_below) / 4
        half = (over - under) / 4 + _times(tilt, _whole(rest.linear, rest.square)) + _times(tilt.abs(), rest.noise)
        half[:, 0, 0] += lift
        rate = torch.where(bends, (1 + (slope_above + slope_below) / 2) / 2, rising)
        value = torch.where(bends, (c + (value_above + value_below) / 2) / 2, rising * c)
        none = ~bends[:, None, None]
        middle = ((over + under) / 4).masked_fill(none, 0.0)
        # What every term may be, times a few roundings.
        sizes = at + high + low + touch
        paid = self.share(32) * ((1 + above * sizes + below * sizes) * (sizes + rest.far + rest.reach))
        paid = paid + self.share(16) * (half.abs().sum((-1, -2)) + form.size(self.basis).flatten())
        # The form is off by its error, and so are both parabolas.
        off, wide = form.error.flatten(), largest(lower - c, upper - c)
        paid = paid + off * (slope_above.abs() + slope_below.abs() + (above + below) * (2 * wide + off))
        half[:, 0, 0] += paid * (1 + self.share(8))
        half = half.masked_fill(none, 0.0)
        shape = form.centre.shape
        rates = rate.reshape(shape)
        error = rates.abs() * form.error
        plain = AffineForm(value.reshape(shape), rates[:, None] * form.slope, error * (1 + self.share(2)))
        if not bool(bends.any()):
            return plain
        return self._with_numbers(self._plus(plain, middle), half)

    def _touching(self, at: Tensor, low: Tensor, high: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        """Where a parabola above ``|s|`` touches s, and how it is bent, such that it is lowest on average."""
        far = torch.maximum(high, low)
        best = bend = torch.full_like(at, math.inf)
        touch = far
        for share in torch.linspace(1 / _TOUCHING, 1, _TOUCHING).tolist():
            b = share * far
            k = torch.where(b >= low, 2 / (b + low) * (low / (b + low)), 1 / (2 * b)) * (1 + self.share(4))
            cost = k * ((at - b).square() + squares)
            better = cost < best
            best, touch = torch.where(better, cost, best), torch.where(better, b, touch)
            bend = torch.where(better, k, bend)
        return touch, bend

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
        least, most = operator.mean_square(*self.bounds.interval(before))
        low, high = torch.maximum(low, least), torch.minimum(high, most)
        low, high = torch.minimum(low, high).clamp(min=0), torch.maximum(low, high).clamp(min=0)
        self._know("mean square", index, (low, high))
        # With s and t the roots of a mean square and of that at the centre, 1 / s is its tangent plus k times the
        # square of the difference, k = (s + 2 t) / (2 s t^3 (s + t)^2), which falls with s.
        if bool((mean.centre < 0).any()):  # by rounding
            raise NoAffineForms("a mean square is all but zero")
        t = (mean.centre + operator.epsilon).sqrt()
        bend = [
            (s + 2 * t) / (2 * s * t**3 * (s + t).square())
            for s in ((v + operator.epsilon).sqrt() for v in (high, low))
        ]
        bend = [b.flatten() * (1 + sign * self.share(32)) for b, sign in zip(bend, (-1, 1))]
        over, half = self._curved(rest, *bend)
        rate, value = -0.5 / t**3, 1 / t
        size = mean.size(self.basis) + operator.epsilon
        error = rate.abs() * mean.error * (1 + self.share(16)) + self.share(32) * (rate.abs() * size + value)
        # What rounding did to the mean square counts in its square, too.
        wide = largest(low - mean.centre, high - mean.centre) + mean.error
        error = error + bend[1].reshape(rate.shape) * (2 * wide + mean.error) * mean.error * (1 + self.share(8))
        found = AffineForm(value, rate[:, None] * mean.slope, error)
        return self._with_numbers(self._plus(found, over), half)

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
        shape, n = z.centre.shape, len(self.moving)
        zero = torch.zeros_like(z.centre)
        form = AffineForm(*(t for i, t in enumerate(self._tangent(operator, z, r, (zero, zero))) if i != 2))
        row = torch.arange(r.centre.numel(), device=zero.device).reshape(r.centre.shape[1:]).expand(shape[1:]).flatten()
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

    @rule.register
    def _(self, operator: Softmax, index: int) -> AffineForm:
        """By parabolas, or by planes in rows that are wide or better so."""
        (before,) = self.graph.nodes[index].inputs
        form, K = self.form(before), self.graph.nodes[index].shape[-1]
        if operator.masked is not None or operator.axis != len(form.centre.shape) - 2 or K < 2:
            return super().rule(operator, index)
        value, slope, radius, _ = self._probabilities(operator, index)
        centre, r = value.reshape(1, -1, K).clone(), form.slope.shape[1]
        error, radius = torch.zeros_like(centre), radius.reshape(centre.shape)
        at = AffineForm(
            form.centre.reshape(centre.shape), form.slope.reshape(1, r, -1, K), form.error.reshape(centre.shape)
        )
        known = self.bounds.differences(index)
        assert known is not None  # they are told with the logits or with the planes
        narrow = ((known[1][0] - at.centre[0, ..., None] + at.centre[0, :, None]).flatten(1).amax(1) < _WIDE).nonzero()[
            :, 0
        ]
        metrics = self._constants(radius.flatten()).unflatten(0, (-1, K))
        slope = slope.reshape(1, r, -1, K)
        if len(narrow):
            found, beside = self._exponentials(
                AffineForm(at.centre[:, narrow], at.slope[:, :, narrow], at.error[:, narrow])
            )
            better = trace(beside).sum(1) + found.error[0].sum(1) < radius[0, narrow].sum(1)
            chosen = narrow[better]
            slope = AffineForm(centre, slope, error).padded(found.slope.shape[1]).clone()
            centre[:, chosen], slope[:, :, chosen] = found.centre[:, better], found.slope[:, :, better]
            error[:, chosen], metrics[chosen] = found.error[:, better], beside[better]
        whole = form.centre.shape
        return self._with_numbers(
            AffineForm(centre.reshape(whole), slope.reshape(1, -1, *whole[1:]), error.reshape(whole)),
            metrics.flatten(0, 1),
        )

    def _exponentials(self, logits: AffineForm) -> tuple[AffineForm, Tensor]:
        """``p_j = p_j(centre) exp(X_j - L)`` for rows ``[1, rows, K]``, and what bounds all else ``[rows, K, q, q]``.

        X are deviations from their mean, L is the logarithm of the mean of their exponentials: one number for a row,
        which cancels where rows mix values.
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
        m = -mean.centre[..., None].expand(at.shape)
        rest = self._rest(AffineForm(m, slope, error))
        low, high = (t.reshape(at.shape) for t in self._range(rest))
        # No probability exceeds one.
        high = torch.minimum(high + error, -p.log() - m + cost * (1 + p.log().abs() + m.abs()))
        low = torch.minimum(low - error, high)
        # exp(m + D) = exp(m) (1 + D + k D^2).
        bend = [_curvature(end, sign) for end, sign in ((low, -1), (high, 1))]
        over, half = self._curved(rest, *(b.flatten() for b in bend))
        scale, far = p * m.exp(), largest(low, high) + error
        paid = error * (1 + bend[1] * (2 * far + error)) + cost * (1 + size + far + bend[1] * far.square())
        paid = paid + self.share(4) * (at.amax(-1, keepdim=True) - at)  # exponents of probabilities are rounded
        found = AffineForm(scale, scale[:, None] * slope, paid * scale * (1 + cost))
        over, half = _times(scale.flatten(), over), _times(scale.flatten() * (1 + cost), half)
        half[:, 0, 0] += cost * over.abs().sum((-1, -2))
        found = self._plus(found, over)
        return found, half.unflatten(0, (-1, K))

    def _log_mean(self, deviation: AffineForm, p: Tensor, off: Tensor) -> AffineForm:
        """``log(sum_j p_j exp(X_j))`` of deviations ``[1, rows, K]`` with means of at most ``off [rows]``.

        ``sum_j p_j exp(X_j) = 1 + U`` with ``U = sum_j p_j k_j X_j^2``, up to the mean; the logarithm lies between U
        and its chord.
        """
        error, K = deviation.error, p.shape[-1]
        rest = self._rest(deviation)
        low, high = (t.reshape(p.shape) for t in self._range(rest))
        far = largest(low, high) + error
        most, least = (high + error).amax(-1, keepdim=True), (low - error).amin(-1, keepdim=True)
        ends = [(_curvature(end.expand(p.shape), sign) * p) for end, sign in ((least, -1), (most, 1))]
        middle, half = (t.unflatten(0, (-1, K)).sum(1) for t in self._curved(rest, *(end.flatten() for end in ends)))
        # The deviations are off by their error, and so are their squares.
        slip = (ends[1] * (2 * far + error) * error).sum(-1).flatten() + 2 * off
        cost = self.share(2 * K + 16)
        half[:, 0, 0] += slip * (1 + cost) + cost * (middle.abs().sum((-1, -2)) + half.abs().sum((-1, -2)))
        top = self._most(middle + half)
        chord = torch.where(top > 1e-6, top.log1p() / top, 1 - top / 2).clamp(0, 1) * (1 - self.share(8))
        centre = _times((1 + chord) / 2, middle) + _times((1 - chord) / 2, half)
        beside = _times((1 - chord) / 2, middle) + _times((1 + chord) / 2, half)
        beside[:, 0, 0] += 2 * off + self.share(8) * (middle.abs().sum((-1, -2)) + half.abs().sum((-1, -2)))
        zero = deviation.centre[..., 0]
        return self._with_numbers(self._plus(AffineForm(zero, zero[:, None][:, :0], zero), centre), beside)


def _times(weights: Tensor, matrices: Tensor) -> Tensor:
    """Matrices, each times a number."""
    return weights[..., None, None] * matrices


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


def _curvature(t: Tensor, sign: int) -> Tensor:
    """``(exp(t) - 1 - t) / t^2``, which rises with t and is never negative, rounded down (-1) or up (1)."""
    small = t.abs() < 0.01
    series, left = 0.5 + t / 6 + t.square() / 24, t.abs() ** 3 / 100
    safe = torch.where(small, 1.0, t)
    whole = (safe.expm1() - safe) / safe.square()
    cost = ulps(8, t.dtype)
    error = torch.where(small, left, cost * (safe.expm1().abs() + safe.abs()) / safe.square()) + cost * (1 + whole)
    return (torch.where(small, series, whole) + sign * error).clamp(min=0)
