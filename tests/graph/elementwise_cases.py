"""Every elementwise operator with an exact reference and the intervals it must answer for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from flint import arb
from torch import Tensor

from softhull.graph.operator import Elementwise
from softhull.graph.ops.clip import Clip
from softhull.graph.ops.cube import Cube
from softhull.graph.ops.elu import Elu
from softhull.graph.ops.erf import Erf
from softhull.graph.ops.exp import Exp
from softhull.graph.ops.gelu import Gelu, TanhGelu
from softhull.graph.ops.log import Log
from softhull.graph.ops.power import Power
from softhull.graph.ops.reciprocal import Reciprocal
from softhull.graph.ops.relu import LeakyRelu, Relu
from softhull.graph.ops.rsqrt import Rsqrt
from softhull.graph.ops.sigmoid import Sigmoid
from softhull.graph.ops.silu import Mish, Silu
from softhull.graph.ops.sine import Cosine, Sine
from softhull.graph.ops.softplus import Softplus, StraightSoftplus
from softhull.graph.ops.softsign import Softsign
from softhull.graph.ops.sqrt import Sqrt
from softhull.graph.ops.square import Square
from softhull.graph.ops.tanh import Tanh


def _clip(x: arb, least: float, most: float) -> arb:
    return arb.max(arb.min(x, arb(most)), arb(least))


def _leaky(x: arb, slope: float) -> arb:
    return x if x >= 0 else x * arb(slope)


def _tanh_gelu(x: arb) -> arb:
    # The constant 0.044715 as written, not as rounded: the last digit decides nothing within the margins.
    return x / (1 + (-(8 / arb.pi()).sqrt() * (x + arb("0.044715") * x**3)).exp())


def _written_gelu(x: arb) -> arb:
    return x / (1 + (-2 * arb(0.7978845834732056) * (x + arb(0.044714998453855515) * x**3)).exp())


def _mish(x: arb) -> arb:
    grown = x.exp() * (x.exp() + 2)
    return x * grown / (grown + 2)


def _softplus(x: arb) -> arb:
    return (1 + x.exp()).log() if x < 300 else x + (-x).exp().log1p()


@dataclass(frozen=True)
class Case:
    operator: Elementwise
    exact: Callable[[arb], arb]
    domain: str = "all"  # "positive", "nonzero"
    largest: float = 1e3  # beyond which the function overflows
    widest: float = 8.0  # up to which lines are as good as lines can be; 0 for large jumps, where they are not

    @property
    def name(self) -> str:
        return repr(self.operator)


CASES = (
    Case(Silu(), lambda x: x / (1 + (-x).exp())),
    Case(Mish(), _mish, largest=300.0),
    Case(Elu(), lambda x: x if x >= 0 else x.expm1()),
    Case(Softplus(), _softplus),
    Case(StraightSoftplus(20.0), lambda x: x if x > 20 else _softplus(x)),
    Case(StraightSoftplus(0.3), lambda x: x if x > arb(0.3) else _softplus(x), widest=0.0),
    Case(StraightSoftplus(-2.0), lambda x: x if x > -2 else _softplus(x), widest=0.0),
    Case(Softsign(), lambda x: x / (1 + abs(x))),
    Case(Cube(), lambda x: x**3),
    Case(TanhGelu(0.7978845834732056, 0.044714998453855515), _written_gelu),
    Case(Relu(), lambda x: _leaky(x, 0.0)),
    Case(LeakyRelu(0.0078125), lambda x: _leaky(x, 0.0078125)),
    Case(LeakyRelu(-0.5), lambda x: _leaky(x, -0.5)),
    Case(LeakyRelu(3.0), lambda x: _leaky(x, 3.0)),
    Case(Clip(0.0, 6.0), lambda x: _clip(x, 0.0, 6.0)),
    Case(Clip(-1.0, 1.0), lambda x: _clip(x, -1.0, 1.0)),
    Case(Clip(-2.5, float("inf")), lambda x: arb.max(x, arb(-2.5))),
    Case(Clip(-float("inf"), 0.3), lambda x: arb.min(x, arb(0.3))),
    Case(Sigmoid(), lambda x: 1 / (1 + (-x).exp())),
    Case(Tanh(), lambda x: x.tanh()),
    Case(Erf(), lambda x: x.erf()),
    Case(Gelu(), lambda x: x / 2 * (1 + (x * arb(Gelu().gain)).erf())),
    Case(Gelu(0.5), lambda x: x / 2 * (1 + (x / 2).erf())),
    Case(TanhGelu(), _tanh_gelu),
    Case(Exp(), lambda x: x.exp(), largest=40.0),
    Case(Square(), lambda x: x * x),
    Case(Log(), lambda x: x.log(), "positive"),
    Case(Sqrt(), lambda x: x.sqrt(), "positive"),
    Case(Rsqrt(), lambda x: 1 / x.sqrt(), "positive"),
    Case(Reciprocal(), lambda x: 1 / x, "nonzero"),
    Case(Sine(), lambda x: x.sin(), widest=3.0),
    Case(Sine(), lambda x: x.sin(), largest=1e9, widest=3.0),
    Case(Cosine(), lambda x: x.cos(), widest=3.0),
    Case(Power(4.0), lambda x: x**4),
    Case(Power(5.0), lambda x: x**5),
    Case(Power(-2.0), lambda x: 1 / x**2, "nonzero"),
    Case(Power(-3.0), lambda x: 1 / x**3, "nonzero"),
    Case(Power(2.4), lambda x: x ** arb(2.4), "positive"),
    Case(Power(0.25), lambda x: x ** arb(0.25), "positive"),
    Case(Power(-1.7), lambda x: x ** arb(-1.7), "positive"),
)


def intervals(case: Case, rng: np.random.Generator, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Random intervals of all scales inside the domain: wide, tiny, one point, far out, around the bends."""
    centre = rng.normal(size=count) * 10.0 ** rng.uniform(-3, 1.5, size=count)
    width = 10.0 ** rng.uniform(-13, 2.5, size=count)
    width[rng.random(count) < 0.1] = 0
    share = rng.random(count)
    if case.largest > 1e3:
        centre *= case.largest / 1e3
    lower, upper = centre - share * width, centre + (1 - share) * width
    lower, upper = np.clip(lower, -case.largest, case.largest), np.clip(upper, -case.largest, case.largest)
    if case.domain != "all":
        lower, upper = np.abs(centre) + 1e-6, np.abs(centre) + 1e-6 + width
    if case.domain == "nonzero":
        mirrored = rng.random(count) < 0.5
        lower, upper = np.where(mirrored, -upper, lower), np.where(mirrored, -lower, upper)
    a, b = torch.from_numpy(lower).to(dtype), torch.from_numpy(upper).to(dtype)
    return torch.minimum(a, b), torch.maximum(a, b)
