"""A softmax that only affine steps separate from the specification, or from the input: every stage takes it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from softhull.attack.score import ScoreAttack
from softhull.formats.onnx import parse_onnx
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear
from softhull.propagate.optimize import optimized_lower, with_better_differences
from softhull.regions import Perturbation
from softhull.verify.result import Verdict
from softhull.verify.robustness import verify_robustness
from softhull.verify.uncertainty import verify_uncertainty

from ..formats.onnx_models import Builder, build

rng = np.random.default_rng(0)
FIRST, SECOND, LAST = (rng.normal(size=size) for size in ((4, 6), (4, 4), (6, 3)))


def _head(b: Builder, p: str) -> str:
    return str(b.op("MatMul", b.op("Relu", b.op("MatMul", p, b.const(FIRST))), b.const(LAST)))


def _directly(b: Builder) -> str:
    return _head(b, b.op("Softmax", "x", axis=1))


def _in_rows(b: Builder) -> str:
    rows = b.op("Softmax", b.op("Reshape", "x", b.ints(2, 2)), axis=1)
    return _head(b, b.op("Reshape", rows, b.ints(1, 4)))


def _twice(b: Builder) -> str:
    first = b.op("MatMul", b.op("Softmax", "x", axis=1), b.const(3 * SECOND))
    return _head(b, b.op("Softmax", first, axis=1))


@pytest.mark.parametrize("make", [_directly, _in_rows, _twice])
def test_every_stage_takes_it(make: Callable[[Builder], str]) -> None:
    network = parse_onnx(build((1, 4), make), "m.onnx", None)
    x = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    y = network.replay(x).reshape(4, -1).argmax(1)
    result = verify_robustness(network, x, y, Perturbation(2.0), method=Linear(optimize=2), attack=False)
    assert not result.count(Verdict.ERROR), [record.message for record in result.records]
    assert result.count(Verdict.UNKNOWN)  # so that gradient steps were taken
    quick = ScoreAttack(steps=2, restarts=1)
    scored = verify_uncertainty(network, x, y, Perturbation(0.5), method=Linear(optimize=2), attack=quick)
    assert {record.verdict for record in scored.records} == {"bounded"}
    assert (scored.column("bound") >= scored.column("attack")).all()


def test_shared_coefficients_are_those_of_every_instance() -> None:
    """A specification that all instances share has the bounds that it has for each of them alone."""
    graph = parse_onnx(build((1, 4), _directly), "m.onnx", None).graph
    softmax = 0
    x = torch.randn(5, 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    C = torch.randn(3, 1, 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        bounds = LinearBounds(graph, Perturbation(0.3).around(x), Linear())
        low = bounds.lower(softmax, C)
        torch.testing.assert_close(low, bounds.lower(softmax, C.expand(3, 5, 1, 4)))
        never = torch.full((5,), torch.inf, dtype=torch.float64)
        better = optimized_lower(bounds, softmax, C, 4, 0.1, never)
        assert (better >= low - 1e-12).all()
        tighter = with_better_differences(bounds, 2, 0.1)
        assert (tighter.lower(softmax, C) >= low - 1e-12).all()
        p = graph.nodes[softmax].operator.value(x)
        assert (better <= (C * p).flatten(2).sum(-1)).all()
