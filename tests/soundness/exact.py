"""The truth in ball arithmetic: softmax, and graphs node by node."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flint import arb, ctx
from torch import Tensor

from softhull.graph.graph import Graph
from softhull.graph.operator import Operator
from softhull.graph.ops.add import Add, Subtract
from softhull.graph.ops.centre import Centre
from softhull.graph.ops.clip import Clip
from softhull.graph.ops.concat import Concat
from softhull.graph.ops.conv import Conv
from softhull.graph.ops.cube import Cube
from softhull.graph.ops.dense import Dense
from softhull.graph.ops.elu import Elu
from softhull.graph.ops.erf import Erf
from softhull.graph.ops.exp import Exp
from softhull.graph.ops.expand import Expand
from softhull.graph.ops.gather import Gather
from softhull.graph.ops.gelu import Gelu, TanhGelu
from softhull.graph.ops.log import Log
from softhull.graph.ops.log_sum_exp import LogSumExp
from softhull.graph.ops.matmul import MatMul
from softhull.graph.ops.normalize import InverseDeviation
from softhull.graph.ops.product import Product
from softhull.graph.ops.reciprocal import Reciprocal
from softhull.graph.ops.relu import LeakyRelu, Relu
from softhull.graph.ops.reshape import Reshape
from softhull.graph.ops.rsqrt import Rsqrt
from softhull.graph.ops.scale import Scale
from softhull.graph.ops.sigmoid import Sigmoid
from softhull.graph.ops.silu import Mish, Silu
from softhull.graph.ops.slice import Slice
from softhull.graph.ops.softmax import Softmax
from softhull.graph.ops.softplus import Softplus
from softhull.graph.ops.softsign import Softsign
from softhull.graph.ops.sqrt import Sqrt
from softhull.graph.ops.square import Square
from softhull.graph.ops.sum import Sum
from softhull.graph.ops.tanh import Tanh
from softhull.graph.ops.transpose import Transpose

Balls = np.ndarray  # of arb
DIGITS = 50


def balls(x: Any) -> Balls:
    """Exact balls around floating-point numbers."""
    numbers = x.detach().double().numpy() if isinstance(x, Tensor) else np.asarray(x, dtype=np.float64)
    return np.array([arb(float(v)) for v in numbers.reshape(-1)], dtype=object).reshape(numbers.shape)


def softmax(row: Balls) -> Balls:
    """Softmax along the last axis; -inf is a masked entry."""
    flat = row.reshape(-1, row.shape[-1])
    out = []
    for scores in flat:
        top = arb(max(float(s.mid()) for s in scores))
        terms = [arb(0) if float(s.mid()) == -math.inf else (s - top).exp() for s in scores]
        total = sum(terms, arb(0))
        out.append([t / total for t in terms])
    return np.array(out, dtype=object).reshape(row.shape)


_MOVING = (Reshape, Transpose, Slice, Gather, Expand)


def values(graph: Graph, x: Tensor) -> list[Balls]:
    """Every node of a graph for one input ``[*shape]``; parameters and input are taken as the numbers they are."""
    before, ctx.dps = ctx.dps, DIGITS
    try:
        given = balls(x)
        found: list[Balls] = []
        for node in graph.nodes:
            found.append(_apply(node.operator, [given if i < 0 else found[i] for i in node.inputs]))
        return found
    finally:
        ctx.dps = before


def _apply(operator: Operator, inputs: list[Balls]) -> Balls:
    x = inputs[0]
    if isinstance(operator, _MOVING):
        labels = torch.arange(x.size, dtype=torch.float64).reshape(1, *x.shape)
        return x.reshape(-1)[operator.value(labels)[0].long().numpy()]
    if isinstance(operator, Concat):
        variable = iter(inputs)
        return np.concatenate([next(variable) if p is None else balls(p) for p in operator.parts], operator.axis)
    if isinstance(operator, Dense):
        matrix = balls(operator.matrix)
        y = np.matmul(matrix, x) if operator.left else np.matmul(x, matrix)
        return y if operator.bias is None else y + balls(operator.bias)
    if isinstance(operator, Conv):
        # Every entry of the response to a unit is one entry of the kernel.
        plain = replace(operator, bias=None)
        units = torch.eye(x.size, dtype=torch.float64).reshape(x.size, *x.shape)
        response = plain.value(units)
        y = np.dot(x.reshape(-1), balls(response.flatten(1))).reshape(response.shape[1:])
        return y if operator.bias is None else y + balls(operator.bias).reshape(-1, *(1,) * (x.ndim - 2))
    if isinstance(operator, Scale):
        return balls(operator.factor) * x + balls(operator.shift)
    if isinstance(operator, Sum):
        return x.sum(operator.axes, keepdims=True) / arb(operator.divisor)
    if isinstance(operator, Centre):
        count = math.prod(x.shape[axis] for axis in operator.axes)
        return x - x.sum(operator.axes, keepdims=True) / arb(count)
    if isinstance(operator, InverseDeviation):
        count = math.prod(x.shape[axis] for axis in operator.axes)
        mean = (x * x).sum(operator.axes, keepdims=True) / arb(count) + arb(operator.epsilon)
        return np.array([1 / v.sqrt() for v in mean.reshape(-1)], dtype=object).reshape(mean.shape)
    if isinstance(operator, Add):
        return x + inputs[1]
    if isinstance(operator, Subtract):
        return x - inputs[1]
    if isinstance(operator, MatMul):
        return np.matmul(x, inputs[1])
    if isinstance(operator, Product):
        return x * inputs[1]
    if isinstance(operator, Softmax):
        if operator.mask is not None:
            mask = operator.mask.expand(x.shape)
            shut, amount = (mask < 0).numpy(), balls(mask)
            x = np.where(shut, amount, x) if operator.replaced else np.where(shut, x + amount, x)
        return np.moveaxis(softmax(np.moveaxis(x, operator.axis, -1)), -1, operator.axis)
    if isinstance(operator, LogSumExp):
        total = np.array([v.exp() for v in x.reshape(-1)], dtype=object).reshape(x.shape)
        total = total.sum(operator.axes, keepdims=True)
        return np.array([v.log() for v in total.reshape(-1)], dtype=object).reshape(total.shape)
    function = _scalar(operator)
    return np.array([function(v) for v in x.reshape(-1)], dtype=object).reshape(x.shape)


def _scalar(operator: Operator) -> Callable[[arb], arb]:
    functions: dict[type, Callable[[arb], arb]] = {
        Relu: lambda v: arb.max(v, arb(0)),
        Sigmoid: lambda v: 1 / (1 + (-v).exp()),
        Tanh: arb.tanh,
        Erf: arb.erf,
        Exp: arb.exp,
        Square: lambda v: v * v,
        Cube: lambda v: v * v * v,
        Silu: lambda v: v / (1 + (-v).exp()),
        Mish: lambda v: v * (1 + v.exp()).log().tanh(),
        Softplus: lambda v: (1 + v.exp()).log(),
        Softsign: lambda v: v / (1 + abs(v)),
        Elu: lambda v: v if v > 0 else v.exp() - 1 if v < 0 else v.union(v.exp() - 1),
        Log: arb.log,
        Sqrt: arb.sqrt,
        Rsqrt: lambda v: 1 / v.sqrt(),
        Reciprocal: lambda v: 1 / v,
        TanhGelu: lambda v: v / (1 + (-(8 / arb.pi()).sqrt() * (v + arb("0.044715") * v**3)).exp()),
    }
    if isinstance(operator, LeakyRelu):
        slope = arb(operator.slope)
        return lambda v: arb.max(v, slope * v) if operator.slope <= 1 else arb.min(v, slope * v)
    if isinstance(operator, Clip):
        least, most = arb(operator.least), arb(operator.most)
        return lambda v: arb.min(arb.max(v, least), most)
    if isinstance(operator, Gelu):
        return lambda v: v / 2 * (-arb(operator.gain) * v).erfc()
    return functions[type(operator)]


def count_violations(lower: Tensor, exact: Balls, upper: Tensor) -> tuple[int, int]:
    """How many claims ``lower <= exact <= upper`` were checked, and how many are certainly wrong."""
    checked = wrong = 0
    for least, value, most in zip(balls(lower).reshape(-1), exact.reshape(-1), balls(upper).reshape(-1)):
        checked += 2
        wrong += bool(least > value) + bool(most < value)
    return checked, wrong
