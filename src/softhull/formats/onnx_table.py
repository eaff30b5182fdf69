"""What becomes of every ONNX operator the importer reads: the table that ``softhull operators`` prints."""

from __future__ import annotations

from . import onnx as onnx  # registers all rules
from .onnx_rules import RULES

EXACT = "exact: affine in the input"
LINES = "two lines per entry"
RECTIFIERS = "rectifiers: two lines each"
PLANES = "planes per product"
SOFTMAX = "softmax bounds and planes; masks leave no trace"

_KINDS: dict[str, tuple[str, ...]] = {
    EXACT: (
        *("Add", "AveragePool", "BatchNormalization", "Cast", "Concat", "Conv", "ConvTranspose", "DepthToSpace"),
        *("Dropout", "Expand", "Flatten", "Gather", "GatherND", "GlobalAveragePool", "Identity", "Mean", "Neg", "Pad"),
        *("ReduceMean", "ReduceSum", "Reshape", "Resize", "RotaryEmbedding", "Shape", "Size", "Slice"),
        *("SpaceToDepth", "Split", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Unsqueeze", "Where"),
    ),
    LINES: (
        *(
            "Celu",
            "Clip",
            "Cos",
            "Elu",
            "Erf",
            "Exp",
            "Gelu",
            "HardSigmoid",
            "HardSwish",
            "LeakyRelu",
            "Log",
            "Mish",
            "Pow",
        ),
        *(
            "Reciprocal",
            "ReduceL2",
            "ReduceSumSquare",
            "Relu",
            "Selu",
            "Sigmoid",
            "Sin",
            "Softplus",
            "Softsign",
            "Sqrt",
        ),
        *("Swish", "Tanh"),
    ),
    RECTIFIERS: ("Abs", "GlobalMaxPool", "Max", "MaxPool", "Min", "PRelu", "ReduceL1", "ReduceMax", "ReduceMin"),
    PLANES: (
        *("Div", "Einsum", "Gemm", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "MatMul"),
        *("Mul", "RMSNormalization", "ReduceProd"),
    ),
    SOFTMAX: ("Attention", "IsNaN", "Softmax"),
    "a plane below and one above": ("LogSoftmax", "ReduceLogSumExp"),
}
# What a relaxation says beside its kind.
_NOTES = {
    "Div": "exact by a constant",
    "Mul": "exact by a constant; x sigmoid(x) is one curve",
    "MatMul": "exact by a constant",
    "Gemm": "exact by a constant",
    "Einsum": "exact by a constant",
    "Where": "constant conditions",
    "IsNaN": "where(isnan(p), 0, p) behind a softmax p",
    "Cos": "the range where an input moves by more than 3",
    "Sin": "the range where an input moves by more than 3",
    "Pow": "one constant exponent, where the power is a real number",
    "Resize": "nearest, linear",
    "Pad": "constant, edge, reflect",
    "LogSoftmax": "exact for differences of its outputs",
    "Attention": "no softcap, no cache, no window",
    "Clip": "constant limits",
}


def operators(checked: dict[str, list[tuple[int, int]]]) -> list[dict[str, str]]:
    """One row per operator; ``checked`` are the operator sets in which the checker reads it, by name."""
    kinds = {name: kind for kind, names in _KINDS.items() for name in names}
    rows = []
    for name in sorted(RULES):
        ranges = ", ".join(f"{first}-{last}" for first, last in _joined(checked.get(name, [])))
        rows.append(
            {
                "operator": name,
                "versions": ", ".join(map(str, sorted(RULES[name].versions))),
                "relaxation": kinds[name],
                "note": _NOTES.get(name, ""),
                "checker": f"opset {ranges}" if ranges else "no",
            }
        )
    return rows


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of operator sets, those that follow each other as one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and found[-1][1] + 1 == first:
            first = found.pop()[0]
        found.append((first, last))
    return found


def as_markdown(rows: list[dict[str, str]]) -> str:
    """The table as the documentation holds it."""
    lines = ["| operator | versions | relaxation | note | checker |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(row.values()) + " |" for row in rows]
    return "\n".join(lines)
