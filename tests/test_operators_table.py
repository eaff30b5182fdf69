"""The table of operators is complete, is what the documentation shows, and calls exact what is affine."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from softhull.checker.network import OPERATORS
from softhull.cli.app import app
from softhull.errors import ModelError
from softhull.formats.onnx import parse_onnx
from softhull.formats.onnx_rules import RULES
from softhull.formats.onnx_table import _KINDS, _NOTES, EXACT, operators
from softhull.graph.operator import Affine

from .formats.differential.models import sample

PAGE = Path(__file__).parent.parent / "docs" / "operators.md"


def test_every_rule_has_one_kind():
    named = [name for names in _KINDS.values() for name in names]
    assert sorted(named) == sorted(RULES)
    assert set(_NOTES) <= set(RULES)
    assert all(row["relaxation"] for row in operators({}))


def test_every_rule_has_a_checker_rule():
    """An operator that certificates cannot cover would be listed here, with the reason."""
    assert set(RULES) - set(OPERATORS) == set()


def test_the_documentation_shows_this_table():
    found = CliRunner().invoke(app, ["operators", "--markdown"])
    assert found.exit_code == 0
    assert found.output.strip() in PAGE.read_text()
    assert CliRunner().invoke(app, ["operators"]).exit_code == 0
    assert '"operator": "Softmax"' in CliRunner().invoke(app, ["operators", "--json"]).output


@pytest.mark.parametrize("name", _KINDS[EXACT])
def test_what_is_called_exact_is_affine(name):
    """All but the gate of the sample and the curve that may stand behind it."""
    read = 0
    for seed in range(12):
        case = sample(seed, name)
        try:
            graph = parse_onnx(case.content, name, None).graph
        except ModelError:
            continue
        kinds = [node.operator.name for node in graph.nodes if not isinstance(node.operator, Affine)]
        assert set(kinds) <= {"Relu", "Tanh", "LeakyRelu", "Softmax", "Exp"}, kinds
        read += 1
    assert read
