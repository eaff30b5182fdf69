"""ONNX files as the few kinds of nodes the checker knows, in exact arithmetic on the numbers of the file.

Every tensor is a *view*: entries of one node, by index. Operators that only move entries (Reshape, Transpose, ...) make
new views and no node. One instance is checked at a time: an open first dimension of the input is 1.

An operator means what the standard says of it in the operator set that the file imports. Every rule below declares the
operator sets, the operands and the attributes for which it is that meaning; all else is refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from flint import arb
from onnx import AttributeProto, TensorProto, numpy_helper

from ..errors import ModelError, quoted
from .balls import ONE, ZERO, Balls, Floats, exact, zeros
from .external_data import digest_of, embed
from .positions import Entries, Indices, Places

LARGEST_FILE = 1 << 30  # bytes
LARGEST_NODE = 1 << 22  # weights of one operator, or scalar products
LARGEST_NETWORK = 1 << 24  # the same over all operators
MOST_DIMENSIONS = 16
NODE = 64  # numbers that a node takes beside its own
LATEST = 26  # the last operator set that the rules were compared with

# Attributes that say yes or no. What another number than 0 and 1 says, runtimes do not agree on.
FLAGS = frozenset(
    [
        "allowzero",
        "ceil_mode",
        "count_include_pad",
        "interleaved",
        "is_causal",
        "keepdims",
        "noop_with_empty_axes",
        "spatial",
        "storage_order",
        "training_mode",
        "transA",
        "transB",
    ]
)


@dataclass(frozen=True)
class View:
    """A tensor whose entries are entries of one node; ``index`` has the shape of the tensor."""

    node: int
    index: Entries

    @property
    def size(self) -> int:
        """How many entries the view has."""
        return self.index.size

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape the entries are seen in."""
        return self.index.shape

    def moved(self, move: Callable[[Indices], Indices]) -> View:
        """The tensor after an operator that only moves entries."""
        return View(self.node, Entries(move(self.index.at), self.index.among))

    def flat(self) -> View:
        """The same entries in one row."""
        return self.moved(np.ravel)

    def at(self, places: Places) -> View:
        """The tensor of what stands at some places of this one."""
        return self.moved(lambda index: places.of(index.ravel()))

    def places(self) -> Places:
        """All its entries as places."""
        return Places(np.arange(self.size), self.size)


@dataclass(frozen=True)
class Input:
    """The input of the networks, shared by all of them."""

    size: int


@dataclass(frozen=True)
class Sum:
    """``sum_i scales[i] * views[i] + bias``: entry e is made of what stands at place e of every view."""

    size: int
    views: tuple[View, ...]
    scales: tuple[Balls, ...]
    bias: Floats


@dataclass(frozen=True)
class Matrix:
    """``weights @ x``, ``weights [size, places of x]``."""

    size: int
    x: View
    weights: Floats


@dataclass(frozen=True)
class Kink:
    """``max(x, 0) + slope * min(x, 0)`` with ``0 <= slope <= 1``: Relu and LeakyRelu; entry e from place e.

    A Clip is one, too, up to its ``limit``: every value is at most that.
    """

    size: int
    x: View
    slope: float
    limit: float = math.inf


@dataclass(frozen=True)
class Product:
    """Sums of products: entry ``out[t]`` collects what stands at place ``left[t]`` of x times ``right[t]`` of y."""

    size: int
    x: View
    y: View
    out: Entries
    left: Places
    right: Places


@dataclass(frozen=True)
class Softmax:
    """Softmax of rows ``[R, K]`` of places in ``x``, each place in one of them; entry e belongs to place e.

    Places that a mask hides have another logit than x says: the one that stands there in ``behind``, perhaps -inf.
    """

    size: int
    x: View
    rows: Places
    hidden: Places | None = None  # masked: their probability is at most what ``behind`` says of their logits
    behind: View | None = None  # the logits with the mask, by place

    @property
    def outputs(self) -> Entries:
        """The rows of its own entries."""
        return Entries(self.rows.at, self.size)

    @cached_property
    def hides(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether a mask hides it, for every place."""
        found = np.zeros(self.size, dtype=np.bool_)
        if self.hidden is not None:
            found[self.hidden.at] = True
        return found


@dataclass(frozen=True)
class Curve:
    """A function of one number (``curves.function_of``) of every entry; entry e from place e."""

    size: int
    x: View
    kind: str


Node = Input | Sum | Matrix | Kink | Curve | Product | Softmax


def inputs_of(node: Node) -> tuple[View, ...]:
    """The views a node is computed from."""
    if isinstance(node, Sum):
        return node.views
    if isinstance(node, Product):
        return node.x, node.y
    if isinstance(node, Softmax):
        return (node.x,) if node.behind is None else (node.x, node.behind)
    return (node.x,) if isinstance(node, Matrix | Kink | Curve) else ()


class Networks:
    """One or several networks over one input: ``nodes`` in order, ``tensors`` by ``"number of the network:name"``.

    ``logits`` are the last tensors of the networks with a final softmax taken off, ``probabilities`` the same with one.
    ``digests`` are the SHA-256 sums of the very bytes that were read.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self.nodes: list[Node] = []
        self.tensors: dict[str, View] = {}
        self.names: dict[int, str] = {}  # of the nodes
        self.digests: list[str] = []
        self._numbers = 0
        self._masked: dict[int, np.ndarray[Any, np.dtype[np.bool_]]] = {}  # entries that are -inf, of sums with some
        outputs = [_Reader(self, str(path), number).read() for number, path in enumerate(paths)]
        self.ends_in_softmax = [self._is_final_softmax(output) for output in outputs]
        self.logits = [
            self._before_softmax(output) if last else output for output, last in zip(outputs, self.ends_in_softmax)
        ]
        self.probabilities = [self._softmax_of(number, output) for number, output in enumerate(outputs)]

    @property
    def input_size(self) -> int:
        """The number of entries of the shared input."""
        return self.nodes[0].size

    def whole(self, index: int) -> View:
        """All entries of a node, each at the place of its number."""
        size = self.nodes[index].size
        return View(index, Entries(np.arange(size), size))

    def _softmax_of(self, number: int, output: View) -> View:
        if self.ends_in_softmax[number]:
            return output
        size = output.size
        found = self.add(Softmax(size, output.flat(), Places(np.arange(size).reshape(1, size), size)), [size])
        self.tensors[self.names.setdefault(found.node, f"{number}::probabilities")] = found
        return found

    def _before_softmax(self, output: View) -> View:
        """Theorem: one softmax row keeps the order of its logits, ``p_i > p_j`` where ``x_i > x_j``.

        Logits without their mask have another order: there the probabilities themselves are compared.
        """
        node = self.nodes[output.node]
        assert isinstance(node, Softmax)
        return output if node.behind is not None else node.x.at(Places(output.index.at, node.size))

    def _is_final_softmax(self, output: View) -> bool:
        """Whether an output is one softmax row, in any order.

        A row of one entry is 1 and has no order: the sign of its logit says nothing about it.
        """
        node = self.nodes[output.node]
        one_row = isinstance(node, Softmax) and len(node.rows.at) == 1 and node.size > 1
        return one_row and sorted(output.index.flat) == list(range(node.size))  # entry e belongs to place e

    def before(self, ends: Iterable[int], known: Container[int] = ()) -> list[int]:
        """The nodes that some depend on, with these, first to last; what is known already ends the search."""
        needed, found = set(ends), []
        for index in range(max(needed, default=-1), -1, -1):
            if index in needed and index not in known:
                found.append(index)
                needed.update(view.node for view in inputs_of(self.nodes[index]))
        return found[::-1]

    @cached_property
    def bottlenecks(self) -> frozenset[int]:
        """Nodes without a product or a softmax before them that all later ones see the earlier ones through."""
        last, smooth = [0] * len(self.nodes), [True] * len(self.nodes)
        for i, node in enumerate(self.nodes):
            smooth[i] = not isinstance(node, Product | Softmax)
            for view in inputs_of(node):
                last[view.node] = i
                smooth[i] &= smooth[view.node]
        furthest, found = 0, set()
        for i in range(1, len(self.nodes)):
            if furthest <= i and smooth[i]:
                found.add(i)
            furthest = max(furthest, last[i])
        return frozenset(found)

    def masked(self, view: View) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Where -inf stands in a tensor."""
        held = self._masked.get(view.node)
        return np.zeros(view.shape, dtype=np.bool_) if held is None else view.index.of(held)

    def _follow_masks(self, index: int, node: Node) -> None:
        """Let -inf come from a constant that is added, and go through sums into softmax rows that hold more than it.

        Theorem: -inf times a positive number plus a finite one is -inf, and its probability 0. Any other use may be
        +inf or no number at all, and is refused.
        """
        if isinstance(node, Softmax):
            if node.rows.of(self.masked(node.behind or node.x)).all(1).any():
                raise ModelError(EMPTY)
            return
        found = node.bias == -np.inf if isinstance(node, Sum) else np.zeros(node.size, dtype=np.bool_)
        for number, view in enumerate(inputs_of(node)):
            away = self.masked(view)
            if not away.any():
                continue
            if not isinstance(node, Sum) or not all(scale > 0 for scale in node.scales[number][away]):
                raise ModelError("-inf in anything but a mask before a softmax")
            found |= away
        if found.any():
            self._masked[index] = found

    def add(self, node: Node, shape: Sequence[int]) -> View:
        """Adds a node and returns the view of its output; refused where the network gets too large."""
        self._follow_masks(len(self.nodes), node)
        each = len(node.views) if isinstance(node, Sum) else 1  # a sum has a scale for every entry of every view
        self.spend(NODE + (node.weights.size if isinstance(node, Matrix) else node.size * each))
        self.spend(node.out.size if isinstance(node, Product) else 0)
        self.nodes.append(node)
        return self.whole(len(self.nodes) - 1).moved(lambda index: index.reshape(shape))

    def spend(self, numbers: int) -> None:
        """Counts numbers against the limit for a whole network."""
        self._numbers += numbers
        if self._numbers > LARGEST_NETWORK:
            raise ModelError(f"more than {LARGEST_NETWORK} numbers in all")


Value = View | np.ndarray[Any, Any]
Rule = Callable[["_Reader", list[Any], dict[str, Any]], "Value | list[Value]"]
AnyRule = TypeVar("AnyRule", bound=Rule)


@dataclass(frozen=True)
class Operator:
    """A rule, and for what it holds: operator sets, fewest and most operands, attributes with their types."""

    rule: Rule
    since: int
    until: int
    operands: tuple[int, int]
    attributes: dict[str, int]


OPERATORS: dict[str, list[Operator]] = {}


def operator(
    name: str, *, since: int, until: int = LATEST, operands: tuple[int, int] = (1, 1), **attributes: int
) -> Callable[[AnyRule], AnyRule]:
    """Declares a rule for an operator: its operator sets, numbers of operands and allowed attributes."""

    def declare(rule: AnyRule) -> AnyRule:
        OPERATORS.setdefault(name, []).append(Operator(rule, since, until, operands, attributes))
        return rule

    return declare


class _Reader:
    """One file: its tensors are views, or arrays where they do not depend on the input."""

    def __init__(self, networks: Networks, path: str, number: int) -> None:
        self.networks, self.path, self.number = networks, path, number
        self.values: dict[str, Value] = {}
        self.opset = 0
        self.outputs = 0  # how many the node at hand has
        self.final = False  # whether the node at hand is the end of the network, and nothing else reads it
        self.real: np.dtype[Any] = np.dtype(np.float32)  # the one type of real numbers in the file

    def read(self) -> View:
        """Reads the graph node by node, every one by the rule of its operator set; returns the output."""
        graph = self._graph()
        constants = {tensor.name for tensor in graph.initializer}
        inputs = [i for i in graph.input if i.name not in constants]  # a constant may be listed as an input, too
        if len(inputs) != 1 or len(graph.output) != 1:
            raise self._bad(f"{len(inputs)} inputs and {len(graph.output)} outputs; one of each is checked")
        results = [name for node in graph.node for name in node.output if name]
        named = Counter([inputs[0].name, *(tensor.name for tensor in graph.initializer), *results])
        name, count = named.most_common(1)[0]
        if count > 1:  # the standard gives a name to one tensor only, also to one that nobody reads
            raise self._bad(f"there are two tensors {quoted(name)}")
        self._keep(inputs[0].name, self._input(inputs[0]))
        for tensor in graph.initializer:
            self._keep(tensor.name, self._array(tensor))
        used = {name for node in graph.node for name in node.input}
        for node in graph.node:
            self.final = graph.output[0].name in node.output and graph.output[0].name not in used
            where = (
                f"node {quoted(node.name or (node.output[0] if node.output else '?'))} ({quoted(node.op_type)[1:-1]})"
            )
            try:
                before = len(self.networks.nodes)
                found = self._apply(node)
                for name, value in zip(node.output, found if isinstance(found, list) else [found]):
                    self._keep(name, value)
                for index in range(before, len(self.networks.nodes)):  # what an operator is made of has no name
                    inner = self.networks.names.setdefault(index, f"{self.number}/{index}")
                    self.networks.tensors.setdefault(inner, self.networks.whole(index))
            except ModelError as problem:
                raise self._bad(f"{where}: {str(problem).removeprefix(f'{self.path}: ')}") from None
            except (ValueError, IndexError, KeyError, TypeError, AttributeError, ArithmeticError) as problem:
                raise self._bad(f"{where}: cannot be read ({type(problem).__name__}: {problem})") from None
        last = self.values.get(graph.output[0].name)
        if isinstance(last, Emptied):
            raise self._bad(EMPTY)
        if not isinstance(last, View):
            raise self._bad("the output does not depend on the input")
        if last.size != (last.shape or (1,))[-1]:
            raise self._bad(f"output of shape {last.shape}; one row of outputs is checked")
        return last

    def _apply(self, node: onnx.NodeProto) -> Value | list[Value]:
        """What a node computes, by the one rule that covers it as it is."""
        known = OPERATORS.get(node.op_type, []) if node.domain in ("", "ai.onnx") else []
        if not known:
            raise ModelError(f"not covered by the checker, which knows {', '.join(sorted(OPERATORS))}")
        found = next((rule for rule in known if rule.since <= self.opset <= rule.until), None)
        if found is None:
            covered = ", ".join(f"{rule.since} to {rule.until}" for rule in known)
            raise ModelError(f"not covered in operator set {self.opset}, only in {covered}")
        if not node.output or not all(node.output) or (len(node.output) > 1 and node.op_type not in SEVERAL):
            raise ModelError(f"{len(node.output)} outputs; one with a name is read")
        self.outputs = len(node.output)
        attributes: dict[str, Any] = {}
        for attribute in node.attribute:
            if attribute.name in attributes or attribute.ref_attr_name:
                raise ModelError(f"attribute {quoted(attribute.name)} is given twice or elsewhere")
            if found.attributes.get(attribute.name) != attribute.type:
                raise ModelError(f"attribute {quoted(attribute.name)} is not covered in operator set {self.opset}")
            attributes[attribute.name] = onnx.helper.get_attribute_value(attribute)
            if attribute.type == AttributeProto.FLOAT and not math.isfinite(attributes[attribute.name]):
                raise ModelError(f"attribute {quoted(attribute.name)} is no finite number")
            if attribute.name in FLAGS and attributes[attribute.name] not in (0, 1):
                raise ModelError(f"attribute {quoted(attribute.name)} is neither 0 nor 1")
        names = list(node.input)
        while names and not names[-1]:  # left out
            names.pop()
        fewest, most = found.operands
        if not fewest <= len(names) <= most or not all(names[:fewest]):
            raise ModelError(f"{len(names)} operands in operator set {self.opset}")
        missing = [name for name in names if name and name not in self.values]
        if missing:
            raise ModelError(f"there is no tensor {quoted(missing[0])} before it")
        return found.rule(self, [self.values[name] if name else None for name in names], attributes)

    def _graph(self) -> onnx.GraphProto:
        """The graph of the file, with constants from files beside it; refused where two readers could differ."""
        try:
            if Path(self.path).stat().st_size > LARGEST_FILE:
                raise self._bad(f"larger than {LARGEST_FILE} bytes")
            content = Path(self.path).read_bytes()
        except OSError as problem:
            raise self._bad(problem.strerror or "cannot be read") from None
        try:
            model = onnx.ModelProto.FromString(content)
        except Exception as problem:  # protobuf has several ways to say that a file is not one of its own
            raise self._bad(f"not an ONNX file ({type(problem).__name__})") from None
        try:
            parts = embed(model, self.path)
        except ModelError as problem:
            raise self._bad(str(problem)) from None
        self.networks.digests.append(digest_of(content, parts))
        if not model.opset_import or not model.graph.node:
            raise self._bad("not an ONNX file")
        if model.functions:
            raise self._bad("defines operators of its own")
        if model.graph.sparse_initializer:
            raise self._bad("holds sparse tensors")
        try:
            self.opset = operator_set(model)
        except ModelError as problem:
            raise self._bad(str(problem)) from None
        return model.graph

    def _array(self, tensor: onnx.TensorProto) -> np.ndarray[Any, Any]:
        """A constant of the file as an exact array; refused where its contents are not plainly there once."""
        name = f"tensor {quoted(tensor.name)}"
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            raise self._bad(f"{name} lies in a file that was not read")
        if min(tensor.dims, default=0) < 0 or math.prod(tensor.dims) > LARGEST_NODE:
            raise self._bad(f"{name} is larger than {LARGEST_NODE} numbers")
        if tensor.HasField("segment") or sum(bool(getattr(tensor, field)) for field in _CONTENTS) > 1:
            raise self._bad(f"{name} has its contents more than once, or in part")
        try:
            found = numpy_helper.to_array(tensor)
        except Exception as problem:
            raise self._bad(f"{name} cannot be read ({type(problem).__name__})") from None
        if found.dtype == self.real:
            found = found.astype(np.float64)  # exact
            if not (found < np.inf).all():  # -inf is a mask, which a softmax may meet and nothing else
                raise self._bad(f"{name} holds an infinity or a NaN")
        elif found.dtype not in (np.int64, np.int32, np.int8, np.uint8, np.bool_):
            kind = quoted(found.dtype)[1:-1]
            raise self._bad(f"{name} holds {kind}, neither whole numbers nor {self.real}, the type of the input")
        return found

    def _input(self, declared: onnx.ValueInfoProto) -> View:
        """The input of the network, one instance of it; the first network decides its size."""
        name, kind = f"input {quoted(declared.name)}", declared.type.tensor_type
        if kind.elem_type not in _REALS:
            raise self._bad(f"{name} holds neither float nor double")
        self.real = np.dtype(_REALS[kind.elem_type])
        if not kind.HasField("shape") or any(d.HasField("dim_value") and d.dim_value <= 0 for d in kind.shape.dim):
            raise self._bad(f"{name} has no shape, or an empty dimension")
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        if sizes and sizes[0] is None:
            sizes[0] = 1
        shape = [s for s in sizes if s is not None]
        if len(shape) < len(sizes) or math.prod(shape) > LARGEST_NODE or len(shape) > MOST_DIMENSIONS:
            raise self._bad(f"{name} has an open or too large dimension, or too many")
        if not self.networks.nodes:
            self.networks.nodes.append(Input(math.prod(shape)))
        elif self.networks.input_size != math.prod(shape):
            raise self._bad(f"input of {math.prod(shape)} entries, other networks have {self.networks.input_size}")
        return self.networks.whole(0).moved(lambda index: index.reshape(shape))

    def _keep(self, name: str, found: Value) -> None:
        """A tensor under its name."""
        if isinstance(found, View) and not found.size:
            raise self._bad(f"tensor {quoted(name)} is empty")
        try:
            self.networks.spend(found.size)
        except ModelError as problem:
            raise self._bad(str(problem)) from None
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
        spread = tuple(v.moved(lambda index: np.broadcast_to(index, shape).ravel()) for v in views)
        balls = tuple(np.broadcast_to(scale, shape).ravel() for scale in scales)
        return self.networks.add(Sum(size, spread, balls, np.broadcast_to(bias, shape).ravel()), shape)

    def _still(self, constant: Floats) -> View:
        """A constant as a tensor, 0 times the input plus itself: what is computed from it is not rounded."""
        first = self.networks.whole(0).moved(lambda index: np.broadcast_to(index.ravel()[0], constant.shape))
        return self.sum([first], [ZERO], constant, constant.shape)

    def einsum(self, x: Value, y: Value, x_labels: Sequence[int], y_labels: Sequence[int], out: Sequence[int]) -> View:
        """Products summed over the labels that ``out`` does not name; dimensions of 1 may carry the label -1."""
        sizes: dict[int, int] = {}
        for value, labels in ((x, x_labels), (y, y_labels)):
            for label, size in zip(labels, _shape(value), strict=True):
                if (label < 0 and size != 1) or sizes.setdefault(label, size) != size:
                    raise ModelError(f"shapes {_shape(x)} and {_shape(y)} do not fit each other")
        names = [label for label in sizes if label >= 0]
        if len(names) > MOST_DIMENSIONS:
            raise ModelError(f"more than {MOST_DIMENSIONS} dimensions")
        _limit(math.prod(sizes[n] for n in names))
        grid = [sizes[n] for n in names]

        def flat(labels: Sequence[int]) -> Indices:
            """The place in a tensor with these labels, for every point of the grid."""
            found, stride = np.zeros(grid, dtype=np.int64), 1
            for label in reversed(labels):
                if label >= 0:
                    found += (np.arange(sizes[label]) * stride).reshape([-1 if n == label else 1 for n in names])
                stride *= sizes[label]
            return found.ravel()

        shape = [sizes[n] for n in out]
        o, i, j = flat(out), flat(x_labels), flat(y_labels)
        if not isinstance(x, View) and not isinstance(y, View):
            x = self._still(_real(x))
        if isinstance(x, View) and isinstance(y, View):
            size = math.prod(shape)
            terms = Entries(o, size), Places(i, x.size), Places(j, y.size)
            return self.networks.add(Product(size, x.flat(), y.flat(), *terms), shape)
        if not isinstance(x, View):
            x, y, i, j = y, x, j, i
        assert isinstance(x, View)
        if isinstance(y, View) or y.dtype != np.float64 or not np.isfinite(y).all():
            raise ModelError("a constant that is not real")
        _limit(math.prod(shape) * x.size)
        weights = np.zeros((math.prod(shape), x.size))
        count = np.zeros(weights.shape, dtype=np.int64)
        np.add.at(count, (o, i), 1)
        if count.max(initial=0) > 1:  # a weight is a sum of numbers of the file, which products add up exactly
            terms = Entries(o, len(weights)), Places(i, x.size), Places(j, y.size)
            return self.networks.add(Product(len(weights), x.flat(), self._still(y).flat(), *terms), shape)
        weights[o, i] = y.ravel()[j]
        return self.networks.add(Matrix(len(weights), x.flat(), weights), shape)


_CONTENTS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_REALS = {TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64}


def operator_set(model: onnx.ModelProto) -> int:
    """The version of the standard operators: one import in either spelling of their domain, and no import twice."""
    domains = [o.domain if o.domain != "ai.onnx" else "" for o in model.opset_import]
    if domains.count("") != 1 or len(set(domains)) < len(domains):
        raise ModelError("imports no standard operator set, or one of its operator sets twice")
    version: int = model.opset_import[domains.index("")].version
    return version


def _limit(size: int) -> None:
    if size > LARGEST_NODE:
        raise ModelError(f"larger than the {LARGEST_NODE} numbers the checker allows in one operator")


def _shape(value: Value) -> tuple[int, ...]:
    return value.shape


def _moved(move: Callable[[Any], Any], value: Value) -> Value:
    """An operator that only moves entries, applied to a view or to a constant."""
    if not isinstance(value, View | np.ndarray):
        raise ModelError("a tensor that only a guard may read")
    found = value.moved(move) if isinstance(value, View) else move(value)
    if len(found.shape) > MOST_DIMENSIONS:
        raise ModelError(f"more than {MOST_DIMENSIONS} dimensions")
    return found


def _axis(reader: _Reader, axis: int, rank: int, end: int = 0) -> int:
    """An axis of ``rank`` dimensions, below ``rank + end``; from operator set 11 on it may count from the end."""
    if not -rank <= axis < rank + end or (axis < 0 and reader.opset < 11):
        raise ModelError(f"axis {axis} of {rank} dimensions in operator set {reader.opset}")
    return axis + rank if axis < 0 else axis


def _axes(reader: _Reader, found: Any, rank: int) -> tuple[int, ...]:
    axes = tuple(_axis(reader, int(a), rank) for a in found)
    if not axes or len(set(axes)) < len(axes):  # runtimes do not agree on what no axes mean
        raise ModelError("no axes, or one of them twice")
    return axes


def _whole(value: Any) -> Indices:
    """Whole numbers, of which shapes are made; reals are not computed with before the walk."""
    if isinstance(value, View) or value.dtype != np.int64:
        raise ModelError("anything but whole numbers of 64 bits")
    found: Indices = value
    return found


def _list(value: Any) -> list[int]:
    """A list of whole numbers."""
    if _whole(value).ndim != 1:
        raise ModelError("a tensor where a list of whole numbers is expected")
    found: list[int] = value.tolist()
    return found


def _real(value: Any, masks: bool = False) -> Floats:
    """A constant of real numbers, with ``masks`` also -inf."""
    if isinstance(value, View) or value.dtype != np.float64:
        raise ModelError("a constant of real numbers is expected")
    found: Floats = value
    if not masks and not np.isfinite(found).all():
        raise ModelError("a constant of -inf in anything but a mask")
    return found


# Operators that move entries


@operator("Reshape", since=5, until=13, operands=(2, 2))
@operator("Reshape", since=14, operands=(2, 2), allowzero=AttributeProto.INT)
def _reshape(reader: _Reader, operands: Any, attributes: Any) -> Value:
    x, wanted = operands
    shape = [_shape(x)[i] if n == 0 else n for i, n in enumerate(_list(wanted))]
    if min(shape, default=0) < -1 or (attributes.get("allowzero", 0) and 0 in _list(wanted)):
        raise ModelError("a negative or an empty dimension")
    return _moved(lambda t: t.reshape(shape), x)


@operator("Flatten", since=1, axis=AttributeProto.INT)
def _flatten(reader: _Reader, operands: Any, attributes: Any) -> Value:
    (x,) = operands
    axis = _axis(reader, attributes.get("axis", 1), len(_shape(x)), end=1)
    return _moved(lambda t: t.reshape(math.prod(t.shape[:axis]), math.prod(t.shape[axis:])), x)


@operator("Transpose", since=1, perm=AttributeProto.INTS)
def _transpose(reader: _Reader, operands: Any, attributes: Any) -> Value:
    (x,) = operands
    rank = len(_shape(x))
    order = list(attributes.get("perm", range(rank)[::-1]))
    if sorted(order) != list(range(rank)):
        raise ModelError("an order of other dimensions than its operand has")
    return _moved(lambda t: t.transpose(order), x)


@operator("Squeeze", since=1, until=12, axes=AttributeProto.INTS)
@operator("Squeeze", since=13, operands=(1, 2))
def _squeeze(reader: _Reader, operands: Any, attributes: Any) -> Value:
    """Dimensions of 1 left out: those of the axes, or all of them where none are given."""
    x, *axes = operands
    if not axes and "axes" not in attributes:
        return _moved(np.squeeze, x)
    wanted = _axes(reader, _list(axes[0]) if axes else attributes["axes"], len(_shape(x)))
    return _moved(lambda t: np.squeeze(t, wanted), x)


@operator("Unsqueeze", since=1, until=12, axes=AttributeProto.INTS)
@operator("Unsqueeze", since=13, operands=(2, 2))
def _unsqueeze(reader: _Reader, operands: Any, attributes: Any) -> Value:
    x, *axes = operands
    # A number is one axis: exporters write it and the runtime takes it, for this operator alone.
    listed = [a if _shape(a) else _whole(a).reshape(1) for a in axes]
    found = _list(listed[0]) if listed else attributes.get("axes", ())
    wanted = _axes(reader, found, len(_shape(x)) + len(found))
    return _moved(lambda t: np.expand_dims(t, wanted), x)


@operator("Identity", since=1)
def _identity(reader: _Reader, operands: Any, attributes: Any) -> Value:
    found: Value = operands[0]
    return found


@operator("Constant", since=1, operands=(0, 0), value=AttributeProto.TENSOR)
def _constant(reader: _Reader, operands: Any, attributes: Any) -> Value:
    if "value" not in attributes:
        raise ModelError("a constant without value")
    return reader._array(attributes["value"])


@operator("Gather", since=1, operands=(2, 2), axis=AttributeProto.INT)
def _gather(reader: _Reader, operands: Any, attributes: Any) -> Value:
    x, chosen = operands
    rank, axis = len(_shape(x)), attributes.get("axis", 0)
    if isinstance(chosen, View) or chosen.dtype not in (np.int64, np.int32) or not -rank <= axis < rank:
        raise ModelError("indices that are not constant whole numbers, or an axis out of range")
    if reader.opset < 11 and chosen.min(initial=0) < 0:
        raise ModelError(f"negative indices in operator set {reader.opset}")
    _limit(math.prod(_shape(x)) * chosen.size)
    return _moved(lambda t: np.take(t, chosen, axis), x)


# Operators on whole numbers, of which shapes are made


@operator("Shape", since=1, until=14)
@operator("Shape", since=15, start=AttributeProto.INT, end=AttributeProto.INT)
def _shape_of(reader: _Reader, operands: Any, attributes: Any) -> Value:
    sizes = _shape(operands[0])
    return np.array(sizes[attributes.get("start", 0) : attributes.get("end", len(sizes))], dtype=np.int64)


@operator("Concat", since=4, operands=(1, LARGEST_NODE), axis=AttributeProto.INT)
def _concat(reader: _Reader, operands: Any, attributes: Any) -> Value:
    if "axis" not in attributes:
        raise ModelError("no axis")
    axis = _axis(reader, attributes["axis"], len(_shape(operands[0])))
    if any(isinstance(part, View) for part in operands):
        return _joined(reader, operands, axis)
    _limit(sum(_whole(part).size for part in operands))
    return np.concatenate(operands, axis)


def _joined(reader: _Reader, operands: Any, axis: int) -> View:
    """Tensors one after the other: a sum in which every summand is 0 where it does not stand."""
    sizes = [_shape(part)[axis] for part in operands]
    rest = {(*_shape(part)[:axis], *_shape(part)[axis + 1 :]) for part in operands}
    if len(rest) > 1:
        raise ModelError("operands of different shapes")
    shape = (*_shape(operands[0])[:axis], sum(sizes), *_shape(operands[0])[axis + 1 :])
    _limit(math.prod(shape) * len(operands))
    views, scales, bias, start = [], [], np.zeros(shape), 0
    for part, size in zip(operands, sizes):
        where = (slice(None),) * axis + (slice(start, start + size),)
        start += size
        if not isinstance(part, View):
            bias[where] = _real(part, masks=True)
            continue
        index, here = np.full(shape, part.index.at.flat[0]), zeros(*shape)
        index[where], here[where] = part.index.at, ONE
        views.append(View(part.node, Entries(index.ravel(), part.index.among)))
        scales.append(here.ravel())
    found = Sum(math.prod(shape), tuple(views), tuple(scales), bias.ravel())
    return reader.networks.add(found, shape)


# Affine operators and products


@operator("MatMul", since=1, operands=(2, 2))
def _matmul(reader: _Reader, operands: Any, attributes: Any) -> View:
    """A matrix product with broadcast leading dimensions; a vector is a row on the left, a column on the right."""
    x, y = operands
    if min(len(_shape(x)), len(_shape(y))) < 1:
        raise ModelError("a factor that is a number")
    if len(_shape(x)) == 1:
        row = _matmul(reader, [_moved(lambda t: t.reshape(1, -1), x), y], {})
        return row.moved(lambda t: np.squeeze(t, -1 if len(_shape(y)) == 1 else -2))
    if len(_shape(y)) == 1:
        column = _matmul(reader, [x, _moved(lambda t: t.reshape(-1, 1), y)], {})
        return column.moved(lambda t: np.squeeze(t, -1))
    rank = max(len(_shape(x)), len(_shape(y)))
    x, y = (_moved(lambda t: t.reshape((1,) * (rank - t.ndim) + t.shape), v) for v in (x, y))
    batch = list(range(rank - 2))
    size = [max(a, b) for a, b in zip(_shape(x)[:-2], _shape(y)[:-2])]
    x_labels, y_labels = ([n if _shape(v)[n] == size[n] else -1 for n in batch] for v in (x, y))
    i, k, j = rank, rank + 1, rank + 2
    return reader.einsum(x, y, [*x_labels, i, k], [*y_labels, k, j], [*batch, i, j])


_GEMM = {"alpha": AttributeProto.FLOAT, "beta": AttributeProto.FLOAT}
_GEMM |= {"transA": AttributeProto.INT, "transB": AttributeProto.INT}


@operator("Gemm", since=7, until=10, operands=(3, 3), **_GEMM)
@operator("Gemm", since=11, operands=(2, 3), **_GEMM)
def _gemm(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: ``alpha A B + beta C = beta (alpha / beta A B + C)``, in which C stays a number of the file."""
    a, b, *c = operands
    alpha, beta = arb(attributes.get("alpha", 1.0)), arb(attributes.get("beta", 1.0) if c else 0.0)
    product = reader.einsum(
        a, b, [1, 0] if attributes.get("transA") else [0, 1], [2, 1] if attributes.get("transB") else [1, 2], [0, 2]
    )
    if c and np.broadcast_shapes(_shape(c[0]), product.shape) != product.shape:
        raise ModelError(f"a summand of shape {_shape(c[0])} for a product of shape {product.shape}")
    if not c:
        return _times(reader, product, alpha)
    if beta == 0:  # 0 times what is no number is none either
        nothing = _times(reader, c[0], beta) if isinstance(c[0], View) else 0 * _real(c[0])
        return _add(reader, [_times(reader, product, alpha), nothing], {})
    return _times(reader, _add(reader, [_times(reader, product, alpha / beta), c[0]], {}), beta)


def _times(reader: _Reader, x: View, factor: arb) -> View:
    return x if factor == 1 else reader.sum([x], [np.asarray(factor, dtype=object)], np.zeros(()), x.shape)


@operator("Einsum", since=12, operands=(1, 2), equation=AttributeProto.STRING)
def _einsum(reader: _Reader, operands: Any, attributes: Any) -> View:
    """The product of two tensors, summed over dimensions; of one tensor, its product with the number 1."""
    terms, arrow, out = attributes.get("equation", b"").decode("ascii").replace(" ", "").partition("->")
    parts = terms.split(",")
    letters = [part.replace("...", "", 1) for part in (*parts, out)]
    hidden = {len(_shape(v)) - len(own) for part, own, v in zip(parts, letters, operands) if "..." in part}
    if len(parts) != len(operands) or not all(own.isalpha() or not own for own in letters) or len(hidden) > 1:
        raise ModelError("an equation other than the product of its operands, with dots for the same dimensions")
    if arrow and ("..." in out) != bool(hidden):
        raise ModelError("an equation with dots on one side")
    labels = [_labels(part, len(_shape(v))) for part, v in zip(parts, operands)]
    wanted = _labels(out or "...", len(letters[-1]) + sum(hidden))
    if not arrow:  # letters that stand once, in their order; which case comes first is a matter of taste
        named = "".join(letters)
        if not named.islower():
            raise ModelError("an equation without its result")
        wanted += [ord(letter) for letter in sorted(set(named)) if named.count(letter) == 1]
    if any(len(set(part)) < len(part) for part in (*labels, wanted)):
        raise ModelError("an equation that names a dimension of a tensor twice")
    if len(operands) == 1:
        return reader.einsum(operands[0], np.ones(()), labels[0], [], wanted)
    first, second = operands
    return reader.einsum(first, second, labels[0], labels[1], wanted)


def _labels(part: str, rank: int) -> list[int]:
    """The dimensions of a tensor by number: small ones for what dots stand for, larger ones for letters."""
    before, dots, behind = part.partition("...")
    hidden = rank - len(before) - len(behind)
    if hidden < 0 or (hidden and not dots) or not (before + behind).isascii() or hidden > MOST_DIMENSIONS:
        raise ModelError("an equation that does not fit its operands")
    return [*map(ord, before), *range(hidden), *map(ord, behind)]


@operator("Add", since=7, operands=(2, 2))
def _add(reader: _Reader, operands: Any, attributes: Any, sign: int = 1) -> View:
    shape = np.broadcast_shapes(*(_shape(v) for v in operands))
    signs = (arb(1), arb(sign))
    views = [(v, s) for v, s in zip(operands, signs) if isinstance(v, View)]
    constants = [(1, sign)[i] * _real(v, (1, sign)[i] > 0) for i, v in enumerate(operands) if not isinstance(v, View)]
    if not views:
        raise ModelError("a sum of constants")
    bias = constants[0] if constants else np.zeros(())
    return reader.sum([v for v, _ in views], [np.array(s, dtype=object) for _, s in views], bias, shape)


@operator("Sub", since=7, operands=(2, 2))
def _subtract(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _add(reader, operands, attributes, -1)


def _multiply(reader: _Reader, operands: Any, attributes: Any) -> View:
    """An entrywise product: a ``Product`` of two variable tensors, affine where one is constant."""
    x, y = operands
    shape = np.broadcast_shapes(_shape(x), _shape(y))
    size = math.prod(shape)
    _limit(size)
    if isinstance(x, View) and isinstance(y, View):
        left, right = (v.moved(lambda index: np.broadcast_to(index, shape).ravel()) for v in (x, y))
        every = Entries(np.arange(size), size)
        return reader.networks.add(Product(size, left, right, every, left.places(), right.places()), shape)
    x, y = (x, y) if isinstance(x, View) else (y, x)
    return reader.sum([x], [exact(_real(y))], np.zeros(()), shape)


def _divide(reader: _Reader, operands: Any, attributes: Any) -> View:
    x, y = operands
    if not isinstance(x, View) or isinstance(y, View) or not (_real(y) != 0).all():
        raise ModelError("division by anything but a constant other than 0")
    return reader.sum([x], [arb(1) / exact(_real(y))], np.zeros(()), np.broadcast_shapes(_shape(x), _shape(y)))


# Activations and softmax


def _kink(reader: _Reader, x: Value, slope: float, limit: float = math.inf) -> View:
    if not isinstance(x, View) or not 0 <= slope <= 1:
        raise ModelError("an operand that is constant, or a slope outside of 0 to 1")
    return reader.networks.add(Kink(x.size, x.flat(), slope, limit), x.shape)


@operator("Relu", since=6)
def _relu(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _kink(reader, operands[0], 0.0)


@operator("LeakyRelu", since=6, alpha=AttributeProto.FLOAT)
def _leaky_relu(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: ``max(x, 0) + s min(x, 0) = s x + (1 - s) max(x, 0)``, for slopes that no kink has."""
    slope = attributes.get("alpha", float(np.float32(0.01)))
    if 0 <= slope <= 1:
        return _kink(reader, operands[0], slope)
    positive, shares = _kink(reader, operands[0], 0.0), (arb(slope), 1 - arb(slope))
    scales = [np.asarray(share, dtype=object) for share in shares]
    return reader.sum([operands[0], positive], scales, np.zeros(()), positive.shape)


@operator("Softmax", since=1, until=12, axis=AttributeProto.INT)
def _softmax_of_the_rest(reader: _Reader, operands: Any, attributes: Any) -> Any:
    """Before operator set 13: over all dimensions from the axis on."""
    shape = _shape(operands[0])
    axis = _axis(reader, attributes.get("axis", 1), len(shape))
    return _rows_softmax(reader, operands[0], lambda places: places.reshape(math.prod(shape[:axis]), -1))


@operator("Softmax", since=13, axis=AttributeProto.INT)
def _softmax(reader: _Reader, operands: Any, attributes: Any) -> Any:
    axis = _axis(reader, attributes.get("axis", -1), len(_shape(operands[0])))
    return _rows_softmax(reader, operands[0], lambda p: np.moveaxis(p, axis, -1).reshape(-1, p.shape[axis]))


def _rows_softmax(reader: _Reader, x: Value, rows: Callable[[Indices], Indices]) -> Any:
    """The probabilities of rows of places; with rows that a mask of -inf hides completely, an ``Emptied``."""
    if not isinstance(x, View):
        raise ModelError("a softmax of constants")
    places = rows(np.arange(x.size).reshape(x.shape))
    empty = np.zeros(x.size, dtype=np.bool_)
    empty[places[reader.networks.masked(x).ravel()[places].all(1)]] = True
    if empty.any():
        return Emptied(_rows_softmax(reader, _without_empty(reader, x, empty), rows), empty.reshape(x.shape))
    hidden, shown = _without_mask(reader, x.flat(), places)
    if hidden is None:
        return reader.networks.add(Softmax(x.size, x.flat(), Places(places, x.size)), x.shape)
    return reader.networks.add(Softmax(x.size, shown, Places(places, x.size), hidden, x.flat()), x.shape)


def _without_empty(reader: _Reader, x: View, empty: np.ndarray[Any, np.dtype[np.bool_]]) -> View:
    """Logits whose mask is taken away where rows hold nothing else."""
    node, at = reader.networks.nodes[x.node], x.flat().index
    if not isinstance(node, Sum) or len(node.views) != 1:
        raise ModelError(EMPTY)
    inner = node.views[0].at(Places(at.at, at.among))
    if reader.networks.masked(inner)[empty].any():  # by another mask before
        raise ModelError(EMPTY)
    scale, bias = np.where(empty, ONE, at.of(node.scales[0])), np.where(empty, 0.0, at.of(node.bias))
    return reader.networks.add(Sum(x.size, (inner,), (scale,), bias), x.shape)


class Emptied:
    """Probabilities of which some rows are no numbers, as all of their logits are -inf; only a guard may read them.

    ``view`` has probabilities of some kind in their place, ``empty`` says where they are.
    """

    def __init__(self, view: View, empty: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        self.view, self.empty, self.shape, self.size = view, empty, view.shape, view.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Whoever takes them for a constant is told what they are."""
        raise ModelError(EMPTY)


SEVERAL = ("Split", "Dropout")  # operators with several outputs; of those of a Dropout only the first has a meaning
EMPTY = "a row of a softmax that is masked completely"
MASKED_BELOW = -1e4


def _without_mask(reader: _Reader, x: View, rows: Indices) -> tuple[Places | None, View]:
    """The places that a constant added to the logits hides, and the logits without that constant there.

    What counts as a mask is no matter of trust: hidden places are bounded by their true logits (``Softmax.behind``).
    """
    node = reader.networks.nodes[x.node]
    if not isinstance(node, Sum) or len(node.views) != 1:
        return None, x
    bias = x.index.of(node.bias)
    top = np.full(x.size, -np.inf)
    top[rows] = bias[rows].max(1, keepdims=True)
    if (top <= MASKED_BELOW).any():  # softmax forgets a shift of all logits, but the runtime loses them beside it
        raise ModelError(EMPTY)
    with np.errstate(invalid="ignore"):
        hidden = (bias == -np.inf) | (bias - top <= MASKED_BELOW)
    if not hidden.any():
        return None, x
    inner = node.views[0].at(Places(x.index.at, x.index.among))
    scale = np.where(hidden, arb(1), x.index.of(node.scales[0]))
    left = np.where(hidden, 0.0, bias)
    if (left == 0).all() and all(bool(s == 1) for s in scale):
        return Places(np.flatnonzero(hidden), x.size), inner
    shown = reader.networks.add(Sum(x.size, (inner,), (scale,), left), (x.size,))
    return Places(np.flatnonzero(hidden), x.size), shown


from . import operators as operators  # noqa: E402  registers further rules
