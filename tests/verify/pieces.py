"""The worst score of tiny rectifier networks by exhaustive enumeration of their linear pieces, with no code of ours.

The input is a rectangle. It is cut along every rectifier's kink, network by network and layer by layer, so that on each
of the resulting convex polygons every rectifier is on or off throughout and all logits are affine functions of the
input. Within a polygon the logit differences are largest and smallest at its corners, which brackets every softmax
output: ``p_k`` is smallest at a corner exactly (its reciprocal is a sum of exponentials of affine functions, hence
convex), and at most what the smallest differences allow. Polygons are halved, the one with the highest upper end of
the bracket first, until the worst score over the rectangle is known to within a tolerance.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Piece:
    """Corners ``[V, 2]`` in order, and for every network the affine map ``[K, 2]``, ``[K]`` to its logits."""

    corners: np.ndarray
    maps: tuple[tuple[np.ndarray, np.ndarray], ...]

    def probabilities(self) -> np.ndarray:
        """Mean probabilities ``[V, K]`` at the corners."""
        return np.mean([_softmax(self.corners @ A.T + b) for A, b in self.maps], 0)

    def range(self) -> tuple[np.ndarray, np.ndarray]:
        """Bounds on the mean probabilities ``[K]`` over the polygon."""
        least, most = [], []
        for A, b in self.maps:
            z = self.corners @ A.T + b
            least.append(_softmax(z).min(0))
            lowest = (z[:, :, None] - z[:, None, :]).min(0)  # [j, k]: z_j - z_k
            most.append(1 / np.exp(lowest).sum(0))
        return np.mean(least, 0), np.mean(most, 0)

    def halves(self) -> list[Piece]:
        """Cut across the longer side of the bounding box."""
        low, high = self.corners.min(0), self.corners.max(0)
        axis = int(np.argmax(high - low))
        normal = np.eye(2)[axis]
        middle = (low + high)[axis] / 2
        parts = (cut(self.corners, normal, -middle), cut(self.corners, -normal, middle))
        return [Piece(corners, self.maps) for corners in parts if len(corners) > 2]


def cut(corners: np.ndarray, normal: np.ndarray, offset: float) -> np.ndarray:
    """The part of a convex polygon with ``normal . x + offset >= 0``."""
    values = corners @ normal + offset
    kept = []
    for (a, va), (b, vb) in itertools.pairwise([*zip(corners, values), (corners[0], values[0])]):
        if va >= 0:
            kept.append(a)
        if (va > 0 > vb) or (va < 0 < vb):
            kept.append(a + va / (va - vb) * (b - a))
    return np.array(kept).reshape(-1, 2)


def area(corners: np.ndarray) -> float:
    x, y = corners.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def pieces(networks: list[list[tuple[np.ndarray, np.ndarray]]], lower: np.ndarray, upper: np.ndarray) -> list[Piece]:
    """All linear pieces over a rectangle; a network is its layers ``(weights [out, in], bias)``."""
    rectangle = np.array([lower, [upper[0], lower[1]], upper, [lower[0], upper[1]]])
    found = [Piece(rectangle, ())]
    for layers in networks:
        found = [done for piece in found for done in _split(piece, layers, np.eye(2), np.zeros(2), 0)]
    return found


def _split(
    piece: Piece, layers: list[tuple[np.ndarray, np.ndarray]], A: np.ndarray, b: np.ndarray, layer: int
) -> list[Piece]:
    W, c = layers[layer]
    A, b = W @ A, W @ b + c
    if layer == len(layers) - 1:
        return [Piece(piece.corners, (*piece.maps, (A, b)))]
    parts = [(piece.corners, np.zeros(0, dtype=bool))]
    for row, offset in zip(A, b):
        parts = [
            (half, np.append(pattern, on))
            for corners, pattern in parts
            for on in (True, False)
            if len(half := cut(corners, row if on else -row, offset if on else -offset)) > 2
        ]
    return [
        done
        for corners, on in parts
        for done in _split(Piece(corners, piece.maps), layers, A * on[:, None], b * on, layer + 1)
    ]


def worst(
    found: list[Piece],
    at: Callable[[np.ndarray], np.ndarray],
    over: Callable[[np.ndarray, np.ndarray], float],
    tolerance: float,
) -> tuple[float, float]:
    """A bracket no wider than the tolerance around the largest badness over all pieces.

    ``at`` gives the badness of distributions ``[V, K]``, ``over`` an upper bound on it over a box of distributions.
    """
    count = itertools.count()
    attained = max(float(at(piece.probabilities()).max()) for piece in found)
    heap = [(-over(*piece.range()), next(count), piece) for piece in found]
    heapq.heapify(heap)
    while -heap[0][0] - attained > tolerance:
        _, _, piece = heapq.heappop(heap)
        for half in piece.halves():
            attained = max(attained, float(at(half.probabilities()).max()))
            heapq.heappush(heap, (-over(*half.range()), next(count), half))
    return attained, max(attained, -heap[0][0])


def _softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))
