"""VNN-LIB property files, versions 1 and 2: an input box and the outputs that would break the property.

Numbers are read exactly and rounded outward, so that the region in floating point contains the region written: what is
proved of it holds. A counterexample must satisfy the conditions as they are written, strict ones included.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MissingExtra, SpecificationError

LARGEST_FILE = 128 << 20
MOST_TOKENS = 2_000_000  # in one command
MOST_VARIABLES = 2_000_000
MOST_DISJUNCTS = 10_000
MOST_ATOMS = 5_000_000  # of all alternatives together
MOST_ENTRIES = 20_000_000  # of all boxes and matrices together
DEEPEST = 64  # nested parentheses

_TOKEN = re.compile(r";[^\n]*|[()]|[^\s();]+")
_NUMBER = re.compile(r"[+-]?(\d{1,1200}(\.\d{0,1200})?|\.\d{1,1200})([eE][+-]?\d{1,3})?")
_VARIABLE = re.compile(r"([XY])_(\d{1,9})")

_TYPES = {"F16": "float16", "F32": "float32", "F64": "float64"}  # as the reference package and a file call them

Expression = str | list["Expression"]
Variable = tuple[str, int]  # ("X", 3)


@dataclass(frozen=True)
class Disjunct:
    """Inputs in ``[lower, upper]`` whose outputs satisfy ``matrix @ y <= offset``, strictly where ``strict``.

    ``inner``: the smallest and largest double-precision numbers that satisfy the conditions on the inputs as written;
    ``limits``: the offsets as written. None: as ``lower``, ``upper`` and ``offset``.
    """

    lower: np.ndarray
    upper: np.ndarray
    matrix: np.ndarray
    offset: np.ndarray
    strict: np.ndarray
    inner: tuple[np.ndarray, np.ndarray] | None = None
    limits: tuple[Fraction, ...] | None = None

    @property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers no counterexample may leave."""
        return self.inner or (self.lower, self.upper)

    def holds(self, x: np.ndarray, y: np.ndarray) -> bool:
        """Whether an input and its outputs satisfy the conditions as they are written, in exact arithmetic."""
        x, y = (np.asarray(a).reshape(-1).astype(np.float64) for a in (x, y))
        least, most = self.ends
        if not (((least <= x) & (x <= most)).all() and np.isfinite(y).all()):
            return False
        exact = [Fraction(value) for value in y.tolist()]
        limits = self.limits or [Fraction(value) for value in self.offset.tolist()]
        for row, limit, strict in zip(self.matrix.tolist(), limits, self.strict):
            total = sum((Fraction(c) * value for c, value in zip(row, exact) if c), Fraction(0))
            if total > limit or (strict and total == limit):
                return False
        return True


@dataclass(frozen=True)
class Declared:
    """A tensor as version 2 declares it: ``X float32 [1,5]``."""

    name: str
    type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Specification:
    """What a counterexample is: a point of any disjunct. Without one the property holds (``unsat``).

    ``declared``: input and output as version 2 names them, which a counterexample must repeat; None in version 1.
    """

    inputs: int
    outputs: int
    disjuncts: tuple[Disjunct, ...]
    declared: tuple[Declared, Declared] | None = None


def load_vnnlib(path: str | Path) -> Specification:
    """Read a property file of version 1.0 or 2.0; raises SpecificationError with one line otherwise."""
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise SpecificationError(f"larger than {LARGEST_FILE >> 20} MB")
        return parse_vnnlib(_content(path).decode("utf-8"))
    except OSError as error:
        raise SpecificationError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise SpecificationError(f"{path}: not a text file") from None
    except SpecificationError as error:
        raise SpecificationError(f"{path}: {error}") from None


def _content(path: Path) -> bytes:
    """The bytes of a file, unpacked if it is a gzip archive as the competition keeps them."""
    with path.open("rb") as stream:
        if stream.read(2) != b"\x1f\x8b":
            return path.read_bytes()
    try:
        with gzip.open(path) as stream:
            content = stream.read(LARGEST_FILE + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise SpecificationError("a damaged gzip archive") from None
    if len(content) > LARGEST_FILE:
        raise SpecificationError(f"larger than {LARGEST_FILE >> 20} MB")
    return content


def parse_vnnlib(text: str) -> Specification:
    """Read the text of a property file."""
    second = re.search(r"^\s*\(\s*vnnlib-version", text, re.MULTILINE) is not None
    reader = _read_version_2(text) if second else _read_version_1(text)
    return _specification(reader)


@dataclass
class _Reader:
    """What the commands of a file have said so far."""

    count: dict[str, int] = field(default_factory=lambda: {"X": 0, "Y": 0})
    assertions: list[Expression] = field(default_factory=list)
    declared: tuple[Declared, Declared] | None = None


def _read_version_1(text: str) -> _Reader:
    """Reads declarations and assertions of a file of version 1."""
    reader = _Reader()
    declared: set[Variable] = set()
    for command in _commands(text):
        head = command[0] if command else ""
        if head in ("declare-const", "declare-fun"):
            name = command[1] if len(command) > 1 else ""
            found = _VARIABLE.fullmatch(name) if isinstance(name, str) else None
            if found is None or command[-1] != "Real":
                raise SpecificationError(f"only real constants X_i and Y_i can be declared, not {_short(command)}")
            declared.add((found[1], int(found[2])))
            if len(declared) > MOST_VARIABLES:
                raise SpecificationError(f"more than {MOST_VARIABLES} variables")
        elif head == "assert" and len(command) == 2:
            reader.assertions.append(command[1])
        elif head not in ("set-logic", "set-info", "check-sat", "exit", "get-model"):
            raise SpecificationError(f"unknown command {_short(command)}")
    for kind, index in declared:
        reader.count[kind] = max(reader.count[kind], index + 1)
    if len(declared) != reader.count["X"] + reader.count["Y"]:
        raise SpecificationError("the declared X_i or Y_i do not count from 0 without gaps")
    return reader


def _commands(text: str) -> Iterator[list[Expression]]:
    """The parenthesised commands of a file, one at a time."""
    stack: list[list[Expression]] = []
    tokens = 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token[0] == ";":
            continue
        tokens += 1
        if tokens > MOST_TOKENS:
            raise SpecificationError(f"a command of more than {MOST_TOKENS} words")
        if token == "(":
            if len(stack) == DEEPEST:
                raise SpecificationError(f"parentheses nested more than {DEEPEST} deep")
            stack.append([])
        elif token == ")":
            if not stack:
                raise SpecificationError("a closing parenthesis too many")
            done = stack.pop()
            if stack:
                stack[-1].append(done)
            else:
                yield done
                tokens = 0
        elif stack:
            stack[-1].append(token)
        else:
            raise SpecificationError(f"{token[:40]!r} stands outside of all parentheses")
    if stack:
        raise SpecificationError("a parenthesis is never closed")


def _read_version_2(text: str) -> _Reader:
    """Version 2 is parsed by its reference package and rewritten in the words of version 1."""
    for _ in _commands(text):  # the package crashes on deep nesting: look first
        pass
    try:
        import vnnlib
    except ImportError:
        raise MissingExtra("VNN-LIB 2 needs 'pip install softhull[vnnlib]'") from None
    try:
        query = vnnlib.parse_query_string(text)
    except vnnlib.VNNLibException as error:
        hints = re.findall(r'"(?:message|hint)": "([^"]*)"', str(error))
        raise SpecificationError("; ".join(hints) or "not valid VNN-LIB 2") from None
    networks = query.networks
    if len(networks) != 1 or len(networks[0].inputs) != 1 or len(networks[0].outputs) != 1:
        raise SpecificationError("only one network with one input and one output is supported")
    x, y = (
        Declared(str(item.name), _TYPES.get(item.dtype.name, "real"), tuple(item.shape))
        for item in (networks[0].inputs[0], networks[0].outputs[0])
    )
    shapes = {"X": x.shape, "Y": y.shape}
    reader = _Reader({kind: math.prod(shape) for kind, shape in shapes.items()}, declared=(x, y))
    if max(reader.count.values()) > MOST_VARIABLES:
        raise SpecificationError(f"more than {MOST_VARIABLES} variables")
    reader.assertions += [_rewritten(vnnlib, item.expr, shapes) for item in query.assertions]
    return reader


def _rewritten(vnnlib: Any, node: Any, shapes: dict[str, tuple[int, ...]]) -> Expression:
    """An expression of version 2 in the words of version 1."""
    words = {
        vnnlib.And: "and",
        vnnlib.Or: "or",
        vnnlib.LessEqual: "<=",
        vnnlib.LessThan: "<",
        vnnlib.GreaterEqual: ">=",
        vnnlib.GreaterThan: ">",
        vnnlib.Equal: "=",
        vnnlib.Plus: "+",
        vnnlib.Minus: "-",
        vnnlib.Negate: "-",
        vnnlib.Multiply: "*",
    }
    if isinstance(node, vnnlib.Literal):
        return str(node.lexeme)
    if isinstance(node, vnnlib.Var):
        kinds = {vnnlib.SymbolKind.Input: "X", vnnlib.SymbolKind.Output: "Y"}
        kind = kinds.get(node.kind)
        if kind is None:
            raise SpecificationError(f"{node.name!r} is neither input nor output; hidden nodes are not supported")
        index = 0
        for position, size in zip(node.indices, shapes[kind]):
            index = index * size + int(position)
        return f"{kind}_{index}"
    word = next((name for kind, name in words.items() if isinstance(node, kind)), None)
    if word is None:
        raise SpecificationError(f"{type(node).__name__} is not supported")
    return [word, *(_rewritten(vnnlib, child, shapes) for child in node.children())]


@dataclass(frozen=True)
class _Linear:
    """A sum of constant multiples of variables, and a constant."""

    terms: dict[Variable, Fraction]
    constant: Fraction

    def plus(self, other: _Linear, factor: Fraction) -> _Linear:
        terms = dict(self.terms)
        for variable, coefficient in other.terms.items():
            terms[variable] = terms.get(variable, Fraction(0)) + factor * coefficient
        return _Linear(terms, self.constant + factor * other.constant)


@dataclass(frozen=True)
class _Atom:
    """``linear <= 0``, or ``< 0``."""

    linear: _Linear
    strict: bool


@dataclass(frozen=True)
class _Limit:
    """One input against one number: what large files are made of. ``outer`` contains it, ``inner`` satisfies it."""

    index: int
    outer: float
    inner: float
    upper: bool


def _limit(word: str, left: Expression, right: Expression) -> _Limit | None:
    """A comparison of one input with one number, rounded outward; None where it is anything else."""
    if not isinstance(left, str) or not isinstance(right, str):
        return None
    at_most = word[0] == "<"
    if left[:2] != "X_":
        left, right, at_most = right, left, not at_most
    variable = _VARIABLE.fullmatch(left)
    if variable is None or variable[1] != "X" or not _NUMBER.fullmatch(right):
        return None
    nearest, exact = float(right), Decimal(right)
    if not math.isfinite(nearest):
        raise SpecificationError("a number is out of range")
    return _between(int(variable[2]), nearest, Decimal(nearest), exact, at_most, len(word) == 1)


def _between(index: int, nearest: float, value: Any, exact: Any, at_most: bool, strict: bool) -> _Limit:
    """The limit with the numbers on both sides of it, of which ``nearest``, exactly ``value``, is one."""
    outward = math.inf if at_most else -math.inf
    outer = inner = nearest
    if (value < exact) if at_most else (value > exact):
        outer = math.nextafter(nearest, outward)
    elif value != exact or strict:
        inner = math.nextafter(nearest, -outward)
    return _Limit(index, outer, inner, at_most)


Condition = _Atom | _Limit


def _linear(expression: Expression) -> _Linear:
    """A linear expression as exact coefficients and a constant."""
    if isinstance(expression, str):
        variable = _VARIABLE.fullmatch(expression)
        if variable:
            return _Linear({(variable[1], int(variable[2])): Fraction(1)}, Fraction(0))
        if not _NUMBER.fullmatch(expression):
            raise SpecificationError(f"{expression[:40]!r} is neither a variable X_i, Y_i nor a number")
        return _Linear({}, Fraction(expression))
    if len(expression) < 2 or expression[0] not in ("+", "-", "*"):
        raise SpecificationError(f"not a linear expression: {_short(expression)}")
    operands = [_linear(part) for part in expression[1:]]
    total = operands[0]
    if expression[0] == "-" and len(operands) == 1:
        return _Linear({}, Fraction(0)).plus(total, Fraction(-1))
    for operand in operands[1:]:
        if expression[0] != "*":
            total = total.plus(operand, Fraction(1 if expression[0] == "+" else -1))
        elif operand.terms and total.terms:
            raise SpecificationError(f"a product of two variables: {_short(expression)}")
        else:
            number, other = (total, operand) if operand.terms else (operand, total)
            total = _Linear({}, Fraction(0)).plus(other, number.constant)
        if abs(total.constant.numerator).bit_length() > 20_000 or total.constant.denominator.bit_length() > 20_000:
            raise SpecificationError(f"numbers out of range in {_short(expression)}")
    return total


def _cases(expression: Expression) -> list[list[Condition]]:
    """The formula as a disjunction of conjunctions."""
    if isinstance(expression, str) or not expression:
        raise SpecificationError(f"not a condition: {_short(expression)}")
    word, parts = expression[0], expression[1:]
    if word == "and":
        return _product([_cases(part) for part in parts])
    if word == "or":
        found: list[list[Condition]] = []
        for part in parts:
            found += _cases(part)
            if max(len(found), len(parts)) > MOST_DISJUNCTS:
                raise SpecificationError(f"more than {MOST_DISJUNCTS} alternatives")
        return found
    if word not in ("<=", ">=", "<", ">", "=") or len(parts) != 2:
        raise SpecificationError(f"not a condition: {_short(expression)}")
    limit = _limit(str(word), parts[0], parts[1]) if word != "=" else None
    if limit is not None:
        return [[limit]]
    difference = _linear(parts[0]).plus(_linear(parts[1]), Fraction(-1))
    negated = _Linear({}, Fraction(0)).plus(difference, Fraction(-1))
    if word == "=":
        return [[_Atom(difference, False), _Atom(negated, False)]]
    return [[_Atom(difference if word[0] == "<" else negated, len(word) == 1)]]


def _product(groups: Sequence[list[list[Condition]]]) -> list[list[Condition]]:
    """One case of each group, in all combinations."""
    count = math.prod(len(group) for group in groups)
    if count > MOST_DISJUNCTS:
        raise SpecificationError(f"more than {MOST_DISJUNCTS} combinations of alternatives")
    if count * sum(max(map(len, group), default=0) for group in groups) > MOST_ATOMS:
        raise SpecificationError(f"{count} combinations of alternatives are too large")
    combined: list[list[Condition]] = [[]]
    for group in groups:
        if len(group) == 1:
            for case in combined:
                case.extend(group[0])
        else:
            combined = [case + more for case in combined for more in group]
    return combined


def _specification(reader: _Reader) -> Specification:
    """Input boxes and unsafe output sets from assertions, one pair for each alternative."""
    inputs, outputs = reader.count["X"], reader.count["Y"]
    if not inputs or not outputs:
        raise SpecificationError("no inputs X_i or no outputs Y_i are declared")
    # What all alternatives share is read once: input boxes may be large and alternatives many.
    shared: list[Condition] = []
    groups = []
    for assertion in reader.assertions:
        cases = _cases(assertion)
        if len(cases) == 1:
            shared += cases[0]
        else:
            groups.append(cases)
    shared_box = _Box(inputs)
    rows = _collect(shared, shared_box, outputs)
    alternatives = _product(groups)
    entries = sum(4 * inputs + (len(rows) + len(case)) * outputs for case in alternatives)
    if entries > MOST_ENTRIES:
        raise SpecificationError(f"{len(alternatives)} alternatives of {inputs} inputs are too large")
    disjuncts = []
    for case in alternatives:
        narrowed = any(_on_inputs(condition) for condition in case)
        box = shared_box.copy() if narrowed else shared_box
        own = rows + _collect(case, box, outputs)
        low, high = box.lower, box.upper
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            open_at = int(np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))[0])
            raise SpecificationError(f"X_{open_at} has no lower or no upper bound")
        # An empty box has no counterexample, as one of a single point that a condition leaves out has none.
        if ((low > high) | ((low == high) & (box.least > box.most))).any():
            continue
        matrix = np.array([row.coefficients for row in own], dtype=np.float64).reshape(-1, outputs)
        limits = tuple(row.limit for row in own)
        offset = np.array([_rounded(limit, up=True) for limit in limits], dtype=np.float64)
        strict = np.array([row.strict for row in own], dtype=bool)
        disjuncts.append(Disjunct(low, high, matrix, offset, strict, (box.least, box.most), limits))
    return Specification(inputs, outputs, tuple(disjuncts), reader.declared)


class _Box:
    """Ends that contain the inputs written, and the outermost numbers that satisfy what is written of them."""

    def __init__(self, inputs: int) -> None:
        self.lower, self.least = (np.full(inputs, -np.inf) for _ in range(2))
        self.upper, self.most = (np.full(inputs, np.inf) for _ in range(2))

    def copy(self) -> _Box:
        other = _Box(0)
        other.lower, other.least, other.upper, other.most = (
            end.copy() for end in (self.lower, self.least, self.upper, self.most)
        )
        return other

    def narrow(self, limit: _Limit) -> None:
        i = limit.index
        if limit.upper:
            self.upper[i], self.most[i] = min(self.upper[i], limit.outer), min(self.most[i], limit.inner)
        else:
            self.lower[i], self.least[i] = max(self.lower[i], limit.outer), max(self.least[i], limit.inner)


@dataclass(frozen=True)
class _Row:
    """``coefficients . y <= limit``, or ``<``."""

    coefficients: np.ndarray
    limit: Fraction
    strict: bool


def _on_inputs(condition: Condition) -> bool:
    return isinstance(condition, _Limit) or any(kind == "X" for kind, _ in condition.linear.terms)


def _collect(conditions: list[Condition], box: _Box, outputs: int) -> list[_Row]:
    """Narrow the box by conditions on single inputs; return those on outputs as rows."""
    rows = []
    inputs = len(box.lower)
    for atom in conditions:
        if isinstance(atom, _Limit):
            if atom.index >= inputs:
                raise SpecificationError(f"X_{atom.index} is not declared")
            box.narrow(atom)
            continue
        terms = {variable: c for variable, c in atom.linear.terms.items() if c}
        kinds = {kind for kind, _ in terms}
        for kind, index in terms:
            if index >= (inputs if kind == "X" else outputs):
                raise SpecificationError(f"{kind}_{index} is not declared")
        if kinds == {"X"} and len(terms) == 1:
            ((_, index), coefficient) = next(iter(terms.items()))
            limit = -atom.linear.constant / coefficient
            nearest = _nearest(limit)
            box.narrow(_between(index, nearest, Fraction(nearest), limit, coefficient > 0, atom.strict))
        elif "X" in kinds:
            raise SpecificationError("a condition that couples several inputs, or inputs with outputs")
        else:
            rows.append(_row({index: c for (_, index), c in terms.items()}, atom, outputs))
    return rows


def _row(terms: dict[int, Fraction], atom: _Atom, outputs: int) -> _Row:
    """The condition with coefficients that are floating-point numbers: it is multiplied until they are."""
    factor = Fraction(1)
    if any(Fraction(_nearest(c)) != c for c in terms.values()):
        factor = Fraction(math.lcm(*(c.denominator for c in terms.values())))
    row = np.zeros(outputs)
    for index, c in terms.items():
        row[index] = _nearest(factor * c)
        if Fraction(float(row[index])) != factor * c:
            raise SpecificationError(f"the coefficient of Y_{index} has more digits than a floating-point number")
    limit = -factor * atom.linear.constant
    _nearest(limit)
    return _Row(row, limit, atom.strict)


def _nearest(number: Fraction) -> float:
    try:
        return number.numerator / number.denominator
    except OverflowError:
        raise SpecificationError("a number is out of range") from None


def _rounded(number: Fraction, up: bool) -> float:
    """The nearest float on one side."""
    nearest = _nearest(number)
    if up and Fraction(nearest) < number:
        return math.nextafter(nearest, math.inf)
    if not up and Fraction(nearest) > number:
        return math.nextafter(nearest, -math.inf)
    return nearest


def _short(expression: Expression) -> str:
    """The beginning of an expression as text, however large it is."""
    words: list[str] = []
    stack: list[Expression] = [expression]
    while stack and len(words) < 12:
        item = stack.pop()
        if isinstance(item, str):
            words.append(item[:40])
        else:
            stack += [")", *reversed(item), "("]
    return repr(" ".join(words)[:80])
