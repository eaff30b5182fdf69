"""Quadratics below a combination of the probabilities of one softmax row, proved cell by cell.

Notation: logits x of one row, one of them the reference J; ``d_j = x_j - x_J`` for the m others, in the box that is
proved of them; ``phi(d) = sum_k a_k p_k`` for weights a; ``q(d) = s.y + y'H y`` with symmetric H and ``y = d - o`` for
some origin o. Where there are lines ``l_j = level_j + slope_j . y`` beside the probabilities of the others, phi is less
``sum_j price_j (p_j - l_j)^2``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from flint import arb

from .balls import ONE, ZERO, Balls, exact, magnitude, matrix, times, zeros
from .softmax_planes import Logits

MOST_CELLS = 1 << 13  # of one row


@dataclass(frozen=True)
class Lines:
    """Beside the probabilities of the others, and the price of the squares of what they are off by.

    ``price [m]``, ``level [m]``, ``slope [m, m]``.
    """

    price: Balls
    level: Balls
    slope: Balls


@dataclass(frozen=True)
class RowQuadratic:
    """``phi - q`` of one row: ``weights [m]`` are those of the others less that of the reference, ``base``."""

    weights: Balls
    base: arb
    origin: Balls
    slope: Balls
    H: Balls
    lines: Lines | None = None

    @staticmethod
    def of(a: Balls, reference: int, origin: Balls, slope: Balls, H: Balls, lines: Lines | None = None) -> RowQuadratic:
        """For weights ``a [K]`` on all probabilities of a row."""
        return RowQuadratic(np.delete(a, reference) - a[reference], a[reference], origin, slope, H, lines)

    def least(self, centre: Balls, half: Balls) -> tuple[arb, arb]:
        """``f = phi - q`` at the centre of the cell ``|d - centre| <= half``, and a lower bound on it in the cell.

        Theorem: ``f(c + v) = f(c) + g.v + v'F v / 2`` for a point of the cell at which F is the Hessian (Taylor). With
        ``b = a - a_J`` and ``u_k = b_k - sum_j p_j b_j`` that of phi is ``p_i u_i [i = j] - p_i p_j (u_i + u_j)``, and
        its gradient ``p_i u_i``; a probability is largest where its own logit is largest and the others smallest. So
        ``f(c + v) >= f(c) + sum_i min (-|g_i| |v_i| + F_ii v_i^2 / 2) - sum_(i<j) |F_ij| h_i h_j``, and a parabola
        that opens upward with its vertex inside is least there, any other at the end.

        With lines, ``t = p - l`` is ``t_c + G v``, where G is the mean of ``dt/dd`` on the way from the centre, with
        entries among the values of ``p_j ([j = k] - p_k) - slope_jk`` there or between them. So, exactly,
        ``t_j^2 = t_cj^2 + 2 t_cj (t_j - t_cj) + (G v)_j^2``: the second term takes the constants ``2 price t_c`` off
        the weights, and the last is ``v'G'diag(price)G v``.
        """
        here, gradient, off = self._at(centre)
        value, weights = here, self.weights
        p, bent = _ranges(centre, half), -2 * self.H
        if self.lines is not None:
            price, G = self.lines.price, _slopes(p) - self.lines.slope
            weights = weights - 2 * price * off
            bent = bent - 2 * times(G.T * price, matrix(G))
        u = weights - (p * weights).sum()
        F = bent - np.outer(p, p) * (u[:, None] + u[None])
        np.fill_diagonal(F, np.diagonal(F) + p * u)
        for i, h in enumerate(half):
            steep, bend = abs(gradient[i]).upper(), F[i, i].lower()
            if bend > 0 and not steep >= bend * h:
                value -= steep * steep / (2 * bend)
            else:
                value += (bend * h / 2 - steep) * h
        mixed = magnitude(F) * np.outer(half, half)
        np.fill_diagonal(mixed, ZERO)
        return here, value - mixed.sum() / 2

    def _at(self, d: Balls) -> tuple[arb, Balls, Balls]:
        """f, its gradient, and what lines are off by, at a point."""
        e = np.array([v.exp() for v in d], dtype=object)
        p = e / (ONE + e.sum())
        mean = (p * self.weights).sum()
        y = d - self.origin
        along = times(self.H, matrix(y[:, None]))[:, 0]
        value = self.base + mean - (self.slope * y).sum() - (along * y).sum()
        gradient = p * (self.weights - mean) - self.slope - 2 * along
        if self.lines is None:
            return value, gradient, zeros(len(d))
        off = p - self.lines.level - times(self.lines.slope, matrix(y[:, None]))[:, 0]
        cost = self.lines.price * off
        steep = times(cost[None], matrix(_slopes(p) - self.lines.slope))[0]
        return value - (cost * off).sum(), gradient - 2 * steep, off


def _slopes(p: Balls) -> Balls:
    """The derivatives ``[m, m]`` of probabilities by the differences."""
    found = -np.outer(p, p)
    np.fill_diagonal(found, np.diagonal(found) + p)
    return found


def _ranges(centre: Balls, half: Balls) -> Balls:
    """Balls around the probabilities of the others within a cell."""
    low, high = ([v.exp() for v in end] for end in (centre - half, centre + half))
    least, most = ONE + sum(low, ZERO), ONE + sum(high, ZERO)
    return np.array([(a / (most - b + a)).union(b / (least - a + b)) for a, b in zip(low, high)], dtype=object)


def below(f: RowQuadratic, x: Logits, reference: int, value: arb) -> bool:
    """Whether ``phi - q >= value`` for all logits that are proved possible: seen cell by cell, halved where need be.

    Theorem: the differences lie in the box that ``apart`` gives, and a cell no point of which has differences
    ``d_i - d_j`` within their own bounds holds none of them.
    """
    others = np.delete(np.arange(len(x.low)), reference)
    low, high = x.apart[others, reference], -x.apart[reference, others]
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return False
    apart = exact(x.apart[np.ix_(others, others)])
    first, last = exact(low), exact(high)
    waiting = [((first + last) / 2, (last - first) / 2)]
    seen = 0
    while waiting:
        centre, half = waiting.pop()
        seen += 1
        if seen > MOST_CELLS:
            return False
        if _outside(centre, half, apart):
            continue
        here, least = f.least(centre, half)
        if least >= value:
            continue
        if here < value and not _outside(centre, 0 * half, apart):  # no smaller cells will help
            return False
        widest = int(np.argmax(half.astype(np.float64)))
        part = half.copy()
        part[widest] = half[widest] / 2
        for side in (-part[widest], part[widest]):
            moved = centre.copy()
            moved[widest] = centre[widest] + side
            waiting.append((moved, part))
    return True


def _outside(centre: Balls, half: Balls, apart: Balls) -> bool:
    """Whether no point of a cell has ``d_i - d_j >= apart[i, j]`` for all i and j."""
    m = len(centre)
    return any(centre[i] - centre[j] + half[i] + half[j] < apart[i, j] for i in range(m) for j in range(m) if i != j)
