"""Forms of large networks: over all inputs that move, and over one ball for every token instead of all older noise.

There is too much fresh noise to keep. Merged into a number for every entry, it grows with the absolute row sums of
every layer, about tenfold each time. A ball ``|u| <= 1`` for every token keeps how the entries of the token move
together, and grows about as the noise does.

Every entry of a node belongs to one token, or to none (``token_labels``). The slopes of an entry behind those over the
inputs are over noise of its own token: its balls, and fresh numbers in [-1, 1], which are balls of one dimension. So
the rules of forms hold as they are wherever no operator brings tokens together. Where attention does, the noise of all
tokens that are attended to becomes one ball of the token that attends; where a node is all that later ones read, the
noise of every token becomes one ball. ``B_1 u_1 + B_2 u_2 + ...`` lies in the ellipsoid of ``sum_s (C / c_s) B_s
B_s^T`` for any positive ``c_s`` that sum up to C, and an ellipsoid is a ball by its Cholesky factor. Noise that cannot
be written so is charged to the entries, as rounding is.
"""

from __future__ import annotations

import math
from functools import singledispatchmethod

import torch
from torch import Tensor

from ..graph.operator import Operator
from ..graph.ops.matmul import MatMul
from ..graph.rounding import euclidean, underflow
from .crown import LinearBounds
from .second_order.affine_form import AffineForm, absolute_sum, worth_noise
from .second_order.rules import NoAffineForms
from .shadow import Shadow
from .token_labels import by_last_axis, common, entries_by_token, labelled, labels
from .zonotopes import Zonotopes, attends_often

# Pairs of entries, about what the walks of all nodes have coefficients, with which these take some minutes.
_MUCH = 1 << 34
# Differences within longer rows are bounded by both logits: one by one, they would take time with the fourth power of
# the number of tokens.
_LONG = 64
# Numbers in the functions of the input that are kept of a node.
_FEW = 1 << 20


def worth_balls(bounds: LinearBounds) -> bool:
    """Whether forms over balls take much less than walks, several layers of attention provided."""
    return attends_often(bounds) and bounds.structure.volume(len(bounds.graph.nodes) - 1) ** 2 > _MUCH


def known_by_token_balls(bounds: LinearBounds) -> LinearBounds:
    """The same bounds of one instance, which know all that forms over balls say of the nodes.

    NoAffineForms where there are none.
    """
    TokenBalls(bounds).tell_all()
    return bounds


class TokenBalls(Zonotopes):
    """The forms of the nodes at hand, over the inputs that move and then over noise of the token of an entry."""

    tensors = 128  # about three of them are held at once

    def __init__(self, bounds: LinearBounds) -> None:
        super().__init__(bounds)
        self._tokens = {-1: torch.full(self.graph.input_shape, -1, device=self.centre.device)}
        self._balls: list[slice] = []  # slopes, counted behind those over the inputs, that are over one ball together
        self._node = -1  # whose form is being made

    def add(self, index: int) -> None:
        """The form of the next node, of which the bounds then know."""
        node, self._node = self.graph.nodes[index], index
        self._check_memory(index, self.count)
        found = labels(node.operator, self.centre, *(self._tokens[i] for i in node.inputs))
        if found is None:
            raise NoAffineForms(f"no forms for {node.operator.name} at {node.label}")
        self._tokens[index], mixed = found
        for i in (node.inputs[k] for k in mixed):
            self._forms[i] = self._without_balls(self._forms[i])
        self._forms[index] = self.rule(node.operator, index)
        self._tell(index)

    def forget(self, index: int) -> None:
        super().forget(index)
        del self._tokens[index]

    def settle(self, index: int) -> None:
        """Gives every entry of a node that is all that later ones read a token, and no more noise than entries."""
        self._node = index
        form, order = self._forms[index], entries_by_token(self._tokens[index])
        if order is None:
            form, order = self._without_balls(form), by_last_axis(form.centre.shape[1:], form.centre.device)
        self._tokens[index] = labelled(order, form.centre.shape[1:])
        n, (T, D), self.count = len(self.moving), order.shape, form.slope.shape[1]
        self._balls = [ball for ball in self._balls if ball.stop <= self.count - n]
        if bool(worth_noise(form.error, form.centre).any()):
            form = self._with_noise(form.centre, form.slope, form.error, torch.zeros_like(form.error))
        if self.count - n > D:
            axes = self._axes(self._ellipsoids(form.slope[:, n:], order), 0)  # [T, D, D]
            own = axes.new_empty(D, T * D)
            own[:, order.flatten()] = axes.movedim(-1, 0).flatten(1)
            self._balls, self.count = [], n
            slope = self._with_ball(form.slope[:, :n], own.unflatten(1, form.centre.shape[1:]))
            form = AffineForm(form.centre, slope, form.error)
        self._forms[index] = form

    # What forms say

    def radius_of(self, slope: Tensor) -> Tensor:
        of_inputs, of_tokens = self.parts(slope)
        return of_inputs + of_tokens

    def parts(self, slope: Tensor) -> tuple[Tensor, Tensor]:
        n = len(self.moving)
        return self._of_inputs(slope[:, :n]), self._of_tokens(slope[:, n:])

    def _of_inputs(self, slope: Tensor) -> Tensor:
        if self.noise.norm != math.inf:
            return self.noise.radius(slope.movedim(1, -1))
        return absolute_sum(slope, slope.new_ones(1, slope.shape[1])) * (1 + self.share(slope.shape[1]))

    def _of_tokens(self, slope: Tensor) -> Tensor:
        """How far noise of tokens moves what has slopes ``[1, k, ...]`` over it."""
        total = slope.new_zeros(1, *slope.shape[2:])
        for part, ball in self._parts(slope.shape[1]):
            rows = slope[:, part]
            if ball:
                total += euclidean(rows, 1)
            else:
                total += absolute_sum(rows, rows.new_ones(1, rows.shape[1]))
        return total * (1 + self.share(slope.shape[1]))

    def _parts(self, count: int) -> list[tuple[slice, bool]]:
        """The first slopes over noise of tokens in order: whole balls (True), and numbers each of which is alone."""
        found, at = [], 0
        for ball in self._balls:
            if ball.stop <= count:
                found += [(slice(at, ball.start), False), (ball, True)]
                at = ball.stop
        return [(part, ball) for part, ball in [*found, (slice(at, count), False)] if part.start < part.stop]

    def _apart(self, rows: Tensor) -> Tensor:
        if rows.shape[-1] > _LONG:
            radius = self.radius_of(rows)
            return radius[..., :, None] + radius[..., None, :]
        if self.noise.norm != math.inf:
            return super()._apart(rows)
        n, exact = len(self.moving), "donot_use_mm_for_euclid_dist"
        lines = rows[0].movedim(0, -1)  # [rows, K, r]
        inputs, others = lines[..., :n], lines[..., n:]
        found = torch.cdist(inputs, inputs, p=1)
        for part, ball in self._parts(others.shape[-1]):
            some = others[..., part]
            lost = math.sqrt(some.shape[-1] * underflow(some.dtype)) if ball else 0.0
            found = found + torch.cdist(some, some, p=2 if ball else 1, compute_mode=exact) + lost
        return found[None] * (1 + self.share(rows.shape[1]))

    def _shadow(self, index: int) -> Shadow | None:
        small = math.prod(self.graph.nodes[index].shape) * len(self.moving) <= _FEW
        return super()._shadow(index) if small else None

    # Rules

    @singledispatchmethod
    def rule(self, operator: Operator, index: int) -> AffineForm:
        return super().rule(operator, index)

    @rule.register
    def _(self, operator: MatMul, index: int) -> AffineForm:
        left, right = self.graph.nodes[index].inputs
        x, y, n = self.form(left), self.form(right), len(self.moving)
        half, other = self._half(left), self._half(right)
        if self.bounds.structure.rows_are_softmax(left, len(operator.left) - 1):
            x, shifted = self._summing_to_one(x)
            half = half + shifted
        radius, own, balls = operator.value(half, other), None, y.slope[:, n:]
        missed = torch.zeros_like(radius)
        if balls.shape[1]:
            y = AffineForm(y.centre, y.slope[:, :n], y.error)
            spread = absolute_sum(balls, balls.new_ones(1, balls.shape[1]))
            cost = self.share(balls.shape[1] + 2 * operator.left[-1])
            tiny = underflow(spread.dtype)
            missed = operator.value(cost * x.centre.abs() + x.error + tiny, spread) * (1 + cost)
            own = self._attended(operator, index, x, balls)
            if own is None:
                radius = radius + self._on_the_right(operator, right, x, balls)
        centre, slope, radius, error = self.tangent(operator, x, y, (-radius, radius))
        if own is not None:
            slope = self._with_ball(slope, own)
            missed = missed + len(own) * underflow(missed.dtype)
        return self._with_noise(centre, slope, radius, error + missed)

    def _on_the_right(self, operator: MatMul, right: int, x: AffineForm, balls: Tensor) -> Tensor:
        """How far balls of the right factor, with slopes ``[1, k, ...]``, move a product."""
        if common(self._tokens[right], (len(operator.right) - 2,)) is None:  # several tokens in a column
            return operator.value(x.centre.abs(), self._of_tokens(balls))
        return self._of_tokens(operator.value(x.centre.expand(balls.shape[1], *operator.left), balls[0])[None])

    def _attended(self, operator: MatMul, index: int, x: AffineForm, balls: Tensor) -> Tensor | None:
        """The ball of every row of ``x @ y`` that holds what balls of the rows of y, of one token each, do to it.

        Slopes ``[entries of a row, *shape]``. None where rows are not those of different tokens.
        """
        rows, inner = operator.left[-2:]
        columns, heads = operator.right[-1], math.prod(operator.left[:-2])
        others = tuple(axis for axis in range(len(operator.left)) if axis != len(operator.left) - 2)
        for tokens in (self._tokens[index], self._tokens[self.graph.nodes[index].inputs[1]]):
            of_rows = common(tokens, others)
            if of_rows is None or bool((tokens < 0).any()) or len(of_rows.unique()) < of_rows.numel():
                return None
        order = torch.arange(heads * inner * columns, device=balls.device).reshape(heads, inner, columns)
        given = self._ellipsoids(balls, order.movedim(1, 0).flatten(1)).reshape(inner, heads, columns, heads, columns)
        # Products of small weights vanish, and the balls with them: weights of a row are made one at most.
        weight, tiny = x.centre.reshape(heads, rows, inner), underflow(balls.dtype)
        scale = weight.abs().amax((0, 2)).clamp(min=tiny)
        weight = weight / scale[:, None]
        power = torch.einsum("mhjhj->mh", given)
        size = torch.einsum("him,mh->im", weight.square() + tiny, power).sqrt().clamp(min=math.sqrt(tiny))
        grown = size.sum(-1, keepdim=True) / size * (1 + self.share(2 * inner))
        pairs = torch.einsum("im,him,gim->imhg", grown, weight, weight)
        whole = torch.einsum("imhg,mhjgk->ihjgk", pairs, given).reshape(rows, heads * columns, heads * columns)
        lost = torch.einsum("im,mh->i", 8 * tiny * grown, power)
        whole.diagonal(dim1=-2, dim2=-1).add_(lost[:, None])
        axes = self._axes(whole, inner + balls.shape[1]) * (scale * (1 + self.share(2)))[:, None, None]
        axes = axes.reshape(rows, heads, columns, -1)
        return axes.permute(3, 1, 0, 2).reshape(heads * columns, *operator.left[:-1], columns)

    # Balls

    def _without_balls(self, form: AffineForm) -> AffineForm:
        """The form with what balls do charged to every entry."""
        n = len(self.moving)
        error = (form.error + self._of_tokens(form.slope[:, n:])) * (1 + self.share(2))
        return AffineForm(form.centre, form.slope[:, :n], error)

    def _with_noise(
        self, centre: Tensor, slope: Tensor, radius: Tensor, error: Tensor, rate: Tensor | None = None
    ) -> AffineForm:
        """A form plus fresh noise of every token, one number for each entry with a radius that is more than rounding.

        It takes the error in, which would grow with every sum of absolute values that it goes through. Slopes are
        multiplied by ``rate`` where there is one.
        """
        tokens = self._tokens[self._node].flatten()
        noisy = worth_noise(radius, centre) & radius.isfinite() & (tokens >= 0).reshape(centre.shape)
        radius = (radius + error) * (1 + self.share(2))
        error = torch.where(noisy, 0.0, radius)
        entries = noisy.flatten().nonzero()[:, 0]
        if not len(entries):
            return AffineForm(centre, slope if rate is None else slope * rate[:, None], error)
        entries = entries[tokens[entries].argsort(stable=True)]
        counts = tokens[entries].bincount()
        place = torch.arange(len(entries), device=entries.device) - (counts.cumsum(0) - counts)[tokens[entries]]
        own = slope.new_zeros(int(counts.max()), len(tokens))
        own[place, entries] = radius.flatten()[entries]
        self._check_memory(self._node, self.count + len(own))
        return AffineForm(centre, self._with_rows(slope, own.unflatten(1, centre.shape[1:]), rate), error)

    def _with_ball(self, slope: Tensor, own: Tensor) -> Tensor:
        """Slopes with those over one more ball, ``own [k, *shape]``."""
        first = self.count - len(self.moving)
        self._check_memory(self._node, self.count + len(own))
        self._balls.append(slice(first, first + len(own)))
        return self._with_rows(slope, own)

    def _ellipsoids(self, slopes: Tensor, order: Tensor) -> Tensor:
        """One ellipsoid ``[T, D, D]`` for the entries ``order [T, D]`` of every token, that holds all noise of it.

        ``slopes [1, k, *shape]`` are those over this noise.
        """
        lines = slopes[0].flatten(1)[:, order].movedim(0, -1)  # [T, D, k]
        sizes, total = lines.norm(dim=1), lines.new_zeros(len(lines))
        for part, ball in self._parts(lines.shape[-1]):
            if ball:
                sizes[:, part] = sizes[:, part].norm(dim=1, keepdim=True)
            sizes[:, part].clamp_(min=math.sqrt(underflow(sizes.dtype)))
            total = total + (sizes[:, part.start] if ball else sizes[:, part].sum(1))
        grown = (total[:, None] / sizes).sqrt() * (1 + self.share(lines.shape[-1]))
        lines = lines * grown[:, None]
        return self._raised(lines @ lines.mT, lines.shape[-1])

    def _raised(self, squares: Tensor, terms: int) -> Tensor:
        """Positive semidefinite matrices made of sums of so many terms, plus what rounding them and factors may cost.

        Both cost a share of the trace, which no norm of such a matrix exceeds.
        """
        D = squares.shape[-1]
        trace = squares.diagonal(dim1=-2, dim2=-1).sum(-1)
        cost = 4 * self.share(2 * D + terms) * trace + 4 * D * terms * underflow(squares.dtype)
        return squares + torch.diag_embed(cost[..., None].expand(squares.shape[:-1]))

    def _axes(self, squares: Tensor, terms: int) -> Tensor:
        """``B`` with ``B B^T`` at least the given matrices ``[T, D, D]``, sums of so many terms."""
        raised = self._raised(squares, terms)
        found, failed = torch.linalg.cholesky_ex(raised)
        # Row sums of absolute values are at least the matrix, too.
        rows = (raised.abs().sum(-1) * (1 + self.share(raised.shape[-1]))).sqrt() * (1 + self.share(2))
        return torch.where((failed == 0)[:, None, None], found, torch.diag_embed(rows))
