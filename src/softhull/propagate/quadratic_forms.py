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
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..graph.operator import Affine, Interval, Operator
from ..graph.ops.softmax import Softmax
from ..graph.rounding import euclidean, largest, ulps, underflow
from .crown import LinearBounds, LinearWalk
from .parabolas import WORST, Parabola, Parabolas
from .quadratic_rules import quadratic_form
from .quadratics import Group, Rest, matrix_of, times, trace
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
# Numbers of which this share is used are not copied.
_MOST = 0.5
# Sums of entries that are bounded at once by the forms of a node.
_FEW = 64


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


class QuadraticForms(Zonotopes):
    """The forms of the nodes at hand, over the inputs that move, their products, and numbers bounded by quadratics."""

    tensors = 4 * Zonotopes.tensors

    def __init__(self, bounds: LinearBounds) -> None:
        super().__init__(bounds, walked=True)
        n = len(self.moving)
        self.rows, self.columns = torch.triu_indices(n, n, device=self.centre.device)
        # Of fresh numbers: what bounds them, the upper triangles of matrices [k, q, q] (zero for those in groups), and
        # the sums of their entries [k].
        q = n + 1
        self._triangle = torch.triu_indices(q, q, device=self.centre.device)
        self._places = torch.zeros(q, q, dtype=torch.long, device=self.centre.device)
        self._places[self._triangle[0], self._triangle[1]] = positions(self._triangle[0])
        self._places = torch.maximum(self._places, self._places.mT)
        self._metrics = self.centre.new_zeros(0, len(self._triangle[0]))
        self.sizes = self.centre.new_zeros(0)
        self.groups: list[tuple[int, Tensor]] = []  # the first of n numbers t_i u, and what bounds u
        self.balls: list[tuple[int, int]] = []  # numbers from a first to behind a last that lie in the unit ball
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
        self._metrics, self.groups = self._metrics[:0], []

    # What forms say

    def rest(self, index: int) -> Rest:
        """What the form of a node is without its centre, worked out once for all orders of its entries."""
        source = self.bounds.structure.source(index)
        if source not in self._rests:
            if source != index:
                return self.rest_of(self._forms[index])
            self._rests[index] = self.rest_of(self._forms[index])
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
        low, high = (t.reshape(form.centre.shape) for t in self.range_of(rest))
        off = form.error + self.share(4) * (form.centre.abs() + largest(low, high) + form.error)
        return form.centre + low - off, form.centre + high + off

    def range_of(self, rest: Rest) -> Interval:
        """Between which numbers ``[E]`` entries without their centres lie."""
        whole = matrix_of(rest.linear, rest.square)
        return self._least(whole - rest.noise), -self._least(-whole - rest.noise)

    def _lowest(self, form: AffineForm) -> Tensor:
        """The least values ``[E]`` of entries without their centres, or less."""
        linear, square, noise = self._parts(form)
        return self._least(matrix_of(linear, square) - noise)

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

    def most(self, matrices: Tensor) -> Tensor:
        """The largest values ``[E]`` of quadratics that are nowhere negative, or more."""
        return (-self._least(-matrices)).clamp(min=0)

    def rest_of(self, form: AffineForm) -> Rest:
        """The parts of a form, with what bounds them; rounding is charged to the bounds."""
        linear, square, noise = self._parts(form)
        shift, curve = self.around(square)
        curve[:, 0, 0] += self.share(2) * (noise.abs().sum((-1, -2)) + curve.abs().sum((-1, -2)))
        return Rest(linear, square, noise, curve, shift, self.noise.radius(linear), self.most(noise + curve))

    def _parts(self, form: AffineForm) -> tuple[Tensor, Tensor, Tensor]:
        """The linear part, the square, and what bounds the noise."""
        n, slope = len(self.moving), form.slope.flatten(2)[0]
        pairs = slope[n : n + len(self.rows)]
        return slope[:n].T, self._matrices(pairs), self.noise_in(slope[n + len(self.rows) :])

    def numbers(self, form: AffineForm) -> Tensor:
        """The slopes ``[k, E]`` of a form over fresh numbers."""
        return form.slope.flatten(2)[0, len(self.moving) + len(self.rows) :]

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

    def metrics(self, which: Tensor) -> Tensor:
        """What bounds some of the numbers, as matrices ``[.., q, q]``."""
        return self._metrics[which][:, self._places]

    def noise_in(self, slope: Tensor) -> Tensor:
        """What bounds all fresh numbers in sums with slopes ``[k, E]``, as matrices ``[E, q, q]``."""
        k, (n, E) = len(slope), (len(self.moving), slope.shape[1])
        q = n + 1
        found = slope.new_zeros(E, q, q)
        used = (slope != 0).any(1)
        alone = used & (self.sizes[:k] > 0)
        if bool(alone.any()):
            # Where most are used, copies take longer than products with zero.
            some = alone if int(alone.sum()) < _MOST * k else slice(None)
            size = slope[some].abs().T
            found += (size @ self._metrics[:k][some])[:, self._places]
            found[:, 0, 0] += self.share(k) * (size @ self.sizes[:k][some])
        for first, last in self.balls:
            if first < k and bool(used[first:last].any()):
                found[:, 0, 0] += euclidean(slope[first:last], 0) * (1 + self.share(last - first))
        groups = [(first, metric) for first, metric in self.groups if first < k and bool(used[first : first + n].any())]
        if groups:
            columns = torch.tensor([first for first, _ in groups], device=slope.device)[:, None] + positions(slope[:n])
            linear, metrics = slope[columns].permute(2, 0, 1), torch.stack([metric for _, metric in groups])
            mean = trace(metrics)
            squares, far, one = linear.square().sum(-1), self.noise.radius(linear), torch.ones_like(mean)
            on_line, on_metric = self.weights(squares, far, one, mean)
            rooted = on_line.sqrt()[..., None] * linear
            found[:, 1:, 1:] += rooted.mT @ rooted
            found += (on_metric @ metrics.flatten(1)).unflatten(1, (q, q))
            sizes = on_line * linear.abs().sum(-1).square() + on_metric * metrics.abs().sum((-1, -2))
            found[:, 0, 0] += self.share(len(groups) + 8) * sizes.sum(-1)
        return found

    def weights(self, squares: Tensor, far: Tensor, most: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
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

    def absolute(self, square: Tensor) -> Tensor:
        """Matrices ``[E, q, q]`` whose quadratics are at least the absolute values of those of ``square [E, n, n]``."""
        return self._by_eigenvalues(square, lambda values: torch.zeros_like(values[:, 0]))[1]

    def around(self, square: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers ``[E]``, and matrices ``[E, q, q]`` that bound how far from these quadratics ``[E, n, n]`` may be.

        ``t'Ht - n c = t'(H - c)t - c (n - |t|^2)`` for any c, and the last is zero at all corners of the box: there
        multipliers hold it for nothing. In a ball the number is half of what ``c |t|^2`` may be.
        """
        n, box = square.shape[-1], self.noise.norm > 2

        def level(values: Tensor) -> Tensor:
            ways = torch.cat((values, torch.zeros_like(values[:, :1])), 1)
            cost = (values[:, None] - ways[..., None]).abs().sum(-1) + (WORST if box else 0.5) * n * ways.abs()
            return ways.gather(1, cost.argmin(1)[:, None])[:, 0]

        c, found = self._by_eigenvalues(square, level)
        shift, cost = c * (n if box else 0.5), self.share(8)
        own = found.diagonal(dim1=-2, dim2=-1)
        size = square.diagonal(dim1=-2, dim2=-1).abs().sum(-1) + n * c.abs() + own.sum(-1)
        if box:
            own[:, 1:] -= c.abs()[:, None]
        found[:, 0, 0] += shift.abs() + torch.where(c != 0, cost * size + n * underflow(c.dtype), 0.0)
        return shift, found

    def _by_eigenvalues(self, square: Tensor, level: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Levels c ``[E]`` that are chosen by the eigenvalues ``[E, n]``, and bounds on the values of ``square - c``.

        ``sum_i |w_i| (v_i . t)^2`` bounds ``sum_i w_i (v_i . t)^2`` for any v and w; what that misses of the quadratic
        is charged.
        """
        if not bool(square.isfinite().all()):
            raise NoAffineForms("quadratic forms overflow")
        n = square.shape[-1]
        found, levels = square.new_zeros(len(square), n + 1, n + 1), square.new_zeros(len(square))
        for part in pieces((square != 0).flatten(1).any(-1).nonzero()[:, 0], _TOGETHER):
            values, vectors = torch.linalg.eigh(square[part])
            levels[part] = c = level(values)
            left, values = square[part] - torch.diag_embed(c[:, None].expand_as(values)), values - c[:, None]
            found[part, 1:, 1:] = (vectors * values.abs()[:, None]) @ vectors.mT
            missed = (left - (vectors * values[:, None]) @ vectors.mT).abs().sum((-1, -2))
            size = ((vectors.abs() * values.abs()[:, None]) @ vectors.abs().mT).sum((-1, -2))
            found[part, 0, 0] += (
                missed * (1 + self.share(n * n)) + 4 * self.share(n) * size + n * n * underflow(size.dtype)
            )
        return levels, found

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
            self.know("rough", index, found)
            return
        if source != index and source not in self._told:
            self._shadows.setdefault(source, None)
            return
        super()._tell(index)
        if index in self._read:
            self._tell_apart(index)

    def know(self, kind: str, index: int, fact: Interval) -> None:
        """Let the bounds know a fact about a node, unless they know one of its kind."""
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
            self.know("differences", after, (least[None], most[None]))

    def _shadow(self, index: int) -> Shadow | None:
        form, n = self._forms[index], len(self.moving)
        rest = self.rest(index)
        shift, reach = (t.reshape(form.error.shape) for t in (rest.shift, rest.reach))
        error = form.error + reach + self.share(2) * (form.centre.abs() + shift.abs())
        plain = AffineForm(form.centre + shift, form.slope[:, :n], error)
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

    def squared(self, rest: Rest) -> tuple[Tensor, Tensor]:
        """``D^2`` for entries D without their centres: a quadratic and how far from it that may be, ``[E, q, q]``.

        For a linear a, all else u, and any s up to one, ``(1 - s) a^2 - (1/s - 1) u^2 <= (a + u)^2 <= (1 + s) a^2 +
        (1 + 1/s) u^2``. What entries are shifted by counts to a.
        """
        squares = rest.squares + WORST * rest.span.square()
        other = rest.reach * (rest.mean + WORST * rest.reach)
        rate = (other / squares).sqrt().clamp(1e-9, 1.0)
        rate = torch.where(rate.isnan(), 1.0, rate)
        none = rest.reach == 0
        by_u = torch.where(none, 0.0, 1 / rate)
        rate = torch.where(none, 0.0, rate)
        outer, square = rest.outer_shifted, times(rest.reach * (1 + self.share(4)), rest.beside)
        above = times(1 + rate, outer) + times(torch.where(none, 0.0, 1 + by_u), square)
        below = times(1 - rate, outer) - times(torch.where(none, 0.0, by_u - 1), square)
        middle, half = (above + below) / 2, (above - below) / 2
        sizes = (2 + rate) * outer.abs().sum((-1, -2)) + (2 + by_u) * square.abs().sum((-1, -2))
        half[:, 0, 0] += self.share(32) * sizes + underflow(half.dtype)
        return middle, half

    def through(
        self, parabolas: Parabolas, form: AffineForm, rest: Rest, low: Tensor, high: Tensor
    ) -> tuple[AffineForm, Tensor]:
        """A curve of a form whose entries lie between ``low`` and ``high``, as ``_between`` has it."""
        square = self.squared(rest)
        blur = trace(square[1]) + WORST * self.most(square[1])
        centre, least, most = (t.flatten() for t in (form.centre, low, high))
        both = parabolas(centre, least, most, rest.squares + trace(rest.noise), blur)
        return self._between(form, rest, square, *both, largest(low - form.centre, high - form.centre))

    def _between(
        self,
        form: AffineForm,
        rest: Rest,
        square: tuple[Tensor, Tensor],
        above: Parabola,
        below: Parabola,
        far: Tensor,
    ) -> tuple[AffineForm, Tensor]:
        """What lies between two parabolas of the entries of a form, which are at most ``far`` from their centres.

        As the form in the middle, and what bounds how far from it that may be ``[E, q, q]``.
        """
        over, under = (
            times(each.bend, square[0]) + sign * times(each.bend.abs(), square[1])
            for each, sign in ((above, 1), (below, -1))
        )
        tilt, rate = (above.slope - below.slope) / 2, (above.slope + below.slope) / 2
        half = (over - under) / 2 + times(tilt, matrix_of(rest.linear, rest.square)) + times(tilt.abs(), rest.noise)
        half[:, 0, 0] += (above.value - below.value) / 2
        off, wide = form.error.flatten(), far.flatten()
        sizes = (
            above.value.abs() + below.value.abs() + (above.slope.abs() + below.slope.abs()) * (rest.span + rest.reach)
        )
        sizes = sizes + over.abs().sum((-1, -2)) + under.abs().sum((-1, -2)) + half.abs().sum((-1, -2))
        bends = above.bend.abs() + below.bend.abs()
        sizes = sizes + bends * (square[0].abs().sum((-1, -2)) + square[1].abs().sum((-1, -2)))
        # The form is off by its error, and so are both parabolas.
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
        return self.plus(middle, (over + under) / 2), half

    def plus(self, form: AffineForm, matrices: Tensor) -> AffineForm:
        """A form plus quadratics ``[E, q, q]`` of the inputs."""
        shape = form.centre.shape
        own = torch.cat((matrices[:, 0, 1:].T + matrices[:, 1:, 0].T, self._pairs(matrices[:, 1:, 1:])))
        slope = form.padded(max(form.slope.shape[1], len(own))).clone()
        slope[0, : len(own)] += own.unflatten(1, shape[1:])
        centre = form.centre + matrices[:, 0, 0].reshape(shape)
        size = form.size(self.basis) + matrices.abs().sum((-1, -2)).reshape(shape)
        return AffineForm(centre, slope, form.error + self.share(4) * size)

    def with_numbers(self, form: AffineForm, matrices: Tensor) -> AffineForm:
        """A form plus one fresh number for every entry, which the quadratics ``[E, q, q]`` bound.

        It takes the error in, which would grow with every sum of absolute values that it goes through.
        """
        matrices = matrices.clone()
        matrices[:, 0, 0] += self.share(4) * matrices.abs().sum((-1, -2))
        most, error = self.most(matrices), form.error.flatten() * (1 + self.share(2))
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
        metrics[:, 0, 0] += self.share(6) * sizes
        held = metrics.element_size() * (len(self._metrics) + len(metrics)) * self._metrics.shape[1]
        if held > self.tensors * self.bounds.memory:
            raise NoAffineForms("what bounds the noise of quadratic forms does not fit the memory")
        upper = ((metrics + metrics.mT) / 2)[:, self._triangle[0], self._triangle[1]]
        self._metrics = torch.cat((self._metrics, upper))
        self.sizes = torch.cat((self.sizes, sizes * (1 + self.share(8))))

    def with_groups(self, form: AffineForm, groups: list[Group]) -> AffineForm:
        """A form plus, for every group, linear functions ``[entries, n]`` of some entries times one number."""
        if not groups:
            return form
        n = len(self.moving)
        own = form.slope.new_zeros(len(groups) * n, form.centre.numel())
        for k, (entries, linear, matrix, most) in enumerate(groups):
            self.groups.append((len(self.sizes) + k * n, matrix / most * (1 + self.share(4))))
            own[k * n : (k + 1) * n, entries] = linear.T * most * (1 + self.share(4))
        self._keep(own.new_zeros(len(own), n + 1, n + 1))
        error = form.error + self.share(4) * own.abs().sum(0).reshape(form.error.shape)
        return AffineForm(form.centre, self._with_rows(form.slope, own.unflatten(1, form.centre.shape[1:])), error)

    def with_ball(self, form: AffineForm, entries: Tensor) -> AffineForm:
        """A form whose ``entries`` are anything in the ball around zero that normalised rows do not leave."""
        d, centre, slope = len(entries), form.centre.clone(), form.slope.clone()
        centre.view(-1)[entries], slope.flatten(2)[..., entries] = 0.0, 0.0
        error = form.error.clone()
        error.view(-1)[entries] = 0.0
        self.balls.append((len(self.sizes), len(self.sizes) + d))
        self._keep(slope.new_zeros(d, *[len(self.moving) + 1] * 2))
        own = slope.new_zeros(d, centre.numel())
        own[positions(entries), entries] = math.sqrt(d) * (1 + self.share(4))
        return AffineForm(centre, self._with_rows(slope, own.unflatten(1, centre.shape[1:])), error)

    def with_shared(self, form: AffineForm, slope: Tensor, matrices: Tensor) -> AffineForm:
        """A form plus fresh numbers ``[k]``, which quadratics ``[k, q, q]`` bound, with slopes ``[k, E]``."""
        most = self.most(matrices)
        if not bool(most.isfinite().all()):
            raise NoAffineForms("quadratic forms are unbounded")
        moves = most > 0
        own = slope[moves] * most[moves, None]
        self._keep(matrices[moves] / most[moves, None, None])
        error = form.error + self.share(4) * own.abs().sum(0).reshape(form.error.shape)
        return AffineForm(form.centre, self._with_rows(form.slope, own.unflatten(1, form.centre.shape[1:])), error)

    def rule(self, operator: Operator, index: int) -> AffineForm:
        """The form of a node from those of its inputs; by the rules of affine forms where there is no better one."""
        found = quadratic_form(operator, self, index)
        return super().rule(operator, index) if found is None else found

    def _with_noise(
        self, centre: Tensor, slope: Tensor, radius: Tensor, error: Tensor, rate: Tensor | None = None
    ) -> AffineForm:
        slope = slope if rate is None else slope * rate[:, None]
        constant = self.constants((radius + error).flatten() * (1 + self.share(2)))
        return self.with_numbers(AffineForm(centre, slope, torch.zeros_like(error)), constant)

    def constants(self, values: Tensor) -> Tensor:
        """Numbers ``[E]`` as quadratics ``[E, q, q]``."""
        q = len(self.moving) + 1
        found = values.new_zeros(len(values), q, q)
        found[:, 0, 0] = values
        return found


def _or_nothing(least: Tensor) -> Tensor:
    """Lower bounds, which are none where they are not numbers."""
    return torch.where(least < math.inf, least, -math.inf)
