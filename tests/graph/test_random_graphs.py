"""Random networks over all operators: sound operators, and a simplification that changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from softhull.graph.simplify import simplify

from .checks import assert_sound
from .random_graphs import random_graph


@pytest.mark.parametrize("seed", range(60))
def test_random_graph(seed):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng)
    simple = simplify(graph)
    x = torch.from_numpy(rng.normal(size=(5, *graph.input_shape)))
    torch.testing.assert_close(simple(x), graph(x), rtol=1e-9, atol=1e-9)
    assert len(simple.nodes) <= len(graph.nodes) + 2
    assert_sound(simple, seed, radius=float(10.0 ** rng.uniform(-3, 0)))


def test_all_operators_occur():
    seen = {node.operator.name for seed in range(200) for node in random_graph(np.random.default_rng(seed)).nodes}
    expected = (
        "Add Centre Clip Concat Conv Cube Dense Elu Erf Exp Expand Gather Gelu LeakyRelu Log LogSumExp MatMul Mish "
        "Product Reciprocal Relu Reshape Rsqrt Scale Sigmoid Silu Slice Softmax Softplus Softsign Sqrt Square Subtract "
        "Sum Tanh TanhGelu Transpose"
    )
    assert seen == set(expected.split())
