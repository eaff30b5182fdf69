"""Random small problems, and what has to hold of the trees that are grown for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from softhull.branch.cut_leaves import CutLeaves
from softhull.branch.cuts import Cut
from softhull.branch.dual_leaves import DualLeaves
from softhull.branch.product_leaves import ProductLeaves
from softhull.branch.tree import Node
from softhull.branch.walk_leaves import Rows, WalkLeaves
from softhull.graph.graph import Graph
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import SecondOrder
from softhull.propagate.structure import Structure
from softhull.regions import Perturbation, Region
from softhull.solve.layers import Stack, stack_networks
from softhull.solve.relaxation import relax
from softhull.solve.softmax_boxes import parse_bounds
from tests.propagate.networks import random_attention
from tests.solve.ensembles import random_graph
from tests.soundness.refinement import Least, Parts, least, sum_of

POINTS = 4000
CLOSER = 40  # looks
KINDS = ("relu", "leaky", "tanh", "attention")


class Problem:
    """Bounds, the region of the only problem, networks with rows that add up to its objective, less an offset.

    ``cut_value`` is the value of what a cut cuts.
    """

    def __init__(
        self,
        bounds: CutLeaves | DualLeaves | ProductLeaves | WalkLeaves,
        region: Region,
        parts: Parts,
        cut_value: Callable[[Cut, Tensor], Tensor],
        offset: float = 0.0,
    ) -> None:
        self.bounds, self.region, self.parts, self.cut_value, self.offset = bounds, region, parts, cut_value, offset

    def objective(self, x: Tensor) -> Tensor:
        """What is to be bounded from below, at points."""
        return sum_of(self.parts, x) - self.offset

    def least(self, near: float) -> Least:
        """The least value of the objective, by refinement."""
        with torch.no_grad():
            found = least(self.parts, self.region.lower[0], self.region.upper[0], near)
        return Least(found.low - self.offset, found.high - self.offset, found.x)

    def points(self, seed: int = 0) -> Tensor:
        """Random points of the region, corners among them, descents from the best, and ever closer looks around them.

        The least value among them is that of the region, but for far less than a thousandth of its range.
        """
        generator = torch.Generator().manual_seed(seed)
        lower, upper = self.region.lower, self.region.upper
        share = torch.rand(POINTS, *lower.shape[1:], generator=generator, dtype=lower.dtype)
        share[: POINTS // 4] = share[: POINTS // 4].round()
        x = lower + share * (upper - lower)
        near = x[self.objective(x).argsort()[:20]]
        for step in range(30):
            near = near.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.objective(near).sum(), near)
            near = near.detach() - 0.3 * 0.85**step * (upper - lower) * slope.sign()
            near = torch.minimum(torch.maximum(near, lower), upper)
        x = torch.cat((x, near.detach()))
        with torch.no_grad():
            value = self.objective(x)
            for step in range(CLOSER):
                best = x[value.argsort()[:8]].repeat_interleave(32, 0)
                share = 2 * torch.rand(*best.shape, generator=generator, dtype=lower.dtype) - 1
                share = share * (torch.rand(*best.shape, generator=generator) < 0.5)  # along some directions
                near = best + 0.7**step * share * (upper - lower)
                near = torch.minimum(torch.maximum(near, lower), upper)
                x, value = torch.cat((x, near)), torch.cat((value, self.objective(near)))
        return x

    def aimed(self, target: float) -> Problem:
        """The same problem less a number: cells inside a network are about what is positive, and stop there."""
        assert not isinstance(self.bounds, DualLeaves | WalkLeaves)
        self.bounds.offsets = self.bounds.offsets + target
        return Problem(self.bounds, self.region, self.parts, self.cut_value, self.offset + target)


def random_score(seed: int, activation: str = "relu") -> Problem:
    """The probability of a class under a few networks that share 2 to 6 inputs, to be bounded from below."""
    rng = np.random.default_rng([seed, 7])
    inputs, classes, networks = int(rng.integers(2, 7)), int(rng.integers(2, 5)), int(rng.integers(1, 3))
    generator = torch.Generator().manual_seed(seed)
    graphs = [random_graph(generator, inputs, (4, 4), classes, activation) for _ in range(networks)]
    stacks = stack_networks(graphs)
    x = torch.rand(1, 1, inputs, generator=generator, dtype=torch.float64)
    y = torch.randint(classes, (1,), generator=generator)
    region = Perturbation(float(rng.uniform(0.03, 0.1)), clip=(0.0, 1.0)).around(x)
    relaxation = relax(stacks, region, parse_bounds("er/lse"))
    own = torch.nn.functional.one_hot(y, classes).double()

    def plane(problems: Tensor, ranges: tuple[Tensor, Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
        return -own.expand(len(problems), -1), torch.zeros(len(problems), dtype=torch.float64)

    bounds = DualLeaves(relaxation, torch.zeros(1, dtype=torch.long), plane, torch.full_like(own, 1 / classes))

    def cut_value(cut: Cut, x: Tensor) -> Tensor:
        return _entry(cut, x if cut.node < 0 else _layer(stacks, bounds.nodes[cut.node], x))

    return Problem(bounds, region, [(graph, own / networks) for graph in graphs], cut_value)


def random_margin(seed: int, attention: bool = True, activation: str = "relu") -> Problem:
    """A random combination of the outputs of a network, with attention or without; cells are boxes of inputs."""
    rng = np.random.default_rng([seed, 8])
    if attention:
        graph: Graph = random_attention(rng)
    else:
        generator = torch.Generator().manual_seed(seed)
        graph = random_graph(generator, int(rng.integers(2, 7)), (5, 4), 3, activation, softmax=False)
    x = torch.from_numpy(rng.uniform(0, 1, (1, *graph.input_shape)))
    region = Perturbation(float(rng.uniform(0.02, 0.08))).around(x)
    row = torch.from_numpy(rng.normal(size=(1, 1, *graph.output_shape)))
    rows = Rows(row, torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.long))
    bounds = WalkLeaves(graph, Structure(graph), region, rows, SecondOrder(), 1 << 22)

    return Problem(bounds, region, [(graph, row)], _entry)


def random_inner(seed: int, kind: str = "relu", sharpen: bool = False) -> Problem:
    """The same with cuts inside the network: of feedforward networks with some activation, or of attention.

    ``sharpen``: by functions between what can be cut, whose intervals are bounded again.
    """
    rng = np.random.default_rng([seed, 9])
    if kind == "attention":
        graph: Graph = random_attention(rng)
    else:
        generator = torch.Generator().manual_seed(seed)
        graph = random_graph(generator, int(rng.integers(2, 7)), (5, 4), 3, activation=kind, softmax=False)
    return _with_inner_cuts(rng, graph, partial(CutLeaves, sharpen=sharpen))


def random_product(seed: int) -> Problem:
    """A network with attention whose logits and activations are cut, by second order."""
    rng = np.random.default_rng([seed, 10])
    return _with_inner_cuts(rng, random_attention(rng), ProductLeaves)


def _with_inner_cuts(rng: np.random.Generator, graph: Graph, kind: Callable[..., CutLeaves | ProductLeaves]) -> Problem:
    """A random row of a network over a random box, its cells bounded with cuts inside."""
    x = torch.from_numpy(rng.uniform(0, 1, (1, *graph.input_shape)))
    region = Perturbation(float(rng.uniform(0.05, 0.3))).around(x)
    row = torch.from_numpy(rng.normal(size=(1, *graph.output_shape)))
    offset = torch.from_numpy(rng.normal(size=1))
    bounds = LinearBounds(graph, region, SecondOrder().linear)
    leaves = kind(bounds, torch.zeros(1, dtype=torch.long), row, offset)

    def cut_value(cut: Cut, x: Tensor) -> Tensor:
        return _entry(cut, x if cut.node < 0 else graph.values(x)[cut.node])

    return Problem(leaves, region, [(graph, row)], cut_value, float(offset))


def _layer(stacks: list[Stack], place: tuple[int, int], x: Tensor) -> Tensor:
    stack, layer = place
    return stacks[stack].values(x.flatten(1))[layer]


def _entry(cut: Cut, values: Tensor) -> Tensor:
    flat = values.flatten(1)
    return flat[:, cut.plus] - (0 if cut.minus is None else flat[:, cut.minus])


def check_tree(problem: Problem, root: Node, x: Tensor) -> None:
    """Every point lies in a cell, and in every cell the objective is at least the bound of the cell."""
    waiting = [(root, x, problem.objective(x))]
    while waiting:
        cell, x, value = waiting.pop()
        if cell.children is None:
            assert cell.bound <= float(value.min()), f"the bound of cell {[str(cut) for cut in cell.path]}"
            continue
        covered = torch.zeros(len(x), dtype=torch.bool)
        for child in cell.children:
            cut = child.side
            assert cut is not None
            height = problem.cut_value(cut, x)
            there = (height <= cut.threshold) if cut.below else (height >= cut.threshold)
            covered |= there
            if bool(there.any()):
                waiting.append((child, x[there], value[there]))
        assert bool(covered.all()), (
            f"{int((~covered).sum())} points below {[str(cut) for cut in cell.path]} lie in no cell"
        )
