"""False statements that were accepted once: networks small enough to see that they are false, and the proofs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from softhull.certificates.write import class_certificate
from softhull.checker.certificate import FORMAT, VERSION, Certificate, write_certificate
from softhull.checker.check import Checked, check_certificate, sha256
from softhull.regions import Perturbation

from .evaluate import save

F = np.float32


@dataclass(frozen=True)
class Forgery:
    """A certificate in a file, its model, and an input of its region at which the runtime says otherwise."""

    path: Path
    model: Path
    witness: np.ndarray
    label: int = 0

    def check(self) -> Checked:
        return check_certificate(self.path, [self.model])


def certificate(
    model: Path,
    x: Sequence[float],
    eps: float,
    property: dict[str, Any],
    steps: list[dict[str, Any]],
    arrays: dict[str, np.ndarray],
    version: int = VERSION,
) -> Certificate:
    at = np.asarray(x, dtype=np.float64)
    header = {
        "format": FORMAT,
        "version": version,
        "models": [{"file": model.name, "sha256": sha256(model.read_bytes())}],
        "input": {"array": "input", "sha256": sha256(at.astype("<f8").tobytes()), "index": 0},
        "region": {"eps": eps, "norm": "inf", "clip": None},
        "property": property,
        "steps": steps,
    }
    return Certificate(header, {"input": at} | arrays)


def _forged(folder: Path, model: Path, found: Certificate, witness: Sequence[float], label: int = 0) -> Forgery:
    write_certificate(folder / "forged.npz", found)
    return Forgery(folder / "forged.npz", model, np.array(witness, dtype=F), label)


def stop_behind_a_split(folder: Path) -> Forgery:
    """``y = (x0 x1 + 1/2, 0)`` on [-1, 1]^2: evaluated before its quadratic is bounded, the margin would be 1/2."""
    nodes = [
        helper.make_node("MatMul", ["x", "one"], ["h"]),
        helper.make_node("Gather", ["h", "turned"], ["t"], axis=1),
        helper.make_node("Mul", ["h", "t"], ["m"]),
        helper.make_node("Gemm", ["m", "w", "b"], ["y"]),
    ]
    constants = {
        "one": np.eye(2, dtype=F),
        "turned": np.array([1, 0]),
        "w": np.array([[1, 0], [0, 0]], F),
        "b": np.array([0.5, 0], F),
    }
    model = save(folder / "m.onnx", nodes, constants, [1, 2])
    arrays = {
        "pair": np.array([[0, 1]]),
        "low": np.array([0.5]),
        "high": np.array([np.inf]),
        "d": np.full(2, 0.5),
        "z": np.zeros(2),
    }
    rules = {"0:m": {"split": 0}, "0:x": {"multipliers": "d", "point": "z"}}
    step: dict[str, Any] = {"claim": "differences", "tensor": "0:y", "entries": "pair", "lower": "low", "upper": "high"}
    step |= {"stops": True, "rules": rules}
    claim = {"kind": "class", "label": 0, "rivals": [1]}
    return _forged(folder, model, certificate(model, [0, 0], 1.0, claim, [step], arrays), [1, -1])


def one_logit_ahead_of_itself(folder: Path) -> Forgery:
    """``softmax(Gather(x, [0, 0, 1]))``: classes 0 and 1 are one logit."""
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["g"], axis=1),
        helper.make_node("Softmax", ["g"], ["y"], axis=-1),
    ]
    model = save(folder / "m.onnx", nodes, {"i": np.array([0, 0, 1])}, [1, 2])
    claim = {"kind": "class", "label": 0, "rivals": [1, 2]}
    steps = [{"claim": "logits", "tensor": "0:y"}]
    return _forged(folder, model, certificate(model, [-1.5, -5], 0.25, claim, steps, {}), [-1.5, -5])


def repeated_logits_before_a_product(folder: Path) -> Forgery:
    """``y = (softmax(Gather(l, [0, 0, 1])) * h) o + b`` with l and h linear in x, by the honest writer."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["l"]),
        helper.make_node("Gather", ["l", "i"], ["g"], axis=1),
        helper.make_node("Softmax", ["g"], ["p"], axis=-1),
        helper.make_node("MatMul", ["x", "v"], ["h"]),
        helper.make_node("Mul", ["p", "h"], ["m"]),
        helper.make_node("Gemm", ["m", "o", "b"], ["y"]),
    ]
    constants = {
        "w": np.array([[1, 1], [2, 0]], F),
        "i": np.array([0, 0, 1]),
        "v": np.array([[2, 0, -2], [0, 0, -2]], F),
        "o": np.array([[-1, 0], [-1, 2], [-2, 2]], F),
        "b": np.array([1, 0], F),
    }
    model = save(folder / "m.onnx", nodes, constants, [1, 2])
    found = class_certificate(model, np.array([1.0, -0.25]), 0, Perturbation(0.5))
    return _forged(folder, model, found, [0.5, -0.75])


def two_operator_sets(folder: Path) -> Forgery:
    """``y = (sum of softmax(x) - 3/2, 0)`` for x of shape [1, 2, 2], read with one import of two.

    In operator set 13 there are two rows, which add up to 2; in 12 all four numbers are one row.
    """
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"], axis=1),
        helper.make_node("Reshape", ["p", "flat"], ["q"]),
        helper.make_node("Gemm", ["q", "w", "b"], ["y"]),
    ]
    constants = {
        "flat": np.array([1, 4]),
        "w": np.array([[1, 0], [1, 0], [1, 0], [1, 0]], F),
        "b": np.array([-1.5, 0], F),
    }
    model = save(folder / "m.onnx", nodes, constants, [1, 2, 2])
    proto = onnx.load(str(model))
    del proto.opset_import[:]
    proto.opset_import.extend([helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx", 12)])
    onnx.save(proto, str(model))
    # The four probabilities add up to 2 where there are two rows, and to 1 in one.
    arrays = {"pair": np.array([[0, 1]]), "low": np.array([0.25]), "high": np.array([np.inf])}
    arrays |= {
        "b": np.zeros((0, 2, 2, 4)),
        "a": np.zeros((0, 2, 2, 2)),
        "m": np.ones((1, 2)),
        "none": np.zeros((0, 2, 2)),
    }
    planes = {"claim": "planes", "tensor": "0:p", "below": "b", "above": "a"}
    rules = {"0:p": {"planes": 0, "multiplier": "m", "below": "none", "above": "none"}}
    step = {"claim": "differences", "tensor": "0:y", "entries": "pair", "lower": "low", "upper": "high", "rules": rules}
    claim = {"kind": "class", "label": 0, "rivals": [1]}
    return _forged(folder, model, certificate(model, [0, 0, 0, 0], 0.1, claim, [planes, step], arrays), [0, 0, 0, 0])


def old_broadcast(folder: Path) -> Forgery:
    """``Add(x, c, broadcast=1, axis=0)`` of operator set 6 adds c to the rows, today's ``Add`` to the columns."""
    nodes = [
        helper.make_node("Add", ["x", "c"], ["s"], broadcast=1, axis=0),
        helper.make_node("Reshape", ["s", "flat"], ["q"]),
        helper.make_node("MatMul", ["q", "w"], ["y"]),
    ]
    constants = {
        "c": np.array([1, 0], F),
        "flat": np.array([1, 4]),
        "w": np.array([[0, 0], [0, 1], [1, 0], [0, 0]], F),  # y = (s10, s01)
    }
    model = save(folder / "m.onnx", nodes, constants, [2, 2], 6)
    arrays = {"pair": np.array([[0, 1]]), "low": np.array([0.5]), "high": np.array([np.inf])}
    step = {"claim": "differences", "tensor": "0:y", "entries": "pair", "lower": "low", "upper": "high"}
    claim = {"kind": "class", "label": 0, "rivals": [1]}
    return _forged(folder, model, certificate(model, [0, 0, 0, 0], 0.1, claim, [step], arrays), [0, 0, 0, 0])


def mask_turned_around(folder: Path) -> Forgery:
    """``softmax(-(x + (-inf, 0)))``: one logit is +inf, ahead of the other by any margin, and no output is a number."""
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["m"]),
        helper.make_node("Neg", ["m"], ["l"]),
        helper.make_node("Softmax", ["l"], ["y"], axis=-1),
    ]
    model = save(folder / "m.onnx", nodes, {"mask": np.array([[-np.inf, 0]], F)}, [1, 2])
    arrays = {"pair": np.array([[0, 1]]), "low": np.array([0.5]), "high": np.array([np.inf])}
    step = {"claim": "differences", "tensor": "0:l", "entries": "pair", "lower": "low", "upper": "high"}
    claim = {"kind": "class", "label": 0, "rivals": [1]}
    return _forged(folder, model, certificate(model, [0, 0], 0.1, claim, [step], arrays), [0, 0])


FORGERIES: dict[str, Callable[[Path], Forgery]] = {
    found.__name__: found
    for found in (
        stop_behind_a_split,
        one_logit_ahead_of_itself,
        repeated_logits_before_a_product,
        two_operator_sets,
        old_broadcast,
        mask_turned_around,
    )
}
