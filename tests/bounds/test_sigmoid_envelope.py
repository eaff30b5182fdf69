"""The tangent point of the sigmoid is inside of its bracket, which charges every rounding and the last Newton step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flint import arb, ctx

from softhull.bounds.sigmoid_envelope import tangent_point


def above_the_chord(t: float, length: float) -> arb:
    """How far its tangent at ``t`` is below the sigmoid at ``-length``, negated: 0 at the tangent point."""
    at, r = arb(t), arb(length)
    p, start = (1 / (1 + (-v).exp()) for v in (at, -r))
    return p - start - p * (1 - p) * (at + r)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_tangent_point_is_inside_of_its_bracket(dtype: type) -> None:
    """Short chords by the series, long ones by Newton steps, the last of which is not exact at 10 to 30."""
    parts = (np.geomspace(1e-4, 0.5, 40), np.linspace(0.5, 30, 60), np.geomspace(30, 1e6, 10))
    lengths: np.ndarray = np.concatenate(parts).astype(dtype)
    for start in (-lengths, -torch.from_numpy(lengths)):
        below, above = (np.asarray(side, dtype=np.float64) for side in tangent_point(start))
        with ctx.workprec(300):
            for low, high, length in zip(below.tolist(), above.tolist(), lengths.tolist()):
                assert above_the_chord(low, length) <= 0 <= above_the_chord(high, length), length
        # and narrow: some two hundred units, more where short chords hardly bend
        assert np.all(above - below <= 250 * np.finfo(dtype).eps * (1 + lengths.astype(np.float64) ** -2))
