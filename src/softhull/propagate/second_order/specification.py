"""One specification as a quadratic of the noise: linear parts by a backward walk, products collected.

A walk is that of linear bounds, except that a product met with coefficients is split at the centres of its factors'
forms: ``x y = x_c y + x y_c - x_c y_c + (x - x_c)(y - y_c)``. The first three are linear and walk on; the last is a
quadratic of the noise, exactly, and is kept. In the end

    <C, node>  >=  constant + l . eps + eps'B eps        for every input of the region and its noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from ...graph.operator import Bilinear
from ...graph.ops.matmul import MatMul
from ...graph.ops.softmax import Softmax
from ...graph.rounding import accumulated, share
from .. import softmax_steps as softmaxes
from ..crown import LinearBounds, LinearWalk
from ..free import Free
from ..knowledge import Knowledge
from ..structure import pieces, positions
from ..walk import Claim, Step
from .affine_form import Basis, Noise, centre_and_radius
from .bent import Bent
from .blocks import BlockQuadratic
from .dual import Problem, Pursuit, bound, maximise, minimiser, vertex_minimiser
from .fitted_rows import FittedRows, KnownFits, MixedValues
from .forward import Factors, Forms
from .kinks import Kinks
from .low_rank import LowRankQuadratic
from .quadratic import DenseQuadratic
from .row_fit import CELLS
from .terms import Term, together

_NEAR = 1 << 22  # bytes
_LARGE = 2000  # noise numbers; with more, a matrix of all of them takes too long and too much memory
_FEW = 4  # steps on such a quadratic
_PATIENT = 40  # steps on a quadratic with fits: there is nothing after it
# Fits of attention rows, each near where the bound before was attained: whether with the values that they mix.
FITS = (False, False, True, True, True)
# How far that place is moved from one fit to the next: all the way is too far where there are several worst places.
TOWARDS = 0.4


@dataclass
class Quadratic:
    """``constant [P] + l [P, n] . eps + sum over bases of z'C z``; noise beyond l is not in it."""

    constant: Tensor
    linear: Tensor
    bases: list[Basis]  # with maps [P, r, n'] of some of the noise
    matrices: list[Tensor]  # symmetric C [P, r, r]
    fits: dict[int, FittedRows] = field(default_factory=dict)  # by softmax, where rows were fitted
    splits: dict[int, Split] = field(default_factory=dict)  # by product, those of probabilities beside fitted rows
    bents: dict[int, Bent] = field(default_factory=dict)  # by rectifier, where lines are bent
    kinks: dict[int, tuple[Kinks, Basis]] = field(default_factory=dict)  # by rectifier, where these stay

    def detached(self) -> Quadratic:
        """The same numbers, no longer functions of free parameters."""
        matrices = [matrix.detach() for matrix in self.matrices]
        return Quadratic(self.constant.detach(), self.linear.detach(), self.bases, matrices)

    def held(self, signs: Tensor, weights: Tensor) -> Quadratic:
        """The same plus ``weights . (eps^2 - signs eps)`` of the first noise numbers, which is at most 0.

        Signs are 1 where a number is never below 0, -1 where it is never above, else 0; weights are at least 0.
        """
        which = ((signs != 0) & (weights > 0)).nonzero()[:, 0]
        if not len(which):
            return self
        P = len(self.linear)
        linear = self.linear.clone()
        linear[:, which] -= weights[which] * signs[which]
        # One difference for each number, and their sum.
        lost = share(2, linear.dtype) * (self.linear[:, which].abs() + weights[which]).sum(1)
        units = torch.eye(len(which), dtype=linear.dtype, device=linear.device).expand(P, -1, -1)
        matrix = torch.diag(weights[which]).expand(P, -1, -1)
        bases, matrices = [*self.bases, Basis(units, which)], [*self.matrices, matrix]
        return replace(self, constant=self.constant - lost, linear=linear, bases=bases, matrices=matrices)

    def at(self, noise: Tensor) -> Tensor:
        """Its values ``[P]`` at some noise ``[P, n]``, to nearest."""
        value = self.constant + (self.linear * noise).sum(1)
        for basis, c in zip(self.bases, self.matrices):
            z = (basis.map @ noise[:, basis.numbered(), None])[..., 0]
            value = value + (z * (c @ z[..., None])[..., 0]).sum(1)
        return value

    @property
    def dimension(self) -> int:
        """The size of the matrices that a bound on it factorises."""
        entries, n = sum(basis.size for basis in self.bases), self.linear.shape[1]
        return entries if _few(entries, n) else n

    def problem(self, ball: Tensor | None) -> tuple[Problem, Tensor]:
        """What is to be minimised over the noise, ``ball [n]`` of it in an l_2 ball, in the form that costs least, and
        a bound ``[P]`` on what rounding may have cost it on the way there."""
        n = self.linear.shape[1]
        if self.dimension < n:
            return self.low_rank(ball), torch.zeros_like(self.constant)
        if n < _LARGE:
            B, lost = self.dense()
            return DenseQuadratic(self.linear, B, ball), lost
        return BlockQuadratic(self.linear, self.bases, self.matrices, ball), torch.zeros_like(self.constant)

    def corner(self) -> Tensor:
        """A corner of the noise ``[P, n]`` where the quadratic is small."""
        return vertex_minimiser(self.low_rank())[0]

    def minimiser(self, noise: Noise, d: Tensor) -> Tensor:
        """Noise ``[P, n]`` where the quadratic is least with multipliers ``d [P, n]``; a corner where none are."""
        problem, _ = self.problem(noise.ball(self.linear.shape[1], self.linear.device))
        usable = d.isfinite().all(-1, keepdim=True)
        x = minimiser(problem, torch.where(usable, d, 1.0))
        return torch.where(usable & x.isfinite().all(-1, keepdim=True), x, self.corner())

    def dense(self) -> tuple[Tensor, Tensor]:
        """The matrix B over the noise, and a bound ``[P]`` on what its rounding may cost the quadratic."""
        P, n = self.linear.shape
        B, lost = self.linear.new_zeros(P, n, n), self.linear.new_zeros(P)
        for basis, c in zip(self.bases, self.matrices):
            u, numbers = basis.map, basis.numbers
            added = u.mT @ (c @ u)
            if numbers is None:
                B[:, : basis.noise, : basis.noise] += added
            else:
                B[:, numbers[:, None], numbers] += added
            reach = basis.reach[..., None]
            lost = lost + (reach.mT @ (c.abs() @ reach))[:, 0, 0]
        operations = 4 * max(basis.size for basis in self.bases) + len(self.bases) + 4
        return B, accumulated(operations, B.dtype) * lost

    def low_rank(self, ball: Tensor | None = None) -> LowRankQuadratic:
        """The problem over the entries of all bases."""
        known = self.bases[0].parts if len(self.bases) == 1 else None
        if known is None:
            return LowRankQuadratic.of(self.linear, *self.factors(), ball)
        (order, parts), numbers, C = known, self.bases[0].numbers, self.matrices[0]
        if numbers is not None:
            parts = [part.numbered(numbers) for part in parts]
        return LowRankQuadratic(self.linear, parts, C[:, order[:, None], order], ball)

    def factors(self) -> tuple[Tensor, Tensor]:
        """One map ``[P, r, n]`` and one matrix ``[P, r, r]`` for all bases."""
        P, n = self.linear.shape
        r = sum(basis.size for basis in self.bases)
        shared = all(basis.map.stride(0) == 0 for basis in self.bases)
        U, C = self.linear.new_zeros(1 if shared else P, r, n), self.linear.new_zeros(P, r, r)
        start = 0
        for basis, c in zip(self.bases, self.matrices):
            end = start + basis.size
            U[:, start:end, basis.numbered()] = basis.map[: len(U)]
            C[:, start:end, start:end] = c
            start = end
        return U.expand(P, r, n), C


@dataclass(frozen=True, eq=False)
class SecondOrderBounds:
    """Second-order lower bounds on specifications of the output over the region of ``bounds``."""

    bounds: LinearBounds
    forms: Forms

    @staticmethod
    def of(
        bounds: LinearBounds,
        memory: int | None = None,
        rectified: bool = False,
        planes: bool = True,
        sharp: bool = False,
    ) -> SecondOrderBounds:
        """Affine forms over the region, in ``memory`` bytes (by default 32 times what ``bounds`` may use for a tensor).

        The bounds it works with know the differences that the forms gave. ``rectified``: also forms of what rectifiers
        are applied to, so that free parameters may bend the lines around these. ``planes``: those of softmax rows are
        wanted, too. ``sharp``: every difference of logits of a short row is bounded as a quadratic of its own.
        """
        forms = Forms(bounds, memory, rectified, sharp).build()
        bounds = forms.bounds
        for index in forms.errors if planes else ():  # found once here, taken along by every piece of work
            softmaxes.row_planes(bounds, index)
            if index in forms.parallel:
                bounds = softmaxes.meeting(bounds, index, forms.parallel[index])
        return SecondOrderBounds(bounds, forms)

    def knowing(self, knowledge: Knowledge) -> SecondOrderBounds:
        """The same with other knowledge for its linear walks."""
        return replace(self, bounds=self.bounds.knowing(knowledge))

    def quadratic(
        self,
        rows: Tensor,
        instances: Tensor,
        near: Tensor | None = None,
        index: int | None = None,
        start: Claim | None = None,
        free: Free | None = None,
        known: dict[int, KnownFits] | None = None,
        mixed: bool = False,
        kinked: bool = False,
    ) -> Quadratic:
        """The quadratics below ``<rows [P, *shape], node>`` of some instances ``[P]``, repetitions allowed.

        The node is that of number ``index``, by default the output.
        ``start``: another claim to begin with, about the same output and more.
        With noise ``near [P, n]`` attention rows are bounded by quadratics that are good there, where rows are short;
        with free parameters the relaxations are those that these stand for. ``known``: fits ``[P]`` over regions that
        these are parts of, by softmax. ``mixed``: rows are fitted together with the values that they mix. ``kinked``:
        rectifiers stay in the quadratic, where the forms have them (``kinks.py``).
        """
        bounds, forms = self.bounds.take(instances), self.forms
        walk = _Collecting(bounds, forms, instances, near, free, known or {}, mixed, kinked)
        first = len(bounds.graph.nodes) - 1 if index is None else index
        claim = walk.back(Claim.on(first, rows[None]) if start is None else start)
        P = len(rows)
        constant = claim.bound[0].expand(P)
        on_input = claim.pending.get(-1, rows.new_zeros(1, P, *bounds.graph.input_shape))[0]
        on_input = on_input.expand(P, *bounds.graph.input_shape)
        centre, radius = centre_and_radius(bounds.region)
        linear = rows.new_zeros(P, forms.noise_count)
        linear[:, : forms.noise.inputs] = (on_input * radius).flatten(1)
        rounded = (on_input.abs() * (centre.abs() + radius)).flatten(1).sum(1) + constant.abs()
        for number, on_basis in walk.lines:
            basis = walk.bases[number]
            over = basis.over_noise(on_basis[:, None])[:, 0]
            linear = linear.index_add(1, basis.numbered(), over)
        for number in {fit.logits.basis for fit in walk.fits.values()} | walk.thin.keys() & walk.matrices.keys():
            walk.thicken(number)
        thin = [together(walk.bases[number], terms) for number, terms in walk.thin.items()]
        found = Quadratic(
            constant + (on_input * centre).flatten(1).sum(1) - bounds.share(centre[0].numel()) * rounded,
            linear,
            [walk.bases[number].densified() for number in walk.matrices] + [basis for basis, _ in thin],
            [*walk.matrices.values(), *(matrix for _, matrix in thin)],
            dict(walk.fits),
            walk.splits,
            walk.bents,
            walk.kinks,
        )
        for fit in walk.fits.values():
            fit.add_to(found, walk.bases[fit.logits.basis], list(walk.matrices).index(fit.logits.basis))
        return found

    @cached_property
    def dimension(self) -> int:
        """The size of the matrices that a bound on a specification of the first instance factorises."""
        some = self.bounds.region.lower.new_ones(1, *self.bounds.graph.output_shape)
        return self.quadratic(some, torch.zeros(1, dtype=torch.long, device=some.device)).dimension

    def lower(
        self,
        rows: Tensor,
        instances: Tensor,
        steps: int,
        target: Tensor,
        fitted: bool = False,
        index: int | None = None,
    ) -> Tensor:
        """Lower bounds ``[P]`` on ``<rows, node>``; work on one ends when it exceeds its ``target [P]``.

        The node is that of number ``index``, by default the output. ``fitted``: attention rows by quadratics of their
        logits instead of planes, which costs more.
        """
        found = []
        for part in pieces(positions(rows), self.together()):
            self.bounds.check_time()
            quadratic = self.quadratic(rows[part], instances[part], None, index)
            low, d = solve_quadratic(quadratic, self.forms.noise, Pursuit(steps, target[part], hopeless=fitted))
            if fitted:
                near = quadratic.minimiser(self.forms.noise, d)[:, : self.forms.noise_count]
                low = self._fitted(rows[part], instances[part], max(steps, _PATIENT), target[part], index, low, near)
            found.append(low)
        return torch.cat(found) if found else rows.new_zeros(0)

    def _fitted(
        self,
        rows: Tensor,
        instances: Tensor,
        steps: int,
        target: Tensor,
        index: int | None,
        low: Tensor,
        near: Tensor,
    ) -> Tensor:
        """Better bounds than ``low [P]`` by fits near where a bound before is least, where the target is not reached.

        At first of the rows alone, then together with the values that they mix.
        """
        low, noise = low.clone(), self.forms.noise
        left = (~(low > target)).nonzero()[:, 0]
        near = near[left]
        for mixed in FITS:
            if not len(left):
                break
            self.bounds.check_time()
            quadratic = self.quadratic(rows[left], instances[left], near, index, mixed=mixed)
            value, d = solve_quadratic(quadratic, noise, Pursuit(steps, target[left], hopeless=True))
            low[left] = torch.maximum(low[left], value)
            least = quadratic.minimiser(noise, d)[:, : self.forms.noise_count]
            more = (~(low[left] > target[left])).nonzero()[:, 0]
            left, near = left[more], (TOWARDS * least + (1 - TOWARDS) * near)[more]
        return low

    def together(self) -> int:
        """How many quadratics to work on at once: few enough to stay near the processor."""
        basis = self.forms.basis
        noise = basis.size if len(basis.map) == 1 else basis.noise  # what one instance has is there once
        return max(1, _NEAR // (8 * min(basis.size, max(1, self.dimension)) * noise))


class _Collecting(LinearWalk):
    """A linear walk that splits products whose factors have forms and, near given noise, fits rows of a softmax.

    ``matrices [P, r, r]`` are the quadratics collected, by the number of their basis, ``thin`` those of them that see
    few combinations of it, ``fits`` the rows fitted.
    """

    def __init__(
        self,
        bounds: LinearBounds,
        forms: Forms,
        instances: Tensor,
        near: Tensor | None,
        free: Free | None,
        known: dict[int, KnownFits],
        mixed: bool,
        kinked: bool,
    ) -> None:
        super().__init__(bounds, free=free)
        self.forms, self.instances, self.near = forms, instances, near
        self.bases = {number: basis.take(instances) for number, basis in forms.bases.items()}
        self.matrices: dict[int, Tensor] = {}
        self.thin: dict[int, list[Term]] = {}
        self.known, self.fits = known, dict[int, FittedRows]()
        self.splits: dict[int, Split] = {}
        self.bents: dict[int, Bent] = {}
        self.mixed, self.values = mixed, dict[int, MixedValues]()
        self.kinked, self.kinks = kinked, dict[int, tuple[Kinks, Basis]]()
        self.lines: list[tuple[int, Tensor]] = []  # linear functions of bases, by number

    def step(self, index: int, A: Tensor) -> Step:
        node = self.bounds.graph.nodes[index]
        if index in self.forms.factors:
            assert isinstance(node.operator, Bilinear)
            factors = self.forms.factors[index].take(self.instances)
            number = factors.basis
            split = Split(node.operator, A[0], factors, self.bases[number])
            backs, shift = split.linear()
            if self._mixes(split, node.inputs[split.kept]):
                return zip(node.inputs, backs), shift - split.charge(False)
            if self.near is not None and factors.error is not None:
                self.splits[index] = split
            thin = self._add(number, split.term(), split.matrix)
            return zip(node.inputs, backs), shift - split.charge(thin)
        if self.free is not None and index in self.forms.rectified:
            form, number = self.forms.rectified[index]
            bent = Bent(self.bounds, index, A[0], form.take(self.instances), self.bases[number], self.free)
            self.bents[index] = bent
            self._add(number, bent.term(), bent.matrix)
            return zip(node.inputs, bent.linear()), bent.shift()
        if self.kinked and index in self.forms.kinks:
            kinks = self.forms.kinks[index].take(self.instances)
            basis = self.bases[kinks.basis]
            back, constant, on_basis = kinks.met(A[0].expand(len(self.instances), *A.shape[2:]), basis)
            self.kinks[index] = kinks, basis
            self.lines.append((kinks.basis, on_basis))
            return zip(node.inputs, (back[None],)), constant[None]
        if self._fitted(index):
            assert isinstance(node.operator, Softmax)
            assert self.near is not None
            logits = self.forms.logits[index].take(self.instances)
            z, axis = self.bases[logits.basis].values(self.near), node.operator.axis
            fit = FittedRows(A[0], axis, logits, z, self.known.get(index), self.values.pop(index, None))
            self.fits[index] = fit
            on_logits, shift = fit.linear(A.shape[2:])
            return zip(node.inputs, on_logits), shift
        return super().step(index, A)

    def _fitted(self, index: int) -> bool:
        """Whether the rows of a node are fitted."""
        if self.near is None or index not in self.forms.logits:
            return False
        node = self.bounds.graph.nodes[index]
        assert isinstance(node.operator, Softmax)
        return node.shape[node.operator.axis] - 1 in CELLS and node.operator.mask is None

    def _mixes(self, split: Split, factor: int) -> bool:
        """Whether a product is left to the fits of the rows that are its kept factor; they are told what they mix."""
        structure, factors = self.bounds.structure, split.factors
        source = structure.source(factor)
        if not self.mixed or factors.error is None or not self._fitted(source) or source in self.values:
            return False
        node, order = self.bounds.graph.nodes[source], structure.order(factor).to(split.pull.device)
        if self.forms.logits[source].basis != factors.basis or len(order.unique()) != math.prod(node.shape):
            return False
        assert isinstance(node.operator, Softmax)
        axis = node.operator.axis

        def rows(t: Tensor) -> Tensor:
            """``[..., *shape of the factor]`` as ``[..., R, K]``."""
            leading = t.shape[: t.ndim - len(self.bounds.graph.shape_of(factor))]
            flat = t.flatten(len(leading))
            placed = torch.empty_like(flat).index_copy(-1, order, flat).unflatten(-1, node.shape)
            return placed.movedim(axis + len(leading), -1).flatten(len(leading), -2)

        slopes = rows(split.pull).movedim(0, -1)  # [P, R, K, r]
        centre, error = (rows(t.expand(len(slopes), *t.shape[1:])) for t in (split.centres[split.kept], factors.error))
        radius = split.basis.over_noise(slopes.flatten(1, 2)).abs().sum(-1).reshape(centre.shape)
        self.values[source] = MixedValues(slopes, centre, radius, error)
        return True

    def _add(self, number: int, term: Term, matrix: Callable[[], Tensor]) -> bool:
        """Collects a quadratic of a basis, thin or as a matrix; whether it is thin."""
        thin = term.is_thin(self.bases[number])
        if thin:
            self.thin.setdefault(number, []).append(term)
        else:
            self._add_matrix(number, matrix())
        return thin

    def _add_matrix(self, number: int, matrix: Tensor) -> None:
        self.matrices[number] = self.matrices[number] + matrix if number in self.matrices else matrix

    def thicken(self, number: int) -> None:
        """All that is collected of one basis becomes one matrix over it."""
        size = self.bases[number].size
        for term in self.thin.pop(number, []):
            self._add_matrix(number, term.over(size))
        if number not in self.matrices:
            self.matrices[number] = self.bases[number].map.new_zeros(len(self.instances), size, size)


def bound_quadratic(found: Quadratic, noise: Noise, steps: int, target: Tensor) -> Tensor:
    """Lower bounds ``[P]`` on quadratics: absolute sums first, multipliers where those do not reach the target."""
    return solve_quadratic(found, noise, Pursuit(steps, target))[0]


def solve_quadratic(found: Quadratic, noise: Noise, pursuit: Pursuit) -> tuple[Tensor, Tensor]:
    """The same with the multipliers ``[P, n]`` that it comes from; NaN where it takes none."""
    linear = found.linear
    n = linear.shape[1]
    ball = noise.ball(n, linear.device)
    d = torch.full_like(linear, torch.nan)
    if not found.bases:
        return sum_below(found.constant, -noise.radius(linear)), d
    goal = pursuit.target - found.constant
    if noise.norm == 1 and n < _LARGE:
        B, lost = found.dense()
        return sum_below(found.constant, sum_below(over_pairs(linear, B, noise.inputs, noise.held), -lost)), d
    problem, lost = found.problem(ball)
    pursuit = replace(pursuit, target=goal + lost)
    if isinstance(problem, LowRankQuadratic):
        # Cheap enough to look for multipliers even where absolute sums are a proof; the sums are left where those fail.
        value, d = maximise(problem, pursuit)
        value = torch.maximum(value, problem.absolute_sums()[0])
    else:
        few = min(pursuit.steps, _FEW) if isinstance(problem, BlockQuadratic) else pursuit.steps
        value, d = bound(problem, replace(pursuit, steps=few))
    return sum_below(found.constant, sum_below(value, -lost)), d


def _few(entries: int, noise: int) -> bool:
    """Whether it pays to work over the entries of bases instead of all the noise."""
    return entries < 0.6 * noise


def over_pairs(linear: Tensor, B: Tensor, inputs: int, held: Tensor | None = None) -> Tensor:
    """Lower bounds ``[P]`` on ``l . eps + eps'B eps`` with the first ``inputs`` numbers in an l_1 ball; no search.

    A point of the ball is ``sum_k t_k s_k`` with t >= 0 adding up to one and corners s (signed units, or nothing), so
    that there ``l . eps + eps'B eps = sum_km t_k t_m ((l . s_k + l . s_m) / 2 + s_k'B s_m)`` is at least its smallest
    term. All other noise is bounded by absolute sums, of what it meets at a corner, too. ``held [inputs]``: 1 for noise
    that is never below 0, -1 for noise that is never above; such noise has one corner.
    """
    own, met = B[:, :inputs, :inputs], B[:, :inputs, inputs:]
    other, rest = linear[:, inputs:], B[:, inputs:, inputs:]
    square = rest.diagonal(dim1=-2, dim2=-1)
    away = rest.abs().sum(-1).sum(-1) - square.abs().sum(-1) + (-square).clamp(min=0).sum(-1)
    meeting = 2 * met.abs().sum(-1)  # [P, inputs]
    up, down = linear[:, :inputs] - meeting, -linear[:, :inputs] - meeting  # at the unit, at its negative
    if held is not None:
        up, down = torch.where(held < 0, math.inf, up), torch.where(held > 0, math.inf, down)
    best = torch.minimum(up, down)
    alike = torch.minimum(up[:, :, None] + up[:, None], down[:, :, None] + down[:, None]) / 2 + own
    apart = (up[:, :, None] + down[:, None]) / 2 - own
    single = best.amin(-1).clamp(max=0) / 2  # one corner is nothing
    pairs = torch.minimum(alike.amin((-2, -1)), apart.masked_fill(_diagonal(apart), math.inf).amin((-2, -1)))
    low = torch.minimum(pairs, single).clamp(max=0) - other.abs().sum(-1) - away
    size = linear.abs().sum(-1) + B.abs().sum(-1).sum(-1)
    return low - 2 * share(2 * linear.shape[1], linear.dtype) * size


def _diagonal(t: Tensor) -> Tensor:
    return torch.eye(t.shape[-1], dtype=torch.bool, device=t.device)


def sum_below(a: Tensor, b: Tensor) -> Tensor:
    """A number below the real sum, which one operation may have rounded up; -inf where nothing is known."""
    low = torch.nextafter(a + b, torch.full_like(a, -math.inf))
    return torch.where(low.isfinite(), low, -math.inf)


def _pull(operator: Bilinear, C: Tensor, kept: int, slope: Tensor) -> Tensor:
    """``operator.contract`` of ``C [P, *out]`` with all slopes ``[P or 1, r, *shape]`` of the factor not kept."""
    if isinstance(operator, MatMul) and len(operator.left) > 1 and operator.left[:-2] == operator.right[:-2]:
        # One product of matrices for all slopes.
        shared = len(slope) == 1
        met = ("r...mj->rp...im", "r...im->rp...mj")[kept]
        return torch.einsum(f"p...ij,{'' if shared else 'p'}{met}", C, slope[0] if shared else slope)
    spread = slope.expand(len(C), *slope.shape[1:]).transpose(0, 1)
    return operator.contract(C.expand(len(spread), *C.shape), kept, spread)


class Split:
    """One product met with coefficients ``C [P, *out]``, split at the centres of its factors."""

    def __init__(self, operator: Bilinear, C: Tensor, factors: Factors, basis: Basis) -> None:
        self.operator = operator
        self.C = C.expand(len(basis.map), *C.shape[1:])
        self.factors, self.basis = factors, basis
        r = max(form.slope.shape[1] for form in (factors.x, factors.y))
        self.slopes = factors.x.padded(r), factors.y.padded(r)
        self.centres = [factors.x.centre, factors.y.centre]
        self.kept = factors.kept
        # What multiplies the kept factor, per basis entry: [r, P, *shape of the kept factor].
        self.pull = _pull(operator, self.C, self.kept, self.slopes[1 - self.kept])
        if factors.error is not None and factors.metric is not None:
            self._eliminate(factors.error, factors.axis, factors.metric)

    def _eliminate(self, error: Tensor, axis: int, metric: Tensor) -> None:
        """Replace one probability of every row by one minus the others: only differences of values are multiplied.

        It is the one for which the errors of the others meet the smallest differences, in a metric of the basis.
        """
        pull = self.pull.movedim(axis + 2, -1)  # [r, P, ..., K]
        known = min(len(pull), metric.shape[-1])
        lines = pull[:known].movedim(0, -1)  # [P, ..., K, r]
        metric = metric[:, :known, :known]
        measured = (lines.flatten(1, -2) @ (metric[0] if len(metric) == 1 else metric)).reshape(lines.shape)
        inner = measured @ lines.mT
        squares = inner.diagonal(dim1=-2, dim2=-1)
        apart = (squares[..., :, None] + squares[..., None, :] - 2 * inner).clamp(min=0).sqrt()
        error = error.movedim(axis + 1, -1)
        price = (
            (error[..., :, None] * apart).sum(-2).masked_fill(error == 0, math.inf)
        )  # what is masked stands for none
        reference = price.argmin(-1, keepdim=True)  # [P, ..., 1]
        centre = self.centres[self.kept].movedim(axis + 1, -1)
        chosen = torch.zeros_like(centre, dtype=torch.bool).scatter(-1, reference, True)
        centre = torch.where(chosen, 1 - centre.masked_fill(chosen, 0.0).sum(-1, keepdim=True), centre)
        self.centres[self.kept] = centre.movedim(-1, axis + 1)
        pull = pull - pull.gather(-1, reference.expand(len(pull), *reference.shape))
        self.pull = pull.movedim(-1, axis + 2)

    def linear(self) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Coefficients on both factors and the constant of the linear part, ``[1, P, ...]``."""
        C, (x, y) = self.C[None], self.centres
        constant = (self.C * self.operator.value(x, y)).flatten(1).sum(1)
        return (self.operator.contract(C, 0, y[None]), self.operator.contract(C, 1, x[None])), -constant[None]

    def charge(self, thin: bool) -> Tensor:
        """What the rounding of this product costs ``[1, P]``: that of its factors, and that of working with them.

        The split is exact whatever its centres are: what forms are off by meets the deviations alone. Both linear
        parts, the constant and the product of deviations are rounded, each a share of the whole.
        ``thin``: over the noise, too, not over the basis alone.
        """
        factors, kept = self.factors, self.kept
        own, other = (factors.x, factors.y)[kept], (factors.x, factors.y)[1 - kept]
        spread, spread_of_other = factors.spreads[kept], factors.spreads[1 - kept]
        C = self.C.abs()[None]
        entries = math.prod(self.C.shape[1:]) + math.prod(spread.shape[1:])
        entries = entries + (2 if thin else 1) * self.slopes[0].shape[1]

        def met(t: Tensor) -> Tensor:
            """What meets an entry of the kept factor at most; a reference adds its own to all of its row."""
            pull = self.operator.contract(C, kept, t[None])[0]
            return pull if factors.error is None else pull + pull.amax(factors.axis + 1, keepdim=True)

        def total(a: Tensor, b: Tensor) -> Tensor:
            return (a * b).flatten(1).sum(1)

        lost = total(own.error, met(spread_of_other + other.error)) + total(spread, met(other.error))
        size, size_of_other = (f.centre.abs() + s + f.error for f, s in ((own, spread), (other, spread_of_other)))
        of_one, of_all = share(entries, C.dtype), total(size + 1, met(size_of_other))
        return (lost * (1 + of_one) + 4 * of_one * of_all)[None]

    def _deviations(self) -> tuple[Tensor, Tensor]:
        """The slopes ``[P or 1, r, entries]`` of the kept factor, and those ``[P, r, entries]`` of what it meets."""
        return self.slopes[self.kept].flatten(2), self.pull.flatten(2).transpose(0, 1)

    def term(self) -> Term:
        """The product of deviations by its factors: a sum over the entries that move and that something multiplies."""
        slope, pull = self._deviations()
        moving = (slope != 0).any(1).any(0) & (pull != 0).any(1)  # [P, entries]
        count = int(moving.sum(1).max()) if len(moving) else 0
        # Those of every problem come first in an order of its own; beyond them products are zero.
        order = moving.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, None, :count]
        slope, pull = (t.expand(len(order), -1, -1).gather(2, order.expand(-1, t.shape[1], -1)) for t in (slope, pull))
        pull = pull * moving.gather(1, order[:, 0])[:, None]
        half = torch.eye(count, dtype=pull.dtype, device=pull.device) / 2
        zero = torch.zeros_like(half)
        swap = torch.cat((torch.cat((zero, half), 1), torch.cat((half, zero), 1)))
        return Term(torch.cat((slope, pull), 2).mT, swap.expand(len(pull), *swap.shape))

    def losses(self, z: Tensor) -> Tensor:
        """What the errors of the probabilities cost at most where the basis is ``z [P, r]``: in the shape of these."""
        assert self.factors.error is not None
        met = (self.pull * z.T[: len(self.pull)].reshape(-1, len(z), *[1] * (self.pull.ndim - 2))).sum(0)
        return self.factors.error * met.abs()

    def matrix(self) -> Tensor:
        """The symmetric matrix ``[P, r, r]`` of the product of deviations over the basis."""
        slope, pull = self._deviations()
        found = slope @ pull.mT
        found = (found + found.mT) / 2
        missing = self.basis.size - found.shape[-1]
        return torch.nn.functional.pad(found, (0, missing, 0, missing)) if missing else found
