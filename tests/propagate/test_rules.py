"""Every operator that a network may hold has the rules by which bounds move through it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

from softhull.graph import ops
from softhull.graph.operator import Operator
from softhull.propagate.rules import step
from softhull.propagate.second_order.rules import affine_form
from softhull.propagate.second_order.specification import SecondOrderBounds as SecondOrderBounds  # registers them

# Operators that neither walks nor forms meet, and why.
WITHOUT = {
    "Guard": "only a softmax with a mask may stand before it, and simplification removes it there",
    "Undefined": "only a guard may ask for it",
    "Above": "only the cases of a softplus may ask for it",
}


def _operators() -> list[type[Operator]]:
    modules = [importlib.import_module(f"{ops.__name__}.{found.name}") for found in pkgutil.iter_modules(ops.__path__)]
    found = {c for module in modules for _, c in inspect.getmembers(module, inspect.isclass) if issubclass(c, Operator)}
    return sorted((c for c in found if not inspect.isabstract(c)), key=lambda c: c.__name__)


@pytest.mark.parametrize("operator", _operators())
def test_walks_intervals_and_forms_pass_through(operator):
    assert (step.dispatch(operator) is step.dispatch(object)) == (operator.name in WITHOUT)
    assert (affine_form.dispatch(operator) is affine_form.dispatch(object)) == (operator.name in WITHOUT)
    assert not getattr(operator.interval, "__isabstractmethod__", False)


def test_an_operator_of_no_kind_has_no_rule():
    class Unknown(Operator):
        name = "Unknown"

    assert len(_operators()) > 20
    assert step.dispatch(Unknown) is step.dispatch(object)
