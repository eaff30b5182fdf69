"""Safe values of linear programs: what any dual vector proves, rounding included (Neumaier and Shcherbina 2004)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_UNIT = 2.0**-53
_TINY = float(np.finfo(np.float64).tiny)  # what a product may lose near zero


@dataclass(frozen=True)
class Rows:
    """Sparse rows ``lower <= A x <= upper`` in compressed form; infinite sides are allowed.

    What is known for certain is ``lower - slack <= A x <= upper + slack``: the slack is too small for a solver to see.
    """

    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    slack: np.ndarray

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.lower)

    def __add__(self, other: Rows) -> Rows:
        return Rows(
            np.concatenate((self.starts[:-1], self.starts[-1] + other.starts)),
            np.concatenate((self.columns, other.columns)),
            np.concatenate((self.values, other.values)),
            np.concatenate((self.lower, other.lower)),
            np.concatenate((self.upper, other.upper)),
            np.concatenate((self.slack, other.slack)),
        )


def safe_maximum(cost: np.ndarray, rows: Rows, box_lower: np.ndarray, box_upper: np.ndarray, dual: np.ndarray) -> float:
    """A number no smaller than ``max cost . x`` over all x of the finite box that satisfy the rows, for any dual.

    ``cost . x = dual . (A x) + (cost - A' dual) . x``: the first part is bounded by the sides of the rows (duals that
    point at an infinite side are dropped), the second by the box, and the rounding of both is added.
    """
    dual = np.where(np.isfinite(dual), dual, 0.0)
    dual = np.where((dual > 0) & np.isinf(rows.upper), 0.0, dual)
    dual = np.where((dual < 0) & np.isinf(rows.lower), 0.0, dual)
    used = dual != 0
    sides = np.where(dual > 0, rows.upper, np.where(used, rows.lower, 0.0))
    lengths = np.diff(rows.starts)
    products = rows.values * np.repeat(dual, lengths)
    n = len(cost)
    reduced = cost - np.bincount(rows.columns, products, minlength=n)
    largest = np.maximum(np.abs(box_lower), np.abs(box_upper))
    size = np.abs(cost) + np.bincount(rows.columns, np.abs(products), minlength=n)
    parts = np.where(reduced > 0, reduced * box_upper, reduced * box_lower)
    row_parts = dual * sides
    slack = float((np.abs(dual) * rows.slack).sum())
    terms = n + rows.count + int(np.count_nonzero(used))
    # Relative errors of the products, of the sums in `reduced` (at most one term per row) and of the final sum; the
    # factor 2 covers the rounding of this line itself.
    absolute = float(np.abs(row_parts).sum() + slack + ((size + np.abs(reduced)) * largest).sum())
    lost = _TINY * terms**2 * (1 + float(largest.max(initial=0.0)))
    return float(row_parts.sum() + parts.sum() + slack + 2 * _gamma(terms + 4) * absolute + lost)


def _gamma(n: int) -> float:
    return n * _UNIT / (1 - n * _UNIT)
