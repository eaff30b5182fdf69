"""Files and proofs made to be misread or to take all there is: refused in one line, by both readers where both read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from flint import arb, ctx

from softhull.checker import check, network
from softhull.checker.balls import PRECISION, matrix, times, zeros
from softhull.checker.certificate import Certificate, Refused, write_certificate
from softhull.checker.check import check_certificate, sha256
from softhull.checker.network import Networks
from softhull.checker.replay import Choices, Knowledge, Region
from softhull.checker.tree import cells_of
from softhull.errors import ModelError
from softhull.formats.onnx import parse_onnx

from ..formats.onnx_models import Builder

FLAGS: dict[str, tuple[tuple[int, ...], int, list[Any], dict[str, Any]]] = {
    "Gemm": ((2, 2), 13, [np.eye(2), np.zeros(2)], {"transB": 2}),
    "ReduceSum": ((2, 2), 13, [[1]], {"keepdims": 2}),
    "ReduceMax": ((2, 2), 13, [], {"keepdims": -1, "axes": [1]}),
    "Reshape": ((2, 2), 14, [[1, 4]], {"allowzero": 2}),
    "AveragePool": ((1, 1, 4), 13, [], {"kernel_shape": [2], "pads": [1, 1], "count_include_pad": 2}),
    "MaxPool": ((1, 1, 4), 13, [], {"kernel_shape": [3], "ceil_mode": -1}),
    "RotaryEmbedding": ((1, 1, 2, 4), 23, [np.ones((1, 2, 2)), np.ones((1, 2, 2))], {"interleaved": 2}),
}

# Operators with operands and attributes that they do not have, or that nothing can be made of.
ODD: list[tuple[str, tuple[int, ...], int, list[Any], dict[str, Any]]] = [
    ("DepthToSpace", (1, 4, 2, 2), 13, [], {"blocksize": 0}),
    ("DepthToSpace", (1, 4, 2, 2), 13, [], {"blocksize": -1}),
    ("DepthToSpace", (1, 4, 2, 2), 13, [], {"blocksize": 2, "mode": "ROW"}),
    ("SpaceToDepth", (1, 4, 2, 2), 13, [], {"blocksize": 0}),
    ("Conv", (1, 2, 4), 13, [np.ones((2, 1, 2))], {"group": 0}),
    ("ConvTranspose", (1, 2, 4), 13, [np.ones((2, 1, 2))], {"group": 0}),
    ("GroupNormalization", (1, 2, 4), 21, [np.ones(2), np.ones(2)], {"num_groups": 0}),
    ("LeakyRelu", (1, 2), 13, [], {"alpha": np.inf}),
    ("Elu", (1, 2), 13, [], {"alpha": np.nan}),
    ("HardSigmoid", (1, 2), 13, [], {"beta": -np.inf}),
    ("LayerNormalization", (1, 2), 17, [np.ones(2)], {"epsilon": np.inf}),
    ("Resize", (1, 1, 10), 13, [None, [1.0, 1.0, 0.7]], {}),  # 6.9999999 entries, in single precision 7
    ("Resize", (1, 1, 82), 13, [None, None, [1, 1, 2]], {"nearest_mode": "ceil"}),  # at 20, in single precision behind
    ("Pad", (1, 2), 13, [[0, 1], None, [1]], {}),  # axes, before there were any
]


def _model(kind: str, shape: tuple[int, ...], opset: int, operands: list[Any], attributes: dict[str, Any]) -> Any:
    b = Builder(opset)

    def constant(value: Any) -> str:
        if value is None:
            return ""
        return b.const(value, np.int64 if np.asarray(value).dtype.kind == "i" else np.float32)

    found = b.op(kind, "x", *(constant(value) for value in operands), **attributes)
    model = b.model(b.op("Reshape", found, b.ints(1, -1)), shape)
    model.ir_version = 11 if opset > 21 else 8
    return model


def _refused(model: Any, folder: Path, reason: str | None = None) -> None:
    onnx.save(model, str(folder / "m.onnx"))
    with pytest.raises(ModelError, match=reason):
        Networks([folder / "m.onnx"])
    with pytest.raises(ModelError, match=reason):
        parse_onnx(model.SerializeToString(), "m.onnx", None)


@pytest.mark.parametrize("kind", FLAGS)
def test_a_flag_is_0_or_1(kind: str, tmp_path: Path) -> None:
    """A runtime compares with 1 or with 0, which is not the same for 2."""
    _refused(_model(kind, *FLAGS[kind]), tmp_path, "neither 0 nor 1")


def test_a_flag_of_attention_is_0_or_1(tmp_path: Path) -> None:
    b = Builder(23)
    model = b.model(b.op("Reshape", b.op("Attention", "x", "x", "x", is_causal=2), b.ints(1, -1)), (1, 2, 3, 4))
    _refused(model, tmp_path, "neither 0 nor 1")


@pytest.mark.parametrize("case", range(len(ODD)), ids=lambda i: f"{ODD[i][0]}-{i}")
def test_what_runtimes_refuse_or_round_is_refused(case: int, tmp_path: Path) -> None:
    _refused(_model(*ODD[case]), tmp_path)


@pytest.mark.parametrize(
    ("mask", "attributes"),
    [
        (np.zeros(3), {}),
        (np.zeros((1, 3)), {}),
        (None, {"scale": 0.0}),
        (None, {"scale": -1.0}),
        (None, {"q_num_heads": 1}),
    ],
)
def test_attention_as_runtimes_take_it(mask: Any, attributes: dict[str, Any], tmp_path: Path) -> None:
    b = Builder(23)
    masks = [] if mask is None else [b.const(mask)]
    model = b.model(
        b.op("Reshape", b.op("Attention", "x", "x", "x", *masks, **attributes), b.ints(1, -1)), (1, 2, 3, 4)
    )
    onnx.save(model, str(tmp_path / "m.onnx"))
    with pytest.raises(ModelError, match=r"positive|a mask of another shape|do not fit"):
        Networks([tmp_path / "m.onnx"])


def test_transposed_kernels_and_maxima_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors of many turns or of many nodes are as large as what they take."""
    monkeypatch.setattr(network, "LARGEST_NETWORK", 1 << 17)
    kinds = {
        "ConvTranspose": lambda b, h: b.op("ConvTranspose", h, b.const(np.ones((1, 1, 200))), pads=[199, 199]),
        "MaxPool": lambda b, h: b.op("MaxPool", h, kernel_shape=[1000]),
    }
    for kind, make in kinds.items():
        b = Builder(13)
        wide = b.op("Tile", "x", b.ints(1, 1, 100 if kind == "ConvTranspose" else 500))
        last = [make(b, wide) for _ in range(5)][-1]
        onnx.save(b.model(b.op("Flatten", last), (1, 1, 2)), str(tmp_path / "m.onnx"))
        with pytest.raises(ModelError, match="numbers in all"):
            Networks([tmp_path / "m.onnx"])


def test_maxima_of_too_many_numbers_are_refused(tmp_path: Path) -> None:
    b = Builder(13)
    wide = b.op("Tile", "x", b.ints(1, 600))
    onnx.save(b.model(b.op("ReduceMax", wide, axes=[1]), (1, 2)), str(tmp_path / "m.onnx"))
    with pytest.raises(ModelError, match="the largest of more than"):
        Networks([tmp_path / "m.onnx"])


def _check(folder: Path, b: Builder, output: str, n: int, property: dict[str, Any], norm: str = "inf") -> Any:
    """The verdict on a certificate that claims next to nothing, so that only intervals are computed."""
    model = folder / "m.onnx"
    onnx.save(b.model(output, (1, n)), str(model))
    x = np.zeros(n)
    arrays = {"x": x, "entries": np.array([[0, 1]]), "lower": np.array([-1e300]), "upper": np.array([np.inf])}
    step = {"claim": "differences", "tensor": f"0:{output}", "entries": "entries", "lower": "lower", "upper": "upper"}
    header = {
        "format": "softhull certificate",
        "version": 2,
        "models": [{"file": "m.onnx", "sha256": sha256(model.read_bytes())}],
        "input": {"array": "x", "sha256": sha256(x.tobytes()), "index": 0},
        "region": {"eps": 0.5, "norm": norm, "clip": None},
        "property": property,
        "steps": [{**step, "rules": {}, "stops": True}],
    }
    write_certificate(folder / "c.npz", Certificate(header, arrays))
    return check_certificate(folder / "c.npz", [model])


@pytest.mark.parametrize("norm", ["inf", "2"])
def test_intervals_of_wide_sums_take_no_square(norm: str, tmp_path: Path) -> None:
    """A sum of n entries depends on one of them each: no matrix of n times n."""
    b = Builder(13)
    h = b.op("Relu", b.op("Add", "x", b.const([0.5])))
    pair = b.op("Slice", h, b.ints(0), b.ints(2), b.ints(1))
    found = _check(tmp_path, b, pair, 20000, {"kind": "class", "label": 0, "rivals": [1]}, norm)
    assert "does not say how to pass" in found.reason


def test_softmax_rows_are_limited(tmp_path: Path) -> None:
    b = Builder(13)
    wide = b.op("Expand", b.op("Slice", "x", b.ints(0), b.ints(1), b.ints(1)), b.ints(1, 5000))
    found = _check(tmp_path, b, wide, 2, {"kind": "score", "score": "confidence", "label": 0, "bound": 1.0})
    assert not found.accepted
    assert "more logits than the checker allows" in found.reason


def test_models_of_tensors_too_large_for_any_step_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LARGEST_STEP", 8)
    b = Builder(13)
    found = _check(tmp_path, b, b.op("Relu", "x"), 9, {"kind": "class", "label": 0, "rivals": [1]})
    assert "too large for any step" in found.reason


def test_nodes_count_beside_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LARGEST_NETWORK", 100 * network.NODE)
    b = Builder(13)
    h = "x"
    for _ in range(101):
        h = b.op("Relu", h)
    onnx.save(b.model(h, (1, 1)), str(tmp_path / "m.onnx"))
    with pytest.raises(ModelError, match="numbers in all"):
        Networks([tmp_path / "m.onnx"])


def test_zero_times_no_number_is_none() -> None:
    """In matrices of all sizes: the library forgets it in large ones."""
    for n in (1, 3, 150):
        for bad in (arb.nan(), arb.pos_inf()):
            found = times(zeros(n, n), matrix(np.full((n, n), bad, dtype=object)))
            assert all(value.is_nan() for value in found.ravel())


def test_where_a_network_is_no_number_nothing_follows(tmp_path: Path) -> None:
    """``x + 0 log(-1)``: no stop before the logarithm may take it for 0."""
    n = 150
    b = Builder(13)
    nothing = b.op("MatMul", b.op("Log", b.op("Sub", "x", b.const([2.0]))), b.const(np.zeros((n, n))))
    last = b.op("Add", b.op("Add", "x", nothing), b.op("Mul", nothing, b.const([0.0])))
    onnx.save(b.model(last, (1, n)), str(tmp_path / "m.onnx"))
    with ctx.workprec(PRECISION):
        networks = Networks([tmp_path / "m.onnx"])
        known = Knowledge(networks, Region(np.zeros(n), np.ones(n)))
        view, rules = networks.logits[0], {"below": np.zeros(n), "above": np.zeros(n)}
        rows = zeros(n, n)
        np.fill_diagonal(rows, arb(1))
        for stops in (False, True):
            assert not any(value.is_finite() for value in known.lower_bounds([(view, rows)], lambda *_: rules, stops))
        assert not np.isfinite(known.box(view)).any()


def test_an_infinity_is_no_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk that ends with one has met something unknown, whatever its sign."""
    monkeypatch.setattr(
        Knowledge, "lower_bounds", lambda self, start, *_: np.full(len(start[0][1]), arb.pos_inf(), dtype=object)
    )
    b = Builder(13)
    found = _check(tmp_path, b, b.op("Relu", "x"), 2, {"kind": "class", "label": 0, "rivals": [1]})
    assert "does not follow" in found.reason


def test_sums_cancel_in_boxes(tmp_path: Path) -> None:
    """``x - x`` is 0: coefficients of one entry are added up before its range counts; regions of any kind."""
    b = Builder(13)
    both = [b.op("Gather", "x", b.ints(*entries), axis=1) for entries in ((0, 1, 0, 1), (0, 1, 1, 0))]
    apart = b.op("Sub", *both)
    onnx.save(b.model(apart, (1, 2)), str(tmp_path / "m.onnx"))
    low, high = np.array([-1.0, 0.0]), np.array([1.0, 3.0])
    options = (np.array([[-1.0], [1.0]]), np.array([[0.0], [3.0]]))
    with ctx.workprec(PRECISION):
        networks = Networks([tmp_path / "m.onnx"])
        for region in (Region(low, high), Region(low, high, np.zeros(2), 3.0, 2), Choices(low, high, options=options)):
            ends = Knowledge(networks, region).box(networks.logits[0])
            assert not np.any([end.ravel()[:2] for end in ends])
            assert np.all(np.diff([end.ravel()[2:] for end in ends], axis=0) >= 5.0)


def test_trees_are_limited_whatever_they_leave_out(tmp_path: Path) -> None:
    """Cuts that lead to no cell take room, too."""
    b = Builder(13)
    onnx.save(b.model(b.op("Relu", "x"), (1, 2)), str(tmp_path / "m.onnx"))
    networks, cuts = Networks([tmp_path / "m.onnx"]), 1 << 20
    with pytest.raises(Refused, match="no list of cuts"):
        cells_of(
            networks,
            Region(np.zeros(2), np.ones(2)),
            [networks.logits[0]] * cuts,
            np.zeros(cuts, dtype=np.int64),
            np.zeros(cuts),
        )


@pytest.mark.parametrize(("masks", "value"), [(1, -np.inf), (2, -np.inf), (1, -1e9)])
def test_rows_masked_completely_go_nowhere(masks: int, value: float, tmp_path: Path) -> None:
    """Masked by -inf only a guard may read them; masked twice, nothing is left when one mask is taken away.

    A large number that is added to a whole row means nothing, but the runtime loses the logits beside it.
    """
    b = Builder(13)
    h = "x"
    for _ in range(masks):
        h = b.op("Add", h, b.const([[value, value], [0.0, 0.0]]))
    p = b.op("Softmax", h, axis=-1)
    once = masks == 1 and value == -np.inf
    y = b.op("Expand", p, b.ints(2, 2)) if once else b.op("Where", b.op("IsNaN", p), b.const(0.0), p)
    onnx.save(b.model(b.op("Reshape", y, b.ints(1, 4)), (2, 2)), str(tmp_path / "m.onnx"))
    with pytest.raises(ModelError, match="only a guard may read" if once else "masked completely"):
        Networks([tmp_path / "m.onnx"])
