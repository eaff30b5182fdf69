"""Statements that were accepted once and are false: refused, or right, from now on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from flint import arb, ctx
from onnx import helper

from softhull.certificates.write import NoProof, class_certificate
from softhull.checker.balls import PRECISION, exact, zeros
from softhull.checker.certificate import write_certificate
from softhull.checker.check import check_certificate, region_of
from softhull.checker.forms import unit_rows
from softhull.checker.network import Networks
from softhull.checker.positions import Entries, Places
from softhull.checker.replay import Knowledge, Rule
from softhull.errors import ModelError
from softhull.regions import Perturbation

from . import false_statements
from .evaluate import save
from .false_statements import FORGERIES

F = np.float32
REFUSALS = {
    "stop_behind_a_split": "0.5 claimed",
    "one_logit_ahead_of_itself": "not proved that class 0 stays ahead of class 1",
    "two_operator_sets": "operator sets twice",
    "old_broadcast": r"\(Add\): not covered in operator set 6",
    "mask_turned_around": r"\(Neg\): -inf in anything but a mask",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused(name: str, tmp_path: Path) -> None:
    forged = FORGERIES[name](tmp_path)
    if name in ("two_operator_sets", "old_broadcast", "mask_turned_around"):
        with pytest.raises(ModelError, match=REFUSALS[name]):
            forged.check()
    else:
        found = forged.check()
        assert not found.accepted
        assert REFUSALS[name] in found.reason


def test_the_writer_finds_no_proof_of_what_is_false(tmp_path: Path) -> None:
    with pytest.raises(NoProof):
        false_statements.repeated_logits_before_a_product(tmp_path)


def test_they_are_false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the witness of each the runtime does not see the label ahead."""
    monkeypatch.setattr(false_statements, "class_certificate", lambda *_: false_statements.Certificate({}, {}))
    for name, forge in FORGERIES.items():
        if name == "old_broadcast":  # too old for the runtime: s10 = 0 and s01 = 1 by the standard of its time
            continue
        forged = forge(tmp_path)
        session = onnxruntime.InferenceSession(str(forged.model), providers=["CPUExecutionProvider"])
        declared = session.get_inputs()[0]
        (y,) = session.run(None, {declared.name: forged.witness.reshape(declared.shape)})
        assert not (np.delete(y.ravel(), forged.label) < y.ravel()[forged.label]).all(), name


@pytest.mark.parametrize("label", [0, 1])
def test_a_softmax_of_one_entry_has_no_sign_to_keep(label: int, tmp_path: Path) -> None:
    """The output is 1 for every input, so that its class is 1, although its logit is negative."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["l"]),
        helper.make_node("Softmax", ["l"], ["y"], axis=-1),
    ]
    model = save(tmp_path / "m.onnx", nodes, {"w": np.ones((2, 1), F)}, [1, 2])
    claim = {"kind": "class", "label": label}
    found = false_statements.certificate(model, [-1, -1], 0.1, claim, [], {})
    write_certificate(tmp_path / "one.npz", found)
    assert check_certificate(tmp_path / "one.npz", [model]).accepted == (label == 1)


def test_the_logarithm_of_a_softmax_of_one_entry_is_refused(tmp_path: Path) -> None:
    """It is 0 for every input, and no class is kept; its probability, 1, would have a sign."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["l"]),
        helper.make_node("LogSoftmax", ["l"], ["y"], axis=-1),
    ]
    model = save(tmp_path / "m.onnx", nodes, {"w": np.ones((2, 1), F)}, [1, 2])
    found = false_statements.certificate(model, [-1, -1], 0.1, {"kind": "class", "label": 1}, [], {})
    write_certificate(tmp_path / "one.npz", found)
    with pytest.raises(ModelError, match="rows of one probability"):
        check_certificate(tmp_path / "one.npz", [model])


MASK = np.array([[-np.inf, 0, 0]], F)


@pytest.mark.parametrize(
    ("nodes", "what"),
    [
        ([("Mul", ["m", "w"])], "-inf in anything but a mask"),  # +inf, and 0 times -inf
        ([("Relu", ["m"])], "-inf in anything but a mask"),
        ([("MatMul", ["m", "turn"])], "-inf in anything but a mask"),
        ([("Add", ["m", "other"])], "masked completely"),  # each mask leaves something, both together nothing
        ([("Add", ["m", "some"])], None),
        ([("Mul", ["m", "twice"])], None),
    ],
)
def test_what_a_mask_may_meet(nodes: list[tuple[str, list[str]]], what: str | None, tmp_path: Path) -> None:
    constants = {
        "mask": MASK,
        "w": np.array([[-1, 0, 1]], F),
        "turn": np.eye(3, dtype=F)[::-1].copy(),
        "other": np.array([[0, -np.inf, -np.inf]], F),
        "some": np.array([[0, -np.inf, 0]], F),
        "twice": np.full((1, 3), 2, F),
    }
    last = [helper.make_node(name, operands, ["l"]) for name, operands in nodes]
    made = [helper.make_node("Add", ["x", "mask"], ["m"]), *last, helper.make_node("Softmax", ["l"], ["y"], axis=-1)]
    model = save(tmp_path / "m.onnx", made, constants, [1, 3])
    if what is None:
        assert Networks([model]).logits
    else:
        with pytest.raises(ModelError, match=what):
            Networks([model])


def test_walks_with_quadratics_have_no_value_before_the_input(tmp_path: Path) -> None:
    """With stops, what is found before the split still counts, and the bound after it is the true one."""
    forged = false_statements.stop_behind_a_split(tmp_path)
    networks = Networks([forged.model])
    with ctx.workprec(PRECISION):
        known = Knowledge(networks, region_of(np.zeros(2), 1.0, "inf", None))
        y = networks.logits[0]
        rules: dict[int, Rule] = {
            networks.tensors["0:m"].node: {"split": 0},
            0: {"multipliers": np.full(2, 0.5), "point": np.zeros(2)},
        }
        start = [(y, unit_rows(Places([(0, 1)], 2)))]
        for stops in (False, True):
            (found,) = known.lower_bounds(start, lambda index, _: rules.get(index), stops)
            assert -0.5001 < float(found) <= -0.5


def test_repeated_positions_add_up() -> None:
    rows = exact(np.array([[1.0, 2.0, 4.0]]))
    assert Entries([1, 1, 0], 3).spread(rows).tolist() == [[arb(4), arb(3), arb(0)]]
    assert Entries([2, 1, 0], 3).spread(rows).tolist() == [[arb(4), arb(2), arb(1)]]
    units = unit_rows(Places([(0, 0), (0, 1)], 2))
    assert units.tolist() == [[0, 0], [1, -1]]


def test_positions_are_no_indices() -> None:
    """Neither kind indexes an array, and each asks for an array over what it counts."""
    numbers = np.arange(4.0)
    with pytest.raises(IndexError):
        numbers[Entries([0], 4)]  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not one for each of 3"):
        Places([0, 2], 3).of(numbers)
    with pytest.raises(TypeError, match="rows of shape"):
        Entries([0, 0], 3).add(zeros(1, 3), zeros(1, 3))
    for wrong in ([-1], [3], [0.5]):
        with pytest.raises(IndexError):
            Entries(wrong, 3)


@pytest.mark.parametrize(("limit", "follows"), [(10.0, True), (2.0, False), (None, True)])
def test_a_limit_of_a_clip_counts_unless_it_is_out_of_reach(limit: float | None, follows: bool, tmp_path: Path) -> None:
    """``y = (Clip(x0), x1)`` with x0 near 3.5 and x1 near 2.5: class 0 is ahead unless the limit cuts it to 2."""
    rows = {"first": np.array([[1], [0]], F), "second": np.array([[0], [1]], F)}
    ends = {"low": np.array(0, F)} | ({} if limit is None else {"high": np.array(limit, F)})
    place = {"left": np.array([[1, 0]], F), "right": np.array([[0, 1]], F)}
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        helper.make_node("Clip", ["a", *ends], ["c"]),
        helper.make_node("MatMul", ["x", "second"], ["b"]),
        helper.make_node("MatMul", ["c", "left"], ["l"]),
        helper.make_node("MatMul", ["b", "right"], ["r"]),
        helper.make_node("Add", ["l", "r"], ["y"]),
    ]
    model = save(tmp_path / "m.onnx", nodes, rows | ends | place, [1, 2])
    x = np.array([3.5, 2.5])
    if follows:
        write_certificate(tmp_path / "c.npz", class_certificate(model, x, 0, Perturbation(0.1)))
        assert check_certificate(tmp_path / "c.npz", [model]).accepted
    else:
        with pytest.raises(NoProof, match="limit"):
            class_certificate(model, x, 0, Perturbation(0.1))
