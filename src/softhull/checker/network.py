"""ONNX files as the few kinds of nodes the checker knows, in exact arithmetic on the numbers of the file.

Every tensor is a *view*: entries of one node, by index. Operators that only move entries (Reshape, Transpose, ...) make
new views and no node. One instance is checked at a time: an open first dimension of the input is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from flint import arb
from onnx import numpy_helper

from ..errors import ModelError
from .balls import Balls, Floats, exact

Indices = np.ndarray[Any, np.dtype[np.int64]]

LARGEST_FILE = 1 << 30  # bytes
LARGEST_NODE = 1 << 22  # weights of one operator, or scalar products
LARGEST_NETWORK = 1 << 24  # the same over all operators


@dataclass(frozen=True)
class View:
    """A tensor whose entries are entries of one node; ``index`` has the shape of the tensor."""

    node: int
    index: Indices


@dataclass(frozen=True)
class Input:
    """The input of the networks, shared by all of them."""

    size: int


@dataclass(frozen=True)
class Sum:
    """``sum_i scales[i] * views[i] + bias``, entry by entry."""

    size: int
    views: tuple[View, ...]
    scales: tuple[Balls, ...]
    bias: Floats


@dataclass(frozen=True)
class Linear:
    """``weights @ x``, ``weights [size, entries of x]``."""

    size: int
    x: View
    weights: Floats


@dataclass(frozen=True)
class Kink:
    """``max(x, 0) + slope * min(x, 0)`` with ``0 <= slope <= 1``: Relu and LeakyRelu."""

    size: int
    x: View
    slope: float


@dataclass(frozen=True)
class Product:
    """Sums of products: entry ``out[t]`` collects ``x[left[t]] * y[right[t]]`` over all t."""

    size: int
    x: View
    y: View
    out: Indices
    left: Indices
    right: Indices


@dataclass(frozen=True)
class Softmax:
    """Softmax of the rows ``[R, K]`` of entries of ``x``; output entry i belongs to input entry i."""

    size: int
    x: View
    rows: Indices


Node = Input | Sum | Linear | Kink | Product | Softmax


class Networks:
    """One or several networks over one input: ``nodes`` in order, ``tensors`` by ``"number of the network:name"``.

    ``logits`` are the last tensors of the networks with a final softmax taken off, ``probabilities`` the same with one.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self.nodes: list[Node] = []
        self.tensors: dict[str, View] = {}
        self.names: dict[int, str] = {}  # of the nodes
        self._numbers = 0
        outputs = [_Reader(self, str(path), number).read() for number, path in enumerate(paths)]
        self.logits = [self._before_softmax(output) for output in outputs]
        self.probabilities = [self._softmax_of(number, output) for number, output in enumerate(outputs)]

    @property
    def input_size(self) -> int:
        return self.nodes[0].size

    def _softmax_of(self, number: int, output: View) -> View:
        if self.logits[number] is not output:
            return output
        logits = View(output.node, output.index.ravel())
        size = logits.index.size
        found = self.add(Softmax(size, logits, np.arange(size).reshape(1, size)), [size])
        self.tensors[self.names.setdefault(found.node, f"{number}::probabilities")] = found
        return found

    def _before_softmax(self, output: View) -> View:
        node = self.nodes[output.node]
        if isinstance(node, Softmax) and len(node.rows) == 1 and sorted(output.index.flat) == list(range(node.size)):
            return View(node.x.node, node.x.index.reshape(-1)[output.index])
        return output

    def before(self, ends: Iterable[int], known: Container[int] = ()) -> list[int]:
        """The nodes that some depend on, with these, first to last; what is known already ends the search."""
        needed, found = set(ends), []
        for index in range(max(needed, default=-1), -1, -1):
            if index in needed and index not in known:
                found.append(index)
                node = self.nodes[index]
                views = node.views if isinstance(node, Sum) else (node.x, node.y) if isinstance(node, Product) else ()
                views = (node.x,) if isinstance(node, Linear | Kink | Softmax) else views
                needed.update(view.node for view in views)
        return found[::-1]

    def add(self, node: Node, shape: Sequence[int]) -> View:
        self._numbers += node.weights.size if isinstance(node, Linear) else node.size
        self._numbers += node.out.size if isinstance(node, Product) else 0
        if self._numbers > LARGEST_NETWORK:
            raise ModelError(f"more than {LARGEST_NETWORK} numbers in all")
        self.nodes.append(node)
        return View(len(self.nodes) - 1, np.arange(node.size).reshape(shape))


Value = View | np.ndarray[Any, Any]


class _Reader:
    """One file: its tensors are views, or arrays where they do not depend on the input."""

    def __init__(self, networks: Networks, path: str, number: int) -> None:
        self.networks, self.path, self.number = networks, path, number
        self.values: dict[str, Value] = {}
        self.opset = 0

    def read(self) -> View:
        graph = self._graph()
        for tensor in graph.initializer:
            self.values[tensor.name] = self._array(tensor)
        inputs = [i for i in graph.input if i.name not in self.values]
        if len(inputs) != 1 or len(graph.output) != 1:
            raise self._bad(f"{len(inputs)} inputs and {len(graph.output)} outputs; one of each is checked")
        self._keep(inputs[0].name, self._input(inputs[0]))
        for node in graph.node:
            where = f"node {node.name or (node.output[0] if node.output else '?')} ({node.op_type})"
            rule = OPERATORS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            if rule is None:
                raise self._bad(f"{where}: not covered by the checker, which knows {', '.join(sorted(OPERATORS))}")
            try:
                attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
                operands = [self.values[name] if name else None for name in node.input]
                found = rule(self, operands, attributes)
            except ModelError as problem:
                raise self._bad(f"{where}: {problem}") from None
            except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as problem:
                raise self._bad(f"{where}: cannot be read ({type(problem).__name__}: {problem})") from None
            self._keep(node.output[0], found)
        last = self.values.get(graph.output[0].name)
        if not isinstance(last, View):
            raise self._bad("the output does not depend on the input")
        if last.index.size != (last.index.shape or (1,))[-1]:
            raise self._bad(f"output of shape {last.index.shape}; one row of outputs is checked")
        return last

    def _graph(self) -> onnx.GraphProto:
        try:
            if Path(self.path).stat().st_size > LARGEST_FILE:
                raise self._bad(f"larger than {LARGEST_FILE} bytes")
            model = onnx.load(self.path, load_external_data=False)
        except OSError as problem:
            raise self._bad(problem.strerror or "cannot be read") from None
        except ModelError:
            raise
        except Exception as problem:  # protobuf has several ways to say that a file is not one of its own
            raise self._bad(f"not an ONNX file ({type(problem).__name__})") from None
        versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
        if not versions or not model.graph.node:
            raise self._bad("not an ONNX file")
        if model.functions:
            raise self._bad("defines operators of its own")
        self.opset = versions[0]
        return model.graph

    def _array(self, tensor: onnx.TensorProto) -> np.ndarray[Any, Any]:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise self._bad(f"tensor {tensor.name} lies in another file; the checker reads one file only")
        if min(tensor.dims, default=0) < 0 or math.prod(tensor.dims) > LARGEST_NODE:
            raise self._bad(f"tensor {tensor.name} is larger than {LARGEST_NODE} numbers")
        try:
            found = numpy_helper.to_array(tensor)
        except Exception as problem:
            raise self._bad(f"tensor {tensor.name} cannot be read ({type(problem).__name__})") from None
        if found.dtype in (np.float16, np.float32, np.float64):
            found = found.astype(np.float64)  # exact
            if not np.isfinite(found).all():
                raise self._bad(f"tensor {tensor.name} holds an infinity or a NaN")
        elif found.dtype.kind not in "iu":
            raise self._bad(f"tensor {tensor.name} holds {found.dtype}, neither whole nor real numbers")
        return found

    def _input(self, declared: onnx.ValueInfoProto) -> View:
        dims = declared.type.tensor_type.shape.dim
        sizes = [d.dim_value if d.dim_value > 0 else None for d in dims]
        if sizes and sizes[0] is None:
            sizes[0] = 1
        shape = [s for s in sizes if s is not None]
        if len(shape) < len(sizes) or math.prod(shape) > LARGEST_NODE:
            raise self._bad(f"input {declared.name} has an open or too large dimension")
        if not self.networks.nodes:
            self.networks.nodes.append(Input(math.prod(shape)))
        elif self.networks.input_size != math.prod(shape):
            raise self._bad(f"input of {math.prod(shape)} entries, other networks have {self.networks.input_size}")
        return View(0, np.arange(math.prod(shape)).reshape(shape))

    def _keep(self, name: str, found: Value) -> None:
        self.values[name] = found
        if isinstance(found, View):
            self.networks.tensors[f"{self.number}:{name}"] = found
            self.networks.names.setdefault(found.node, f"{self.number}:{name}")

    def _bad(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: {what}")

    # What operators are made of

    def sum(self, views: Sequence[View], scales: Sequence[Any], bias: Any, shape: Sequence[int]) -> View:
        size = math.prod(shape)
        _limit(size)
        spread = tuple(View(v.node, np.broadcast_to(v.index, shape).ravel()) for v in views)
        balls = tuple(np.broadcast_to(scale, shape).ravel() for scale in scales)
        return self.networks.add(Sum(size, spread, balls, np.broadcast_to(bias, shape).ravel()), shape)

    def einsum(self, x: Value, y: Value, x_labels: Sequence[int], y_labels: Sequence[int], out: Sequence[int]) -> View:
        """Products summed over the labels that ``out`` does not name; dimensions of 1 may carry the label -1."""
        sizes: dict[int, int] = {}
        for value, labels in ((x, x_labels), (y, y_labels)):
            for label, size in zip(labels, _shape(value), strict=True):
                if (label < 0 and size != 1) or sizes.setdefault(label, size) != size:
                    raise ModelError(f"shapes {_shape(x)} and {_shape(y)} do not fit each other")
        names = [label for label in sizes if label >= 0]
        _limit(math.prod(sizes[n] for n in names))
        grid = dict(zip(names, np.indices([sizes[n] for n in names]).reshape(len(names), -1)))

        def flat(labels: Sequence[int]) -> Indices:
            strides = [math.prod(sizes[n] for n in labels[i + 1 :]) for i in range(len(labels))]
            zero = np.zeros(math.prod(sizes[n] for n in names), dtype=np.int64)
            return sum((grid[n] * s for n, s in zip(labels, strides) if n >= 0), start=zero)

        shape = [sizes[n] for n in out]
        o, i, j = flat(out), flat(x_labels), flat(y_labels)
        if isinstance(x, View) and isinstance(y, View):
            left, right = (View(v.node, v.index.ravel()) for v in (x, y))
            return self.networks.add(Product(math.prod(shape), left, right, o, i, j), shape)
        if not isinstance(x, View):
            x, y, i, j = y, x, j, i
        assert isinstance(x, View)
        if isinstance(y, View) or y.dtype != np.float64:
            raise ModelError("two constants, or a constant that is not real")
        _limit(math.prod(shape) * x.index.size)
        weights = np.zeros((math.prod(shape), x.index.size))
        count = np.zeros(weights.shape, dtype=np.int64)
        np.add.at(count, (o, i), 1)
        if count.max(initial=0) > 1:
            raise ModelError("a weight of this operator is a sum of numbers of the file")
        weights[o, i] = y.ravel()[j]
        return self.networks.add(Linear(len(weights), View(x.node, x.index.ravel()), weights), shape)


def _limit(size: int) -> None:
    if size > LARGEST_NODE:
        raise ModelError(f"larger than the {LARGEST_NODE} numbers the checker allows in one operator")


def _shape(value: Value) -> tuple[int, ...]:
    return value.index.shape if isinstance(value, View) else value.shape


def _moved(move: Callable[[Any], Any], value: Value) -> Value:
    """An operator that only moves entries, applied to a view or to a constant."""
    return View(value.node, move(value.index)) if isinstance(value, View) else move(value)


def _reshape(reader: _Reader, operands: Any, attributes: Any) -> Value:
    x, wanted = operands
    shape = [int(n) for n in wanted]
    shape = [_shape(x)[i] if n == 0 else n for i, n in enumerate(shape)]
    return _moved(lambda t: t.reshape(shape), x)


def _flatten(reader: _Reader, operands: Any, attributes: Any) -> Value:
    axis = attributes.get("axis", 1)
    return _moved(lambda t: t.reshape(math.prod(t.shape[:axis]), -1), operands[0])


def _transpose(reader: _Reader, operands: Any, attributes: Any) -> Value:
    return _moved(lambda t: t.transpose(attributes.get("perm")), operands[0])


def _axes(operands: Any, attributes: Any) -> tuple[int, ...]:
    return tuple(int(a) for a in (operands[1] if len(operands) > 1 else attributes["axes"]))


def _squeeze(reader: _Reader, operands: Any, attributes: Any) -> Value:
    return _moved(lambda t: np.squeeze(t, _axes(operands, attributes)), operands[0])


def _unsqueeze(reader: _Reader, operands: Any, attributes: Any) -> Value:
    return _moved(lambda t: np.expand_dims(t, _axes(operands, attributes)), operands[0])


def _identity(reader: _Reader, operands: Any, attributes: Any) -> Value:
    found: Value = operands[0]
    return found


def _constant(reader: _Reader, operands: Any, attributes: Any) -> Value:
    return reader._array(attributes["value"])


def _gather(reader: _Reader, operands: Any, attributes: Any) -> Value:
    x, chosen = operands
    _limit(math.prod(_shape(x)) * _whole(chosen).size)
    return _moved(lambda t: np.take(t, chosen, attributes.get("axis", 0)), x)


def _shape_of(reader: _Reader, operands: Any, attributes: Any) -> Value:
    if attributes:
        raise ModelError("a part of a shape")
    return np.array(_shape(operands[0]), dtype=np.int64)


def _concat(reader: _Reader, operands: Any, attributes: Any) -> Value:
    _limit(sum(_whole(part).size for part in operands))
    return np.concatenate(operands, attributes["axis"])


def _reduce_product(reader: _Reader, operands: Any, attributes: Any) -> Value:
    (x,) = operands
    axes = tuple(attributes["axes"]) if "axes" in attributes else None
    return np.prod(_whole(x), axis=axes, keepdims=bool(attributes.get("keepdims", 1)))


def _maximum(reader: _Reader, operands: Any, attributes: Any) -> Value:
    parts = np.broadcast_arrays(*(_whole(part) for part in operands))
    _limit(parts[0].size * len(parts))
    return np.maximum.reduce(parts)


def _whole(value: Any) -> Indices:
    """Whole numbers, of which shapes are made; reals are not computed with before the walk."""
    if isinstance(value, View) or value.dtype.kind not in "iu":
        raise ModelError("anything but whole numbers")
    found: Indices = value
    return found


def _matmul(reader: _Reader, operands: Any, attributes: Any) -> View:
    x, y = operands
    rank = max(len(_shape(x)), len(_shape(y)))
    if min(len(_shape(x)), len(_shape(y))) < 2:
        raise ModelError("a factor of fewer than two dimensions")
    x, y = (_moved(lambda t: t.reshape((1,) * (rank - t.ndim) + t.shape), v) for v in (x, y))
    batch = list(range(rank - 2))
    size = [max(a, b) for a, b in zip(_shape(x)[:-2], _shape(y)[:-2])]
    x_labels, y_labels = ([n if _shape(v)[n] == size[n] else -1 for n in batch] for v in (x, y))
    i, k, j = rank, rank + 1, rank + 2
    return reader.einsum(x, y, [*x_labels, i, k], [*y_labels, k, j], [*batch, i, j])


def _gemm(reader: _Reader, operands: Any, attributes: Any) -> View:
    a, b, *c = operands
    if attributes.get("alpha", 1.0) != 1 or (c and attributes.get("beta", 1.0) != 1):
        raise ModelError("alpha or beta other than 1")
    product = reader.einsum(
        a, b, [1, 0] if attributes.get("transA") else [0, 1], [2, 1] if attributes.get("transB") else [1, 2], [0, 2]
    )
    return _add(reader, [product, c[0]], {}) if c else product


def _einsum(reader: _Reader, operands: Any, attributes: Any) -> View:
    terms, arrow, out = attributes["equation"].decode().replace(" ", "").partition("->")
    labels = terms.split(",")
    if not arrow or "." in terms or len(labels) != 2 or any(len(set(part)) < len(part) for part in (*labels, out)):
        raise ModelError("an equation other than the product of two tensors")
    x, y = ([ord(letter) for letter in part] for part in labels)
    first, second = operands
    return reader.einsum(first, second, x, y, [ord(letter) for letter in out])


def _add(reader: _Reader, operands: Any, attributes: Any, sign: int = 1) -> View:
    shape = np.broadcast_shapes(*(_shape(v) for v in operands))
    signs = (arb(1), arb(sign))
    views = [(v, s) for v, s in zip(operands, signs) if isinstance(v, View)]
    constants = [(1, sign)[i] * _real(v) for i, v in enumerate(operands) if not isinstance(v, View)]
    if not views:
        raise ModelError("a sum of constants")
    bias = constants[0] if constants else np.zeros(())
    return reader.sum([v for v, _ in views], [np.array(s, dtype=object) for _, s in views], bias, shape)


def _subtract(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _add(reader, operands, attributes, -1)


def _multiply(reader: _Reader, operands: Any, attributes: Any) -> View:
    x, y = operands
    shape = np.broadcast_shapes(_shape(x), _shape(y))
    _limit(math.prod(shape))
    if isinstance(x, View) and isinstance(y, View):
        left, right = (View(v.node, np.broadcast_to(v.index, shape).ravel()) for v in (x, y))
        every = np.arange(math.prod(shape))
        return reader.networks.add(Product(every.size, left, right, every, every, every), shape)
    x, y = (x, y) if isinstance(x, View) else (y, x)
    return reader.sum([x], [exact(_real(y))], np.zeros(()), shape)


def _divide(reader: _Reader, operands: Any, attributes: Any) -> View:
    x, y = operands
    if not isinstance(x, View) or isinstance(y, View) or not (_real(y) != 0).all():
        raise ModelError("division by anything but a constant other than 0")
    return reader.sum([x], [arb(1) / exact(_real(y))], np.zeros(()), np.broadcast_shapes(_shape(x), _shape(y)))


def _real(value: Any) -> Floats:
    if isinstance(value, View) or value.dtype != np.float64:
        raise ModelError("a constant of real numbers is expected")
    found: Floats = value
    return found


def _kink(reader: _Reader, x: Value, slope: float) -> View:
    if not isinstance(x, View) or not 0 <= slope <= 1:
        raise ModelError("an operand that is constant, or a slope outside of 0 to 1")
    return reader.networks.add(Kink(x.index.size, View(x.node, x.index.ravel()), slope), x.index.shape)


def _relu(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _kink(reader, operands[0], 0.0)


def _leaky_relu(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _kink(reader, operands[0], attributes.get("alpha", float(np.float32(0.01))))


def _clip(reader: _Reader, operands: Any, attributes: Any) -> View:
    least = operands[1] if len(operands) > 1 else attributes.get("min")
    most = operands[2] if len(operands) > 2 else attributes.get("max")
    if least is None or float(least) != 0 or (most is not None and float(most) < 3e38):
        raise ModelError("limits other than 0 and infinity")
    return _kink(reader, operands[0], 0.0)


def _softmax(reader: _Reader, operands: Any, attributes: Any) -> View:
    (x,) = operands
    shape = x.index.shape
    every = np.arange(x.index.size).reshape(shape)
    if reader.opset < 13:
        axis = attributes.get("axis", 1) % len(shape)
        rows = every.reshape(math.prod(shape[:axis]), -1)
    else:
        moved = np.moveaxis(every, attributes.get("axis", -1), -1)
        rows = moved.reshape(-1, moved.shape[-1])
    return reader.networks.add(Softmax(every.size, View(x.node, x.index.ravel()), rows), shape)


OPERATORS: dict[str, Callable[[_Reader, Any, Any], Value]] = {
    "Add": _add,
    "Clip": _clip,
    "Concat": _concat,
    "Constant": _constant,
    "Div": _divide,
    "Einsum": _einsum,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "Identity": _identity,
    "LeakyRelu": _leaky_relu,
    "MatMul": _matmul,
    "Max": _maximum,
    "Mul": _multiply,
    "ReduceProd": _reduce_product,
    "Relu": _relu,
    "Reshape": _reshape,
    "Shape": _shape_of,
    "Softmax": _softmax,
    "Squeeze": _squeeze,
    "Sub": _subtract,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
