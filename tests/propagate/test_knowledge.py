"""Records of what is proved never change, and only get tighter."""

from __future__ import annotations

import numpy as np
import torch

from softhull.graph.ops.softmax import Softmax
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear
from softhull.propagate.structure import Structure
from softhull.regions import Perturbation
from tests.propagate.networks import random_attention


def _bounds(seed=0):
    rng = np.random.default_rng(seed)
    graph = random_attention(rng, depth=2)
    x = torch.from_numpy(rng.uniform(size=(2, *graph.input_shape)))
    bounds = LinearBounds(graph, Perturbation(0.1).around(x), Linear(optimize=0))
    bounds.lower(len(graph.nodes) - 1, torch.ones((1, 2, *graph.output_shape), dtype=torch.float64))
    return bounds, [i for i, node in enumerate(graph.nodes) if isinstance(node.operator, Softmax)]


def _half(pair):
    """The middle half of intervals: not proved, but easy to tell apart."""
    quarter = (pair[1] - pair[0]) / 4
    return pair[0] + quarter, pair[1] - quarter


def test_better_differences_renew_what_rests_on_them_and_nothing_else():
    bounds, (first, *_, last) = _bounds()
    before = bounds.differences(first), bounds.differences(last), bounds.interval(first)
    better = bounds.knowing(bounds.knowledge.with_differences(first, _half(before[0])))
    assert all(torch.equal(a, b) for a, b in zip(better.differences(first), _half(before[0])))
    after = bounds.structure.after(first)
    assert last in after
    assert first not in after
    assert not better.knowledge.known("interval") & (after | {first})
    assert better.knowledge.known("interval") == bounds.knowledge.known("interval") - after - {first}
    assert last not in better.knowledge.known("differences")
    assert bool((better.interval(first)[0] >= before[2][0]).all())
    # the record that was there says what it said
    assert all(a is b for a, b in zip(bounds.differences(first), before[0]))
    assert all(a is b for a, b in zip(bounds.differences(last), before[1]))


def test_without_renewal_only_planes_are_made_again():
    bounds, (first, *_, last) = _bounds()
    better = bounds.knowledge.with_differences(first, _half(bounds.differences(first)), renew=False)
    assert better.known("planes") == bounds.knowledge.known("planes") - {first}
    assert better.known("interval") == bounds.knowledge.known("interval")
    assert last in better.known("differences")


def test_worse_facts_change_nothing():
    bounds, (first, *_) = _bounds()
    low, high = bounds.differences(first)
    worse = bounds.knowing(bounds.knowledge.with_differences(first, (low - 1, high + 1)))
    assert torch.equal(worse.differences(first)[0], low)
    low, high = bounds.interval(first)
    worse = bounds.knowing(bounds.knowledge.with_interval(first, (low - 1, high + 1)))
    assert torch.equal(worse.interval(first)[0], low)


def test_a_better_interval_is_used_by_what_follows():
    bounds, (first, *_) = _bounds()
    point = (bounds.interval(first)[0],) * 2
    better = bounds.knowing(bounds.knowledge.with_interval(first, point))
    after = max(bounds.knowledge.known("interval") & bounds.structure.after(first))
    width, before = ((high - low).sum() for low, high in (better.interval(after), bounds.interval(after)))
    assert width < before


def test_some_instances_know_what_all_of_them_know():
    bounds, (first, *_) = _bounds()
    part = bounds.take(torch.tensor([1, 1]))
    assert part.knowledge.known("interval") == bounds.knowledge.known("interval")
    assert torch.equal(part.interval(first)[0][0], bounds.interval(first)[0][1])


def test_what_depends_on_a_node():
    bounds, _ = _bounds()
    structure = Structure(bounds.graph)
    for index in range(len(bounds.graph.nodes)):
        direct = {i for i, node in enumerate(bounds.graph.nodes) if index in node.inputs}
        assert structure.after(index) == direct.union(*(structure.after(i) for i in direct))
