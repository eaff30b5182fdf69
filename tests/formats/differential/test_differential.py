"""No file has two meanings: a few hundred random models here, 20,000 in ``make soundness``."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import onnx
import pytest

from softhull.checker.network import OPERATORS
from softhull.formats import onnx as importer
from softhull.formats import onnx_composed, onnx_constants, onnx_rules
from softhull.formats.onnx_rules import RULES

from .compare import compare
from .models import NEWEST, ODD, opsets

MODELS = 600


@pytest.fixture(scope="module")
def tally():
    return compare(range(MODELS))


def test_importer_checker_and_runtime_agree(tally):
    assert tally.models == MODELS
    assert tally.wrong == []


def test_every_rule_was_accepted_and_compared(tally):
    assert set(RULES) <= set(ODD)
    missing = sorted(set(RULES) - set(tally.imported))
    for name in missing:
        tally.merge(compare(range(40), name))
    assert set(RULES) <= set(tally.imported), sorted(set(RULES) - set(tally.imported))
    assert tally.wrong == []


def test_every_operator_of_the_checker_was_accepted_and_compared(tally):
    where = {"Concat": "shapes", "Constant": "Add", "Max": "shapes"}
    for name in sorted(set(OPERATORS) - set(tally.checked)):
        tally.merge(compare(range(60), where.get(name, name)))
    assert set(OPERATORS) <= set(tally.checked), sorted(set(OPERATORS) - set(tally.checked))
    assert tally.wrong == []


LEFT_OUT = {
    # Without broadcasting: refused, because runtimes broadcast all the same.
    **{key: {6} for key in ("Max", "Mean", "Min", "Sum")},
    "Resize": {10},  # coordinates were not specified
    "GroupNormalization": {18},  # scales per group; deprecated because they were wrong
}


@pytest.mark.parametrize("name", RULES)
def test_a_declaration_matches_the_standard(name):
    rule = RULES[name]
    history = {s.since_version: s for s in onnx.defs.get_all_schemas_with_history() if (s.domain, s.name) == ("", name)}
    assert set(rule.versions) <= set(history)
    for version in rule.versions:
        schema = history[version]
        for key, attribute in schema.attributes.items():
            assert rule.attributes[key] == attribute.type.value
        assert rule.inputs[0] <= schema.max_input
        assert rule.inputs[1] >= schema.min_input
    assert set(rule.attributes) == {key for version in rule.versions for key in history[version].attributes}
    in_force = {max(v for v in history if v <= opset) for opset in range(7, NEWEST + 1) if min(history) <= opset}
    assert in_force - set(rule.versions) == LEFT_OUT.get(name, set())


def test_every_boundary_between_versions_is_tried():
    for name, rule in RULES.items():
        for version in rule.versions:
            if 7 <= version <= NEWEST:
                assert version in opsets(name)
            if 8 <= version <= NEWEST:
                assert version - 1 in opsets(name)


# What each fix replaced. With any of it back the suite finds a file with two meanings.


def _without_stretching(monkeypatch: Any) -> None:
    for rules in (onnx_rules, onnx_composed):
        monkeypatch.setattr(rules, "stretched", lambda graph, x, constant: x)


def _softmax_of_today(monkeypatch: Any) -> None:
    fold = onnx_constants.ConstantFolder.fold

    def folded(self: Any, node: Any, arguments: Any) -> Any:
        if node.op_type == "Softmax":
            self = onnx_constants.ConstantFolder(13, self.room)
            if not node.attribute:
                node = onnx.helper.make_node("Softmax", node.input, node.output, axis=1)
        return fold(self, node, arguments)

    monkeypatch.setattr(onnx_constants.ConstantFolder, "fold", folded)


def _cast_as_identity(monkeypatch: Any) -> None:
    rule = dataclasses.replace(RULES["Cast"], translate=lambda context, x: x)
    monkeypatch.setitem(RULES, "Cast", rule)


def _first_import(monkeypatch: Any) -> None:
    def first(model: Any, name: str) -> int:
        return int(model.opset_import[0].version)

    monkeypatch.setattr(importer, "_opset", first)


def _no_limit_at_the_largest_float(monkeypatch: Any) -> None:
    clipped = onnx_rules.clipped

    def unlimited(graph: Any, x: int, least: float, most: float) -> int:
        least = -math.inf if least <= -3.4e38 else least
        return clipped(graph, x, least, math.inf if most >= 3.4e38 else most)

    monkeypatch.setattr(onnx_rules, "clipped", unlimited)


def _pads_of_any_window(monkeypatch: Any) -> None:
    def window(context: Any, space: Any, kernel: Any) -> Any:
        attributes = dict(context.attributes)
        mode = attributes.pop("auto_pad")
        ones = (1,) * len(kernel)
        strides, dilations = (tuple(attributes.get(key, ones)) for key in ("strides", "dilations"))
        pads = tuple(attributes.get("pads", (0,) * (2 * len(kernel))))
        if mode in (b"SAME_UPPER", b"SAME_LOWER"):
            missing = [
                max(0, (-(-size // stride) - 1) * stride + dilation * (k - 1) + 1 - size)
                for size, k, stride, dilation in zip(space, kernel, strides, dilations)
            ]
            front = [m // 2 if mode == b"SAME_UPPER" else m - m // 2 for m in missing]
            pads = (*front, *(m - f for m, f in zip(missing, front)))
        return strides, pads, dilations

    monkeypatch.setattr(onnx_rules, "window", window)


def _defaults_as_doubles(monkeypatch: Any) -> None:
    attributes = onnx_rules.Rule._attributes

    def doubled(self: Any, node: Any, schema: Any) -> Any:
        found = attributes(self, node, schema)
        given = {attribute.name for attribute in node.attribute}
        defaults = {"alpha": 0.01, "epsilon": 1e-5}
        return {k: defaults[k] if k in defaults and k not in given else v for k, v in found.items()}

    monkeypatch.setattr(onnx_rules.Rule, "_attributes", doubled)


def _maximum_over_no_axes(monkeypatch: Any) -> None:
    def reduced(context: Any, x: int, given: Any) -> tuple[int, ...]:
        return tuple(range(len(context.shape(x))))

    monkeypatch.setattr(onnx_rules, "reduced_axes", reduced)


def _halves_not_rounded(monkeypatch: Any) -> None:
    fold = onnx_constants.ConstantFolder.fold

    def folded(self: Any, node: Any, arguments: Any) -> Any:
        return (
            list(arguments)
            if node.op_type == "Cast" and arguments[0].dtype.kind == "f"
            else fold(self, node, arguments)
        )

    monkeypatch.setattr(onnx_constants.ConstantFolder, "fold", folded)


REVERTED = {
    "Pow": _without_stretching,
    "Max": _without_stretching,
    "Min": _without_stretching,
    "folded": _softmax_of_today,
    "Cast": _cast_as_identity,
    "Softmax": _first_import,
    "Clip": _no_limit_at_the_largest_float,
    "AveragePool": _pads_of_any_window,
    "LeakyRelu": _defaults_as_doubles,
    "BatchNormalization": _defaults_as_doubles,
    "ReduceMean": _maximum_over_no_axes,
}


@pytest.mark.parametrize("name", REVERTED)
def test_the_suite_finds_every_hole_again(name, monkeypatch):
    REVERTED[name](monkeypatch)
    for start in range(0, 1000, 50):
        if compare(range(start, start + 50), name).wrong:
            return
    pytest.fail("the suite does not see it")


def test_a_half_that_is_not_rounded_is_found(monkeypatch):
    _halves_not_rounded(monkeypatch)
    assert any(compare(range(start, start + 50), "folded").wrong for start in range(0, 1000, 50))


def test_models_repeat():
    first, second = compare(range(50)), compare(range(50))
    assert np.array_equal(sorted(first.imported.items()), sorted(second.imported.items()))
    assert first.refused == second.refused
