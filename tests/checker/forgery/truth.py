"""What is true: models evaluated at points of a region, first in floating point, in ball arithmetic where it matters.

Nothing here is shared with the checker. A claim is *false* only where ball arithmetic proves that it fails at a point
that rational arithmetic places inside the region.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
from flint import arb, ctx
from onnx import numpy_helper

from .networks import Instance

BITS = 250  # of the ball arithmetic
HUGE = 1e100  # inputs from here on may overflow on their way
NEAR = 1e-9  # claims this close to a value in floating point are decided in ball arithmetic

Values = dict[str, np.ndarray]  # by "number of the model:tensor"

to_ball = np.frompyfunc(arb, 1, 1)
relu_ball = np.frompyfunc(lambda a: a.max(arb(0)), 1, 1)


def evaluate(model: onnx.ModelProto, x: np.ndarray, number: int) -> Values:
    """Every tensor of a model for one input, in the arithmetic of the input (floats or balls)."""
    exact = x.dtype == object
    opset = [o.version for o in model.opset_import][-1]
    values: dict[str, np.ndarray] = {}
    constants: set[str] = set()
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind == "f":
            array = to_ball(array.astype(np.float64)) if exact else array.astype(np.float64)
        values[tensor.name] = np.asarray(array)
        constants.add(tensor.name)
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    values[model.graph.input[0].name] = x.reshape(dims)
    for node in model.graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        found = _operator(node.op_type, [values[n] if n else None for n in node.input], attributes, opset)
        values[node.output[0]] = np.asarray(found)
    named = {f"{number}:{name}": v.ravel() for name, v in values.items() if name not in constants}
    makers = {node.output[0]: node for node in model.graph.node}
    last = makers[model.graph.output[0].name]
    while last.op_type == "Reshape":
        last = makers[last.input[0]]
    output = values[model.graph.output[0].name].ravel()
    rows = _rows(last, values, opset) if last.op_type == "Softmax" else 0
    final = rows == 1
    named[f"{number}::logits"] = values[last.input[0]].ravel() if final else output  # in the order of the outputs
    named[f"{number}::probabilities"] = output if final else softmax(output)
    return named


def _rows(node: onnx.NodeProto, values: Mapping[str, np.ndarray], opset: int) -> int:
    """How many rows a softmax has."""
    shape = values[node.input[0]].shape
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1 if opset < 13 else -1)
    return math.prod(shape[:axis]) if opset < 13 else math.prod(shape) // shape[axis]


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a logit of +inf makes no numbers
        exact = x.dtype == object
        top = (x.astype(np.float64) if exact else x).max(axis, keepdims=True)
        powers = np.exp(x - to_ball(np.where(np.isfinite(top), top, 0.0)) if exact else x - top)
        return np.asarray(powers / powers.sum(axis, keepdims=True))


def _operator(kind: str, v: list[Any], attributes: Mapping[str, Any], opset: int) -> np.ndarray:
    def number(value: float) -> Any:
        """A number in the arithmetic of the operands."""
        return arb(float(value)) if v[0].dtype == object else float(value)

    if kind == "Softmax" and opset < 13:
        axis = attributes.get("axis", 1)
        return softmax(v[0].reshape(math.prod(v[0].shape[:axis]), -1)).reshape(v[0].shape)
    if kind == "Gemm":
        a, b = (m.T if attributes.get(key) else m for m, key in zip(v, ("transA", "transB")))
        alpha, beta = (number(attributes.get(key, 1.0)) for key in ("alpha", "beta"))
        return np.asarray(alpha * np.matmul(a, b) + beta * v[2])
    if kind == "LeakyRelu":
        return np.asarray(_relu(v[0]) - number(attributes["alpha"]) * _relu(-v[0]))
    if kind == "Clip":
        least, most = (*v[1:], None)[:2]
        found = v[0] if least is None else _greater(v[0], least)
        return found if most is None else -_greater(-found, -most)
    if kind == "LogSoftmax":
        return np.asarray(np.log(softmax(v[0], attributes["axis"])))
    if kind == "LayerNormalization":
        apart = v[0] - v[0].sum(-1, keepdims=True) / v[0].shape[-1]
        steadied = (apart * apart).sum(-1, keepdims=True) / v[0].shape[-1] + number(attributes["epsilon"])
        return np.asarray(apart / np.sqrt(steadied) * v[1] + v[2])
    if kind == "Conv":
        padded = _padded(v[0], attributes["pads"], number(0.0))
        windows = np.stack([padded[..., i : i + v[1].shape[2]] for i in range(padded.shape[2] - v[1].shape[2] + 1)], 2)
        return np.asarray((windows[:, None] * v[1][None, :, :, None]).sum((2, 4)) + v[2][:, None])
    if kind == "MaxPool":
        size = attributes["kernel_shape"][0]
        # Every window with padding has the entry at that end, too: repeated, it stands for -inf.
        before, behind = attributes["pads"]
        padded = np.concatenate((*[v[0][..., :1]] * before, v[0], *[v[0][..., -1:]] * behind), -1)
        columns = [padded[..., i : padded.shape[2] - size + 1 + i] for i in range(size)]
        return np.asarray(functools.reduce(lambda a, c: a + _relu(c - a), columns))
    return np.asarray(
        {
            "Tanh": lambda: 2 * _sigmoid(2 * v[0]) - 1,
            "Sigmoid": lambda: _sigmoid(v[0]),
            "Neg": lambda: -v[0],
            "IsNaN": lambda: np.frompyfunc(lambda a: a.is_nan() if isinstance(a, arb) else a != a, 1, 1)(v[0]).astype(
                bool
            ),
            "Where": lambda: np.where(v[0], v[1], v[2]),
            "Greater": lambda: np.frompyfunc(lambda a, b: bool(a > b), 2, 1)(v[0], v[1]).astype(bool),
            "Softplus": lambda: np.log(1 + np.exp(v[0])),
            "GatherElements": lambda: np.take_along_axis(v[0], v[1].astype(np.int64), attributes["axis"]),
            "Add": lambda: v[0] + v[1],
            "Sub": lambda: v[0] - v[1],
            "Mul": lambda: v[0] * v[1],
            "Div": lambda: v[0] / v[1],
            "MatMul": lambda: np.matmul(v[0], v[1]),
            "Einsum": lambda: np.einsum(attributes["equation"].decode(), *v),
            "Relu": lambda: _relu(v[0]),
            "Softmax": lambda: softmax(v[0], attributes.get("axis", -1)),
            "Reshape": lambda: v[0].reshape(v[1]),
            "Flatten": lambda: v[0].reshape(math.prod(v[0].shape[: attributes["axis"]]), -1),
            "Transpose": lambda: v[0].transpose(attributes["perm"]),
            "Gather": lambda: v[0].take(v[1], attributes["axis"]),
            "Squeeze": lambda: v[0].squeeze(tuple(v[1])),
            "Unsqueeze": lambda: np.expand_dims(v[0], tuple(v[1])),
            "Identity": lambda: v[0],
            "Concat": lambda: np.concatenate(v, attributes["axis"]),
        }[kind]()
    )


def _relu(x: np.ndarray) -> np.ndarray:
    return np.asarray(relu_ball(x) if x.dtype == object else np.maximum(x, 0.0))


def _greater(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(np.frompyfunc(arb.max, 2, 1)(x, y) if x.dtype == object else np.maximum(x, y))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def _padded(x: np.ndarray, pads: Sequence[int], fill: Any) -> np.ndarray:
    """A picture of one row with a constant at both ends."""
    before, behind = (np.full((*x.shape[:2], n), fill, dtype=x.dtype) for n in pads)
    return np.concatenate((before, x, behind), 2)


# Regions


def inside(at: Sequence[float], x: Sequence[float], eps: float, norm: str, clip: Sequence[float] | None) -> bool:
    """Whether a point lies in a region, in rational arithmetic."""
    apart = [abs(Fraction(a) - Fraction(c)) for a, c in zip(at, x)]
    radius = Fraction(eps)
    near = {
        "inf": max(apart) <= radius,
        "1": sum(apart) <= radius,
        "2": sum(d * d for d in apart) <= radius * radius,
    }[norm]
    return near and (clip is None or all(clip[0] <= a <= clip[1] for a in at))


def points(
    x: np.ndarray, eps: float, norm: str, clip: Sequence[float] | None, rng: np.random.Generator, count: int
) -> list[np.ndarray]:
    """The centre, the corners and random points of a region; all of them inside."""
    n = len(x)
    low, high = (np.full(n, -np.inf), np.full(n, np.inf)) if clip is None else (np.full(n, c) for c in clip)
    units = [s * np.eye(n)[i] for i in range(n) for s in (1, -1)]
    corners = [np.array(s) for s in itertools.product((-1.0, 1.0), repeat=n)] if norm == "inf" else units
    spread = rng.uniform(-1, 1, (count, n))
    if norm != "inf":
        spread /= np.maximum(np.linalg.norm(spread, int(norm), axis=1), 1e-300)[:, None]
        spread *= rng.choice([1.0, 1.0, 0.5], (count, 1))
    found = [x]
    for step in [*corners, *units, *spread]:
        for shrink in (1.0, 1 - 1e-15, 1 - 1e-14):
            at = np.clip(x + eps * shrink * step, low, high)
            if inside(at.tolist(), x.tolist(), eps, norm, clip):
                found.append(at)
                break
    return found


@dataclass(frozen=True)
class Claims:
    """``rows @ tensor >= lower``."""

    tensor: str
    rows: np.ndarray
    lower: np.ndarray


class Pool:
    """Values of all tensors at points of one region."""

    def __init__(self, instance: Instance, at: list[np.ndarray]) -> None:
        self.instance, self.at = instance, at
        each = [self._evaluate(x) for x in at]
        self.floats = {name: np.stack([v[name] for v in each]) for name in each[0]}
        self._exact: dict[int, Values] = {}
        self._worst: dict[tuple[str, int], arb] = {}

    def _evaluate(self, x: np.ndarray) -> Values:
        found: Values = {}
        for number, model in enumerate(self.instance.models):
            found |= evaluate(model, x, number)
        each = [found[f"{number}::probabilities"] for number in range(len(self.instance.models))]
        if len({len(p) for p in each}) == 1:
            found["total"] = np.asarray(sum(each[1:], start=each[0]))
        return found

    def exact(self, point: int) -> Values:
        if point not in self._exact:
            with ctx.workprec(BITS):
                self._exact[point] = self._evaluate(to_ball(self.at[point]))
        return self._exact[point]

    def no_number(self) -> bool:
        """Whether an output is none. Inputs whose exponentials leave even ball arithmetic show nothing of the kind."""
        wrong = np.isnan(self.floats["0::probabilities"]).any(1) & (np.abs(np.stack(self.at)).max(1) < HUGE)
        return any(not v.is_finite() for p in np.flatnonzero(wrong)[:3].tolist() for v in self.exact(p)["0::logits"])

    def gap(self, claims: Claims) -> float:
        """How far bounds are, on average, from the least value that is attained at the points."""
        values = claims.rows @ self.floats[claims.tensor].T
        return float((values.min(1) - claims.lower).mean())

    def cells(self, tree: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """For every cell of a tree of cuts the points that certainly lie in it, as a mask."""
        entries, values = arrays[tree["entries"]], arrays[tree["values"]]
        less = arrays[tree["minus"]] if "minus" in tree else np.full(entries.shape, -1)
        found, waiting = [], [np.ones(len(self.at), dtype=bool)]
        cuts = zip(tree.get("tensors", [None] * len(entries)), entries.tolist(), less.tolist(), values.tolist())
        for name, entry, minus, value in cuts:
            here = waiting.pop()
            if entry < 0:
                found.append(here)
                continue
            held = np.stack(self.at) if name is None else self.floats.get(name)
            x = np.full(len(here), np.nan) if held is None else held[:, entry]
            slack = NEAR * (1 + abs(value))
            if held is not None and minus >= 0:
                x, slack = x - held[:, minus], slack + NEAR * np.abs(held).max()
            waiting += [here & (x >= value + slack), here & (x <= value - slack)]
        return found

    def breaks(self, claims: Claims, where: np.ndarray | None = None) -> str | None:
        """Where ``rows @ tensor >= lower`` certainly fails, at all points or at some; None if nowhere."""
        tensor, rows, lower = claims.tensor, claims.rows, claims.lower
        values = rows @ self.floats[tensor].T
        size = NEAR * (1 + np.abs(rows) @ np.abs(self.floats[tensor]).T)
        for s, excess in enumerate(lower[:, None] - values + size):
            excess = excess if where is None else np.where(where, excess, -np.inf)
            if not excess.max() > 0:
                continue
            for p in np.argsort(-excess)[:3].tolist():
                with ctx.workprec(BITS):
                    used = np.flatnonzero(rows[s])
                    value = sum((arb(float(rows[s, j])) * self.exact(p)[tensor][j] for j in used), start=arb(0))
                    if arb(float(lower[s])) > value:
                        at = self.at[p].tolist()
                        return f"{rows[s].tolist()} . {tensor} >= {float(lower[s])!r} is {value.str(20)} at {at}"
        return None

    def false_ranges(self, claim: Mapping[str, Any]) -> str | None:
        """Where the mean probabilities leave their ranges, or a class is on top that should not be."""
        M, K = len(self.instance.models), len(claim["ahead"])
        unit = np.eye(K)
        ends = np.concatenate((M * np.array(claim["least"]), -M * np.array(claim["most"])))
        # M times a float is one for M up to 2
        pairs = [(k, t) for k, t in enumerate(claim["ahead"]) if t >= 0]
        rows = np.concatenate((unit, -unit, *(unit[[t]] - unit[[k]] for k, t in pairs)))
        lower = np.concatenate((ends, np.full(len(pairs), 5e-324)))
        false = self.breaks(Claims("total", rows, lower))
        worst = self.worst_score("brier", int(claim["label"]))
        if false is None and worst > arb(float(claim["brier"])):
            false = f"brier is {worst.str(20)}, {claim['brier']!r} claimed"
        return false

    def worst_score(self, name: str, label: int) -> arb:
        if (name, label) not in self._worst:
            each = [self._score(name, label, point) for point in range(len(self.at))]
            self._worst[name, label] = -_largest([-v for v in each]) if name == "margin" else _largest(each)
        return self._worst[name, label]

    def _score(self, name: str, label: int, point: int) -> arb:
        """The score of the mean probabilities at a point."""
        with ctx.workprec(BITS):
            p = [t / len(self.instance.models) for t in self.exact(point)["total"]]
            others = [q for k, q in enumerate(p) if k != label]
            if name == "nll":
                return -p[label].log()
            if name == "error":
                return 1 - p[label]
            if name == "confidence":
                return _largest(p)
            if name == "margin":
                return p[label] - _largest(others)
            if name == "brier":
                return sum((q * q for q in p), start=1 - 2 * p[label])
            assert name == "entropy"
            return -sum((q * q.log() for q in p), start=arb(0))


def _largest(values: list[arb]) -> arb:
    found = values[0]
    for v in values[1:]:
        found = found.max(v)
    return found


class Truth:
    """Decides which claims of a certificate are false for the models of an instance."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._pools: dict[Any, Pool] = {}

    def pool(self, x: np.ndarray, eps: float, norm: str, clip: Sequence[float] | None) -> Pool:
        key = (x.tobytes(), eps, norm, None if clip is None else tuple(clip))
        if key not in self._pools:
            first = not self._pools  # the region of the instance; others come and go
            if len(self._pools) > 8:
                self._pools.pop(list(self._pools)[1])
            at = points(x, eps, norm, clip, np.random.default_rng(0), 60 if first else 6)
            self._pools[key] = Pool(self.instance, at)
        return self._pools[key]

    def pool_of(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Pool:
        """The pool of the region that a certificate names."""
        region = header["region"]
        clip = region["clip"]
        return self.pool(
            arrays[header["input"]["array"]].ravel(),
            float(region["eps"]),
            str(region["norm"]),
            None if clip is None else [float(c) for c in clip],
        )

    def claims(self, pool: Pool, step: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Claims | None:
        """What one step claims from below, upper bounds as lower bounds of the negative."""
        if step["claim"] in ("planes", "form", "logits"):
            return None
        lower, tensor = arrays[step["lower"]], "total" if step["claim"] == "score" else step["tensor"]
        if tensor not in pool.floats:  # a part of an operator: the file has no such tensor, the conclusion is compared
            return None
        if step["claim"] in ("score", "functions"):
            rows = arrays[step["rows"]]
        else:
            entries = arrays[step["entries"]].reshape(len(lower), -1)
            rows = np.zeros((len(lower), pool.floats[tensor].shape[1]))
            for sign, column in zip((1, -1), entries.T):
                rows[np.arange(len(rows)), column] += sign
        if step["claim"] != "score":
            rows, lower = np.concatenate((rows, -rows)), np.concatenate((lower, -arrays[step["upper"]]))
        claimed = np.flatnonzero(lower > -np.inf)
        return Claims(tensor, rows[claimed], lower[claimed]) if len(claimed) else None

    def false_property(self, pool: Pool, claim: Mapping[str, Any]) -> str | None:
        """Whether the conclusion fails somewhere."""
        label = int(claim["label"])
        if pool.no_number():
            return "an output that is no number"
        if claim["kind"] == "class":
            K = pool.floats["0::logits"].shape[1]
            rows = np.zeros((1 if K == 1 else len(claim["rivals"]), K))
            rows[:, label if K > 1 else 0] = 1 if K > 1 or label else -1
            for row, rival in zip(rows, claim["rivals"] if K > 1 else ()):
                row[int(rival)] -= 1
            return pool.breaks(Claims("0::logits", rows, np.full(len(rows), 5e-324)))
        if pool.floats["total"].shape[1] < 2:
            return "a score of a network with one output"
        if claim["kind"] == "ranges":
            return pool.false_ranges(claim)
        value, bound = pool.worst_score(claim["score"], label), arb(float(claim["bound"]))
        if (value < bound) if claim["score"] == "margin" else (value > bound):
            return f"{claim['score']} of class {label} is {value.str(20)}, {claim['bound']!r} claimed"
        return None
