"""Arrays of balls: NumPy object arrays whose entries are ``flint.arb``, each containing its real number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flint import arb, arb_mat

PRECISION = 80  # bits; numbers of the certificate and of the model have 53 at most and enter exactly
ZERO, ONE = arb(0), arb(1)

Balls = np.ndarray[Any, np.dtype[np.object_]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

exact = np.frompyfunc(arb, 1, 1)  # floats become balls of radius zero
positive = np.frompyfunc(lambda a: a.max(ZERO), 1, 1)
negative = np.frompyfunc(lambda a: a.min(ZERO), 1, 1)
magnitude = np.frompyfunc(abs, 1, 1)
is_zero = np.frompyfunc(lambda a: a.is_zero(), 1, 1)


def zeros(*shape: int) -> Balls:
    """An array of exact zeros."""
    found = np.empty(shape, dtype=object)
    found.fill(ZERO)
    return found


def largest(row: Balls) -> arb:
    """The largest of some numbers, and at least 0."""
    found = ZERO
    for a in row:
        found = found.max(a)
    return found


def euclidean(row: Balls) -> arb:
    """At least the norm of a row; a ball around zero has no root of its own."""
    return (row * row).sum().abs_upper().sqrt()


def matrix(rows: Balls | Floats) -> arb_mat:
    """A matrix of the ball library."""
    return arb_mat(*rows.shape, rows.ravel().tolist())


def times(rows: Balls | Floats, right: arb_mat) -> Balls:
    """The matrix product of ``rows [S, n]`` with ``right [n, m]``.

    The library takes 0 times what is no number for 0 where large matrices hold nothing else; one row it multiplies.
    """
    found = np.empty((rows.shape[0], right.ncols()), dtype=object)
    if not found.size:  # the list of an empty matrix has lost its shape
        return found
    one = all(a == 0 for a in rows.flat)
    found[...] = (matrix(rows[:1] if one else rows) * right).tolist()
    return found


def minimum_over(rows: Balls, lower: Floats, upper: Floats) -> Balls:
    """The least value ``[S]`` of ``rows @ x`` for ``lower <= x <= upper``: the middle less the reach."""
    low, high = exact(lower), exact(upper)
    middle, reach = matrix(((low + high) / 2)[:, None]), matrix(((high - low) / 2)[:, None])
    return (times(rows, middle) - times(magnitude(rows), reach))[:, 0]


def round_down(value: arb) -> float:
    """A float that is certainly not above the ball; -inf when nothing is certain."""
    least = value.lower()
    if least.is_nan():
        return -math.inf
    found = float(least)
    while not arb(found) <= least:
        if not found > -math.inf:  # an infinity that holds nothing
            return -math.inf
        found = math.nextafter(found, -math.inf)
    return found


def round_up(value: arb) -> float:
    """The smallest double that is certainly not below a ball."""
    return -round_down(-value)


lower_floats = np.frompyfunc(round_down, 1, 1)
upper_floats = np.frompyfunc(round_up, 1, 1)


def outward(lower: Balls, upper: Balls) -> tuple[Floats, Floats]:
    """Floats around intervals given by balls."""
    return lower_floats(lower).astype(np.float64), upper_floats(upper).astype(np.float64)
