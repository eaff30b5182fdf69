"""Random boxes and random graphs of all kinds: no claim fails in exact arithmetic, and the suite is able to see one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .__main__ import graph_round, planes_round
from .graphs import check_graph
from .planes import KINDS, check_planes


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_planes_hold_in_exact_arithmetic(kind: str, dtype: str) -> None:
    for K in (2, 3, 5):
        found = check_planes(np.random.default_rng(K), K, kind, dtype, "outward", 6, 5)
        assert found.checks > 1000
        assert not found.violations, found.wrong


SEEDS = st.integers(0, 2**32 - 1)
QUIET = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


@QUIET
@given(seed=SEEDS, dtype=st.sampled_from([torch.float64, torch.float32]))
def test_propagation_holds_in_exact_arithmetic(seed: int, dtype: torch.dtype) -> None:
    found = check_graph(np.random.default_rng(seed), dtype, "outward", 2)
    assert not found.violations, found.wrong


def test_rounding_to_nearest_is_caught() -> None:
    """The same rounds without charged rounding fail: the suite can tell."""
    assert planes_round(0, "nearest").violations
    assert graph_round(1, "nearest").violations
