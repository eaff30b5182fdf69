"""Slopes of lines beside curves: those that the verifier's relaxation has; the checker finds the offsets itself."""

from __future__ import annotations

import torch

from ..checker.balls import Floats
from ..graph.curves import Curve
from ..graph.ops.cube import Cube
from ..graph.ops.elu import Elu
from ..graph.ops.erf import Erf
from ..graph.ops.exp import Exp
from ..graph.ops.gelu import Gelu, TanhGelu
from ..graph.ops.log import Log
from ..graph.ops.power import Power
from ..graph.ops.reciprocal import Reciprocal
from ..graph.ops.rsqrt import Rsqrt
from ..graph.ops.sigmoid import Sigmoid
from ..graph.ops.silu import Mish, Silu
from ..graph.ops.sine import Cosine, Sine
from ..graph.ops.softplus import Softplus
from ..graph.ops.softsign import Softsign
from ..graph.ops.sqrt import Sqrt
from ..graph.ops.square import Square
from ..graph.ops.tanh import Tanh

KINDS: dict[str, Curve] = {
    "square": Square(),
    "cube": Cube(),
    "exp": Exp(),
    "log": Log(),
    "sqrt": Sqrt(),
    "reciprocal": Reciprocal(),
    "rsqrt": Rsqrt(),
    "sigmoid": Sigmoid(),
    "tanh": Tanh(),
    "erf": Erf(),
    "gelu": Gelu(),
    "tanh gelu": TanhGelu(),
    "silu": Silu(),
    "softplus": Softplus(),
    "mish": Mish(),
    "softsign": Softsign(),
    "elu": Elu(),
    "sin": Sine(),
    "cos": Cosine(),
}


def slopes(kind: str, lower: Floats, upper: Floats) -> tuple[Floats, Floats]:
    """One slope below and one above for every entry."""
    curve = KINDS.get(kind) or Power(float(kind.removeprefix("power ")))
    lines = curve.lines(torch.from_numpy(lower), torch.from_numpy(upper))
    return lines.lower_slope.numpy().copy(), lines.upper_slope.numpy().copy()
